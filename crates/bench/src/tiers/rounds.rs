//! Makes the segments, starts the arms, and runs their turns.

use std::path::Path;

use base::units::format_bytes;
use base::{Error, Result};
use storage::{DaxMedium, Medium, UringMedium};

use super::arm::ArmProcess;
use super::scorer::rounds_per_us;
use super::subject::{SegmentSizes, TierRecordMaker, TierShape, segment_name, write_segment};
use super::turn::{TurnOrder, TurnResult};
use super::worker::{TierArm, WorkerJob};
use super::{DATA, DISK_SPARE_BYTES, TierRecords, TiersArgs};
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::disk_space::free_bytes;
use loadgen::machine::memory_bytes;
use loadgen::report::StepProgress;
use loadgen::settle::settle;

/// Size of the pages of a photograph's record in bytes.
const PHOTO_BYTES: u64 = 3 * 4096;
/// Approximate size of a fingerprint's record in bytes.
const FINGERPRINT_BYTES: u64 = 260;
/// Number of segments of photographs. The first of them fit in the memory that is too small for
/// all.
const PHOTO_SEGMENTS: u32 = 16;
/// Size of the segments relative to the memory of an arm, for photographs.
const OVER_MEMORY: u64 = 4;
/// Memory that an arm needs beside its cache or segments: program, buffers, positions of records.
const BESIDE_BYTES: u64 = 160 << 20;
/// Processor time of a curve's turn with the default number of queries, in microseconds, over all
/// threads.
const CURVE_US: f64 = 1_500_000.0;
/// Minimum number of queries of a curve's turn.
const CURVE_QUERIES_MIN: f64 = 4.0;
/// Number by which the queries of a turn are divided for one client.
const ALONE_SHARE: usize = 5;
/// Size in bytes from which new segments disturb the machine for a while.
const SETTLE_BYTES: u64 = 256 << 20;
/// Bytes copied at once.
const COPY_BYTES: usize = 4 << 20;

pub(super) struct TierResults {
    pub(super) segments: SegmentSet,
    pub(super) arms: Vec<ArmTurns>,
    pub(super) curve: Vec<CurvePoint>,
    pub(super) notes: Vec<String>,
}

/// Segments that the arms read.
pub(super) struct SegmentSet {
    pub(super) shape: TierShape,
    /// Segments that fit in memory, for the dram arm.
    pub(super) dram_shape: TierShape,
    pub(super) written: SegmentSizes,
    /// Memory that an arm may use in bytes, if it is bounded.
    pub(super) budget: Option<u64>,
}

/// All turns of one arm.
pub(super) struct ArmTurns {
    pub(super) arm: TierArm,
    pub(super) cache: f64,
    pub(super) name: String,
    pub(super) job: WorkerJob,
    pub(super) warmed: u64,
    /// One turn a round, with the arguments' clients.
    pub(super) turns: Vec<TurnResult>,
    /// One turn a round, with one client.
    pub(super) alone: Vec<TurnResult>,
}

/// Turns of all arms at one cost of a candidate.
pub(super) struct CurvePoint {
    pub(super) us: f64,
    /// For each round, a turn of each arm.
    pub(super) rounds: Vec<Vec<(String, TurnResult)>>,
}

/// Writes the segments, starts a process for each arm, and lets them take their turns.
pub(super) fn measure(
    args: &TiersArgs,
    env: &BenchEnv,
    dir: &Path,
    progress: &StepProgress,
) -> Result<TierResults> {
    let mut notes = Vec::new();
    notes.extend(prepare_dax(args)?);
    cache::create_empty_dir(dir)?;
    let shape = shape(args, dir, &mut notes)?;
    check_copies(args, &shape)?;
    progress.line(&format!("making {} records in {} segments", shape.records, shape.segments));
    let written = write(args, dir, &shape)?;
    let budget =
        (args.kind == TierRecords::Photo).then(|| memory_bytes().min(written.bytes / OVER_MEMORY));
    let dram_shape = match budget {
        Some(budget) => {
            let room = budget.saturating_sub(BESIDE_BYTES);
            let fit = (room / (written.bytes / u64::from(shape.segments)).max(1)) as u32;
            shape.first_segments(fit.clamp(1, shape.segments))
        }
        None => shape,
    };
    progress.line(&format!(
        "{} of records in {} of pages; starting the arms",
        format_bytes(written.record_bytes),
        format_bytes(written.bytes)
    ));
    let segments = SegmentSet { shape, dram_shape, written, budget };
    let mut arms = start(args, env, &segments, &mut notes)?;
    if segments.written.bytes > SETTLE_BYTES {
        // The page cache held the segments and has freed their pages.
        progress.say("waiting for the machine to run evenly");
        settle();
    }
    let mut taken = all_rounds(args, &mut arms, progress)?;
    let curve = curve(args, &mut arms, progress)?;
    taken.iter_mut().zip(&arms).for_each(|(turns, arm)| turns.warmed = arm.ready.warmed);
    Ok(TierResults { segments, arms: taken, curve, notes })
}

/// Makes the directory of the dax arm. Returns a note if the arm is left out because no directory
/// is named.
///
/// # Errors
/// `Unimplemented` with a remedy if the directory is on a file system without DAX. So the run ends
/// before the segments are made, which can take minutes.
fn prepare_dax(args: &TiersArgs) -> Result<Option<String>> {
    let Some(copies) = args.copies(TierArm::Dax) else {
        let note = "persistent memory is not measured; --dax names a directory on it";
        return Ok(args.arms.is_empty().then(|| note.to_owned()));
    };
    if args.arms().contains(&TierArm::Dax) {
        cache::create_empty_dir(&copies)?;
        DaxMedium::new(copies)?;
    }
    Ok(None)
}

/// Returns the number of records and segments that fit on the disk.
fn shape(args: &TiersArgs, dir: &Path, notes: &mut Vec<String>) -> Result<TierShape> {
    let (bytes, segments) = match args.kind {
        TierRecords::Fingerprint => (FINGERPRINT_BYTES, 1),
        TierRecords::Photo => (PHOTO_BYTES, PHOTO_SEGMENTS),
    };
    let disk = rustix::fs::statvfs(dir).map_err(|e| Error::io(dir, &e.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(DISK_SPARE_BYTES);
    let allowed = args.disk.unwrap_or(free).min(free);
    let room = (allowed / bytes).min(u64::from(u32::MAX)) as u32;
    let records = args.records.min(room).max(1);
    if records < args.records {
        notes.push(format!(
            "{records} records instead of {}: they may take {} of the disk",
            args.records,
            format_bytes(allowed)
        ));
    }
    Ok(TierShape::new(args, records, segments.min(records)))
}

/// Checks that the copies of the arms pmem and dax fit, before the segments are made. Removes
/// copies that a killed run left, so that they take no space.
///
/// # Errors
/// `ResourceExhausted` with a remedy; the errors of the file system.
fn check_copies(args: &TiersArgs, shape: &TierShape) -> Result<()> {
    let record_bytes = match args.kind {
        TierRecords::Fingerprint => FINGERPRINT_BYTES,
        TierRecords::Photo => PHOTO_BYTES,
    };
    let bytes = u64::from(shape.records) * record_bytes;
    for (arm, option, parent) in
        [(TierArm::Pmem, "--tmpfs", Some(&args.tmpfs)), (TierArm::Dax, "--dax", args.dax.as_ref())]
    {
        let Some(parent) = parent.filter(|_| args.arms().contains(&arm)) else { continue };
        if let Some(left) = args.copies(arm) {
            cache::remove(&left)?;
        }
        let free = free_bytes(parent)?;
        if free < bytes {
            return Err(Error::exhausted(format!(
                "{}: {} free, the arm {} needs {}; name another directory with {option}, choose fewer --records, or \
                 leave the arm out with --arms",
                parent.display(),
                format_bytes(free),
                arm.name(),
                format_bytes(bytes)
            )));
        }
    }
    Ok(())
}

/// Writes the segments, and their copies for the arms pmem and dax.
fn write(args: &TiersArgs, dir: &Path, shape: &TierShape) -> Result<SegmentSizes> {
    let medium = UringMedium::new(dir.join(DATA))?;
    let maker = TierRecordMaker::new(shape.kind);
    let mut all = SegmentSizes::default();
    for segment in 0..shape.segments {
        let written = write_segment(shape, &maker, &medium, dir, segment, args.threads)?;
        all.bytes += written.bytes;
        all.record_bytes += written.record_bytes;
        drop_from_page_cache(&dir.join(DATA).join(segment_name(segment)))?;
    }
    medium.persist_names()?;
    for arm in args.arms() {
        let Some(directory) = args.copies(arm) else { continue };
        cache::create_empty_dir(&directory)?;
        let copies = if arm == TierArm::Pmem {
            DaxMedium::simulated(directory)?
        } else {
            DaxMedium::new(directory)?
        };
        (0..shape.segments)
            .try_for_each(|segment| copy(&medium, &copies, &segment_name(segment)))?;
    }
    Ok(all)
}

/// Drops a file just written from the page cache, so that no arm finds it there.
fn drop_from_page_cache(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path).map_err(|e| Error::io(path, &e))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| Error::io(path, &e.into()))
}

fn copy(from: &dyn Medium, to: &dyn Medium, name: &str) -> Result<()> {
    let source = from.open(name)?;
    let mut target = to.create(name)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut done = 0;
    while done < source.bytes() {
        let count = (source.bytes() - done).min(COPY_BYTES as u64) as usize;
        source.read_at(done, &mut buffer[..count])?;
        target.append(&buffer[..count])?;
        done += count as u64;
    }
    target.persist()
}

/// Starts a process for each arm, with the cache that it may use. Adds the notes of the processes.
fn start(
    args: &TiersArgs,
    env: &BenchEnv,
    segments: &SegmentSet,
    notes: &mut Vec<String>,
) -> Result<Vec<ArmProcess>> {
    let stored_bytes = segments.written.record_bytes;
    let record_bytes = (stored_bytes / u64::from(segments.shape.records)).max(1) as u32;
    let most = args.cache.iter().copied().fold(0.0, f64::max);
    let share = |cache: f64| {
        let wanted = (stored_bytes as f64 * cache) as u64;
        segments.budget.map_or(wanted, |budget| wanted.min(budget.saturating_sub(BESIDE_BYTES)))
    };
    let mut arms = Vec::new();
    for arm in args.arms() {
        let caches = if arm == TierArm::Nvme { args.cache.clone() } else { vec![0.0] };
        for cache in caches {
            let shape = if arm == TierArm::Dram { &segments.dram_shape } else { &segments.shape };
            let job = WorkerJob {
                arm,
                cache_bytes: if arm == TierArm::Nvme { share(cache) } else { 0 },
                mapped_bytes: share(most),
                record_bytes,
                records: shape.records,
                segments: shape.segments,
            };
            let process = ArmProcess::start(args, env, cache, job)?;
            notes.extend(process.ready.note.clone());
            arms.push(process);
        }
    }
    Ok(arms)
}

/// Lets the arms take their turns in all rounds, in another order in each round. Returns the turns
/// by arm.
fn all_rounds(
    args: &TiersArgs,
    arms: &mut [ArmProcess],
    progress: &StepProgress,
) -> Result<Vec<ArmTurns>> {
    let mut taken: Vec<ArmTurns> = arms
        .iter()
        .map(|arm| ArmTurns {
            arm: arm.arm,
            cache: arm.cache,
            name: arm.name(),
            job: arm.job.clone(),
            warmed: 0,
            turns: Vec::new(),
            alone: Vec::new(),
        })
        .collect();
    let count = arms.len();
    for round in 0..args.rounds {
        let stream = 1 + 2 * round as u64;
        let together =
            TurnOrder { stream, queries: args.queries, clients: args.clients, spin_rounds: None };
        let alone = TurnOrder {
            stream: stream + 1,
            queries: (args.queries / ALONE_SHARE).max(1),
            clients: 1,
            spin_rounds: None,
        };
        // The order rotates, and every other round runs backwards, so that no arm always follows
        // the same one.
        for step in 0..count {
            let at = (step + round) % count;
            let at = if round.is_multiple_of(2) { at } else { count - 1 - at };
            progress.say(format!("round {} of {}: {}", round + 1, args.rounds, arms[at].name()));
            taken[at].turns.push(arms[at].turn(&together)?);
            taken[at].alone.push(arms[at].turn(&alone)?);
        }
        let of =
            |name: &str| taken.iter().find(|arm| arm.name == name).and_then(|arm| arm.turns.last());
        if let Some(dram) = of("dram") {
            let ratios: Vec<String> = taken
                .iter()
                .filter_map(|arm| {
                    Some(format!("{} {:.3}", arm.name, dram.seconds / arm.turns.last()?.seconds))
                })
                .collect();
            progress.line(&format!(
                "round {}: throughput to dram: {}",
                round + 1,
                ratios.join(", ")
            ));
        }
        progress.step();
    }
    Ok(taken)
}

/// Runs dram and nvme at every cost. Each turn takes about the same time, so it has fewer queries
/// at a higher cost.
fn curve(
    args: &TiersArgs,
    arms: &mut [ArmProcess],
    progress: &StepProgress,
) -> Result<Vec<CurvePoint>> {
    let rounds_per_us = rounds_per_us();
    let mut points = Vec::new();
    let mut stream = 1 + 2 * args.rounds as u64;
    for &us in args.curve.iter().filter(|&&us| us > 0.0) {
        progress.say(format!("the curve: {us} us a candidate"));
        let budget = CURVE_US * (args.queries as f64 / 500.0).min(1.0);
        let queries = budget / (us * f64::from(args.candidates));
        let queries = queries.clamp(CURVE_QUERIES_MIN, args.queries.max(4) as f64) as usize;
        let mut point = CurvePoint { us, rounds: Vec::new() };
        for round in 0..args.rounds {
            stream += 1;
            let spin_rounds = Some((us * rounds_per_us) as u64);
            let order = TurnOrder { stream, queries, clients: args.clients, spin_rounds };
            let mut turns = Vec::new();
            let count = arms.len();
            for step in 0..count {
                let arm = &mut arms[(step + round) % count];
                if matches!(arm.arm, TierArm::Dram | TierArm::Nvme) {
                    turns.push((arm.name(), arm.turn(&order)?));
                }
            }
            point.rounds.push(turns);
        }
        points.push(point);
        progress.step();
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn copies_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let tmpfs = folder.path().display().to_string();
        // 48 TiB of photographs.
        let check = |arms: &str| {
            let words = ["--kind", "photo", "--tmpfs", tmpfs.as_str(), "--arms", arms];
            let args = crate::arguments::parse(words).unwrap();
            check_copies(&args, &TierShape::new(&args, u32::MAX, 1))
        };
        let left = folder.path().join(super::super::PMEM);
        std::fs::create_dir_all(left.join("of a killed run")).unwrap();
        assert!(check("nvme").is_ok() && left.exists());
        let refused = check("pmem").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert!(refused.message().contains("--tmpfs"), "{}", refused.message());
        assert!(!left.exists());
    }

    #[test]
    fn a_file_system_without_dax_is_refused_first() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().display().to_string();
        let parse = |words: &[&str]| crate::arguments::parse(words.iter().copied()).unwrap();
        let refused = prepare_dax(&parse(&["--dax", directory.as_str()])).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unimplemented);
        let other = parse(&["--dax", directory.as_str(), "--arms", "nvme"]);
        assert_eq!(prepare_dax(&other).unwrap(), None);
        assert!(prepare_dax(&parse(&[])).unwrap().unwrap().contains("--dax"));
        assert_eq!(prepare_dax(&parse(&["--arms", "nvme"])).unwrap(), None);
    }
}
