//! Length that a query for inner products gets before its codes are compared.
//!
//! The order of the rows does not depend on the query's length, but the error of the codes does.
//! With the factor `s`, the error of a row around the centre `v` (with the mean of the rows) is
//! proportional to `|s q - v| / s`. It grows without limit for short queries, is smallest for
//! `s = |v|^2 / <q, v>`, and tends to `|q|` for long queries. The best rows are around centres with
//! high products, so the centre with the highest product determines the factor.

use kernels::float;

use super::rotation::Rotation;

/// Maximum of [`DotScale::stretch`]. Around centres of the typical length, the error is then at
/// most 1/16 more than that of an infinitely long query.
const STRETCH_MAX: f32 = 16.0;

/// Lengths of the rows of an index for inner products.
pub(super) struct DotScale {
    /// Rotated mean of the rows.
    mean: Vec<f32>,
    /// Root of the mean squared length of the rows' centres.
    length: f64,
}

impl DotScale {
    /// Measures an index. `mean` is the mean of its rows. `centres` are rotated, and relative to
    /// `mean`. `starts` has the first row of each centre, and at its end the number of rows.
    pub(super) fn new(
        mean: &[f32],
        rotation: &Rotation,
        centres: &[f32],
        starts: &[u32],
    ) -> DotScale {
        let mean = rotation.rotated(mean);
        let mean_square = float::dot(&mean, &mean);
        let mut squares = 0.0_f64;
        for (centre, rows) in centres.chunks_exact(mean.len()).zip(starts.windows(2)) {
            let square = float::dot(centre, centre) + 2.0 * float::dot(centre, &mean) + mean_square;
            squares += f64::from(square.max(0.0)) * f64::from(rows[1] - rows[0]);
        }
        let rows = starts.last().copied().unwrap_or(0).max(1);
        DotScale { mean, length: (squares / f64::from(rows)).sqrt() }
    }

    /// Returns the factor that gives `query` the length of a typical centre; 1 if one of them is
    /// zero.
    pub(super) fn to_centres(&self, query: &[f32]) -> f64 {
        let square: f64 = query.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let factor = self.length / square.sqrt();
        if factor > 0.0 && factor.is_finite() { factor } else { 1.0 }
    }

    /// Returns the factor, at least 1, that makes the error of rows around `centre` smallest.
    /// `query` is rotated, and relative to the mean as `centre` is. A shorter query would enlarge
    /// the errors around longer centres.
    pub(super) fn stretch(&self, query: &[f32], centre: &[f32]) -> f64 {
        let mean_square = float::dot(&self.mean, &self.mean);
        let mean_centre = float::dot(&self.mean, centre);
        let square = float::dot(centre, centre) + 2.0 * mean_centre + mean_square;
        let product =
            float::dot(query, centre) + float::dot(query, &self.mean) + mean_centre + mean_square;
        // Otherwise the query is nearly at right angles to the centre, or points away from it.
        let has_best = product > 0.0 && square < STRETCH_MAX * product;
        f64::from(if has_best { (square / product).max(1.0) } else { STRETCH_MAX })
    }

    /// Returns the memory in use, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.mean.len() * 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Centres have 3/4 and 5/4 of the length of the mean, which is 4, and its direction.
    #[test]
    fn a_query_gets_the_length_of_its_best_centre() {
        let rotation = Rotation::new(32, 1);
        let mean: Vec<f32> = (0..32).map(|at| if at == 0 { 4.0 } else { 0.0 }).collect();
        let turned = rotation.rotated(&mean);
        let along =
            |factor: f32| -> Vec<f32> { turned.iter().map(|value| value * factor).collect() };
        let longest = along(0.25);
        let centres = [along(-0.25), longest.clone()].concat();
        let scale = DotScale::new(&mean, &rotation, &centres, &[0, 3, 6]);
        let close = |one: f64, other: f64| (one - other).abs() < 1e-4 * other;
        assert!(close(scale.to_centres(&mean), 17_f64.sqrt() / 4.0));
        let short: Vec<f32> = mean.iter().map(|value| value * 1e-40).collect();
        assert!(close(scale.to_centres(&short) * 4e-40, 17_f64.sqrt()));
        assert_eq!(scale.to_centres(&[0.0; 32]), 1.0);
        // Relative to the mean. The query has the length 2, then the opposite direction, then the
        // length 32.
        assert!(close(scale.stretch(&along(-0.5), &longest), 2.5));
        assert_eq!(scale.stretch(&along(-2.0), &longest), 16.0);
        assert_eq!(scale.stretch(&along(7.0), &longest), 1.0);
    }
}
