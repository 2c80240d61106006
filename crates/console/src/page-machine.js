// The machine: processors, workers, memory by kind, disks, GPU, threads, and the settings in force.

import { bytes, cores, count, duration, el, gauge, rows, text } from "./page-dom.js";

const $ = (id) => document.getElementById(id);
// Share of a disk or memory from which it is nearly full.
const FULL = 0.9;

function line(name, ...values) {
  return el("tr", {}, el("th", { scope: "row" }, name), ...values.map((value) => el("td", { class: "number" }, value)));
}

export function machine(now, server) {
  const found = now.machine, { processor } = found;
  const note = `up ${duration(now.at)}${server.engine ? `, ${server.engine}` : ""}, ${found.connections.http} HTTP and ${found.connections.grpc} gRPC connections`;
  text($("machine-note"), note);
  const bars = $("gauges");
  if (!bars.firstChild) bars.append(el("div"), el("div"), el("div"));
  const used = processor.used ?? 0;
  gauge(bars.children[0], processor.limited ? "processor, limited" : "processor", used, processor.cores,
    processor.used === null ? "–" : `${used.toFixed(2)} of ${cores(processor.cores)}`);
  gauge(bars.children[1], "workers busy", found.busy, found.workers, `${found.busy} of ${found.workers}`);
  gauge(bars.children[2], "requests waiting", found.queued, found.queue_max, `${count(found.queued)} (limit ${count(found.queue_max)} per model)`);
  rows($("memory"), JSON.stringify(found.memory), () => found.memory.map(({ kind, used: size, max }) => {
    const row = line(kind, bytes(size), max === null ? "" : `of ${bytes(max)}`);
    row.classList.toggle("full", max !== null && size > FULL * max);
    return row;
  }));
  rows($("disks"), JSON.stringify(found.disks), () => found.disks.map(({ name, path, free, total }) => {
    const row = line(el("span", {}, name, " ", el("code", { title: path }, path)), `${bytes(free)} free`, `of ${bytes(total)}`);
    row.classList.toggle("full", free < (1 - FULL) * total);
    return row;
  }));
  gpu(found.gpu);
  rows($("threads"), JSON.stringify(found.threads), () => found.threads.map((kind) =>
    line(kind.name, String(kind.count), kind.cores === null ? "–" : kind.cores.toFixed(2))));
  $("machine").hidden = false;
}

function gpu(found) {
  $("gpu").hidden = found === null;
  if (found === null) return;
  rows($("gpu").querySelector("tbody"), JSON.stringify(found), () => [
    line("memory in use", bytes(found.device_bytes), ""),
    line("main memory for the GPU", bytes(found.pinned_bytes), ""),
    line("searches", count(found.queries), found.fallbacks ? `${count(found.fallbacks)} by the processor, because the GPU failed` : ""),
  ]);
}

export function settings(server) {
  $("settings").replaceChildren(...server.settings.map((section) => el("table", { class: "figures" },
    el("caption", {}, section.name),
    el("tbody", {}, ...section.settings.map(({ key, value }) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, key)), el("td", {}, value)))))));
}
