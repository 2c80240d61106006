// Values of tensors as JSON text and as bytes: builds, checks and formats them. No element of the page is used here.

// Most values that are edited as text. Larger tensors are filled, or read from a file.
export const TEXT_VALUES_MAX = 4096;
// Most values of one tensor: what the page holds in memory.
export const VALUES_MAX = 2 ** 25;
// Size of an unknown dimension that a fill begins with.
const DIMENSION_DEFAULT = 1;
// Longest text of a response that is shown whole.
const TEXT_CHARACTERS_MAX = 500;
// Longest line of a list of numbers before it is wrapped.
const LINE_CHARACTERS_MAX = 60;

const INTEGERS = {
  INT8: [-(2n ** 7n), 2n ** 7n - 1n], INT16: [-(2n ** 15n), 2n ** 15n - 1n], INT32: [-(2n ** 31n), 2n ** 31n - 1n],
  INT64: [-(2n ** 63n), 2n ** 63n - 1n], UINT8: [0n, 2n ** 8n - 1n], UINT16: [0n, 2n ** 16n - 1n],
  UINT32: [0n, 2n ** 32n - 1n], UINT64: [0n, 2n ** 64n - 1n],
};
const ARRAYS = {
  FP64: Float64Array, FP32: Float32Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array,
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array, BOOL: Uint8Array,
  // Written by `half` and `brain`.
  FP16: Uint16Array, BF16: Uint16Array,
};
// A string, a number or a word of JSON, at the start of a text.
const TOKEN = /"(?:[^"\\\x00-\x1f]|\\.)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|-?Infinity|NaN/y;

export const isNumeric = (datatype) => datatype in ARRAYS;
export const countOf = (shape) => shape.reduce((product, size) => product * size, 1);
export const shapeWords = (shape) => `[${shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]`;

// Returns the shape that a fill begins with.
export function firstShape(shape, isImage) {
  return shape.map((size, at) => (size >= 0 ? size : isImage && at > 0 && shape.length - at <= 3 ? 224 : DIMENSION_DEFAULT));
}

// ---- text

// Returns the text of a tensor whose values are made by `value`, one innermost list on a line.
export function textOf(shape, value, indent = "") {
  let at = 0;
  const write = (rest, indent) => {
    if (rest.length === 0) return value(at++);
    const parts = Array.from({ length: rest[0] }, () => write(rest.slice(1), `${indent} `));
    if (rest.length > 1) return `[${parts.join(`,\n${indent} `)}]`;
    return `[${wrapped(parts, indent)}]`;
  };
  return write(shape, indent);
}

function wrapped(parts, indent) {
  const lines = [""];
  for (const [at, part] of parts.entries()) {
    const piece = at + 1 < parts.length ? `${part},` : part, line = lines.at(-1);
    if (line && line.length + piece.length > LINE_CHARACTERS_MAX) lines.push(piece);
    else lines[lines.length - 1] = line ? `${line} ${piece}` : piece;
  }
  return lines.join(`\n${indent} `);
}

export class WrongValue extends Error {}

const place = (path) => (path.length ? ` at ${path.map((at) => `[${at}]`).join("")}` : "");

// Reads JSON with lists as deep as the rank. Returns {shape, tokens}: every value as it is written, so that 64-bit
// integers keep their digits.
class Reader {
  constructor(text, datatype) {
    Object.assign(this, { text, datatype, at: 0, tokens: [] });
  }

  space() {
    while (" \n\t\r".includes(this.text[this.at] ?? "x")) this.at += 1;
    return this.text[this.at];
  }

  fail(words) {
    const before = this.text.slice(0, this.at), line = before.split("\n").length;
    throw new WrongValue(`Line ${line}, column ${this.at - before.lastIndexOf("\n")}: ${words}`);
  }

  list(path) {
    const shapes = [];
    this.at += 1;
    if (this.space() === "]") {
      this.at += 1;
      return [0];
    }
    for (;;) {
      this.space();
      const start = this.at, shape = this.value([...path, shapes.length]);
      if (shapes.length && String(shape) !== String(shapes[0])) {
        this.at = start;
        this.fail(`the part${place([...path, shapes.length])} has shape ${shapeWords(shape)}, the one before has ${shapeWords(shapes[0])}`);
      }
      shapes.push(shape);
      const next = this.space();
      this.at += 1;
      if (next === "]") return [shapes.length, ...shapes[0]];
      if (next !== ",") {
        this.at -= 1;
        this.fail(next === undefined ? "the list has no end: ] is missing" : `"," or "]" belongs here, not ${JSON.stringify(next)}`);
      }
    }
  }

  value(path) {
    const first = this.space();
    if (first === undefined) this.fail("a value is missing");
    if (first === "[") return this.list(path);
    TOKEN.lastIndex = this.at;
    const token = TOKEN.exec(this.text)?.[0];
    if (!token) this.fail(first === "]" || first === "," ? `a value is missing before "${first}"` : `this is not JSON; strings need double quotes`);
    const problem = wrong(token, this.datatype);
    if (problem) this.fail(problem);
    this.at += token.length;
    this.tokens.push(token);
    if (this.tokens.length > VALUES_MAX) this.fail(`more than ${VALUES_MAX} values`);
    return [];
  }
}

function isText(token) {
  try { JSON.parse(token); } catch { return false; }
  return true;
}

// Returns what is wrong with a value for a datatype, or null.
function wrong(token, datatype) {
  const isString = token.startsWith('"'), isWord = token === "true" || token === "false";
  if (isString && !isText(token)) return `${token} has an escape that JSON does not have`;
  if (datatype === "BYTES") return isString ? null : `${token} is not a string; write "${token}"`;
  if (datatype === "BOOL") return isWord ? null : `${token} is neither true nor false`;
  if (isString || isWord || token === "null") return `${token} is not a number, and ${datatype} takes numbers`;
  const limits = INTEGERS[datatype];
  if (!limits) return null;
  if (!/^-?\d+$/.test(token)) return `${token} is not a whole number, and ${datatype} takes whole numbers`;
  return BigInt(token) < limits[0] || BigInt(token) > limits[1] ? `${token} is not within ${limits[0]} and ${limits[1]}, the limits of ${datatype}` : null;
}

// Reads the text of a tensor for an input of the metadata. Returns {shape, tokens}.
export function read(text, { datatype, shape: wanted }) {
  const reader = new Reader(text, datatype);
  if (reader.space() === undefined) throw new WrongValue("A value is missing. Fill it, or write JSON.");
  const shape = reader.value([]);
  if (reader.space() !== undefined) reader.fail("the value ends here, and nothing may follow it");
  if (shape.length !== wanted.length) {
    throw new WrongValue(`This has shape ${shapeWords(shape)}, and the input takes ${shapeWords(wanted)}: ${wanted.length} nested lists, not ${shape.length}.`);
  }
  const at = shape.findIndex((size, at) => wanted[at] >= 0 && wanted[at] !== size);
  if (at >= 0) throw new WrongValue(`This has shape ${shapeWords(shape)}, and the input takes ${shapeWords(wanted)}: dimension ${at + 1} must be ${wanted[at]}.`);
  return { shape, tokens: reader.tokens };
}

// ---- bytes

const scratch = new DataView(new ArrayBuffer(4));

// Converts a number to the bits of a 16-bit float; rounds to the nearest, ties to even.
export function half(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0), sign = (bits >>> 16) & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  // From 65520 on, a value is infinite.
  if (size >= 0x477ff000) return sign | 0x7c00;
  if (size < 0x38800000) {
    // Subnormal: multiples of 2^-24.
    const scaled = Math.abs(Math.fround(value)) * 2 ** 24, floor = Math.floor(scaled), rest = scaled - floor;
    return sign | (floor + (rest > 0.5 || (rest === 0.5 && floor % 2) ? 1 : 0));
  }
  return sign | ((size - 0x38000000 + 0xfff + ((size >>> 13) & 1)) >>> 13);
}

// Converts a number to the bits of a bfloat16; rounds to the nearest, ties to even.
export function brain(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  if (Number.isNaN(value)) return 0x7fc0;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

// Returns the little-endian bytes of numbers.
export function bytesOf(values, datatype) {
  const array = new ARRAYS[datatype](values.length);
  const convert = datatype === "FP16" ? half : datatype === "BF16" ? brain : array instanceof BigInt64Array || array instanceof BigUint64Array ? BigInt : null;
  if (convert) for (let at = 0; at < values.length; at += 1) array[at] = convert(values[at]);
  else array.set(values);
  return new Uint8Array(array.buffer);
}

export const bytesPerValue = (datatype) => ARRAYS[datatype].BYTES_PER_ELEMENT;

// ---- responses

// Reads a response: JSON plus NaN and Infinity, which become strings. 64-bit integers keep their digits if the browser
// can tell how a number was written. Floats such as 1e20 stay numbers.
export function parseResponse(text) {
  const isLong = (value, source) => typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source);
  const keep = (_, value, context) => (isLong(value, context?.source) ? context.source : value);
  const strict = (text) => JSON.parse(text, /\d{16}/.test(text) ? keep : undefined);
  try {
    return strict(text);
  } catch (error) {
    const plain = text.replace(/"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity)/g, (token) => (token.startsWith('"') ? token : `"${token}"`));
    if (plain === text) throw error;
    return strict(plain);
  }
}

// Formats a value of a response in little space.
export function valueWords(value) {
  if (typeof value === "string" && !/^-?(\d+|NaN|Infinity)$/.test(value)) {
    return JSON.stringify(value.length > TEXT_CHARACTERS_MAX ? `${value.slice(0, TEXT_CHARACTERS_MAX)}…` : value);
  }
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(6))) : value.toExponential(4);
}
