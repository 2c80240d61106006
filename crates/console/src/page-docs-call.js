// One call of the page of the API: its parameters, its body, its answers, and a form that sends it.

import { asWritten, toJson, unanswered, words } from "./page-api.js";
import { el } from "./page-dom.js";

const NESTING_MAX = 8;
const SHOWN_MAX = 100_000;

// Follows the references of a node.
function resolve(document, node) {
  while (node?.$ref) node = node.$ref.slice(2).split("/").reduce((at, key) => at[key], document);
  return node ?? {};
}

// Writes a schema as commented JSON.
function shape(document, schema, indent = "", nesting = 0) {
  const resolved = resolve(document, schema);
  const inner = `${indent}  `;
  const next = (part) => shape(document, part, inner, nesting + 1);
  if (nesting > NESTING_MAX) return "…";
  if ("const" in resolved) return JSON.stringify(resolved.const);
  if (resolved.enum) return resolved.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (resolved.properties) {
    const required = resolved.required ?? [];
    const lines = Object.entries(resolved.properties).map(([name, part]) => {
      const about = part.description ?? resolve(document, part).description;
      const optional = required.includes(name) ? "" : "?";
      return `${inner}${name}${optional}: ${next(part)}${about ? `  // ${about}` : ""}`;
    });
    return `{\n${lines.join("\n")}\n${indent}}`;
  }
  const choices = resolved.oneOf ?? resolved.anyOf;
  if (choices) return choices.map((part) => shape(document, part, indent, nesting + 1)).join(" | ");
  if (resolved.prefixItems) return `[${resolved.prefixItems.map(next).join(", ")}]`;
  if (resolved.type === "array") return `[${resolved.items ? shape(document, resolved.items, indent, nesting + 1) : "any"}, …]`;
  if (resolved.additionalProperties) return `{ NAME: ${next(resolved.additionalProperties)} }`;
  const types = [resolved.type ?? "any"].flat().join(" | ");
  return resolved.format ? `${types} (${resolved.format})` : types;
}

function field(document, parameter) {
  const schema = resolve(document, parameter.schema);
  const label = `${parameter.name} in ${parameter.in}`;
  if (schema.enum) {
    const options = [...(parameter.required ? [] : [""]), ...schema.enum];
    return el("select", { "aria-label": label }, ...options.map((value) => el("option", { value }, value || "–")));
  }
  const input = el("input", { "aria-label": label, placeholder: schema.default ?? "" });
  if (parameter.required) input.value = parameter.example ?? "";
  return input;
}

function parameterTable(document, fields) {
  const rows = fields.map(({ parameter, input }) => el("tr", {},
    el("td", {}, el("code", parameter.required ? { class: "required" } : {}, parameter.name), ` ${parameter.in}`),
    el("td", {}, input),
    el("td", {}, parameter.description ?? "")));
  return el("table", { class: "parameters" }, el("tbody", {}, ...rows));
}

// Builds the editor of the body: text for JSON, a file for everything else.
function bodyEditor(document, request, redraw) {
  const types = Object.entries(request.content);
  const type = el("select", { "aria-label": "Type of the body" }, ...types.map(([name]) => el("option", { value: name }, name)));
  const text = el("textarea", { "aria-label": "Body", rows: 8, spellcheck: "false" });
  const file = el("input", { type: "file", "aria-label": "File" });
  const schema = el("pre", { class: "schema" });
  const isText = () => type.value === "application/json";
  const show = () => {
    const { schema: described, example } = request.content[type.value];
    text.hidden = !isText();
    file.hidden = isText();
    text.value = example === undefined ? "{}" : JSON.stringify(example, null, 1);
    text.rows = Math.min(16, text.value.split("\n").length + 1);
    schema.textContent = shape(document, described ?? {});
    redraw();
  };
  type.addEventListener("change", show);
  for (const input of [text, file]) input.addEventListener("input", redraw);
  const node = el("div", {}, el("h3", {}, "Body"), type, text, file,
    el("details", {}, el("summary", {}, "Schema of the body"), schema));
  return {
    node, show,
    read() {
      if (isText()) return { type: type.value, body: text.value };
      const chosen = file.files[0];
      if (!chosen) return {};
      // A type with a star is a range; the file knows its own.
      return { type: type.value.includes("*") ? chosen.type : type.value, body: chosen, file: chosen.name };
    },
  };
}

function answers(document, responses) {
  const list = el("dl", { class: "statuses" });
  for (const [status, reference] of Object.entries(responses)) {
    const response = resolve(document, reference);
    const about = el("dd", {}, response.description);
    for (const [type, { schema, example }] of Object.entries(response.content ?? {})) {
      if (!schema) continue;
      const shown = [el("pre", { class: "schema" }, shape(document, schema))];
      if (example !== undefined) shown.push(el("pre", { class: "schema" }, JSON.stringify(example, null, 1)));
      about.append(el("details", {}, el("summary", {}, type), ...shown));
    }
    list.append(el("dt", {}, status), about);
  }
  return el("div", {}, el("h3", {}, "Answers"), list);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl({ method, url, headers, sent }) {
  const parts = ["curl", ...(method === "GET" ? [] : ["-X", method]), quoted(location.origin + url)];
  for (const [name, value] of Object.entries(headers)) {
    parts.push("-H", quoted(`${name}: ${name === "api-key" ? "KEY" : value}`));
  }
  if (sent.file) parts.push("--data-binary", quoted(`@${sent.file}`));
  else if (sent.body !== undefined) parts.push("-d", quoted(sent.body));
  return parts.join(" ");
}

class WrongHeader extends Error {}

// Returns headers for a request. Throws `WrongHeader` if the browser cannot send one.
function checked(headers) {
  for (const entry of Object.entries(headers)) {
    try {
      new Headers([entry]);
    } catch {
      throw new WrongHeader(`The value of ${entry[0]} has a character that HTTP headers cannot have. Type it instead of pasting it.`);
    }
  }
  return headers;
}

async function show(result, answer, started) {
  const took = `${(performance.now() - started).toFixed(0)} ms`;
  const type = answer.headers.get("content-type") ?? "";
  const head = el("p", { class: "status" }, `${answer.status} ${answer.statusText} · ${took} · ${type}`);
  if (type.startsWith("image/")) {
    const image = el("img", { alt: "The image of the answer", src: URL.createObjectURL(await answer.blob()) });
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    result.replaceChildren(head, image);
    return;
  }
  let text = await answer.text();
  if (type.startsWith("application/json")) {
    try {
      // Numbers of 64 bits keep their digits.
      text = toJson(asWritten(text), 1);
    } catch { /* It is shown as it came. */ }
  }
  const cut = text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}\n… ${text.length - SHOWN_MAX} more characters` : text;
  result.replaceChildren(head, el("pre", {}, cut));
}

// Draws the call into `node`.
export function draw(node, document, operation) {
  const command = el("pre", { class: "curl" });
  const result = el("div", { class: "result", role: "status" });
  const button = el("button", { class: "send" }, "Send");
  const fields = operation.parameters.map((reference) => {
    const parameter = resolve(document, reference);
    return { parameter, input: field(document, parameter) };
  });
  let editor = null;

  function request() {
    const headers = {};
    const query = new URLSearchParams();
    let url = operation.path;
    for (const { parameter: { name, in: place }, input: { value } } of fields) {
      if (place === "path") url = url.replace(`{${name}}`, encodeURIComponent(value));
      else if (value !== "" && place === "query") query.set(name, value);
      else if (value !== "" && place === "header") headers[name] = value;
    }
    const sent = editor?.read() ?? {};
    if (sent.type) headers["content-type"] = sent.type;
    const key = globalThis.document.getElementById("key").value;
    if (key) headers["api-key"] = key;
    return { method: operation.method.toUpperCase(), url: query.size ? `${url}?${query}` : url, headers, sent };
  }

  const redraw = () => { command.textContent = curl(request()); };
  if (operation.requestBody) editor = bodyEditor(document, resolve(document, operation.requestBody), redraw);
  for (const { input } of fields) input.addEventListener("input", redraw);

  globalThis.document.getElementById("key").addEventListener("input", redraw);

  button.addEventListener("click", async () => {
    // A button that is disabled loses the focus.
    if (button.getAttribute("aria-disabled") === "true") return;
    redraw();
    const { method, url, headers, sent } = request();
    button.setAttribute("aria-disabled", "true");
    const started = performance.now();
    try {
      await show(result, await fetch(url, { method, headers: checked(headers), body: sent.body }), started);
    } catch (error) {
      const why = error instanceof WrongHeader ? error : await unanswered(sent.body);
      result.replaceChildren(el("p", { class: "problem" }, words(why)));
    } finally {
      button.setAttribute("aria-disabled", "false");
    }
  });

  if (operation.description) node.append(el("p", {}, operation.description));
  if (fields.length) node.append(el("div", {}, el("h3", {}, "Parameters"), parameterTable(document, fields)));
  if (editor) node.append(editor.node);
  node.append(el("div", { class: "sending" }, button), command, result, answers(document, operation.responses));
  editor?.show();
  redraw();
}
