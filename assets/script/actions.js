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
  if (copied && byId("whole")) byId("whole").hidden = wanted.game !== home || !byId("whole").querySelector("svg");
  if (stream && stream.streamed !== wanted.game) {
    plotsAt = 0; // the plot above the list is of another game now
    connect();
  }
  draw(true);
}

/** The countries that can be chosen: those of all servers, not only of the first page. */
function fillCountries() {
  const select = form.elements.country;
  if (!select) return;
  const known = new Set([...select.options].map((option) => option.value));
  const codes = new Set([...servers.values()].map((server) => server.country).filter((code) => code && !known.has(code)));
  if (!codes.size) return;
  for (const code of codes) select.add(new Option(countryName(code), code));
  const [all, ...options] = select.options;
  options.sort((a, b) => (a.text < b.text ? -1 : 1));
  select.replaceChildren(all, ...options);
  select.value = wanted.country;
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
  const sorted = order(wanted.sort || "players"); // by default, official servers come first; then the order is this one
  for (const head of table.tHead?.querySelectorAll("[data-sort]") ?? []) {
    const key = head.dataset.sort;
    const isSorted = sorted.key === key;
    if (isSorted) head.ariaSort = sorted.descending ? "descending" : "ascending";
    else head.removeAttribute("aria-sort");
    const turned = isSorted && sorted.descending === order(key).descending;
    const anchor = head.querySelector("a");
    if (anchor) setLink(anchor, link({ ...wanted, sort: turned ? `-${key}` : key }));
  }
  const folded = [...FLAGS, ...TEXTS].filter((name) => name !== "q" && name !== "sort" && wanted[name]).length;
  const fold = form.querySelector(".fold > summary");
  if (fold) setText(fold, folded ? `Filters (${folded})` : "Filters");
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
  const star = target.closest("[data-do=star]");
  if (star) return toggleFavourite(bodyOf(star).row.server);
  // A click anywhere in a row opens it, unless it is on a link or button or ends a selection.
  const line = target.closest("tr.line");
  const isOpener = target.closest(".name a") || !target.closest("a, button, summary");
  if (line && isPlain && isOpener && document.getSelection().isCollapsed) {
    event.preventDefault();
    line.querySelector("summary")?.click();
  }
});

table.addEventListener("change", ({ target }) => {
  if (target.dataset.field === "tell") tellWhen(bodyOf(target).row.server, Number(target.value));
});

table.addEventListener(
  "toggle",
  ({ target }) => {
    const row = bodyOf(target)?.row;
    if (row) open(row, target.open);
  },
  true, // `toggle` does not bubble
);

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

// On wide screens the style unfolds the filters; some tools look only at whether they are open.
const isWide = matchMedia("(min-width: 60.01rem)");
const unfold = () => form.querySelector(".fold")?.toggleAttribute("open", isWide.matches);
isWide.addEventListener("change", unfold);
unfold();

byId("whole")?.addEventListener("toggle", ({ target, currentTarget }) => {
  const figure = currentTarget.querySelector(".chart");
  if (target === currentTarget && target.open && figure) loadChart(figure);
});

// The plots rendered by the server are recent enough.
if (byId("whole") && !byId("whole").hidden) plotsAt = Date.now();
for (const node of table.tBodies) {
  const { game, address } = node.dataset;
  const svg = node.querySelector("[data-field=day] svg");
  const day = copied && svg ? new XMLSerializer().serializeToString(svg) : undefined;
  if (svg) plots.set(`${game}/${address}`, { day });
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
