// ---- Drawing: at most once per frame, and only what has changed.

let room = ROWS;
let isScheduled = false;
/** How often the tab's title is updated. */
const TITLE_MS = 1000;
let isFirst = true;

const title = document.title;
let titleTimer = 0;

/** The number of players, also while the page is in the background. */
function showTitle() {
  titleTimer = 0;
  const players = matching().reduce((sum, server) => sum + server.playing, 0);
  document.title = players ? `(${players}) ${title}` : title;
}

function schedule() {
  if (!copied && !titleTimer) titleTimer = setTimeout(showTitle, TITLE_MS);
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
