// The page for images: collections and their images; finds images by an image, adds and deletes.

import { Adding, FILES_MAX, dropped } from "./page-images-add.js";
import { get, path, remove } from "./page-images-api.js";
import { Duplicates } from "./page-images-duplicates.js";
import { ImageFilter } from "./page-images-filter.js";
import { Search } from "./page-images-search.js";
import { getJson, request, toJson, words } from "./page-api.js";
import { menu } from "./page-menu.js";
import { ask, copyButton, message, state } from "./page-shell.js";
import { bytes, count, el, hasFolder, keepPlace, onFiles, rows, text } from "./page-dom.js";

// Images on one page of the collection.
const PAGE = 48;
const TILE_PIXELS = 256;
// Shortest time between two updates of the collection while images are added.
const LOOK_MS = 1500;
// Model of a collection of fingerprints without embeddings.
const NO_MODEL = "none";
const MODEL_CODE = `# In a checkout: MobileNetV2, ready to serve
make images-model && millpond serve .cache/images/models

# Any ONNX model with a float input [n, 3, height, width] and an output [n, d]
millpond publish embedder.onnx --to models/embedder && millpond serve models`;

const $ = (id) => document.getElementById(id);
const search = new Search({ began: () => { problem("find-problem", null); state("busy", "searching"); }, ended: describe, failed: (error) => failed(error, "find-problem") });
const filter = new ImageFilter(() => {
  offsets = [null];
  list();
  // The results belong to another filter.
  $("again").hidden = $("found").hidden;
});
const adding = new Adding(
  { list: $("sent"), unlisted: $("unlisted"), progress: $("progress"), halt: $("halt") },
  { done: added, changed: () => { if (performance.now() - looked > LOOK_MS) refresh(); } },
);
const duplicates = new Duplicates({ deleted: removeImage });
let collections = [], embedding = {}, models = null, made = null, looked = 0;
// Offsets of the pages up to the current one, which is the last.
let offsets = [null], following = null;
// Number of the last request for a page. Answers to others come too late.
let asking = 0;
// Tiles of the page by what they show.
let tiles = new Map();

function problem(id, ...parts) {
  $(id).hidden = parts[0] === null;
  $(id).replaceChildren(...parts.filter((part) => part !== null));
}

const enable = (button, on) => button.setAttribute("aria-disabled", String(!on));
const isOn = (button) => button.getAttribute("aria-disabled") !== "true";

// Shows an error beside the action that failed.
function failed(error, where) {
  if (error.name === "AbortError") return;
  state("failed", "failed");
  problem(where, words(error));
}

const chosen = () => $("collection").value || null;
const entry = () => collections.find(({ name }) => name === chosen()) ?? (made?.name === chosen() ? made : null);

// ---- collections

async function load() {
  try {
    ({ collections, embedding = {} } = await get(path(null)));
  } catch (error) {
    failed(error, "problem");
    return false;
  }
  models = await getJson("/v2/models").then((found) => found.models).catch(() => null);
  problem("problem", null);
  if (made && collections.some(({ name }) => name === made.name)) made = null;
  // An address may have the collection's own name instead of its alias.
  const named = new URLSearchParams(location.search).get("collection");
  const asked = collections.find(({ collection }) => collection === named)?.name ?? named;
  const wanted = chosen() ?? asked, known = made ? [...collections, made] : collections;
  rows($("collection"), JSON.stringify(known.map(({ name }) => name)), () => known.map(({ name }) => el("option", { value: name }, name)));
  if (known.some(({ name }) => name === wanted)) $("collection").value = wanted;
  else if (wanted && wanted === asked) {
    // The address names a collection that does not exist, so another one must not be shown instead.
    $("collection").selectedIndex = -1;
    await unknown(wanted);
  }
  describe();
  return true;
}

async function unknown(name) {
  const answer = await getJson(`/collections/${encodeURIComponent(name)}/exists`).catch(() => null);
  if (answer?.result.exists) {
    const link = el("a", { href: `/vectors?collection=${encodeURIComponent(name)}` }, "Open it in Vectors");
    problem("problem", `"${name}" is a collection of vectors without images. `, link, ".");
  } else problem("problem", `There is no collection of images called "${name}". Choose or create one.`);
  state("failed", "not found");
}

// Returns why no image can be embedded for the chosen collection, or null.
function missingModel() {
  const found = entry();
  // Fingerprints need none, unless their collection was made with one.
  if (found?.kind === "fingerprint" && (found === made || found.model === NO_MODEL)) return null;
  if (found && found !== made && found.model) return models && !models.includes(found.model) ? `The model of this collection, "${found.model}", is not served.` : null;
  return embedding.error ?? null;
}

function describe() {
  const found = entry(), missing = missingModel();
  const isBare = found?.kind === "fingerprint" && found.model === NO_MODEL, isNone = collections.length === 0 && !made;
  $("model-none").hidden = !missing || (!found && !isNone);
  text($("model-why"), missing ? `${missing[0].toUpperCase()}${missing.slice(1)}${/[.!]$/.test(missing) ? "" : "."}` : "");
  $("none").hidden = !isNone || Boolean(missing);
  $("find").hidden = !found || found === made || Boolean(missing);
  enable($("add-open"), !missing);
  if (missing) toggle("add", false);
  const items = [{ words: "New collection…", act: make }];
  if (found && found !== made) {
    if (!isBare) items.push({ words: "Find duplicates…", act: () => duplicates.open(chosen()) });
    items.push({ words: "Delete collection…", danger: true, act: drop });
  }
  // Images that are being added change the page often. An open menu stays if its items do.
  rows($("menu"), items.map((item) => item.words).join(), () => [menu("collections", items)]);
  if (!found) {
    text($("about"), "");
    if ($("problem").hidden) state("none", "no collection");
    return;
  }
  const facts = [found === made ? "created with its first image" : `${count(found.count ?? 0)} ${found.count === 1 ? "image" : "images"}`,
    found.kind === "fingerprint" ? "fingerprints" : "photographs", found.model && !isBare && `embeddings by ${found.model}`];
  text($("about"), found.reason ?? (found.state === "opening" ? "being opened" : facts.filter(Boolean).join(" · ")));
  if (found.reason) state("failed", "broken"); else if (found.state === "opening") state("busy", "opening");
  else if (missing) state("failed", "no model"); else if (!search.busy && !adding.busy) state("ready", "ready");
}

async function choose() {
  offsets = [null];
  if (chosen()) history.replaceState(null, "", `?collection=${encodeURIComponent(chosen())}`);
  search.close();
  duplicates.close();
  for (const id of ["find-problem", "add-problem", "list-problem"]) problem(id, null);
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
  const collection = chosen(), found = entry(), asked = asking += 1;
  $("all").hidden = !collection || found === made;
  if (!collection || found === made) {
    page([], null);
    return;
  }
  const wanted = filter.value;
  try {
    const answer = await get(path(collection, "", { limit: PAGE, offset: offsets.at(-1), filter: wanted && toJson(wanted) }));
    // A point without an image has no name.
    // An image that was added without a name has an empty one.
    for (const image of answer.images) image.name ||= image.id;
    if (asked !== asking || collection !== chosen()) return;
    problem("list-problem", null);
    if (answer.images.length === 0 && offsets.length > 1) {
      // The last image of this page was deleted.
      offsets.pop();
      await list();
      return;
    }
    page(answer.images, answer.next ?? null, answer.count);
  } catch (error) {
    if (asked !== asking || collection !== chosen()) return;
    page([], null);
    failed(error, filter.isOpen ? "filter-problem" : "list-problem");
  }
}

function page(images, next, total) {
  following = next;
  enable($("next"), next !== null);
  enable($("back"), offsets.length > 1);
  const first = (offsets.length - 1) * PAGE, range = images.length ? `${first + 1}–${first + images.length}` : "none";
  text($("shown"), filter.value ? `${range}${Number.isInteger(total) ? ` of ${total}` : ""}, filtered` : images.length ? `${range} of ${entry()?.count ?? total ?? images.length}` : "none yet");
  // A tile that stays keeps its open menu and the focus while images are added.
  tiles = new Map(images.map((image) => [JSON.stringify([chosen(), image]), image]).map(([key, image]) => [key, tiles.get(key) ?? tile(image)]));
  keepPlace($("pictures"), () => rows($("pictures"), [...tiles.keys()].join("\n"), () => [...tiles.values()]));
}

function tile(image) {
  const preview = el("img", { alt: "", loading: "lazy", decoding: "async", src: path(chosen(), `/${image.id}/thumbnail`, { size: TILE_PIXELS }) });
  const size = `${image.width} × ${image.height}${image.bytes ? ` · ${bytes(image.bytes)}` : ""}`;
  const like = el("button", { class: "small search", "aria-label": `Find images similar to ${image.name}` }, "Find similar");
  like.addEventListener("click", () => find({ id: image.id, name: image.name, width: image.width, height: image.height }));
  const more = menu(image.name, [{ words: "Delete image…", danger: true, act: () => removeImage(image) }]);
  return el("li", { "data-id": image.id }, preview, el("p", { class: "name", title: image.name }, image.name), el("p", { class: "note" }, size), el("div", { class: "buttons" }, like, more));
}

// Returns true if the image is deleted.
async function removeImage(image) {
  if (!(await ask({ title: `Delete ${image.name}?`, words: "The image and its data are removed from the collection.", yes: "Delete" }))) return false;
  try {
    await remove(path(chosen(), `/${image.id}`));
  } catch (error) {
    message(`${image.name} was not deleted: ${words(error)}`, true);
    return false;
  }
  message(`${image.name} is deleted.`);
  if (search.results.some(({ id }) => id === image.id)) search.close();
  await refresh();
  return true;
}

function turn(step) {
  // Until the page is here, nothing is known of the one after it.
  for (const id of ["next", "back"]) enable($(id), false);
  if (step > 0) offsets.push(following); else offsets.pop();
  list();
}

// ---- search

function picked(file) {
  find({ file, name: file.name || "pasted image", address: URL.createObjectURL(file) });
}

function find(wanted) {
  if ($("find").hidden) {
    message(missingModel() ?? "There is nothing to search yet: add images first.", true);
    return;
  }
  search.run(chosen(), wanted, filter.value);
}

// ---- adding

function toggle(id, open) {
  $(id).hidden = !open;
  $(`${id}-open`).setAttribute("aria-expanded", String(open));
}

async function add(files) {
  if (files.length === 0 || missingModel()) return;
  if (adding.busy) {
    problem("add-problem", "Images are already being added. Wait until that ends, or stop it first.");
    return;
  }
  if (!chosen() && !(await make())) return;
  problem("add-problem", null);
  state("busy", "adding");
  await adding.add(files, chosen(), entry()?.kind ?? null);
}

async function added(words, counts) {
  message(words, counts.failed > 0);
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
    // The address may name another collection, or none that exists.
    history.replaceState(null, "", `?collection=${encodeURIComponent(name)}`);
    await load();
    $("collection").value = name;
    await choose();
    toggle("add", !missingModel());
    give(true);
  }, { once: true }));
}

async function drop() {
  const found = entry();
  if (!(await ask({ title: `Delete the collection ${found.name}?`, words: `Its images (${count(found.count ?? 0)}) are removed with it. This cannot be undone.`, yes: "Delete" }))) return;
  try {
    await request("DELETE", path(found.name));
  } catch (error) {
    message(`${found.name} was not deleted: ${words(error)}`, true);
    return;
  }
  message(`${found.name} is deleted.`);
  history.replaceState(null, "", "/images");
  rows($("collection"), "", () => []);
  await load();
  await choose();
}

// ---- choosing, dropping, pasting

$("collection").addEventListener("change", () => { problem("problem", null); choose(); });
$("make-cancel").addEventListener("click", () => $("make").close("cancel"));
onFiles($("query"), ([first]) => picked(first));
onFiles($("files"), add);
$("again").addEventListener("click", () => search.query && find(search.query));
$("next").addEventListener("click", () => isOn($("next")) && turn(1));
$("back").addEventListener("click", () => isOn($("back")) && turn(-1));
$("options-open").addEventListener("click", () => toggle("options", $("options").hidden));
$("add-open").addEventListener("click", () => {
  if (!isOn($("add-open"))) return;
  toggle("add", $("add").hidden);
  if (!$("add").hidden) $("files").focus();
});
$("add-close").addEventListener("click", () => { toggle("add", false); $("add-open").focus(); });
$("model-again").addEventListener("click", refresh);
text($("model-code"), MODEL_CODE);
$("model-copy").append(copyButton(() => MODEL_CODE, "the commands"));
$("none-copy").append(copyButton(() => $("none-code").textContent, "the command"));
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
  if (toAdd) {
    const dropping = await dropped(event.dataTransfer);
    if (dropping) await add(dropping);
    else problem("add-problem", `You chose more than ${count(FILES_MAX)} files, and none was added. To add so many, run \`millpond images index DIR\`.`);
  }
  // Anywhere else, a single image starts a search, which changes nothing.
  else if (files.length === 1 && !hasFolder(event.dataTransfer)) picked(files[0]);
  else if (files.length) message('Only one image can be searched for. To add several or a folder, open "Add images" and drop them there.', true);
});

function undrag() {
  document.body.classList.remove("dropping");
  for (const zone of document.querySelectorAll(".over")) zone.classList.remove("over");
}

await load();
await choose();
