// A search on the page for images: runs it, splits its results into the same image and similar ones, shows the match.

import { toJson } from "./page-api.js";
import { path, post } from "./page-images-api.js";
import { Match, points } from "./page-images-match.js";
import { count, el, text } from "./page-dom.js";

const TILE_PIXELS = 256;
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

// What matched, by the view of the query.
const VERDICTS = { mirrored: "same image, mirrored", part: "part of the query" };

const $ = (id) => document.getElementById(id);

export class Search {
  // `began` and `ended` are called around each search, `failed` with its error.
  constructor({ began, ended, failed }) {
    Object.assign(this, { began, ended, failed, match: new Match($("match")), query: null, results: [], running: null, collection: null });
    $("results").addEventListener("click", (event) => {
      const item = event.target.closest("li");
      if (item) this.land(item);
    });
    $("results").addEventListener("keydown", (event) => this.step(event));
    $("close").addEventListener("click", () => {
      this.close();
      $("query").focus();
    });
  }

  get busy() { return this.running !== null; }

  // Searches by a file or by an image of the collection. `wanted` is {file or id, name, address, width, height}.
  async run(collection, wanted, filter) {
    this.running?.abort();
    const work = this.running = new AbortController();
    if (this.query?.address && this.query !== wanted) URL.revokeObjectURL(this.query.address);
    Object.assign(this, { query: wanted, collection });
    this.began();
    const where = path(collection, "/search", { k: $("count").value, explain: 1, filter: filter && toJson(filter) });
    try {
      const answer = await post(where, wanted.file ?? { id: wanted.id }, work.signal);
      if (this.running !== work) return;
      Object.assign(wanted, { width: answer.query?.width ?? wanted.width, height: answer.query?.height ?? wanted.height });
      this.present(answer);
    } catch (error) {
      if (this.running !== work) return;
      // The old results belong to another search.
      this.running = null;
      this.hide();
      this.failed(error);
      return;
    }
    this.running = null;
    this.ended();
  }

  present(answer) {
    this.results = answer.results;
    // An image that was added without a name has an empty one.
    for (const result of this.results) result.name ||= result.id;
    const same = this.results.filter(({ accepted }) => accepted), similar = this.results.filter(({ accepted }) => !accepted);
    $("found").hidden = false;
    $("again").hidden = true;
    text($("found-title"), `Results for ${this.query.name}`);
    text($("took"), took(answer));
    $("same-place").hidden = this.results.length === 0;
    text($("same-title"), same.length ? `Same image (${same.length})` : "No image is the same.");
    $("same").replaceChildren(...same.map((result) => this.tile(result)));
    $("similar-place").hidden = similar.length === 0;
    text($("similar-title"), `Similar (${similar.length})`);
    $("similar").replaceChildren(...similar.map((result) => this.tile(result)));
    $("similar-place").open = same.length === 0;
    $("match").hidden = this.results.length === 0;
    if (this.results.length) this.land(this.items()[0], false);
    else {
      $("same-place").hidden = false;
      text($("same-title"), "Nothing was found.");
    }
    $("found").scrollIntoView({ block: "start" });
  }

  tile(result) {
    const preview = el("img", { alt: "", loading: "lazy", decoding: "async", src: path(this.collection, `/${result.id}/thumbnail`, { size: TILE_PIXELS }) });
    const verdict = el("span", { class: "verdict", "data-accepted": String(result.accepted) }, result.accepted ? VERDICTS[result.view?.kind] ?? "same image" : "similar");
    const numbers = el("span", { class: "note" }, result.accepted ? `score ${points(result.score)}` : `similarity ${result.coarse.toFixed(2)}`);
    const item = el("li", { "data-id": result.id }, el("button", { class: "result", tabindex: "-1" }, preview, el("span", { class: "name" }, result.name), verdict, numbers));
    item.result = result;
    return item;
  }

  items() { return [...$("results").querySelectorAll("li")]; }

  land(item, focus = true) {
    for (const other of this.items()) {
      const button = other.firstElementChild, here = other === item;
      button.setAttribute("tabindex", here ? "0" : "-1");
      if (here) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    }
    if ($("similar").contains(item)) $("similar-place").open = true;
    if (focus) item.firstElementChild.focus();
    this.match.show(this.collection, this.query, item.result, this.query.name);
  }

  step(event) {
    const step = STEPS[event.key], item = event.target.closest("li");
    if (!step || !item) return;
    event.preventDefault();
    const items = this.items(), to = items[items.indexOf(item) + step];
    if (to) this.land(to);
  }

  // Ends a search and removes its results.
  close() {
    this.running?.abort();
    this.running = null;
    this.hide();
  }

  hide() {
    this.results = [];
    $("found").hidden = true;
  }
}

function took(answer) {
  const stages = Object.entries(answer.stages ?? {}).map(([name, value]) => `${name.replace(/_ms$/, "")} ${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);
  const compared = Number.isInteger(answer.of) ? `compared ${count(answer.compared)} of ${count(answer.of)}` : null;
  return [...stages, compared, answer.partial ? "incomplete: a part of the collection is damaged" : null].filter(Boolean).join(" · ");
}
