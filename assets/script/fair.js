
// ---- The default order: the one of src/prefix/fair.rs, from the same servers.

const FURTHER = 32;
/** Which prefix of a server: its address (IPv6 /64), and the network around it (/24, /48). Four bits are a letter of its place. */
const ADDRESS = { 4: 9, 6: 17 };
const NETWORK = { 4: 7, 6: 13 };
const prefixOf = ({ place }, lengths) => place.slice(0, lengths[place[0]]);

/** Servers of another priority are another list. Those that do not answer are in the last ones. */
const priorityOf = (server) => (server.priority ?? 0) - (server.unanswered_since ? 2 ** 40 : 0);
const level = (players) => 32 - Math.clz32(players);
const isCrowded = (above, networks, below) => above - networks > FURTHER + (below ? Math.floor(networks / 2) : 2 * networks);

/** A class, the best of each network first, then the second of each. The addresses of a network take turns in the same way. */
function inTurns(servers) {
  const turns = servers.map((server, at) => ({ server, at, round: 0 }));
  const byRound = (a, b) => a.round - b.round || a.at - b.at;
  for (const lengths of [ADDRESS, NETWORK]) {
    const counts = new Map();
    for (const turn of turns.sort(byRound)) {
      const prefix = prefixOf(turn.server, lengths);
      turn.round = counts.get(prefix) ?? 0;
      counts.set(prefix, turn.round + 1);
    }
  }
  return turns.sort(byRound).map(({ server }) => server);
}

function fairly(servers) {
  const best = (a, b) => priorityOf(b) - priorityOf(a) || b.playing - a.playing || (a.place < b.place ? -1 : 1);
  const all = servers.sort(best);
  const list = [];
  let [begun, first, networks] = [0, 0, new Set()];
  all.forEach((server, at) => {
    networks.add(prefixOf(server, NETWORK));
    const next = all[at + 1];
    const isLast = !next || priorityOf(next) !== priorityOf(server);
    const goesOn = () => level(next.playing) === level(server.playing) || isCrowded(at + 1 - first, networks.size, next.playing);
    if (!isLast && goesOn()) return;
    for (const one of inTurns(all.slice(begun, at + 1))) list.push(one);
    begun = at + 1;
    if (isLast) [first, networks] = [begun, new Set()];
  });
  return list;
}

/** Where each server stands, until something changes that this depends on. */
let standings = null;

function standingOf(server) {
  if (standings?.game !== wanted.game) {
    const { game } = wanted;
    const list = fairly([...servers.values()].filter((one) => !game || isOf(one, game)));
    standings = { game, places: new Map(list.map(({ key }, at) => [key, -at])) };
  }
  return standings.places.get(server.key);
}
