// Shows the outputs of a run: names, shapes and values.

import { copyButton } from "./page-shell.js";
import { shapeWords, valueWords } from "./page-try-values.js";
import { el } from "./page-dom.js";

// Most values of a list, and most lists of a list, that are shown.
const INNER_MAX = 12, OUTER_MAX = 6;
const LARGEST = 5;
// Fewest values of a vector whose largest are listed.
const VECTOR_MIN = 8;

// Returns the values of a shape as nested lists, with the number of those that are left out.
function nested(shape, data) {
  let at = 0;
  const skip = (count) => { at += count; };
  const write = (rest, indent) => {
    if (rest.length === 0) return valueWords(data[at++]);
    const [size, ...inner] = rest, each = inner.reduce((product, one) => product * one, 1);
    const most = inner.length === 0 ? INNER_MAX : OUTER_MAX, shown = Math.min(size, most);
    const parts = Array.from({ length: shown }, () => write(inner, `${indent} `));
    skip((size - shown) * each);
    if (size > shown) parts.push(`… ${size - shown} more`);
    return `[${parts.join(inner.length === 0 ? ", " : `,\n${indent} `)}]`;
  };
  return write(shape, "");
}

// Returns a table of the largest values of a vector, with a bar for each.
function largest(data) {
  const order = [...data.keys()].sort((a, b) => data[b] - data[a]).slice(0, LARGEST);
  const low = Math.min(0, ...order.map((at) => data[at])), span = data[order[0]] - low || 1;
  const rows = order.map((at) => {
    const meter = el("meter", { min: "0", max: "1", value: String(Math.max(0, (data[at] - low) / span)), "aria-hidden": "true" });
    return el("tr", {}, el("th", { scope: "row", class: "number" }, String(at)), el("td", { class: "number" }, valueWords(data[at])), el("td", {}, meter));
  });
  const head = el("tr", {}, el("th", { scope: "col", class: "number" }, "index"), el("th", { scope: "col", class: "number" }, "value"), el("th", { scope: "col" }));
  return el("table", { class: "largest" }, el("caption", {}, "Largest values"), el("thead", {}, head), el("tbody", {}, ...rows));
}

function isVector({ shape, data, datatype }) {
  const wide = shape.filter((size) => size > 1);
  return datatype !== "BYTES" && datatype !== "BOOL" && wide.length === 1 && data.length >= VECTOR_MIN && data.every((value) => typeof value === "number");
}

export function outputNodes(outputs) {
  return outputs.map((output) => {
    const { name, datatype, shape, data } = output;
    const head = el("div", { class: "input-head" },
      el("h3", {}, el("code", {}, name), el("span", { class: "note" }, ` ${datatype} ${shapeWords(shape)}`)),
      copyButton(() => JSON.stringify(data), `the values of ${name}`));
    const values = el("pre", { class: "values", tabindex: "0", "aria-label": `Values of ${name}` }, nested(shape, data));
    return el("section", { class: "output", "data-output": name }, head, ...(isVector(output) ? [largest(data)] : []), values);
  });
}
