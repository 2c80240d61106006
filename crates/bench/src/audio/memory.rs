//! Resident memory over time: peak, mean and growth.

use serde::Serialize;

use super::child::ChildRun;

/// Minute of the recording from which growth counts.
const START_MINUTE: f64 = 10.0;
/// Share of the run from which growth counts if the recording is shorter than twice that.
const START_SHARE: f64 = 0.1;
/// The mean at the start is over samples within this share of the run around that moment.
const AROUND_SHARE: f64 = 0.025;
/// Last share of a run. The samples in it give the mean memory at the end.
const END_SHARE: f64 = 0.1;

#[derive(Clone, Debug, Serialize)]
pub(super) struct AllocatorMemory {
    pub(super) peak_mb: f64,
    /// Mean during the work on the recording.
    pub(super) mean_mb: f64,
    /// Growth from about minute ten of the recording to its end, in percent.
    pub(super) growth_pct: f64,
    /// Seconds of work.
    pub(super) seconds: f64,
    /// Seconds since the start of the process, and MiB.
    pub(super) samples: Vec<(f64, f64)>,
}

impl AllocatorMemory {
    /// Evaluates a run over a recording of `minutes`. Returns `None` if the run ended before there
    /// were samples.
    pub(super) fn of(ran: &ChildRun, minutes: f64) -> Option<AllocatorMemory> {
        let working: Vec<(f64, f64)> = ran
            .samples
            .iter()
            .filter(|(at, _)| *at >= ran.load_s)
            .map(|&(at, mb)| ((at - ran.load_s) / ran.seconds.max(f64::MIN_POSITIVE), mb))
            .collect();
        let mean_mb = mean(working.iter())?;
        let start =
            if minutes >= 2.0 * START_MINUTE { START_MINUTE / minutes } else { START_SHARE };
        let early = mean(working.iter().filter(|(share, _)| (share - start).abs() <= AROUND_SHARE))
            .or_else(|| nearest(&working, start))?;
        let late = mean(working.iter().filter(|(share, _)| *share >= 1.0 - END_SHARE))
            .or_else(|| nearest(&working, 1.0))?;
        Some(AllocatorMemory {
            peak_mb: ran.peak_mb,
            mean_mb,
            growth_pct: (late / early - 1.0) * 100.0,
            seconds: ran.seconds,
            samples: ran.samples.clone(),
        })
    }
}

fn mean<'a>(samples: impl Iterator<Item = &'a (f64, f64)>) -> Option<f64> {
    let (count, sum) = samples.fold((0u32, 0.0), |(count, sum), (_, mb)| (count + 1, sum + mb));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the sample nearest to a share of the run.
fn nearest(samples: &[(f64, f64)], share: f64) -> Option<f64> {
    let apart = |sample: &&(f64, f64)| (sample.0 - share).abs();
    samples.iter().min_by(|one, other| apart(one).total_cmp(&apart(other))).map(|(_, mb)| *mb)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(samples: &[(f64, f64)], load_s: f64, seconds: f64) -> ChildRun {
        ChildRun {
            seconds,
            cpu_s: 0.0,
            load_s,
            labels: Vec::new(),
            samples: samples.to_vec(),
            peak_mb: 99.0,
        }
    }

    #[test]
    fn growth_is_from_minute_ten_to_the_end() {
        // Loading takes two seconds and much memory; then 100 s for 100 minutes, one MiB more at
        // the end.
        let at = |second: f64| {
            if second < 2.0 {
                500.0
            } else if second < 92.0 {
                50.0
            } else {
                51.0
            }
        };
        let samples: Vec<(f64, f64)> =
            (0..204).map(|half| f64::from(half) / 2.0).map(|s| (s, at(s))).collect();
        let memory = AllocatorMemory::of(&ran(&samples, 2.0, 100.0), 100.0).unwrap();
        assert!((memory.growth_pct - 2.0).abs() < 1e-9, "{}", memory.growth_pct);
        assert!(memory.mean_mb > 50.0 && memory.mean_mb < 50.2 && memory.peak_mb == 99.0);
    }

    #[test]
    fn short_runs_use_the_samples_they_have() {
        let memory = AllocatorMemory::of(&ran(&[(0.5, 10.0), (1.0, 20.0)], 0.1, 1.0), 1.0).unwrap();
        assert_eq!((memory.mean_mb, memory.growth_pct), (15.0, 100.0));
        assert!(AllocatorMemory::of(&ran(&[], 0.1, 1.0), 1.0).is_none());
    }
}
