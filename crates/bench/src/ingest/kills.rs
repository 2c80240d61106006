//! Kills: every acknowledged image must be there in the next life.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result};

use super::IngestArgs;
use super::subject::{Acknowledged, IngestSubject};
use loadgen::random::RandomSequence;
use loadgen::report::StepProgress;

/// Number of last acknowledged images whose files are read after each kill.
const READ_BACK: usize = 40;
/// Shortest life.
const LIFE_MIN: Duration = Duration::from_millis(50);

/// Results of the kills.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KillResults {
    pub(super) kills: u32,
    /// Number of kills while images were added. The others came after the last image of their
    /// folder.
    pub(super) interrupted: u32,
    /// Number of images acknowledged in any life.
    pub(super) acknowledged: u64,
    /// Number of checks of acknowledged images in all lives together.
    pub(super) checked: u64,
    pub(super) lost: u64,
    /// Number of files that were read and compared.
    pub(super) read: u64,
    /// Number of files that differ.
    pub(super) damaged: u64,
    pub(super) start_ms_max: f64,
}

/// Adds images, kills the server, starts it again and checks its images, as often as the arguments
/// say.
pub(super) fn run(
    args: &IngestArgs,
    subject: &mut IngestSubject,
    progress: &StepProgress,
) -> Result<KillResults> {
    let mut random = RandomSequence::new(args.seed);
    let mut killed = KillResults::default();
    scan(subject, &mut killed, &Acknowledged::new())?;
    for number in 0..args.kills {
        progress.say(format!("kill {}", number + 1));
        let life = LIFE_MIN + Duration::from_millis((random.unit() * args.life_ms as f64) as u64);
        let count = (life.as_secs_f64() * 300.0) as u64 + 64;
        let folder = subject.draw(&format!("kill{number}"), count)?;
        let ingest = subject.ingest(&folder)?;
        let fresh: Mutex<Acknowledged> = Mutex::default();
        let interrupted = std::thread::scope(|scope| {
            let never = AtomicBool::new(false);
            let feeder = scope.spawn({
                let fresh = &fresh;
                move || {
                    ingest.run(&never, |id, file| {
                        fresh.lock().unwrap_or_else(PoisonError::into_inner).insert(id, file);
                    })
                }
            });
            sleep(life);
            let ended = feeder.is_finished();
            subject.kill();
            let outcome = feeder.join();
            outcome
                .map_err(|_| Error::internal("the thread that puts images in panicked"))
                .and_then(|outcome| was_interrupted(ended, outcome))
        })?;
        killed.interrupted += u32::from(interrupted);
        let fresh = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        subject.start()?;
        subject.acknowledged.extend(fresh.clone());
        subject.wait_open()?;
        killed.start_ms_max = killed.start_ms_max.max(began.elapsed().as_secs_f64() * 1000.0);
        killed.kills += 1;
        scan(subject, &mut killed, &fresh)?;
        progress.line(&format!(
            "kill {} after {} ms: {} images acknowledged in this life, {} of {} lost",
            number + 1,
            life.as_millis(),
            fresh.len(),
            killed.lost,
            subject.acknowledged.len()
        ));
        progress.step();
    }
    killed.acknowledged = subject.acknowledged.len() as u64;
    Ok(killed)
}

/// Returns true if a kill interrupted the request whose outcome this is. `ended` is true if the
/// request had ended before.
///
/// # Errors
/// The error of a request that failed before the kill. A request that the kill breaks off is not a
/// failure.
fn was_interrupted(ended: bool, outcome: Result<bool>) -> Result<bool> {
    if ended { outcome.map(|_| false) } else { Ok(true) }
}

/// Checks that all acknowledged images are there, and reads some of the last ones.
fn scan(subject: &IngestSubject, killed: &mut KillResults, fresh: &Acknowledged) -> Result<()> {
    let ids: Vec<&String> = subject.acknowledged.keys().collect();
    let missing = subject.missing(&ids)?;
    killed.checked += ids.len() as u64;
    killed.lost += missing.len() as u64;
    for (id, file) in last_acknowledged(fresh, &missing) {
        killed.read += 1;
        killed.damaged += u64::from(!subject.is_whole(id, file)?);
    }
    Ok(())
}

/// Returns the images that were acknowledged last, without the missing ones. The server reads a
/// folder by name, and names are numbers in the order of drawing. Ids have no order.
fn last_acknowledged<'a>(
    fresh: &'a Acknowledged,
    missing: &[String],
) -> Vec<(&'a String, &'a PathBuf)> {
    let mut found: Vec<_> = fresh.iter().filter(|(id, _)| !missing.contains(id)).collect();
    found.sort_by(|a, b| b.1.cmp(a.1));
    found.truncate(READ_BACK);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_fails_before_the_kill_is_a_failure() {
        let failed = || Err(Error::unavailable("refused"));
        assert!(was_interrupted(true, failed()).is_err());
        assert!(!was_interrupted(true, Ok(true)).unwrap());
        assert!(was_interrupted(false, failed()).unwrap());
        assert!(was_interrupted(false, Ok(false)).unwrap());
    }

    #[test]
    fn the_last_acknowledged_files_are_read() {
        let name = |number: u32| PathBuf::from(format!("f/{number:08}.jpg"));
        // Ids in the opposite order of the files.
        let fresh: Acknowledged =
            (0..100).map(|number| (format!("{:04}", 999 - number), name(number))).collect();
        let missing = ["0900".to_owned()];
        let read = last_acknowledged(&fresh, &missing);
        assert_eq!((read.len(), read[0].1), (READ_BACK, &name(98)));
        assert!(read.iter().all(|(_, file)| **file >= name(59)));
    }
}
