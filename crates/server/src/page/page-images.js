// The page for images: finds images by an image, shows the matches, adds and deletes.

import { Adding, dropped } from "./page-images-add.js";
import { Refused, get, hasKey, path, post, remove, show, unlock } from "./page-images-api.js";
import { Match, points } from "./page-images-match.js";
import { bytes, count, el, text } from "./page-dom.js";

// Images on one page of the collection.
const PAGE = 48;
const TILE_PIXELS = 256;
const MESSAGE_MS = 8000;
// Shortest time between two updates of the collection while images are added.
const LOOK_MS = 1500;
const NAME_KEY = "image.name";

const $ = (id) => document.getElementById(id);
const match = new Match($("match"));
const adding = new Adding(
  { list: $("sent"), unlisted: $("unlisted"), progress: $("progress"), halt: $("halt") },
  { done: added, changed: () => { if (performance.now() - looked > LOOK_MS) refresh(); } },
);
let collections = [], made = null, filter = null, query = null, results = [], running = null, looked = 0;
// Offsets of the pages up to the current one, which is the last.
let offsets = [null], following = null;

function state(name, words) {
  $("state").dataset.state = name;
  text($("state"), words);
}

function problem(words) {
  $("problem").hidden = !words;
  text($("problem"), words ?? "");
}

function say(words, bad = false) {
  const node = el("p", { class: bad ? "message bad" : "message" }, words);
  $("messages").append(node);
  setTimeout(() => node.remove(), MESSAGE_MS);
}

function enable(button, on) {
  button.setAttribute("aria-disabled", String(!on));
}

const on = (button) => button.getAttribute("aria-disabled") !== "true";

// Shows an error, and the field for the key if the server needs one.
function failed(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401) {
    $("unlock").hidden = false;
    $("key").focus();
    if (hasKey()) unlock(null);
    state("failed", "locked");
    problem("This server needs a key for its images.");
    return;
  }
  state("failed", "failed");
  problem(error instanceof Refused ? error.message : String(error));
}

const chosen = () => $("collection").value || null;
const entry = () => collections.find(({ name }) => name === chosen()) ?? (made?.name === chosen() ? made : null);

// ---- collections

async function load() {
  try {
    ({ collections } = await get(path(null)));
  } catch (error) {
    failed(error);
    return;
  }
  $("unlock").hidden = true;
  problem(null);
  if (made && collections.some(({ name }) => name === made.name)) made = null;
  const asked = new URLSearchParams(location.search).get("collection");
  const wanted = chosen() ?? asked, known = made ? [...collections, made] : collections;
  $("collection").replaceChildren(...known.map(({ name }) => el("option", { value: name }, name)));
  if (known.some(({ name }) => name === wanted)) $("collection").value = wanted;
  else if (wanted && wanted === asked) {
    // The address names a collection that does not exist, so another one must not be shown instead.
    $("collection").selectedIndex = -1;
    problem(`There is no collection of images called "${wanted}". Choose or create one.`);
  }
  $("none").hidden = known.length > 0;
  describe();
}

function describe() {
  const found = entry();
  enable($("remove"), found && found !== made);
  if (!found) {
    text($("about"), "");
    state("none", "no collection");
    return;
  }
  const facts = [found === made ? "created with its first image" : `${count(found.count ?? 0)} ${found.count === 1 ? "image" : "images"}`,
    found.kind === "fingerprint" ? "fingerprints" : "photographs", found.model && `embeddings by ${found.model}`];
  text($("about"), found.reason ?? (found.state === "opening" ? "being opened" : facts.filter(Boolean).join(" · ")));
  if (found.reason) state("failed", "broken"); else if (found.state === "opening") state("busy", "opening"); else if (!running && !adding.busy) state("ready", "ready");
}

async function choose() {
  offsets = [null];
  if (chosen()) history.replaceState(null, "", `?collection=${encodeURIComponent(chosen())}`);
  close();
  describe();
  await list();
}

async function refresh() {
  looked = performance.now();
  await load();
  await list();
}

// ---- images of a collection

async function list() {
  const collection = chosen(), found = entry();
  for (const id of ["all", "only"]) $(id).hidden = !collection;
  if (!collection || found === made) {
    page([], null);
    return;
  }
  try {
    const answer = await get(path(collection, "", { limit: PAGE, offset: offsets.at(-1), filter: filter && JSON.stringify(filter) }));
    // A point without an image has no name.
    for (const image of answer.images) image.name ??= image.id;
    if (collection === chosen()) page(answer.images, answer.next ?? null, answer.count);
  } catch (error) {
    failed(error);
  }
}

function page(images, next, total) {
  following = next;
  enable($("next"), next !== null);
  enable($("back"), offsets.length > 1);
  const first = (offsets.length - 1) * PAGE, range = images.length ? `${first + 1}–${first + images.length}` : "none";
  text($("shown"), filter ? `${range}${Number.isInteger(total) ? ` of ${total}` : ""}, filtered` : images.length ? `${range} of ${entry()?.count ?? total ?? images.length}` : "none yet");
  $("pictures").replaceChildren(...images.map((image) => tile(image, [
    el("button", { class: "small search", "aria-label": `Find images like ${image.name}` }, "Like this"),
    el("button", { class: "small delete", "aria-label": `Delete ${image.name}` }, "Delete…"),
  ])));
}

function tile(image, below) {
  const preview = el("img", { alt: "", loading: "lazy", decoding: "async" });
  show(preview, "src", path(chosen(), `/${image.id}/thumbnail`, { size: TILE_PIXELS }));
  const size = `${image.width} × ${image.height}${image.bytes ? ` · ${bytes(image.bytes)}` : ""}`;
  const item = el("li", { "data-id": image.id }, preview, el("p", { class: "name", title: image.name }, image.name), el("p", { class: "note" }, size), el("div", { class: "buttons" }, ...below));
  item.image = image;
  return item;
}

function turn(step) {
  if (step > 0) offsets.push(following); else offsets.pop();
  list();
}

$("pictures").addEventListener("click", async (event) => {
  const image = event.target.closest("li")?.image;
  if (!image || !event.target.closest("button")) return;
  if (event.target.closest(".search")) {
    search({ id: image.id, name: image.name, width: image.width, height: image.height });
    return;
  }
  if (!(await confirmed(`Delete ${image.name}?`, "The image and its data are removed from the collection."))) return;
  try {
    await remove(path(chosen(), `/${image.id}`));
    say(`${image.name} is deleted.`);
    results = results.filter(({ id }) => id !== image.id);
    await refresh();
  } catch (error) {
    failed(error);
  }
});

function confirmed(title, words) {
  text($("confirm-title"), title);
  text($("confirm-text"), words);
  const dialog = $("confirm");
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((give) => dialog.addEventListener("close", () => give(dialog.returnValue === "delete"), { once: true }));
}

// ---- search

// Searches by a file, or by an image of the collection.
function picked(file) {
  search({ file, name: file.name || "pasted image", address: URL.createObjectURL(file) });
}

async function search(wanted) {
  const collection = chosen();
  if (!collection || entry() === made) {
    problem("There is nothing to search yet: add images first.");
    return;
  }
  running?.abort();
  const work = running = new AbortController();
  if (query?.address && query !== wanted) URL.revokeObjectURL(query.address);
  query = wanted;
  problem(null);
  state("busy", "searching");
  const where = path(collection, "/search", { k: $("count").value, explain: 1, filter: filter && JSON.stringify(filter) });
  try {
    const answer = await post(where, wanted.file ?? { id: wanted.id }, work.signal);
    if (collection !== chosen() || running !== work) return;
    Object.assign(query, { width: answer.query?.width ?? wanted.width, height: answer.query?.height ?? wanted.height });
    present(answer);
  } catch (error) {
    if (running === work) failed(error);
    return;
  } finally {
    if (running === work) running = null;
  }
  describe();
}

function present(answer) {
  results = answer.results;
  for (const result of results) result.name ??= result.id;
  $("found").hidden = false;
  $("again").hidden = true;
  text($("found-title"), results.length ? `Like ${query.name}` : `Nothing like ${query.name}`);
  const stages = Object.entries(answer.stages ?? {}).map(([name, value]) => `${name.replace(/_ms$/, "")} ${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);
  const compared = Number.isInteger(answer.of) ? `compared ${count(answer.compared)} of ${count(answer.of)}` : null;
  text($("took"), [...stages, compared, answer.partial ? "partial: something that belongs here may be missing" : null].filter(Boolean).join(" · "));
  $("results").replaceChildren(...results.map(found));
  $("match").hidden = results.length === 0;
  if (results.length) land($("results").firstElementChild, false);
  $("found").scrollIntoView({ block: "nearest" });
}

function found(result, rank) {
  const preview = el("img", { alt: "", loading: "lazy", decoding: "async" });
  show(preview, "src", path(chosen(), `/${result.id}/thumbnail`, { size: TILE_PIXELS }));
  const verdict = el("span", { class: "verdict", "data-accepted": String(result.accepted) }, result.accepted ? "accepted" : "only similar");
  const numbers = el("span", { class: "note" }, `score ${points(result.score)} · coarse ${result.coarse.toFixed(2)}`);
  const button = el("button", { class: "result", tabindex: rank === 0 ? "0" : "-1" }, preview, el("span", { class: "name" }, result.name), verdict, numbers);
  const item = el("li", { "data-id": result.id }, button);
  item.result = result;
  return item;
}

function land(item, focus = true) {
  for (const other of $("results").querySelectorAll("button")) {
    const here = other.parentNode === item;
    other.setAttribute("tabindex", here ? "0" : "-1");
    if (here) other.setAttribute("aria-current", "true"); else other.removeAttribute("aria-current");
  }
  if (focus) item.querySelector("button").focus();
  match.show(chosen(), query, item.result, query.name);
}

$("results").addEventListener("click", (event) => {
  const item = event.target.closest("li");
  if (item) land(item);
});
$("results").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], item = event.target.closest("li");
  if (!step || !item) return;
  event.preventDefault();
  const to = step > 0 ? item.nextElementSibling : item.previousElementSibling;
  if (to) land(to);
});

function close() {
  running?.abort();
  results = [];
  $("found").hidden = true;
}

// ---- filter

// Returns the fields as a filter of Qdrant; null if they are empty.
function wantedFilter() {
  const where = $("where").value, value = $("value").value.trim(), field = $("field").value.trim();
  if (!value) return null;
  if (where === "json") return JSON.parse(value);
  if (where === "name") return { must: [{ key: NAME_KEY, match: { value } }] };
  if (!field) throw new Error("Name the field, for example album.");
  let plain = value;
  if (value === "true" || value === "false") plain = value === "true"; else if (/^-?\d+$/.test(value)) plain = Number(value);
  return { must: [{ key: field, match: { value: plain } }] };
}

async function apply() {
  try {
    filter = wantedFilter();
  } catch (error) {
    problem(error instanceof SyntaxError ? `The filter is no JSON: ${error.message}` : error.message);
    return;
  }
  problem(null);
  enable($("unfilter"), filter !== null);
  offsets = [null];
  await list();
  // The results belong to another filter.
  $("again").hidden = $("found").hidden;
}

$("where").addEventListener("change", () => {
  $("field-place").hidden = $("where").value !== "field";
  $("value").placeholder = $("where").value === "json" ? '{"must":[{"key":"album","match":{"value":"holidays"}}]}' : "";
});
$("filter").addEventListener("submit", (event) => { event.preventDefault(); apply(); });
$("unfilter").addEventListener("click", () => {
  if (!on($("unfilter"))) return;
  $("value").value = "";
  apply();
});
$("again").addEventListener("click", () => query && search(query));

// ---- adding

async function add(files) {
  if (files.length === 0) return;
  if (adding.busy) {
    say("Images are being added already. Wait, or stop first.", true);
    return;
  }
  if (!chosen() && !(await make())) return;
  problem(null);
  state("busy", "adding");
  await adding.add(files, chosen(), entry()?.kind ?? null);
}

async function added(words, counts) {
  say(words, counts.failed > 0);
  await refresh();
}

// Asks for a new collection. Returns true if there is one then.
function make() {
  const dialog = $("make");
  dialog.returnValue = "cancel";
  if (!collections.length && !$("name").value) $("name").value = "photos";
  dialog.showModal();
  return new Promise((give) => dialog.addEventListener("close", async () => {
    if (dialog.returnValue !== "make") return give(false);
    const name = $("name").value;
    if (!collections.some((known) => known.name === name)) made = { name, kind: $("kind").value, count: 0 };
    await load();
    $("collection").value = name;
    await choose();
    give(true);
  }, { once: true }));
}

// ---- choosing, dropping, pasting

$("collection").addEventListener("change", () => { problem(null); choose(); });
$("create").addEventListener("click", make);
$("make-cancel").addEventListener("click", () => $("make").close("cancel"));
$("remove").addEventListener("click", async () => {
  const found = entry();
  if (!on($("remove")) || !found) return;
  if (!(await confirmed(`Delete the collection ${found.name}?`, `All its ${count(found.count ?? 0)} images are removed with it. This cannot be undone.`))) return;
  try {
    await remove(path(found.name));
    say(`${found.name} is deleted.`);
    history.replaceState(null, "", "/images");
    await load();
    await choose();
  } catch (error) {
    failed(error);
  }
});
$("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  unlock($("key").value);
  $("key").value = "";
  await refresh();
});
$("query").addEventListener("change", () => $("query").files[0] && picked($("query").files[0]));
$("files").addEventListener("change", () => add([...$("files").files]));
$("close").addEventListener("click", close);
$("next").addEventListener("click", () => on($("next")) && turn(1));
$("back").addEventListener("click", () => on($("back")) && turn(-1));
document.addEventListener("paste", (event) => {
  const pasted = [...event.clipboardData.files].find((file) => file.type.startsWith("image/"));
  if (!pasted) return;
  event.preventDefault();
  picked(pasted);
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
  for (const zone of document.querySelectorAll(".zone")) zone.classList.toggle("over", zone.contains(event.target));
});
document.addEventListener("dragleave", (event) => event.relatedTarget ?? undrag());
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  undrag();
  const toAdd = $("add").contains(event.target), files = event.dataTransfer.files;
  if (toAdd) add(await dropped(event.dataTransfer));
  // Anywhere else, a single image starts a search, which changes nothing.
  else if (files.length === 1) picked(files[0]);
  else if (files.length) say("Drop several images on \"Add images\". Only one can be searched for.", true);
});

function undrag() {
  document.body.classList.remove("dropping");
  for (const zone of document.querySelectorAll(".over")) zone.classList.remove("over");
}

await load();
await choose();
