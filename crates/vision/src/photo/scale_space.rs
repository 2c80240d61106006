//! An image at all scales: octaves of Gaussian levels, each with half the side of the one before.

use image::imageops::{self, FilterType};
use image::{ImageBuffer, Luma};

use super::tables::exp_minus;
use crate::Gray;

/// Steps of scale per doubling.
pub(super) const INTERVALS: usize = 3;
/// Gaussian levels of an octave: one more on either side for differences, and one for their
/// neighbours.
pub(super) const LEVELS: usize = INTERVALS + 3;
/// Standard deviation of an octave's first level, in its pixels (Lowe).
pub(super) const SIGMA: f32 = 1.6;
/// Assumed blur of an image, in its pixels.
const SIGMA_OF_IMAGE: f32 = 0.5;
/// 2^(1/3).
const STEP: f32 = 1.259_921;
/// Shortest side of an octave.
const OCTAVE_SIDE_MIN: usize = 12;
/// Maximum octaves.
const OCTAVES_MAX: usize = 8;

/// Brightness, 0 to 1.
#[derive(Clone, Debug, Default)]
pub(super) struct BrightnessPlane {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) values: Vec<f32>,
}

impl BrightnessPlane {
    pub(super) fn row(&self, y: usize) -> &[f32] {
        self.values.get(y * self.width..(y + 1) * self.width).unwrap_or(&[])
    }

    /// Interpolates linearly between pixels. Outside, the nearest pixel counts.
    pub(super) fn at(&self, x: f32, y: f32) -> f32 {
        let x = x.clamp(0.0, (self.width - 1) as f32);
        let y = y.clamp(0.0, (self.height - 1) as f32);
        let (left, top) = ((x as usize).min(self.width - 2), (y as usize).min(self.height - 2));
        let (right, down) = (x - left as f32, y - top as f32);
        let start = top * self.width + left;
        let upper = mix(self.values[start], self.values[start + 1], right);
        let below = start + self.width;
        let lower = mix(self.values[below], self.values[below + 1], right);
        mix(upper, lower, down)
    }
}

fn mix(a: f32, b: f32, part: f32) -> f32 {
    a + (b - a) * part
}

/// Levels of an octave. Level i has the standard deviation [`SIGMA`] * 2^(i / [`INTERVALS`]).
#[derive(Debug)]
pub(super) struct Octave {
    pub(super) levels: Vec<BrightnessPlane>,
}

/// All octaves, finest first.
#[derive(Debug)]
pub(super) struct ScaleSpace {
    pub(super) octaves: Vec<Octave>,
}

impl ScaleSpace {
    /// Builds the octaves of `image`, brought to `size` columns and rows.
    pub(super) fn of(image: &Gray, size: (usize, usize)) -> ScaleSpace {
        let base = resized(halved(image, size), size.0, size.1);
        let enlarged = size.0 as f32 / image.width.max(1) as f32;
        let blurred = SIGMA_OF_IMAGE * enlarged.max(1.0);
        let mut scratch = BrightnessPlane::default();
        let mut first =
            blur(&base, (SIGMA * SIGMA - blurred * blurred).max(0.01).sqrt(), &mut scratch);
        let mut octaves = Vec::new();
        loop {
            let mut levels = vec![first];
            let mut sigma = SIGMA;
            while levels.len() < LEVELS {
                let next = sigma * STEP;
                let added = (next * next - sigma * sigma).sqrt();
                let level = blur(&levels[levels.len() - 1], added, &mut scratch);
                levels.push(level);
                sigma = next;
            }
            first = every_second(&levels[INTERVALS]);
            octaves.push(Octave { levels });
            if first.width.min(first.height) < OCTAVE_SIDE_MIN || octaves.len() == OCTAVES_MAX {
                return ScaleSpace { octaves };
            }
        }
    }
}

/// Converts the image to values of 0 to 1, halved while it stays larger than `size`. The first
/// halving reads the bytes, so a large image is never held as floats.
fn halved(image: &Gray, size: (usize, usize)) -> BrightnessPlane {
    let (width, height) = (image.width as usize, image.height as usize);
    let unit = |value: u8| f32::from(value) / 255.0;
    let whole = image.pixels.len() >= width * height;
    let mut plane = if whole && halves(width, height, size) {
        let row = |y: usize| image.pixels.get(y * width..(y + 1) * width).unwrap_or_default();
        half(width, height, row, unit)
    } else {
        let mut values: Vec<f32> =
            image.pixels.iter().take(width * height).map(|&value| unit(value)).collect();
        values.resize(width * height, 0.0);
        BrightnessPlane { width, height, values }
    };
    while halves(plane.width, plane.height, size) {
        plane = half(plane.width, plane.height, |y| plane.row(y), |value| value);
    }
    plane
}

fn halves(width: usize, height: usize, size: (usize, usize)) -> bool {
    width >= 2 * size.0 && height >= 2 * size.1 && height > 1
}

/// Averages two by two values, read row by row.
fn half<'a, T: Copy + 'a>(
    width: usize,
    height: usize,
    row: impl Fn(usize) -> &'a [T],
    unit: impl Fn(T) -> f32,
) -> BrightnessPlane {
    let (width, height) = (width / 2, height / 2);
    let mut values = Vec::with_capacity(width * height);
    for y in 0..height {
        let upper = row(2 * y).as_chunks().0;
        let lower = row(2 * y + 1).as_chunks().0;
        values.extend(upper.iter().zip(lower).map(|(&[a, b], &[c, d]): (&[T; 2], &[T; 2])| {
            (unit(a) + unit(b) + unit(c) + unit(d)) * 0.25
        }));
    }
    BrightnessPlane { width, height, values }
}

fn resized(plane: BrightnessPlane, width: usize, height: usize) -> BrightnessPlane {
    if (plane.width, plane.height) == (width, height) {
        return plane;
    }
    let buffer = ImageBuffer::<Luma<f32>, Vec<f32>>::from_raw(
        plane.width as u32,
        plane.height as u32,
        plane.values,
    );
    let values = buffer.map_or_else(Vec::new, |buffer| {
        imageops::resize(&buffer, width as u32, height as u32, FilterType::Triangle).into_raw()
    });
    BrightnessPlane { width, height, values }
}

fn every_second(plane: &BrightnessPlane) -> BrightnessPlane {
    let (width, height) = (plane.width / 2, plane.height / 2);
    let mut values = Vec::with_capacity(width * height);
    for y in 0..height {
        values.extend(plane.row(2 * y).iter().step_by(2).take(width));
    }
    BrightnessPlane { width, height, values }
}

/// Returns half of a Gaussian, its middle first. The whole sums to 1.
fn kernel(sigma: f32) -> Vec<f32> {
    let radius = (sigma * 3.0 + 0.999) as usize;
    let half: Vec<f32> =
        (0..=radius).map(|at| exp_minus((at * at) as f32 / (2.0 * sigma * sigma))).collect();
    let sum = half.iter().skip(1).fold(half[0], |sum, value| sum + 2.0 * value);
    half.into_iter().map(|value| value / sum).collect()
}

/// Blurs by `sigma`. Beyond the border the outermost values continue.
fn blur(plane: &BrightnessPlane, sigma: f32, scratch: &mut BrightnessPlane) -> BrightnessPlane {
    let kernel = kernel(sigma);
    let (width, height) = (plane.width, plane.height);
    scratch.width = width;
    scratch.height = height;
    scratch.values.resize(width * height, 0.0);
    for (y, out) in scratch.values.chunks_exact_mut(width).enumerate() {
        for (value, from) in out.iter_mut().zip(plane.row(y)) {
            *value = from * kernel[0];
        }
        for (distance, &weight) in kernel.iter().enumerate().skip(1) {
            let above = plane.row(y.saturating_sub(distance));
            let below = plane.row((y + distance).min(height - 1));
            for ((value, a), b) in out.iter_mut().zip(above).zip(below) {
                *value += (a + b) * weight;
            }
        }
    }
    let mut values = vec![0.0; width * height];
    let radius = kernel.len() - 1;
    let mut padded = vec![0.0; width + 2 * radius];
    for (row, out) in scratch.values.chunks_exact(width).zip(values.chunks_exact_mut(width)) {
        padded[..radius].fill(row[0]);
        padded[radius..radius + width].copy_from_slice(row);
        padded[radius + width..].fill(row[width - 1]);
        for (value, from) in out.iter_mut().zip(row) {
            *value = from * kernel[0];
        }
        for (distance, &weight) in kernel.iter().enumerate().skip(1) {
            let (left, right) = (&padded[radius - distance..], &padded[radius + distance..]);
            for ((value, a), b) in out.iter_mut().zip(left).zip(right) {
                *value += (a + b) * weight;
            }
        }
    }
    BrightnessPlane { width, height, values }
}
