// The list of all models: totals, search, groups by trouble, and a row with a small chart per model.

import { cores, count, el, ms, percent, refocus, rows, text } from "./page-dom.js";
import { spark } from "./page-chart.js";
import { copyButton } from "./page-shell.js";

// Rows of a group before a button shows the others.
const ROWS_MAX = 25;
const TROUBLED_ROWS_MAX = 100;
// A group of more models that do nothing is closed at first.
const OPEN_MAX = 20;

const $ = (id) => document.getElementById(id);
const GROUPS = [
  ["failing", "Failing"], ["warning", "Warnings"], ["serving", "Serving"], ["loading", "Loading"], ["idle", "No requests"],
  ["unloaded", "Not loaded"],
];
const ORDERS = {
  trouble: () => 0,
  name: () => 0,
  rate: (a, b) => b.rate - a.rate,
  errors: (a, b) => share(b) - share(a),
  p99: (a, b) => b.p99 - a.p99,
};
const WORDS = { ready: "ready", loading: "loading", failed: "failed", unloaded: "unloaded", empty: "no version" };

export function share(model) {
  return model.requests ? model.errors / model.requests : 0;
}

function group(model) {
  if (model.level !== "none") return model.level;
  if (model.state === "loading") return "loading";
  if (model.state !== "ready") return "unloaded";
  return model.requests > 0 ? "serving" : "idle";
}

// Returns the version that answers requests which name none. In a rollout, this is the stable one.
export function servingVersion({ versions }) {
  const ready = versions.filter(({ state }) => state === "ready");
  return ready.find(({ candidate }) => !candidate) ?? ready[0];
}

// Returns the state of a model as a chip: its serving version, or why there is none.
export function chip(model) {
  const serving = servingVersion(model);
  const words = serving ? `v${serving.version}` : WORDS[model.state];
  const state = model.level === "failing" ? "failed" : model.level === "warning" ? "warn" : model.state;
  return el("span", { class: "chip", "data-state": state }, words);
}

class Row {
  constructor(name) {
    const cell = (kind) => el("td", { class: kind });
    this.link = el("a", { href: `#model=${encodeURIComponent(name)}` }, name);
    this.chip = el("span", {});
    this.text = el("p", { class: "trouble" });
    this.cells = Object.fromEntries(["spark", "number rate", "number errors", "number p50", "number p99"].map((kind) =>
      [kind.split(" ").at(-1), cell(kind)]));
    const first = el("th", { scope: "row" }, el("div", { class: "name" }, this.link, this.chip), this.text);
    this.root = el("tr", { "data-model": name }, first, ...Object.values(this.cells));
  }

  update(model, points, at, server) {
    const { spark: chart, rate, errors, p50, p99 } = this.cells;
    rows(this.chip, `${model.level} ${model.state} ${model.versions.map((v) => `${v.version} ${v.state} ${v.candidate}`).join()}`, () => [chip(model)]);
    text(this.text, model.text);
    this.text.title = model.text;
    text(rate, count(model.rate));
    text(errors, model.requests ? percent(share(model)) : "–");
    errors.classList.toggle("bad", model.errors > 0);
    errors.title = model.statuses.map(([name, number]) => `${name} ${number}`).join(", ");
    text(p50, model.p50 ? ms(model.p50) : "–");
    text(p99, model.p99 ? ms(model.p99) : "–");
    rows(chart, `${points.at(-1)?.[0]} ${points.length} ${Math.floor(at / server.spark_step)}`, () =>
      [spark(points, at, server.spark_seconds, server.spark_step)]);
  }
}

export class Overview {
  constructor() {
    this.rows = new Map();
    this.sparks = new Map();
    this.groups = new Map();
    this.whole = new Set();
    for (const id of ["search", "sort"]) $(id).addEventListener("input", () => this.now && this.show(this.now));
  }

  reset(server, sparks) {
    this.server = server;
    this.sparks = new Map(sparks.map(({ name, points }) => [name, points]));
    this.last = 0;
  }

  // Adds a point to the small charts from the rows, whose requests are those of the last minute.
  follow(now) {
    const step = this.server.spark_step, end = Math.floor(now.at / step) * step;
    if (this.last && end > this.last) {
      for (const model of now.models) {
        const requests = Math.round(model.rate * step);
        const points = this.sparks.get(model.name) ?? [];
        if (requests > 0) points.push([end, requests, Math.round(requests * share(model)), model.p99]);
        while (points.length && points[0][0] < end - this.server.spark_seconds) points.shift();
        this.sparks.set(model.name, points);
      }
    }
    this.last = end;
  }

  show(now) {
    this.now = now;
    this.totals();
    this.empty();
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = now.models.filter((model) => words.every((word) => model.name.toLowerCase().includes(word)));
    const focused = document.activeElement, sort = $("sort").value, sorted = [...found].sort((a, b) => ORDERS[sort](a, b) || a.name.localeCompare(b.name));
    const lists = new Map();
    for (const model of sorted) {
      const key = sort === "trouble" ? group(model) : "all";
      lists.set(key, [...(lists.get(key) ?? []), model]);
    }
    for (const [key, name] of [...GROUPS, ["all", "All models"]]) this.group(key, name, lists.get(key) ?? [], words.length > 0);
    // A row that moved to another group has lost the focus.
    if ($("models").contains(focused)) refocus(focused);
    const names = new Set(now.models.map((model) => model.name));
    for (const name of this.rows.keys()) if (!names.has(name)) this.rows.delete(name);
    text($("shown"), words.length ? `${found.length} of ${now.models.length} models` : "");
  }

  group(key, name, models, searching) {
    let part = this.groups.get(key);
    if (!part) {
      part = this.make(key, name);
      this.groups.set(key, part);
      $("models").append(part.root);
    }
    part.root.hidden = models.length === 0;
    text(part.count, String(models.length));
    if (!part.touched && models.length > 0) {
      const quiet = key === "idle" || key === "unloaded";
      part.root.open = !quiet || searching || models.length <= OPEN_MAX;
    }
    const shown = this.whole.has(key) ? models : models.slice(0, key === "failing" || key === "warning" ? TROUBLED_ROWS_MAX : ROWS_MAX);
    part.more.hidden = shown.length === models.length;
    text(part.more, `Show all ${models.length}`);
    // A closed group is not drawn, so that hundreds of models cost little.
    if (!part.root.open) return;
    rows(part.body, shown.map((model) => model.name).join("\n"), () => shown.map((model) => this.row(model.name).root));
    for (const model of shown) this.row(model.name).update(model, this.sparks.get(model.name) ?? [], this.now.at, this.server);
  }

  make(key, name) {
    const counted = el("span", { class: "count" }), body = el("tbody");
    const more = el("button", { class: "small more" });
    const summary = el("summary", {}, el("span", { class: "group-name", "data-group": key }, name), " ", counted);
    const head = ["model", "requests, 15 min", "requests/s", "errors", "p50 ms", "p99 ms"].map((words, index) =>
      el("th", { scope: "col", class: index > 1 ? "number" : "" }, words));
    const table = el("table", { class: "models" }, el("caption", { class: "hidden" }, name),
      el("colgroup", {}, ...head.map(() => el("col"))), el("thead", {}, el("tr", {}, ...head)), body);
    const root = el("details", { class: "panel group" }, summary, table, more);
    const part = { root, body, more, count: counted, touched: false };
    summary.addEventListener("click", () => { part.touched = true; });
    root.addEventListener("toggle", () => this.now && root.open && this.show(this.now));
    more.addEventListener("click", () => { this.whole.add(key); this.show(this.now); });
    return part;
  }

  row(name) {
    if (!this.rows.has(name)) this.rows.set(name, new Row(name));
    return this.rows.get(name);
  }

  totals() {
    const { models, machine } = this.now;
    const sum = (of) => models.reduce((all, model) => all + of(model), 0);
    const failing = models.filter((model) => model.level === "failing").length;
    const requests = sum((model) => model.requests), errors = sum((model) => model.errors);
    const used = machine.processor.used;
    const facts = [
      ["models", String(models.length + this.now.more), failing ? `${failing} failing` : "none failing", "", failing ? "bad" : ""],
      ["requests/s", count(sum((model) => model.rate)), `${count(machine.queued)} waiting`, ""],
      ["errors, last minute", requests ? percent(errors / requests) : "–", requests ? `${count(errors)} of ${count(requests)}` : "no requests", errors ? "bad" : ""],
      ["processor", used === null ? "–" : percent(used / machine.processor.cores), `of ${cores(machine.processor.cores)}`, ""],
      ["workers busy", `${machine.busy} of ${machine.workers}`, `${machine.connections.http + machine.connections.grpc} connections`, ""],
    ];
    rows($("totals"), JSON.stringify(facts), () => facts.map(([name, value, note, kind, noteKind = ""]) =>
      el("div", { class: "total" }, el("dt", {}, name), el("dd", { class: kind }, value, el("small", { class: noteKind }, note)))));
  }

  empty() {
    const none = this.now.models.length === 0, { root } = this.server;
    $("empty").hidden = !none;
    $("list").hidden = none;
    $("more").hidden = this.now.more === 0;
    text($("more"), `${this.now.more} more models are not shown; /metrics has all.`);
    if (!none || $("empty-command").dataset.done) return;
    const command = root ? `millpond publish model.onnx --to ${root}/NAME` : "millpond serve NAME=DIR";
    text($("empty-text"), root ? "Publish a model into the directory of this server. The server loads it within about a second." : "Start the server with a model or a directory of models:");
    text($("empty-command").querySelector("code"), command);
    text($("empty-note"), root
      ? `Or copy a file there: ${root}/NAME/1/model.onnx, with a numbered directory for each version.`
      : "DIR has a numbered directory for each version, such as DIR/1/model.onnx.");
    $("empty-command").append(copyButton(() => command, "the command"));
    $("empty-command").dataset.done = "yes";
  }
}
