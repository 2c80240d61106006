//! Descriptors: the appearance of a keypoint in 256 bits.

use matching::DESCRIPTOR_BYTES;

use super::Keypoint;
use super::scale_space::ScaleSpace;
use super::tables::{cos_sin, direction};

/// Cells along each side of the patch.
const CELLS: usize = 4;
/// Directions counted in a cell.
const TURNS: usize = 8;
/// Values of the histogram.
pub(super) const NUMBERS: usize = CELLS * CELLS * TURNS;
/// Samples along each side of a cell.
const SAMPLES: usize = 4;
/// Samples along each side of the patch. Half a cell more on either side counts in part.
const SIDE: usize = (CELLS + 1) * SAMPLES;
/// Length of a cell in the keypoint's standard deviations (Lowe).
const CELL: f32 = 3.0;

/// Returns the descriptor, or `None` if the patch is flat.
pub(super) fn descriptor(
    space: &ScaleSpace,
    keypoint: &Keypoint,
) -> Option<[u8; DESCRIPTOR_BYTES]> {
    let numbers = numbers(space, keypoint)?;
    Some(bits(&numbers))
}

/// Returns the histogram of gradients as the square roots of its shares (Arandjelović and
/// Zisserman, "Three things everyone should know to improve object retrieval", 2012).
fn numbers(space: &ScaleSpace, keypoint: &Keypoint) -> Option<[f32; NUMBERS]> {
    let plane = space.octaves.get(keypoint.octave)?.levels.get(keypoint.level)?;
    let shrunk = 1.0 / (1_u32 << keypoint.octave) as f32;
    let (x, y) = (keypoint.x * shrunk, keypoint.y * shrunk);
    let (cos, sin) = cos_sin(keypoint.direction);
    let step = keypoint.sigma * CELL / SAMPLES as f32;
    // One more sample on each side for gradients.
    const ROW: usize = SIDE + 2;
    let mut patch = [0.0_f32; ROW * ROW];
    for (index, value) in patch.iter_mut().enumerate() {
        let along = (index % ROW) as f32 - (ROW - 1) as f32 * 0.5;
        let down = (index / ROW) as f32 - (ROW - 1) as f32 * 0.5;
        let along = along * step;
        let down = down * step;
        *value = plane.at(x + cos * along + sin * down, y - sin * along + cos * down);
    }
    let mut sums = [0.0_f32; NUMBERS];
    for row in 0..SIDE {
        for column in 0..SIDE {
            let at = (row + 1) * ROW + column + 1;
            let (dx, dy) = (patch[at + 1] - patch[at - 1], patch[at - ROW] - patch[at + ROW]);
            add(&mut sums, GradientSample { column, row, dx, dy });
        }
    }
    let sum: f32 = sums.iter().sum();
    (sum > 0.0).then(|| sums.map(|value| (value / sum).sqrt()))
}

/// A gradient at one sample of the patch.
struct GradientSample {
    column: usize,
    row: usize,
    dx: f32,
    dy: f32,
}

/// Shares a gradient among the nearest four cells and two directions.
fn add(sums: &mut [f32; NUMBERS], sample: GradientSample) {
    let GradientSample { column, row, dx, dy } = sample;
    let strength = (dx * dx + dy * dy).sqrt();
    if strength == 0.0 {
        return;
    }
    let middle = |at: usize| (at as f32 + 0.5) / SAMPLES as f32 - 1.0;
    let (cx, cy) = (middle(column), middle(row));
    let turn = direction(dx, dy) * TURNS as f32;
    let first = turn as usize % TURNS;
    let part = turn - turn.floor();
    let (left, top) = (cx.floor(), cy.floor());
    // From the middle of the patch; the outer cells count less because they move most.
    let (ox, oy) = (cx - 1.5, cy - 1.5);
    let strength = strength * (1.0 - (ox * ox + oy * oy) * 0.06).max(0.0);
    for (y, wy) in [(top, 1.0 - (cy - top)), (top + 1.0, cy - top)] {
        for (x, wx) in [(left, 1.0 - (cx - left)), (left + 1.0, cx - left)] {
            if x < 0.0 || y < 0.0 || x >= CELLS as f32 || y >= CELLS as f32 {
                continue;
            }
            let cell = (y as usize * CELLS + x as usize) * TURNS;
            sums[cell + first] += strength * wx * wy * (1.0 - part);
            sums[cell + (first + 1) % TURNS] += strength * wx * wy * part;
        }
    }
}

/// Each bit compares the values that two cells have of one direction. The pairs are drawn once.
/// Balanced sums of several values, any two values, and two directions of one cell separated real
/// points no better.
const TESTS: [(u8, u8); DESCRIPTOR_BYTES * 8] = draw_tests();

/// Returns the pairs of values that [`TESTS`] compares. Each is a pair of indices into the numbers
/// of a point: one direction in two different cells. A generator of pseudo-random numbers
/// (xorshift) with a fixed seed chooses them.
const fn draw_tests() -> [(u8, u8); DESCRIPTOR_BYTES * 8] {
    let mut tests = [(0, 0); DESCRIPTOR_BYTES * 8];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bit = 0;
    while bit < tests.len() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let cells = (CELLS * CELLS) as u64;
        let turn = (state >> 40) % TURNS as u64;
        let cell = (state >> 44) % cells;
        let other = (cell + 1 + (state >> 48) % (cells - 1)) % cells;
        tests[bit] = ((cell * TURNS as u64 + turn) as u8, (other * TURNS as u64 + turn) as u8);
        bit += 1;
    }
    tests
}

fn bits(numbers: &[f32; NUMBERS]) -> [u8; DESCRIPTOR_BYTES] {
    let mut out = [0_u8; DESCRIPTOR_BYTES];
    for (byte, tests) in out.iter_mut().zip(TESTS.as_chunks::<8>().0) {
        for (bit, &(a, b)) in tests.iter().enumerate() {
            *byte |= u8::from(numbers[usize::from(a)] > numbers[usize::from(b)]) << bit;
        }
    }
    out
}
