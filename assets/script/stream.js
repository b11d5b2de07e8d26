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
    if (removed.length) standings = null;
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
  standings = null;
  for (const server of list.servers) {
    const open = copied ? undefined : before.get(keyOf(server));
    put(open?.game === server.game ? { ...server, ...detailsOf(open) } : server);
  }
  fillCountries();
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
  const before = servers.get(known.key);
  servers.set(known.key, known);
  const isSame = (name) => before?.[name] === known[name];
  if (!["game", "playing", "priority", "unanswered_since"].every(isSame)) standings = null;
  tellOf(before, known);
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
