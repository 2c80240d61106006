// The dialog of one point: payload, vector, and what can be done with it.

import { dropPoint, point, setPayload } from "./page-vectors-api.js";
import { toJson, words } from "./page-api.js";
import { menu } from "./page-menu.js";
import { ask, copyButton, message } from "./page-shell.js";
import { el, text } from "./page-dom.js";

const $ = (id) => document.getElementById(id);

export class PointDetails {
  // `similar` is called with an id, and `changed` after a change.
  constructor(name, { isImages, similar, changed }) {
    Object.assign(this, { name, isImages, similar, changed, point: null, reading: 0 });
    $("details-close").addEventListener("click", () => $("details").close());
    $("vector-copy").append(copyButton(() => toJson(this.values()), "the vector"));
    $("edit-cancel").addEventListener("click", () => this.edit(false));
    $("edit").addEventListener("submit", (event) => {
      event.preventDefault();
      this.save();
    });
  }

  values() {
    const { vector } = this.point;
    return Array.isArray(vector) ? vector : Object.values(vector ?? {})[0] ?? [];
  }

  async open(id) {
    const reading = this.reading += 1;
    let found;
    try {
      found = await point(this.name, id);
    } catch (error) {
      message(`Point ${id} was not read: ${words(error)}`, true);
      return;
    }
    // Another point was opened meanwhile, and may be edited.
    if (reading !== this.reading) return;
    this.point = found;
    text($("details-title"), `Point ${id}`);
    this.draw();
    this.edit(false);
    if (!$("details").open) $("details").showModal();
  }

  draw() {
    const { id, payload } = this.point, values = this.values();
    text($("payload"), toJson(payload ?? {}, 2));
    text($("vector-note"), `of ${values.length} values`);
    text($("vector-values"), `[${values.join(", ")}]`);
    const similar = el("button", { type: "button", class: "primary small", autofocus: "" }, "Find similar");
    similar.addEventListener("click", () => {
      $("details").close();
      this.similar(id);
    });
    const change = el("button", { type: "button", class: "small", id: "edit-start" }, "Edit payload");
    change.addEventListener("click", () => this.edit(true));
    const more = menu(`point ${id}`, [{ words: "Delete point…", danger: true, act: () => this.remove() }]);
    $("details-actions").replaceChildren(similar, ...(this.isImages ? [] : [change, more]));
    $("details-note").hidden = !this.isImages;
    text($("details-note"), this.isImages ? "This point belongs to an image. Change or delete it on the page Images." : "");
  }

  edit(on) {
    $("edit").hidden = !on;
    $("payload").hidden = on;
    this.fail(null);
    if (!on) return;
    $("edit-text").value = toJson(this.point.payload ?? {}, 2);
    $("edit-text").focus();
  }

  fail(words) {
    $("edit-problem").hidden = !words;
    text($("edit-problem"), words ?? "");
    $("edit-text").setAttribute("aria-invalid", String(Boolean(words)));
    if (words) $("edit-text").focus();
  }

  // Returns false if the dialog was closed or shows another point: an answer must not open or change it then.
  shows(id) {
    return $("details").open && this.point.id === id;
  }

  async save() {
    const edited = $("edit-text").value, { id } = this.point;
    let payload;
    try {
      payload = JSON.parse(edited);
    } catch (error) {
      this.fail(`This is not JSON: ${error.message}`);
      return;
    }
    if (payload === null || typeof payload !== "object" || Array.isArray(payload)) {
      this.fail('A payload is an object, such as {"city": "Berlin"}.');
      return;
    }
    try {
      await setPayload(this.name, id, edited);
    } catch (error) {
      if (this.shows(id)) this.fail(words(error)); else message(`The payload of point ${id} was not saved: ${words(error)}`, true);
      return;
    }
    message(`The payload of point ${id} is saved.`);
    if (this.shows(id)) await this.open(id);
    this.changed();
  }

  async remove() {
    const { id } = this.point;
    if (!(await ask({ title: `Delete point ${id}?`, words: "Its vector and payload are removed. This cannot be undone.", yes: "Delete" }))) return;
    try {
      await dropPoint(this.name, id);
    } catch (error) {
      message(`Point ${id} was not deleted: ${words(error)}`, true);
      return;
    }
    $("details").close();
    message(`Point ${id} is deleted.`);
    this.changed();
  }
}
