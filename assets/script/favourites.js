
// ---- Favourites, and "tell me when it has N players": kept in this browser only. Without storage, they last as long as the page.

const FAVOURITES = "rallypoint.favourites";
const TELL = "rallypoint.tell";
/** The most of each. */
const KEPT_MAX = 500;

function kept(key) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? {};
  } catch {
    return {};
  }
}

function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // No storage, or no room in it.
  }
}

/** Names of servers (game/address), each with true or with the number of players to be told about. */
let favourites = new Map(Object.entries(kept(FAVOURITES)).slice(0, KEPT_MAX));
let told = new Map(Object.entries(kept(TELL)).slice(0, KEPT_MAX));
const nameOf = (server) => `${server.game}/${server.key}`;
const isFavourite = (server) => favourites.size > 0 && favourites.has(nameOf(server));

function toggleFavourite(server) {
  const name = nameOf(server);
  if (!favourites.delete(name)) favourites.set(name, true);
  keep(FAVOURITES, Object.fromEntries(favourites));
  redraw();
}

/** Sets how many players a server has to have, or stops telling about it. Asks for the permission first. */
async function tellWhen(server, players) {
  const name = nameOf(server);
  told.delete(name);
  const isAllowed = players > 0 && (await Notification.requestPermission()) === "granted";
  if (isAllowed) told.set(name, players);
  keep(TELL, Object.fromEntries(told));
  redraw();
  if (isAllowed) say(`You will be told when it has ${players} players, while this page is open`);
  else if (players > 0) say("This browser does not allow notifications");
}

/** Tells the reader if a server has enough players now and had not before. */
function tellOf(before, now) {
  const players = told.size > 0 && told.get(nameOf(now));
  if (!players || !before || before.playing >= players || now.playing < players) return;
  const name = now.name || now.key;
  try {
    const notice = new Notification(`${name}: ${now.playing} players`, { body: now.map ?? "", tag: nameOf(now) });
    notice.onclick = () => window.focus();
  } catch {
    say(`${name}: ${now.playing} players`); // some browsers allow notifications only to installed pages
  }
}

/** Draws rows whose favourites have changed. */
function redraw() {
  for (const row of rows.values()) if (row.server) fill(row, row.server);
  draw(true);
}

/** Another tab has changed them. */
window.addEventListener("storage", ({ key }) => {
  if (key !== FAVOURITES && key !== TELL) return;
  favourites = new Map(Object.entries(kept(FAVOURITES)).slice(0, KEPT_MAX));
  told = new Map(Object.entries(kept(TELL)).slice(0, KEPT_MAX));
  if (isLoaded) redraw();
});
