//! `millpond bench images`: recall of searches with copies of photographs.

mod attacks;
mod embed;
mod index;
mod lettering;
mod photos;
mod queries;
mod report;
mod screen;

use std::path::PathBuf;

use base::{Error, Result};
use clap::Args;
use serde_json::json;

use crate::report::BenchReport as _;
use attacks::Attack;
use embed::PhotoEmbedder;
pub(crate) use index::IndexMedium;
use index::PhotoIndex;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::{StepProgress, write_json};
use queries::{CopyQuery, Pipeline};
use report::{ImagesReport, ImagesRun};

/// Maximum number of threads.
const THREADS_MAX: usize = 64;

/// Search for modified copies of photographs: cropped, rotated, scaled, recompressed, blurred,
/// brightened, written over, framed, mirrored, in a collage, shown by a screen.
///
/// All photographs except the fillers of collages go into a collection, with the embedding of a
/// model and with keypoints. Of some of them, 31 copies each are made (two or three for each
/// attack; random values follow from a seed). The benchmark searches for these copies: the coarse
/// stage selects candidates by embedding, and the matcher compares keypoints. If no image is
/// accepted, it searches for further views as the server does: coarse keypoints, the mirror image,
/// halves and quarters. Then other photographs are removed from the collection, and the benchmark
/// searches for them and their copies: every accepted image is then a false accept. A wrong image
/// that is accepted for a copy of a photograph in the collection is a false accept too.
///
/// Recall is the share of copies whose photograph comes first: by embedding alone, and after all
/// stages. A query's time is that of decoding, embedding, keypoints and search, with as many
/// queries at the same time as there are threads.
///
/// Goals on 500 photographs with copies of 100: after all stages, the recall is 0.98 on average, at
/// least 0.95 for each attack, also if only accepted images count, and never below that of the
/// coarse stage. There are no false accepts. Without --dir the images are generated, and the
/// figures say nothing about real images.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchImagesArgs {
    /// A folder of photographs, at any depth
    #[arg(long, value_name = "PHOTOS")]
    pub(crate) dir: Option<PathBuf>,
    /// Number of generated photographs without --dir
    #[arg(long, default_value_t = 8)]
    pub(crate) made: usize,
    /// Photographs of which copies are made [default: 100, a quarter of generated ones]
    #[arg(long)]
    pub(crate) attacked: Option<usize>,
    /// Photographs that are removed, then searched for as they are and by copies [default: 50, an
    /// eighth of generated ones]
    #[arg(long)]
    pub(crate) held_out: Option<usize>,
    /// Photographs outside the collection that fill collages [default: 30, an eighth of generated
    /// ones]
    #[arg(long)]
    pub(crate) fillers: Option<usize>,
    /// Only these attacks (may be given several times) [default: all]
    #[arg(long, value_name = "NAME")]
    pub(crate) attack: Vec<String>,
    /// Search for the copies as they are only
    #[arg(long)]
    pub(crate) no_views: bool,
    /// Images that the coarse stage passes to the matcher
    #[arg(long, default_value_t = 100)]
    pub(crate) candidates: usize,
    /// Embedding model (ONNX, [n, 3, height, width]) [default:
    /// .cache/images/models/mobilenet-v2/1/model.onnx]
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Medium of records
    #[arg(long, value_enum, default_value_t = IndexMedium::Dram)]
    pub(crate) medium: IndexMedium,
    /// Queries at once [default: one per core]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Seed of the attacks' random values
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write the copies and a manifest.json for other programs
    #[arg(long, value_name = "DIR")]
    pub(crate) write_queries: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Photographs of the queries.
#[derive(Debug)]
struct QueryPlan {
    /// Photographs that stay in the collection.
    attacked: Vec<usize>,
    /// Photographs that are removed.
    held_out: Vec<usize>,
    /// Photographs that never are in the collection.
    fillers: Vec<usize>,
    /// Indexes of the attacks.
    attacks: Vec<usize>,
}

impl QueryPlan {
    /// Chooses the photographs of each kind, evenly spread over all `photos`.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too few photographs; the error of [`Attack::chosen`].
    fn new(args: &BenchImagesArgs, photos: usize) -> Result<QueryPlan> {
        let usual =
            |of: usize, share: usize| if args.dir.is_some() { of } else { (photos / share).max(1) };
        let attacked = args.attacked.unwrap_or_else(|| usual(100, 4).min(photos / 2));
        let held_out = args.held_out.unwrap_or_else(|| usual(50, 8).min(photos / 4));
        let fillers = args.fillers.unwrap_or_else(|| usual(30, 8).min((photos / 8).max(1)));
        if attacked == 0 || attacked + held_out + fillers > photos {
            return Err(Error::invalid(format!(
                "{photos} photographs are not enough for {attacked} with copies, {held_out} taken out and {fillers} in \
                 collages; at least one must have copies"
            )));
        }
        let attacks = Attack::chosen(&args.attack)?;
        if fillers == 0 && attacks.iter().any(|&at| Attack::ALL[at].0 == Attack::Collage) {
            return Err(Error::invalid(
                "a collage needs other photographs: use --fillers of at least 1, or --attack for other attacks",
            ));
        }
        let spread = |count: usize, from: &[usize]| -> Vec<usize> {
            (0..count).filter_map(|at| from.get(at * from.len() / count.max(1)).copied()).collect()
        };
        let without = |all: &[usize], taken: &[usize]| -> Vec<usize> {
            all.iter().copied().filter(|photo| !taken.contains(photo)).collect()
        };
        let all: Vec<usize> = (0..photos).collect();
        let held_out = spread(held_out, &all);
        let left = without(&all, &held_out);
        let fillers = spread(fillers, &left);
        let attacked = spread(attacked, &without(&left, &fillers));
        Ok(QueryPlan { attacked, held_out, fillers, attacks })
    }

    fn asks(&self) -> Vec<CopyQuery> {
        self.attacked.iter().flat_map(|&photo| CopyQuery::copies(photo, &self.attacks)).collect()
    }

    fn held_out_asks(&self) -> Vec<CopyQuery> {
        let of = |&photo: &usize| {
            let unmodified = CopyQuery { photo, attack: None };
            std::iter::once(unmodified).chain(CopyQuery::copies(photo, &self.attacks))
        };
        self.held_out.iter().flat_map(of).collect()
    }
}

/// Runs `bench images`.
///
/// # Errors
/// `InvalidArgument` for arguments that cannot work, `NotFound` if there is no model, and those of
/// the collection.
pub(crate) fn run(args: &BenchImagesArgs, env: &BenchEnv) -> Result<()> {
    let threads = args.threads.unwrap_or_else(loadgen::machine::cores);
    if !(1..=THREADS_MAX).contains(&threads) || args.candidates == 0 {
        return Err(Error::invalid(format!(
            "--threads must be 1 to {THREADS_MAX}, --candidates at least 1"
        )));
    }
    let watch = NoiseWatch::start();
    let mut skipped = Vec::new();
    let photos = match &args.dir {
        Some(dir) => photos::read(dir, &mut skipped)?,
        None => photos::draw_photos(args.made)?,
    };
    let plan = QueryPlan::new(args, photos.len())?;
    let embedder = PhotoEmbedder::open(args.model.as_deref(), args.dir.is_none(), env)?;
    let seed = args.seed;
    let candidates = args.candidates;
    let options = vision::photo::KeypointOptions::default();
    let pipeline = Pipeline {
        photos: &photos,
        embedder: &embedder,
        options,
        threads,
        candidates,
        views: !args.no_views,
        fillers: &plan.fillers,
        seed,
    };
    let asks = plan.asks();
    let held_out = plan.held_out_asks();
    let progress = StepProgress::new((photos.len() + asks.len() + held_out.len()) as u64);
    for line in &skipped {
        progress.line(&format!("left out: {line}"));
    }
    progress.say(format!("{} photographs into a collection", photos.len()));
    let mut entries = pipeline.entries(&progress)?;
    entries.retain(|entry| !plan.fillers.contains(&(entry.id as usize)));
    let folder = env.cache_dir.join(format!("images-{}", std::process::id()));
    let index = PhotoIndex::build(&entries, args.medium, folder)?;
    progress.say(format!("{} copies of {}", asks.len(), plan.attacked.len()));
    let to = args.write_queries.as_deref();
    let answers = pipeline.answers(&index, &asks, to, &progress)?;
    index.remove(plan.held_out.iter().map(|&photo| photo as u64))?;
    progress.say(format!("{} queries for what is not there", held_out.len()));
    let strangers = pipeline.answers(&index, &held_out, to, &progress)?;
    drop(progress);
    if let Some(to) = to {
        write_json(&to.join("manifest.json"), &manifest(&pipeline, &plan, &asks, &held_out))?;
    }
    let plan = &plan;
    let pipeline = &pipeline;
    let left = index.count() as usize;
    let run = ImagesRun {
        args,
        plan,
        pipeline,
        entries: &entries,
        answers: &answers,
        strangers: &strangers,
        left,
    };
    let report = ImagesReport::new(&run, watch.context(None));
    report.finish(args.json.as_deref())
}

/// Describes the written copies for other programs.
fn manifest(
    pipeline: &Pipeline<'_>,
    plan: &QueryPlan,
    asks: &[CopyQuery],
    held_out: &[CopyQuery],
) -> serde_json::Value {
    let name = |photo: usize| pipeline.photos.get(photo).map(|photo| photo.name.as_str());
    let base: Vec<_> = (0..pipeline.photos.len())
        .filter(|photo| !plan.held_out.contains(photo) && !plan.fillers.contains(photo))
        .map(name)
        .collect();
    let query = |ask: &CopyQuery, is_in: bool| {
        let source = if is_in { name(ask.photo) } else { None };
        json!({ "attack": ask.name(), "file": pipeline.copy_path(ask), "source": source })
    };
    let queries: Vec<_> = asks
        .iter()
        .map(|ask| query(ask, true))
        .chain(held_out.iter().map(|ask| query(ask, false)))
        .collect();
    let taken: Vec<_> = plan.held_out.iter().map(|&photo| name(photo)).collect();
    json!({ "base": base, "held_out": taken, "queries": queries })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arguments: &str, photos: usize) -> Result<QueryPlan> {
        QueryPlan::new(&crate::arguments::parse(arguments.split_whitespace())?, photos)
    }

    #[test]
    fn held_out_photos_are_never_attacked() {
        let usual = plan("--dir x", 500).unwrap();
        assert_eq!((usual.attacked.len(), usual.held_out.len()), (100, 50));
        assert!(usual.attacked.iter().all(|photo| !usual.held_out.contains(photo)));
        assert_eq!((usual.asks().len(), usual.held_out_asks().len()), (3100, 1600));
        let mut all = [usual.attacked.as_slice(), &usual.held_out].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), all.last().is_some_and(|&last| last < 500)), (150, true));
        assert_eq!(usual.fillers.len(), 30);
        assert!(usual.fillers.iter().all(|photo| !all.contains(photo)));
        let some = plan("--dir x --attack collage --attack crop16", 500).unwrap();
        assert_eq!((some.asks().len(), some.held_out_asks().len()), (600, 350));
        assert!(plan("--attack paint", 8).unwrap_err().message().contains("crop16"));
        let small = plan("", 8).unwrap();
        assert_eq!((small.attacked.len(), small.held_out.len()), (2, 1));
        assert!(plan("--attacked 5 --held-out 4", 8).unwrap_err().message().contains("not enough"));
        assert!(plan("", 1).is_err());
        // A collage of copies of one photograph alone would be easy to find.
        let refused = plan("--dir x --fillers 0", 500).unwrap_err();
        assert!(refused.message().contains("--fillers"), "{}", refused.message());
        assert!(plan("--dir x --fillers 0 --attack crop16", 500).is_ok());
        assert_eq!(plan("", 2).unwrap().fillers.len(), 1);
    }
}
