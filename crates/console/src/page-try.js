// The page that tries a model: inputs from its metadata, a run over REST, outputs, and the same request as code.

import { InputEditor } from "./page-try-input.js";
import { outputNodes } from "./page-try-outputs.js";
import { byteSize, curl, inferPath, requestText, requests, tritonclient } from "./page-try-snippets.js";
import { parseResponse } from "./page-try-values.js";
import { compareVersions, getJson, needsKey, request, words } from "./page-api.js";
import { copyButton, state } from "./page-shell.js";
import { el, problem, text } from "./page-dom.js";

const LANGUAGES = [["curl", "curl", curl], ["tritonclient", "Python: tritonclient", tritonclient], ["requests", "Python: requests", requests]];

// Time between two reads of the models while there is none.
const EMPTY_READ_MS = 2000;

const $ = (id) => document.getElementById(id);
let editors = [], running = null, isLocked = false, language = LANGUAGES[0];
// Number of the last choice. Answers to others come too late.
let choosing = 0;

// ---- choosing

async function load() {
  let models;
  try {
    ({ models } = await getJson("/v2/models"));
  } catch (error) {
    state("failed", "failed");
    problem("problem", words(error));
    // A page that waits for a model continues after a restart of the server.
    if (!$("empty").hidden) setTimeout(load, EMPTY_READ_MS);
    return;
  }
  $("model").replaceChildren(...models.map((name) => el("option", { value: name }, name)));
  $("empty").hidden = models.length > 0;
  $("choose").hidden = models.length === 0;
  const wanted = new URLSearchParams(location.search), name = wanted.get("model") ?? models[0];
  if (name === undefined) {
    state("none", "no model");
    problem("problem", null);
    // The page says that the server loads a model soon.
    setTimeout(load, EMPTY_READ_MS);
    return;
  }
  if (!models.includes(name)) {
    // Another model must not be shown under an address that names this one.
    $("model").selectedIndex = -1;
    state("failed", "not found");
    problem("problem", `No model "${name}" is served here.${models.length ? " Choose one above." : ""}`);
    return;
  }
  $("model").value = name;
  await choose(wanted.get("version"));
}

async function choose(version = null) {
  stop();
  const choice = choosing += 1, model = $("model").value, chosen = version ? `/versions/${encodeURIComponent(version)}` : "";
  history.replaceState(null, "", `?model=${encodeURIComponent(model)}${version ? `&version=${encodeURIComponent(version)}` : ""}`);
  problem("problem", null);
  clear();
  let metadata, needed, unnamed;
  const where = `/v2/models/${encodeURIComponent(model)}${chosen}`;
  try {
    metadata = await getJson(where);
    needed = await needsKey(where);
    unnamed = await unnamedVersion(model, metadata.versions ?? []);
  } catch (error) {
    if (choice !== choosing) return;
    show(false);
    state("failed", "failed");
    problem("problem", words(error));
    return;
  }
  if (choice !== choosing) return;
  isLocked = needed;
  versions(metadata.versions ?? [], version, unnamed);
  text($("about"), `${metadata.platform} · ${count(metadata.inputs, "input")}, ${count(metadata.outputs, "output")}`);
  editors = metadata.inputs.map((spec) => new InputEditor(spec, redraw));
  $("inputs").replaceChildren(...editors.map(({ root }) => root));
  show(true);
  state("ready", "ready");
  redraw();
}

const count = (list, noun) => `${list.length} ${noun}${list.length === 1 ? "" : "s"}`;

const newestFirst = (ready) => [...ready].sort((a, b) => compareVersions(b, a));

// Returns words for the version that answers requests which name none. Only a model with two versions can have a rollout.
async function unnamedVersion(model, ready) {
  const rollout = ready.length > 1 ? await getJson(`/v2/models/${encodeURIComponent(model)}/rollout`).catch(() => null) : null;
  if (rollout?.state !== "running") return ready.length ? `latest (${newestFirst(ready)[0]})` : "latest";
  return rollout.shadow ? `stable (${rollout.stable})` : `rollout (${rollout.stable} or ${rollout.candidate})`;
}

function versions(ready, version, unnamed) {
  const latest = newestFirst(ready);
  $("version").replaceChildren(el("option", { value: "" }, unnamed), ...latest.map((one) => el("option", { value: one }, one)));
  $("version").value = version ?? "";
}

function show(on) {
  $("try").hidden = !on;
  $("code").hidden = !on;
  if (!on) text($("about"), "");
}

function clear() {
  problem("run-problem", null);
  text($("took"), "");
  $("outputs").replaceChildren(el("p", { class: "note" }, "Run the model to see what it returns."));
}

// ---- running

// Ends a run, so that another one can begin.
function stop() {
  if (!running) return;
  running.abort();
  running = null;
  busy(false);
}

function busy(on) {
  $("run").setAttribute("aria-disabled", String(on));
  $("halt").hidden = !on;
  if (on) state("busy", "running"); else state("ready", "ready");
}

// Returns the tensors, or null after the focus moved to the first input with an error.
function tensors() {
  const wrong = editors.find((editor) => editor.wrong);
  if (!wrong) return editors.map((editor) => editor.tensor());
  problem("run-problem", `Correct the input ${wrong.spec.name} first.`);
  wrong.focus();
  return null;
}

// Returns the body of a request, and the headers that say where its JSON ends.
function body(tensors) {
  const json = new TextEncoder().encode(requestText(tensors)), binary = tensors.filter((tensor) => tensor.text === undefined);
  if (binary.length === 0) return { body: json, type: "application/json" };
  const raw = binary.map((tensor) => tensor.bytes ?? new Uint8Array(byteSize(tensor)));
  return { body: new Blob([json, ...raw]), type: "application/octet-stream", headers: { "Inference-Header-Content-Length": String(json.length) } };
}

async function run() {
  if ($("run").getAttribute("aria-disabled") === "true") return;
  clear();
  const given = tensors();
  if (!given) return;
  const work = running = new AbortController(), started = performance.now();
  busy(true);
  try {
    const answer = await request("POST", inferPath($("model").value, $("version").value), { ...body(given), stop: work.signal });
    const found = parseResponse(await answer.text());
    if (running !== work) return;
    const took = performance.now() - started;
    text($("took"), `version ${found.model_version} · ${took < 10 ? took.toFixed(1) : Math.round(took)} ms round trip`);
    $("outputs").replaceChildren(...outputNodes(found.outputs));
  } catch (error) {
    if (error.name !== "AbortError" && running === work) refused(words(error));
  } finally {
    if (running === work) {
      running = null;
      busy(false);
    }
  }
}

// Shows an error of the server at the input that it names, or at the button.
function refused(message) {
  const named = editors.find(({ spec }) => message.includes(`"${spec.name}"`));
  if (named) {
    // The value was not wrong for this page, so it can be sent again.
    named.fail(message);
    named.wrong = null;
    named.focus();
  } else problem("run-problem", message);
}

// ---- code

function redraw() {
  if (editors.length === 0 && $("code").hidden) return;
  const given = editors.map((editor) => editor.tensor()), isWhole = given.every(Boolean);
  const call = { origin: location.origin, model: $("model").value, version: $("version").value, tensors: given, needsKey: isLocked };
  text($("snippet"), isWhole ? language[2](call) : "Correct the inputs to see the request.");
  const files = isWhole ? given.filter((tensor) => tensor.file).map((tensor) => tensor.file) : [];
  $("code-note").hidden = files.length === 0;
  text($("code-note"), `Save ${files.join(" and ")} above first, and run this in the same directory.`);
}

function chooseLanguage(entry, focus = false) {
  language = entry;
  for (const tab of $("tabs").children) {
    const here = tab.dataset.language === entry[0];
    tab.setAttribute("aria-selected", String(here));
    tab.setAttribute("tabindex", here ? "0" : "-1");
    if (here && focus) tab.focus();
  }
  $("snippet").setAttribute("aria-labelledby", `tab-${entry[0]}`);
  redraw();
}

$("tabs").append(...LANGUAGES.map((entry) => {
  const tab = el("button", { type: "button", role: "tab", id: `tab-${entry[0]}`, "data-language": entry[0], "aria-controls": "snippet" }, entry[1]);
  tab.addEventListener("click", () => chooseLanguage(entry));
  return tab;
}));
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  chooseLanguage(LANGUAGES[(LANGUAGES.indexOf(language) + step + LANGUAGES.length) % LANGUAGES.length], true);
});
$("copy").append(copyButton(() => $("snippet").textContent, "the code"));

// ---- events

$("choose").addEventListener("submit", (event) => event.preventDefault());
$("model").addEventListener("change", () => {
  // If its metadata cannot be read, the versions of the model before it must not stay.
  versions([], null, "latest");
  choose();
});
$("version").addEventListener("change", () => choose($("version").value || null));
$("inputs-form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
$("halt").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("try").hidden) {
    event.preventDefault();
    run();
  }
});

chooseLanguage(LANGUAGES[0]);
await load();
