// The chart of a model's last two minutes: percentiles on a logarithmic scale, and requests and queue below on the
// same time axis.

import { ms, svg, count } from "./page-dom.js";

// Indexes in a point: [at, count, p50, p80, p90, p99, p999, max, queued], as in crates/server/src/page/history.rs.
export const AT = 0, COUNT = 1, MAX = 7, QUEUED = 8;
export const LINES = [["p50", 2], ["p80", 3], ["p90", 4], ["p99", 5], ["p999", 6]];

const LEFT = 46, RIGHT = 66, TOP = 32, BOTTOM = 18, STRIP = 30, GAP = 20;
const LABEL_HEIGHT = 13, MARK_GAP = 6, MARK_CHARACTER = 6.4;

// Returns 1, 2 and 5 times each power of ten, from just below `low` to just above `high`.
function steps(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)) + 1; power++) {
    for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
  }
  const first = all.findLastIndex((step) => step <= low);
  const last = all.findIndex((step) => step >= high);
  return all.slice(Math.max(0, first), Math.max(last, first + 3) + 1);
}

function vertical(points, top, bottom) {
  const busy = points.filter((point) => point[COUNT] > 0);
  if (busy.length === 0) return null;
  const marks = steps(Math.min(...busy.map((point) => point[2])), Math.max(...busy.map((point) => point[6])));
  const [low, high] = [Math.log(marks[0]), Math.log(marks.at(-1))];
  return { marks, at: (us) => bottom - ((Math.log(us) - low) / (high - low)) * (bottom - top) };
}

function line(x1, y1, x2, y2, kind) {
  return svg("line", { x1, y1, x2, y2, class: kind });
}

function label(x, y, words, attributes = {}) {
  return svg("text", { x, y, ...attributes }, words);
}

function grid(scale, frame) {
  const every = scale.marks.length > 10 ? 3 : 1;
  return scale.marks.flatMap((us, index) => {
    const y = Math.round(scale.at(us)) + 0.5;
    const parts = [line(frame.left, y, frame.right, y, "grid")];
    const decade = Math.abs(Math.log10(us) % 1) < 1e-9;
    if (every === 1 || decade) {
      parts.push(label(frame.left - 6, y + 4, String(Number((us / 1000).toPrecision(1))), { "text-anchor": "end" }));
    }
    return parts;
  });
}

// A second without requests interrupts a line; a single second is a dot.
function series(points, place, x, scale) {
  let path = "", last = null;
  for (const point of points) {
    if (point[COUNT] === 0) { last = null; continue; }
    const joined = last !== null && point[AT] - last === 1;
    path += `${joined ? "L" : "M"}${x(point[AT]).toFixed(1)} ${scale.at(point[place]).toFixed(1)}${joined ? "" : "h.01"}`;
    last = point[AT];
  }
  return path;
}

// Writes the newest values beside their lines, moved apart if they overlap.
function endLabels(point, scale, frame) {
  const wanted = LINES.map(([name, place]) => ({ name, y: scale.at(point[place]) + 4, words: `${name} ${ms(point[place])}` }));
  for (let index = 1; index < wanted.length; index++) {
    wanted[index].y = Math.min(wanted[index].y, wanted[index - 1].y - LABEL_HEIGHT);
  }
  const over = frame.top + 4 - wanted.at(-1).y;
  if (over > 0) {
    let floor = Infinity;
    for (const entry of [...wanted].reverse()) {
      entry.y = floor === Infinity ? entry.y + over : Math.max(entry.y, floor + LABEL_HEIGHT);
      floor = entry.y;
    }
  }
  return wanted.map(({ name, y, words }) => label(frame.right + 5, y, words, { class: `series-label ${name}` }));
}

export function markWords(mark) {
  if (mark.from === null) return `v${mark.version}`;
  return mark.from === mark.version ? `v${mark.version} again` : `v${mark.from}→v${mark.version}`;
}

function marks(list, x, frame) {
  const ends = [-Infinity, -Infinity];
  return list.filter((mark) => x(mark.at) >= frame.left).flatMap((mark) => {
    const at = Math.round(x(mark.at)) + 0.5, words = markWords(mark), width = words.length * MARK_CHARACTER;
    const parts = [line(at, TOP - 4, at, frame.end, "mark")];
    const start = Math.min(Math.max(at - width / 2, frame.left), frame.right - width);
    const row = ends.findIndex((end) => start >= end);
    if (row >= 0) {
      ends[row] = start + width + MARK_GAP;
      parts.push(label(start, 24 - row * LABEL_HEIGHT, words, { class: "mark-label" }));
    }
    return parts;
  });
}

// Draws bars of one number per second, with its name at the left and its maximum at the right.
function strip(points, place, x, frame, top, name) {
  const most = Math.max(1, ...points.map((point) => point[place])), width = x(1) - x(0);
  const bars = points.map((point) => {
    const height = (point[place] / most) * STRIP, left = x(point[AT] - 1).toFixed(1);
    return height > 0 ? `M${left} ${top + STRIP}v-${Math.max(1, height).toFixed(1)}h${Math.max(1, width - 0.7).toFixed(1)}V${top + STRIP}z` : "";
  });
  const words = points.length ? `max ${count(Math.max(...points.map((point) => point[place])))}` : "";
  return [
    svg("path", { class: "strip", d: bars.join("") }),
    line(frame.left, top + STRIP + 0.5, frame.right, top + STRIP + 0.5, "axis"),
    label(frame.left, top - 4, name),
    label(frame.right + 5, top + STRIP, words),
  ];
}

function seconds(x, frame, span) {
  const times = frame.right - frame.left > 420 ? [120, 90, 60, 30, 0] : [120, 60, 0];
  return times.filter((ago) => ago <= span).map((ago) => {
    const words = ago === 0 ? "now" : `−${ago} s`;
    return label(x(frame.now - ago), frame.end + 13, words, { "text-anchor": ago === 0 ? "end" : ago === span ? "start" : "middle" });
  });
}

// Draws into `chart`. Returns a function from a position to a second.
export function draw(chart, model, now, span, cursor) {
  const [width, height] = [Math.max(chart.clientWidth, 240), chart.clientHeight || 300];
  const end = height - BOTTOM, queue = end - STRIP, requests = queue - GAP - STRIP;
  const frame = { left: LEFT, right: width - RIGHT, top: TOP, bottom: requests - GAP, end, now };
  const x = (at) => frame.right - ((now - at) / span) * (frame.right - frame.left);
  const points = model.points.filter((point) => point[AT] > now - span);
  const scale = vertical(points, frame.top, frame.bottom);
  const parts = [];
  if (scale) {
    parts.push(...grid(scale, frame));
    for (const [name, place] of LINES) parts.push(svg("path", { class: `series ${name}`, d: series(points, place, x, scale) }));
    const newest = points.at(-1);
    if (newest[COUNT] > 0) parts.push(...endLabels(newest, scale, frame));
  } else {
    parts.push(label((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "no requests in the last two minutes",
      { class: "nothing", "text-anchor": "middle" }));
  }
  parts.push(line(frame.left, frame.bottom + 0.5, frame.right, frame.bottom + 0.5, "axis"));
  parts.push(...strip(points, COUNT, x, frame, requests, "requests/s"));
  parts.push(...strip(points, QUEUED, x, frame, queue, "waiting"));
  parts.push(...marks(model.marks, x, frame), ...seconds(x, frame, span));
  if (cursor !== null) parts.push(line(x(cursor), frame.top, x(cursor), frame.end, "cursor"));
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(...parts);
  return (place) => Math.round(now - ((frame.right - place) / (frame.right - frame.left)) * span);
}
