//! The report of `bench rollout`: JSON, a table and goals.

use base::{Error, Result};
use serde::Serialize;

use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::report::TextTable;
use loadgen::stats::{median, ratio};
use loadgen::{print, println};

/// Maximum requests of a bad version until it is withdrawn.
const REQUESTS_MAX: u64 = 2000;
/// Maximum p99 with copies, as a multiple of p99 without.
const SHADOW_RATIO_MAX: f64 = 1.05;

/// JSON of one bad version.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RolledBack {
    /// Number of requests that the new version answered or failed until it was withdrawn. If it got
    /// copies, number of copies that it answered. `None` if it was not withdrawn.
    pub(super) requests_to_rollback: Option<u64>,
    /// Number of requests that failed at the client.
    pub(super) client_failures: u64,
    /// Requests, or copies, that the new version failed.
    pub(super) version_failures: u64,
    /// Number of requests of the new version that the old one answered, because the queue of the
    /// new one was full.
    pub(super) overflow: u64,
    /// Wrong answers at the client.
    pub(super) wrong: u64,
    /// Reason that the server gives.
    pub(super) reason: String,
    pub(super) seconds: f64,
    /// Reasons of failures at the client, most frequent first.
    pub(super) failures: Vec<String>,
}

/// p99 in one round without and with copies.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ShadowRound {
    pub(super) control_p99_ms: f64,
    pub(super) shadow_p99_ms: f64,
    /// Number of copies that the new version answered.
    pub(super) copies: u64,
}

/// JSON of `bench rollout`.
#[derive(Debug, Serialize)]
pub(super) struct RolloutBenchReport {
    pub(super) capacity_rps: f64,
    pub(super) rate_rps: f64,
    pub(super) slow: RolledBack,
    pub(super) errors: RolledBack,
    pub(super) drift: RolledBack,
    /// Median over the rounds.
    pub(super) shadow_p99_ratio: f64,
    pub(super) shadow_rounds: Vec<ShadowRound>,
    pub(super) wanted: Vec<Goal>,
    #[serde(flatten)]
    pub(super) context: RunContext,
}

impl RolloutBenchReport {
    /// Computes ratio and goals.
    pub(super) fn completed(mut self) -> RolloutBenchReport {
        let rounds = self.shadow_rounds.iter();
        self.shadow_p99_ratio =
            median(rounds.map(|round| ratio(round.shadow_p99_ms, round.control_p99_ms)));
        let mut wanted = Vec::new();
        for (name, version) in self.versions() {
            let requests = version.requests_to_rollback;
            wanted.push(Goal::new(
                format!("{name} version withdrawn within {REQUESTS_MAX} of its requests"),
                requests.unwrap_or(0) as f64,
                requests.is_some_and(|requests| requests <= REQUESTS_MAX),
            ));
        }
        for (name, version) in [("slow", &self.slow), ("drifting", &self.drift)] {
            wanted.push(Goal::new(
                format!("client failures during the rollout of the {name} version: none"),
                version.client_failures as f64,
                version.client_failures == 0,
            ));
        }
        wanted.push(Goal::new(
            "client failures during the rollout of the failing version that it did not cause: none",
            self.other_failures() as f64,
            self.other_failures() == 0,
        ));
        let copied = self.shadow_rounds.iter().all(|round| round.copies > 0);
        wanted.push(Goal::new(
            format!("p99 with copies / without: below {SHADOW_RATIO_MAX}"),
            self.shadow_p99_ratio,
            copied && self.shadow_p99_ratio < SHADOW_RATIO_MAX,
        ));
        self.wanted = wanted;
        self
    }

    /// Returns the failures at the client during the rollout of the failing version, without those
    /// of that version.
    fn other_failures(&self) -> u64 {
        self.errors.client_failures.saturating_sub(self.errors.version_failures)
    }

    fn versions(&self) -> [(&'static str, &RolledBack); 3] {
        [("slow", &self.slow), ("failing", &self.errors), ("drifting", &self.drift)]
    }
}

impl BenchReport for RolloutBenchReport {
    fn print(&self) {
        println!("{:.0} requests/s of {:.0}", self.rate_rps, self.capacity_rps);
        let mut table = TextTable::left(&[
            "version",
            "requests to rollback",
            "client failures",
            "overflow",
            "seconds",
        ]);
        for (name, version) in self.versions() {
            table.row([
                name.to_owned(),
                version.requests_to_rollback.map_or("-".to_owned(), |count| count.to_string()),
                version.client_failures.to_string(),
                version.overflow.to_string(),
                format!("{:.1}", version.seconds),
            ]);
        }
        print!("{table}");
        for (name, version) in self.versions() {
            println!("{name}: {}", version.reason);
            version.failures.iter().for_each(|line| println!("{name}: failed: {line}"));
        }
        self.wanted.iter().for_each(|goal| println!("{goal}"));
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        let missing = self.versions().into_iter().find(|(_, v)| v.requests_to_rollback.is_none());
        if let Some((name, _)) = missing {
            return Err(Error::internal(format!("the {name} version was not withdrawn")));
        }
        let wrong: u64 = self.versions().iter().map(|(_, version)| version.wrong).sum();
        let failed = self.slow.client_failures + self.drift.client_failures + self.other_failures();
        crate::report::check_faults(failed, wrong)
    }
}
