// Keeps the open page up to date. The server has rendered the page; this script subscribes to /api/v1/events and
// updates only what changed, so that scroll position, focus, selection and opened rows are kept. What only an opened row
// shows (players, rules, when the server was last verified) is fetched while it is open. Filters, search and sorting apply
// at once and are stored in the URL. Data is inserted only as text, never as HTML.
//
// On a copy of the page (`rallypoint export --site`) there is no server: the list is a file, which is fetched again as often
// as the copy is renewed, and the page says how old it is.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("servers");
  const form = byId("filters");
  const template = byId("server-template");
  /** What a copy says about itself: `copy` is the time when it was made, `live` the address of the live list. */
  const copied = "copy" in document.documentElement.dataset ? document.documentElement.dataset : null;
  if (!table || !form || !template || (!copied && !window.EventSource)) return;

  /** Number of rows drawn initially; twice as many are added when the user scrolls near the end. */
  const ROWS = 100;
  const TEXTS = ["q", "map", "mode", "version", "verified_by", "via", "sort"];
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
    games.set(option.value, { title: option.textContent, join: option.dataset.join, family: "family" in option.dataset });
  }

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
    priority: [(server) => (server.priority ?? 0) * 65536 + server.playing, true],
    name: [(server) => server.texts.name, false],
    players: [(server) => server.playing, true],
    map: [(server) => server.texts.map, false],
    mode: [(server) => server.texts.mode, false],
    version: [(server) => server.texts.version, false],
    game: [(server) => server.game.toLowerCase(), false],
    address: [() => 0, false],
    rtt: [(server) => server.rtt_ms ?? Infinity, false],
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

  /** The servers that match the filters, sorted. */
  function chosen() {
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
      exact.every((name) => server.texts[name] === wanted[name].toLowerCase()) &&
      (!q || server.searched.includes(q));
    const { value, descending } = order(wanted.sort);
    const sign = descending ? -1 : 1;
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x !== y) return x < y ? -sign : sign;
      return a.place < b.place ? -1 : 1;
    };
    return [...servers.values()].filter(passes).sort(compare);
  }

  // ---- Rows. Each server has its own tbody: its row, and the details that open below it.

  const rows = new Map();
  const opened = new Set();
  const moreTemplate = template.content.querySelector(".more");
  moreTemplate?.remove();

  const setText = (node, text) => node.textContent !== text && (node.textContent = text);
  const setLink = (node, href) => {
    if (href === undefined) node.removeAttribute("href");
    else if (node.getAttribute("href") !== href) node.setAttribute("href", href);
  };
  const setTime = (node, time, text) => {
    if (node.dateTime !== time) node.dateTime = node.title = time;
    setText(node, text);
  };
  const whole = (time) => new Date(time).toLocaleString();
  const joinLink = (server) => {
    const game = games.get(server.game) ?? (isFamily(server.protocol) ? games.get(server.protocol) : undefined);
    return game?.join?.replace("{address}", server.key);
  };
  /** A path that only the live master has. */
  const atMaster = (path) => (copied ? copied.live : "") + path;
  const inPath = (server) => `${encodeURIComponent(server.game)}/${encodeURIComponent(server.key)}`;
  const inQuery = (server) => `game=${encodeURIComponent(server.game)}&address=${encodeURIComponent(server.key)}`;

  /** How each field of the template is filled. */
  const FILL = {
    label: (node, server) => setText(node, server.name || server.key),
    name: (node, server) => {
      setText(node, server.name || server.key);
      setLink(node, joinLink(server));
    },
    official: (node, server) => (node.hidden = !server.official),
    password: (node, server) => (node.hidden = server.password !== true),
    bar: (node, server) => {
      node.hidden = server.players_max === undefined;
      node.max = server.players_max || 1;
      node.value = server.playing;
    },
    players: (node, { players_current, players_max }) =>
      setText(node, (players_current ?? "?") + (players_max === undefined ? "" : `/${players_max}`)),
    day: (node, server) => setPlot(node, plots.get(plotName(server))?.day),
    week: (node, server) => {
      if (!keepsHistory) return void (node.hidden = true);
      const image = `/api/v1/servers/${inPath(server)}/history.svg?range=7d`;
      if (node.getAttribute("src") !== image) node.src = image;
      node.alt = plots.get(plotName(server))?.week || "Players in the last 7 days";
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
      setLink(node, joinLink(server));
      node.hidden = !joinLink(server);
    },
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

  /** Inserts a plot. Without one, the plot rendered by the server is kept. */
  function setPlot(node, svg) {
    if (svg === undefined || node.drawn === svg) return;
    node.drawn = svg;
    const drawn = svg && new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
    node.replaceChildren(...(drawn ? [document.importNode(drawn, true)] : []));
  }

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
      const fields = row.fields.filter((node) => ["day", "week"].includes(node.dataset.field));
      for (const node of fields) {
        if (node.dataset.field === "week") node.removeAttribute("src"); // loaded again
        FILL[node.dataset.field](node, row.server);
      }
    }
    if (withWhole && whole && game === wanted.game && byId("whole")) {
      setPlot(byId("whole-plot"), whole.plot);
      setText(byId("whole-title"), whole.title);
      setText(byId("whole-words"), whole.words);
      byId("whole").hidden = !whole.plot;
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

  const clock = (time) => new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

  function ago(time) {
    const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
    if (seconds < 60) return "just now";
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h ago`;
    return `${Math.floor(seconds / 86_400)} days ago`;
  }

  /** The table of players, without empty columns. */
  function playerTable(players) {
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
    sheet.hidden = rows.length === 0;
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

  // ---- Drawing: at most once per frame, and only what has changed.

  let room = ROWS;
  let isScheduled = false;
  let isFirst = true;

  function schedule() {
    if (isScheduled) return;
    isScheduled = true;
    // A page in the background gets no frames; it is drawn when it becomes visible.
    requestAnimationFrame(() => {
      isScheduled = false;
      draw();
    });
  }

  /** Whether text in the table is selected. The table is not updated during a selection. */
  let isHeld = false;
  // Read only when it changes: reading the selection forces a layout.
  document.addEventListener("selectionchange", () => {
    const selection = document.getSelection();
    const wasHeld = isHeld;
    isHeld = !!selection && !selection.isCollapsed && table.contains(selection.anchorNode);
    if (wasHeld && !isHeld) schedule();
  });

  function draw(acted = false) {
    if (!isLoaded) return;
    if (!acted && isHeld) return showState();
    const all = chosen();
    const drawn = all.slice(0, room).map(rowOf);
    arrange(drawn, !acted && !isFirst);
    const players = all.reduce((sum, server) => sum + server.playing, 0);
    showTotals(all.length, players, acted);
    table.hidden = all.length === 0;
    const show = (id, isShown) => byId(id) && (byId(id).hidden = !isShown);
    show("empty", all.length === 0 && !isFiltered());
    show("no-match", all.length === 0 && isFiltered());
    show("show-more", all.length > room);
    showState();
    isFirst = false;
    refreshPlots();
  }

  /** Puts the rows in order. Moves as few as possible, so that the page does not jump. */
  function arrange(drawn, isNews) {
    const present = [...table.tBodies];
    const keep = new Set(drawn.map((row) => row.node));
    const focused = document.activeElement;
    const losing = bodyOf(focused);
    const neighbour = losing && !keep.has(losing) ? nextKept(losing, keep) : null;
    for (const node of present) {
      if (!keep.has(node)) {
        rows.delete(node.dataset.address);
        node.remove();
      }
    }
    const places = new Map(present.map((node, at) => [node, at]));
    const still = longestRise(drawn.map((row) => places.get(row.node) ?? -1));
    let next = null;
    for (let at = drawn.length - 1; at >= 0; at -= 1) {
      const { node } = drawn[at];
      if (!still.has(at)) {
        node.classList.toggle("new", isNews && drawn[at].isNew);
        move(node, next);
      }
      drawn[at].isNew = false;
      next = node;
    }
    if (neighbour) neighbour.focus({ preventScroll: true });
    else if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }

  /** The server's tbody that contains a node. */
  const bodyOf = (node) => (table.contains(node) ? node.closest("tbody[data-address]") : null);

  /** The new focus when the focused row is removed: the next row that remains. */
  function nextKept(body, keep) {
    let node = body;
    while (node && !keep.has(node)) node = node.nextElementSibling;
    return node?.querySelector("summary") ?? form.elements.q;
  }

  function move(node, before) {
    // moveBefore keeps the focus, in browsers that have it.
    if (node.isConnected && table.moveBefore) table.moveBefore(node, before);
    else table.insertBefore(node, before);
  }

  /** The indices of a longest increasing subsequence, ignoring -1. */
  function longestRise(numbers) {
    const ends = []; // for each length, the index of the smallest last number
    const before = new Array(numbers.length);
    numbers.forEach((number, at) => {
      if (number < 0) return;
      let [low, high] = [0, ends.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (numbers[ends[middle]] < number) low = middle + 1;
        else high = middle;
      }
      before[at] = low > 0 ? ends[low - 1] : undefined;
      ends[low] = at;
    });
    const rise = new Set();
    for (let at = ends.at(-1); at !== undefined; at = before[at]) rise.add(at);
    return rise;
  }

  let saidAt = 0;
  function showTotals(total, players, acted) {
    const words = [total === 1 ? "server" : "servers", players === 1 ? "player" : "players"];
    const set = (id, text) => byId(id) && setText(byId(id), text);
    set("total", String(total));
    set("total-word", words[0]);
    set("players", String(players));
    set("players-word", words[1]);
    if (acted || Date.now() - saidAt > SAY_MS) {
      say(`${total} ${words[0]}, ${players} ${words[1]}`);
    }
  }

  /** Announces a text to screen readers. */
  function say(text) {
    if (byId("said")) setText(byId("said"), text);
    saidAt = Date.now();
  }

  // ---- The stream.

  let stream = null;
  let isLoaded = false;
  let isLive = false;
  /** When the list was last known to be current: until there is a stream, when the page was loaded. */
  let liveUntil = Date.now();
  let again = 0;
  let pause = AGAIN_MS;

  function connect() {
    clearTimeout(again);
    stream?.close();
    const game = wanted.game;
    stream = new EventSource(game ? `/api/v1/events?game=${encodeURIComponent(game)}` : "/api/v1/events");
    stream.streamed = game;
    stream.onopen = () => {
      pause = AGAIN_MS;
      setLive(true);
    };
    stream.onerror = () => {
      setLive(false);
      if (stream.readyState !== EventSource.CLOSED) return;
      again = setTimeout(connect, pause * (1 + Math.random()));
      pause = Math.min(2 * pause, AGAIN_MAX_MS);
    };
    stream.addEventListener("snapshot", ({ data }) => load(JSON.parse(data)));
    stream.addEventListener("delta", ({ data }) => {
      const { removed = [], added = [], changed = [] } = JSON.parse(data);
      for (const server of removed) servers.delete(keyOf(server));
      for (const server of added) put(server);
      for (const patch of changed) put(patched(patch));
      for (const key of [...added, ...changed].map(keyOf)) if (opened.has(key)) fetchDetails(key);
      schedule();
    });
    stream.addEventListener("reset", () => setLive(false));
  }

  /** A whole list. Opened rows keep their details until they are fetched again. */
  function load(list) {
    const before = new Map([...opened].map((key) => [key, servers.get(key)]));
    servers.clear();
    for (const server of list.servers) {
      const open = copied ? undefined : before.get(keyOf(server));
      put(open?.game === server.game ? { ...server, ...detailsOf(open) } : server);
    }
    if (!isLoaded) takeOver();
    for (const key of opened) fetchDetails(key);
    schedule();
  }

  /** A server with the fields that changed. Null means that a field is absent now. */
  function patched(patch) {
    const server = { ...servers.get(keyOf(patch)), ...patch };
    for (const [name, value] of Object.entries(patch)) if (value === null) delete server[name];
    return server;
  }

  /** From here on the script draws the list. Until then, links and the form load pages from the server. */
  function takeOver() {
    isLoaded = true;
    document.documentElement.classList.add("scripted");
    byId("pages")?.remove();
    history.replaceState(null, "", link(wanted)); // without the page number
  }

  function put(server) {
    const known = prepared(server);
    servers.set(known.key, known);
  }

  function setLive(live) {
    if (isLive && !live) {
      liveUntil = Date.now();
      say(`Not live since ${clock(liveUntil)}`);
    }
    isLive = live;
    showState();
  }

  function showState() {
    const node = byId("live");
    if (!node || copied) return;
    node.hidden = false;
    const state = !isLive ? "waiting" : isHeld ? "held" : "live";
    node.dataset.state = state;
    const waiting = `Not live since ${clock(liveUntil)}. Reconnecting…`;
    setText(node, { live: "Live", held: "Paused while text is selected", waiting }[state]);
  }

  // ---- A copy.

  let listText = "";

  /** Fetches the copy's list. Its time comes first: the list is then at least as new as the page says. */
  async function fetchCopy() {
    const read = async (path) => {
      const answer = await fetch(path, { cache: "no-cache" });
      return answer.ok ? answer.text() : Promise.reject(answer.status);
    };
    const { written_at, every_s } = JSON.parse(await read("site.json"));
    const text = await read("api/v1/servers.json");
    if (text !== listText) load(JSON.parse(text));
    listText = text;
    Object.assign(copied, { copy: written_at, every: every_s ?? "" });
  }

  /** Fetches it now and then. What cannot be fetched stays as it is, and its age says so. */
  async function keepCopy() {
    clearTimeout(again);
    if (!document.hidden || !isLoaded) await fetchCopy().catch(() => {});
    showAge();
    clearTimeout(again);
    again = setTimeout(keepCopy, Math.max(COPY_MS_MIN, copied.every * 1000 || COPY_MS));
  }

  function showAge() {
    const time = document.querySelector("#copy time");
    if (!time) return;
    const isToday = new Date(copied.copy).toDateString() === new Date().toDateString();
    setTime(time, copied.copy, isToday ? clock(copied.copy) : whole(copied.copy));
    const age = time.nextElementSibling;
    if (age) setText(age, ` (${ago(copied.copy)})`);
  }

  // ---- User actions.

  function want(change, isStep) {
    wanted = { ...wanted, ...change };
    history[isStep ? "pushState" : "replaceState"](null, "", link(wanted));
    apply();
  }

  function apply() {
    room = ROWS;
    fillForm();
    byId("wrong")?.remove();
    // Nobody draws a copy's plot of another game.
    if (copied && byId("whole")) byId("whole").hidden = wanted.game !== home || !byId("whole-plot")?.firstChild;
    if (stream && stream.streamed !== wanted.game) {
      plotsAt = 0; // the plot above the list is of another game now
      connect();
    }
    draw(true);
  }

  /** Updates the form and the links to the current filters. */
  function fillForm() {
    for (const field of form.elements) {
      if (field.type === "checkbox") field.checked = !!wanted[field.name];
      else if (field.name in wanted && field.value !== wanted[field.name]) {
        const isUnknown = field.options && ![...field.options].some((option) => option.value === wanted[field.name]);
        if (isUnknown) field.add(new Option(wanted[field.name], wanted[field.name]));
        field.value = wanted[field.name];
      }
    }
    table.classList.toggle("one-game", !!wanted.game && !isFamily(wanted.game));
    const sorted = order(wanted.sort);
    for (const head of table.tHead?.querySelectorAll("[data-sort]") ?? []) {
      const key = head.dataset.sort;
      const isSorted = sorted.key === key;
      if (isSorted) head.ariaSort = sorted.descending ? "descending" : "ascending";
      else head.removeAttribute("aria-sort");
      const turned = isSorted && sorted.descending === order(key).descending;
      const anchor = head.querySelector("a");
      if (anchor) setLink(anchor, link({ ...wanted, sort: turned ? `-${key}` : key }));
    }
    const clear = byId("clear");
    if (clear) {
      clear.hidden = !isFiltered();
      setLink(clear, link({ ...parse(""), game: wanted.game, sort: wanted.sort }));
    }
  }

  form.addEventListener("input", ({ target }) => {
    const { name } = target;
    if (!isLoaded || !(name in wanted)) return;
    const text = target.type === "checkbox" && !target.checked ? "" : target.value;
    want({ [name]: FLAGS.includes(name) ? target.checked : text }, name === "game");
  });
  form.addEventListener("submit", (event) => isLoaded && event.preventDefault());

  document.addEventListener("click", (event) => {
    if (!isLoaded) return;
    const { target } = event;
    const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    const anchor = target.closest("#servers thead a, #clear");
    if (anchor && isPlain) {
      event.preventDefault();
      if (anchor.id === "clear") form.elements.q?.focus();
      want(parse(new URL(anchor.href).search), true);
      return;
    }
    if (target.closest("[data-do=copy]")) return copy(target.closest("[data-do=copy]"));
    // A click anywhere in a row opens it, unless it is on a link or button or ends a selection.
    const line = target.closest("tr.line");
    if (line && isPlain && !target.closest("a, button, summary") && document.getSelection().isCollapsed) {
      line.querySelector("summary")?.click();
    }
  });

  table.addEventListener(
    "toggle",
    ({ target }) => {
      const row = bodyOf(target)?.row;
      if (row) open(row, target.open);
    },
    true, // `toggle` does not bubble
  );

  function copy(button) {
    const code = bodyOf(button).querySelector("[data-field=address]");
    const done = (is) => {
      setText(button, is ? "Copied" : "Press Ctrl+C");
      setTimeout(() => setText(button, "Copy address"), 2000);
    };
    const selectIt = () => {
      document.getSelection().selectAllChildren(code);
      const isCopied = document.execCommand("copy");
      if (isCopied) document.getSelection().removeAllRanges();
      done(isCopied);
    };
    // navigator.clipboard exists only in secure contexts.
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => done(true), selectIt);
    else selectIt();
  }

  const showMore = () => {
    room += 2 * ROWS;
    draw(true);
  };
  byId("show-more")?.addEventListener("click", showMore);
  if (byId("show-more") && window.IntersectionObserver) {
    const nearEnd = (entries) => entries.some((entry) => entry.isIntersecting) && showMore();
    new IntersectionObserver(nearEnd, { rootMargin: "600px" }).observe(byId("show-more"));
  }

  window.addEventListener("popstate", () => {
    wanted = parse(location.search);
    apply();
  });
  setInterval(() => {
    refreshPlots();
    if (copied) showAge();
    if (document.hidden || !isLoaded || isHeld) return;
    for (const { fields, server } of rows.values()) {
      const ages = fields.filter((node) => ["proven_at", "first_seen"].includes(node.dataset.field));
      for (const node of ages) FILL[node.dataset.field](node, server);
    }
  }, AGES_MS);

  // The plots rendered by the server are recent enough.
  if (byId("whole") && !byId("whole").hidden) plotsAt = Date.now();
  for (const node of table.tBodies) {
    const { game, address } = node.dataset;
    const week = node.querySelector("[data-field=week]")?.alt;
    const svg = node.querySelector("[data-field=day] svg");
    const day = copied && svg ? new XMLSerializer().serializeToString(svg) : undefined;
    if (svg) plots.set(`${game}/${address}`, { week, day });
    rows.set(address, adopt(node));
  }
  fillForm();
  if (copied) {
    showAge();
    say(byId("copy")?.textContent ?? "");
    document.addEventListener("visibilitychange", () => !document.hidden && keepCopy());
    keepCopy();
  } else {
    setInterval(refreshDetails, DETAILS_MS);
    connect();
  }
})();
