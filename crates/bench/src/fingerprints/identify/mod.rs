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
use loadgen::disk_space::check_space;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use report::IdentifyReport;

/// Maximum number of made-up prints: about 600 bytes each.
const BACKGROUND_MAX: usize = 10_000_000;
/// Bytes of disk per print of a collection while it is merged.
const PRINT_BYTES: u64 = 2048;

/// Identify fingerprints among many, and measure how often the right finger is found and how many
/// prints are compared.
///
/// The first impression of each finger of --dir is enrolled. All others are queries. The background
/// is generated: 16 to 58 minutiae in an ellipse, with directions that follow the orientation field
/// of a core and a delta. Neighbouring minutiae mostly have the same direction, and 8 % of the
/// directions are false. The numbers, distances and directions of minutiae, and the scores of
/// impostors, are those of FVC's templates. The report has the scores of impostors for the enrolled
/// prints and for the background.
///
/// The index of edges returns the share --penetration of the gallery as candidates. The exact
/// matcher scores these. `rank1` is the share of queries whose finger has the highest score of all
/// candidates. `exhaustive_rank1` is this share if every print of the gallery is scored. That takes
/// long, so it is measured for --exhaustive queries only; `rank1_same_queries` is the rate of the
/// index for the same queries. `exhaustive_rank1_most` needs no further scores: it is the share of
/// all queries whose finger has a higher score than all other candidates, even if the index did not
/// find the finger. No search can exceed it.
///
/// One thread answers each query. The measured time is from the minutiae to the ranking. With
/// --collection the gallery is also written to a collection, and the same queries run there on
/// search threads as in the server, one at a time: with one search thread, and with one for each
/// core (`p50_one_thread_ms`, `p50_all_threads_ms`).
///
/// Goals: at 1 % penetration, rank1 is at least 0.97 of that of the exhaustive matcher. 95 of 100
/// queries take at most a second (with --collection, on all search threads). A print takes at most
/// 320 bytes of memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct IdentifyArgs {
    /// A folder of databases: at any depth, folders with files FINGER_IMPRESSION.iso (ISO/IEC
    /// 19794-2)
    #[arg(long, value_name = "FINGERPRINTS")]
    pub(crate) dir: PathBuf,
    /// Extract minutiae from images: files FINGER_IMPRESSION.tif, .png, .bmp, .jpg, .webp or .wsq
    /// instead of .iso
    #[arg(long)]
    pub(crate) images: bool,
    /// Resolution of the images in dots per inch, of all or in one folder [default: that of the
    /// file if it is 250 to 1200, else 500]
    #[arg(long, value_name = "[FOLDER=]DPI", requires = "images")]
    pub(crate) dpi: Vec<images::FolderResolution>,
    /// Number of generated prints beside the enrolled ones
    #[arg(long, default_value_t = 100_000)]
    pub(crate) background: usize,
    /// Percent of the gallery that the exact matcher compares
    #[arg(long, default_value_t = 1.0)]
    pub(crate) penetration: f64,
    /// Number of queries, spread over all fingers [default: all]
    #[arg(long)]
    pub(crate) queries: Option<usize>,
    /// Number of queries that are also compared with the whole gallery
    #[arg(long, default_value_t = 16)]
    pub(crate) exhaustive: usize,
    /// Measure the queries also in a collection below DIR, on one search thread and on all. The
    /// collection takes up to 2 KB of disk per print while it is merged, and is removed at the end
    #[arg(long, value_name = "DIR")]
    pub(crate) collection: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Runs `bench identify`.
///
/// # Errors
/// `InvalidArgument` if the folder holds no finger with two impressions, a file is damaged or an
/// argument is out of range. `ResourceExhausted` if the disk is too small for the collection.
pub(crate) fn run(args: &IdentifyArgs, _env: &BenchEnv) -> Result<()> {
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
    if let Some(directory) = &args.collection {
        let bytes = (args.background + impressions.len()) as u64 * PRINT_BYTES;
        check_space(directory, bytes, "choose a smaller --background, or another --collection")?;
    }
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
