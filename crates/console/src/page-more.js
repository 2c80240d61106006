// Rollout state and slow requests of one model, if the server has these calls.

import { clock, count, el, percent, rows } from "./page-dom.js";

// Time between two reads.
const READ_MS = 3000;
// Slow requests that are listed.
const SLOW_MAX = 8;
const last = new WeakMap();

// Reads a path at most every few seconds, and draws the answer.
async function follow(panel, path, draw) {
  const before = last.get(panel) ?? -Infinity;
  if (performance.now() - before < READ_MS) return;
  last.set(panel, performance.now());
  try {
    const answer = await fetch(path);
    if (answer.ok) draw(await answer.json());
  } catch {
    // The header says that the server does not answer.
  }
}

function number(value, words) {
  return value === undefined || value === null ? "–" : words(value);
}

export function rollout(panel, name, server, actions) {
  if (!server.calls.rollout) return;
  follow(panel, `/v2/models/${encodeURIComponent(name)}/rollout`, (found) => {
    panel.hidden = found.state === "none";
    const states = { running: ["loading", "running"], promoted: ["ready", "promoted"], rolled_back: ["failed", "rolled back"] };
    const [state, words] = states[found.state] ?? ["none", found.state];
    const share = found.shadow ? `${percent(found.shadow)} of requests copied` : `${percent(found.traffic ?? 0)} of requests`;
    const row = (label, of, shown) => el("tr", {}, el("th", { scope: "row" }, label),
      ...["stable", "candidate"].map((side) => el("td", { class: "number" }, number(of?.[side], shown))));
    const button = (label, action) => {
      const node = el("button", { class: "small", "aria-label": `${label} version ${found.candidate}` }, `${label}…`);
      node.addEventListener("click", () => actions.rollout(action, found.candidate));
      return node;
    };
    rows(panel.querySelector("div"), JSON.stringify(found), () => [
      el("p", { class: "chips" }, el("span", { class: "chip", "data-state": state }, words),
        el("span", { class: "chip plain" }, `v${found.stable} → v${found.candidate}`), el("span", { class: "chip plain" }, share)),
      ...(found.state === "running" ? [el("p", { class: "buttons" }, button("Promote", "promote"), button("Roll back", "rollback"))] : []),
      ...(found.reason ? [el("p", { class: found.state === "rolled_back" ? "problem" : "note" }, found.reason)] : []),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), el("th", { scope: "col", class: "number" }, `stable v${found.stable}`),
        el("th", { scope: "col", class: "number" }, `candidate v${found.candidate}`))),
        el("tbody", {}, row("requests", found.requests, count), row("errors", found.errors, count), row("p99, ms", found.p99_ms, (value) => value.toFixed(2)))),
      ...(found.overflow ? [el("p", { class: "note" }, `Requests that stable answered, because the candidate is too slow: ${count(found.overflow)}`)] : []),
      ...(found.drift === undefined || found.drift === null ? [] : [el("p", { class: "note" }, `Answers that differ: ${typeof found.drift === "number" ? percent(found.drift) : JSON.stringify(found.drift)}`)]),
    ]);
  });
}

export function slow(panel, name, server) {
  if (!server.calls.slow) return;
  follow(panel, "/v2/slow", (found) => {
    const requests = found.slow.filter((request) => request.model === name).sort((a, b) => b.number - a.number).slice(0, SLOW_MAX);
    panel.hidden = requests.length === 0;
    const cause = ({ cause: named, ms, detail }) => el("li", {}, el("strong", {}, named.replaceAll("_", " ")), ` ${ms.toFixed(1)} ms`, detail ? `: ${detail}` : "");
    rows(panel.querySelector("div"), JSON.stringify(requests), () => [el("ol", { class: "events" }, ...requests.map((request) => el("li", {},
      el("time", {}, clock(request.time * 1000)),
      el("div", {}, el("p", {}, el("strong", {}, `${request.total_ms.toFixed(1)} ms`), ` instead of ${request.expected_ms.toFixed(1)} ms, v${request.version}, ${request.protocol}`),
        el("ul", { class: "causes" }, ...request.causes.map(cause))))))]);
  });
}
