
// ---- The list. The script subscribes to /api/v1/events and updates only what changed, so that scroll position, focus,
// selection and opened rows are kept. What only an opened row shows (players, rules, when the server was last verified) is
// fetched while it is open. Filters, search and sorting apply at once and are stored in the URL.
//
// On a copy of the page (`rallypoint export --site`) there is no server: the list is a file, which is fetched again as often
// as the copy is renewed, and the page says how old it is.

const table = byId("servers");
const form = byId("filters");
const template = byId("server-template");
if (!table || !form || !template || (!copied && !window.EventSource)) return;

/** Number of rows drawn initially; twice as many are added when the user scrolls near the end. */
const ROWS = 100;
const TEXTS = ["q", "map", "mode", "version", "verified_by", "via", "protocol", "country", "sort"];
const FLAGS = ["not_empty", "not_full", "no_password", "official"];
const PROOFS = ["query", "cookie", "connection", "config"];
/** Delay before a refused stream is opened again; it doubles each time. Broken streams are reopened by the browser. */
const AGAIN_MS = 5000;
const AGAIN_MAX_MS = 300_000;
/** Minimum time between announcements to screen readers. After a user action they are immediate. */
const SAY_MS = 30_000;
/** How often "3 min ago" is updated, and how often the plots are. */
const AGES_MS = 15_000;
const PLOTS_MS = 150_000;
/** How often the details of opened rows are fetched, and of how many rows at once. */
const DETAILS_MS = 5000;
const DETAILS_AT_ONCE = 10;
/** Plots per request. */
const PLOTS_AT_ONCE = 50;
/** A copy is fetched again at its own interval, but not more often than this; and once in this time if it has none. */
const COPY_MS_MIN = 10_000;
const COPY_MS = 300_000;

// ---- State: every server, prepared for searching and sorting.

const servers = new Map();
const games = new Map();
for (const option of form.elements.game?.options ?? []) {
  games.set(option.value, { title: option.textContent, family: "family" in option.dataset });
}

const regions = window.Intl?.DisplayNames && new Intl.DisplayNames(["en"], { type: "region" });
const countryName = (code) => (code && (regions?.of(code) ?? code)) || "";
/** Each letter as a regional indicator, which fonts draw as a flag. */
const flagOf = (code) => String.fromCodePoint(...[...code].map((letter) => 0x1f1e6 + letter.charCodeAt(0) - 65));

/** A family's name stands for all games of its protocol. */
const isFamily = (name) => games.get(name)?.family ?? false;
const isOf = (server, name) => server.game === name || (isFamily(name) && server.protocol === name);

const keyOf = (server) => {
  const { address, port } = server;
  return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
};

function prepared(server) {
  const key = keyOf(server);
  const lower = (text) => (text ?? "").toLowerCase();
  const [name, map, mode, version] = [server.name, server.map, server.mode, server.version].map(lower);
  return {
    ...server,
    key,
    texts: { name, map, mode, version },
    searched: [name, map, mode, version, key].join("\n"),
    playing: server.players_current ?? 0,
    place: place(server.address, server.port),
  };
}

/** A sort key for an address: IPv4 first, numerically, then by port. */
function place(address, port) {
  const hex = (number, digits) => number.toString(16).padStart(digits, "0");
  if (!address.includes(":")) {
    return `4${address.split(".").map((part) => hex(Number(part), 2)).join("")}${hex(port, 4)}`;
  }
  const [head, tail] = address.split("::").map((part) => part.split(":").filter(Boolean));
  const zeros = tail ? Array(8 - head.length - tail.length).fill("0") : [];
  return `6${[...head, ...zeros, ...(tail ?? [])].map((part) => part.padStart(4, "0")).join("")}${hex(port, 4)}`;
}

// ---- Filters: the API's parameters, in the URL and in the form.

/** The sort keys: which value to compare, and whether the order is descending. */
const ORDERS = {
  priority: [(server) => standingOf(server), true],
  name: [(server) => server.texts.name, false],
  players: [(server) => server.playing, true],
  map: [(server) => server.texts.map, false],
  mode: [(server) => server.texts.mode, false],
  version: [(server) => server.texts.version, false],
  game: [(server) => server.game.toLowerCase(), false],
  address: [() => 0, false],
  rtt: [(server) => server.rtt_ms ?? Infinity, false],
  country: [(server) => countryName(server.country).toLowerCase() || "~", false],
  proven: [(server) => server.proven_at, true],
  first_seen: [(server) => server.first_seen, false],
};
const FIELDS = { players_current: "players", rtt_ms: "rtt", proven_at: "proven" };

function order(sort) {
  const turned = sort.startsWith("-");
  const name = turned ? sort.slice(1) : sort;
  const key = FIELDS[name] ?? (name || "priority");
  if (!Object.hasOwn(ORDERS, key)) return null;
  const [value, descending] = ORDERS[key];
  return { key, value, descending: descending !== turned };
}

const home = form.dataset.home || "";
let wanted = parse(location.search);

function parse(search) {
  const query = new URLSearchParams(search);
  const wanted = { game: query.has("game") ? query.get("game") : home };
  for (const name of TEXTS) wanted[name] = query.get(name) ?? "";
  for (const name of FLAGS) wanted[name] = ["", "1", "true", "yes", "on"].includes(query.get(name));
  if (!PROOFS.includes(wanted.verified_by)) wanted.verified_by = "";
  if (!order(wanted.sort)) wanted.sort = "";
  return wanted;
}

function link(wanted) {
  const query = new URLSearchParams();
  if (wanted.game !== home) query.set("game", wanted.game);
  for (const name of TEXTS) if (wanted[name]) query.set(name, wanted[name]);
  for (const name of FLAGS) if (wanted[name]) query.set(name, "1");
  const text = query.toString();
  const path = copied ? location.pathname : "/";
  return text ? `${path}?${text}` : path;
}

const isFiltered = () => [...FLAGS, ...TEXTS].some((name) => name !== "sort" && wanted[name]);

/** The servers that match the filters. */
function matching() {
  const q = wanted.q.toLowerCase();
  const exact = ["map", "mode", "version"].filter((name) => wanted[name]);
  const passes = (server) =>
    (!wanted.game || isOf(server, wanted.game)) &&
    (!wanted.not_empty || server.playing > 0) &&
    (!wanted.not_full || server.players_max === undefined || server.playing < server.players_max) &&
    (!wanted.no_password || server.password !== true) &&
    (!wanted.official || server.official) &&
    (!wanted.verified_by || server.verified_by === wanted.verified_by) &&
    (!wanted.via || server.via === wanted.via) &&
    (!wanted.protocol || server.protocol === wanted.protocol) &&
    (!wanted.country || server.country === wanted.country.toUpperCase()) &&
    exact.every((name) => server.texts[name] === wanted[name].toLowerCase()) &&
    (!q || server.searched.includes(q));
  return [...servers.values()].filter(passes);
}

/** The same, sorted: favourites first. */
function chosen() {
  const { value, descending } = order(wanted.sort);
  const sign = descending ? -1 : 1;
  const compare = (a, b) => {
    const stars = isFavourite(b) - isFavourite(a);
    if (stars) return stars;
    const [x, y] = [value(a), value(b)];
    if (x !== y) return x < y ? -sign : sign;
    return a.place < b.place ? -1 : 1;
  };
  return matching().sort(compare);
}
