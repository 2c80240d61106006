// Two pictures and what they have in common: a line for each pair of keypoints.

import { path, show } from "./page-images-api.js";
import { svg, text } from "./page-dom.js";

// Room between the pictures, as a share of their common side.
const GAP = 0.06;
// The common side of the drawing, in its own units.
const SIDE = 600;
// Longest side of the found picture as it is fetched.
const PIXELS = 800;
// More pairs would hide the pictures; those left out are counted.
export const LINES_MAX = 150;
const COLOURS = 6;

const narrow = matchMedia("(max-width: 40rem)");

export class Match {
  constructor(figure) {
    this.drawing = figure.querySelector("svg");
    this.words = figure.querySelector("figcaption");
    this.shown = null;
    narrow.addEventListener("change", () => this.draw());
  }

  // `query` is {address, width, height}, `result` as the server gave it.
  show(collection, query, result, name) {
    this.shown = { collection, query, result, name };
    this.draw();
  }

  draw() {
    if (!this.shown) return;
    const { collection, query, result, name } = this.shown, pairs = result.pairs ?? [];
    const [left, right, size] = places(query, result, narrow.matches);
    this.drawing.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    this.drawing.setAttribute("data-across", String(!narrow.matches));
    const pictures = [left, right].map((place) => svg("image", { x: place.x, y: place.y, width: place.width, height: place.height, preserveAspectRatio: "none" }));
    for (const image of pictures) image.addEventListener("load", () => image.setAttribute("data-loaded", ""));
    const frames = [left, right].map((place) => svg("rect", { class: "frame", x: place.x, y: place.y, width: place.width, height: place.height }));
    if (query.address) pictures[0].setAttribute("href", query.address); else if (query.id) show(pictures[0], "href", thumbnail(collection, query.id));
    show(pictures[1], "href", thumbnail(collection, result.id));
    const drawn = pairs.filter((_, at) => at % Math.ceil(pairs.length / LINES_MAX) === 0);
    const lines = drawn.map(([xq, yq, xr, yr], at) => line(at, left.at(xq, yq), right.at(xr, yr)));
    const marks = drawn.flatMap(([xq, yq, xr, yr], at) => [mark(at, left.at(xq, yq)), mark(at, right.at(xr, yr))]);
    this.drawing.replaceChildren(...frames, ...pictures, ...lines, ...marks);
    text(this.words, words(name, result, pairs.length, drawn.length));
  }
}

// A matcher's score: from 0, without an upper end.
export const points = (score) => score.toFixed(score >= 100 ? 0 : 1);

const thumbnail = (collection, id) => path(collection, `/${id}/thumbnail`, { size: PIXELS });

function words(name, result, pairs, drawn) {
  const matched = pairs === 0 ? "no keypoints match" : `${pairs} matching ${pairs === 1 ? "keypoint" : "keypoints"}${drawn < pairs ? `, ${drawn} drawn` : ""}`;
  return `${name} and ${result.name}: ${matched}. Score ${points(result.score)}, coarse likeness ${result.coarse.toFixed(3)}, ${result.accepted ? "accepted" : "not accepted"}.`;
}

// Side by side with one height, or one above the other with one width.
function places(query, result, stacked) {
  const ratios = [query, result].map((picture) => (picture.width || 1) / (picture.height || 1));
  const sizes = ratios.map((ratio) => (stacked ? { width: SIDE, height: SIDE / ratio } : { width: SIDE * ratio, height: SIDE }));
  const gap = SIDE * GAP, [first, second] = sizes;
  const left = { x: 0, y: 0, ...first };
  const right = stacked ? { x: 0, y: first.height + gap, ...second } : { x: first.width + gap, y: 0, ...second };
  for (const [place, picture] of [[left, query], [right, result]]) {
    place.at = (x, y) => ({ x: place.x + (x / (picture.width || 1)) * place.width, y: place.y + (y / (picture.height || 1)) * place.height });
  }
  return [left, right, { width: right.x + right.width, height: right.y + right.height }];
}

const line = (at, from, to) => svg("line", { class: `pair lane-${at % COLOURS}`, x1: from.x, y1: from.y, x2: to.x, y2: to.y });
const mark = (at, { x, y }) => svg("circle", { class: `end lane-${at % COLOURS}`, cx: x, cy: y, r: SIDE / 130 });
