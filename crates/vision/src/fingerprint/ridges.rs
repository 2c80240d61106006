//! Direction and distance of ridges.

use std::f32::consts::TAU;

use super::gabor::{Bank, PERIODS, RADIUS};
use super::padding::PaddingMask;
use super::plane::Plane;

/// Side of a cell in pixels. Each cell has a direction, a distance and a quality.
pub(super) const CELL: usize = 4;

/// Deviation in pixels of the Gaussian window that evens brightness and contrast. It is somewhat
/// more than a ridge.
const EVEN_DEVIATION: f32 = 10.0;
/// Deviation in steps of brightness that counts as noise and is not amplified.
const NOISE_CONTRAST: f32 = 3.0;
/// Maximum of an even value, in local deviations of brightness. Larger values are cut off.
const EVEN_VALUE_MAX: f32 = 2.5;
/// Deviation in pixels of the smoothing before gradients are computed.
const GRADIENT_SMOOTHING: f32 = 1.0;
/// Deviation in cells of the smoothing of the structure tensor.
const TENSOR_SMOOTHING: f32 = 1.6;
/// Deviation in cells of the smoothing of directions.
const DIRECTION_SMOOTHING: f32 = 2.0;
/// Deviation in cells of both smoothings of distances.
const DISTANCE_SMOOTHING: f32 = 4.0;

/// An image with even brightness and contrast.
pub(super) struct EvenImage {
    /// Difference from the local mean, divided by the local deviation. Ridges, which are dark, are
    /// positive. Padding is 0.
    pub(super) even: Plane,
    /// Original deviation per cell, in steps of brightness.
    pub(super) contrast: Plane,
}

/// Evens brightness and contrast. Padding has no part in the mean and the deviation.
pub(super) fn evened(image: &Plane, mask: &PaddingMask) -> EvenImage {
    let mean = mask.smoothed(image, EVEN_DEVIATION);
    let darker = mask.applied(mean.with(image, |mean, value| mean - value));
    let spread = mask.smoothed(&darker.squared(), EVEN_DEVIATION);
    let even = darker.with(&spread, |value, square| {
        (value / (square.max(0.0).sqrt() + NOISE_CONTRAST)).clamp(-EVEN_VALUE_MAX, EVEN_VALUE_MAX)
    });
    let mut contrast = mask.applied(spread).cells(CELL);
    contrast.values.iter_mut().for_each(|square| *square = square.max(0.0).sqrt());
    EvenImage { even, contrast }
}

/// Direction of ridges per cell, as the unit vector of twice the angle. The vector is shorter if
/// the direction is uncertain.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) cos: Plane,
    pub(super) sin: Plane,
}

impl Flow {
    /// Averages the directions across the gradients as the structure tensor. Gradients on the two
    /// sides of a ridge are opposite, but twice their angles are equal (Kass and Witkin, "Analyzing
    /// oriented patterns", 1987). The second smoothing weighs by coherence, so a scratch counts
    /// less than the ridges around it.
    pub(super) fn of(plane: &Plane) -> Flow {
        let (width, height) = (plane.width, plane.height);
        let soft = plane.smoothed(GRADIENT_SMOOTHING);
        let mut tensor = [(); 3].map(|()| Plane::new(width, height));
        let [xx, xy, yy] = &mut tensor;
        for y in 1..height.saturating_sub(1) {
            let row = |y: usize| &soft.values[y * width..(y + 1) * width];
            let (above, here, below) = (row(y - 1), row(y), row(y + 1));
            let base = y * width;
            for x in 1..width.saturating_sub(1) {
                let (dx, dy) = (here[x + 1] - here[x - 1], above[x] - below[x]);
                xx.values[base + x] = dx * dx;
                xy.values[base + x] = dx * dy;
                yy.values[base + x] = dy * dy;
            }
        }
        let [xx, xy, yy] = tensor.map(|plane| plane.cells(CELL).smoothed(TENSOR_SMOOTHING));
        let strength = xx.with(&yy, |a, b| a + b + 1e-6);
        let cos = yy.with(&xx, |a, b| a - b).with(&strength, |a, b| a / b);
        let sin = xy.with(&strength, |a, b| -2.0 * a / b);
        Flow { cos: cos.smoothed(DIRECTION_SMOOTHING), sin: sin.smoothed(DIRECTION_SMOOTHING) }
    }

    /// Returns the angle at a cell, counter-clockwise as seen, in half turns: 0 to 1.
    pub(super) fn angle(&self, cell: usize) -> f32 {
        (self.sin.values[cell].atan2(self.cos.values[cell]) / TAU).rem_euclid(1.0)
    }
}

/// Returns the ridge distance per cell, as a fractional index into the bank's distances. It is the
/// distance whose filter passes most in the neighbourhood. Only `wanted` cells are examined.
pub(super) fn distances(
    plane: &Plane,
    flow: &Flow,
    bank: &Bank,
    wanted: impl Fn(usize) -> bool,
) -> Plane {
    let (across, down) = (flow.cos.width, flow.cos.height);
    let mut energies = [(); PERIODS].map(|()| Plane::new(across, down));
    for cell in (0..across * down).filter(|&cell| wanted(cell)) {
        let (x, y) = (cell % across * CELL + CELL / 2, cell / across * CELL + CELL / 2);
        if x < RADIUS || y < RADIUS || x + RADIUS >= plane.width || y + RADIUS >= plane.height {
            continue;
        }
        let angle = flow.angle(cell);
        for (period, energy) in energies.iter_mut().enumerate() {
            energy.values[cell] = bank.kernel(angle, period).response(plane, x, y).powi(2);
        }
    }
    let energies = energies.map(|energy| energy.smoothed(DISTANCE_SMOOTHING));
    let mut best = Plane::new(across, down);
    for (cell, best) in best.values.iter_mut().enumerate() {
        *best = peak(&std::array::from_fn(|period| energies[period].values[cell]));
    }
    best.smoothed(DISTANCE_SMOOTHING)
}

/// Returns the position of the largest value, refined by the parabola through its neighbours.
fn peak(values: &[f32; PERIODS]) -> f32 {
    let peak = (0..PERIODS).fold(0, |peak, at| if values[at] > values[peak] { at } else { peak });
    if peak == 0 || peak + 1 == PERIODS {
        return peak as f32;
    }
    let (low, here, high) = (values[peak - 1], values[peak], values[peak + 1]);
    let bend = low - 2.0 * here + high;
    if bend < 0.0 {
        peak as f32 + (0.5 * (low - high) / bend).clamp(-0.5, 0.5)
    } else {
        peak as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ridges at `angle` half turns, `period` pixels apart.
    fn wave(side: usize, angle: f32, period: f32) -> Plane {
        let (sin, cos) = (angle * TAU / 2.0).sin_cos();
        let value = |at: usize| {
            let (x, y) = ((at % side) as f32, (at / side) as f32);
            (TAU * (-y * cos - x * sin) / period).cos()
        };
        Plane { width: side, height: side, values: (0..side * side).map(value).collect() }
    }

    #[test]
    fn the_edge_of_padding_has_no_contrast() {
        // A sensor's background, nearly even, beside padding of 40 columns.
        let side = 96;
        let value = |at: usize| if at % side < 40 { 255.0 } else { 180.0 + (at * 7 % 5) as f32 };
        let image =
            Plane { width: side, height: side, values: (0..side * side).map(value).collect() };
        let EvenImage { even, contrast } = evened(&image, &PaddingMask::of(&image));
        assert!(contrast.values.iter().all(|&contrast| contrast < 2.0), "{:?}", contrast.values);
        assert!((0..40).all(|x| even.values[50 * side + x] == 0.0));
        assert!(even.values[50 * side + 40..51 * side].iter().any(|&value| value != 0.0));
    }

    #[test]
    fn a_constant_image_has_no_contrast() {
        for value in [0.0, 128.0, 255.0] {
            let image = Plane { width: 33, height: 32, values: vec![value; 33 * 32] };
            let EvenImage { even, contrast } = evened(&image, &PaddingMask::of(&image));
            assert!(even.values.iter().chain(&contrast.values).all(|&value| value == 0.0));
        }
    }

    #[test]
    fn the_flow_runs_along_the_ridges() {
        for angle in [0.0, 0.1, 0.25, 0.4, 0.5, 0.75, 0.9] {
            let flow = Flow::of(&wave(64, angle, 9.0));
            let middle = 8 * flow.cos.width + 8;
            let off = (flow.angle(middle) - angle + 0.5).rem_euclid(1.0) - 0.5;
            assert!(off.abs() < 0.01, "{angle}: {}", flow.angle(middle));
            assert!(flow.cos.values[middle].hypot(flow.sin.values[middle]) > 0.9);
        }
    }

    #[test]
    fn the_distance_is_that_of_the_ridges() {
        for index in [1, 3, 5] {
            let plane = wave(64, 0.2, 5.5 * 1.14_f32.powi(index));
            let flow = Flow::of(&plane);
            let found = distances(&plane, &flow, Bank::shared(), |_| true).values[8 * 16 + 8];
            assert!((found - index as f32).abs() < 0.5, "{index}: {found}");
        }
    }

    #[test]
    fn the_peak_lies_between_its_neighbours() {
        let peak_of = |values: [f32; PERIODS]| peak(&values);
        assert_eq!(peak_of([0.0, 1.0, 4.0, 4.0, 1.0, 0.0, 0.0, 0.0]), 2.5);
        assert_eq!(peak_of([5.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 0.0);
        assert_eq!(peak_of([0.0; PERIODS]), 0.0);
    }
}
