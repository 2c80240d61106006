// The overview of models: follows the server's events, and shows all models or the one in the address.

import { longAsText } from "./page-api.js";
import { Events } from "./page-events.js";
import { machine, settings } from "./page-machine.js";
import { ModelView } from "./page-model.js";
import { Overview } from "./page-overview.js";
import { state } from "./page-shell.js";

// Time without an event, which normally comes each second, after which the figures are old.
const STALE_MS = 4000;
// Time before a refused stream is retried, as when too many pages are open or the server starts.
const RETRY_MS = 2000;

const $ = (id) => document.getElementById(id);
const overview = new Overview();
const events = new Events();
let server = null, now = null, source = null, stale = 0, retry = 0, view = null;

function connection(name, words = name) {
  state(name === "live" ? health().name : name, name === "live" ? health().words : words);
  document.body.dataset.connection = name;
  document.body.classList.toggle("stale", name !== "live");
}

// The state in the header and the title of the tab: how many models fail.
function health() {
  const failing = now.models.filter((model) => model.level === "failing").length;
  const warnings = now.models.filter((model) => model.level === "warning").length;
  document.title = failing ? `(${failing} failed) Millpond` : "Millpond";
  if (failing) return { name: "failed", words: `${failing} failing` };
  if (warnings) return { name: "warn", words: warnings === 1 ? "1 warning" : `${warnings} warnings` };
  return { name: "live", words: "live" };
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
    const past = longAsText(event.data);
    server = past.server;
    overview.reset(server, past.sparks);
    events.reset(server, past.events, past.dropped);
    settings(server);
    show(past);
  });
  source.addEventListener("tick", (event) => server && show(longAsText(event.data)));
}

function show(found) {
  now = found;
  connection("live");
  clearTimeout(stale);
  stale = setTimeout(() => { connection("reconnecting"); connect(); }, STALE_MS);
  events.add(now.events);
  // Also while one model is shown: the small charts of all models would otherwise have a gap.
  overview.follow(now);
  route();
}

// Shows the view that the address names.
function route() {
  if (!now) return;
  const name = new URLSearchParams(location.hash.slice(1)).get("model");
  $("overview").hidden = name !== null;
  $("model").hidden = name === null;
  if (name === null) {
    view?.close();
    view = null;
    overview.show(now);
    events.show();
    machine(now, server);
    return;
  }
  if (view?.name !== name) {
    view?.close();
    view = new ModelView($("model"), name, events);
  }
  view.show(now, server);
}

addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
  if (view) $("model").focus({ preventScroll: true });
});
// A hidden page disconnects. Once it is visible again, it gets the whole history.
document.addEventListener("visibilitychange", () => {
  clearTimeout(stale);
  // The figures are as old as the time for which the page was hidden.
  if (now && !document.hidden) connection("reconnecting");
  connect();
});
connect();
