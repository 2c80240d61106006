// Duplicates of a collection on the page for images: starts, watches and cancels the search, and shows its groups.

import { get, path, post, readLines, remove } from "./page-images-api.js";
import { points } from "./page-images-match.js";
import { Refused, request, words } from "./page-api.js";
import { count, duration, el, text } from "./page-dom.js";

const TILE_PIXELS = 256;
const POLL_MS = 1000;
// Time after a read that failed, until the panel is closed.
const RETRY_MS = 3000;
// Most groups shown, and most images of one.
const GROUPS_MAX = 100;
const IMAGES_MAX = 24;

const several = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const $ = (id) => document.getElementById(id);

export class Duplicates {
  // `deleted` is called with an image to delete; it resolves to true if the image is gone.
  constructor({ deleted }) {
    Object.assign(this, { deleted, collection: null, timer: null });
    $("duplicates-start").addEventListener("click", () => this.act(() => this.start()));
    $("duplicates-cancel").addEventListener("click", () => this.act(() => remove(this.where())));
    $("duplicates-close").addEventListener("click", () => this.close());
  }

  where(rest = "") { return path(this.collection, `/duplicates${rest}`); }

  // Shows the panel with the last result of a collection.
  async open(collection) {
    this.collection = collection;
    $("duplicates").hidden = false;
    $("duplicates-groups").replaceChildren();
    $("duplicates").scrollIntoView({ block: "start" });
    $("duplicates-start").focus();
    await this.look();
  }

  close() {
    clearTimeout(this.timer);
    this.collection = null;
    $("duplicates").hidden = true;
  }

  async start() {
    const threshold = $("duplicates-threshold").value;
    await post(this.where(), threshold === "" ? {} : { threshold: Number(threshold) });
    $("duplicates-groups").replaceChildren();
  }

  async act(work) {
    this.problem(null);
    try {
      await work();
    } catch (error) {
      this.problem(words(error));
      return;
    }
    await this.look();
  }

  problem(words) {
    $("duplicates-problem").hidden = words === null;
    text($("duplicates-problem"), words ?? "");
  }

  // Shows the progress, and the groups once the search has ended.
  async look() {
    clearTimeout(this.timer);
    const collection = this.collection;
    let progress = null;
    try {
      progress = await get(this.where());
    } catch (error) {
      if (collection === null || collection !== this.collection) return;
      if (!(error instanceof Refused) || error.status !== 404) {
        // The search may continue on the server, so what is shown stays.
        this.problem(words(error));
        this.timer = setTimeout(() => this.look(), RETRY_MS);
        return;
      }
    }
    if (collection === null || collection !== this.collection) return;
    this.problem(progress?.error ?? null);
    const running = progress?.state === "running";
    $("duplicates-progress").hidden = !running;
    $("duplicates-cancel").hidden = !running;
    $("duplicates-start").hidden = running;
    text($("duplicates-start"), ["interrupted", "cancelled"].includes(progress?.state) ? "Continue" : "Start");
    text($("duplicates-state"), progress ? describe(progress) : "Compares every image with its nearest ones, in the background.");
    if (running) {
      const bar = $("duplicates-progress");
      bar.max = Math.max(progress.total ?? 0, progress.done, 1);
      bar.value = progress.done;
      this.timer = setTimeout(() => this.look(), POLL_MS);
    } else if (progress) await this.show(collection);
  }

  async show(collection) {
    const groups = [];
    let summary = { groups: 0, images: 0 };
    try {
      const answer = await request("GET", this.where("/groups"));
      await readLines(answer, (line) => {
        if (line.summary) summary = line.summary;
        else if (groups.length < GROUPS_MAX) groups.push(line);
      });
    } catch (error) {
      this.problem(words(error));
      return;
    }
    if (collection !== this.collection) return;
    const more = summary.groups > groups.length ? `, the largest ${groups.length} shown` : "";
    text($("duplicates-count"), summary.groups ? `${several(summary.groups, "group")} with ${several(summary.images, "image")}${more}` : "No duplicates were found.");
    $("duplicates-groups").replaceChildren(...groups.map((group) => this.group(group)));
  }

  group({ images, pairs }) {
    const best = new Map();
    for (const { a, b, similarity, score } of pairs) {
      for (const id of [a, b]) {
        const known = best.get(id);
        if (!known || (score ?? 0) > (known.score ?? 0)) best.set(id, { similarity, score });
      }
    }
    const tiles = images.slice(0, IMAGES_MAX).map((image) => this.tile(image, best.get(image.id)));
    const rest = images.length > IMAGES_MAX ? [el("p", { class: "note" }, `and ${images.length - IMAGES_MAX} more`)] : [];
    return el("li", {}, el("ol", { class: "tiles", "aria-label": `Group of ${images.length} images` }, ...tiles), ...rest);
  }

  tile(image, pair) {
    const name = image.name || String(image.id);
    const preview = el("img", { alt: "", loading: "lazy", decoding: "async", src: path(this.collection, `/${image.id}/thumbnail`, { size: TILE_PIXELS }) });
    const facts = pair ? `similarity ${pair.similarity.toFixed(2)}${pair.score === null ? "" : ` · score ${points(pair.score)}`}` : "";
    const drop = el("button", { class: "small bad", "aria-label": `Delete ${name}` }, "Delete");
    const item = el("li", { "data-id": image.id }, preview, el("p", { class: "name", title: name }, name), el("p", { class: "note" }, facts), el("div", { class: "buttons" }, drop));
    drop.addEventListener("click", async () => {
      if (await this.deleted({ ...image, name })) item.remove();
    });
    return item;
  }
}

function describe({ state, done, total, pairs, seconds }) {
  const work = `${count(done)} of ${count(Math.max(total, done))} images compared, ${several(pairs, "pair")}`;
  return `${state[0].toUpperCase()}${state.slice(1)}: ${work}${seconds ? `, ${duration(seconds)}` : ""}`;
}
