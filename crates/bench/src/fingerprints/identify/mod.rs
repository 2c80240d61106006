//! `millpond bench identify`: one fingerprint against many, by the index and the exact matcher.

mod collection;
mod gallery;
mod queries;
mod report;

use std::path::PathBuf;

use base::{Error, Result};
use clap::Args;

use super::{folder, images};
use crate::report::BenchReport as _;
use gallery::Gallery;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use report::IdentifyReport;

/// Maximum number of made-up prints: about 600 bytes each.
const BACKGROUND_MAX: usize = 10_000_000;

/// Identify fingerprints among many: how often the right one is found, and how much is compared.
///
/// The first impression of each finger of --dir is enrolled. All others are queries. The background
/// is generated: 16 to 58 minutiae in an ellipse, with directions that follow the orientation field
/// of a core and a delta. Neighbours mostly point the same way, 8 % of directions are false. The
/// numbers, distances and directions, and the scores of impostors, are those of FVC's templates;
/// the report gives the latter for the enrolled prints and for the background.
///
/// The index of edges gives the share --penetration of the gallery as candidates. The exact matcher
/// scores these. `rank1` is the share of queries whose finger has the highest score of all
/// candidates. `exhaustive_rank1` is the same if every print of the gallery is scored; that takes
/// long, so it is measured for --exhaustive queries, and `rank1_same_queries` is the index's rate
/// for these. `exhaustive_rank1_most` needs no further scores: the share of all queries whose
/// finger has a higher score than all other candidates, found or not. No search can exceed it.
///
/// One thread answers each query. The measured time is from the minutiae to the ranking. With
/// --collection the gallery is also written to a collection, and the same queries run there on
/// search threads as in the server, one at a time: with one search thread, and with one for each
/// core (`p50_one_thread_ms`, `p50_all_threads_ms`).
///
/// Goals: rank1 at least 0.97 of the exhaustive matcher's at 1 % penetration, 95 of 100 queries
/// within a second (with --collection on all search threads), at most 320 bytes of memory per
/// print.
#[derive(Args, Clone, Debug)]
pub struct IdentifyArgs {
    /// A folder of databases: at any depth, folders with files FINGER_IMPRESSION.iso (ISO/IEC
    /// 19794-2)
    #[arg(long, value_name = "FINGERPRINTS")]
    pub dir: PathBuf,
    /// Extract minutiae from images: files FINGER_IMPRESSION.tif, .png, .bmp, .jpg, .webp or .wsq
    /// instead of .iso
    #[arg(long)]
    pub images: bool,
    /// Resolution of the images in dots per inch, of all or in one folder [default: that of the
    /// file if it is 250 to 1200, else 500]
    #[arg(long, value_name = "[FOLDER=]DPI", requires = "images")]
    pub dpi: Vec<images::FolderResolution>,
    /// Number of generated prints beside the enrolled ones
    #[arg(long, default_value_t = 100_000)]
    pub background: usize,
    /// Percent of the gallery that the exact matcher compares
    #[arg(long, default_value_t = 1.0)]
    pub penetration: f64,
    /// Number of queries, spread over all fingers [default: all]
    #[arg(long)]
    pub queries: Option<usize>,
    /// Number of queries that are also compared with the whole gallery
    #[arg(long, default_value_t = 16)]
    pub exhaustive: usize,
    /// Measure the queries also in a collection below DIR, on one search thread and on all. The
    /// collection takes up to 2 KB of disk per print while it is merged, and is removed at the end
    #[arg(long, value_name = "DIR")]
    pub collection: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs `bench identify`.
///
/// # Errors
/// `InvalidArgument` if the folder holds no finger with two impressions, a file is damaged or an
/// argument is out of range.
pub fn run(args: &IdentifyArgs, _env: &BenchEnv) -> Result<()> {
    if args.background > BACKGROUND_MAX || !(0.0..=100.0).contains(&args.penetration) {
        return Err(Error::invalid(format!(
            "--background is at most {BACKGROUND_MAX} and --penetration 0 to 100 percent"
        )));
    }
    let watch = NoiseWatch::start();
    let mut extractor = images::Extractor::new(&args.dpi);
    let impressions = if args.images {
        folder::read(&args.dir, images::EXTENSIONS, |database, bytes| {
            extractor.graph(database, bytes)
        })?
    } else {
        folder::read(&args.dir, &["iso"], |_, bytes| folder::template(bytes))?
    };
    let progress = StepProgress::new(3 + u64::from(args.collection.is_some()));
    progress.say(format!("a gallery of {} generated prints", args.background));
    let gallery = Gallery::new(&impressions, args.background)?;
    progress.step();
    let trials = queries::trials(&impressions, args.queries)?;
    progress.say(format!("{} queries", trials.len()));
    let mut outcomes = queries::identify(&gallery, &trials, args.penetration)?;
    progress.step();
    progress.say(format!("{} queries against the whole gallery", args.exhaustive));
    queries::compare_all(&gallery, &trials, &mut outcomes, args.exhaustive)?;
    progress.step();
    let mut collection = None;
    if let Some(directory) = &args.collection {
        progress.say("the same queries in a collection");
        collection = Some(collection::measure(directory, &gallery, &trials, args.penetration)?);
        progress.step();
    }
    drop(progress);
    let impostors = queries::impostors(&gallery, &trials)?;
    let context = watch.context(None);
    let report = IdentifyReport::new(args, &gallery, &outcomes, impostors, collection, context)?;
    report.finish(args.json.as_deref())
}
