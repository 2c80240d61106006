//! Inner products and squared distances of f32 vectors: one with one, and many with many.
//!
//! Clustering, exact search and batches compare many vectors with many. One side is packed into
//! [`Panels`] of 16 columns. A tile of 6 rows and 16 columns then needs two loads and six
//! broadcasts for twelve fused multiply-adds, and its sums stay in registers. The arrangement
//! follows Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008) for 16
//! registers of eight lanes.

#[cfg(target_arch = "x86_64")]
use crate::cpu;

/// Returns the inner product of two vectors of the same length.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "vectors of different lengths");
    #[cfg(target_arch = "x86_64")]
    if cpu::avx2() {
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { wide::dot(a, b) };
    }
    dot_scalar(a, b)
}

/// Returns the squared distance of two vectors of the same length.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn l2(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "vectors of different lengths");
    #[cfg(target_arch = "x86_64")]
    if cpu::avx2() {
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { wide::l2(a, b) };
    }
    l2_scalar(a, b)
}

/// Returns `sum((shifted - step * code)^2)`, the squared distance of `shifted` to a vector of one
/// byte a dimension. `shifted` is the query minus the lowest value of each dimension. `step` is the
/// width of a quantisation step.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn l2_bytes(shifted: &[f32], step: &[f32], codes: &[u8]) -> f32 {
    assert!(
        shifted.len() == codes.len() && step.len() == codes.len(),
        "vectors of different lengths"
    );
    #[cfg(target_arch = "x86_64")]
    if cpu::avx2() {
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { wide::l2_bytes(shifted, step, codes) };
    }
    l2_bytes_scalar(shifted, step, codes)
}

/// Returns `sum(scaled * code)`, the inner product of `scaled` with codes of one byte.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn dot_bytes(scaled: &[f32], codes: &[u8]) -> f32 {
    assert_eq!(scaled.len(), codes.len(), "vectors of different lengths");
    #[cfg(target_arch = "x86_64")]
    if cpu::avx2() {
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { wide::dot_bytes(scaled, codes) };
    }
    dot_bytes_scalar(scaled, codes)
}

fn dot_scalar(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn l2_scalar(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn l2_bytes_scalar(shifted: &[f32], step: &[f32], codes: &[u8]) -> f32 {
    let values = step.iter().zip(codes).map(|(step, code)| step * f32::from(*code));
    shifted.iter().zip(values).map(|(shifted, value)| (shifted - value) * (shifted - value)).sum()
}

fn dot_bytes_scalar(scaled: &[f32], codes: &[u8]) -> f32 {
    scaled.iter().zip(codes).map(|(scaled, code)| scaled * f32::from(*code)).sum()
}

/// Columns of a panel.
const COLUMNS: usize = 16;
/// Rows of a tile.
const ROWS: usize = 6;
/// Rows compared with one panel before the next panel. The rows stay in the second-level cache, and
/// the panel stays in the first.
const ROWS_IN_CACHE: usize = 96;

/// Vectors packed for products with many others.
#[derive(Clone, Debug)]
pub struct Panels {
    /// The panels in order. A panel holds the values of its 16 columns, dimension by dimension.
    values: Vec<f32>,
    /// Squared length of each column, or infinite for the padding of the last panel.
    squares: Vec<f32>,
    dims: usize,
    count: usize,
}

impl Panels {
    /// Packs `vectors` of `dims` values each.
    ///
    /// # Panics
    /// If the length of `vectors` is not a multiple of `dims`.
    pub fn new(vectors: &[f32], dims: usize) -> Panels {
        assert!(dims > 0 && vectors.len().is_multiple_of(dims), "vectors that are not whole");
        let count = vectors.len() / dims;
        let panels = count.div_ceil(COLUMNS);
        let mut values = vec![0.0; panels * COLUMNS * dims];
        let mut squares = vec![f32::INFINITY; panels * COLUMNS];
        for (column, vector) in vectors.chunks_exact(dims).enumerate() {
            let panel = &mut values[column / COLUMNS * COLUMNS * dims..][..COLUMNS * dims];
            for (value, place) in vector.iter().zip(panel.chunks_exact_mut(COLUMNS)) {
                place[column % COLUMNS] = *value;
            }
            squares[column] = dot(vector, vector);
        }
        Panels { values, squares, dims, count }
    }

    /// Returns the number of packed vectors.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes the nearest packed vector of each of `points` to `nearest`. The first value is its
    /// index, the lowest of equally near ones. The second is the squared distance minus the squared
    /// length of the point.
    ///
    /// # Panics
    /// If there are no vectors, or if `points` and `nearest` differ in their number of points.
    pub fn nearest(&self, points: &[f32], nearest: &mut [(u32, f32)]) {
        assert!(self.count > 0, "no packed vector");
        assert_eq!(points.len(), nearest.len() * self.dims, "points that do not fit their places");
        nearest.fill((0, f32::INFINITY));
        let squares = self.squares.as_chunks::<COLUMNS>().0;
        self.tiles(points, |row, column, tile| {
            let nearest = &mut nearest[row..row + tile.len()];
            take_nearer(tile, &squares[column / COLUMNS], column as u32, nearest);
        });
    }

    /// Writes the inner product of each of `points` with every packed vector to
    /// `products[point * count + vector]`.
    ///
    /// # Panics
    /// If the length of `points` or `products` does not fit.
    pub fn products(&self, points: &[f32], products: &mut [f32]) {
        assert_eq!(
            points.len() / self.dims * self.count,
            products.len(),
            "products that do not fit their places"
        );
        self.tiles(points, |first, column, tile| {
            let width = COLUMNS.min(self.count - column);
            for (row, sums) in (first..).zip(tile) {
                products[row * self.count + column..][..width].copy_from_slice(&sums[..width]);
            }
        });
    }

    /// Calls `give` for every tile with its first point, its first column, and the products of each
    /// of its points with the 16 columns.
    fn tiles(&self, points: &[f32], mut give: impl FnMut(usize, usize, &[[f32; COLUMNS]])) {
        assert!(points.len().is_multiple_of(self.dims), "points that are not whole");
        for (block, points) in points.chunks(ROWS_IN_CACHE * self.dims).enumerate() {
            for (panel, values) in self.values.chunks_exact(COLUMNS * self.dims).enumerate() {
                for (tile, rows) in points.chunks(ROWS * self.dims).enumerate() {
                    let mut sums = [[0.0; COLUMNS]; ROWS];
                    products_of_tile(rows, values, self.dims, &mut sums);
                    let first = block * ROWS_IN_CACHE + tile * ROWS;
                    give(first, panel * COLUMNS, &sums[..rows.len() / self.dims]);
                }
            }
        }
    }
}

/// Computes the products of up to [`ROWS`] rows with the columns of one panel.
fn products_of_tile(rows: &[f32], panel: &[f32], dims: usize, sums: &mut [[f32; COLUMNS]; ROWS]) {
    assert_eq!(panel.len(), dims * COLUMNS, "a panel of another size");
    #[cfg(target_arch = "x86_64")]
    if cpu::avx2() && rows.len() == ROWS * dims {
        // SAFETY: the processor has AVX2 and FMA; the sizes were just checked.
        unsafe { wide::tile(rows, panel, dims, sums) };
        return;
    }
    tile_scalar(rows, panel, dims, sums);
}

/// Updates each point's nearest vector with the columns of the panel that begins at `column`.
/// `tile` has the products of each point with these columns. `squares` are the squared lengths of
/// the columns. `nearest` has the column and the cost of each point. The cost of a column is its
/// squared length minus twice the product.
fn take_nearer(
    tile: &[[f32; COLUMNS]],
    squares: &[f32; COLUMNS],
    column: u32,
    nearest: &mut [(u32, f32)],
) {
    #[cfg(target_arch = "x86_64")]
    if cpu::avx2() {
        // SAFETY: the processor has AVX2 and FMA.
        unsafe { wide::take_nearer(tile, squares, column, nearest) };
        return;
    }
    for (products, best) in tile.iter().zip(nearest) {
        take_nearer_scalar(products, squares, column, best);
    }
}

/// Updates the nearest vector of one point, as [`take_nearer`] does. `products` are those of the
/// point with each column. `best` has the number and the cost of the nearest column so far.
fn take_nearer_scalar(
    products: &[f32; COLUMNS],
    squares: &[f32; COLUMNS],
    column: u32,
    best: &mut (u32, f32),
) {
    for (column, (product, square)) in (column..).zip(products.iter().zip(squares)) {
        let cost = square - 2.0 * product;
        if cost < best.1 {
            *best = (column, cost);
        }
    }
}

/// Adds the products of each row with the columns of `panel` to `sums[row]`. Rows have `dims`
/// values.
fn tile_scalar(rows: &[f32], panel: &[f32], dims: usize, sums: &mut [[f32; COLUMNS]; ROWS]) {
    for (row, sums) in rows.chunks_exact(dims).zip(sums) {
        for (value, columns) in row.iter().zip(panel.as_chunks::<COLUMNS>().0) {
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum += value * column;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{COLUMNS, ROWS};

    /// Lanes of a register.
    const LANES: usize = 8;

    #[target_feature(enable = "avx2,fma")]
    fn sum(values: __m256) -> f32 {
        let halves = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
        let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
        _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
    }

    /// Calls `step(sums, offset)` for every whole register of `length` values, with two independent
    /// sums.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn two_sums(length: usize, mut step: impl FnMut(__m256, usize) -> __m256) -> f32 {
        let (mut first, mut second) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        let mut at = 0;
        while at + 2 * LANES <= length {
            first = step(first, at);
            second = step(second, at + LANES);
            at += 2 * LANES;
        }
        if at + LANES <= length {
            first = step(first, at);
        }
        sum(_mm256_add_ps(first, second))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let whole = a.len() / LANES * LANES;
        // SAFETY: `two_sums` gives offsets with LANES values left in `a`, and `b` has the same
        // length.
        let body = two_sums(whole, |sums, at| unsafe {
            _mm256_fmadd_ps(
                _mm256_loadu_ps(a.as_ptr().add(at)),
                _mm256_loadu_ps(b.as_ptr().add(at)),
                sums,
            )
        });
        body + super::dot_scalar(&a[whole..], &b[whole..])
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn l2(a: &[f32], b: &[f32]) -> f32 {
        let whole = a.len() / LANES * LANES;
        // SAFETY: `two_sums` gives offsets with LANES values left in `a`, and `b` has the same
        // length.
        let body = two_sums(whole, |sums, at| unsafe {
            let gap = _mm256_sub_ps(
                _mm256_loadu_ps(a.as_ptr().add(at)),
                _mm256_loadu_ps(b.as_ptr().add(at)),
            );
            _mm256_fmadd_ps(gap, gap, sums)
        });
        body + super::l2_scalar(&a[whole..], &b[whole..])
    }

    /// Converts eight codes to f32.
    ///
    /// # Safety
    /// Eight bytes must lie at `codes`.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn numbers(codes: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { _mm_loadl_epi64(codes.cast()) };
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn l2_bytes(shifted: &[f32], step: &[f32], codes: &[u8]) -> f32 {
        let whole = codes.len() / LANES * LANES;
        // SAFETY: `two_sums` gives offsets with LANES codes left, and the other two are as long.
        let body = two_sums(whole, |sums, at| unsafe {
            let shifted = _mm256_loadu_ps(shifted.as_ptr().add(at));
            let step = _mm256_loadu_ps(step.as_ptr().add(at));
            let gap = _mm256_fnmadd_ps(step, numbers(codes.as_ptr().add(at)), shifted);
            _mm256_fmadd_ps(gap, gap, sums)
        });
        body + super::l2_bytes_scalar(&shifted[whole..], &step[whole..], &codes[whole..])
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn dot_bytes(scaled: &[f32], codes: &[u8]) -> f32 {
        let whole = codes.len() / LANES * LANES;
        // SAFETY: `two_sums` gives offsets with LANES codes left, and `scaled` has the same length.
        let body = two_sums(whole, |sums, at| unsafe {
            _mm256_fmadd_ps(
                _mm256_loadu_ps(scaled.as_ptr().add(at)),
                numbers(codes.as_ptr().add(at)),
                sums,
            )
        });
        body + super::dot_bytes_scalar(&scaled[whole..], &codes[whole..])
    }

    /// Returns the scalar result to the bit, because twice a product is exact and each variant
    /// rounds once.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn take_nearer(
        tile: &[[f32; COLUMNS]],
        squares: &[f32; COLUMNS],
        column: u32,
        nearest: &mut [(u32, f32)],
    ) {
        for (products, best) in tile.iter().zip(nearest) {
            nearer_of_16(products, squares, column, best);
        }
    }

    /// Replaces `best` (index and cost) by the nearest of the 16 columns from `column` on, if that
    /// is nearer. The cost of a column is its square less twice its product.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn nearer_of_16(
        products: &[f32; COLUMNS],
        squares: &[f32; COLUMNS],
        column: u32,
        best: &mut (u32, f32),
    ) {
        let two = _mm256_set1_ps(2.0);
        let cost = |at: usize| {
            let products = &products[at..at + LANES];
            let squares = &squares[at..at + LANES];
            // SAFETY: both slices hold a register's values.
            unsafe {
                let products = _mm256_loadu_ps(products.as_ptr());
                _mm256_fnmadd_ps(two, products, _mm256_loadu_ps(squares.as_ptr()))
            }
        };
        let (low, high) = (cost(0), cost(LANES));
        // Bit n for column n.
        let where_both = |low: __m256, high: __m256| {
            (_mm256_movemask_ps(low) as u32) | (_mm256_movemask_ps(high) as u32) << LANES
        };
        let so_far = _mm256_set1_ps(best.1);
        // NaN is not less.
        let less = |cost| _mm256_cmp_ps::<_CMP_LT_OQ>(cost, so_far);
        let low_less = less(low);
        let high_less = less(high);
        if where_both(low_less, high_less) == 0 {
            return;
        }
        // Values that are not less, and NaN, must not hide the minimum of the others.
        let (low, high) =
            (_mm256_blendv_ps(so_far, low, low_less), _mm256_blendv_ps(so_far, high, high_less));
        let least = _mm256_min_ps(low, high);
        let least = _mm256_min_ps(least, _mm256_permute2f128_ps::<1>(least, least));
        let least = _mm256_min_ps(least, _mm256_permute_ps::<0b01_00_11_10>(least));
        let least = _mm256_min_ps(least, _mm256_permute_ps::<0b10_11_00_01>(least));
        let equal = |cost| _mm256_cmp_ps::<_CMP_EQ_OQ>(cost, least);
        let first = where_both(equal(low), equal(high)).trailing_zeros();
        *best = (column + first, _mm256_cvtss_f32(least));
    }

    /// # Safety
    /// `rows` must hold ROWS vectors of `dims` values, `panel` `dims` times COLUMNS values.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn tile(
        rows: &[f32],
        panel: &[f32],
        dims: usize,
        sums: &mut [[f32; COLUMNS]; ROWS],
    ) {
        let mut low = [_mm256_setzero_ps(); ROWS];
        let mut high = [_mm256_setzero_ps(); ROWS];
        for at in 0..dims {
            // SAFETY: `at` is below `dims`, so both loads and every broadcast lie inside, by the
            // caller's promise.
            unsafe {
                let left = _mm256_loadu_ps(panel.as_ptr().add(at * COLUMNS));
                let right = _mm256_loadu_ps(panel.as_ptr().add(at * COLUMNS + LANES));
                for row in 0..ROWS {
                    let value = _mm256_broadcast_ss(&*rows.as_ptr().add(row * dims + at));
                    low[row] = _mm256_fmadd_ps(value, left, low[row]);
                    high[row] = _mm256_fmadd_ps(value, right, high[row]);
                }
            }
        }
        for row in 0..ROWS {
            // SAFETY: a row of sums has COLUMNS places, two registers.
            unsafe {
                _mm256_storeu_ps(sums[row].as_mut_ptr(), low[row]);
                _mm256_storeu_ps(sums[row].as_mut_ptr().add(LANES), high[row]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f32, b: f32) -> bool {
        (a - b).abs() <= 1e-4 * (1.0 + a.abs().max(b.abs()))
    }

    proptest! {
        #[test]
        fn the_chosen_variant_agrees_with_the_scalar_one(
            pairs in prop::collection::vec((-4.0_f32..4.0, -4.0_f32..4.0, any::<u8>()), 0..80),
        ) {
            let a: Vec<f32> = pairs.iter().map(|p| p.0).collect();
            let b: Vec<f32> = pairs.iter().map(|p| p.1).collect();
            let codes: Vec<u8> = pairs.iter().map(|p| p.2).collect();
            let step: Vec<f32> = b.iter().map(|b| b.abs() / 200.0).collect();
            prop_assert!(close(dot(&a, &b), dot_scalar(&a, &b)));
            prop_assert!(close(l2(&a, &b), l2_scalar(&a, &b)));
            prop_assert!(close(dot_bytes(&step, &codes), dot_bytes_scalar(&step, &codes)));
            prop_assert!(close(l2_bytes(&a, &step, &codes), l2_bytes_scalar(&a, &step, &codes)));
        }

        /// Few different values, so that some are equal, and some NaN.
        #[test]
        fn the_nearest_is_the_first_of_equals_and_a_number(
            rounds in prop::collection::vec(prop::array::uniform16((0_u8..12, 0_u8..3)), 1..5),
        ) {
            let number = |code: u8| if code == 11 { f32::NAN } else { f32::from(code) / 3.0 };
            let (mut one, mut other) = ([(0, f32::INFINITY)], (0, f32::INFINITY));
            for (columns, first) in rounds.iter().zip((0..).step_by(COLUMNS)) {
                let products = columns.map(|(product, _)| number(product));
                let squares = columns.map(|(_, square)| if square == 2 { f32::INFINITY } else { f32::from(square) });
                take_nearer(&[products], &squares, first, &mut one);
                take_nearer_scalar(&products, &squares, first, &mut other);
                prop_assert_eq!(one[0], other);
            }
        }

        #[test]
        fn many_with_many_agrees_with_one_with_one(
            dims in 1_usize..20, rows in 0_usize..30, count in 1_usize..40, seed in any::<u32>(),
        ) {
            let value = |at: usize| (((at as u32).wrapping_mul(2_654_435_761) ^ seed) % 19) as f32 - 9.0;
            let points: Vec<f32> = (0..rows * dims).map(value).collect();
            let vectors: Vec<f32> = (0..count * dims).map(|at| value(at + 7777)).collect();
            let panels = Panels::new(&vectors, dims);
            let mut products = vec![0.0; rows * count];
            panels.products(&points, &mut products);
            let mut nearest = vec![(0, 0.0); rows];
            panels.nearest(&points, &mut nearest);
            for (row, point) in points.chunks_exact(dims).enumerate() {
                let mut best = (0, f32::INFINITY);
                for (column, vector) in vectors.chunks_exact(dims).enumerate() {
                    prop_assert_eq!(products[row * count + column], dot_scalar(point, vector));
                    let cost = dot_scalar(vector, vector) - 2.0 * dot_scalar(point, vector);
                    if cost < best.1 {
                        best = (column as u32, cost);
                    }
                }
                prop_assert_eq!(nearest[row], best);
            }
        }
    }
}
