// Draws a recording: its waveform, and below it a row of labels per class on the same time axis.

const RULER = 18, WAVE = 0.5, LANE_MIN = 15, LANE_MAX = 40, LANES_MAX = 6, GUTTER = 2;
// Samples per drawn peak: a hundredth of a second at the rate below.
const PEAK_SAMPLES = 80, PEAK_RATE = 8000;
// Largest file that is drawn, because the browser decodes it into memory. Larger files are only labelled.
const FILE_BYTES_MAX = 256 * 2 ** 20;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];
const STEP_PIXELS_MIN = 64;
// One color per row. Classes beyond the last share it.
const COLOURS = ["--p50", "--p99", "--p80", "--p999", "--p90", "--soft"];

// Formats a time of a recording. It is rounded before it is split: 59.96 s are 1:00.0.
export function clock(time, digits = 0) {
  const seconds = digits ? Number(time.toFixed(digits)) : time, whole = Math.floor(seconds), hours = Math.floor(whole / 3600);
  const parts = [Math.floor(whole / 60) % 60, whole % 60];
  const words = (hours ? [hours, ...parts] : parts).map((part, place) => (place ? String(part).padStart(2, "0") : part)).join(":");
  return digits ? words + (seconds - whole).toFixed(digits).slice(1) : words;
}

// Returns the largest and smallest sample of each hundredth of a second, or the reason if there are none.
export async function peaksOf(file) {
  if (file.size > FILE_BYTES_MAX) throw new Error("The recording is too large to be drawn here. This does not affect its labels.");
  let sound;
  try {
    sound = await new OfflineAudioContext(1, 1, PEAK_RATE).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error("This browser cannot read the recording, so it is not drawn. This does not affect its labels.");
  }
  const count = Math.ceil(sound.length / PEAK_SAMPLES), high = new Float32Array(count), low = new Float32Array(count);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    const samples = sound.getChannelData(channel);
    for (let at = 0; at < count; at++) {
      const end = Math.min(samples.length, (at + 1) * PEAK_SAMPLES);
      for (let i = at * PEAK_SAMPLES; i < end; i++) {
        if (samples[i] > high[at]) high[at] = samples[i];
        if (samples[i] < low[at]) low[at] = samples[i];
      }
    }
  }
  // Scaled to the loudest sample.
  let most = 0.01;
  for (let at = 0; at < count; at++) most = Math.max(most, high[at], -low[at]);
  return { high, low, most, seconds: sound.duration };
}

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    Object.assign(this, { peaks: null, labels: [], lanes: new Map(), faults: [], seconds: 0, position: 0, span: 0, heard: 0 });
    this.draw();
  }

  add(label) {
    this.labels.push(label);
    const last = LANES_MAX - 1;
    if (!this.lanes.has(label.text)) this.lanes.set(label.text, Math.min(this.lanes.size, last));
    this.seconds = Math.max(this.seconds, label.end);
    this.draw();
  }

  // The visible range in seconds.
  get view() {
    const all = Math.max(this.seconds, 0.001), span = this.span && this.span < all ? this.span : all;
    const from = Math.min(Math.max(0, this.position - span / 2), all - span);
    return { from, span };
  }

  // Returns the second at a position on the canvas.
  secondAt(x) {
    const { from, span } = this.view;
    return Math.min(this.seconds, Math.max(0, from + (x / this.canvas.clientWidth) * span));
  }

  // Draws at most once per frame.
  draw() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.paint(); });
  }

  paint() {
    const { canvas } = this, { clientWidth: width, clientHeight: height } = canvas, scale = devicePixelRatio || 1;
    if (!width || !height) return;
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    pen.scale(scale, scale);
    pen.font = `11px ${colour("--font")}`;
    const { from, span } = this.view, x = (second) => ((second - from) / span) * width;
    const middle = RULER + (height - RULER) * WAVE, frame = { width, height, from, span, x, middle, colour };
    this.ruler(pen, frame);
    this.wave(pen, frame);
    this.boxes(pen, frame);
    for (const fault of this.faults) line(pen, x(fault), RULER, height, colour("--bad"), [2, 3]);
    if (this.heard > 0 && this.heard < this.seconds) line(pen, x(this.heard), RULER, height, colour("--line"), []);
    line(pen, x(this.position), 0, height, colour("--text"), []);
  }

  ruler(pen, { width, from, span, x, height, colour }) {
    const step = STEPS.find((step) => (step / span) * width >= STEP_PIXELS_MIN) ?? STEPS.at(-1);
    for (let second = Math.ceil(from / step) * step; second <= from + span; second += step) {
      line(pen, x(second), RULER, height, colour("--grid"), []);
      pen.fillStyle = colour("--soft");
      pen.textAlign = x(second) < 16 ? "left" : x(second) > width - 16 ? "right" : "center";
      pen.fillText(clock(second, step < 1 ? 1 : 0), x(second), 12);
    }
  }

  wave(pen, { width, from, span, middle, colour }) {
    if (!this.peaks) return;
    const { high, low, most } = this.peaks, rate = PEAK_RATE / PEAK_SAMPLES, half = (middle - RULER) / 2, centre = RULER + half, up = half / most;
    pen.fillStyle = colour("--bar");
    for (let column = 0; column < width; column++) {
      const first = Math.floor((from + (column / width) * span) * rate);
      const last = Math.max(first + 1, Math.floor((from + ((column + 1) / width) * span) * rate));
      let top = 0, bottom = 0;
      for (let at = first; at < last && at < high.length; at++) {
        if (high[at] > top) top = high[at];
        if (low[at] < bottom) bottom = low[at];
      }
      pen.fillRect(column, centre - top * up, 1, Math.max(1, (top - bottom) * up));
    }
  }

  boxes(pen, { height, from, span, x, middle, colour }) {
    const lanes = Math.max(1, Math.min(LANES_MAX, this.lanes.size)), each = Math.min(LANE_MAX, Math.max(LANE_MIN, (height - middle) / lanes));
    pen.textAlign = "left";
    for (const label of this.labels) {
      if (label.end < from || label.start > from + span) continue;
      const lane = this.lanes.get(label.text), top = middle + lane * each + GUTTER;
      const left = x(label.start), wide = Math.max(1, x(label.end) - left);
      pen.fillStyle = colour(COLOURS[lane % COLOURS.length]);
      pen.fillRect(left, top, wide, each - 2 * GUTTER);
      const seen = Math.max(left, 0), room = left + wide - seen - 8;
      if (room > 16 && pen.measureText(label.text).width <= room) {
        pen.fillStyle = colour("--panel");
        pen.fillText(label.text, seen + 4, top + (each - 2 * GUTTER) / 2 + 4);
      }
    }
  }
}

function line(pen, x, top, bottom, colour, dash) {
  pen.strokeStyle = colour;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(Math.round(x) + 0.5, top);
  pen.lineTo(Math.round(x) + 0.5, bottom);
  pen.stroke();
  pen.setLineDash([]);
}
