// The page for audio: sends a recording, draws it, shows its labels as they arrive, and plays it.

import { Wave, clock, peaksOf } from "./page-audio-wave.js";
import { getJson, request, words } from "./page-api.js";
import { copyButton, state } from "./page-shell.js";
import { bytes, el, hasFolder, onFiles, problem, rows, text } from "./page-dom.js";

// Most listed labels. All are drawn.
const LISTED_MAX = 2000;
// Most classes in the legend. All are drawn.
const LEGEND_MAX = 24;
// Longest line of a response in characters.
const LINE_MAX = 2 ** 20;
const ARROW_S = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 };

const $ = (id) => document.getElementById(id);
const wave = new Wave($("wave")), audio = $("audio"), labels = [];
let recognisers = [], limits = {}, file = null, running = null, address = null;

function enable(button, on) {
  button.setAttribute("aria-disabled", String(!on));
}

function chosen() {
  return recognisers.find((entry) => entry.name === $("recogniser").value);
}

function describe() {
  const entry = chosen();
  const classes = entry?.classes?.length ? `: ${entry.classes.slice(0, 12).join(", ")}${entry.classes.length > 12 ? " …" : ""}` : "";
  text($("about"), entry ? `${entry.kind}${classes}. Runs ${entry.model} v${entry.version} at ${entry.rate} Hz.` : "");
  enable($("start"), entry && file && !running);
}

async function load() {
  try {
    ({ recognisers, limits } = await getJson("/v1/audio"));
  } catch (error) {
    state("failed", "failed");
    problem("problem", `The recognisers cannot be listed: ${words(error)}`);
    usable(false);
    return;
  }
  const working = recognisers.filter((entry) => !entry.error), broken = recognisers.filter((entry) => entry.error);
  recognisers = working;
  $("recogniser").replaceChildren(...working.map((entry) => el("option", { value: entry.name }, entry.title ? `${entry.title} (${entry.name})` : entry.name)));
  const wanted = new URLSearchParams(location.search).get("recogniser");
  if (working.some((entry) => entry.name === wanted)) $("recogniser").value = wanted;
  else if (wanted && working.length) problem("problem", `No recogniser "${wanted}" is served here. Choose one of the list.`);
  if (broken.length) problem("problem", broken.map((entry) => entry.error).join(" "));
  $("none").hidden = working.length + broken.length > 0;
  usable(working.length > 0);
  if (working.length) state("none", "no file chosen"); else state("none", "no recogniser");
  describe();
}

// Enables the form if a recogniser can take a file.
function usable(on) {
  for (const id of ["recogniser", "file"]) $(id).disabled = !on;
  $("drop").hidden = !on;
}

function clear() {
  labels.length = 0;
  wave.clear();
  wave.span = Number($("span").value);
  $("labels").replaceChildren();
  rows($("legend"), "", () => []);
  $("faults").querySelector("ul").replaceChildren();
  for (const id of ["faults", "found", "more", "unseen"]) $(id).hidden = true;
  problem("problem", null);
}

function choose(found) {
  stop();
  // The rest of that answer belongs to another recording.
  running = null;
  enable($("stop"), false);
  $("progress").hidden = true;
  file = found;
  clear();
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(file);
  audio.src = address;
  text($("player-title"), `${file.name} · ${bytes(file.size)}`);
  $("player").hidden = false;
  state("none", "not labelled yet");
  describe();
  look(file);
}

async function look(shown) {
  let peaks = null, words = null;
  try { peaks = await peaksOf(shown); } catch (error) { words = error.message; }
  if (shown !== file) return;
  $("unseen").hidden = words === null;
  text($("unseen"), words ?? "");
  if (!peaks) return;
  wave.peaks = peaks;
  length(peaks.seconds);
}

function length(seconds) {
  if (Number.isFinite(seconds) && seconds > wave.seconds) wave.seconds = seconds;
  $("wave").setAttribute("aria-valuemax", wave.seconds.toFixed(1));
  wave.draw();
}

// ---- results

const counted = () => `${labels.length} ${labels.length === 1 ? "label" : "labels"}`;

function add(label) {
  labels.push(label);
  wave.add(label);
  rows($("legend"), String(wave.lanes.size), () => [...wave.lanes].slice(0, LEGEND_MAX).map(([name, lane]) =>
    el("li", { class: `lane-${lane}` }, name)));
  $("found").hidden = false;
  text($("counts"), `${counted()}. Arrow keys go from one to the next, Enter plays from there.`);
  if (labels.length > LISTED_MAX) {
    $("more").hidden = false;
    text($("more"), `${labels.length - LISTED_MAX} more labels are drawn above and not listed.`);
    return;
  }
  const when = `${clock(label.start, 1)}–${clock(label.end, 1)}`;
  const button = el("button", { tabindex: labels.length === 1 ? "0" : "-1" }, el("span", { class: "when" }, when),
    el("span", { class: "text" }, label.text), el("span", { class: "score" }, label.score.toFixed(2)));
  $("labels").append(el("li", {}, button));
}

function fault(entry) {
  wave.faults.push(entry.at);
  $("faults").hidden = false;
  const go = el("button", {}, clock(entry.at, 1));
  go.addEventListener("click", () => seek(entry.at));
  $("faults").querySelector("ul").append(el("li", {}, go, ` ${entry.what}`));
  wave.draw();
}

function progress(seconds, total) {
  const whole = total ?? (wave.seconds || null), bar = $("progress").querySelector("progress");
  $("progress").hidden = false;
  if (whole) bar.value = Math.min(1, seconds / whole); else bar.removeAttribute("value");
  text($("progress").querySelector("span"), whole ? `${clock(seconds)} of ${clock(whole)}` : clock(seconds));
  wave.heard = seconds;
  length(total ?? seconds);
}

const KINDS = {
  opened: (entry) => progress(0, entry.seconds ?? null),
  label: add,
  fault,
  progress: (entry) => progress(entry.seconds, entry.total),
  summary(entry) {
    progress(entry.seconds, entry.seconds);
    const words = `${counted()} in ${clock(entry.seconds)}`;
    if (entry.partial) state("damaged", `${words}, parts are missing`); else state("done", words);
    running.done = true;
  },
  error(entry) { throw new Error(entry.error); },
};

async function read(body, work) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (running !== work) return;
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const entry = JSON.parse(line);
      KINDS[entry.type]?.(entry);
    }
    if (done) return;
    if (rest.length > LINE_MAX) throw new Error("the server sent a line without end");
  }
}

async function start() {
  if ($("start").getAttribute("aria-disabled") === "true") return;
  const peaks = wave.peaks, seconds = wave.seconds;
  clear();
  Object.assign(wave, { peaks, seconds });
  const work = running = { stop: new AbortController(), done: false };
  enable($("stop"), true);
  describe();
  state("listening", "labelling");
  progress(0, null);
  // Browsers read a response only after the whole upload, so the server stores the upload first if it fits.
  const query = file.size <= (limits.spool_bytes ?? 0) ? "?spool=1" : "";
  const path = `/v1/audio/${encodeURIComponent($("recogniser").value)}${query}`;
  try {
    const headers = { "Content-Type": file.type.startsWith("audio/") ? file.type : "application/octet-stream" };
    const answer = await request("POST", path, { body: file, headers, stop: work.stop.signal });
    await read(answer.body, work);
    if (!work.done) throw new Error("the answer ended early");
  } catch (error) {
    if (running !== work) return;
    if (error.name === "AbortError") { state("none", "stopped"); } else {
      state("failed", "failed");
      problem("problem", labels.length ? `Labels are incomplete: ${words(error)}` : words(error));
    }
  } finally {
    if (running === work) {
      running = null;
      enable($("stop"), false);
      $("progress").hidden = true;
      describe();
    }
  }
}

function stop() {
  running?.stop.abort();
}

// ---- playing

function seek(seconds, play = false) {
  const place = Math.min(Math.max(0, seconds), wave.seconds);
  wave.position = place;
  if (audio.readyState > 0) audio.currentTime = place;
  // If the browser cannot play the format, only the position is shown.
  if (play) audio.play().catch(() => {});
  moved();
}

function moved() {
  const at = audio.readyState > 0 ? audio.currentTime : wave.position;
  wave.position = at;
  wave.draw();
  $("wave").setAttribute("aria-valuenow", at.toFixed(1));
  $("wave").setAttribute("aria-valuetext", clock(at, 1));
  [...$("labels").children].forEach((item, index) => {
    const now = labels[index].start <= at && at < labels[index].end, button = item.firstChild;
    if (now !== button.hasAttribute("aria-current")) button.toggleAttribute("aria-current");
    if (now) button.setAttribute("aria-current", "true");
  });
}

function follow() {
  moved();
  if (!audio.paused) requestAnimationFrame(follow);
}

audio.addEventListener("play", follow);
audio.addEventListener("timeupdate", moved);
audio.addEventListener("seeked", moved);
audio.addEventListener("loadedmetadata", () => length(audio.duration));

$("wave").addEventListener("click", (event) => seek(wave.secondAt(event.offsetX)));
$("wave").addEventListener("keydown", (event) => {
  const by = ARROW_S[event.key];
  if (by) seek(wave.position + by);
  else if (event.key === "Home") seek(0);
  else if (event.key === "End") seek(wave.seconds);
  else if (event.key === " ") { if (audio.paused) seek(wave.position, true); else audio.pause(); }
  else return;
  event.preventDefault();
});

// Tab reaches the list once; the arrow keys move between labels.
function land(item) {
  if (!item) return;
  $("labels").querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  item.firstChild.setAttribute("tabindex", "0");
  item.firstChild.focus();
  seek(labels[[...$("labels").children].indexOf(item)].start);
}

$("labels").addEventListener("keydown", (event) => {
  const item = event.target.closest("li");
  const to = { ArrowDown: item?.nextSibling, ArrowUp: item?.previousSibling, Home: $("labels").firstChild, End: $("labels").lastChild }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  land(to);
});
$("labels").addEventListener("click", (event) => {
  const item = event.target.closest("li");
  if (!item) return;
  land(item);
  seek(wave.position, true);
});

// ---- choosing

$("recogniser").addEventListener("change", describe);
onFiles($("file"), ([first]) => choose(first));
$("start").addEventListener("click", start);
$("stop").addEventListener("click", stop);
$("span").addEventListener("change", () => { wave.span = Number($("span").value); wave.draw(); });
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
document.addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const dropped = event.dataTransfer?.files[0];
  if (!dropped || $("file").disabled) return;
  if (hasFolder(event.dataTransfer)) problem("problem", "A folder cannot be labelled. Drop one audio file.");
  else choose(dropped);
});
$("none-copy").append(copyButton(() => $("none-code").textContent, "the commands"));
load();
