// What all pages share. The server has rendered the page, and it works without this; the script adds live data, local
// times, values under the pointer and buttons. Data is inserted only as text, never as HTML; plots are SVG of our own.
const byId = (id) => document.getElementById(id);
/** What a copy says about itself: `copy` is the time when it was made, `live` the address of the live list. */
const copied = "copy" in document.documentElement.dataset ? document.documentElement.dataset : null;

const setText = (node, text) => node.textContent !== text && (node.textContent = text);
const setLink = (node, href) => {
  if (href === undefined) node.removeAttribute("href");
  else if (node.getAttribute("href") !== href) node.setAttribute("href", href);
};
const setTime = (node, time, text) => {
  if (node.dateTime !== time) node.dateTime = node.title = time;
  setText(node, text);
};
const whole = (time) => new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
const clock = (time) => new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** Copies an address. */
function copy(button) {
  const code = button.parentElement.querySelector("code");
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

document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-do=copy]");
  if (button) copy(button);
});

// A slash goes to the search, unless the reader is typing.
document.addEventListener("keydown", (event) => {
  const search = document.querySelector("input[type=search]");
  const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !search) return;
  event.preventDefault();
  search.focus();
  search.select();
});
