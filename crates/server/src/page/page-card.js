// The card of one model: created from the template, and updated at each tick.

import { age, bytes, count, el, ms, rows, svg, text } from "./page-dom.js";
import { AT, COUNT, LINES, MAX, draw, markWords } from "./page-chart.js";

const BARS_MIN = 5;

export class Card {
  constructor(name, act) {
    this.name = name;
    this.cursor = null;
    this.points = new Map();
    this.root = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.part = (selector) => this.root.querySelector(selector);
    text(this.part("h2"), name);
    const title = `model-${Math.random().toString(36).slice(2)}`;
    this.part("h2").id = title;
    this.root.setAttribute("aria-labelledby", title);
    this.root.dataset.model = name;
    this.heads();
    for (const verb of ["load", "unload"]) {
      const button = this.part(`.${verb}`);
      button.setAttribute("aria-label", `${verb === "load" ? "Load" : "Unload"} ${name}`);
      button.addEventListener("click", () => button.getAttribute("aria-disabled") !== "true" && act(verb, this));
    }
    this.follow(this.part(".chart"));
  }

  heads() {
    const sample = (name) => svg("svg", { class: `swatch ${name}`, "aria-hidden": "true", viewBox: "0 0 22 6" }, svg("path", { d: "M0 3H22" }));
    const head = (name) => el("th", { scope: "col" }, sample(name), name);
    this.part(".percentiles thead").append(
      el("tr", {}, el("th", { scope: "col" }, "ms"), ...LINES.map(([name]) => head(name)), el("th", { scope: "col" }, "max")));
    this.rows = ["last second", "worst of 2 min"].map((name) => {
      const row = el("tr", {}, el("th", { scope: "row" }, name), ...[...LINES, MAX].map(() => el("td", {}, "–")));
      this.part(".percentiles tbody").append(row);
      return row;
    });
  }

  // The pointer on the chart, or the arrow keys, choose the second whose numbers the table shows.
  follow(chart) {
    const choose = (at) => { this.cursor = at; this.redraw(); };
    chart.addEventListener("pointermove", (event) => this.second && choose(this.within(this.second(event.offsetX))));
    chart.addEventListener("pointerleave", () => choose(null));
    chart.addEventListener("blur", () => choose(null));
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (event.key === "Escape") choose(null);
      if (!step) return;
      event.preventDefault();
      choose(this.within((this.cursor ?? Math.floor(this.now)) + step));
    });
    new ResizeObserver(() => this.redraw()).observe(chart);
  }

  within(at) {
    const known = [...this.points.keys()];
    return known.length === 0 ? null : Math.min(Math.max(at, known[0]), known.at(-1));
  }

  reset() {
    this.points.clear();
  }

  update(model, now, server) {
    for (const point of model.points) this.points.set(point[AT], point);
    for (const at of this.points.keys()) if (at <= now - server.seconds - 1) this.points.delete(at);
    Object.assign(this, { model, now, span: server.seconds, home: server.home });
    this.states();
    this.numbers();
    this.batches(server.batch_sizes);
    this.classes();
    this.versions();
    this.redraw();
  }

  redraw() {
    if (!this.model) return;
    const points = [...this.points.values()].sort((a, b) => a[AT] - b[AT]);
    const shown = { points, marks: this.model.marks };
    this.second = draw(this.part(".chart"), shown, this.now, this.span, this.cursor);
    const chosen = this.cursor === null ? points.at(-1) : this.points.get(this.cursor);
    const ago = this.cursor === null ? "last second" : `${Math.round(this.now - this.cursor)} s ago`;
    const busy = points.filter((point) => point[COUNT] > 0);
    const worst = busy.reduce((most, point) => most.map((value, place) => Math.max(value, point[place])), busy[0] ?? [0, 0]);
    this.fill(this.rows[0], ago, chosen);
    this.fill(this.rows[1], "worst of 2 min", worst);
    this.describe(points.at(-1));
  }

  fill(row, name, point) {
    text(row.cells[0], name);
    [...LINES.map(([, place]) => place), MAX].forEach((place, index) => {
      text(row.cells[index + 1], point && point[COUNT] > 0 ? ms(point[place]) : "–");
    });
  }

  describe(point) {
    const marks = this.model.marks.map((mark) => `${markWords(mark)} ${Math.round(this.now - mark.at)} s ago`).join(", ");
    const values = point && point[COUNT] > 0
      ? LINES.map(([name, place]) => `${name} ${ms(point[place])} ms`).join(", ") : "no requests in the last second";
    this.part(".chart").setAttribute("aria-label",
      `Latency of ${this.name}: ${values}. ${marks ? `Versions that came: ${marks}. ` : ""}Arrow keys choose a second.`);
  }

  states() {
    const { model } = this;
    const chips = model.versions.filter((version) => version.state !== "released" && version.state !== "discovered")
      .map((version) => ({ state: version.state, words: `v${version.version} ${version.state}` }));
    if (model.unloaded && !chips.some((chip) => chip.state === "ready")) chips.unshift({ state: "unloaded", words: "unloaded" });
    if (chips.length === 0) chips.push({ state: "none", words: "no version" });
    if (model.schedule) chips.push({ state: "", words: model.schedule.mode, plain: true });
    rows(this.part(".chips"), JSON.stringify(chips), () => chips.map((chip) =>
      el("span", { class: chip.plain ? "chip plain" : "chip", "data-state": chip.state }, chip.words)));
    this.part(".problem").hidden = !model.error;
    text(this.part(".problem"), model.error ?? "");
    const up = model.versions.some((version) => !["released", "discovered", "failed"].includes(version.state));
    if (!this.busy) this.part(".unload").setAttribute("aria-disabled", String(!up));
  }

  // Both buttons are disabled during a call; `verb` is null afterwards.
  working(verb) {
    this.busy = verb;
    for (const name of ["load", "unload"]) this.part(`.${name}`).setAttribute("aria-disabled", String(verb !== null));
    text(this.part(".load"), verb === "load" ? "Loading…" : "Load");
    text(this.part(".unload"), verb === "unload" ? "Unloading…" : "Unload…");
    if (verb === null && this.model) this.states();
  }

  numbers() {
    const last = [...this.points.values()].at(-1), { schedule } = this.model;
    const found = [["requests/s", last ? count(last[COUNT]) : "0"]];
    if (schedule) {
      const { window } = schedule, elements = window.real_elements + window.padding_elements;
      found.push(["waiting", count(schedule.queued)], ["running", count(schedule.running)]);
      found.push(["mean batch", window.batches ? (window.items / window.batches).toFixed(1) : "–"]);
      found.push(["padding", elements ? `${((100 * window.padding_elements) / elements).toFixed(1)} %` : "–"]);
      found.push(["refused, late", `${count(window.refused)}, ${count(window.expired)}`]);
      if (schedule.queued_by_priority.length > 1) found.push(["by priority", schedule.queued_by_priority.join(" · ")]);
    }
    rows(this.part(".numbers"), JSON.stringify(found), () => found.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  batches(names) {
    const sizes = this.model.schedule?.window.batch_sizes ?? [], node = this.part(".bars");
    const runs = sizes.reduce((sum, size) => sum + size, 0);
    const shown = Math.max(BARS_MIN, sizes.findLastIndex((size) => size > 0) + 1);
    const words = sizes.map((size, index) => `${size} of ${names[index]}`).filter((_, index) => sizes[index] > 0);
    node.setAttribute("aria-label", runs ? `Runs by batch size: ${words.join(", ")}` : "No runs in the last 10 s");
    rows(node, JSON.stringify(sizes), () => {
      if (runs === 0) return [el("div", { class: "empty" }, "no runs")];
      const most = Math.max(...sizes);
      return sizes.slice(0, shown).map((size, index) => {
        const bar = el("i", { title: `${size} runs of ${names[index]}` }), share = Math.round((100 * size) / runs);
        bar.style.height = size ? `${Math.max(2, (56 * size) / most)}px` : "1px";
        return el("div", {}, size ? (share < 1 ? "<1 %" : `${share} %`) : "", bar, names[index].replace(/^\d+–/, "≤"));
      });
    });
  }

  classes() {
    const classes = (this.model.schedule?.classes ?? []).filter((entry) => entry.item_us.length > 0);
    this.part(".classes").hidden = classes.length === 0;
    rows(this.part(".classes tbody"), JSON.stringify(classes), () => classes.map((entry) => {
      const best = entry.item_us.find(([size]) => size === entry.best) ?? entry.item_us[0];
      const times = [entry.item_us[0], best].map(([, us]) => Math.round(us));
      return el("tr", {}, el("td", {}, entry.shape), el("td", { class: "number" }, String(entry.best)),
        el("td", { class: "number" }, `${times[0]} → ${times[1]}`));
    }));
  }

  versions() {
    const { versions } = this.model;
    const key = JSON.stringify(versions.map(({ version, state, reason, bytes: size }) => [version, state, reason, size]));
    const body = this.part(".versions tbody");
    rows(body, key, () => versions.flatMap((entry) => {
      const row = el("tr", {}, el("th", { scope: "row" }, String(entry.version)),
        el("td", {}, el("span", { class: "state", "data-state": entry.state }, entry.state)),
        el("td", { class: "number" }, entry.bytes ? bytes(entry.bytes) : "–"), el("td", { class: "number since" }));
      return entry.reason ? [row, el("tr", { class: "reason" }, el("td", { colspan: "4" }, entry.reason))] : [row];
    }));
    body.querySelectorAll(".since").forEach((cell, index) => text(cell, age((Date.now() - versions[index].since) / 1000)));
  }
}
