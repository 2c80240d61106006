// A button that opens a list of actions. Escape, a choice and a click elsewhere close it.

import { el, text } from "./page-dom.js";

let opened = null;

function close(focus = false) {
  if (!opened) return;
  const { button, list } = opened;
  opened = null;
  list.hidden = true;
  button.setAttribute("aria-expanded", "false");
  if (focus) button.focus();
}

function open(button, list) {
  close();
  opened = { button, list };
  list.hidden = false;
  button.setAttribute("aria-expanded", "true");
  // A list that would leave the window on the left is aligned there.
  list.classList.toggle("from-left", list.getBoundingClientRect().left < 0);
  list.querySelector("button").focus();
}

function entry({ words, act, danger, disabled = false }) {
  const button = el("button", { type: "button", role: "menuitem", tabindex: "-1", class: danger ? "bad" : "", "aria-disabled": String(disabled) }, words);
  button.addEventListener("click", () => {
    if (disabled) return;
    close(true);
    act();
  });
  return button;
}

// Returns a menu with a method `show(items, words)`, which replaces its items and its button's words. `items` are
// {words, act, danger, disabled}; `what` names the thing for screen readers. A button without words has dots.
export function menu(what, items, words = null) {
  const button = el("button", { type: "button", class: words ? "menu-button" : "small menu-button", "aria-haspopup": "true", "aria-expanded": "false", ...(words ? {} : { "aria-label": `More for ${what}` }) }, words ?? "⋯");
  const list = el("div", { class: "menu-list", role: "menu", "aria-label": `Actions for ${what}`, hidden: "" }, ...items.map(entry));
  button.addEventListener("click", () => (opened?.list === list ? close() : open(button, list)));
  list.addEventListener("keydown", (event) => {
    const entries = [...list.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], at = entries.indexOf(document.activeElement);
    if (step) entries[(at + step + entries.length) % entries.length].focus();
    else if (event.key === "Tab") return close();
    else return;
    event.preventDefault();
  });
  const node = el("span", { class: "menu" }, button, list);
  node.show = (changed, label) => {
    const focused = list.contains(document.activeElement);
    list.replaceChildren(...changed.map(entry));
    text(button, label);
    if (focused) list.querySelector("button").focus();
  };
  return node;
}

document.addEventListener("click", (event) => { if (opened && !event.target.closest?.(".menu")) close(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !opened) return;
  // The Escape belongs to the menu and not to a dialog around it.
  event.preventDefault();
  close(true);
});
