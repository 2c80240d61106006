// The health of a collection: its state, warnings, segments and memory.

import { segments } from "./page-vectors-api.js";
import { words } from "./page-api.js";
import { bytes, el, text } from "./page-dom.js";

const VECTOR_SHOWN_MAX = 4;
// State of a chip, and words, for each status of Qdrant.
const HEALTH = { green: ["ready", "healthy"], yellow: ["warn", "limited"], red: ["failed", "damaged"] };
const OPTIMIZING = ["busy", "optimizing"];
const ERRORS = { flush: "Points were not flushed", merge: "Segments were not merged", disk: "Changes are refused", log: "Changes cannot be written" };

// Returns the first values of a vector.
export function shortVector(vector, name) {
  const values = Array.isArray(vector) ? vector : vector[name] ?? [];
  const shown = values.slice(0, VECTOR_SHOWN_MAX).map((value) => value.toFixed(3)).join(", ");
  return values.length > VECTOR_SHOWN_MAX ? `[${shown}, …]` : `[${shown}]`;
}

// Returns the state of a chip, and words, for a described collection. A limit is shown before work in progress.
export function healthOf({ status, optimizing, optimizer_status: optimizer }) {
  return status === "yellow" && optimizing && optimizer === "ok" ? OPTIMIZING : HEALTH[status];
}

export async function showHealth(name, described) {
  const [style, health] = healthOf(described), chip = document.getElementById("health"), node = document.getElementById("state-details");
  chip.dataset.state = style;
  text(chip, health);
  const warnings = (described.warnings ?? []).map(({ message }) => el("li", {}, message));
  let found;
  try {
    found = await segments(name);
  } catch (error) {
    node.replaceChildren(el("p", { class: "problem" }, words(error)));
    return;
  }
  const errors = Object.entries(found.errors).filter(([, why]) => why).map(([what, why]) => el("p", { class: "problem" }, `${ERRORS[what]}: ${why}`));
  node.replaceChildren(...errors, facts(found, described), memory(found.memory), table(found.segments), ...indexes(described.payload_schema ?? {}),
    ...(warnings.length ? [el("details", { class: "warnings" }, el("summary", {}, several(warnings.length, "note")), el("ul", {}, ...warnings))] : []));
}

function facts(found, described) {
  const number = (value) => value.toLocaleString("en"), entries = [
    ["Points", number(found.points)], ["Not flushed yet", number(found.unflushed_points)],
    ["Segments", number(described.segments_count - 1)], ["Flushes, merges", `${number(found.flushes)}, ${number(found.merges)}`],
    ...(found.damaged_count ? [["Damaged parts", number(found.damaged_count)]] : []),
    ...(found.refused_writes ? [["Refused changes", number(found.refused_writes)]] : []),
  ];
  return el("dl", { class: "health-facts" }, ...entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function memory({ used_bytes: used, limit_bytes: limit, peak_bytes: peak }) {
  const bar = el("meter", { min: "0", max: String(limit), value: String(used), "aria-label": "Memory of all collections" });
  return el("div", { class: "memory" }, el("p", {}, el("span", {}, "Memory of all collections"), el("span", {}, `${bytes(used)} of ${bytes(limit)}`)), bar,
    el("p", { class: "note" }, `maximum since the start: ${bytes(peak)}`));
}

// Returns a table that can be folded. `numbers` are the columns with numbers.
function folded(name, title, columns, numbers, rows) {
  const head = columns.map((column, at) => el("th", { scope: "col", ...(numbers.includes(at) ? { class: "number" } : {}) }, column));
  return el("details", { class: name }, el("summary", {}, title),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows))));
}

const several = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function indexes(schema) {
  const fields = Object.entries(schema);
  if (fields.length === 0) return [];
  const rows = fields.map(([field, { data_type: type, points }]) => el("tr", {}, el("th", { scope: "row" }, field), el("td", {}, type),
    el("td", { class: "number" }, points.toLocaleString("en"))));
  return [folded("indexes", several(fields.length, "declared field"), ["Field", "Type", "Points"], [2], rows)];
}

function table(segments) {
  if (segments.length === 0) return el("p", { class: "note" }, "No segment yet: all points are in memory and in the log.");
  const rows = segments.map(({ name, rows, deleted, bytes: size, open }) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, rows.toLocaleString("en")),
    el("td", { class: "number" }, deleted.toLocaleString("en")), el("td", { class: "number" }, size ? bytes(size) : "–"), el("td", {}, el("span", { class: "state", "data-state": open ? "ready" : "failed" }, open ? "open" : "closed"))));
  return folded("segments", several(segments.length, "segment"), ["Segment", "Rows", "Deleted", "Size", "State"], [1, 2, 3], rows);
}
