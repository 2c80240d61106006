// The live page: shows the server's state from its events, and loads and unloads models.

import { Card } from "./page-card.js";
import { bytes, count, duration, el, gauge, rows, text } from "./page-dom.js";

// Time without an event, which normally comes each second, after which the figures are old.
const STALE_MS = 4000;
// Time before a refused stream is retried, as when too many pages are open or the server starts.
const RETRY_MS = 2000;
const MESSAGE_MS = 8000;

const $ = (id) => document.getElementById(id);
const cards = new Map();
let server = null, source = null, stale = 0, retry = 0;

function connection(state) {
  $("connection").dataset.state = state;
  text($("connection"), state);
  document.body.classList.toggle("stale", state !== "live");
}

function lost() {
  connection("reconnecting");
  if (source?.readyState === EventSource.CLOSED) {
    clearTimeout(retry);
    retry = setTimeout(connect, RETRY_MS);
  }
}

function connect() {
  source?.close();
  if (document.hidden) return;
  source = new EventSource("/events");
  source.onerror = lost;
  source.addEventListener("history", (event) => {
    const past = JSON.parse(event.data);
    server = past.server;
    for (const card of cards.values()) card.reset();
    show(past);
  });
  source.addEventListener("tick", (event) => server && show(JSON.parse(event.data)));
}

function show(now) {
  connection("live");
  clearTimeout(stale);
  stale = setTimeout(() => { connection("reconnecting"); connect(); }, STALE_MS);
  text($("version"), server.version);
  text($("engine"), server.engine);
  text($("uptime"), duration(now.at));
  models(now);
  machine(now.machine, now.models);
}

function models(now) {
  const names = new Set(now.models.map((model) => model.name));
  for (const [name, card] of cards) {
    if (!names.has(name)) { card.root.remove(); cards.delete(name); }
  }
  now.models.forEach((model, index) => {
    let card = cards.get(model.name);
    if (!card) {
      card = new Card(model.name, act);
      cards.set(model.name, card);
      $("models").insertBefore(card.root, $("models").children[index] ?? null);
    }
    card.update(model, now.at, server);
  });
  $("empty").hidden = now.models.length > 0;
  $("more").hidden = now.more === 0;
  text($("more"), `${now.more} more models are served and not shown; all are at /metrics.`);
}

function machine(found, models) {
  text($("waiting"), count(found.queued));
  text($("workers"), `${found.busy} of ${found.workers} busy`);
  gauge($("busy"), "workers busy", found.busy, found.workers, `${found.busy} of ${found.workers}`);
  gauge($("queue"), "requests waiting", found.queued, found.queue_max, `${found.queued} of at most ${found.queue_max}`);
  text($("connections"), `open connections: ${found.connections[0]} HTTP, ${found.connections[1]} gRPC`);
  gauge($("pool"), "slot pool in use", found.pool_used, found.pool_backed, `${bytes(found.pool_used)} of ${bytes(found.pool_backed)} backed`);
  const parameters = models.flatMap((model) => model.versions).reduce((sum, version) => sum + version.bytes, 0);
  const homes = [
    [`parameters (${server.home === "dram" ? "slot pool" : "heap"})`, bytes(parameters)],
    ["slot pool, at most", bytes(found.pool_max)],
    ...(found.heap_allocated === null ? [] : [["requests and scratch (jemalloc)", bytes(found.heap_allocated)], ["jemalloc, resident", bytes(found.heap_resident)]]),
    ["process, resident", bytes(found.rss)],
    ["process, peak", bytes(found.rss_peak)],
  ];
  const line = (name, ...values) => el("tr", {}, el("th", { scope: "row" }, name), ...values.map((value) => el("td", { class: "number" }, value)));
  rows($("homes"), JSON.stringify(homes), () => homes.map(([name, value]) => line(name, value)));
  rows($("threads"), JSON.stringify(found.threads), () => found.threads.map((kind) =>
    line(kind.name, String(kind.count), kind.cores === null ? "–" : kind.cores.toFixed(2))));
  $("machine").hidden = false;
}

function message(words, bad = false) {
  const close = el("button", { "aria-label": "Dismiss" }, "×");
  const node = el("div", { class: bad ? "message bad" : "message" }, el("span", {}, words), close);
  close.addEventListener("click", () => node.remove());
  $("messages").replaceChildren(node);
  if (!bad) setTimeout(() => node.remove(), MESSAGE_MS);
}

// Asks before an unload. Escape and "Keep it" mean no.
function confirmed(name) {
  const dialog = $("confirm");
  text($("confirm-title"), `Unload ${name}?`);
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((answer) => dialog.addEventListener("close", () => answer(dialog.returnValue === "unload"), { once: true }));
}

async function act(verb, card) {
  if (verb === "unload" && !(await confirmed(card.name))) return;
  card.working(verb);
  try {
    const path = `/v2/repository/models/${encodeURIComponent(card.name)}/${verb}`;
    const answer = await fetch(path, { method: "POST" });
    if (answer.ok) {
      message(`${card.name} is ${verb}ed.`);
    } else {
      const told = await answer.json().catch(() => ({}));
      message(`${card.name} was not ${verb}ed: ${told.error ?? `the server answered ${answer.status}`}`, true);
    }
  } catch {
    message(`${card.name}: the server did not answer. Is it running?`, true);
  } finally {
    card.working(null);
  }
}

// A hidden page disconnects. Once it is visible again, it gets the whole history.
document.addEventListener("visibilitychange", () => {
  clearTimeout(stale);
  connect();
});
connect();
