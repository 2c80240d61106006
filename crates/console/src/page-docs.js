// The page of the API: lists the calls of /openapi.json. A call is drawn when it is opened.

import { el } from "./page-dom.js";
import { draw } from "./page-docs-call.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const find = (id) => document.getElementById(id);

function operations(document) {
  const all = [];
  for (const [path, item] of Object.entries(document.paths)) {
    for (const method of METHODS.filter((method) => item[method])) {
      const operation = item[method];
      const parameters = [...(item.parameters ?? []), ...(operation.parameters ?? [])];
      all.push({ ...operation, path, method, parameters });
    }
  }
  return all;
}

function call(document, operation) {
  const inside = el("div", { class: "inside" });
  const node = el("details", { class: "call", id: operation.operationId },
    el("summary", {},
      el("span", { class: `method ${operation.method}` }, operation.method.toUpperCase()),
      el("code", {}, operation.path),
      el("span", {}, operation.summary)),
    inside);
  node.addEventListener("toggle", () => {
    if (node.open && !inside.hasChildNodes()) draw(inside, document, operation);
  });
  const words = `${operation.operationId} ${operation.method} ${operation.path} ${operation.summary} ${operation.description ?? ""}`;
  return { node, words: words.toLowerCase() };
}

function filter(groups) {
  const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { section, calls } of groups) {
    let here = 0;
    for (const { node, words: text } of calls) {
      node.hidden = !words.every((word) => text.includes(word));
      here += node.hidden ? 0 : 1;
    }
    section.hidden = here === 0;
    shown += here;
  }
  find("none").hidden = shown > 0;
}

// Opens the call that the address names.
function openNamed() {
  const node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!node?.matches("details.call")) return;
  node.open = true;
  node.scrollIntoView();
}

async function start() {
  const state = find("state");
  let described;
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    described = await answer.json();
  } catch (error) {
    state.dataset.state = "failed";
    state.textContent = `/openapi.json was not read: ${error.message}`;
    return;
  }
  const all = operations(described);
  const groups = described.tags.map(({ name, description }) => {
    const calls = all.filter(({ tags }) => tags.includes(name)).map((operation) => call(described, operation));
    const head = [el("h2", {}, name), el("p", { class: "note" }, description)];
    return { section: el("section", { class: "panel api" }, ...head, ...calls.map(({ node }) => node)), calls };
  });
  find("calls").replaceChildren(...groups.map(({ section }) => section));
  state.dataset.state = "live";
  state.textContent = `${all.length} calls`;
  find("search").addEventListener("input", () => filter(groups));
  addEventListener("hashchange", openNamed);
  openNamed();
}

start();
