// One collection: its points by page, searches, and counts of values.

import { clientCode, count, facet, path, query, scroll, vectorOf } from "./page-vectors-api.js";
import { FilterForm, WrongCondition, pointId } from "./page-vectors-filter.js";
import { PointDetails } from "./page-vectors-point.js";
import { shortVector, showHealth } from "./page-vectors-health.js";
import { isAsWritten, needsKey, toJson, words } from "./page-api.js";
import { copyButton, state } from "./page-shell.js";
import { el, problem, text } from "./page-dom.js";

// Most dimensions of vectors that are listed with the points.
const VECTOR_DIMS_MAX = 4096;
const FACET_HITS_MAX = 12;
// Fields and characters of a payload that are listed.
const FIELDS_MAX = 4, VALUE_CHARACTERS_MAX = 60;

const $ = (id) => document.getElementById(id);

const enable = (button, on) => button.setAttribute("aria-disabled", String(!on));
const isOn = (button) => button.getAttribute("aria-disabled") !== "true";

export class CollectionView {
  constructor(name, described, isImages) {
    Object.assign(this, { name, described, isImages, vector: vectorOf(described), fields: new Set(Object.keys(described.payload_schema ?? {})) });
    // Offsets of the pages up to the current one. For searches they are numbers of hits, else ids.
    this.offsets = [null];
    this.run = 0;
    // Field of the shown counts, number of the last request for counts, and true if the server needs keys.
    Object.assign(this, { facetKey: null, facetRun: 0, isLocked: false });
    this.filter = new FilterForm($("filter"), () => this.search());
    this.details = new PointDetails(name, { isImages, similar: (id) => this.similar(id), changed: () => this.refresh() });
    this.listen();
  }

  async start() {
    text($("name"), this.name);
    const { size, distance, name } = this.vector;
    text($("facts"), `${size} dimensions · ${distance}${name ? ` · vector "${name}"` : ""}${this.isImages ? " · images" : ""}`);
    const locked = needsKey(path(this.name)).then((found) => { this.isLocked = found; });
    // An empty collection shows an example, which depends on it.
    if (this.described.points_count === 0) await locked;
    await Promise.all([locked, showHealth(this.name, this.described), this.search()]);
  }

  listen() {
    $("mode").addEventListener("change", () => this.mode());
    $("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search();
    });
    $("reset").addEventListener("click", () => {
      for (const row of [...this.filter.rows]) row.drop.click();
      $("mode").value = "all";
      this.mode();
      this.search();
    });
    $("next").addEventListener("click", () => isOn($("next")) && this.turn(1));
    $("back").addEventListener("click", () => isOn($("back")) && this.turn(-1));
    $("points").addEventListener("click", (event) => {
      const row = event.target.closest("[data-point]");
      if (!row) return;
      if (event.target.closest(".similar")) this.similar(row.point.id); else if (event.target.closest(".open")) this.details.open(row.point.id);
    });
    $("facet").addEventListener("submit", (event) => {
      event.preventDefault();
      this.facet();
    });
    $("facet-hits").addEventListener("click", (event) => {
      const value = event.target.closest("button")?.value;
      if (value === undefined) return;
      this.filter.add({ key: this.facetKey, value });
      this.search();
    });
  }

  mode() {
    $("id-place").hidden = $("mode").value !== "id";
    $("vector-place").hidden = $("mode").value !== "vector";
    text($("go"), $("mode").value === "all" ? "Show" : "Search");
  }

  similar(id) {
    $("mode").value = "id";
    $("id").value = String(id);
    this.mode();
    this.search();
    $("points-title").focus();
  }

  // ---- search

  // Reads the form. Returns null after an error is shown.
  read() {
    problem("search-problem", null);
    try {
      return { filter: this.filter.read(), target: this.target(), limit: Number($("limit").value) };
    } catch (error) {
      if (!(error instanceof WrongCondition)) throw error;
      if (error.field === "target") problem("search-problem", error.message);
      return null;
    }
  }

  // Returns the id or the vector to compare with, or null for all points.
  target() {
    const mode = $("mode").value, wrong = (words) => new WrongCondition(words, "target");
    if (mode === "id") {
      try {
        return pointId($("id").value);
      } catch (error) {
        $("id").focus();
        throw wrong(error.message);
      }
    }
    if (mode !== "vector") return null;
    let values = null;
    try { values = JSON.parse($("vector").value); } catch { /* It is refused below. */ }
    const { size } = this.vector, isList = Array.isArray(values) && values.every((value) => typeof value === "number");
    if (!isList) throw wrong("Write the vector as a list of numbers, such as [0.1, 0.2].");
    if (values.length !== size) throw wrong(`This vector has ${values.length} values, and the collection takes ${size}.`);
    return values;
  }

  async search() {
    const asked = this.read();
    if (!asked) {
      // The results belong to another search, and so does an answer that comes later.
      this.run += 1;
      this.offsets = [null];
      this.show([], null, "");
      state("ready", "ready");
      return;
    }
    this.asked = asked;
    this.offsets = [null];
    await this.refresh();
  }

  async turn(step) {
    // Until the page is here, nothing is known of the one after it.
    for (const id of ["next", "back"]) enable($(id), false);
    if (step > 0) this.offsets.push(this.following); else this.offsets.pop();
    await this.refresh();
  }

  async refresh() {
    const { filter, target, limit } = this.asked, run = this.run += 1, offset = this.offsets.at(-1);
    const parts = { with_payload: true, with_vector: this.vector.size <= VECTOR_DIMS_MAX, limit, ...(filter ? { filter } : {}) };
    state("busy", "reading");
    try {
      const page = target === null ? await this.page(parts, offset) : await this.hits(parts, target, offset ?? 0);
      if (run !== this.run) return;
      if (target === null && page.points.length === 0 && this.offsets.length > 1) {
        // The last point of this page was deleted.
        this.offsets.pop();
        await this.refresh();
        return;
      }
      this.show(page.points, page.next, page.words);
      state("ready", "ready");
    } catch (error) {
      if (run !== this.run) return;
      this.show([], null, "");
      state("failed", "failed");
      problem("search-problem", words(error));
    }
  }

  async page(parts, offset) {
    const [{ points, next_page_offset: next, partial }, found] = await Promise.all([scroll(this.name, { ...parts, offset }), count(this.name, parts.filter)]);
    const first = (this.offsets.length - 1) * parts.limit, range = points.length ? `${first + 1}–${first + points.length} of ` : "";
    return { points, next: next ?? null, words: `${range}${found.count.toLocaleString("en")}${parts.filter ? " that match" : ""}${partial ? ", incomplete: a part of the collection is damaged" : ""}` };
  }

  async hits(parts, target, offset) {
    const using = this.vector.name ? { using: this.vector.name } : {}, started = performance.now();
    const { points, partial } = await query(this.name, { ...parts, ...using, query: target, offset });
    const took = performance.now() - started, next = points.length === parts.limit ? offset + parts.limit : null;
    const order = this.vector.distance === "Euclid" ? "smallest distance" : `highest ${this.vector.distance === "Dot" ? "dot product" : "cosine similarity"}`;
    return { points, next, words: `${points.length ? `${offset + 1}–${offset + points.length}, ` : "none, "}${order} first · ${Math.round(took)} ms${partial ? " · incomplete" : ""}` };
  }

  show(points, next, words) {
    this.following = next;
    enable($("next"), next !== null);
    enable($("back"), this.offsets.length > 1);
    text($("shown"), words);
    for (const { payload } of points) for (const [key] of flat(payload)) this.fields.add(key);
    this.filter.suggest([...this.fields].sort());
    if (!$("facet-key").value && this.fields.size) $("facet-key").value = [...this.fields].sort()[0];
    if (points.length) $("points").replaceChildren(this.table(points));
    else if (words && !this.asked.filter && this.asked.target === null) $("points").replaceChildren(...this.example());
    else $("points").replaceChildren(el("p", { class: "note" }, words ? "No point matches." : ""));
  }

  // Shows an empty collection how points are added.
  example() {
    if (this.isImages) return [el("p", { class: "note" }, "No image yet.")];
    const { name, size } = this.vector, values = `[0.5] * ${size}`, vector = name ? `{${JSON.stringify(name)}: ${values}}` : values;
    const code = `${clientCode(location.origin, this.isLocked)}
client.upsert(${JSON.stringify(this.name)}, [models.PointStruct(id=1, vector=${vector}, payload={"city": "Berlin"})])`;
    const shown = el("pre", {}, el("code", { id: "points-code" }, code));
    return [el("p", {}, "No point yet. A client of Qdrant adds some:"), el("div", { class: "snippet" }, shown, copyButton(() => code, "the example"))];
  }

  table(points) {
    const scored = points[0].score !== undefined;
    const head = ["Id", ...(scored ? ["Score"] : []), "Payload", "Vector", ""].map((name) => el("th", { scope: "col", ...(name === "Score" ? { class: "number" } : {}) }, name || el("span", { class: "hidden" }, "Actions")));
    const rows = points.map((point) => {
      const row = el("tr", { "data-point": String(point.id) },
        el("th", { scope: "row" }, el("button", { type: "button", class: `quiet small open${typeof point.id === "string" ? " long" : ""}`, "aria-label": `Show point ${point.id}` }, String(point.id))),
        ...(scored ? [el("td", { class: "number score" }, point.score.toFixed(4))] : []),
        el("td", { class: "payload" }, ...fieldsOf(point.payload)),
        el("td", { class: "vector" }, el("code", {}, point.vector ? shortVector(point.vector, this.vector.name) : "–")),
        el("td", { class: "number" }, el("button", { type: "button", class: "small similar", "aria-label": `Find points similar to ${point.id}` }, "Similar")));
      row.point = point;
      return row;
    });
    return el("table", { class: "points" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
  }

  // ---- counts of values

  async facet() {
    const key = $("facet-key").value.trim(), run = this.facetRun += 1;
    problem("facet-problem", key ? null : "Name a field of the payload.");
    $("facet-hits").replaceChildren();
    if (!key) return;
    try {
      const filter = this.filter.read(), { hits } = await facet(this.name, { key, limit: FACET_HITS_MAX, ...(filter ? { filter } : {}) });
      if (run !== this.facetRun) return;
      this.facetKey = key;
      if (hits.length === 0) problem("facet-problem", `No point has a text, a whole number or a truth value at "${key}".`);
      const most = hits[0]?.count ?? 1;
      $("facet-hits").replaceChildren(...hits.map(({ value, count }) => {
        const words = String(value), bar = el("meter", { min: "0", max: String(most), value: String(count), "aria-hidden": "true" });
        const button = el("button", { type: "button", class: "quiet", title: "Show only these", value: toJson(value) }, el("span", { class: "name" }, words), el("span", { class: "note" }, count.toLocaleString("en")), bar);
        return el("li", {}, button);
      }));
    } catch (error) {
      if (run === this.facetRun && !(error instanceof WrongCondition)) problem("facet-problem", words(error));
    }
  }
}

// Returns the fields of a payload as [path, value], those of objects in it by their paths. Names and titles come first.
function flat(payload) {
  const entries = Object.entries(payload ?? {}).flatMap(([key, value]) => {
    const isObject = value !== null && typeof value === "object" && !Array.isArray(value) && !isAsWritten(value);
    return isObject ? Object.entries(value).map(([name, inner]) => [`${key}.${name}`, inner]) : [[key, value]];
  });
  const isTitle = ([key]) => /(^|\.)(name|title)$/i.test(key);
  return [...entries.filter(isTitle), ...entries.filter((entry) => !isTitle(entry))];
}

// Returns a payload in little space.
function fieldsOf(payload) {
  const entries = flat(payload);
  if (entries.length === 0) return [el("span", { class: "note" }, "empty")];
  const shown = entries.slice(0, FIELDS_MAX).map(([key, value]) => {
    const words = typeof value === "string" ? value : toJson(value);
    const cut = words.length > VALUE_CHARACTERS_MAX ? `${words.slice(0, VALUE_CHARACTERS_MAX)}…` : words;
    return el("span", { class: "field" }, el("span", { class: "note" }, key), ` ${cut}`);
  });
  return entries.length > FIELDS_MAX ? [...shown, el("span", { class: "note" }, `${entries.length - FIELDS_MAX} more`)] : shown;
}
