// The page for a cluster: its nodes, and the shards of each collection with their holders, owners and movements.

import { Refused, getJson, words } from "./page-api.js";
import { el, problem, rows, text } from "./page-dom.js";
import { state } from "./page-shell.js";

// Time between two reads of the cluster.
const READ_MS = 2000;
// Longest wait for an answer, after which the figures are old.
const ANSWER_MS_MAX = 10_000;
// State of a chip, and words, for each status of a collection.
const STATUS = { green: ["ready", "served"], yellow: ["warn", "shards move"], red: ["failed", "shards missing"] };

const $ = (id) => document.getElementById(id);
const several = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const cell = (value, attributes = {}) => el("td", attributes, value);

function show(which) {
  $("alone").hidden = which !== "alone";
  $("cluster").hidden = which !== "cluster";
}

async function read() {
  try {
    const { nodes, collections, stale } = (await getJson("/cluster/v1/view", AbortSignal.timeout(ANSWER_MS_MAX))).result;
    const work = await workOf();
    problem("problem", stale && `This node cannot read nodes and owners now, so they are shown as it read them last. Reason: ${stale}`);
    show("cluster");
    draw(nodes, collections, work);
  } catch (error) {
    if (error instanceof Refused && error.status === 404) {
      show("alone");
      state("none", "no cluster");
      return;
    }
    state("failed", "failed");
    problem("problem", words(error));
  }
  setTimeout(read, READ_MS);
}

// The flushes and merges of each node, by name. A failure hides no node.
async function workOf() {
  try {
    return (await getJson("/cluster/v1/work", AbortSignal.timeout(ANSWER_MS_MAX))).result.nodes;
  } catch {
    return {};
  }
}

// Merges that run, and those that wait.
const mergesOf = ({ merges, merges_waiting: waiting }) =>
  merges === undefined ? "–" : waiting ? `${merges}, ${waiting} wait` : String(merges);

function draw(nodes, collections, work) {
  const owned = new Map(), shards = collections.flatMap((one) => one.shards);
  for (const { owner } of shards) owned.set(owner, (owned.get(owner) ?? 0) + 1);
  rows($("nodes"), JSON.stringify([nodes, [...owned], work]), () => nodes.map((node) => nodeRow(node, owned.get(node.name) ?? 0, work[node.name] ?? {})));
  const open = new Set([...document.querySelectorAll("#collections details[open]")].map((details) => details.dataset.collection));
  rows($("collections"), JSON.stringify(collections), () => collections.map((one) => collection(one, open.has(one.id))));
  const moving = shards.filter(moves).length, missing = shards.filter((shard) => shard.serving.length === 0).length;
  text($("nodes-note"), moving ? `${several(moving, "shard")} moving to other nodes` : "");
  if (missing) state("failed", `${several(missing, "shard")} missing`);
  else state(moving ? "warn" : "ready", several(nodes.length, "node"));
}

function nodeRow({ name, address, roles, weight, serving, build, store }, owned, work) {
  const drains = weight === 0 && roles.includes("search");
  const chips = [...(drains ? [el("span", { class: "chip plain" }, "drains")] : []),
    ...(store ? [el("span", { class: "chip", "data-state": "failed" }, `store ${store}`)] : [])];
  const title = el("th", { scope: "row" }, name, ...chips.flatMap((chip) => [" ", chip]));
  return el("tr", { "data-node": name }, title, cell(address), cell(roles.join(", ")), cell(String(weight), { class: "number" }),
    cell(String(serving), { class: "number" }), cell(String(owned), { class: "number" }),
    cell(String(work.flushes ?? "–"), { class: "number" }), cell(mergesOf(work), { class: "number", ...(work.error && { title: work.error }) }), cell(build));
}

const served = ({ serving, damaged = [] }) =>
  serving.map((name) => damaged.includes(name) ? `${name} (damaged)` : name).join(", ") || "none";
const moves = ({ wanted, serving }) => wanted.some((name) => !serving.includes(name));

// The copies of each shard. If some are missing, it names those of the shard with the fewest.
function copiesOf(copies, shards) {
  const whole = ({ serving, damaged = [] }) => serving.filter((name) => !damaged.includes(name)).length;
  const fewest = Math.min(copies, ...shards.map(whole)), noun = copies === 1 ? "copy" : "copies";
  return fewest < copies ? `at least ${fewest} of ${copies} ${noun} each` : `${copies} ${noun} each`;
}

function collection({ name, id, copies, status, coverage, shards }, open) {
  const [style, said] = STATUS[status];
  const summary = el("summary", { id: `collection-${id}` }, el("b", {}, name), " ", el("span", { class: "chip", "data-state": style }, said),
    ` ${coverage.shards} of ${several(coverage.of, "shard")} served, ${copiesOf(copies, shards)}`);
  const heads = ["Shard", "Owner", "Served by", "Moves to"].map((head) => el("th", { scope: "col" }, head));
  const lines = shards.map((shard) => el("tr", { "data-shard": String(shard.shard) }, el("th", { scope: "row" }, String(shard.shard)), cell(shard.owner ?? "none"),
    cell(served(shard)), cell(shard.wanted.filter((node) => !shard.serving.includes(node)).join(", ") || "–")));
  const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...lines)));
  const details = el("details", { class: "panel", "data-collection": id }, summary, table);
  details.open = open;
  return details;
}

read();
