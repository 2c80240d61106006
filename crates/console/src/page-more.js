// Slow requests of one model, if the server has this call.

import { longAsText } from "./page-api.js";
import { clock, el, rows } from "./page-dom.js";

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
    if (answer.ok) draw(longAsText(await answer.text()));
  } catch {
    // The header says that the server does not answer.
  }
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
