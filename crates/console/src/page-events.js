// The list of events, for the server or one model.

import { longAsText } from "./page-api.js";
import { clock, count, el, rows, text, zone } from "./page-dom.js";

// Events before a button shows the others.
const SHOWN_MAX = 8;
// Most events, as on the server.
const KEPT_MAX = 512;
// Longest wait for events that a tick leaves out. Ticks add no events meanwhile.
const READ_MS_MAX = 5000;
const $ = (id) => document.getElementById(id);

function item(event, withModel) {
  const place = [event.model && withModel ? el("a", { href: `#model=${encodeURIComponent(event.model)}` }, event.model) : "",
    event.version !== undefined ? ` v${event.version}` : ""];
  const times = event.count > 1 ? el("span", { class: "count" }, `${count(event.count)}×`) : "";
  const text = event.from !== undefined ? `replaced v${event.from}: ${event.text}` : event.text;
  const time = el("time", { datetime: new Date(event.time_ms).toISOString() }, clock(event.time_ms));
  return el("li", { "data-level": event.level }, time, el("p", {}, el("strong", {}, ...place), place.some(Boolean) ? " " : "", text, " ", times));
}

// Draws events, newest first.
export function list(node, events, withModel) {
  // Ids start again with the server, so a time is part of the key.
  const key = events.map((event) => `${event.id} ${event.time_ms}`).join();
  rows(node, key || "none", () => events.length ? events.map((event) => item(event, withModel))
    : [el("li", { class: "none" }, "No events yet.")]);
}

export class Events {
  constructor() {
    this.all = [];
    this.whole = false;
    this.reading = false;
    $("events-all").addEventListener("click", () => {
      this.whole = !this.whole;
      this.show();
    });
  }

  reset(server, events, dropped) {
    this.server = server;
    this.all = events;
    this.dropped = dropped;
  }

  get last() { return this.all.at(-1)?.id ?? 0; }

  // Adds the events of a tick. A tick has the newest only, so the server is asked if others may be missing.
  add(events) {
    return events.length > 0 && events[0].id > this.last + 1 ? this.missed(events) : this.take(events);
  }

  async missed(events) {
    if (this.reading) return;
    this.reading = true;
    const { server } = this;
    let found = events;
    try {
      const answer = await fetch(`/v2/events?after=${this.last}`, { signal: AbortSignal.timeout(READ_MS_MAX) });
      if (answer.ok) found = longAsText(await answer.text()).events;
    } catch {
      // The events of the tick are better than none. The header says if the server does not answer.
    } finally {
      this.reading = false;
    }
    // After a restart, ids begin again.
    if (server === this.server) this.take(found);
  }

  // An event that changed comes again with a higher number.
  take(events) {
    const { last } = this;
    for (const event of events.filter(({ id }) => id > last)) {
      const same = (other) => other.kind === event.kind && other.model === event.model && other.version === event.version && other.text === event.text;
      if (event.count > 1 || event.from !== undefined) {
        const index = this.all.findLastIndex(same);
        if (index >= 0) this.all.splice(index, 1);
      }
      this.all.push(event);
    }
    // Releases are part of the swap that follows them.
    const swaps = this.all.filter((event) => event.from !== undefined);
    this.all = this.all.filter((event) => event.kind !== "released"
      || !swaps.some((swap) => swap.model === event.model && swap.from === event.version && swap.id > event.id));
    this.all = this.all.slice(-KEPT_MAX);
  }

  of(model) {
    return this.all.filter((event) => event.model === model);
  }

  show() {
    const newest = [...this.all].reverse();
    list($("events"), this.whole ? newest : newest.slice(0, SHOWN_MAX), true);
    $("events-all").hidden = newest.length <= SHOWN_MAX;
    $("events-all").setAttribute("aria-expanded", String(this.whole));
    text($("events-all"), this.whole ? "Show fewer" : `Show all ${newest.length}`);
    text($("events-note"), `since the server started ${clock(this.server.started)}, times in ${zone(Date.now())}`);
  }
}
