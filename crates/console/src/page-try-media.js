// Turns an image or an audio file into the values of an input, in the browser.

import { VALUES_MAX, countOf } from "./page-try-values.js";

// Fewest values of the last dimension of an input that is audio by its shape alone: a quarter of a second at 16 kHz.
const AUDIO_VALUES_MIN = 4000;
// Longest audio for an input of any length.
const AUDIO_SECONDS_MAX = 30;
const AUDIO_NAME = /audio|wave|pcm|speech|sound|signal|input_values/i;
const CHANNELS = [1, 3];
// Smallest side of an image. Smaller dimensions are kernels, boxes or features.
const SIDE_MIN = 8;
const PIXEL_TYPES = ["FP32", "FP16", "BF16", "FP64", "UINT8"];

// Scales of pixel values: the mean and the deviation of each channel, of values from 0 to 1.
export const SCALES = {
  unit: { words: "0 to 1", mean: [0, 0, 0], deviation: [1, 1, 1] },
  byte: { words: "0 to 255", mean: [0, 0, 0], deviation: [1 / 255, 1 / 255, 1 / 255] },
  signed: { words: "−1 to 1", mean: [0.5, 0.5, 0.5], deviation: [0.5, 0.5, 0.5] },
  imagenet: { words: "ImageNet mean and deviation", mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] },
};

// Returns {layout, channels, height, width} of an input that takes images, or null. A side of -1 can have any size.
export function imageInput({ datatype, shape }) {
  if (!PIXEL_TYPES.includes(datatype) || shape.length < 3 || shape.length > 4) return null;
  const [a, b, c] = shape.slice(-3), isSide = (size) => size < 0 || size >= SIDE_MIN;
  // Without a batch, one channel is more likely a matrix of features.
  if (shape.length === 3 && datatype !== "UINT8" && ![a, c].includes(3)) return null;
  if (CHANNELS.includes(a) && isSide(b) && isSide(c)) return { layout: "CHW", channels: a, height: b, width: c };
  if (CHANNELS.includes(c) && isSide(a) && isSide(b)) return { layout: "HWC", channels: c, height: a, width: b };
  return null;
}

// Returns {length} of an input that takes the samples of one channel, or null. -1 is any length.
export function audioInput({ name, datatype, shape }) {
  if (datatype !== "FP32" || shape.length === 0 || shape.length > 3) return null;
  const length = shape.at(-1), isOne = shape.slice(0, -1).every((size) => size === 1 || size < 0);
  return isOne && (length >= AUDIO_VALUES_MIN || (length < 0 && AUDIO_NAME.test(name))) ? { length } : null;
}

// Decodes an image file.
export async function decodeImage(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is not an image that this browser can read.`);
  }
}

// Scales a decoded image to `width` x `height` on the canvas, which shows it then.
export function drawImage(bitmap, canvas, { width, height, fit }) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  const ratios = [width / bitmap.width, height / bitmap.height];
  const scale = fit === "crop" ? Math.max(...ratios) : Math.min(...ratios);
  const size = fit === "stretch" ? [width, height] : [bitmap.width * scale, bitmap.height * scale];
  context.drawImage(bitmap, (width - size[0]) / 2, (height - size[1]) / 2, ...size);
  bitmap.close();
}

// Returns the values of the canvas for an input.
export function pixels(canvas, { layout, channels }, { scale, order }) {
  const { width, height } = canvas, { mean, deviation } = SCALES[scale];
  const rgba = canvas.getContext("2d").getImageData(0, 0, width, height).data, size = width * height;
  const values = new Float32Array(size * channels);
  for (let at = 0; at < size; at += 1) {
    const [r, g, b] = [rgba[4 * at], rgba[4 * at + 1], rgba[4 * at + 2]];
    // Brightness as ITU-R BT.601 weighs it.
    const colours = channels === 1 ? [0.299 * r + 0.587 * g + 0.114 * b] : order === "BGR" ? [b, g, r] : [r, g, b];
    colours.forEach((value, channel) => {
      const which = order === "BGR" && channels === 3 ? 2 - channel : channel;
      // A byte stays exact, which a division and a multiplication would not guarantee.
      const scaled = scale === "byte" ? value : (value / 255 - mean[which]) / deviation[which];
      values[layout === "CHW" ? channel * size + at : at * channels + channel] = scaled;
    });
  }
  return values;
}

// Decodes an audio file to one channel at `rate` Hz. A fixed length is cut or filled with silence.
export async function samples(file, { length }, rate) {
  const context = new OfflineAudioContext(1, 1, rate);
  let decoded;
  try {
    decoded = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not an audio file that this browser can read.`);
  }
  const count = length > 0 ? length : Math.min(decoded.length, AUDIO_SECONDS_MAX * rate), values = new Float32Array(count);
  for (let channel = 0; channel < decoded.numberOfChannels; channel += 1) {
    const data = decoded.getChannelData(channel).subarray(0, count);
    for (let at = 0; at < data.length; at += 1) values[at] += data[at] / decoded.numberOfChannels;
  }
  return { values, seconds: decoded.length / rate, isCut: decoded.length > count };
}

export function checkSize(shape) {
  if (countOf(shape) > VALUES_MAX) throw new Error(`Shape ${shape.join(" × ")} has more than ${VALUES_MAX} values, the maximum of this page. Choose smaller sizes.`);
}
