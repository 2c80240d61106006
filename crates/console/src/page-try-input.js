// The editor of one input of a model: fills, JSON text, and files of images and audio.

import { SCALES, audioInput, checkSize, decodeImage, drawImage, imageInput, pixels, samples } from "./page-try-media.js";
import { TEXT_VALUES_MAX, WrongValue, bytesOf, countOf, firstShape, isNumeric, read, shapeWords, textOf } from "./page-try-values.js";
import { el, onFiles, text } from "./page-dom.js";

const ROWS_MIN = 2, ROWS_MAX = 14;
const RATE_DEFAULT = 16000, RATE_MIN = 3000, RATE_MAX = 192000;
const ACCEPT = { image: "image/*", audio: "audio/*,.wav,.flac,.mp3,.ogg,.m4a" };

// What a fill writes for a value.
function filler(kind, datatype) {
  if (datatype === "BYTES") return () => '"text"';
  if (datatype === "BOOL") return () => (kind === "random" ? String(Math.random() < 0.5) : String(kind === "ones"));
  if (kind !== "random") return () => (kind === "ones" ? "1" : "0");
  return /^FP|^BF/.test(datatype) ? () => Math.random().toFixed(3) : () => String(Math.floor(Math.random() * 10));
}

const option = (value, words) => el("option", { value }, words);

export class InputEditor {
  // `spec` is an input of the metadata. `changed` is called after each change of the value.
  constructor(spec, changed) {
    Object.assign(this, { spec, changed, image: imageInput(spec), audio: audioInput(spec), bytes: null, zeros: false, loaded: null, reading: 0 });
    this.shape = firstShape(spec.shape, this.image !== null);
    this.build();
    this.fill();
  }

  // ---- elements

  build() {
    const { name, datatype, shape } = this.spec, id = `input-${name}`;
    this.editor = el("textarea", { id, spellcheck: "false", autocomplete: "off", "aria-describedby": `${id}-problem ${id}-shape` });
    this.editor.addEventListener("input", () => this.edited());
    this.shown = el("span", { class: "note", id: `${id}-shape` });
    this.problem = el("p", { class: "problem", id: `${id}-problem`, role: "alert", hidden: "" });
    this.canvas = el("canvas", { role: "img", "aria-label": `The image as ${name} gets it`, hidden: "" });
    this.summary = el("span", {});
    this.save = el("button", { type: "button", class: "small" }, `Save ${this.file}`);
    this.save.addEventListener("click", () => this.download());
    this.large = el("p", { class: "large note", hidden: "" }, this.summary, this.save);
    const label = el("label", { for: id }, el("code", {}, name), el("span", { class: "note" }, ` ${datatype} ${shapeWords(shape)}`));
    this.root = el("section", { class: "input", "data-input": name },
      el("div", { class: "input-head" }, label, this.shown), el("div", { class: "tools" }, ...this.tools()),
      this.canvas, this.editor, this.large, this.problem);
  }

  tools() {
    const { name, datatype, shape } = this.spec, found = [];
    this.fills = el("select", { "aria-label": `Fill ${name} with` });
    const fills = datatype === "BYTES" ? [["text", "text"]] : [["zeros", "zeros"], ["ones", "ones"], ["random", "random values"]];
    this.fills.append(...fills.map(([value, words]) => option(value, words)));
    this.sizes = shape.map((size, at) => (size >= 0 ? null
      : el("input", { type: "number", min: "1", value: String(this.shape[at]), "aria-label": `Size of dimension ${at + 1} of ${name}` })));
    const again = el("button", { type: "button", class: "small" }, "Fill");
    again.addEventListener("click", () => this.fill());
    this.fills.addEventListener("change", () => this.fill());
    for (const size of this.sizes.filter(Boolean)) size.addEventListener("change", () => this.resized());
    found.push(el("span", { class: "tool" }, this.fills, ...this.sizes.filter(Boolean).length ? [this.dimensions()] : [], again));
    if (this.image) found.push(this.chooser("image", "Image"), this.imageOptions());
    if (this.audio) found.push(this.chooser("audio", "Audio"), this.audioOptions());
    return found;
  }

  dimensions() {
    const parts = this.spec.shape.flatMap((size, at) => [at ? " × " : "", this.sizes[at] ?? String(size)]);
    return el("span", { class: "dimensions" }, ...parts);
  }

  chooser(kind, words) {
    const file = el("input", { type: "file", accept: ACCEPT[kind], "aria-label": `${words} for ${this.spec.name}` });
    onFiles(file, ([first]) => this.load(kind, first));
    return el("span", { class: "tool grow" }, file);
  }

  imageOptions() {
    const select = (words, choices) => {
      const node = el("select", { "aria-label": `${words} of the image for ${this.spec.name}` }, ...choices.map((choice) => option(...choice)));
      node.addEventListener("change", () => this.again());
      return node;
    };
    this.scale = select("Range", Object.entries(SCALES).map(([name, { words }]) => [name, words]));
    if (this.spec.datatype === "UINT8") this.scale.value = "byte";
    this.fit = select("Fit", [["crop", "crop to fill"], ["stretch", "stretch"], ["pad", "pad with black"]]);
    this.order = select("Colour order", [["RGB", "RGB"], ["BGR", "BGR"]]);
    this.order.hidden = this.image.channels === 1;
    this.options = el("span", { class: "tool", hidden: "" }, this.scale, this.fit, this.order);
    return this.options;
  }

  audioOptions() {
    this.rate = el("input", { type: "number", min: String(RATE_MIN), max: String(RATE_MAX), step: "any", value: String(RATE_DEFAULT), "aria-label": `Sample rate of ${this.spec.name} in Hz` });
    this.rate.addEventListener("change", () => this.again());
    return el("span", { class: "tool" }, this.rate, el("span", { class: "note" }, "Hz"));
  }

  // ---- values

  get file() { return `${this.spec.name.replace(/[^A-Za-z0-9._-]+/g, "_")}.bin`; }

  // Reads the sizes of the fields. Returns false and says so if one is not a size.
  sized() {
    for (const [at, field] of this.sizes.entries()) {
      if (!field) continue;
      const size = Number(field.value);
      if (!Number.isInteger(size) || size < 1) {
        this.refuse(`Dimension ${at + 1} must be a whole number of at least 1, and is "${field.value}".`);
        return false;
      }
      this.shape[at] = size;
    }
    try { checkSize(this.shape); } catch (error) { this.refuse(error.message); return false; }
    return true;
  }

  resized() {
    if (this.loaded) this.again(); else this.fill();
  }

  fill() {
    if (!this.sized()) return;
    this.loaded = null;
    this.reading += 1;
    this.canvas.hidden = true;
    if (this.options) this.options.hidden = true;
    const kind = this.fills.value, { datatype } = this.spec, count = countOf(this.shape);
    if (count <= TEXT_VALUES_MAX) return this.write(textOf(this.shape, filler(kind, datatype)));
    if (!isNumeric(datatype)) return this.refuse(`${count} texts are too many to edit here; the maximum is ${TEXT_VALUES_MAX}.`);
    this.zeros = kind === "zeros";
    const make = filler(kind, datatype), value = kind === "ones" ? () => 1 : () => (datatype === "BOOL" ? Number(make() === "true") : Number(make()));
    // Zeros are made when they are sent.
    this.set(this.zeros ? null : bytesOf(Array.from({ length: count }, value), datatype), this.fills.selectedOptions[0].textContent);
  }

  async load(kind, file) {
    this.loaded = { kind, file };
    await this.again();
  }

  // Reads the file again, with the options as they are now. A large file may be ready after one that was chosen later.
  async again() {
    const { loaded } = this;
    if (!loaded || !this.sized()) return;
    const reading = this.reading += 1, isLast = () => reading === this.reading;
    try {
      if (loaded.kind === "image") await this.readImage(loaded.file, isLast); else await this.readAudio(loaded.file, isLast);
    } catch (error) {
      if (isLast()) this.refuse(error.message);
    }
  }

  async readImage(file, isLast) {
    const { layout } = this.image, [a, b, c] = this.shape.slice(-3), [height, width] = layout === "CHW" ? [b, c] : [a, b];
    if (!height || !width) throw new Error("An image needs a height and a width of 1 or more.");
    const bitmap = await decodeImage(file);
    if (!isLast()) {
      bitmap.close();
      return;
    }
    drawImage(bitmap, this.canvas, { width, height, fit: this.fit.value });
    const one = pixels(this.canvas, this.image, { scale: this.scale.value, order: this.order.value });
    this.canvas.hidden = false;
    this.options.hidden = false;
    // An input for several images gets the same one several times.
    const count = this.shape.length === 4 ? this.shape[0] : 1, values = new Float32Array(one.length * count);
    for (let at = 0; at < count; at += 1) values.set(one, at * one.length);
    this.take(values, `${file.name}, ${width} × ${height}`);
  }

  async readAudio(file, isLast) {
    const rate = Number(this.rate.value);
    if (!(rate >= RATE_MIN && rate <= RATE_MAX)) throw new Error(`The sample rate must be from ${RATE_MIN} to ${RATE_MAX} Hz.`);
    const { values, seconds, isCut } = await samples(file, this.audio, rate);
    if (!isLast()) return;
    this.shape = this.spec.shape.map((size, at) => (at === this.spec.shape.length - 1 ? values.length : 1));
    this.sizes.forEach((field, at) => { if (field) field.value = String(this.shape[at]); });
    this.take(values, `${file.name}, ${seconds.toFixed(1)} s${isCut ? `, the first ${(values.length / rate).toFixed(1)} s` : ""}`);
  }

  // Takes values that were computed: as text if they are few.
  take(values, words) {
    this.zeros = false;
    if (values.length > TEXT_VALUES_MAX) return this.set(bytesOf(values, this.spec.datatype), words);
    let at = 0;
    const written = this.spec.datatype === "UINT8" ? String : (value) => String(Number(value.toPrecision(7)));
    this.write(textOf(this.shape, () => written(values[at++])));
  }

  // Shows a value that is too large to edit.
  set(bytes, words) {
    this.bytes = bytes;
    this.fail(null);
    this.editor.hidden = true;
    this.large.hidden = false;
    this.save.hidden = bytes === null;
    text(this.summary, `${countOf(this.shape).toLocaleString("en")} values: ${words}. `);
    text(this.shown, shapeWords(this.shape));
    this.changed();
  }

  write(words) {
    this.editor.value = words;
    this.edited();
  }

  edited() {
    Object.assign(this, { bytes: null, zeros: false });
    this.editor.hidden = false;
    this.large.hidden = true;
    this.editor.rows = Math.min(ROWS_MAX, Math.max(ROWS_MIN, this.editor.value.split("\n").length));
    this.check();
    this.changed();
  }

  // Checks the text, and shows its shape or the error.
  check() {
    try {
      this.shape = read(this.editor.value, this.spec).shape;
      this.sizes.forEach((field, at) => { if (field) field.value = String(this.shape[at]); });
      text(this.shown, shapeWords(this.shape));
      this.fail(null);
    } catch (error) {
      if (!(error instanceof WrongValue)) throw error;
      text(this.shown, "");
      this.fail(error.message);
    }
  }

  // Shows an error at the input, or removes it.
  fail(words) {
    this.wrong = words;
    this.problem.hidden = !words;
    text(this.problem, words ?? "");
    this.editor.setAttribute("aria-invalid", String(Boolean(words)));
  }

  // Shows why a value could not be made. The request as code then shows no older value.
  refuse(words) {
    this.fail(words);
    this.changed();
  }

  // Returns the tensor in the form of page-try-snippets.js with its `bytes`, or null if the value is wrong.
  tensor() {
    if (this.wrong) return null;
    const { name, datatype } = this.spec, head = { name, datatype, shape: this.shape };
    if (this.editor.hidden) return this.zeros ? head : { ...head, file: this.file, bytes: this.bytes };
    return { ...head, text: this.editor.value };
  }

  focus() {
    (this.editor.hidden ? this.fills : this.editor).focus();
  }

  download() {
    const address = URL.createObjectURL(new Blob([this.bytes], { type: "application/octet-stream" }));
    const link = el("a", { href: address, download: this.file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 0);
  }
}
