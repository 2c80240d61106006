//! The places of the 64 subbands in the plane of coefficients.
//!
//! A split of a rectangle puts its lower frequencies to the left and top. A high-pass band that is
//! taken at every second position has its frequencies in reverse order. So the split of a right
//! rectangle has its high-pass half on the left, and the split of a lower rectangle has it on top.

/// Subbands of an image. The last four are never in a file, because they are zero.
pub(super) const SUBBANDS: usize = 64;
/// Subbands that may be in a file.
pub(super) const SUBBANDS_CODED: usize = 60;

/// A half of a line, as positions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LineSpan {
    pub(super) start: usize,
    pub(super) length: usize,
}

impl LineSpan {
    /// Returns the halves, the left or upper one first. The low-pass half has the middle one of an
    /// odd number of positions. It is the second half if the order is `reversed`.
    fn halves(self, reversed: bool) -> [LineSpan; 2] {
        let first = if reversed { self.length / 2 } else { self.length.div_ceil(2) };
        [
            LineSpan { start: self.start, length: first },
            LineSpan { start: self.start + first, length: self.length - first },
        ]
    }
}

/// A rectangle of the plane of coefficients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Band {
    pub(super) columns: LineSpan,
    pub(super) rows: LineSpan,
    /// True if the frequencies along the rows, or along the columns, are reversed.
    pub(super) reversed: [bool; 2],
}

impl Band {
    /// Returns the number of coefficients.
    pub(super) fn area(&self) -> usize {
        self.columns.length * self.rows.length
    }

    /// Returns the low-pass and the high-pass half of the columns.
    pub(super) fn column_halves(&self) -> [LineSpan; 2] {
        low_first(self.columns.halves(self.reversed[0]), self.reversed[0])
    }

    /// Returns the low-pass and the high-pass half of the rows.
    pub(super) fn row_halves(&self) -> [LineSpan; 2] {
        low_first(self.rows.halves(self.reversed[1]), self.reversed[1])
    }

    /// Returns the quarters: upper left, upper right, lower left, lower right.
    fn quarters(&self) -> [Band; 4] {
        let columns = self.columns.halves(self.reversed[0]);
        let rows = self.rows.halves(self.reversed[1]);
        [(false, false), (true, false), (false, true), (true, true)].map(|(right, lower)| Band {
            columns: columns[usize::from(right)],
            rows: rows[usize::from(lower)],
            reversed: [right, lower],
        })
    }
}

/// Returns the low-pass half first. It is the second one if the order is `reversed`.
fn low_first([first, second]: [LineSpan; 2], reversed: bool) -> [LineSpan; 2] {
    if reversed { [second, first] } else { [first, second] }
}

/// Decomposition of an image.
pub(super) struct SubbandTree {
    /// Rectangles that were split, each after the one that contains it.
    pub(super) splits: Vec<Band>,
    /// The subbands in the order of the file.
    pub(super) subbands: Vec<Band>,
}

impl SubbandTree {
    /// Divides an image of this size into its subbands.
    pub(super) fn of(width: usize, height: usize) -> SubbandTree {
        let span = |length| LineSpan { start: 0, length };
        let image = Band { columns: span(width), rows: span(height), reversed: [false, false] };
        let [low, right, lower, diagonal] = image.quarters();
        let [low_low, low_right, low_lower, low_diagonal] = low.quarters();
        let mut splits = vec![image, low, right, lower, low_low, low_right, low_lower];
        let mut subbands = Vec::with_capacity(SUBBANDS);
        for band in [low_low, low_right, low_lower] {
            splits.extend(band.quarters());
            subbands.extend(band.quarters().iter().flat_map(Band::quarters));
        }
        // The lowest frequencies are split once more.
        if let Some(&lowest) = subbands.first() {
            splits.push(lowest);
            subbands.splice(..1, lowest.quarters());
        }
        subbands.push(low_diagonal);
        subbands.extend([right, lower, diagonal].iter().flat_map(Band::quarters));
        SubbandTree { splits, subbands }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subbands_tile_the_plane() {
        for (width, height) in [(1, 1), (3, 2), (31, 33), (64, 64), (300, 401), (545, 622)] {
            let tree = SubbandTree::of(width, height);
            assert_eq!((tree.splits.len(), tree.subbands.len()), (20, SUBBANDS));
            let mut covered = vec![0; width * height];
            for band in &tree.subbands {
                for row in band.rows.start..band.rows.start + band.rows.length {
                    for column in band.columns.start..band.columns.start + band.columns.length {
                        covered[row * width + column] += 1;
                    }
                }
            }
            assert!(covered.iter().all(|&times| times == 1), "{width} x {height}");
        }
    }

    #[test]
    fn places_of_subbands() {
        let tree = SubbandTree::of(64, 128);
        let place = |at: usize| {
            let Band { columns, rows, .. } = tree.subbands[at];
            (columns.start, rows.start, columns.length, rows.length)
        };
        assert_eq!(place(0), (0, 0, 2, 4));
        assert_eq!(place(4), (4, 0, 4, 8));
        assert_eq!(place(19), (16, 0, 4, 8));
        assert_eq!(place(35), (0, 32, 4, 8));
        assert_eq!(place(51), (16, 32, 16, 32));
        assert_eq!(place(52), (32, 0, 16, 32));
        assert_eq!(place(59), (16, 96, 16, 32));
        assert_eq!(place(63), (48, 96, 16, 32));
    }
}
