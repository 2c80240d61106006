// Adds images to a collection, several at a time, and lists the result of each.

import { path, put, putZip } from "./page-images-api.js";
import { el, text } from "./page-dom.js";

const CONNECTIONS = 4;
// Number of images from which the server adds them in the background, so that searches stay fast.
const BULK_MIN = 16;
// Most listed images. Beyond it only failures are listed.
const LISTED_MAX = 100;
// Most files of one drop. The command line handles more, and can be resumed.
export const FILES_MAX = 20000;

const WORDS = { waiting: "waiting", sending: "being sent", added: "added", present: "already there", failed: "failed" };

export class Adding {
  // `done` is called after each drop, and `changed` when images were added meanwhile.
  constructor(nodes, { done, changed }) {
    Object.assign(this, { nodes, done, changed, work: null });
    nodes.halt.addEventListener("click", () => this.work?.stop.abort());
  }

  get busy() { return this.work !== null; }

  async add(files, collection, kind) {
    if (this.busy || files.length === 0) return;
    const zips = files.filter((file) => file.name.toLowerCase().endsWith(".zip"));
    const background = files.length >= BULK_MIN || zips.length > 0 ? "1" : null;
    const work = this.work = { stop: new AbortController(), counts: { added: 0, present: 0, failed: 0 }, ended: 0, total: files.length, listed: 0 };
    this.nodes.list.replaceChildren();
    this.nodes.unlisted.hidden = true;
    this.nodes.halt.hidden = false;
    this.progress();
    const queue = [...files];
    // The first file is sent alone, because it creates the collection if there is none.
    if (queue.length) await this.one(queue.shift(), { collection, kind, background });
    await Promise.all(Array.from({ length: CONNECTIONS }, async () => {
      while (queue.length && !work.stop.signal.aborted) await this.one(queue.shift(), { collection, kind, background });
    }));
    this.work = null;
    this.nodes.halt.hidden = true;
    this.nodes.progress.hidden = true;
    const stopped = work.stop.signal.aborted ? ", stopped" : "";
    this.done(`${work.counts.added} added, ${work.counts.present} already there${work.counts.failed ? `, ${work.counts.failed} failed` : ""}${stopped}`, work.counts);
  }

  async one(file, { collection, kind, background }) {
    const { work } = this, name = file.place ?? file.name, row = this.row(name), stop = work.stop.signal;
    this.mark(row, name, "sending");
    try {
      if (file.name.toLowerCase().endsWith(".zip")) {
        await putZip(path(collection, "", { kind, background }), file, (entry) => this.inside(name, entry), stop);
        this.mark(row, name, "added", "read");
      } else {
        const answer = await put(path(collection, "", { name, kind, background }), file, stop);
        const prints = answer.prints ?? [], refused = prints.filter((print) => print.status === "failed");
        const status = refused.length ? "failed" : answer.status;
        work.counts[status] += 1;
        this.mark(row, name, status, refused.length ? `the server refused ${refused.length} of its ${prints.length} prints: ${refused[0].error}` : undefined);
      }
    } catch (error) {
      if (error.name !== "AbortError") work.counts.failed += 1;
      // The session has ended, so the server refuses the others, too. The page leads to the login.
      if (error.status === 401) work.stop.abort();
      this.mark(row, name, "failed", error.name === "AbortError" ? "stopped" : error.message);
    }
    work.ended += 1;
    this.progress();
    this.changed();
  }

  // An image in a zip.
  inside(zip, entry) {
    if (!entry.status) return;
    this.work.counts[entry.status] += 1;
    const name = `${zip}: ${entry.name}`;
    if (this.work.listed < LISTED_MAX || entry.status === "failed") this.mark(this.row(name), name, entry.status, entry.error);
    this.progress();
  }

  row(name) {
    if (this.work.listed++ >= LISTED_MAX) {
      this.nodes.unlisted.hidden = false;
      text(this.nodes.unlisted, `${this.work.listed - LISTED_MAX} more images are counted, and listed only if they fail.`);
      return null;
    }
    const row = el("li", {}, el("span", { class: "name" }, name), el("span", { class: "what" }));
    this.nodes.list.append(row);
    return row;
  }

  mark(row, name, state, words) {
    if (!row && state === "failed") row = el("li", {}, el("span", { class: "name" }, name), el("span", { class: "what" }));
    if (!row) return;
    // Failures come first, where they are visible.
    if (state === "failed") this.nodes.list.prepend(row);
    row.dataset.state = state;
    text(row.querySelector(".what"), words ?? WORDS[state]);
  }

  progress() {
    const { work, nodes } = this, bar = nodes.progress.querySelector("progress");
    nodes.progress.hidden = false;
    bar.value = work.ended / Math.max(1, work.total);
    const { added, present, failed } = work.counts;
    text(nodes.progress.querySelector("span"), `${work.ended} of ${work.total} files; ${added} added, ${present} there already, ${failed} failed`);
  }
}

// Returns every file of a drop, also in folders, with its path in the folder as `place`; null if there are too many.
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  const files = [], folders = entries;
  while (folders.length) {
    if (files.length > FILES_MAX) return null;
    const entry = folders.shift();
    if (entry.isFile) {
      const file = await new Promise((give, fail) => entry.file(give, fail)).catch(() => null);
      if (file && !file.name.startsWith(".")) files.push(Object.assign(file, { place: entry.fullPath.slice(1) }));
      continue;
    }
    const reader = entry.createReader();
    // A reader returns a part at a time, and an empty one at the end.
    for (let some; (some = await new Promise((give) => reader.readEntries(give, () => give([])))).length;) folders.push(...some);
  }
  return files.length > FILES_MAX ? null : files;
}
