// Charts: latency on a logarithmic scale with requests and errors below on the same time axis, and the small chart of
// a row. Only the last intervals are known for seconds; longer ranges have longer intervals.

import { clock, count, ms, passed, svg } from "./page-dom.js";

// Places in a point, as in crates/console/src/history/range.rs.
export const AT = 0, REQUESTS = 1, ERRORS = 2, P50 = 3, P90 = 4, P99 = 5, P999 = 6, MAX = 7, QUEUED = 8;
// Lines of one version: name, place, class.
export const LINES = [["p50", P50, "p50"], ["p90", P90, "p90"], ["p99", P99, "p99"], ["max", MAX, "max"]];
// Lines of a comparison: median and tail of each version.
export const PAIR = [["p50", P50], ["p99", P99]];

const LEFT = 48, RIGHT = 94, TOP = 34, BOTTOM = 20, STRIP = 44, GAP = 24;
const LABEL_HEIGHT = 13, MARK_GAP = 6, MARK_CHARACTER = 6.4;
const SPARK = { width: 150, height: 28 };
// Seconds of a record of the longer ranges, as in crates/console/src/history/mod.rs. The last record is not known yet.
const RECORD_SECONDS = 10;
// A range up to this is labelled by the time that has passed, a longer one by the clock.
const AGO_MAX = 900;

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

function vertical(lines, top, bottom) {
  const values = lines.flatMap(({ points, place }) => points.map((point) => point[place])).filter((value) => value > 0);
  if (values.length === 0) return null;
  const marks = steps(Math.min(...values), Math.max(...values));
  const [low, high] = [Math.log(marks[0]), Math.log(marks.at(-1))];
  return { marks, at: (us) => bottom - ((Math.log(us) - low) / (high - low)) * (bottom - top) };
}

// Returns the seconds of an interval whose requests are known: the newest interval may not have ended.
export function covered(point, step, now) {
  if (step <= RECORD_SECONDS) return step;
  const known = Math.floor(now / RECORD_SECONDS) * RECORD_SECONDS - (point[AT] - step);
  return Math.min(step, Math.max(RECORD_SECONDS, known));
}

// Returns the seconds of a range for which the server has records: it may have started later, or dropped older ones.
export function recorded(history, now) {
  return Math.max(1, now - Math.max(0, now - history.span, history.complete_from));
}

function line(x1, y1, x2, y2, kind) {
  return svg("line", { x1, y1, x2, y2, class: kind });
}

function label(x, y, words, attributes = {}) {
  return svg("text", { x, y, ...attributes }, words);
}

function grid(scale, frame) {
  const every = scale.marks.length > 10 ? 3 : 1;
  return scale.marks.flatMap((us) => {
    const y = Math.round(scale.at(us)) + 0.5;
    const parts = [line(frame.left, y, frame.right, y, "grid")];
    const decade = Math.abs(Math.log10(us) % 1) < 1e-9;
    if (every === 1 || decade) {
      parts.push(label(frame.left - 6, y + 4, String(Number((us / 1000).toPrecision(1))), { "text-anchor": "end" }));
    }
    return parts;
  });
}

// An interval without requests interrupts a line; a single interval is a dot.
function path(points, place, step, x, scale) {
  let drawn = "", last = null;
  for (const point of points) {
    if (point[place] === 0) { last = null; continue; }
    const joined = last !== null && point[AT] - last <= step;
    drawn += `${joined ? "L" : "M"}${x(point[AT] - step / 2).toFixed(1)} ${scale.at(point[place]).toFixed(1)}${joined ? "" : "h.01"}`;
    last = point[AT];
  }
  return drawn;
}

// Writes the newest values beside their lines, moved apart if they overlap.
function endLabels(lines, now, step, scale, frame) {
  const newest = lines.map(({ name, points, place, kind }) => ({ name, kind, point: points.at(-1), place }))
    .filter(({ point, place }) => point && point[place] > 0 && now - point[AT] <= 3 * step);
  const wanted = newest.map(({ name, kind, point, place }) => ({ kind, y: scale.at(point[place]) + 4, words: `${name} ${ms(point[place])}` }))
    .sort((a, b) => b.y - a.y);
  for (let index = 1; index < wanted.length; index++) {
    wanted[index].y = Math.min(wanted[index].y, wanted[index - 1].y - LABEL_HEIGHT);
  }
  const over = wanted.length ? frame.top + 4 - wanted.at(-1).y : 0;
  if (over > 0) {
    let floor = -Infinity;
    for (const entry of [...wanted].reverse()) {
      entry.y = floor === -Infinity ? entry.y + over : Math.max(entry.y, floor + LABEL_HEIGHT);
      floor = entry.y;
    }
  }
  return wanted.map(({ kind, y, words }) => label(frame.right + 6, y, words, { class: `series-label ${kind}` }));
}

// Words of a mark, or null for an event that is not marked.
export function markWords(event) {
  if (event.kind === "loaded") return event.from === undefined ? `v${event.version}` : event.from === event.version ? `v${event.version} again` : `v${event.from}→v${event.version}`;
  if (event.kind === "failed") return `v${event.version} failed`;
  if (event.kind === "withdrawn") return `v${event.version} withdrawn`;
  return null;
}

function marks(events, x, frame) {
  const ends = [-Infinity, -Infinity];
  return events.filter((event) => markWords(event) && x(event.at) >= frame.left).flatMap((event) => {
    const words = markWords(event), at = Math.round(x(event.at)) + 0.5, width = words.length * MARK_CHARACTER;
    const bad = event.level === "info" ? "" : " bad";
    const parts = [line(at, TOP - 4, at, frame.end, `mark${bad}`)];
    const start = Math.min(Math.max(at - width / 2, frame.left), frame.right - width);
    const row = ends.findIndex((end) => start >= end);
    if (row >= 0) {
      ends[row] = start + width + MARK_GAP;
      parts.push(label(start, 26 - row * LABEL_HEIGHT, words, { class: `mark-label${bad}` }));
    }
    return parts;
  });
}

// Draws the rate of requests of each interval as bars, that of the failed ones in red at the bottom.
function bars(points, step, now, x, frame, top) {
  const rates = points.map((point) => point[REQUESTS] / covered(point, step, now)), most = Math.max(1 / step, ...rates);
  const width = Math.max(1, x(step) - x(0) - 0.7);
  const bar = (point, number) => {
    const height = (number / covered(point, step, now) / most) * STRIP;
    return number > 0 ? `M${x(point[AT] - step).toFixed(1)} ${top + STRIP}v-${Math.max(1, height).toFixed(1)}h${width.toFixed(1)}V${top + STRIP}z` : "";
  };
  const highest = points.length ? `max ${count(Math.max(...rates))}/s` : "";
  return [
    svg("path", { class: "strip", d: points.map((point) => bar(point, point[REQUESTS])).join("") }),
    svg("path", { class: "strip-errors", d: points.map((point) => bar(point, point[ERRORS])).join("") }),
    line(frame.left, top + STRIP + 0.5, frame.right, top + STRIP + 0.5, "axis"),
    label(frame.left, top - 6, "requests, and errors in red"),
    label(frame.right + 6, top + STRIP, highest),
  ];
}

function times(x, frame, span, now, started) {
  const few = frame.right - frame.left < 420 ? 2 : 4;
  return Array.from({ length: few + 1 }, (_, index) => (span * (few - index)) / few).map((ago) => {
    const words = span <= AGO_MAX ? (ago === 0 ? "now" : `−${passed(ago)}`) : clock(started + (now - ago) * 1000, false);
    return label(x(now - ago), frame.end + 14, words, { "text-anchor": ago === 0 ? "end" : ago === span ? "start" : "middle" });
  });
}

// Draws into `chart`. Returns a function from a position to a time, in seconds since the server started.
//
// `shown` has lines of latency ({ name, place, kind, points }), points of requests, events, and the range.
export function draw(chart, shown, cursor) {
  const { lines, requests, events, now, span, step, started } = shown;
  const [width, height] = [Math.max(chart.clientWidth, 240), chart.clientHeight || 340];
  const end = height - BOTTOM, strip = end - STRIP;
  const frame = { left: LEFT, right: width - RIGHT, top: TOP, bottom: strip - GAP, end };
  const x = (at) => frame.right - ((now - at) / span) * (frame.right - frame.left);
  const scale = vertical(lines, frame.top, frame.bottom), parts = [];
  if (scale) {
    parts.push(...grid(scale, frame), label(frame.left - 6, TOP - 8, "ms", { "text-anchor": "end" }));
    for (const { points, place, kind } of lines) parts.push(svg("path", { class: `series ${kind}`, d: path(points, place, step, x, scale) }));
    parts.push(...endLabels(lines, now, step, scale, frame));
  } else {
    const words = requests.length ? "no request had a result in this time" : "no requests in this time";
    parts.push(label((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, words, { class: "nothing", "text-anchor": "middle" }));
  }
  parts.push(line(frame.left, frame.bottom + 0.5, frame.right, frame.bottom + 0.5, "axis"));
  parts.push(...bars(requests, step, now, x, frame, strip), ...marks(events, x, frame), ...times(x, frame, span, now, started));
  if (cursor !== null) parts.push(line(x(cursor - step / 2), frame.top, x(cursor - step / 2), frame.end, "cursor"));
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(...parts);
  return (place) => now - ((frame.right - place) / (frame.right - frame.left)) * span;
}

// Returns a small chart of requests as bars, the failed ones in red. Points are [end, requests, errors, p99].
export function spark(points, now, span, step) {
  const { width, height } = SPARK, most = Math.max(1, ...points.map((point) => point[1]));
  const x = (at) => width - ((now - at) / span) * width, wide = Math.max(1, (step / span) * width - 0.4);
  const bar = (end, number) => (number > 0 ? `M${Math.max(0, x(end) - wide).toFixed(1)} ${height}v-${Math.max(1.5, (number / most) * (height - 2)).toFixed(1)}h${wide.toFixed(1)}V${height}z` : "");
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("path", { class: "strip", d: points.map(([end, number]) => bar(end, number)).join("") }),
    svg("path", { class: "strip-errors", d: points.map(([end, , errors]) => bar(end, errors)).join("") }),
    line(0, height - 0.5, width, height - 0.5, "axis"));
}
