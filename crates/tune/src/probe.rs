//! The ways of measuring that the search is made of: climbing to the number of clients that suits a
//! point, and measuring many points in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::Result;

use super::journal::{Journal, Slice, SliceKey, millis};
use super::score::{SliceReading, level};
use super::space::TunePoint;
use loadgen::random::RandomSequence;
use loadgen::stats::{median, ratio};

/// Numbers of clients that are tried.
pub(super) const LADDER: [usize; 16] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Twice as many clients must bring this much more, or there is no use in more.
const GROWTH_MIN: f64 = 1.03;
/// Points measured between two looks at the reference.
const BLOCK: usize = 8;

/// A latency of so many times the target is far beyond it.
const FAR: f64 = 4.0;
/// A machine is not believed to drift by more than this factor within a sweep; what looks like it
/// is noise.
const DRIFT_MAX: f64 = 2.0;

/// What each point read.
pub(super) type Readings = BTreeMap<TunePoint, Vec<SliceReading>>;

/// Points measured shortly after each other, and what the reference gave before and after them.
struct ProbeBlock {
    read: Vec<(TunePoint, Vec<SliceReading>)>,
    looks: [f64; 2],
}

/// Sets the throughput of each block right for how fast the reference was meanwhile: the median of
/// the looks before and after the block and those beside them, because a single look is as noisy as
/// any other slice.
fn leveled(blocks: Vec<ProbeBlock>) -> Readings {
    let looks: Vec<[f64; 2]> = blocks.iter().map(|block| block.looks).collect();
    let overall = median(looks.iter().flatten().copied());
    let mut all = Readings::new();
    for (index, ProbeBlock { read, .. }) in blocks.into_iter().enumerate() {
        let beside = index.saturating_sub(1)..=(index + 1).min(looks.len() - 1);
        let own = median(looks[beside].iter().flatten().copied());
        let scale = ratio(overall, own).clamp(1.0 / DRIFT_MAX, DRIFT_MAX);
        for (point, mut readings) in read {
            readings.iter_mut().for_each(|reading| reading.qps *= scale);
            all.insert(point, readings);
        }
    }
    all
}

/// The rung of the ladder with at least `clients`.
fn rung_of(clients: usize) -> usize {
    LADDER.iter().position(|&step| step >= clients).unwrap_or(LADDER.len() - 1)
}

/// `clients` and the next rung on either side.
pub(super) fn around(clients: usize) -> Vec<usize> {
    let at = rung_of(clients);
    (at.saturating_sub(1)..=(at + 1).min(LADDER.len() - 1)).map(|rung| LADDER[rung]).collect()
}

/// Measures within a budget.
pub(super) struct Prober<'j, 'm> {
    pub(super) journal: &'j mut Journal<'m>,
    pub(super) target_ms: f64,
    pub(super) seed: u64,
    /// No slice is begun when this many seconds are spent.
    pub(super) limit_s: f64,
    /// Told before each slice: seconds spent, and what is measured.
    pub(super) watch: &'j dyn Fn(f64, &str),
}

impl Prober<'_, '_> {
    /// Whether the budget is spent.
    pub(super) fn over(&self) -> bool {
        self.journal.spent() >= self.limit_s
    }

    fn slice(
        &mut self,
        stage: &str,
        pass: usize,
        point: TunePoint,
        clients: usize,
        time: Duration,
    ) -> Result<Slice> {
        (self.watch)(self.journal.spent(), &format!("{stage}: {point}, {clients} clients"));
        self.journal.ask(SliceKey {
            stage: stage.into(),
            pass,
            point,
            clients,
            millis: millis(time),
        })
    }

    /// Measures `points` in turn at growing numbers of clients up to `most`, `passes` times; a
    /// point whose latency is far beyond the target is not asked for more.
    pub(super) fn ladder(
        &mut self,
        stage: &str,
        points: &[TunePoint],
        most: usize,
        passes: usize,
        time: Duration,
    ) -> Result<Readings> {
        let mut all = Readings::new();
        for pass in 0..passes {
            let mut out = BTreeSet::new();
            for clients in LADDER.into_iter().filter(|&step| step <= most && step.is_power_of_two())
            {
                for &point in points {
                    if out.contains(&point) || (clients > 1 && self.over()) {
                        continue;
                    }
                    let slice = self.slice(stage, pass, point, clients, time)?;
                    if slice.qps == 0.0 || slice.p99_ms > FAR * self.target_ms {
                        out.insert(point);
                    }
                    let reading = SliceReading { pass, clients, qps: slice.qps, slice };
                    all.entry(point).or_default().push(reading);
                }
            }
        }
        Ok(all)
    }

    /// Measures `point` at `start` clients and from there with twice as many while that helps and
    /// stays within the target, or with half as many until it is within the target; `steps` slices
    /// at most.
    pub(super) fn climb(
        &mut self,
        stage: &str,
        point: TunePoint,
        start: usize,
        time: Duration,
        steps: usize,
    ) -> Result<Vec<SliceReading>> {
        let mut readings: Vec<SliceReading> = Vec::new();
        let mut clients = LADDER[rung_of(start)];
        let mut up = true;
        while readings.is_empty() || (readings.len() < steps && !self.over()) {
            let slice = self.slice(stage, 0, point, clients, time)?;
            let within = slice.failed == 0 && slice.qps > 0.0 && slice.p99_ms <= self.target_ms;
            let before = readings.last().map(|reading: &SliceReading| reading.qps);
            let refused = slice.refused.is_some();
            let qps = slice.qps;
            readings.push(SliceReading { pass: 0, clients, qps, slice });
            if readings.len() == 1 {
                up = within;
            }
            let grew = before.is_none_or(|before| qps >= before * GROWTH_MIN);
            let next = match up {
                true if within && grew && !refused => {
                    LADDER.into_iter().find(|&step| step >= clients * 2)
                }
                false if !within && !refused && clients > 1 => Some(LADDER[rung_of(clients / 2)]),
                _ => None,
            };
            let Some(next) = next else { break };
            clients = next;
        }
        Ok(readings)
    }

    /// Climbs with every point once, in random order. As that takes long, the reference is measured
    /// between blocks of points, and each block's throughput is scaled by what the machine did to
    /// the reference meanwhile.
    pub(super) fn sweep(
        &mut self,
        stage: &str,
        points: &[(TunePoint, usize)],
        reference: (TunePoint, usize),
        time: Duration,
        steps: usize,
    ) -> Result<Readings> {
        let mut order = points.to_vec();
        shuffle(&mut order, self.seed);
        let mut blocks: Vec<ProbeBlock> = Vec::new();
        let look = format!("{stage} reference");
        let mut before = self.slice(&look, 0, reference.0, reference.1, time)?.qps;
        for (index, block) in order.chunks(BLOCK).enumerate() {
            let mut read = Vec::new();
            for &(point, clients) in block {
                if self.over() {
                    break;
                }
                read.push((point, self.climb(stage, point, clients, time, steps)?));
            }
            let after = match self.over() {
                true => before,
                false => self.slice(&look, 1 + index, reference.0, reference.1, time)?.qps,
            };
            blocks.push(ProbeBlock { read, looks: [before, after] });
            before = after;
        }
        Ok(leveled(blocks))
    }

    /// Measures every point at its numbers of clients, all of them in each of at most `passes`
    /// passes (A B C, then C A B, ...), until `until_s` seconds are spent. A pass that the budget
    /// cuts short counts only where it is the first.
    pub(super) fn interleave(
        &mut self,
        stage: &str,
        points: &[(TunePoint, Vec<usize>)],
        passes: usize,
        time: Duration,
        until_s: f64,
    ) -> Result<Readings> {
        let mut all = Readings::new();
        let begun = self.journal.spent();
        for pass in 0..passes {
            let spent = self.journal.spent();
            let each = if pass == 0 { 0.0 } else { (spent - begun) / pass as f64 };
            if pass > 0 && spent + each > until_s.min(self.limit_s) {
                break;
            }
            let mut order: Vec<(TunePoint, usize)> = points
                .iter()
                .flat_map(|(point, clients)| clients.iter().map(move |&clients| (*point, clients)))
                .collect();
            shuffle(&mut order, loadgen::random::at(self.seed, 1 + pass as u64));
            let mut own = Vec::new();
            for (point, clients) in order {
                if self.over() {
                    break;
                }
                let slice = self.slice(stage, pass, point, clients, time)?;
                own.push((point, SliceReading { pass, clients, qps: slice.qps, slice }));
            }
            if pass > 0 && self.over() && own.len() < points.iter().map(|(_, c)| c.len()).sum() {
                break;
            }
            own.into_iter()
                .for_each(|(point, reading)| all.entry(point).or_default().push(reading));
        }
        level(&mut all);
        Ok(all)
    }
}

/// Fisher and Yates's shuffle, the same for the same seed.
pub(super) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = RandomSequence::new(seed);
    for end in (1..items.len()).rev() {
        items.swap(end, (random.bits() % (end as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_stay_on_the_ladder() {
        assert_eq!(around(1), [1, 2]);
        assert_eq!(around(8), [6, 8, 12]);
        assert_eq!(around(256), [192, 256]);
        assert_eq!(around(1000), [192, 256]);
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut items: Vec<usize> = (0..50).collect();
        shuffle(&mut items, 3);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
