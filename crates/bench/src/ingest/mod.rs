//! `millpond bench ingest`: the effect of ingest on searches, and of a kill on acknowledged images.

mod arms;
mod images;
mod kills;
mod model;
mod report;
mod subject;

use std::path::PathBuf;

use base::{Error, Result};
use clap::Args;
use engine_onnx::OnnxEngine;

use crate::report::BenchReport as _;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use subject::IngestSubject;

/// Maximum number of rounds.
const ROUNDS_MAX: u32 = 1000;
/// Maximum number of kills.
const KILLS_MAX: u32 = 1000;
/// Maximum number of images at the start.
const IMAGES_MAX: u64 = 1_000_000;
/// Maximum length of an arm in seconds.
const SECONDS_MAX: u64 = 3600;

/// Search images while others are added at full speed; then kill the server, and check the images
/// that it had acknowledged.
///
/// Searches are sent in an open loop at a fixed rate, by the id of an image in the collection: the
/// coarse filter, then the matcher over 200 candidates. Latency counts from the moment a search was
/// due. In the ingest arm, the server meanwhile reads a folder of new images, embeds them, finds
/// their keypoints, and flushes and merges segments, all in the background. In the control arm, one
/// thread per core only calculates at idle priority instead. The difference between the arms is the
/// cost of the ingest beyond its use of idle time. The arms take turns on one server. The report
/// has the numbers of images, flushes and merges during the searches.
///
/// Then images are added, and the server is killed at a random moment and started again. The
/// benchmark requests every image that the server has ever acknowledged, and compares the files of
/// some.
///
/// Goals: p99 is at most 1.25 times that of the control arm, and no image is lost. Images and model
/// are generated.
#[derive(Args, Clone, Debug)]
pub(crate) struct IngestArgs {
    /// Images in the collection at the start
    #[arg(long, alias = "pictures", default_value_t = 600)]
    pub(crate) images: u64,
    /// Rounds; each has both arms
    #[arg(long, default_value_t = 6)]
    pub(crate) rounds: u32,
    /// Seconds of an arm
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Searches per second [default: as many as keep 0.4 of one core busy]
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Number of kills of the server
    #[arg(long, default_value_t = 5)]
    pub(crate) kills: u32,
    /// Longest life of a server that is to be killed, in milliseconds
    #[arg(long, default_value_t = 4000)]
    pub(crate) life_ms: u64,
    /// Memory of the collections: little, so that segments are small and flushes and merges
    /// frequent
    #[arg(long, default_value = "48MiB", value_name = "BYTES")]
    pub(crate) search_memory: String,
    /// Seed of the moments of the kills
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl IngestArgs {
    fn check(&self) -> Result<()> {
        let within = |what: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(Error::invalid(format!("--{what} must be {least} to {most}, not {value}")))
            }
        };
        within("images", self.images, 10, IMAGES_MAX)?;
        within("rounds", self.rounds.into(), 1, ROUNDS_MAX.into())?;
        within("seconds", self.seconds, 1, SECONDS_MAX)?;
        within("kills", self.kills.into(), 0, KILLS_MAX.into())?;
        within("life-ms", self.life_ms, 100, SECONDS_MAX * 1000)?;
        if self.rate.is_some_and(|rate| !(0.1..=100_000.0).contains(&rate)) {
            return Err(Error::invalid("--rate must be 0.1 to 100000 searches per second"));
        }
        Ok(())
    }
}

/// Runs `bench ingest`.
///
/// # Errors
/// Returns an error if an argument is out of range or a server cannot be started. After the report:
/// `DataLoss` if an acknowledged image was lost, `Internal` if searches failed or were answered
/// wrongly.
pub(crate) fn run(args: &IngestArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(u64::from(2 * args.rounds + args.kills) + 1);
    let mut subject = IngestSubject::new(args, env)?;
    let measured = arms::run(args, &mut subject, &progress)?;
    let killed = kills::run(args, &mut subject, &progress)?;
    let memory = args.search_memory.clone();
    drop(progress);
    let version =
        OnnxEngine::find_library(&env.onnxruntime).ok().map(|path| path.display().to_string());
    let report = report::IngestReport::new(measured, killed, memory, watch.context(version));
    report.finish(args.json.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_name_of_images_is_an_alias() {
        let args: IngestArgs = crate::arguments::parse(["--pictures", "40"]).unwrap();
        assert_eq!(args.images, 40);
    }
}
