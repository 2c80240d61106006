//! Comparisons for the matching of keypoint graphs: similar edges and nearest points.

/// Edges in one [`Edges`]: a register of 16-bit numbers.
pub const EDGES: usize = 8;

/// Eight edges by property. A length above 32767 marks an unused slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Edges {
    /// Lengths, at most 32766.
    pub length: [u16; EDGES],
    /// Angles at the start, 65536 to a turn.
    pub start: [u16; EDGES],
    /// Angles at the end.
    pub end: [u16; EDGES],
}

impl Edges {
    /// Length of an unused slot, which is similar to no edge.
    const NO_EDGE: u16 = u16::MAX;
    /// No edges.
    pub const NONE: Edges =
        Edges { length: [Edges::NO_EDGE; EDGES], start: [0; EDGES], end: [0; EDGES] };

    /// Compares the edges with `edge` (`length`, `start`, `end`) and returns a mask: bit n for slot
    /// n. The lengths may differ by `length_error`, each angle by `angle_error`, the shorter way
    /// round.
    #[inline]
    #[must_use]
    pub fn similar(&self, edge: [u16; 3], length_error: u16, angle_error: u16) -> u8 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: SSE2 is part of every 64-bit x86 processor, so there is nothing to choose.
            unsafe { sse2::similar(self, edge, length_error, angle_error) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            scalar::similar(self, edge, length_error, angle_error)
        }
    }
}

/// Points whose neighbours are computed together: a register of 32-bit numbers.
pub const TOGETHER: usize = 8;
/// Neighbours found.
pub const NEAREST: usize = 9;
/// Squared distances from here on (4096 pixels) count as equal.
pub const SQUARE_MAX: u32 = (1 << 24) - 1;
/// Entry of a missing neighbour.
pub const NO_NEIGHBOUR: u32 = u32::MAX;

/// Finds the nearest other points of the points `first` to `first + 8`, nearest first. An entry has
/// the squared distance in the high 24 bits and the index in the low 8. So of two equally far
/// points the lower index comes first. Row n has the nth neighbour of each of the eight points.
/// Columns after the last point are undefined.
///
/// `x` and `y` are the coordinates of all points, within -16383 to 16383. Panics if their lengths
/// differ or exceed 256.
#[must_use]
pub fn nearest(first: usize, x: &[i32], y: &[i32]) -> [[u32; TOGETHER]; NEAREST] {
    assert!(x.len() == y.len() && x.len() <= 256, "at most 256 points, with both coordinates");
    let own_x = block(first, x);
    let own_y = block(first, y);
    #[cfg(target_arch = "x86_64")]
    if crate::cpu::avx2() {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::nearest(first, &own_x, &own_y, x, y) };
    }
    scalar::nearest(first, &own_x, &own_y, x, y)
}

/// Loads eight values from `first` on, and zeros after the last.
fn block(first: usize, values: &[i32]) -> [i32; TOGETHER] {
    std::array::from_fn(|place| values.get(first + place).copied().unwrap_or(0))
}

mod scalar {
    #[cfg(any(test, not(target_arch = "x86_64")))]
    use super::{EDGES, Edges};
    use super::{NEAREST, NO_NEIGHBOUR, SQUARE_MAX, TOGETHER};

    #[cfg(any(test, not(target_arch = "x86_64")))]
    pub(super) fn similar(
        edges: &Edges,
        edge: [u16; 3],
        length_error: u16,
        angle_error: u16,
    ) -> u8 {
        let apart = |a: u16, b: u16| (a.wrapping_sub(b) as i16).unsigned_abs();
        (0..EDGES).fold(0, |mask, place| {
            let similar = edges.length[place] <= i16::MAX as u16
                && edges.length[place].abs_diff(edge[0]) <= length_error
                && apart(edges.start[place], edge[1]) <= angle_error
                && apart(edges.end[place], edge[2]) <= angle_error;
            mask | u8::from(similar) << place
        })
    }

    pub(super) fn nearest(
        first: usize,
        own_x: &[i32; TOGETHER],
        own_y: &[i32; TOGETHER],
        x: &[i32],
        y: &[i32],
    ) -> [[u32; TOGETHER]; NEAREST] {
        let mut out = [[NO_NEIGHBOUR; TOGETHER]; NEAREST];
        for place in 0..TOGETHER {
            for (index, (x, y)) in x.iter().zip(y).enumerate() {
                let (dx, dy) = (own_x[place].wrapping_sub(*x), own_y[place].wrapping_sub(*y));
                let square =
                    (dx.wrapping_mul(dx).wrapping_add(dy.wrapping_mul(dy)) as u32).min(SQUARE_MAX);
                let mut rank =
                    if index == first + place { NO_NEIGHBOUR } else { square << 8 | index as u32 };
                for row in &mut out {
                    let old = row[place];
                    row[place] = old.min(rank);
                    rank = old.max(rank);
                }
            }
        }
        out
    }
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi16, _mm_load_si128, _mm_max_epi16, _mm_movemask_epi8, _mm_or_si128,
        _mm_packs_epi16, _mm_set1_epi16, _mm_setzero_si128, _mm_sub_epi16, _mm_subs_epu16,
    };

    use super::{EDGES, Edges};

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn similar(
        edges: &Edges,
        edge: [u16; 3],
        length_error: u16,
        angle_error: u16,
    ) -> u8 {
        let all = |value: u16| _mm_set1_epi16(value as i16);
        let zero = _mm_setzero_si128();
        // Excess of the difference over the error, 0 if there is none. The difference of half a
        // turn is -32768, which is its own negative and, taken without a sign, larger than any
        // error.
        let beyond = |values: &[u16; EDGES], value: u16, error: u16| {
            let difference = _mm_sub_epi16(load(values), all(value));
            let distance = _mm_max_epi16(difference, _mm_sub_epi16(zero, difference));
            _mm_subs_epu16(distance, all(error))
        };
        let length = beyond(&edges.length, edge[0], length_error);
        let start = beyond(&edges.start, edge[1], angle_error);
        let end = beyond(&edges.end, edge[2], angle_error);
        // A length with the sign bit set stands for no edge.
        let none = _mm_subs_epu16(load(&edges.length), all(i16::MAX as u16));
        let beyond = _mm_or_si128(_mm_or_si128(length, none), _mm_or_si128(start, end));
        _mm_movemask_epi8(_mm_packs_epi16(_mm_cmpeq_epi16(beyond, zero), zero)) as u8
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(values: &[u16; EDGES]) -> __m128i {
        // SAFETY: the arrays of an `Edges` are 16 bytes each and aligned to that.
        unsafe { _mm_load_si128(values.as_ptr().cast()) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_cmpeq_epi32, _mm256_loadu_si256, _mm256_max_epu32,
        _mm256_min_epu32, _mm256_mullo_epi32, _mm256_or_si256, _mm256_set1_epi32,
        _mm256_setr_epi32, _mm256_slli_epi32, _mm256_storeu_si256, _mm256_sub_epi32,
    };

    use super::{NEAREST, NO_NEIGHBOUR, SQUARE_MAX, TOGETHER};

    #[target_feature(enable = "avx2")]
    pub(super) fn nearest(
        first: usize,
        own_x: &[i32; TOGETHER],
        own_y: &[i32; TOGETHER],
        x: &[i32],
        y: &[i32],
    ) -> [[u32; TOGETHER]; NEAREST] {
        // SAFETY: eight numbers of 32 bits each.
        let (own_x, own_y) = unsafe {
            (_mm256_loadu_si256(own_x.as_ptr().cast()), _mm256_loadu_si256(own_y.as_ptr().cast()))
        };
        let own = _mm256_add_epi32(
            _mm256_set1_epi32(first as i32),
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
        );
        let mut sorted: [__m256i; NEAREST] = [_mm256_set1_epi32(NO_NEIGHBOUR as i32); NEAREST];
        for (index, (&x, &y)) in x.iter().zip(y).enumerate() {
            let dx = _mm256_sub_epi32(own_x, _mm256_set1_epi32(x));
            let dy = _mm256_sub_epi32(own_y, _mm256_set1_epi32(y));
            let square = _mm256_add_epi32(_mm256_mullo_epi32(dx, dx), _mm256_mullo_epi32(dy, dy));
            let square = _mm256_min_epu32(square, _mm256_set1_epi32(SQUARE_MAX as i32));
            let index = _mm256_set1_epi32(index as i32);
            let mut rank = _mm256_or_si256(_mm256_slli_epi32::<8>(square), index);
            // A point is not a neighbour of itself.
            rank = _mm256_or_si256(rank, _mm256_cmpeq_epi32(own, index));
            for row in &mut sorted {
                let old = *row;
                *row = _mm256_min_epu32(old, rank);
                rank = _mm256_max_epu32(old, rank);
            }
        }
        let mut out = [[0; TOGETHER]; NEAREST];
        for (row, sorted) in out.iter_mut().zip(sorted) {
            // SAFETY: a row holds eight numbers of 32 bits.
            unsafe { _mm256_storeu_si256(row.as_mut_ptr().cast(), sorted) };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns small numbers of each kind, so that differences fall on both sides of an error, and
    /// all others.
    fn number() -> impl Strategy<Value = u16> {
        prop_oneof![0_u16..64, any::<u16>(), Just(0x8000_u16), Just(0x7FFF_u16)]
    }

    proptest! {
        #[test]
        fn edges_are_compared_as_one_by_one(
            (length, start, end) in (any::<[u16; 8]>(), any::<[u16; 8]>(), any::<[u16; 8]>()),
            small: bool, edge in (0_u16..0x7FFF, number(), number()), errors in (0_u16..100, 0_u16..0x4000),
        ) {
            let edge = [edge.0, edge.1, edge.2];
            let small = |values: [u16; 8], about: u16| {
                values.map(|value| if small { about.wrapping_add(value % 128).wrapping_sub(64) } else { value })
            };
            let edges = Edges { length: small(length, edge[0]), start: small(start, edge[1]), end: small(end, edge[2]) };
            prop_assert_eq!(
                edges.similar(edge, errors.0, errors.1),
                scalar::similar(&edges, edge, errors.0, errors.1)
            );
        }

        #[test]
        fn neighbours_are_those_of_a_sort(
            points in prop::collection::vec((-16_383..=16_383_i32, -16_383..=16_383_i32), 0..60), first in 0_usize..70,
            spread in 1_i32..2000,
        ) {
            let (x, y): (Vec<i32>, Vec<i32>) = points.iter().map(|&(x, y)| (x / spread, y / spread)).unzip();
            let found = nearest(first, &x, &y);
            prop_assert_eq!(found, scalar::nearest(first, &block(first, &x), &block(first, &y), &x, &y));
            for place in 0..TOGETHER.min(x.len().saturating_sub(first)) {
                let own = first + place;
                let mut ranks: Vec<u32> = (0..x.len())
                    .filter(|&other| other != own)
                    .map(|other| {
                        let square = (x[own] - x[other]).pow(2) as u32 + (y[own] - y[other]).pow(2) as u32;
                        square.min(SQUARE_MAX) << 8 | other as u32
                    })
                    .collect();
                ranks.sort_unstable();
                ranks.resize(NEAREST, NO_NEIGHBOUR);
                for (row, rank) in found.iter().zip(&ranks) {
                    prop_assert_eq!(row[place], *rank);
                }
            }
        }
    }

    #[test]
    fn half_a_turn_and_unused_slots_are_never_similar() {
        let edges = Edges { length: [100; 8], start: [0x8000; 8], end: [0; 8] };
        assert_eq!(edges.similar([100, 0, 0], 50, 0x7FFF), 0);
        assert_eq!(edges.similar([100, 0x8000, 0], 0, 0), 0xFF);
        assert_eq!(Edges::NONE.similar([0, 0, 0], u16::MAX, u16::MAX), 0);
    }
}
