// One model: its traffic over a range, by version, two versions compared, actions, and what else is known of it.

import { batching } from "./page-batching.js";
import { Actions } from "./page-actions.js";
import { compareVersions, longAsText } from "./page-api.js";
import { AT, ERRORS, LINES, MAX, P50, P90, P99, P999, PAIR, REQUESTS, covered, draw, markWords, recorded } from "./page-chart.js";
import { age, bytes, clock, count, duration, el, ms, percent, rows, svg, text, zone } from "./page-dom.js";
import { list } from "./page-events.js";
import { slow } from "./page-more.js";
import { chip } from "./page-overview.js";
import { RolloutView } from "./page-rollout.js";

const RANGES = [[120, "2 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]];
// Time between two reads of a range whose intervals are not seconds.
const SLOW_READ_MS = 5000;
const ALL = "all";

// Says why there is no model of this name. Of many models, the server sends some only.
function missing(name, { models, more }) {
  if (more === 0) return `No model "${name}" is served here.`;
  return `"${name}" is not one of the ${models.length} models that this page shows of ${models.length + more}. If it is served, GET /v2/models/${encodeURIComponent(name)} describes it.`;
}

export class ModelView {
  constructor(root, name, events) {
    Object.assign(this, { root, name, events, span: RANGES[0][0], lines: ALL, cursor: null, read: 0 });
    root.replaceChildren(document.getElementById("model-view").content.cloneNode(true));
    this.part = (selector) => root.querySelector(selector);
    root.dataset.model = name;
    text(this.part("h2"), name);
    this.actions = new Actions(this.part(".actions"), name, () => {
      this.rollout.refresh();
      this.fetch();
    });
    this.rollout = new RolloutView(this.part(".rollout"), name, this.actions);
    this.ranges();
    for (const kind of ["lines", "with"]) {
      this.part(`.${kind}`).addEventListener("input", () => this.choose());
    }
    this.follow(this.part(".chart"));
  }

  close() {
    this.closed = true;
    this.observer.disconnect();
    this.root.replaceChildren();
  }

  ranges() {
    this.part(".ranges").append(...RANGES.map(([span, words]) => {
      const button = el("button", { class: "small", "aria-pressed": String(span === this.span) }, words);
      button.addEventListener("click", () => {
        this.span = span;
        this.cursor = null;
        for (const other of this.part(".ranges").children) other.setAttribute("aria-pressed", String(other === button));
        this.fetch();
      });
      return button;
    }));
  }

  // The pointer on the chart, or the arrow keys, choose the interval whose numbers are shown.
  follow(chart) {
    const choose = (at) => { this.cursor = at; this.redraw(); };
    chart.addEventListener("pointermove", (event) => this.time && choose(this.nearest(this.time(event.offsetX))));
    chart.addEventListener("pointerleave", () => choose(null));
    chart.addEventListener("blur", () => choose(null));
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (event.key === "Escape") choose(null);
      if (!step || !this.detail) return;
      event.preventDefault();
      const points = this.points(), at = points.findIndex((point) => point[AT] === this.cursor);
      const from = at < 0 ? points.length : at;
      choose(points[Math.min(Math.max(from + step, 0), points.length - 1)]?.[AT] ?? null);
    });
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(chart);
  }

  nearest(time) {
    const distance = (point) => Math.abs(point[AT] - this.detail.history.step / 2 - time);
    return this.points().reduce((best, point) => (best === null || distance(point) < distance(best) ? point : best), null)?.[AT] ?? null;
  }

  show(now, server) {
    Object.assign(this, { now, server });
    this.model = now.models.find((model) => model.name === this.name);
    this.head();
    const due = this.span === RANGES[0][0] ? 0 : SLOW_READ_MS;
    if (this.model && performance.now() - this.read >= due) this.fetch();
    list(this.part(".model-events"), [...this.events.of(this.name)].reverse(), false);
    if (this.model) {
      this.rollout.show(this.model, server);
      slow(this.part(".slow"), this.name, server);
    }
  }

  head() {
    const { model } = this, problem = this.part(".problem");
    const words = model ? model.text : missing(this.name, this.now);
    problem.hidden = !words;
    text(problem, words);
    problem.dataset.level = model?.level ?? "failing";
    rows(this.part(".chips"), JSON.stringify([model?.level, model?.state, model?.versions.map((v) => [v.version, v.state, v.update, v.candidate])]), () => (model ? [...(model.versions.some(({ state }) => state === "failed") && model.state === "failed" ? [] : [chip(model)]),
      ...model.versions.filter((version) => version.update || !["ready", "released", "discovered"].includes(version.state)).map((version) =>
        el("span", { class: "chip", "data-state": version.update ? "warn" : version.state }, `v${version.version} ${version.update ?? version.state}`))] : []));
    this.actions.show(model, this.server);
    const page = this.server.pages.includes("/try") && model?.state === "ready";
    this.part(".try").hidden = !page;
    this.part(".try").href = `/try?model=${encodeURIComponent(this.name)}`;
  }

  async fetch() {
    if (this.fetching) { this.again = true; return; }
    this.fetching = true;
    this.read = performance.now();
    try {
      const answer = await fetch(`/page/model?name=${encodeURIComponent(this.name)}&seconds=${this.span}`);
      if (!answer.ok || this.closed) return;
      const detail = longAsText(await answer.text());
      if (this.closed || detail.history.span !== this.span) return;
      this.detail = detail;
      this.draw();
    } catch {
      // The header says that the server does not answer.
    } finally {
      this.fetching = false;
      if (this.again && !this.closed) { this.again = false; this.fetch(); }
    }
  }

  choose() {
    this.lines = this.part(".lines").value;
    this.draw();
  }

  // The lines of the choice: a version, all together, or two compared.
  chosen() {
    const { all, versions } = this.detail.history;
    const of = (number) => versions.find(({ version }) => String(version) === number) ?? { ...all, version: number, points: [], total: null };
    if (this.lines !== "compare") return [this.lines === ALL ? all : of(this.lines)];
    const newest = versions[0], other = of(this.part(".with").value);
    return [newest, other];
  }

  points() {
    return this.lines === "compare" ? this.detail.history.all.points : this.chosen()[0].points;
  }

  draw() {
    this.options();
    this.numbers();
    this.versions();
    this.comparison();
    batching(this.part(".batching"), this.detail.schedule, this.server.batch_sizes);
    this.redraw();
  }

  options() {
    const versions = this.detail.history.versions.map(({ version }) => version);
    const choices = [[ALL, "all versions"], ...versions.map((version) => [String(version), `version ${version}`]),
      ...(versions.length > 1 ? [["compare", `version ${versions[0]} compared`]] : [])];
    if (!choices.some(([value]) => value === this.lines)) this.lines = ALL;
    const option = (value, words) => el("option", { value }, words);
    rows(this.part(".lines"), JSON.stringify(choices), () => choices.map(([value, words]) => option(value, words)));
    this.part(".lines").value = this.lines;
    const others = versions.slice(1).map(String), kept = this.part(".with").value;
    rows(this.part(".with"), others.join(), () => others.map((version) => option(version, `version ${version}`)));
    if (others.includes(kept)) this.part(".with").value = kept;
    this.part(".other").hidden = this.lines !== "compare";
  }

  numbers() {
    const { total } = this.lines === "compare" ? this.detail.history.all : this.chosen()[0];
    if (!total) return;
    const rate = total.requests / recorded(this.detail.history, this.detail.at);
    const time = (us) => (us ? `${ms(us)} ms` : "–");
    const found = [["requests", count(total.requests)], ["requests/s", count(rate)],
      ["errors", total.requests ? percent(total.errors / total.requests) : "–", total.errors > 0],
      ["p50", time(total.p50)], ["p90", time(total.p90)], ["p99", time(total.p99)], ["p999", total.requests >= 1000 ? time(total.p999) : "–"], ["max", time(total.max)]];
    rows(this.part(".numbers"), JSON.stringify(found), () => found.map(([name, value, bad]) =>
      el("div", {}, el("dt", {}, name), el("dd", { class: bad ? "bad" : "" }, value))));
    const statuses = Object.entries(total.statuses).map(([name, number]) => `${name} ${count(number)}`).join(", ");
    text(this.part(".statuses"), statuses ? `Errors by status: ${statuses}` : "");
  }

  versions() {
    const known = this.model?.versions ?? [], { versions } = this.detail.history;
    const numbers = [...new Set([...known.map(({ version }) => version), ...versions.map(({ version }) => version)])].sort((a, b) => compareVersions(b, a));
    const entries = numbers.map((number) => ({
      number, status: known.find(({ version }) => version === number), total: versions.find(({ version }) => version === number)?.total,
    }));
    const time = (us) => (us ? ms(us) : "–"), body = this.part(".versions tbody");
    rows(body, JSON.stringify(entries), () => entries.flatMap(({ number, status, total }) => {
      const state = status?.state ?? "released", cell = (words, kind = "") => el("td", { class: `number ${kind}` }, words);
      const row = el("tr", { "data-version": number }, el("th", { scope: "row" }, `v${number}`),
        el("td", {}, el("span", { class: "state", "data-state": state }, state)),
        cell(total ? count(total.requests) : "–"),
        cell(total?.requests ? percent(total.errors / total.requests) : "–", total?.errors ? "bad" : ""),
        cell(time(total?.p50)), cell(time(total?.p99)), cell(time(total?.max)),
        cell(status?.bytes ? bytes(status.bytes) : "–"), cell("–", "since"));
      const reason = status?.reason ? [el("tr", { class: "reason", "data-state": state }, el("td", { colspan: "9" }, status.reason))] : [];
      return [row, ...reason];
    }));
    // The clock of the server: that of the browser may differ.
    const serverMs = this.server.started + this.now.at * 1000;
    for (const { number, status } of entries) {
      if (status) text(body.querySelector(`[data-version="${number}"] .since`), age((serverMs - status.since) / 1000));
    }
  }

  comparison() {
    const panel = this.part(".compare");
    panel.hidden = this.lines !== "compare";
    if (panel.hidden) return;
    const [newer, older] = this.chosen(), time = (us) => (us ? ms(us) : "–");
    const change = (a, b) => (a && b ? `${a > b ? "+" : a < b ? "−" : ""}${percent(Math.abs(a / b - 1))}` : "–");
    const share = (total) => (total.requests ? total.errors / total.requests : 0);
    const line = (name, of, words) => [name, words(of(older.total)), words(of(newer.total)), change(of(newer.total), of(older.total))];
    const lines = older.total && newer.total ? [
      line("requests", (total) => total.requests, count), line("error rate", share, percent),
      line("p50, ms", (total) => total.p50, time), line("p90, ms", (total) => total.p90, time),
      line("p99, ms", (total) => total.p99, time), line("max, ms", (total) => total.max, time),
    ] : [];
    const heads = ["", `v${older.version}`, `v${newer.version}`, "change"];
    rows(panel.querySelector("thead"), heads.join(), () => [el("tr", {}, ...heads.map((words, index) => el("th", { scope: "col", class: index ? "number" : "" }, words)))]);
    rows(panel.querySelector("tbody"), JSON.stringify(lines), () => lines.map(([name, ...values]) =>
      el("tr", {}, el("th", { scope: "row" }, name), ...values.map((value) => el("td", { class: "number" }, value)))));
  }

  redraw() {
    if (!this.detail || this.closed) return;
    const { history, at } = this.detail, comparing = this.lines === "compare";
    const lines = comparing
      ? this.chosen().flatMap((found, index) => PAIR.map(([name, place]) =>
        ({ name: `v${found.version} ${name}`, place, kind: `${index ? "older" : "newer"} ${name}`, points: found.points })))
      : LINES.map(([name, place, kind]) => ({ name, place, kind, points: this.chosen()[0].points }));
    const shown = {
      lines, requests: this.points(), events: this.events.of(this.name), now: at, span: this.span, step: history.step, started: this.server.started,
    };
    this.part(".chart").classList.toggle("quiet", shown.requests.length === 0);
    this.time = draw(this.part(".chart"), shown, this.cursor);
    const kinds = lines.map(({ name, kind }) => [name, kind]);
    rows(this.part(".legend"), JSON.stringify(kinds), () => ["Latency: ", ...kinds.map(([name, kind]) => el("span", { class: "key" },
      svg("svg", { class: `swatch ${kind}`, "aria-hidden": "true", viewBox: "0 0 22 6" }, svg("path", { d: "M0 3H22" })), name))]);
    this.reading();
    this.kept(history);
  }

  reading() {
    const { history, at } = this.detail, point = this.points().find((found) => found[AT] === this.cursor);
    const words = (found) => {
      const rate = `${count(found[REQUESTS] / covered(found, history.step, at))} requests/s`;
      const errors = found[ERRORS] ? `, ${count(found[ERRORS])} failed` : "";
      return `${rate}${errors}, p50 ${ms(found[P50])} ms, p90 ${ms(found[P90])} ms, p99 ${ms(found[P99])} ms${found[REQUESTS] >= 1000 ? `, p999 ${ms(found[P999])} ms` : ""}, max ${ms(found[MAX])} ms`;
    };
    text(this.part(".reading"), point ? `${clock(this.server.started + point[AT] * 1000)}: ${words(point)}` : "");
    const newest = this.points().at(-1), current = newest && at - newest[AT] <= 3 * history.step ? words(newest) : "no requests now";
    const marks = this.events.of(this.name).filter(markWords).map((event) => `${markWords(event)} ${duration(at - event.at)} ago`).slice(-5).join(", ");
    this.part(".chart").setAttribute("aria-label",
      `Latency of ${this.name}: ${current}. ${marks ? `Versions: ${marks}. ` : ""}Arrow keys choose a time.`);
  }

  kept(history) {
    const since = Math.max(history.complete_from, this.detail.at - this.span);
    const begun = this.detail.at < this.span ? `The history begins at the start of the server, ${clock(this.server.started)}.` : "";
    const cut = history.complete_from > this.detail.at - this.span && history.complete_from > 0
      ? `Data older than ${duration(this.detail.at - since)} was dropped, because the history of all models reached its memory limit.` : "";
    text(this.part(".kept"), `${begun}${cut} The history is kept in memory for 24 h and does not survive a restart. Percentiles and the maximum of fewer than 100 requests are taken over up to 10 intervals of ${duration(history.step)}. Times are in ${zone(Date.now())}.`.trim());
  }
}
