// Queue, batches and learned costs of one model.

import { count, el, rows } from "./page-dom.js";

const BARS_MIN = 5;

export function batching(panel, schedule, names) {
  panel.hidden = !schedule;
  if (!schedule) return;
  numbers(panel.querySelector(".numbers"), schedule);
  sizes(panel.querySelector(".bars"), schedule.window.batch_sizes, names);
  classes(panel.querySelector(".classes"), schedule.classes.filter((entry) => entry.item_us.length > 0));
}

function numbers(node, schedule) {
  const { window } = schedule, elements = window.real_elements + window.padding_elements;
  const found = [["mode", schedule.mode], ["waiting", count(schedule.queued)], ["running", count(schedule.running)],
    ["mean batch", window.batches ? (window.items / window.batches).toFixed(1) : "–"],
    ["padding", elements ? `${((100 * window.padding_elements) / elements).toFixed(1)} %` : "–"],
    ["refused", count(window.refused), window.refused > 0], ["timed out", count(window.expired), window.expired > 0]];
  if (schedule.queued_by_priority.length > 1) found.push(["waiting by priority", schedule.queued_by_priority.join(" · ")]);
  rows(node, JSON.stringify(found), () => found.map(([name, value, bad]) => el("div", {}, el("dt", {}, name), el("dd", { class: bad ? "bad" : "" }, value))));
}

function sizes(node, found, names) {
  const runs = found.reduce((sum, size) => sum + size, 0);
  const shown = Math.max(BARS_MIN, found.findLastIndex((size) => size > 0) + 1);
  const words = found.map((size, index) => `${size} of ${names[index]}`).filter((_, index) => found[index] > 0);
  node.setAttribute("aria-label", runs ? `Runs by batch size: ${words.join(", ")}` : "No runs in the last 10 s");
  rows(node, JSON.stringify(found), () => {
    if (runs === 0) return [el("div", { class: "empty" }, "no runs")];
    const most = Math.max(...found);
    return found.slice(0, shown).map((size, index) => {
      const bar = el("i", { title: `${size} runs of ${names[index]}` }), share = Math.round((100 * size) / runs);
      bar.style.height = size ? `${Math.max(2, (56 * size) / most)}px` : "1px";
      return el("div", {}, size ? (share < 1 ? "<1 %" : `${share} %`) : "", bar, names[index].replace(/^\d+–/, "≤"));
    });
  });
}

function classes(details, found) {
  details.hidden = found.length === 0;
  rows(details.querySelector("tbody"), JSON.stringify(found), () => found.map((entry) => {
    const best = entry.item_us.find(([size]) => size === entry.best) ?? entry.item_us[0];
    const times = [entry.item_us[0], best].map(([, us]) => Math.round(us));
    return el("tr", {}, el("td", {}, entry.shape), el("td", { class: "number" }, String(entry.best)), el("td", { class: "number" }, `${times[0]} → ${times[1]}`));
  }));
}
