// A form that makes a filter of Qdrant: conditions on fields of the payload, and the filter as JSON.

import { IS_EXACT, fromJson, toJson } from "./page-api.js";
import { copyButton } from "./page-shell.js";
import { el, text } from "./page-dom.js";

const CONDITIONS_MAX = 20;
const CLAUSES = [["must", "all of"], ["should", "any of"], ["must_not", "none of"]];
const OPERATORS = [
  ["equals", "is"], ["any", "is one of"], ["except", "is none of"], ["gt", ">"], ["gte", "≥"], ["lt", "<"], ["lte", "≤"],
  ["empty", "is empty"], ["filled", "has a value"], ["ids", "point id is one of"],
];
// Names of the parts of a row for screen readers. The number of the row follows.
const LABELS = {
  clause: "Group of condition", key: "Field of condition", operator: "Operator of condition", value: "Value of condition", drop: "Remove condition",
};
const WITHOUT_VALUE = ["empty", "filled"];
// Largest id that is a number.
const ID_MAX = IS_EXACT ? 2n ** 64n - 1n : BigInt(Number.MAX_SAFE_INTEGER);
const UUID = /^[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}$/i;

// An error of one condition. `field` is the part of the row that is wrong.
export class WrongCondition extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

// Reads the id of a point: a whole number or a UUID.
export function pointId(words) {
  const plain = words.trim();
  if (/^\d+$/.test(plain)) {
    const id = BigInt(plain);
    if (id > ID_MAX) throw new WrongCondition(`${plain} is larger than this page can send; the maximum is ${ID_MAX}.`, "value");
    return id > Number.MAX_SAFE_INTEGER ? id : Number(id);
  }
  if (UUID.test(plain)) return plain;
  throw new WrongCondition(`"${plain}" is not an id: an id is a whole number or a UUID.`, "value");
}

// Reads a value as JSON if it is a number, a truth value or a quoted text, and else as a text.
export function fieldValue(words) {
  const plain = words.trim();
  if (/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(plain) || plain === "true" || plain === "false") return fromJson(plain);
  if (/^".*"$/s.test(plain)) {
    try { return JSON.parse(plain); } catch { /* It is a text with quotes. */ }
  }
  return plain;
}

function listOf(words, read) {
  const parts = words.split(",").map((part) => part.trim()).filter(Boolean);
  if (parts.length === 0) throw new WrongCondition("Give one or more values, with commas between them.", "value");
  return parts.map(read);
}

// Returns the condition of a row {key, operator, value} as JSON of Qdrant.
export function condition({ key, operator, value }) {
  if (operator === "ids") return { has_id: listOf(value, pointId) };
  if (!key) throw new WrongCondition("Name the field, such as city or address.city.", "key");
  if (operator === "empty") return { is_empty: { key } };
  if (operator === "filled") return { must_not: [{ is_empty: { key } }] };
  if (value.trim() === "") throw new WrongCondition('Give a value. "" is the empty text.', "value");
  if (operator === "equals") return { key, match: { value: fieldValue(value) } };
  if (operator === "any" || operator === "except") return { key, match: { [operator]: listOf(value, fieldValue) } };
  const number = fieldValue(value);
  if (typeof number !== "number" && typeof number !== "bigint") throw new WrongCondition(`"${value.trim()}" is not a number, and a range needs one.`, "value");
  return { key, range: { [operator]: number } };
}

// Returns the filter of rows, or null without rows.
export function filterOf(rows) {
  if (rows.length === 0) return null;
  const filter = {};
  for (const row of rows) (filter[row.clause] ??= []).push(condition(row));
  return filter;
}

export class FilterForm {
  // `root` holds the form. `fields` is the list of known fields for suggestions. `changed` is called with each change.
  constructor(root, changed) {
    Object.assign(this, { root, changed, rows: [] });
    this.fields = el("datalist", { id: "known-fields" });
    this.list = el("div", { class: "conditions" });
    this.more = el("button", { type: "button", class: "small" }, "Add condition");
    this.more.addEventListener("click", () => this.add().key.focus());
    this.json = el("pre", { id: "filter-json", tabindex: "0", "aria-label": "The filter as JSON" });
    this.shown = el("details", { class: "filter-json", hidden: "" }, el("summary", {}, "Filter as JSON"),
      el("div", { class: "snippet" }, this.json, copyButton(() => this.json.textContent, "the filter")));
    this.root.append(this.fields, this.list, this.more, this.shown);
  }

  suggest(names) {
    this.fields.replaceChildren(...names.map((name) => el("option", { value: name })));
  }

  add({ clause = "must", key = "", operator = "equals", value = "" } = {}) {
    const choice = (entries, chosen) => {
      const node = el("select", {}, ...entries.map(([name, shown]) => el("option", { value: name }, shown)));
      node.value = chosen;
      return node;
    };
    const row = {
      clause: choice(CLAUSES, clause), key: el("input", { list: "known-fields", autocomplete: "off", spellcheck: "false", placeholder: "field" }),
      operator: choice(OPERATORS, operator), value: el("input", { autocomplete: "off", spellcheck: "false", placeholder: "value" }),
      problem: el("p", { class: "problem", role: "alert", hidden: "" }), drop: el("button", { type: "button", class: "quiet small" }, "×"),
    };
    row.key.value = key;
    row.value.value = value;
    row.node = el("div", { class: "condition" }, row.clause, row.key, row.operator, row.value, row.drop, row.problem);
    row.node.addEventListener("input", () => this.update());
    row.drop.addEventListener("click", () => {
      this.rows = this.rows.filter((other) => other !== row);
      row.node.remove();
      this.more.focus();
      this.update();
      this.changed();
    });
    this.rows.push(row);
    this.list.append(row.node);
    this.update();
    return row;
  }

  values(row) {
    return { clause: row.clause.value, key: row.key.value.trim(), operator: row.operator.value, value: row.value.value };
  }

  update() {
    for (const [at, row] of this.rows.entries()) {
      // A row that was removed changes the numbers of those after it.
      for (const [part, words] of Object.entries(LABELS)) row[part].setAttribute("aria-label", `${words} ${at + 1}`);
      row.key.hidden = row.operator.value === "ids";
      row.value.hidden = WITHOUT_VALUE.includes(row.operator.value);
      row.problem.hidden = true;
    }
    this.more.setAttribute("aria-disabled", String(this.rows.length >= CONDITIONS_MAX));
    this.more.hidden = this.rows.length >= CONDITIONS_MAX;
    this.shown.hidden = this.rows.length === 0;
    try {
      text(this.json, toJson(filterOf(this.rows.map((row) => this.values(row))) ?? {}, 2));
    } catch (error) {
      text(this.json, `// ${error.message}`);
    }
  }

  // Returns the filter, or null without conditions. Throws after an error is shown at its condition.
  read() {
    for (const row of this.rows) {
      try {
        condition(this.values(row));
      } catch (error) {
        text(row.problem, error.message);
        row.problem.hidden = false;
        row[error.field].focus();
        throw error;
      }
    }
    return filterOf(this.rows.map((row) => this.values(row)));
  }
}
