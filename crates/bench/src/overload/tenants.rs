//! Two tenants with a key each: one at a steady share of the capacity, the other at a multiple of
//! its quota.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use loadgen::BenchEnv;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::schedule::Arrivals;
use loadgen::stats::{median, ratio};
use loadgen::wire::{Api, ModelEndpoint};
use serde::Serialize;

use super::phase::{Outcomes, OverloadPhase};
use super::{IN_FLIGHT_MAX, LEAD_IN, MODEL, SEED, WARM_UP};
use crate::models::workload::Workload;
use crate::report::Goal;

/// Requests of the steady tenant, as a share of the capacity.
const STEADY_SHARE: f64 = 0.3;
/// Quota of the other tenant, as a share of the capacity.
const QUOTA_SHARE: f64 = 0.05;
/// Requests of the greedy tenant, as a multiple of its quota.
const GREED: f64 = 10.0;
/// Requests of the greedy tenant in the comparison, as a share of its quota. None of them is
/// refused.
const MODEST: f64 = 0.9;
/// Maximum p99 of the steady tenant, beside the greedy one over beside a modest one.
const RATIO_P99_MAX: f64 = 1.2;
/// Keys of the two tenants. The server listens on this machine only, for a short time.
const STEADY_KEY: &str = "mp_bench_steady";
const GREEDY_KEY: &str = "mp_bench_greedy";

/// JSON of the tenants.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TenantReport {
    /// Requests a second of the steady tenant.
    steady_rps: f64,
    /// Quota of the other tenant in requests a second.
    quota_rps: f64,
    /// Requests a second of the other tenant beyond its quota.
    greedy_rps: f64,
    /// Median over the rounds of the steady tenant's p99, greedy over modest.
    p99_ratio: f64,
    rounds: Vec<TenantRound>,
}

/// Results of two tenants that sent requests at the same time.
struct TenantPhases {
    /// The tenant without a quota.
    steady: OverloadPhase,
    /// The tenant with a quota.
    other: OverloadPhase,
}

/// One round. The other tenant first stays within its quota (modest), then exceeds it (greedy).
#[derive(Clone, Debug, Serialize)]
struct TenantRound {
    modest_p99_ms: f64,
    greedy_p99_ms: f64,
    /// Number of requests of the steady tenant that were refused, failed, or were not sent because
    /// too many answers were outstanding.
    steady_unserved: u64,
    /// Requests of the greedy tenant, by outcome.
    greedy_served: u64,
    greedy_refused: u64,
    /// Number of requests of both tenants that were neither served nor refused.
    failed: u64,
    /// Number of wrong answers to both tenants.
    wrong: u64,
}

impl TenantRound {
    /// Returns the round of two phases. The other tenant stays within its quota in the phase
    /// `modest`, and exceeds it in the phase `greedy`.
    fn new(modest: &TenantPhases, greedy: &TenantPhases) -> TenantRound {
        let all = [&modest.steady, &modest.other, &greedy.steady, &greedy.other];
        let unserved =
            |phase: &OverloadPhase| phase.refused + phase.failed + phase.generator.unsent;
        TenantRound {
            modest_p99_ms: modest.steady.p99_ms,
            greedy_p99_ms: greedy.steady.p99_ms,
            steady_unserved: unserved(&modest.steady) + unserved(&greedy.steady),
            greedy_served: greedy.other.served,
            greedy_refused: greedy.other.refused,
            failed: all.iter().map(|phase| phase.failed).sum(),
            wrong: all.iter().map(|phase| phase.wrong).sum(),
        }
    }
}

impl TenantReport {
    /// Returns the lines of the report for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |round: &TenantRound| {
            format!(
                "tenants: p99 {:.2} ms beside a tenant within its quota, {:.2} ms beside one at {GREED} times it, of \
                 which {} requests were served and {} refused",
                round.modest_p99_ms, round.greedy_p99_ms, round.greedy_served, round.greedy_refused
            )
        };
        self.rounds.iter().map(line).collect()
    }

    /// Returns the requests neither served nor refused, and the wrong answers.
    pub(super) fn faults(&self) -> [u64; 2] {
        let sum = |count: fn(&TenantRound) -> u64| self.rounds.iter().map(count).sum();
        [sum(|round| round.failed), sum(|round| round.wrong)]
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        let unserved: u64 = self.rounds.iter().map(|round| round.steady_unserved).sum();
        let refused = self.rounds.iter().all(|round| round.greedy_refused > 0);
        vec![
            Goal::new(
                format!(
                    "p99 of a tenant, beside one at {GREED} times its quota / within: at most {RATIO_P99_MAX}"
                ),
                self.p99_ratio,
                refused && self.p99_ratio > 0.0 && self.p99_ratio <= RATIO_P99_MAX,
            ),
            Goal::new(
                "unserved requests of the tenant without a quota: none",
                unserved as f64,
                unserved == 0,
            ),
        ]
    }
}

/// A server with two keys.
pub(super) struct TenantStage {
    server: ServerProcess,
    judge: Arc<dyn Judge>,
    /// Requests of each tenant, without rate and time.
    steady: DrivePlan,
    greedy: DrivePlan,
    steady_rps: f64,
    quota_rps: f64,
}

impl TenantStage {
    /// Starts the server of `model_dir`. `capacity` is its capacity in requests a second.
    pub(super) fn start(
        env: &BenchEnv,
        workload: &Workload,
        model_dir: &Path,
        server_args: &[String],
        capacity: f64,
    ) -> Result<TenantStage> {
        let quota_rps = (capacity * QUOTA_SHARE).max(1.0);
        let keys = write_keys(env, quota_rps)?;
        let mut args = vec![format!("{MODEL}={}", model_dir.display())];
        args.extend(["--keys".into(), keys.display().to_string()]);
        args.extend(server_args.iter().cloned());
        let server = ServerProcess::start(env, &ServerPlan::new("overload-tenants", args))?;
        let load = |key: &str| {
            let endpoint = server.grpc().with_key(Some(key.to_owned()));
            let model =
                ModelEndpoint { endpoint: endpoint.clone(), api: Api::Oip, model: MODEL.into() };
            let encoded = model.encode(&workload.requests)?;
            let bodies: Arc<[Bytes]> = encoded.bodies.into();
            let pace = LoadLoop::Open { arrivals: Arrivals::Poisson, rate: 1.0, seed: SEED };
            let mut plan = DrivePlan::new(endpoint, encoded.template, bodies, pace, Duration::ZERO);
            plan.in_flight_max = IN_FLIGHT_MAX;
            Ok::<_, Error>(plan)
        };
        Ok(TenantStage {
            judge: workload.answers.clone(),
            steady: load(STEADY_KEY)?,
            greedy: load(GREEDY_KEY)?,
            steady_rps: capacity * STEADY_SHARE,
            quota_rps,
            server,
        })
    }

    /// Measures `rounds` rounds, each twice for `time`.
    pub(super) fn run(self, rounds: usize, time: Duration) -> Result<TenantReport> {
        let rounds: Vec<TenantRound> =
            (0..rounds).map(|_| self.round(time)).collect::<Result<_>>()?;
        self.server.stop()?;
        Ok(TenantReport {
            steady_rps: self.steady_rps,
            quota_rps: self.quota_rps,
            greedy_rps: self.quota_rps * GREED,
            p99_ratio: median(
                rounds.iter().map(|round| ratio(round.greedy_p99_ms, round.modest_p99_ms)),
            ),
            rounds,
        })
    }

    fn round(&self, time: Duration) -> Result<TenantRound> {
        let modest = self.drive_both(self.quota_rps * MODEST, time)?;
        let greedy = self.drive_both(self.quota_rps * GREED, time)?;
        Ok(TenantRound::new(&modest, &greedy))
    }

    /// Sends the requests of both tenants at once. The other tenant sends `other_rps` requests a
    /// second.
    fn drive_both(&self, other_rps: f64, time: Duration) -> Result<TenantPhases> {
        let start = Instant::now() + LEAD_IN;
        let send = |load: &DrivePlan, rate: f64, seed: u64| {
            let outcomes = Arc::new(Outcomes::new(WARM_UP));
            let sink: Arc<dyn SampleSink> = outcomes.clone();
            let pace = LoadLoop::Open { arrivals: Arrivals::Poisson, rate, seed };
            let plan = DrivePlan { start, duration: time, pace, ..load.clone() };
            drive(&plan, &self.judge, &sink)?;
            Ok::<_, Error>(outcomes.phase(rate, time - WARM_UP))
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| send(&self.greedy, other_rps, SEED + 1));
            let steady = send(&self.steady, self.steady_rps, SEED)?;
            let other = other
                .join()
                .unwrap_or_else(|_| Err(Error::internal("the tenant's thread panicked")))?;
            Ok(TenantPhases { steady, other })
        })
    }
}

/// Writes the file of keys.
fn write_keys(env: &BenchEnv, quota_rps: f64) -> Result<PathBuf> {
    let path = env.cache_dir.join("run").join("overload").join("keys.toml");
    let hash = |key: &str| blake3::hash(key.as_bytes()).to_hex();
    let text = format!(
        "[[keys]]\nname = \"steady\"\nhash = \"blake3:{}\"\nrole = \"infer\"\n\n\
         [[keys]]\nname = \"greedy\"\nhash = \"blake3:{}\"\nrole = \"infer\"\nrequests-per-second = {quota_rps:.3}\n",
        hash(STEADY_KEY),
        hash(GREEDY_KEY)
    );
    std::fs::write(&path, text).map_err(|error| Error::io(&path, &error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overload::phase::Generator;

    #[test]
    fn unsent_requests_of_the_steady_tenant_are_unserved() {
        let stalled = OverloadPhase {
            refused: 1,
            failed: 20,
            generator: Generator { unsent: 300, ..Generator::default() },
            ..OverloadPhase::default()
        };
        let other = OverloadPhase::default();
        let modest = TenantPhases { steady: other.clone(), other: other.clone() };
        let round = TenantRound::new(&modest, &TenantPhases { steady: stalled, other });
        assert_eq!((round.steady_unserved, round.failed), (321, 20));
    }

    #[test]
    fn the_goal_needs_refused_requests() {
        let round = |refused| TenantRound {
            modest_p99_ms: 10.0,
            greedy_p99_ms: 11.0,
            steady_unserved: 0,
            greedy_served: 50,
            greedy_refused: refused,
            failed: 0,
            wrong: 0,
        };
        let report = |refused| TenantReport {
            steady_rps: 300.0,
            quota_rps: 50.0,
            greedy_rps: 500.0,
            p99_ratio: 1.1,
            rounds: vec![round(refused)],
        };
        let met = |report: &TenantReport| report.goals().iter().all(|goal| goal.met);
        assert!(met(&report(450)) && !met(&report(0)));
        assert_eq!(report(450).faults(), [0, 0]);
    }
}
