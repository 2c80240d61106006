//! Measured benefit of merging: time per item by batch size, for each shape.
//!
//! Merging pays if a run of n items costs less than n runs. For a ranking model whose weights do
//! not fit the cache it pays many times over. For a convolution that already fills a core it does
//! not, and merged requests only wait for each other. So nothing is assumed. Sizes are tried,
//! cheapest first, and a size is used if its median time per item is clearly the best known.

use std::collections::HashMap;

use crate::linear_fit::LinearFit;

/// Number of size classes, by powers of two: 1, 2, 3..4, 5..8 and so on up to 4096.
const SIZES: usize = 13;
/// Last runs of a size whose median is used.
const RUNS_KEPT: usize = 9;
/// Runs after which a size is known.
const RUNS_TO_KNOW: usize = 2;
/// Minimum gain per item of a larger batch over a smaller one. Below it noise decides, and requests
/// would wait for nothing.
const GAIN_MIN: f64 = 0.04;
/// Minimum gain of a batch that takes more than its share of the queue and leaves other workers
/// without work.
const GAIN_BEYOND_SHARE: f64 = 0.10;
/// Maximum cost per item of the next smaller size, relative to the best, at which an untried size
/// is tried.
const TRY_ABOVE: f64 = 1.10;
/// Decisions between two measurements of a size beside the best, because models and machines
/// change.
const PROBE_EVERY: u64 = 200;
/// Number of shapes that must have measured a size before their results decide for a model's other
/// shapes. If the size gained nothing, the others do not try it.
const SHAPES_TO_DECIDE: u32 = 3;
/// Number of decisions after which a shape is dropped if it began a try and did not return.
const FORGET_EVERY: u64 = 1024;
/// Weight of the last shape in the mean, once there are enough shapes.
const LAST_SHAPE_WEIGHT: f64 = 0.1;
/// Maximum number of shapes that are remembered of a model.
const SHAPES_MAX: usize = 256;

fn size_class(items: usize) -> usize {
    (items.max(1).next_power_of_two().trailing_zeros() as usize).min(SIZES - 1)
}

/// Last runs of one size class.
#[derive(Clone, Debug, Default)]
struct Runs {
    item_us: [f32; RUNS_KEPT],
    count: u64,
}

impl Runs {
    fn add(&mut self, item_us: f64) {
        self.item_us[self.count as usize % RUNS_KEPT] = item_us as f32;
        self.count += 1;
    }

    /// Returns the median time per item in microseconds of the last runs, or `None` after too few
    /// runs.
    fn median(&self) -> Option<f64> {
        if self.count < RUNS_TO_KNOW as u64 {
            return None;
        }
        let mut kept = self.item_us;
        let kept = &mut kept[..(self.count as usize).min(RUNS_KEPT)];
        kept.sort_unstable_by(f32::total_cmp);
        // The lower one of two: noise only adds.
        Some(f64::from(kept[(kept.len() - 1) / 2]))
    }
}

/// Measurements of one shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeCost {
    sizes: [Runs; SIZES],
    /// Number of decisions that led to a run.
    decisions: u64,
    last_used: u64,
}

/// Waiting items of one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Items that could run together, at most `max`.
    pub(crate) items: usize,
    /// Items of the first request. A run has at least as many, because it takes whole requests.
    pub(crate) least: usize,
    /// Items that leave the same number to each other worker.
    pub(crate) share: usize,
    pub(crate) max: usize,
}

/// Number of items to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchChoice {
    /// Items to take, at most the offered items.
    pub(crate) items: usize,
    /// True if more items could pay, so that lingering makes sense.
    pub(crate) more_may_pay: bool,
}

/// Gain of a size class over the one below, over the model's shapes.
#[derive(Clone, Copy, Debug, Default)]
struct SizeClassGain {
    /// Shapes that have measured the gain.
    shapes: u32,
    /// Shapes that began to try it before enough had measured it.
    begun: u32,
    /// Mean time per item, relative to the class below.
    ratio: f64,
}

impl SizeClassGain {
    fn add(&mut self, ratio: f64) {
        self.shapes = self.shapes.saturating_add(1);
        let weight = if self.shapes <= SHAPES_TO_DECIDE {
            1.0 / f64::from(self.shapes)
        } else {
            LAST_SHAPE_WEIGHT
        };
        self.ratio += weight * (ratio - self.ratio);
    }

    /// Returns true if a shape may try the size. `begun` is true if it has tried already.
    fn worth_a_try(&self, begun: bool) -> bool {
        if self.shapes < SHAPES_TO_DECIDE {
            begun || self.begun < 2 * SHAPES_TO_DECIDE
        } else {
            self.ratio < 1.0 - GAIN_MIN
        }
    }
}

impl ShapeCost {
    /// Adds a run. Returns the class and its time per item relative to the class below, if the run
    /// made the class known.
    fn add(&mut self, items: usize, us: f64) -> Option<(usize, f64)> {
        let class = size_class(items);
        self.sizes[class].add(us / items.max(1) as f64);
        if class == 0 || self.sizes[class].count != RUNS_TO_KNOW as u64 {
            return None;
        }
        Some((class, self.sizes[class].median()? / self.sizes[class - 1].median()?))
    }

    /// Returns how many items of `offer` to take.
    fn choose(&self, offer: Offer, steps: &[SizeClassGain; SIZES]) -> BatchChoice {
        let Offer { items: offered, least, share, max } = offer;
        let bottom = size_class(least);
        let top = size_class(offered);
        let limit = size_class(max);
        let probe = (self.decisions + 1).is_multiple_of(PROBE_EVERY);
        let begun = |class: usize| self.sizes[class].count > 0;
        let worth =
            |&class: &usize| class == bottom || probe || steps[class].worth_a_try(begun(class));
        let untried = self.untried(bottom, limit).filter(worth);
        if let Some(untried) = untried.filter(|&untried| untried <= top) {
            return BatchChoice { items: (1 << untried).min(offered), more_may_pay: true };
        }
        let best = self.best(bottom, top, share);
        let chosen = if probe { self.neighbour(best, top).max(bottom) } else { best };
        let items = if size_class(offered) == chosen { offered } else { 1 << chosen };
        let more_may_pay = untried.is_some() || self.best(bottom, limit, max) > best;
        BatchChoice { items: items.min(offered), more_may_pay }
    }

    /// Returns the lowest unknown size from `bottom` to `limit` that is worth a try. Sizes below
    /// `bottom` cannot be tried.
    fn untried(&self, bottom: usize, limit: usize) -> Option<usize> {
        let mut cheapest = f64::INFINITY;
        for class in bottom..=limit {
            match self.sizes[class].median() {
                None => return Some(class),
                Some(item_us) if item_us > cheapest * TRY_ABOVE => return None,
                Some(item_us) => cheapest = cheapest.min(item_us),
            }
        }
        None
    }

    /// Returns the known size class from `bottom` to `top` that pays best, or `bottom` if none is
    /// known.
    fn best(&self, bottom: usize, top: usize, share: usize) -> usize {
        let share = size_class(share);
        let mut best = bottom;
        let mut cost = self.sizes[bottom].median().unwrap_or(f64::INFINITY);
        for class in bottom + 1..=top {
            let Some(item_us) = self.sizes[class].median() else { continue };
            let gain = if class > share { GAIN_BEYOND_SHARE } else { GAIN_MIN };
            if item_us < cost * (1.0 - gain) {
                (best, cost) = (class, item_us);
            }
        }
        best
    }

    /// Returns a size beside the best, above and below in turn.
    fn neighbour(&self, best: usize, top: usize) -> usize {
        let above = ((self.decisions + 1) / PROBE_EVERY).is_multiple_of(2);
        if above { (best + 1).min(top) } else { best.saturating_sub(1) }
    }

    /// Returns the largest batch and the median microseconds per item of each known size class.
    pub(crate) fn known(&self) -> Vec<(usize, f64)> {
        let known =
            |(class, runs): (usize, &Runs)| runs.median().map(|item_us| (1 << class, item_us));
        self.sizes.iter().enumerate().filter_map(known).collect()
    }

    /// Returns the number of measured runs.
    pub(crate) fn runs(&self) -> u64 {
        self.sizes.iter().map(|runs| runs.count).sum()
    }

    /// Returns the batch size that pays best.
    pub(crate) fn best_size(&self) -> usize {
        1 << self.best(0, SIZES - 1, 1 << (SIZES - 1))
    }
}

/// Measurements of one model.
#[derive(Debug, Default)]
pub(crate) struct ModelCost {
    shapes: HashMap<u64, (String, ShapeCost)>,
    steps: [SizeClassGain; SIZES],
    fit: LinearFit,
    /// Number of uses of a shape, for the least recently used one.
    clock: u64,
    /// Number of decisions that led to a run.
    decisions: u64,
}

impl ModelCost {
    /// Returns the measurements of a shape. A new one gets the display name `name`.
    fn shape(&mut self, key: u64, name: impl FnOnce() -> String) -> &mut ShapeCost {
        self.clock += 1;
        if !self.shapes.contains_key(&key) && self.shapes.len() >= SHAPES_MAX {
            let oldest =
                self.shapes.iter().min_by_key(|(_, (_, cost))| cost.last_used).map(|(key, _)| *key);
            oldest.map(|oldest| self.shapes.remove(&oldest));
        }
        let (_, cost) = self.shapes.entry(key).or_insert_with(|| (name(), ShapeCost::default()));
        cost.last_used = self.clock;
        cost
    }

    /// Chooses as [`ShapeCost::choose`]. Counts nothing, because requests that continue to linger
    /// are checked again. [`ModelCost::count_decision`] counts.
    pub(crate) fn choose(
        &mut self,
        key: u64,
        name: impl FnOnce() -> String,
        offer: Offer,
    ) -> BatchChoice {
        let steps = self.steps;
        self.shape(key, name).choose(offer, &steps)
    }

    /// Counts a decision that leads to a run, and its `items` if the run will be measured.
    pub(crate) fn count_decision(&mut self, key: u64, items: Option<usize>) {
        let Some((_, cost)) = self.shapes.get_mut(&key) else { return };
        cost.decisions += 1;
        if let Some(class) = items.map(size_class) {
            self.steps[class].begun += u32::from(cost.sizes[class].count == 0);
        }
        self.decisions += 1;
        if self.decisions.is_multiple_of(FORGET_EVERY) {
            // Shapes that began a try may never return.
            self.steps.iter_mut().for_each(|step| step.begun = 0);
        }
    }

    /// Adds a run of `items` items and `elements` elements of one shape that took `us`
    /// microseconds.
    pub(crate) fn add(&mut self, key: u64, items: usize, elements: f64, us: f64) {
        let step = self.shapes.get_mut(&key).and_then(|(_, cost)| cost.add(items, us));
        if let Some((class, ratio)) = step {
            self.steps[class].add(ratio);
        }
        self.fit.add(elements, us);
    }

    /// Adds a run over different shapes, with `elements` padded elements, that took `us`
    /// microseconds.
    pub(crate) fn add_padded(&mut self, elements: f64, us: f64) {
        self.fit.add(elements, us);
    }

    /// Returns true if one run over `together` elements is cheaper than one over each of `apart`.
    /// See [`LinearFit::pays`].
    pub(crate) fn padding_pays(&mut self, together: f64, apart: [f64; 2]) -> bool {
        self.fit.pays(together, apart)
    }

    /// Returns names and costs of the most frequent shapes.
    pub(crate) fn top(&self, count: usize) -> Vec<(&str, &ShapeCost)> {
        let mut all: Vec<(&str, &ShapeCost)> =
            self.shapes.values().map(|(name, cost)| (name.as_str(), cost)).collect();
        all.sort_unstable_by(|a, b| b.1.runs().cmp(&a.1.runs()).then(a.0.cmp(b.0)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTAUGHT: [SizeClassGain; SIZES] =
        [SizeClassGain { shapes: 0, begun: 0, ratio: 0.0 }; SIZES];

    /// Feeds the choices back as runs of a model whose run of n items takes `us(n)`. Returns all
    /// choices.
    fn learn(
        offered: usize,
        share: usize,
        us: impl Fn(usize) -> f64,
        rounds: usize,
    ) -> (Vec<usize>, ShapeCost) {
        let mut cost = ShapeCost::default();
        let taken = (0..rounds).map(|_| {
            let choice = cost.choose(Offer { items: offered, least: 1, share, max: 32 }, &UNTAUGHT);
            cost.decisions += 1;
            cost.add(choice.items, us(choice.items));
            choice.items
        });
        let taken: Vec<usize> = taken.collect();
        (taken, cost)
    }

    #[test]
    fn a_model_that_gains_is_merged_fully() {
        let (taken, _) = learn(32, 16, |n| 1000.0 + 20.0 * n as f64, 40);
        assert_eq!(&taken[..6], [1, 1, 2, 2, 4, 4], "small sizes are tried first");
        assert_eq!(taken[39], 32);
    }

    #[test]
    fn a_model_that_does_not_gain_is_not_merged() {
        let (taken, cost) = learn(32, 16, |n| 1000.0 * n as f64, 190);
        assert_eq!(*taken.last().unwrap_or(&0), 1);
        // Each size is tried twice, which is the whole cost.
        assert_eq!(taken.iter().filter(|&&n| n > 1).count(), 10);
        assert_eq!(cost.best_size(), 1);
    }

    #[test]
    fn a_model_that_loses_is_not_merged_after_two_runs() {
        let (taken, _) = learn(32, 16, |n| 1000.0 * (n * n) as f64, 100);
        assert_eq!(taken.iter().filter(|&&n| n > 2).count(), 0);
        assert_eq!(taken.iter().filter(|&&n| n == 2).count(), 2);
    }

    #[test]
    fn more_than_its_share_only_for_a_clear_gain() {
        let slight = |n: usize| 1000.0 * n as f64 * if n > 4 { 0.93 } else { 1.0 };
        assert_eq!(learn(8, 4, slight, 60).0[59], 1);
        let clear = |n: usize| 1000.0 * n as f64 * if n > 4 { 0.8 } else { 1.0 };
        assert_eq!(learn(8, 4, clear, 60).0[59], 8);
    }

    /// No run has one item, so one item is never measured.
    #[test]
    fn requests_of_several_items_are_merged() {
        let mut cost = ShapeCost::default();
        let offer = Offer { items: 32, least: 2, share: 16, max: 32 };
        let mut last = 0;
        for _ in 0..40 {
            last = cost.choose(offer, &UNTAUGHT).items.max(offer.least);
            cost.decisions += 1;
            cost.add(last, 1000.0 + 20.0 * last as f64);
        }
        assert_eq!(last, 32);
    }

    #[test]
    fn neighbours_are_measured_again_and_a_change_is_found() {
        let (_, mut cost) = learn(8, 8, |n| 1000.0 * n as f64, 100);
        let mut last = 0;
        for _ in 0..20_000 {
            last = cost.choose(Offer { items: 8, least: 1, share: 8, max: 32 }, &UNTAUGHT).items;
            cost.decisions += 1;
            cost.add(last, 1000.0 + 10.0 * last as f64);
        }
        assert_eq!(last, 8);
    }

    #[test]
    fn lingering_only_if_more_items_pay() {
        let (_, gains) = learn(32, 32, |n| 1000.0 + 20.0 * n as f64, 40);
        assert!(
            gains.choose(Offer { items: 1, least: 1, share: 1, max: 32 }, &UNTAUGHT).more_may_pay
        );
        let (_, linear) = learn(32, 32, |n| 1000.0 * n as f64, 40);
        assert!(
            !linear.choose(Offer { items: 1, least: 1, share: 1, max: 32 }, &UNTAUGHT).more_may_pay
        );
    }

    /// Six shapes begin before three have measured.
    #[test]
    fn shapes_learn_from_each_other() {
        let mut cost = ModelCost::default();
        let mut merged = 0;
        for round in 0..1000 {
            let key = round % 100;
            let items = cost
                .choose(key, String::new, Offer { items: 2, least: 1, share: 2, max: 32 })
                .items;
            cost.count_decision(key, Some(items));
            merged += usize::from(items > 1);
            cost.add(key, items, items as f64, 1000.0 * items as f64);
        }
        assert_eq!(merged, 2 * SHAPES_TO_DECIDE as usize + 3);
    }

    #[test]
    fn shapes_are_bounded_and_the_oldest_is_dropped() {
        let mut cost = ModelCost::default();
        for key in 0..SHAPES_MAX as u64 + 10 {
            cost.shape(key, || format!("shape {key}")).add(1, 1.0);
        }
        assert_eq!(cost.shapes.len(), SHAPES_MAX);
        assert!(!cost.shapes.contains_key(&0) && cost.shapes.contains_key(&(SHAPES_MAX as u64)));
    }
}
