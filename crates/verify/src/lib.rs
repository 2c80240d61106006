//! Compares two servers under the same recorded requests: first the answers, then the latency.
//!
//! Each request goes to both servers once, and the answers are compared as tensors, so that servers
//! may encode them differently. Then the servers are measured in turns, so that one load does not
//! disturb the other. In the measurement each server is compared with its own first answers.
//!
//! # Modules
//! * Requests: `records` reads them, `answer` decodes their answers.
//! * Comparison: `compare` the answers, `measure` the latency, `report` both.

mod answer;
mod compare;
mod measure;
mod records;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use base::Result;
use loadgen::connection::Endpoint;
use loadgen::report::StepProgress;

use compare::compare_all;
use measure::measure;
use records::RecordedCalls;
pub use report::ComparisonReport;

/// Names of the two servers in the report.
const NAMES: [&str; 2] = ["server", "against"];

/// One of the two servers.
#[derive(Clone, Debug)]
pub struct ComparedServer {
    /// Address as the user wrote it, for the report.
    pub address: String,
    /// gRPC endpoint of the server.
    pub endpoint: Endpoint,
}

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct VerifyPlan {
    /// The server to verify, and the one with the right answers.
    pub servers: [ComparedServer; 2],
    /// Files of recorded requests: TFRecord of `PredictionLog`, or lines of JSON (`.jsonl`).
    pub requests: Vec<PathBuf>,
    /// Model that gets all requests, or `None` for the recorded ones.
    pub model: Option<String>,
    /// Largest difference of two floats, relative to the larger of 1 and the absolute
    /// value from the second server.
    pub tolerance: f64,
    /// Requests per second. `None` is a closed loop.
    pub rate: Option<f64>,
    /// Clients of the closed loop.
    pub clients: usize,
    /// Measuring time of a round on one server. 0 only compares the answers.
    pub duration: Duration,
    /// Rounds, each of which measures both servers.
    pub rounds: usize,
}

/// Compares and measures.
///
/// # Errors
/// Errors of the files. `InvalidArgument` if they hold no request. `Unavailable` if a server cannot
/// be reached.
pub fn verify(plan: &VerifyPlan) -> Result<ComparisonReport> {
    let records = RecordedCalls::read(&plan.requests, plan.model.as_deref())?;
    let rounds = if plan.duration.is_zero() { 0 } else { plan.rounds };
    let progress = StepProgress::new((records.calls.len() + 2 * rounds) as u64);
    let comparison = compare_all(&records, plan, &progress)?;
    let counts = measure(plan, rounds, &records, &comparison, &progress)?;
    Ok(ComparisonReport {
        addresses: plan.servers.each_ref().map(|server| server.address.clone()),
        tolerance: plan.tolerance,
        records,
        comparison,
        counts,
    })
}
