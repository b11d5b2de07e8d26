// ---- Rows. Each server has its own tbody: its row, and the details that open below it.

const rows = new Map();
const opened = new Set();
const moreTemplate = template.content.querySelector(".more");
moreTemplate?.remove();

/** A path that only the live master has. */
const atMaster = (path) => (copied ? copied.live : "") + path;
const inPath = (server) => `${encodeURIComponent(server.game)}/${encodeURIComponent(server.key)}`;
const inQuery = (server) => `game=${encodeURIComponent(server.game)}&address=${encodeURIComponent(server.key)}`;

/** How each field of the template is filled. */
const FILL = {
  label: (node, server) => setText(node, server.name || server.key),
  name: (node, server) => {
    setText(node, server.name || server.key);
    setLink(node, atMaster(`/servers/${inPath(server)}`));
  },
  star: (node, server) => {
    node.ariaPressed = String(isFavourite(server));
    node.closest("tbody")?.classList.toggle("favourite", isFavourite(server));
  },
  tell: (node, server) => {
    node.parentElement.hidden = !("Notification" in window);
    node.max = server.players_max ?? 1000;
    if (node !== document.activeElement) node.value = told.get(nameOf(server)) ?? "";
  },
  whole_name: (node, server) => setText(node, server.name || server.key),
  page: (node, server) => setLink(node, atMaster(`/servers/${inPath(server)}`)),
  country: (node, { country }) => {
    node.hidden = !country;
    node.title = node.ariaLabel = countryName(country);
    setText(node, country ? flagOf(country) : "");
  },
  country_name: (node, { country }) => setText(node, countryName(country)),
  official: (node, server) => (node.hidden = !server.official),
  password: (node, server) => (node.hidden = server.password !== true),
  unanswered: (node, server) => (node.hidden = !server.unanswered_since),
  unanswered_since: (node, server) => {
    setText(node, server.unanswered_since ? whole(server.unanswered_since) : "");
    node.parentElement.hidden = !server.unanswered_since;
  },
  bar: (node, server) => {
    node.hidden = server.players_max === undefined;
    node.max = server.players_max || 1;
    node.value = server.playing;
    node.dataset.level = !server.playing ? "empty" : server.playing >= server.players_max ? "full" : "some";
  },
  players: (node, { players_current, players_max }) =>
    setText(node, (players_current ?? "?") + (players_max === undefined ? "" : `/${players_max}`)),
  day: (node, server) => setPlot(node, plots.get(plotName(server))?.day),
  chart: (node, server) => {
    const of = plotName(server);
    if (node.dataset.plot === of) return;
    node.dataset.plot = of;
    node.parentElement.hidden = !keepsHistory;
    if (keepsHistory) loadChart(node);
  },
  map: (node, server) => setText(node, server.map ?? ""),
  mode: (node, server) => setText(node, server.mode ?? ""),
  version: (node, server) => setText(node, server.version ?? ""),
  game: (node, server) => setText(node, games.get(server.game)?.title ?? server.game),
  rtt: (node, { rtt_ms }) => setText(node, rtt_ms === undefined ? "" : `${rtt_ms.toFixed(rtt_ms < 10 ? 1 : 0)} ms`),
  verified_by: (node, server) => setText(node, server.verified_by),
  via: (node, server) => {
    setText(node, server.via ?? "");
    node.parentElement.hidden = !server.via;
  },
  proven_at: (node, server) => setTime(node, server.proven_at, ago(server.proven_at)),
  first_seen: (node, server) => setTime(node, server.first_seen, ago(server.first_seen)),
  first_seen_whole: (node, server) => setTime(node, server.first_seen, whole(server.first_seen)),
  last_seen_whole: (node, server) => setTime(node, server.last_seen, whole(server.last_seen)),
  proven_at_whole: (node, server) => setTime(node, server.proven_at, whole(server.proven_at)),
  address: (node, server) => setText(node, server.key),
  join: (node, server) => {
    setLink(node, server.join?.link);
    node.hidden = !server.join?.link;
  },
  commands: (node, server) => (node.hidden = !server.join?.command),
  command: (node, server) => setText(node, server.join?.command ?? ""),
  command_windows: (node, server) => setText(node, (server.join?.command ?? "").replace(/^\S+/, "$&.exe")),
  no_command: (node, server) => (node.hidden = !!server.join),
  player_table: (node, server) => fillSheet(node, playerTable(server.players ?? [])),
  rule_table: (node, server) => fillSheet(node, { rows: Object.entries(server.rules ?? {}), named: true }),
  api: (node, server) => setLink(node, atMaster(`/api/v1/servers/${inPath(server)}`)),
  doctor: (node, server) => setLink(node, atMaster(`/doctor?${inQuery(server)}`)),
};

function fill(row, server) {
  row.server = server;
  for (const node of row.fields) FILL[node.dataset.field]?.(node, server);
}

// ---- Plots. The server draws them; those of new rows are requested together, and all of them again from time to time.

const plots = new Map();
/** A copy has only the plots that the server has rendered. */
const keepsHistory = !copied && !table.classList.contains("no-history");
const plotName = (server) => `${server.game}/${server.key}`;
let plotsAt = 0;

async function askForPlots(names, withWhole) {
  const query = new URLSearchParams(names.map((name) => ["server", name]));
  const game = wanted.game;
  if (withWhole) query.set("game", game);
  const answer = await fetch(`/plots?${query}`).catch(() => null);
  const { whole, servers: drawn = {} } = answer?.ok ? await answer.json() : {};
  for (const [name, small] of Object.entries(drawn)) plots.set(name, small);
  // Plots that did not arrive are requested again a little later.
  const missing = names.filter((name) => !Object.hasOwn(drawn, name));
  if (missing.length) setTimeout(() => missing.forEach((name) => plots.delete(name)), AGES_MS);
  for (const row of rows.values()) {
    if (!row.server || !Object.hasOwn(drawn, plotName(row.server))) continue;
    for (const node of row.fields) {
      if (node.dataset.field === "day") FILL.day(node, row.server);
      if (node.dataset.field === "chart" && node.isConnected) loadChart(node);
    }
  }
  if (withWhole && whole && game === wanted.game && byId("whole")) {
    setText(byId("whole-title"), whole.title);
    setText(byId("whole-words"), whole.words);
    byId("whole").hidden = !whole.plot;
    const figure = byId("whole").querySelector(".chart");
    if (figure) {
      figure.dataset.plot = game;
      if (byId("whole").open) loadChart(figure);
    }
  }
}

/** Requests the missing plots of visible rows, and all of them when they are old. */
function refreshPlots() {
  if (!keepsHistory || !isLoaded || document.hidden) return;
  const isOld = Date.now() - plotsAt > PLOTS_MS;
  if (isOld) {
    plotsAt = Date.now();
    plots.clear();
  }
  const names = [...rows.values()].filter(({ server }) => server).map(({ server }) => plotName(server));
  const missing = names.filter((name) => !plots.has(name));
  for (const name of missing) plots.set(name, {}); // requested
  for (let at = 0; at < missing.length || (at === 0 && isOld); at += PLOTS_AT_ONCE) {
    askForPlots(missing.slice(at, at + PLOTS_AT_ONCE), at === 0 && isOld);
  }
}

function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} days ago`;
}

/** The table of players, the best first and spectators last, without empty columns. */
function playerTable(all) {
  const rank = (player) => player.score ?? player.points ?? player.kills ?? -Infinity;
  const players = [...all].sort((a, b) => !!a.spectator - !!b.spectator || rank(b) - rank(a) || 0);
  const columns = {
    Player: (player) => player.name,
    Team: (player) => (player.spectator ? "spectator" : player.team),
    Score: (player) => player.score,
    Points: (player) => player.points,
    Kills: (player) => player.kills,
    Deaths: (player) => player.deaths,
    Ping: (player) => player.ping,
  };
  const used = Object.entries(columns).filter(([, value]) => players.some((player) => value(player) !== undefined));
  const cells = (player) => used.map(([, value]) => value(player) ?? "");
  return { head: used.map(([title]) => title), rows: players.map(cells) };
}

/** Fills a small table if its contents have changed. */
function fillSheet(sheet, { head, rows, named }) {
  (sheet.closest("section") ?? sheet).hidden = rows.length === 0;
  const said = JSON.stringify([head, rows]);
  if (sheet.said === said) return;
  sheet.said = said;
  const cell = (tag, text, scope) => {
    const node = document.createElement(tag);
    node.textContent = String(text);
    if (scope) node.scope = scope;
    return node;
  };
  const line = (cells) => {
    const node = document.createElement("tr");
    node.append(...cells);
    return node;
  };
  if (head && sheet.tHead) sheet.tHead.replaceChildren(line(head.map((title) => cell("th", title, "col"))));
  const cells = (row) => row.map((text, at) => (named && at === 0 ? cell("th", text, "row") : cell("td", text)));
  sheet.tBodies[0]?.replaceChildren(...rows.map((row) => line(cells(row))));
}

function adopt(node) {
  if (node.querySelector("details")?.open) opened.add(node.dataset.address);
  else node.querySelector(".more")?.remove();
  const row = { node, fields: [...node.querySelectorAll("[data-field]")] };
  node.row = row;
  return row;
}

function rowOf(server) {
  let row = rows.get(server.key);
  if (!row) {
    row = adopt(template.content.firstElementChild.cloneNode(true));
    row.node.dataset.address = server.key;
    rows.set(server.key, row);
    row.isNew = true;
  }
  if (row.server !== server) {
    row.node.dataset.game = server.game;
    fill(row, server);
  }
  if (row.isNew && opened.has(server.key)) {
    row.node.querySelector("details").open = true;
    open(row, true);
  }
  return row;
}

/** Adds or removes a row's details. */
function open(row, isOpen) {
  const present = row.node.querySelector(".more");
  const key = row.node.dataset.address;
  if (isOpen) opened.add(key);
  else {
    opened.delete(key);
    fetchedAt.delete(key);
  }
  if (isOpen === !!present || !moreTemplate) return;
  if (present) {
    present.remove();
    row.fields = row.fields.filter((field) => row.node.contains(field));
  } else {
    const more = moreTemplate.cloneNode(true);
    row.node.append(more);
    row.fields.push(...more.querySelectorAll("[data-field]"));
    if (row.server) fill(row, row.server);
    fetchDetails(key);
  }
}

// ---- Details of opened rows. The stream does not have them, and a proof alone is no news there.

/** When the details of a server were last requested. */
const fetchedAt = new Map();

/** The part of a server that the stream does not keep up to date. */
const detailsOf = ({ players, rules, proven_at, last_seen, rtt_ms }) => ({ players, rules, proven_at, last_seen, rtt_ms });

async function fetchDetails(key) {
  const server = servers.get(key);
  if (copied || !server) return;
  fetchedAt.set(key, Date.now());
  const answer = await fetch(`/api/v1/servers/${inPath(server)}`).catch(() => null);
  const found = answer?.ok ? await answer.json().catch(() => null) : null;
  const known = servers.get(key);
  if (!found || known?.game !== found.game) return;
  put({ ...known, ...detailsOf(found) });
  schedule();
}

/** Fetches the details of opened rows again, those that are oldest first. */
function refreshDetails() {
  if (document.hidden || !isLive || isHeld) return;
  const oldest = [...opened].filter((key) => rows.has(key)).sort((a, b) => (fetchedAt.get(a) ?? 0) - (fetchedAt.get(b) ?? 0));
  oldest.slice(0, DETAILS_AT_ONCE).forEach(fetchDetails);
}
