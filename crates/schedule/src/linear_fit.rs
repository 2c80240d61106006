//! Cost of padding: a linear fit through a model's runs of all shapes.

/// Weight of past runs in the fit. The weight of a run halves in about 140 runs.
const DECAY: f64 = 0.995;
/// Runs before the fit is used.
const RUNS_TO_ESTIMATE: u64 = 16;
/// Paddings that are tried without a fit.
const PADDINGS_TO_TRY: u64 = 16;
/// Later, one of this many paddings that may pay is tried.
const PADDING_TRY_EVERY: u64 = 100;
/// Minimum gain of a padded run over separate runs.
const PADDING_GAIN_MIN: f64 = 0.05;

/// Time of a run as a fixed part and a part for each element. It is the least-squares fit of the
/// last runs, with the error of the fixed part.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinearFit {
    /// Sum of the weights of the runs. Older runs have smaller ones.
    weight: f64,
    /// Weighted sum of the elements. `y` is that of the microseconds, and the others are of
    /// products.
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
    /// Number of runs.
    runs: u64,
    tries: u64,
}

/// Bounds on the fixed part of a run, and the mean run, which every fit goes through.
#[derive(Clone, Copy, Debug)]
struct FitBounds {
    fixed_low: f64,
    fixed_high: f64,
    mean_elements: f64,
    mean_us: f64,
}

impl FitBounds {
    /// Returns true if one run over `together` elements is cheaper than one over each of `apart`,
    /// for a fixed part of `fixed`.
    fn pays(&self, fixed: f64, together: f64, apart: [f64; 2]) -> bool {
        let element = ((self.mean_us - fixed) / self.mean_elements).max(0.0);
        let separate = 2.0 * fixed + element * (apart[0] + apart[1]);
        fixed + element * together < separate * (1.0 - PADDING_GAIN_MIN)
    }
}

impl LinearFit {
    /// Adds a run over `elements` elements that took `us` microseconds.
    pub(crate) fn add(&mut self, elements: f64, us: f64) {
        for sum in
            [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy, &mut self.yy]
        {
            *sum *= DECAY;
        }
        self.weight += 1.0;
        self.x += elements;
        self.y += us;
        self.xx += elements * elements;
        self.xy += elements * us;
        self.yy += us * us;
        self.runs += 1;
    }

    /// Returns the bounds, or `None` after too few runs, or runs of one size only. They are two
    /// standard errors of the intercept in simple linear regression on either side.
    fn fit(&self) -> Option<FitBounds> {
        let mean_x = self.x / self.weight;
        let mean_y = self.y / self.weight;
        let spread = self.xx - self.x * mean_x;
        if self.runs < RUNS_TO_ESTIMATE || spread <= 1e-6 * self.xx || mean_x <= 0.0 {
            return None;
        }
        let slope = (self.xy - self.x * mean_y) / spread;
        let fixed = mean_y - slope * mean_x;
        let residual =
            (self.yy - fixed * self.y - slope * self.xy).max(0.0) / (self.weight - 2.0).max(1.0);
        let error = (residual * (1.0 / self.weight + mean_x * mean_x / spread)).sqrt();
        let bound = |fixed: f64| fixed.clamp(0.0, mean_y);
        Some(FitBounds {
            fixed_low: bound(fixed - 2.0 * error),
            fixed_high: bound(fixed + 2.0 * error),
            mean_elements: mean_x,
            mean_us: mean_y,
        })
    }

    /// Returns true if one run over `together` elements is cheaper than one over each of `apart`.
    /// Sometimes returns true even if this is possible but not known, because padded runs must be
    /// measured.
    pub(crate) fn pays(&mut self, together: f64, apart: [f64; 2]) -> bool {
        self.tries += 1;
        let try_it = self.tries <= PADDINGS_TO_TRY || self.tries.is_multiple_of(PADDING_TRY_EVERY);
        let Some(fit) = self.fit() else { return try_it };
        fit.pays(fit.fixed_low, together, apart)
            || (try_it && fit.pays(fit.fixed_high, together, apart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of `fixed` plus one microsecond an element, with noise. Sizes differ by a third.
    fn measured(fixed: f64) -> LinearFit {
        let mut cost = LinearFit::default();
        for run in 0..60 {
            let elements = 100.0 + 5.0 * f64::from(run % 7);
            let noise = [0.9, 1.3, 1.0, 0.95, 1.05][run as usize % 5];
            cost.add(elements, (fixed + elements) * noise);
        }
        cost.tries = PADDINGS_TO_TRY;
        cost
    }

    #[test]
    fn padding_pays_if_the_fixed_part_is_large() {
        let (mut fixed, mut linear) = (measured(2000.0), measured(0.0));
        assert!(fixed.pays(320.0, [160.0, 100.0]));
        assert!(!fixed.pays(32_000.0, [16_000.0, 10_000.0]), "too much padding");
        let certain = (0..99).filter(|_| linear.pays(240.0, [120.0, 100.0])).count();
        assert!(certain <= 1, "noise must not pass for a fixed part: {certain}");
    }

    #[test]
    fn padding_is_tried_before_anything_is_known_and_now_and_then() {
        let mut cost = LinearFit::default();
        let tried = (0..1000).filter(|_| cost.pays(200.0, [100.0, 90.0])).count();
        assert_eq!(tried as u64, PADDINGS_TO_TRY + 1000 / PADDING_TRY_EVERY);
    }
}
