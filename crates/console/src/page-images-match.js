// Draws two images and a line for each matched pair of keypoints.

import { path } from "./page-images-api.js";
import { svg, text } from "./page-dom.js";

// Gap between the images, as a share of their common side.
const GAP = 0.06;
// Common side of the images in units of the drawing.
const SIDE = 600;
// Longest side of the fetched image in pixels.
const PIXELS = 800;
// Most drawn pairs, so that the images stay visible. Others are counted.
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

  // `query` is {address, width, height}; `result` is from the server's response.
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
    const images = [left, right].map((place) => svg("image", { x: place.x, y: place.y, width: place.width, height: place.height, preserveAspectRatio: "none" }));
    for (const image of images) image.addEventListener("load", () => image.setAttribute("data-loaded", ""));
    const frames = [left, right].map((place) => svg("rect", { class: "frame", x: place.x, y: place.y, width: place.width, height: place.height }));
    images[0].setAttribute("href", query.address ?? thumbnail(collection, query.id));
    images[1].setAttribute("href", thumbnail(collection, result.id));
    const drawn = pairs.filter((_, at) => at % Math.ceil(pairs.length / LINES_MAX) === 0);
    const lines = drawn.map(([xq, yq, xr, yr], at) => line(at, left.at(xq, yq), right.at(xr, yr)));
    const marks = drawn.flatMap(([xq, yq, xr, yr], at) => [mark(at, left.at(xq, yq)), mark(at, right.at(xr, yr))]);
    this.drawing.replaceChildren(...frames, ...images, ...lines, ...marks);
    text(this.words, words(name, result, pairs.length, drawn.length));
  }
}

// Formats a score, which is 0 or more and has no maximum.
export const points = (score) => score.toFixed(score >= 100 ? 0 : 1);

const thumbnail = (collection, id) => path(collection, `/${id}/thumbnail`, { size: PIXELS });

function words(name, result, pairs, drawn) {
  const matched = pairs === 0 ? "no keypoints match" : `${pairs} matching ${pairs === 1 ? "keypoint" : "keypoints"}${drawn < pairs ? `, ${drawn} drawn` : ""}`;
  return `${name} and ${result.name}: ${matched}. Score ${points(result.score)}, coarse similarity ${result.coarse.toFixed(3)}, ${result.accepted ? "accepted" : "not accepted"}.`;
}

// Places the images side by side with one height, or above each other with one width.
function places(query, result, stacked) {
  const ratios = [query, result].map((image) => (image.width || 1) / (image.height || 1));
  const sizes = ratios.map((ratio) => (stacked ? { width: SIDE, height: SIDE / ratio } : { width: SIDE * ratio, height: SIDE }));
  const gap = SIDE * GAP, [first, second] = sizes;
  const left = { x: 0, y: 0, ...first };
  const right = stacked ? { x: 0, y: first.height + gap, ...second } : { x: first.width + gap, y: 0, ...second };
  for (const [place, image] of [[left, query], [right, result]]) {
    place.at = (x, y) => ({ x: place.x + (x / (image.width || 1)) * place.width, y: place.y + (y / (image.height || 1)) * place.height });
  }
  return [left, right, { width: right.x + right.width, height: right.y + right.height }];
}

const line = (at, from, to) => svg("line", { class: `pair lane-${at % COLOURS}`, x1: from.x, y1: from.y, x2: to.x, y2: to.y });
const mark = (at, { x, y }) => svg("circle", { class: `end lane-${at % COLOURS}`, cx: x, cy: y, r: SIDE / 130 });
