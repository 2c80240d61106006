// The filter of the page for images: by name, by a field of the payload, or as JSON of Qdrant.

import { fromJson } from "./page-api.js";
import { fieldValue } from "./page-vectors-filter.js";
import { text } from "./page-dom.js";

const NAME_KEY = "image.name";

const $ = (id) => document.getElementById(id);

export class ImageFilter {
  // `applied` is called after the filter changed. `value` is the filter as JSON of Qdrant, or null.
  constructor(applied) {
    Object.assign(this, { applied, value: null });
    $("where").addEventListener("change", () => {
      $("field-place").hidden = $("where").value !== "field";
      $("value").placeholder = $("where").value === "json" ? '{"must":[{"key":"album","match":{"value":"holidays"}}]}' : "";
    });
    $("options").addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply();
    });
    $("unfilter").addEventListener("click", () => {
      if ($("unfilter").getAttribute("aria-disabled") === "true") return;
      $("value").value = "";
      this.apply();
    });
  }

  get isOpen() { return !$("options").hidden; }

  apply() {
    try {
      this.value = wanted($("where").value, $("field").value.trim(), $("value").value.trim());
    } catch (error) {
      this.fail(error instanceof SyntaxError ? `The filter is not JSON: ${error.message}` : error.message);
      return;
    }
    this.fail(null);
    $("unfilter").setAttribute("aria-disabled", String(this.value === null));
    this.applied();
  }

  fail(words) {
    $("filter-problem").hidden = !words;
    text($("filter-problem"), words ?? "");
  }
}

// Returns the fields as a filter; null if they are empty.
function wanted(where, field, value) {
  if (!value) return null;
  if (where === "json") return fromJson(value);
  if (where === "name") return { must: [{ key: NAME_KEY, match: { value } }] };
  if (!field) throw new Error("Name the field, for example album.");
  return { must: [{ key: field, match: { value: fieldValue(value) } }] };
}
