// The page for vector collections: lists, creates and deletes them, and shows one.

import { clientCode, collections, create, describe, drop, imageCollections, vectorOf } from "./page-vectors-api.js";
import { healthOf } from "./page-vectors-health.js";
import { CollectionView } from "./page-vectors-one.js";
import { needsKey, words } from "./page-api.js";
import { menu } from "./page-menu.js";
import { ask, copyButton, message, state } from "./page-shell.js";
import { el, keepPlace, problem, text } from "./page-dom.js";

// Most collections whose size and health are read for the list.
const DESCRIBED_MAX = 200;
// Collections that are described at once.
const CONNECTIONS = 4;

const $ = (id) => document.getElementById(id);
// True if the server needs keys. Known once there is no collection.
let isLocked = false;
// Number of the last request to delete a collection. The questions of others come too late.
let removing = 0;
const imagesOf = (name) => `/images?collection=${encodeURIComponent(name)}`;
const pageOf = (name) => `/vectors?collection=${encodeURIComponent(name)}`;

async function list() {
  let names, images;
  try {
    [names, images] = await Promise.all([collections(), imageCollections()]);
  } catch (error) {
    state("failed", "failed");
    problem("problem", words(error));
    return;
  }
  if (names.length === 0) isLocked = await needsKey("/collections");
  $("list").hidden = false;
  $("none").hidden = names.length > 0;
  $("table").hidden = names.length === 0;
  text($("none-code"), example());
  names.sort((a, b) => a.localeCompare(b));
  const rows = names.map((name) => row(name, images.get(name)));
  keepPlace($("rows"), () => $("rows").replaceChildren(...rows.map(({ node }) => node)));
  text($("list-note"), names.length > DESCRIBED_MAX ? `The sizes of the first ${DESCRIBED_MAX} are shown.` : "");
  state(names.length ? "ready" : "none", `${names.length} ${names.length === 1 ? "collection" : "collections"}`);
  const queue = rows.slice(0, DESCRIBED_MAX);
  await Promise.all(Array.from({ length: CONNECTIONS }, async () => {
    while (queue.length) await fill(queue.shift());
  }));
}

function row(name, images) {
  const link = el("a", { href: pageOf(name) }, name), title = el("th", { scope: "row" }, link);
  if (images) title.append(" ", el("a", { class: "chip plain", href: imagesOf(images) }, "images"));
  const cells = Object.fromEntries(["points", "size", "distance", "health"].map((key) => [key, el("td", key === "points" || key === "size" ? { class: "number" } : {}, "–")]));
  const actions = menu(name, [{ words: "Delete collection…", danger: true, act: () => remove(name) }]);
  return { name, cells, node: el("tr", { "data-collection": name }, title, ...Object.values(cells), el("td", { class: "number" }, actions)) };
}

async function fill({ name, cells }) {
  try {
    const described = await describe(name), { size, distance } = vectorOf(described), [style, health] = healthOf(described);
    text(cells.points, described.points_count.toLocaleString("en"));
    text(cells.size, String(size));
    text(cells.distance, distance);
    cells.health.replaceChildren(el("span", { class: "state", "data-state": style }, health));
  } catch (error) {
    cells.health.replaceChildren(el("span", { class: "state", "data-state": "failed" }, words(error)));
  }
}

const example = () => `${clientCode(location.origin, isLocked)}
client.create_collection("notes", vectors_config=models.VectorParams(size=3, distance=models.Distance.COSINE))
client.upsert("notes", [models.PointStruct(id=1, vector=[0.1, 0.2, 0.3], payload={"city": "Berlin"})])`;

async function remove(name, then = list) {
  const turn = removing += 1;
  let points = "points";
  try { points = `points (${(await describe(name)).points_count.toLocaleString("en")})`; } catch { /* The question can be asked without the number. */ }
  if (turn !== removing) return;
  if (!(await ask({ title: `Delete the collection ${name}?`, words: `Its ${points} are removed with it. This cannot be undone.`, yes: "Delete" }))) return;
  try {
    await drop(name);
  } catch (error) {
    message(`${name} was not deleted: ${words(error)}`, true);
    return;
  }
  message(`${name} is deleted.`);
  await then();
}

async function one(name) {
  let described, images;
  try {
    [described, images] = await Promise.all([describe(name), imageCollections()]);
  } catch (error) {
    // Another collection must not be shown under an address that names this one.
    state("failed", error.status === 404 ? "not found" : "failed");
    problem("problem", error.status === 404 ? `There is no collection "${name}".` : words(error));
    if (error.status === 404) $("problem").append(" ", el("a", { href: "/vectors" }, "Show all collections"));
    return;
  }
  document.title = `${name} · Vectors · Millpond`;
  $("one").hidden = false;
  const leave = () => { location.href = "/vectors"; };
  const items = [{ words: "Delete collection…", danger: true, act: () => remove(name, leave) }];
  if (images.has(name)) items.unshift({ words: "Open in Images", act: () => { location.href = imagesOf(images.get(name)); } });
  $("menu").replaceChildren(menu(name, items));
  await new CollectionView(name, described, images.has(name)).start();
}

$("create").addEventListener("click", () => {
  problem("make-problem", null);
  $("make").showModal();
});
$("make-cancel").addEventListener("click", () => $("make").close());
$("make-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("new-name").value;
  problem("make-problem", null);
  try {
    await create(name, { size: Number($("new-size").value), distance: $("new-distance").value });
    location.href = pageOf(name);
  } catch (error) {
    problem("make-problem", words(error));
    $("new-name").focus();
  }
});
$("none-copy").append(copyButton(example, "the example"));

const wanted = new URLSearchParams(location.search).get("collection");
await (wanted === null ? list() : one(wanted));
