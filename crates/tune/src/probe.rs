//! Strategies of measuring points. One climbs to the best number of clients of a point, and the
//! other measures many points in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::Result;

use super::journal::{MeasurementJournal, Slice, SliceKey, millis};
use super::score::{SliceReading, level};
use super::space::TunePoint;
use loadgen::random::RandomSequence;
use loadgen::stats::{median, ratio};

/// Numbers of clients that are tried.
pub(super) const LADDER: [usize; 16] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Minimum gain of throughput from twice as many clients. Below it, more clients are of no use.
const GROWTH_MIN: f64 = 1.03;
/// Points measured between two measurements of the reference.
const BLOCK: usize = 8;

/// Multiple of the target from which a latency counts as far beyond it.
const FAR_MULTIPLE: f64 = 4.0;
/// Maximum drift of the machine within a sweep. A larger apparent drift is noise.
const DRIFT_MAX: f64 = 2.0;

/// Readings of each point.
pub(super) type Readings = BTreeMap<TunePoint, Vec<SliceReading>>;

/// Points that were measured one after the other, and the throughput of the reference before and
/// after them.
struct ProbeBlock {
    read: Vec<(TunePoint, Vec<SliceReading>)>,
    references: [f64; 2],
}

/// Scales the throughput of each block, so that the reference has the same throughput in all
/// blocks. The factor is at most [`DRIFT_MAX`]. The reference of a block is the median of the
/// measurements around the block and around its neighbours. A single one is as noisy as any other
/// slice.
fn leveled(blocks: Vec<ProbeBlock>) -> Readings {
    let references: Vec<[f64; 2]> = blocks.iter().map(|block| block.references).collect();
    let overall = median(references.iter().flatten().copied());
    let mut all = Readings::new();
    for (index, ProbeBlock { read, .. }) in blocks.into_iter().enumerate() {
        let beside = index.saturating_sub(1)..=(index + 1).min(references.len() - 1);
        let own = median(references[beside].iter().flatten().copied());
        let scale = ratio(overall, own).clamp(1.0 / DRIFT_MAX, DRIFT_MAX);
        for (point, mut readings) in read {
            readings.iter_mut().for_each(|reading| reading.qps *= scale);
            all.insert(point, readings);
        }
    }
    all
}

/// Returns the index in [`LADDER`] of the first number that is at least `clients`.
fn rung_of(clients: usize) -> usize {
    LADDER.iter().position(|&step| step >= clients).unwrap_or(LADDER.len() - 1)
}

/// Returns `clients` and the next number of [`LADDER`] on either side.
pub(super) fn around(clients: usize) -> Vec<usize> {
    let at = rung_of(clients);
    (at.saturating_sub(1)..=(at + 1).min(LADDER.len() - 1)).map(|rung| LADDER[rung]).collect()
}

/// Measurements within a budget of time.
pub(super) struct Prober<'j, 'm> {
    pub(super) journal: &'j mut MeasurementJournal<'m>,
    pub(super) target_ms: f64,
    pub(super) seed: u64,
    /// Seconds after which no slice begins.
    pub(super) limit_s: f64,
    /// Called before each slice with the seconds spent and a description.
    pub(super) watch: &'j dyn Fn(f64, &str),
}

impl Prober<'_, '_> {
    /// Returns true if the budget is spent.
    pub(super) fn over(&self) -> bool {
        self.journal.spent() >= self.limit_s
    }

    /// Measures `point` with so many clients for `time`, or returns the measurement from the
    /// journal.
    fn slice(
        &mut self,
        stage: &str,
        pass: usize,
        point: TunePoint,
        clients: usize,
        time: Duration,
    ) -> Result<Slice> {
        (self.watch)(self.journal.spent(), &format!("{stage}: {point}, {clients} clients"));
        self.journal.slice(SliceKey {
            stage: stage.into(),
            pass,
            point,
            clients,
            millis: millis(time),
        })
    }

    /// Measures `points` in turn at growing numbers of clients up to `most`, `passes` times. A
    /// point whose latency is far beyond the target gets no more clients.
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
                    if slice.qps == 0.0 || slice.p99_ms > FAR_MULTIPLE * self.target_ms {
                        out.insert(point);
                    }
                    let reading = SliceReading { pass, clients, qps: slice.qps, slice };
                    all.entry(point).or_default().push(reading);
                }
            }
        }
        Ok(all)
    }

    /// Measures `point` at `start` clients. Then doubles the clients while that helps and stays
    /// within the target, or halves them until the latency is within the target. Takes at most
    /// `steps` slices.
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
            let next = if up && within && grew && !refused {
                LADDER.into_iter().find(|&step| step >= clients * 2)
            } else if !up && !within && !refused && clients > 1 {
                Some(LADDER[rung_of(clients / 2)])
            } else {
                None
            };
            let Some(next) = next else { break };
            clients = next;
        }
        Ok(readings)
    }

    /// Climbs with every point once, in random order. As that takes long, the reference is measured
    /// between blocks of points, and each block's throughput is scaled by the reference's change.
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
        let name = format!("{stage} reference");
        let mut before = self.slice(&name, 0, reference.0, reference.1, time)?.qps;
        for (index, block) in order.chunks(BLOCK).enumerate() {
            let mut read = Vec::new();
            for &(point, clients) in block {
                if self.over() {
                    break;
                }
                read.push((point, self.climb(stage, point, clients, time, steps)?));
            }
            let after = if self.over() {
                before
            } else {
                self.slice(&name, 1 + index, reference.0, reference.1, time)?.qps
            };
            blocks.push(ProbeBlock { read, references: [before, after] });
            before = after;
        }
        Ok(leveled(blocks))
    }

    /// Measures every point at its numbers of clients, until `until_s` seconds are spent. Each of
    /// at most `passes` passes measures all of them (A B C, then C A B, ...). A pass that the
    /// budget cuts short counts only if it is the first.
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

/// Shuffles by Fisher and Yates, the same for the same seed.
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
