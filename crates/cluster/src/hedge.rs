//! Second requests to another holder of a segment if the first is slow (Dean and Barroso, "The Tail
//! at Scale", Communications of the ACM 56(2), 2013).

use std::time::Duration;

/// Maximum share of second requests among all, in percent.
pub const HEDGED_PERCENT_MAX: u32 = 5;
/// Second requests that may follow each other at once after a quiet time.
pub const BURST_MAX: u32 = 10;
/// Parts of a second request that one request earns.
const EARNED: u32 = HEDGED_PERCENT_MAX;
/// Parts that a second request costs.
const COST: u32 = 100;
/// Step of the estimate relative to it, for a request above the quantile. A request below moves it
/// by `STEP * (1 - QUANTILE) / QUANTILE`, so that both balance at the quantile.
const STEP: f64 = 0.05;
/// Quantile of the latency after which a second request goes to the other holder.
const QUANTILE: f64 = 0.95;
/// Shortest estimate: below it a second request costs more than it saves.
const ESTIMATE_MIN: Duration = Duration::from_millis(1);

/// Running estimate of the 95th percentile of a holder's latency. It needs one number a holder and
/// follows changes within about a hundred requests.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyEstimate {
    seconds: f64,
}

impl LatencyEstimate {
    /// Creates an estimate that starts at `initial`.
    pub fn new(initial: Duration) -> LatencyEstimate {
        LatencyEstimate { seconds: initial.max(ESTIMATE_MIN).as_secs_f64() }
    }

    /// Adds the latency of one request to the estimate.
    pub fn record(&mut self, latency: Duration) {
        let change = if latency.as_secs_f64() > self.seconds {
            STEP
        } else {
            -STEP * (1.0 - QUANTILE) / QUANTILE
        };
        self.seconds = (self.seconds * (1.0 + change)).max(ESTIMATE_MIN.as_secs_f64());
    }

    /// Returns the time after which the other holder should be asked.
    pub fn value(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Budget of second requests: each request earns 5 % of one.
///
/// # Example: 20 requests earn a second one
/// ```
/// use millpond_cluster::HedgeBudget;
///
/// let mut budget = HedgeBudget::default();
/// for _ in 0..20 {
///     budget.count_request();
/// }
/// assert!(budget.spend());
/// assert!(!budget.spend());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HedgeBudget {
    parts: u32,
}

impl HedgeBudget {
    /// Counts a request.
    pub fn count_request(&mut self) {
        self.parts = (self.parts + EARNED).min(BURST_MAX * COST);
    }

    /// Returns true and takes one second request from the budget, if it has one.
    pub fn spend(&mut self) -> bool {
        match self.parts.checked_sub(COST) {
            Some(rest) => {
                self.parts = rest;
                true
            }
            None => false,
        }
    }
}
