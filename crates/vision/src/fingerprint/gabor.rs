//! Gabor filters that pass ridges of one direction and one distance. A filter is a wave multiplied
//! by a bell curve, as in Hong, Wan and Jain, "Fingerprint image enhancement" (1998).

use std::f32::consts::{PI, TAU};
use std::sync::LazyLock;

use super::plane::Plane;
use super::ridges::{CELL, Flow};

/// Filter directions in half a turn.
const ANGLES: usize = 32;
/// Number of ridge distances.
pub(super) const PERIODS: usize = 8;
/// Shortest ridge distance in pixels. At 500 dots per inch adults' ridges lie 8 to 11 pixels apart
/// and children's 6 to 7.
const PERIOD_MIN: f32 = 5.5;
/// Factor from each ridge distance to the next. The longest distance is 13.8 pixels.
const PERIOD_STEP: f32 = 1.14;
/// Deviation of the Gaussian along the ridge in pixels.
const ALONG_DEVIATION: f32 = 4.5;
/// Deviation of the Gaussian across the ridge in ridge distances.
const ACROSS_DEVIATION: f32 = 0.5;
/// Pixels from the middle of a filter to its edge.
pub(super) const RADIUS: usize = 11;
const SIDE: usize = 2 * RADIUS + 1;

/// Filters of all directions and distances.
#[derive(Debug)]
pub(super) struct Bank {
    kernels: Vec<Kernel>,
}

#[derive(Clone, Debug)]
pub(super) struct Kernel {
    weights: [[f32; SIDE]; SIDE],
}

impl Bank {
    /// Returns the filters, made once.
    pub(super) fn shared() -> &'static Bank {
        static BANK: LazyLock<Bank> = LazyLock::new(Bank::new);
        &BANK
    }

    fn new() -> Bank {
        let kernel = |at: usize| {
            let period = PERIOD_MIN * PERIOD_STEP.powi((at % PERIODS) as i32);
            Kernel::new(PI * (at / PERIODS) as f32 / ANGLES as f32, period)
        };
        Bank { kernels: (0..ANGLES * PERIODS).map(kernel).collect() }
    }

    /// Returns the filter for ridges at `angle`, in half turns. `period` is the index of the ridge
    /// distance, below [`PERIODS`].
    pub(super) fn kernel(&self, angle: f32, period: usize) -> &Kernel {
        let angle = (angle * ANGLES as f32 + 0.5) as usize % ANGLES;
        &self.kernels[angle * PERIODS + period.min(PERIODS - 1)]
    }
}

impl Kernel {
    /// Makes the filter for ridges at `angle` (radians, counter-clockwise), `period` pixels apart.
    /// It responds with 0 to even brightness and 1 on the crest of a wave of height 1.
    fn new(angle: f32, period: f32) -> Kernel {
        let (sin, cos) = angle.sin_cos();
        let each = |of: &dyn Fn(f32, f32) -> f32| -> [[f32; SIDE]; SIDE] {
            std::array::from_fn(|row| {
                std::array::from_fn(|column| {
                    let (x, y) = (column as f32 - RADIUS as f32, RADIUS as f32 - row as f32);
                    of(x * cos + y * sin, y * cos - x * sin)
                })
            })
        };
        let bell = each(&|along, across| {
            (-0.5
                * ((along / ALONG_DEVIATION).powi(2)
                    + (across / (ACROSS_DEVIATION * period)).powi(2)))
            .exp()
        });
        let wave = each(&|_, across| (TAU * across / period).cos());
        let bell = bell.as_flattened();
        let wave = wave.as_flattened();
        let sum: f32 = bell.iter().zip(wave).map(|(bell, wave)| bell * wave).sum();
        let mean = sum / bell.iter().sum::<f32>();
        let mut weights = [[0.0; SIDE]; SIDE];
        let mut gain = 0.0;
        for ((weight, bell), wave) in weights.as_flattened_mut().iter_mut().zip(bell).zip(wave) {
            *weight = bell * (wave - mean);
            gain += *weight * wave;
        }
        weights.as_flattened_mut().iter_mut().for_each(|weight| *weight /= gain);
        Kernel { weights }
    }

    /// Returns the response at a position at least [`RADIUS`] inside the plane.
    pub(super) fn response(&self, plane: &Plane, x: usize, y: usize) -> f32 {
        // Four sums, because the compiler may not change the order of adding floats.
        let mut sums = [0.0_f32; 4];
        for (row, weights) in self.weights.iter().enumerate() {
            let start = (y + row - RADIUS) * plane.width + x - RADIUS;
            let (values, rest) = plane.values[start..start + SIDE].as_chunks::<4>();
            let (weights, weights_rest) = weights.as_chunks::<4>();
            for (values, weights) in values.iter().zip(weights) {
                for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weights) {
                    *sum += value * weight;
                }
            }
            for ((sum, value), weight) in sums.iter_mut().zip(rest).zip(weights_rest) {
                *sum += value * weight;
            }
        }
        sums.iter().sum()
    }

    /// Returns the responses of one cell. The filter of its upper left pixel begins at `corner` in
    /// `padded`.
    fn cell(&self, padded: &[f32], stride: usize, corner: usize) -> [[f32; CELL]; CELL] {
        let mut sums = [[0.0_f32; CELL]; CELL];
        for (row, weights) in self.weights.iter().enumerate() {
            let start = corner + row * stride;
            let lines: [&[f32]; CELL] =
                std::array::from_fn(|line| &padded[start + line * stride..][..SIDE + CELL - 1]);
            for (column, weight) in weights.iter().enumerate() {
                for (sums, line) in sums.iter_mut().zip(lines) {
                    for (sum, value) in sums.iter_mut().zip(&line[column..column + CELL]) {
                        *sum += weight * value;
                    }
                }
            }
        }
        sums
    }
}

/// Filters each cell for its direction and distance. The result is 0 in a cell that is not
/// `wanted`.
pub(super) fn filtered(
    plane: &Plane,
    flow: &Flow,
    distances: &Plane,
    bank: &Bank,
    wanted: impl Fn(usize) -> bool,
) -> Plane {
    let (across, down) = (flow.cos.width, flow.cos.height);
    let stride = across * CELL + 2 * RADIUS;
    let mut padded = vec![0.0; stride * (down * CELL + 2 * RADIUS)];
    for (row, values) in plane.values.chunks_exact(plane.width).enumerate() {
        let start = (row + RADIUS) * stride + RADIUS;
        padded[start..start + plane.width].copy_from_slice(values);
    }
    let mut out = Plane::new(plane.width, plane.height);
    for cell in (0..across * down).filter(|&cell| wanted(cell)) {
        let (x, y) = (cell % across * CELL, cell / across * CELL);
        let kernel = bank.kernel(flow.angle(cell), (distances.values[cell] + 0.5) as usize);
        let responses = kernel.cell(&padded, stride, y * stride + x);
        let count = CELL.min(plane.width - x);
        for (row, responses) in responses.iter().enumerate().take(plane.height - y) {
            let start = (y + row) * plane.width + x;
            out.values[start..start + count].copy_from_slice(&responses[..count]);
        }
    }
    out
}
