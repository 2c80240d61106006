//! `millpond bench match`: error rates and speed of fingerprint matching.

mod folder;
pub(crate) mod identify;
mod images;
mod rates;
mod report;

use std::path::PathBuf;

use base::{Error, Result};
use clap::Args;
use matching::{Graph, MatchOptions, Probe, Scratch, score, synthetic};
use rustix::time::{ClockId, clock_gettime};

use crate::report::BenchReport as _;
use images::Extractor;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use rates::Scores;
use report::MatchReport;

/// Maximum number of impressions, all compared with all: 2048 make two million pairs a round.
const IMPRESSIONS_MAX: usize = 2048;
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Seed of synthetic fingers.
const SEED: u64 = 2002;

/// Compare each fingerprint with all others, and measure missed and false matches and the cost of a
/// match.
///
/// Every unordered pair of impressions is scored once. Two impressions of one finger of one
/// database are a genuine pair. All other pairs are impostors, also across databases. The protocol
/// of FVC takes only first impressions for impostors. These are too few to distinguish a false
/// match rate of 0.1 % from none, so this benchmark takes all. FNMR is the share of genuine pairs
/// that are not accepted at the lowest threshold with a false match rate of at most 0.1 %.
///
/// A match is scored from a record's bytes. Its cost is processor time of one thread, as the median
/// of the rounds. The cost of preparing a probe is divided among its matches.
///
/// Goals on the templates of FVC2002 DB1_B and DB2_B: the pooled FNMR is not above that of
/// `SourceAFIS` on the same templates (bench/peers/sourceafis), and a match costs at most 50 us.
/// Without --dir the fingers are generated, and the rates say nothing about real fingers.
///
/// With --images, the minutiae are first extracted from images, one image at a time. The cost of an
/// extraction is processor time of one thread, without decoding the file. Goals on the images of
/// the same databases: the pooled FNMR is not above that of `SourceAFIS` on the same images, 6.1 %,
/// and an extraction costs at most 90 ms per image.
#[derive(Args, Clone, Debug)]
pub(crate) struct MatchArgs {
    /// A folder of databases: at any depth, folders with files FINGER_IMPRESSION.iso (ISO/IEC
    /// 19794-2)
    #[arg(long, value_name = "FINGERPRINTS")]
    pub(crate) dir: Option<PathBuf>,
    /// Extract minutiae from images: files FINGER_IMPRESSION.tif, .png, .bmp, .jpg, .webp or .wsq
    /// instead of .iso
    #[arg(long, requires = "dir")]
    pub(crate) images: bool,
    /// Resolution of the images in dots per inch, of all or in one folder [default: that of the
    /// file if it is 250 to 1200, else 500]
    #[arg(long, value_name = "[FOLDER=]DPI", requires = "images")]
    pub(crate) dpi: Vec<images::FolderResolution>,
    /// Number of generated fingers without --dir
    #[arg(long, default_value_t = 20)]
    pub(crate) fingers: usize,
    /// Impressions of each generated finger without --dir
    #[arg(long, default_value_t = 8)]
    pub(crate) impressions: usize,
    /// Number of times that all pairs are scored
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug)]
struct Impression {
    database: String,
    finger: String,
    graph: Graph,
    record: Vec<u8>,
}

impl Impression {
    fn new(database: String, finger: String, graph: Graph) -> Impression {
        let mut record = Vec::new();
        graph.encode(&mut record);
        Impression { database, finger, graph, record }
    }

    fn same_finger(&self, other: &Impression) -> bool {
        self.database == other.database && self.finger == other.finger
    }
}

/// Cost of a round per match, in microseconds of processor time.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    genuine: f64,
    impostor: f64,
    all: f64,
}

/// Runs `bench match`.
///
/// # Errors
/// `InvalidArgument` if the folder holds no two fingers, a template is damaged or an argument is
/// out of range; `Internal` if two rounds give different scores.
pub(crate) fn run(args: &MatchArgs, _env: &BenchEnv) -> Result<()> {
    if args.rounds == 0 || args.rounds > ROUNDS_MAX {
        return Err(Error::invalid(format!("--rounds must be 1 to {ROUNDS_MAX}")));
    }
    let watch = NoiseWatch::start();
    let mut extractor = Extractor::new(&args.dpi);
    let impressions = match &args.dir {
        Some(dir) if args.images => folder::read(dir, images::EXTENSIONS, |database, bytes| {
            extractor.graph(database, bytes)
        })?,
        Some(dir) => folder::read(dir, &["iso"], |_, bytes| folder::template(bytes))?,
        None => made_up(args)?,
    };
    let progress = StepProgress::new(args.rounds as u64);
    progress.say(format!("{} impressions, all with all", impressions.len()));
    let mut costs = Vec::new();
    let mut scores: Option<Vec<f32>> = None;
    for _ in 0..args.rounds {
        let (round, cost) = compare(&impressions)?;
        if scores.as_ref().is_some_and(|former| *former != round) {
            return Err(Error::internal(
                "two rounds gave different scores: matching is not deterministic",
            ));
        }
        scores = Some(round);
        costs.push(cost);
        progress.step();
    }
    drop(progress);
    let scores = Scores::new(&impressions, &scores.unwrap_or_default());
    let report =
        MatchReport::new(args, &impressions, &scores, &costs, &extractor, watch.context(None))?;
    report.finish(args.json.as_deref())
}

/// Scores all unordered pairs, in order, and measures the cost.
fn compare(impressions: &[Impression]) -> Result<(Vec<f32>, Cost)> {
    let mut scratch = Scratch::new();
    let mut scores = Vec::with_capacity(impressions.len() * impressions.len() / 2);
    let mut genuine = (0.0, 0_usize);
    let mut impostor = (0.0, 0_usize);
    let mut preparing = 0.0;
    for (index, first) in impressions.iter().enumerate() {
        let start = thread_microseconds();
        let probe = Probe::new(&first.graph, MatchOptions::default());
        let mut last = thread_microseconds();
        preparing += last - start;
        for second in &impressions[index + 1..] {
            scores.push(score(&probe, &second.record, &mut scratch)?);
            let now = thread_microseconds();
            let sum = if first.same_finger(second) { &mut genuine } else { &mut impostor };
            sum.0 += now - last;
            sum.1 += 1;
            last = now;
        }
    }
    let each = |sum: (f64, usize)| sum.0 / sum.1.max(1) as f64;
    let all = each((genuine.0 + impostor.0 + preparing, genuine.1 + impostor.1));
    Ok((scores, Cost { genuine: each(genuine), impostor: each(impostor), all }))
}

/// Returns the processor time of this thread in microseconds.
fn thread_microseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Makes synthetic prints: `--impressions` distorted ones for each of `--fingers` fingers.
fn made_up(args: &MatchArgs) -> Result<Vec<Impression>> {
    let count = args.fingers.saturating_mul(args.impressions);
    if args.fingers < 2 || args.impressions < 2 || count > IMPRESSIONS_MAX {
        return Err(Error::invalid(format!(
            "--fingers and --impressions must be at least 2 and their product at most {IMPRESSIONS_MAX}"
        )));
    }
    Ok((0..count)
        .map(|index| {
            let finger = index / args.impressions;
            let impression = index % args.impressions;
            let graph = synthetic::fingerprint(SEED + finger as u64);
            let graph = synthetic::distorted(&graph, impression as u64 + 1);
            Impression::new("synthetic".into(), finger.to_string(), graph)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> MatchArgs {
        crate::arguments::parse(text.split_whitespace()).unwrap()
    }

    #[test]
    fn made_up_fingers_are_distinguished() {
        let impressions = made_up(&parse("--fingers 6 --impressions 3")).unwrap();
        assert_eq!(impressions.len(), 18);
        let (scores, _) = compare(&impressions).unwrap();
        let scores = Scores::new(&impressions, &scores);
        let rates = scores.pooled().unwrap();
        assert_eq!((rates.genuine, rates.impostor), (18, 135));
        assert!(rates.eer_pct < 10.0, "{rates:?}");
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in ["--fingers 1", "--impressions 1", "--fingers 1000 --impressions 3"] {
            assert!(made_up(&parse(wrong)).is_err(), "{wrong}");
        }
    }
}
