//! Times of an open loop's requests, as a pure function of rate, kind and seed.

use std::time::Duration;

use crate::random::RandomSequence;

/// Distribution of the gaps between arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// One request every 1/rate seconds.
    Fixed,
    /// Exponential gaps, as from many independent clients.
    Poisson,
}

/// An endless sequence of times since the start, never decreasing.
#[derive(Clone, Debug)]
pub struct ArrivalSchedule {
    arrivals: Arrivals,
    gap_s: f64,
    random: RandomSequence,
    next: u64,
    elapsed_s: f64,
}

impl ArrivalSchedule {
    /// Schedules `rate` requests a second. The same seed gives the same times.
    pub fn new(arrivals: Arrivals, rate: f64, seed: u64) -> ArrivalSchedule {
        let gap_s = 1.0 / rate.max(f64::MIN_POSITIVE);
        ArrivalSchedule {
            arrivals,
            gap_s,
            random: RandomSequence::new(seed),
            next: 0,
            elapsed_s: 0.0,
        }
    }
}

impl Iterator for ArrivalSchedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let due = match self.arrivals {
            // Computed from the index, because a sum of gaps would drift.
            Arrivals::Fixed => self.next as f64 * self.gap_s,
            Arrivals::Poisson => {
                self.elapsed_s -= (1.0 - self.random.unit()).ln() * self.gap_s;
                self.elapsed_s
            }
        };
        self.next += 1;
        Duration::try_from_secs_f64(due).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_schedule_does_not_drift() {
        let mut schedule = ArrivalSchedule::new(Arrivals::Fixed, 3000.0, 0);
        assert_eq!(schedule.next(), Some(Duration::ZERO));
        assert_eq!(schedule.nth(3000 * 1000 - 1), Some(Duration::from_secs(1000)));
    }

    #[test]
    fn a_poisson_schedule_keeps_its_rate_and_seed() {
        let times: Vec<Duration> =
            ArrivalSchedule::new(Arrivals::Poisson, 1000.0, 7).take(100_000).collect();
        assert!(times.is_sorted());
        let seconds = times[times.len() - 1].as_secs_f64();
        assert!((98.0..102.0).contains(&seconds), "{seconds}");
        let again: Vec<Duration> =
            ArrivalSchedule::new(Arrivals::Poisson, 1000.0, 7).take(100_000).collect();
        assert_eq!(times, again);
        // About 1/e of exponential gaps are longer than their mean.
        let long =
            times.windows(2).filter(|w| w[1] - w[0] > Duration::from_millis(1)).count() as f64;
        assert!((0.35..0.39).contains(&(long / times.len() as f64)), "{long}");
    }
}
