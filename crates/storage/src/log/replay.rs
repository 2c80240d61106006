//! Reading a log back.
//!
//! A frame that is not whole is either the torn end of the log or damage in its middle. It is the end exactly if no whole
//! frame with a higher number comes after it; else it is damage, which is reported and skipped, and the log goes on at
//! the next whole frame. Nothing in the bytes can stop the opening.

use super::frame::{self, ALIGNMENT, HEADER_BYTES};

/// A part of a log that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// The numbers that are missing: from the first, to before the second. Empty where only the log's header is lost.
    pub lost: std::ops::Range<u64>,
}

/// What a log held when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The payloads with their numbers, in order.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Where the torn end that was cut off started, if there was one. It was never acknowledged, unless the medium lost
    /// what it had promised to keep.
    pub torn_tail: Option<u64>,
    /// What was damaged in the middle.
    pub damaged: Vec<Damage>,
    /// The number that the next payload gets.
    pub next: u64,
}

/// Reads the bytes of a log; in an empty one, numbers start at `first`.
pub(super) fn replay(log: &[u8], first: u64) -> Replay {
    let mut replay = Replay { next: frame::first(log).unwrap_or(first).max(1), ..Replay::default() };
    if log.is_empty() {
        return replay;
    }
    let mut at = HEADER_BYTES.min(log.len());
    // A header is written with the first flush of the log, so a damaged one without frames is a log that never was.
    let header_lost = frame::first(log).is_none();
    let mut known = !header_lost;
    while at < log.len() {
        if let Some(next) = take(log, at, if known { replay.next } else { 0 }, &mut replay) {
            at = next;
            known = true;
            continue;
        }
        let Some((found, number)) = search(log, at, replay.next) else {
            replay.torn_tail = Some(at as u64);
            break;
        };
        let lost = if known { replay.next..number } else { number..number };
        replay.damaged.push(Damage { offset: at as u64, bytes: (found - at) as u64, lost });
        replay.next = number;
        known = true;
        at = found;
    }
    if header_lost {
        match replay.records.is_empty() {
            true => replay.torn_tail = Some(0),
            false => {
                let damage = Damage { offset: 0, bytes: HEADER_BYTES as u64, lost: 0..0 };
                replay.damaged.insert(0, damage);
            }
        }
    }
    replay
}

/// Takes the frame at `at`, if it is whole and its number is not below `least`; gives where the next one starts.
fn take(log: &[u8], at: usize, least: u64, replay: &mut Replay) -> Option<usize> {
    let bytes = log.get(at..)?;
    let head = frame::head(bytes)?;
    let payload = frame::payload(bytes, &head)?;
    let next = head.number.checked_add(1).filter(|_| head.number >= least)?;
    if head.number > least && least > 0 {
        let damage = Damage { offset: at as u64, bytes: 0, lost: least..head.number };
        replay.damaged.push(damage);
    }
    replay.records.push((head.number, payload.to_vec()));
    replay.next = next;
    Some(at + head.next)
}

/// The next whole frame after `at` whose number is not below `least`: where, and its number. What lies within a frame
/// whose head is good is not looked at: a payload may hold anything, frames too.
fn search(log: &[u8], at: usize, least: u64) -> Option<(usize, u64)> {
    let step = log.get(at..).and_then(frame::head).map_or(ALIGNMENT, |head| head.next);
    let start = at.saturating_add(step);
    (start..log.len()).step_by(ALIGNMENT).find_map(|at| {
        let bytes = &log[at..];
        let head = frame::head(bytes)?;
        frame::payload(bytes, &head)?;
        (head.number >= least && head.number < u64::MAX).then_some((at, head.number))
    })
}
