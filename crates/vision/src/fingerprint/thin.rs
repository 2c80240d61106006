//! Thinning to lines one pixel wide (Zhang and Suen, "A fast parallel algorithm for thinning
//! digital patterns", 1984).

/// An image of black and white with a border of white around it.
#[derive(Clone)]
pub(super) struct BinaryImage {
    /// Width with the border.
    pub(super) width: usize,
    /// 0 or 1, row by row.
    pub(super) pixels: Vec<u8>,
}

impl BinaryImage {
    /// Makes an image and adds the border. `set` returns true if the pixel at x, y is black.
    pub(super) fn new(
        width: usize,
        height: usize,
        set: impl Fn(usize, usize) -> bool,
    ) -> BinaryImage {
        let mut pixels = vec![0; (width + 2) * (height + 2)];
        for y in 0..height {
            for x in 0..width {
                pixels[(y + 1) * (width + 2) + x + 1] = u8::from(set(x, y));
            }
        }
        BinaryImage { width: width + 2, pixels }
    }

    /// Offsets in `pixels` of the eight neighbours: right, then counter-clockwise.
    pub(super) fn neighbours(&self) -> [isize; 8] {
        let width = self.width as isize;
        [1, 1 - width, -width, -width - 1, -1, width - 1, width, width + 1]
    }

    /// Returns the neighbours as bits, in the order of [`BinaryImage::neighbours`].
    pub(super) fn around(&self, at: usize, neighbours: &[isize; 8]) -> u8 {
        neighbours
            .iter()
            .enumerate()
            .fold(0, |bits, (place, &way)| bits | self.pixels[at.wrapping_add_signed(way)] << place)
    }

    /// Thins black areas to lines one pixel wide.
    pub(super) fn thin(&mut self) {
        let neighbours = self.neighbours();
        let mut black: Vec<usize> =
            (0..self.pixels.len()).filter(|&at| self.pixels[at] == 1).collect();
        let tables = [removable_table(0), removable_table(1)];
        let mut going: Vec<usize> = Vec::new();
        loop {
            let before = black.len();
            for table in &tables {
                going.clear();
                going.extend(
                    black
                        .iter()
                        .copied()
                        .filter(|&at| table[usize::from(self.around(at, &neighbours))]),
                );
                for &at in &going {
                    self.pixels[at] = 0;
                }
                if !going.is_empty() {
                    black.retain(|&at| self.pixels[at] == 1);
                }
            }
            if black.len() == before {
                break;
            }
        }
        // Corners of stairs: the rest stays connected without them.
        for &at in &black {
            let bits = self.around(at, &neighbours);
            if bits.count_ones() >= 2 && components(bits) == 1 {
                self.pixels[at] = 0;
            }
        }
    }
}

/// Returns a table by sets of neighbours. An entry is true if a pixel with this set is removed in
/// the first (0) or second (1) half of a round.
fn removable_table(half: usize) -> [bool; 256] {
    std::array::from_fn(|bits| {
        let bits = bits as u8;
        let is = |place: usize| bits >> (place % 8) & 1 == 1;
        let [east, north, west, south] = [is(0), is(2), is(4), is(6)];
        let crossings = (0..8).filter(|&place| !is(place) && is(place + 1)).count();
        let sides = match half {
            0 => !(east && south && (north || west)),
            _ => !(north && west && (east || south)),
        };
        (2..=6).contains(&bits.count_ones()) && crossings == 1 && sides
    })
}

/// Counts the connected parts of the neighbours without the pixel between them.
fn components(bits: u8) -> u32 {
    let is = |place: usize| bits >> (place % 8) & 1 == 1;
    // Yokoi's connectivity number for neighbours that touch at corners.
    (0..8).step_by(2).filter(|&place| !is(place) && (is(place + 1) || is(place + 2))).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degrees(bits: &BinaryImage) -> Vec<u32> {
        let neighbours = bits.neighbours();
        let black = (0..bits.pixels.len()).filter(|&at| bits.pixels[at] == 1);
        black.map(|at| bits.around(at, &neighbours).count_ones()).collect()
    }

    #[test]
    fn a_bar_becomes_a_line_with_two_ends() {
        for (width, height, slope) in [(60, 20, 0), (60, 60, 1), (20, 60, 3)] {
            let mut bits = BinaryImage::new(width, height, |x, y| {
                let middle = if slope == 0 { 10 } else { x * slope };
                (8..width - 8).contains(&x)
                    && y.abs_diff(middle) < 4
                    && (4..height - 4).contains(&y)
            });
            bits.thin();
            let degrees = degrees(&bits);
            assert_eq!(degrees.iter().filter(|&&degree| degree == 1).count(), 2, "{degrees:?}");
            assert!(degrees.iter().all(|degree| (1..=2).contains(degree)), "{degrees:?}");
            assert!(degrees.len() > 10);
        }
    }

    #[test]
    fn a_cross_keeps_four_ends_and_a_ring_none() {
        let mut cross = BinaryImage::new(50, 50, |x, y| x.abs_diff(25) < 3 || y.abs_diff(25) < 3);
        cross.thin();
        assert_eq!(degrees(&cross).iter().filter(|&&degree| degree == 1).count(), 4);
        let mut ring = BinaryImage::new(50, 50, |x, y| {
            let square = x.abs_diff(25).pow(2) + y.abs_diff(25).pow(2);
            (225..=400).contains(&square)
        });
        ring.thin();
        assert!(degrees(&ring).iter().all(|&degree| degree == 2));
    }
}
