//! The two arms: searches while images are added, and searches while threads of idle priority do
//! arithmetic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use serde_json::json;

use super::IngestArgs;
use super::subject::{Acknowledged, BackgroundCounts, COLLECTION, IngestSubject};
use crate::burner::IdleBurners;
use loadgen::connection::{RawResponse, Template};
use loadgen::drive::{DrivePlan, Judge, Judgement, LoadLoop};
use loadgen::measure::measure;
use loadgen::report::StepProgress;
use loadgen::samples::TallyCounts;
use loadgen::schedule::Arrivals;
use loadgen::stats::Latencies;

/// Number of different searches.
const SEARCHES: usize = 64;
/// Time for measuring one client's search latency.
const CALIBRATION: Duration = Duration::from_millis(1500);
/// Share of one core that searches keep busy.
const CORE_SHARE: f64 = 0.4;
/// Time at the start of an arm that does not count.
const WARM_UP: Duration = Duration::from_millis(500);
/// Timeout for the first image of a folder.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of a folder, relative to the images that the server added in the same time at the start.
const SPARE: f64 = 1.5;

/// Load beside the searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IngestArm {
    Control,
    Ingest,
}

pub(super) struct IngestRound {
    pub(super) arm: IngestArm,
    pub(super) counted: TallyCounts,
    /// Events in the background.
    pub(super) images: f64,
    pub(super) flushes: f64,
    pub(super) merges: f64,
    /// True if there were always more images to add.
    pub(super) fed: bool,
}

pub(super) struct IngestResults {
    pub(super) rounds: Vec<IngestRound>,
    pub(super) rate: f64,
    /// Latency of a search without other load.
    pub(super) alone_ms: f64,
    /// Images a second without searches.
    pub(super) fill_per_s: f64,
    pub(super) points: f64,
    pub(super) segments: f64,
}

/// Check that a response has the image of its query.
struct OwnHitCheck {
    ids: Vec<String>,
}

impl Judge for OwnHitCheck {
    fn judge(&self, shot: usize, answer: &RawResponse) -> (Judgement, u64) {
        let has = self
            .ids
            .get(shot)
            .is_some_and(|id| answer.body.windows(id.len()).any(|window| window == id.as_bytes()));
        (if has { Judgement::Right } else { Judgement::Wrong }, 0)
    }
}

/// Runs both arms in turn.
pub(super) fn run(
    args: &IngestArgs,
    subject: &mut IngestSubject,
    progress: &StepProgress,
) -> Result<IngestResults> {
    let filled = fill(args, subject, progress)?;
    let fill_per_s = filled.images_per_s;
    let judge: Arc<dyn Judge> = Arc::new(OwnHitCheck { ids: filled.ids.clone() });
    let alone_ms = search_alone_ms(subject, &filled.ids, &judge)?;
    let rate = args.rate.unwrap_or(CORE_SHARE * 1000.0 / alone_ms);
    let each = (fill_per_s * (args.seconds + 2) as f64 * SPARE) as u64 + 64;
    let folders: Vec<_> = (0..args.rounds)
        .map(|round| {
            progress.say(format!("drawing {each} images for round {}", round + 1));
            subject.draw(&format!("round{round}"), each)
        })
        .collect::<Result<_>>()?;
    progress.line(&format!("a search takes {alone_ms:.2} ms alone; {rate:.1} a second are sent"));
    let length = Duration::from_secs(args.seconds);
    let setup = IngestSetup { ids: filled.ids, judge, rate, length };
    let mut rounds = Vec::new();
    for (number, folder) in folders.iter().enumerate() {
        let both = [IngestArm::Control, IngestArm::Ingest];
        let order = if number % 2 == 0 { both } else { [both[1], both[0]] };
        for arm in order {
            progress.say(format!("round {}: {arm:?}", number + 1));
            let round = match arm {
                IngestArm::Control => setup.control(subject)?,
                IngestArm::Ingest => setup.ingest(subject, folder)?,
            };
            progress.line(&format!(
                "round {} {arm:?}: p99 {:.2} ms, {} images, {} flushes, {} merges",
                number + 1,
                round.counted.latencies.quantile_ms(0.99),
                round.images,
                round.flushes,
                round.merges
            ));
            progress.step();
            rounds.push(round);
        }
    }
    let last = subject.wait_quiet()?;
    Ok(IngestResults {
        rounds,
        rate,
        alone_ms,
        fill_per_s,
        points: last.points,
        segments: last.segments,
    })
}

/// Images that the collection starts with.
struct InitialImages {
    /// Ids that searches request.
    ids: Vec<String>,
    images_per_s: f64,
}

/// Adds the first images, without other load.
fn fill(
    args: &IngestArgs,
    subject: &mut IngestSubject,
    progress: &StepProgress,
) -> Result<InitialImages> {
    progress.say(format!("drawing and adding {} images", args.images));
    let folder = subject.draw("start", args.images)?;
    let began = Instant::now();
    let mut acknowledged = Acknowledged::new();
    let whole = subject.ingest(&folder)?.run(&AtomicBool::new(false), |id, file| {
        acknowledged.insert(id, file);
    })?;
    if !whole || (acknowledged.len() as u64) < args.images {
        return Err(Error::internal(format!("only {} images were put in", acknowledged.len())));
    }
    let images_per_s = args.images as f64 / began.elapsed().as_secs_f64();
    let step = acknowledged.len().div_ceil(SEARCHES).max(1);
    let ids: Vec<String> = acknowledged.keys().step_by(step).cloned().collect();
    subject.acknowledged.append(&mut acknowledged);
    progress.line(&format!("{} images added, {images_per_s:.0} a second", args.images));
    subject.wait_quiet()?;
    Ok(InitialImages { ids, images_per_s })
}

/// Measures the mean latency of one client's searches without other load.
fn search_alone_ms(subject: &IngestSubject, ids: &[String], judge: &Arc<dyn Judge>) -> Result<f64> {
    let plan = plan(subject, ids, LoadLoop::Closed { clients: 1 }, CALIBRATION)?;
    let counted = measure(&plan, Duration::ZERO, judge, &[], None)?.counted;
    let mean_ms = counted.latencies.mean_ms();
    if counted.faults.failed + counted.faults.wrong > 0 || mean_ms <= 0.0 {
        return Err(Error::internal(format!("searches fail: {:?}", counted.faults.lines())));
    }
    Ok(mean_ms)
}

fn plan(
    subject: &IngestSubject,
    ids: &[String],
    pace: LoadLoop,
    duration: Duration,
) -> Result<DrivePlan> {
    let endpoint = subject.server()?.http();
    let template = Template::post(&endpoint, &format!("/v1/images/{COLLECTION}/search?k=10"), &[])?;
    let shots: Vec<Bytes> = ids.iter().map(|id| json!({ "id": id }).to_string().into()).collect();
    Ok(DrivePlan::new(endpoint, template, shots.into(), pace, duration))
}

/// State that all rounds share.
struct IngestSetup {
    ids: Vec<String>,
    judge: Arc<dyn Judge>,
    rate: f64,
    length: Duration,
}

impl IngestSetup {
    fn search(&self, subject: &IngestSubject) -> Result<TallyCounts> {
        let pace = LoadLoop::Open { arrivals: Arrivals::Fixed, rate: self.rate, seed: 1 };
        let plan = plan(subject, &self.ids, pace, self.length + WARM_UP)?;
        Ok(measure(&plan, WARM_UP, &self.judge, &[], None)?.counted)
    }

    fn control(&self, subject: &IngestSubject) -> Result<IngestRound> {
        let before = subject.wait_quiet()?;
        let burners = IdleBurners::start(loadgen::machine::cores())?;
        let counted = self.search(subject)?;
        burners.end()?;
        Ok(IngestRound::new(IngestArm::Control, counted, before, subject.counters()?, true))
    }

    /// Measures searches while the images of `folder` are added.
    fn ingest(&self, subject: &mut IngestSubject, folder: &std::path::Path) -> Result<IngestRound> {
        subject.wait_quiet()?;
        let ingest = subject.ingest(folder)?;
        let stop = AtomicBool::new(false);
        let seen = AtomicU64::new(0);
        let mut acknowledged = Acknowledged::new();
        let (round, ended) = std::thread::scope(|scope| {
            let feeder = scope.spawn(|| {
                ingest.run(&stop, |id, file| {
                    seen.fetch_add(1, Ordering::Relaxed);
                    acknowledged.insert(id, file);
                })
            });
            let round = first(&seen, || feeder.is_finished()).and_then(|()| {
                let before = subject.counters()?;
                let counted = self.search(subject)?;
                let fed = !feeder.is_finished();
                Ok(IngestRound::new(IngestArm::Ingest, counted, before, subject.counters()?, fed))
            });
            stop.store(true, Ordering::Relaxed);
            (round, feeder.join())
        });
        ended
            .unwrap_or_else(|_| Err(Error::internal("the thread that puts images in panicked")))?;
        subject.acknowledged.append(&mut acknowledged);
        round
    }
}

/// Waits for the first image of a folder.
fn first(seen: &AtomicU64, ended: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + FIRST_TIMEOUT;
    while seen.load(Ordering::Relaxed) == 0 {
        if ended() || Instant::now() > deadline {
            return Err(Error::internal("no image of the folder was added"));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl IngestRound {
    fn new(
        arm: IngestArm,
        counted: TallyCounts,
        before: BackgroundCounts,
        after: BackgroundCounts,
        fed: bool,
    ) -> IngestRound {
        IngestRound {
            arm,
            counted,
            images: after.images - before.images,
            flushes: after.flushes - before.flushes,
            merges: after.merges - before.merges,
            fed,
        }
    }
}

/// Merges the latencies of all rounds of an arm.
pub(super) fn pooled<'a>(rounds: impl Iterator<Item = &'a IngestRound>) -> Latencies {
    let mut all = Latencies::default();
    rounds.for_each(|round| all.add(&round.counted.latencies));
    all
}
