// Parts that all pages share: the state in the header, messages, questions, and buttons that copy.

import { el, text } from "./page-dom.js";

const MESSAGE_MS = 8000;
const COPIED_MS = 2000;
const find = (id) => document.getElementById(id);

// Shows the state of the page in the header. `name` chooses the colour.
export function state(name, words) {
  find("state").dataset.state = name;
  text(find("state"), words);
}

// An open modal dialog dims all elements outside of it and takes no clicks for them. It contains the messages until it is
// closed.
function raise(messages) {
  const dialog = document.querySelector("dialog:modal");
  if (messages.parentElement === (dialog ?? document.body)) return;
  (dialog ?? document.body).append(messages);
  dialog?.addEventListener("close", () => document.body.append(messages), { once: true });
}

// Shows a message in place of the last one. A message about an error stays until it is dismissed.
export function message(words, bad = false) {
  const close = el("button", { "aria-label": "Dismiss", class: "quiet" }, "×");
  const node = el("div", { class: bad ? "message bad" : "message" }, el("span", {}, words), close);
  close.addEventListener("click", () => node.remove());
  raise(find("messages"));
  find("messages").replaceChildren(node);
  if (!bad) setTimeout(() => node.remove(), MESSAGE_MS);
}

// Asks before an action. Resolves to true if the user agrees; Escape means no. While a question is open, the answer to
// others is no: one click must not confirm two actions.
export function ask({ title, words, yes, no = "Cancel", danger = true }) {
  const dialog = find("question");
  if (dialog.open) return Promise.resolve(false);
  text(find("question-title"), title);
  text(find("question-text"), words);
  text(find("question-yes"), yes);
  text(find("question-no"), no);
  find("question-yes").classList.toggle("danger", danger);
  find("question-yes").classList.toggle("primary", !danger);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((answer) => dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true }));
}

async function copy(words) {
  // The clipboard needs HTTPS or this machine's own address. Elsewhere, a selection is copied.
  if (navigator.clipboard) return navigator.clipboard.writeText(words);
  const place = el("textarea", { class: "hidden", readonly: "" }), focused = document.activeElement;
  place.value = words;
  // Elements outside an open dialog cannot be selected.
  (document.querySelector("dialog:modal") ?? document.body).append(place);
  place.select();
  const copied = document.execCommand("copy");
  place.remove();
  focused?.focus();
  if (!copied) throw new Error("the browser refused");
}

// Returns a button that copies what `words()` returns. `what` names it for screen readers.
export function copyButton(words, what) {
  const button = el("button", { type: "button", class: "small copy", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copy(words());
      button.textContent = "Copied";
      message(`Copied ${what}.`);
    } catch {
      message(`The browser did not copy ${what}. Select the text and copy it.`, true);
    }
    setTimeout(() => { button.textContent = "Copy"; }, COPIED_MS);
  });
  return button;
}
