//! Weights of votes, in eighths of a natural logarithm.
//!
//! Whole numbers only, so that every machine gives the same weights.

use super::cell::{ANGLE_STEP, LENGTH_STEP};

/// Units of a weight in one natural logarithm.
pub(crate) const PER_NAT: i32 = 8;
/// Minimum weight of a vote. Cells with a smaller weight are common, so reading them would take
/// most of the time, and their sum adds more noise than it helps.
pub(crate) const WEIGHT_MIN: i32 = 4 * PER_NAT;
/// Weight that an edge gets by chance. A row loses it for each of its indexed edges.
pub(crate) const CHANCE_WEIGHT: i32 = 2;

/// Logarithm of the probability that an edge of the same finger falls into a cell of lengths. The
/// index is the distance in pixels of the edge's length to the middle of the cell. The error is
/// normal with a deviation of 4 pixels.
const LENGTH: [i8; 11] = [-3, -3, -4, -5, -7, -9, -11, -13, -16, -20, -24];
/// The same for an angle, by the distance to the cell's middle in steps of 256 less a half. The
/// deviation is 7 steps, about 10°.
const ANGLE: [i8; 16] = [-7, -7, -7, -8, -8, -9, -10, -11, -12, -13, -15, -16, -18, -20, -22, -24];

/// Rows added to the count of each cell, so that an empty one is not taken for impossible.
const SMOOTHING: u64 = 2;

/// Returns the cells that can hold the length of an edge whose length in another print of the
/// finger is `length`. Each has the logarithm of its probability, in eighths.
pub(crate) fn lengths(length: u16) -> impl Iterator<Item = (usize, i32)> {
    let middle = i32::from(length / LENGTH_STEP);
    let reach = LENGTH.len() as i32 * 4 / i32::from(LENGTH_STEP) + 1;
    ((middle - reach).max(0)..=middle + reach).filter_map(move |cell| {
        let centre = cell * i32::from(LENGTH_STEP) + i32::from(LENGTH_STEP / 2);
        let off = (i32::from(length) - centre).unsigned_abs() as usize / 4;
        LENGTH.get(off).map(|&log| (cell as usize, i32::from(log)))
    })
}

/// Returns the cells that can hold an angle of the edge, as [`lengths`] does for its length.
pub(crate) fn angles(angle: u8) -> impl Iterator<Item = (usize, i32)> + Clone {
    let cells = 256 / ANGLE_STEP as i32;
    let middle = i32::from(angle) / ANGLE_STEP as i32;
    let reach = ANGLE.len() as i32 / ANGLE_STEP as i32;
    (middle - reach..=middle + reach).filter_map(move |cell| {
        // Twice the distance, because the middle of a cell lies between two steps.
        let centre = 2 * cell * ANGLE_STEP as i32 + ANGLE_STEP as i32 - 1;
        let off = (2 * i32::from(angle) - centre).unsigned_abs() as usize / 2;
        let log = ANGLE.get(off)?;
        Some((cell.rem_euclid(cells) as usize, i32::from(*log)))
    })
}

/// Returns the rarity of a cell: the logarithm of the number of all edges divided by the number of
/// edges in the cell.
pub(crate) fn rarity(edges: u32, all: u64, cells: usize) -> u8 {
    let all = all + SMOOTHING * cells as u64;
    let own = u64::from(edges) + SMOOTHING;
    logarithm(all).saturating_sub(logarithm(own)).min(u32::from(u8::MAX)) as u8
}

/// Returns the natural logarithm of a positive number in eighths, rounded down.
fn logarithm(number: u64) -> u32 {
    let whole = number.max(1).ilog2();
    // The mantissa in 1 to 2, with 32 bits after the point. Each squaring gives a further bit of
    // the logarithm.
    let mut mantissa =
        if whole <= 32 { number.max(1) << (32 - whole) } else { number >> (whole - 32) };
    let mut bits = whole;
    for _ in 0..FRACTION {
        mantissa = ((u128::from(mantissa) * u128::from(mantissa)) >> 32) as u64;
        let above = mantissa >> 33;
        mantissa >>= above;
        bits = bits << 1 | above as u32;
    }
    // ln 2 is 45426 / 65536.
    ((u64::from(bits) * 45_426 * PER_NAT as u64) >> (16 + FRACTION)) as u32
}

/// Bits of a logarithm after the point.
const FRACTION: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn logarithms_are_those_of_floats(number in 1_u64..1 << 60) {
            let exact = (number as f64).ln() * f64::from(PER_NAT);
            prop_assert!((exact - f64::from(logarithm(number))).abs() < 1.1, "{exact}");
        }

        #[test]
        fn cells_around_a_value_hold_most_of_its_probability(length in 100_u16..600, angle: u8) {
            let sum = |logs: &mut dyn Iterator<Item = (usize, i32)>| -> f64 {
                logs.map(|(_, log)| (f64::from(log) / f64::from(PER_NAT)).exp()).sum()
            };
            let of_length = sum(&mut lengths(length));
            let of_angle = sum(&mut angles(angle));
            prop_assert!((0.8..1.1).contains(&of_length), "{of_length}");
            prop_assert!((0.8..1.1).contains(&of_angle), "{of_angle}");
        }
    }

    #[test]
    fn rare_cells_say_more() {
        assert!(rarity(0, 1_000_000, 1000) > rarity(10, 1_000_000, 1000));
        assert!(rarity(10, 1_000_000, 1000) > rarity(100_000, 1_000_000, 1000));
        assert_eq!(rarity(998, 0, 500), 0);
    }
}
