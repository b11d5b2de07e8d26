
// ---- Large plots. The server draws them in the reader's time zone, with their values, which are shown under the pointer.

/** Inserts a plot. Without one, the plot rendered by the server is kept. */
function setPlot(node, svg) {
  if (svg === undefined || node.drawn === svg) return;
  node.drawn = svg;
  const drawn = svg && new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  node.replaceChildren(...(drawn ? [document.importNode(drawn, true)] : []));
}

async function loadChart(figure, range = figure.dataset.range) {
  if (copied) return;
  const of = figure.dataset.plot;
  figure.dataset.range = range;
  for (const node of figure.querySelectorAll("[data-range]")) {
    if (node.dataset.range === range) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
  }
  const query = new URLSearchParams({ of, range, zone: String(-new Date().getTimezoneOffset()) });
  const answer = await fetch(`/plots?${query}`).catch(() => null);
  const { plot, words } = answer?.ok ? await answer.json().catch(() => ({})) : {};
  if (plot === undefined || figure.dataset.plot !== of || figure.dataset.range !== range) return;
  setPlot(figure.querySelector(".drawn"), plot);
  const caption = figure.querySelector("figcaption");
  // What is above the list has its words beside its title.
  caption.said = figure.closest("#whole") ? "" : words || "There is a plot after an hour of data.";
  setText(caption, caption.said);
}

/** The values of the step at the pointer. */
function showValues(svg, clientX) {
  const { left, from, to, values } = svg.dataset;
  if (!values) return;
  svg.steps ??= values.split(" ").map((step) => step.split(",").map(Number));
  const box = svg.getBoundingClientRect();
  const width = svg.viewBox.baseVal.width;
  const [x0, span] = [Number(left), to - from];
  const at = (((clientX - box.left) * width) / box.width - x0) / (width - x0) * span;
  const step = svg.steps.reduce((best, step) => (Math.abs(step[0] - at) < Math.abs(best[0] - at) ? step : best));
  let cursor = svg.querySelector(".cursor");
  if (!cursor) {
    cursor = document.createElementNS(svg.namespaceURI, "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", "1");
    cursor.setAttribute("y2", String(svg.viewBox.baseVal.height - 18));
    svg.append(cursor);
  }
  const x = String(x0 + (step[0] / span) * (width - x0));
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  const [offset, mean, least, most] = step;
  const players = `${mean} ${mean === 1 ? "player" : "players"}`;
  const time = whole((Number(from) + offset) * 1000);
  setText(svg.closest("figure").querySelector("figcaption"), `${time}: ${players}${least < most ? ` (${least} to ${most})` : ""}`);
}

document.addEventListener("pointermove", ({ target, clientX }) => {
  const svg = target.closest?.(".chart svg");
  if (svg) showValues(svg, clientX);
});
document.addEventListener("pointerout", ({ target, relatedTarget }) => {
  const svg = target.closest?.(".chart svg");
  if (!svg || svg.contains(relatedTarget)) return;
  svg.querySelector(".cursor")?.remove();
  const words = svg.closest("figure").querySelector("figcaption");
  setText(words, words.said ?? "");
});
document.addEventListener("click", (event) => {
  const node = event.target.closest(".chart [data-range]");
  if (!node || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  loadChart(node.closest(".chart"), node.dataset.range);
});

// A server's or a game's own page.
for (const node of document.querySelectorAll(".server-page time")) setTime(node, node.dateTime, whole(node.dateTime));
if (document.querySelector(".server-page")) {
  document.documentElement.classList.add("scripted");
  document.querySelectorAll(".chart").forEach((figure) => {
    figure.dataset.range = figure.querySelector("[aria-current]")?.dataset.range ?? "7d";
    loadChart(figure);
  });
}
