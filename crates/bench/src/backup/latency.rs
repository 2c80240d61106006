//! Latency of searches with and without a backup, in alternating windows.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use backup::BackupExtent;
use base::{Error, ErrorKind, Result};
use os::Rate;
use search::registry::{NamedCollection, Registry};
use serde::Serialize;

use super::{BackupBenchArgs, RATE, RunStore, collection};
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;

/// Latency of the searches of both arms.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct LatencyFigures {
    /// Number of searches of each arm.
    pub(super) searches: usize,
    /// Quantiles without a backup, in milliseconds.
    pub(super) control_p50_ms: f64,
    pub(super) control_p99_ms: f64,
    /// Quantiles while a backup runs.
    pub(super) backup_p50_ms: f64,
    pub(super) backup_p99_ms: f64,
    /// Ratio of the two p99.
    pub(super) p99_ratio: f64,
    /// Ratio of the p99 of each pair of windows.
    pub(super) pair_ratios: Vec<f64>,
    /// Bytes that the backups sent.
    pub(super) backup_bytes: u64,
}

/// Measures both arms.
pub(super) fn measure(
    args: &BackupBenchArgs,
    registry: &Arc<Registry>,
    named: &Arc<NamedCollection>,
    directory: &Path,
    progress: &StepProgress,
) -> Result<LatencyFigures> {
    let mut control = Vec::new();
    let mut with = Vec::new();
    let mut figures = LatencyFigures::default();
    // Fills the caches.
    window(args, registry, named, 0)?;
    for pair in 0..args.pairs {
        progress.line(&format!("searches, pair {} of {}", pair + 1, args.pairs));
        let one = || window(args, registry, named, 1 + u64::from(pair));
        let other = || beside_backup(args, registry, named, directory, pair);
        // The order alternates, so that a slow change of the machine hits both arms.
        let (alone, (beside, bytes)) = if pair % 2 == 0 {
            let alone = one()?;
            (alone, other()?)
        } else {
            let beside = other()?;
            (one()?, beside)
        };
        figures.backup_bytes += bytes;
        figures.pair_ratios.push(quantile(&beside, 0.99) / quantile(&alone, 0.99));
        control.extend(alone);
        with.extend(beside);
    }
    figures.searches = control.len();
    figures.control_p50_ms = quantile(&control, 0.5);
    figures.control_p99_ms = quantile(&control, 0.99);
    figures.backup_p50_ms = quantile(&with, 0.5);
    figures.backup_p99_ms = quantile(&with, 0.99);
    figures.p99_ratio = figures.backup_p99_ms / figures.control_p99_ms;
    Ok(figures)
}

/// Returns the latencies of one window in milliseconds, counted from the moment when each search
/// was due.
fn window(
    args: &BackupBenchArgs,
    registry: &Arc<Registry>,
    named: &Arc<NamedCollection>,
    number: u64,
) -> Result<Vec<f64>> {
    let interval = Duration::from_secs(1) / args.queries;
    let count = args.window_s * u64::from(args.queries);
    let (sender, answers) = mpsc::channel();
    let start = Instant::now();
    for query in 0..count {
        let due = start + interval * query as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let sender = sender.clone();
        collection::submit(registry, named, args, number * count + query, move |hits| {
            // The receiver waits for all.
            let _ = sender.send(hits.map(|_| due.elapsed().as_secs_f64() * 1e3));
        })?;
    }
    drop(sender);
    let latencies: Vec<f64> = answers.iter().collect::<Result<_>>()?;
    if latencies.len() as u64 == count {
        Ok(latencies)
    } else {
        Err(Error::internal("searches ended without an answer"))
    }
}

/// Returns the latencies of a window in which backups of all files run one after the other, and the
/// bytes that they sent.
fn beside_backup(
    args: &BackupBenchArgs,
    registry: &Arc<Registry>,
    named: &Arc<NamedCollection>,
    directory: &Path,
    pair: u32,
) -> Result<(Vec<f64>, u64)> {
    let place = RunFolder::new(directory.join(format!("window-{pair}")));
    let store = Arc::new(RunStore::open(place.path(), Rate::per_second(RATE))?);
    let stop = Arc::new(AtomicBool::new(false));
    let thread = {
        let store = store.clone();
        let stop = stop.clone();
        let named = named.clone();
        std::thread::spawn(move || {
            os::thread::enter_low_priority("backing up");
            while !stop.load(Ordering::Relaxed) {
                match store.back_up(&named, BackupExtent::All) {
                    Err(error) if error.kind() == ErrorKind::Cancelled => break,
                    made => made.map(drop)?,
                }
            }
            Ok::<(), Error>(())
        })
    };
    let latencies = window(args, registry, named, 1000 + u64::from(pair));
    stop.store(true, Ordering::Relaxed);
    store.progress.stop();
    thread.join().map_err(|_| Error::internal("a backup ended in a panic"))??;
    Ok((latencies?, store.progress.bytes_moved()))
}

fn quantile(latencies: &[f64], quantile: f64) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}
