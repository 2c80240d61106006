//! Kills: whatever was acknowledged must be there in the next life.

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

/// Pictures whose files are read after each kill, of those that were acknowledged last.
const READ_BACK: usize = 40;
/// The shortest life.
const LIFE_MIN: Duration = Duration::from_millis(50);

/// What the kills gave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Killed {
    pub(super) kills: u32,
    /// Pictures that were acknowledged in any life, and how many of them were asked for in all
    /// lives together.
    pub(super) acknowledged: u64,
    pub(super) checked: u64,
    pub(super) lost: u64,
    /// Files that were read and compared, and those of them that were not what was sent.
    pub(super) read: u64,
    pub(super) damaged: u64,
    pub(super) start_ms_max: f64,
}

/// Puts pictures in, kills, starts again and looks, as often as asked for.
pub(super) fn run(
    args: &IngestArgs,
    subject: &mut IngestSubject,
    progress: &StepProgress,
) -> Result<Killed> {
    let mut random = RandomSequence::new(args.seed);
    let mut killed = Killed::default();
    scan(subject, &mut killed, &Acknowledged::new())?;
    for number in 0..args.kills {
        progress.say(format!("kill {}", number + 1));
        let life = LIFE_MIN + Duration::from_millis((random.unit() * args.life_ms as f64) as u64);
        let count = (life.as_secs_f64() * 300.0) as u64 + 64;
        let folder = subject.draw(&format!("kill{number}"), count)?;
        let ingest = subject.ingest(&folder)?;
        let fresh: Mutex<Acknowledged> = Mutex::default();
        std::thread::scope(|scope| {
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
            subject.kill();
            // A server that dies before it answers is no failure here.
            feeder
                .join()
                .map(drop)
                .map_err(|_| Error::internal("the thread that puts pictures in panicked"))
        })?;
        let fresh = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        subject.start()?;
        subject.acknowledged.extend(fresh.clone());
        subject.wait_open()?;
        killed.start_ms_max = killed.start_ms_max.max(began.elapsed().as_secs_f64() * 1000.0);
        killed.kills += 1;
        scan(subject, &mut killed, &fresh)?;
        progress.line(&format!(
            "kill {} after {} ms: {} pictures acknowledged in this life, {} of {} lost",
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

/// Asks for all that was ever acknowledged, and reads some of what was last.
fn scan(subject: &IngestSubject, killed: &mut Killed, fresh: &Acknowledged) -> Result<()> {
    let ids: Vec<&String> = subject.acknowledged.keys().collect();
    let missing = subject.missing(&ids)?;
    killed.checked += ids.len() as u64;
    killed.lost += missing.len() as u64;
    for (id, file) in fresh.iter().filter(|(id, _)| !missing.contains(id)).take(READ_BACK) {
        killed.read += 1;
        killed.damaged += u64::from(!subject.is_whole(id, file)?);
    }
    Ok(())
}
