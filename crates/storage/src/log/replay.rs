//! Reading a log back.
//!
//! Frames that are not whole are one of three things. With no whole frame of a higher number after
//! them they are the torn end of the log. Otherwise, each frame says up to which number all was
//! durable when it was written: a frame that was durable by that and is not whole is *damage*; one
//! that was not is a *hole* in in what was being written when the power failed, as sectors reach a
//! disk in any order. Nothing in the bytes can stop the opening.
//!
//! A frame tells nothing about frames after it. So whoever opens a log may say up to which number
//! it was durable at some time ([`LogPosition`]): if the log ends before, its end is damaged and not torn.

use std::collections::BTreeMap;

use crate::medium::Salvaged;

use super::LogPosition;
use super::frame::{self, ALIGNMENT, FRAME_BYTES, FrameKind, HEADER_BYTES, Head};

/// A part of a log that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// The numbers that are missing, at most: where the header is lost too, where they began is a
    /// guess. Empty if nothing but the header is lost.
    pub lost: std::ops::Range<u64>,
}

/// What a log held when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The payloads with their numbers, in order.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Where the torn end that was cut off started, if there was one. It was never acknowledged,
    /// unless the medium lost what it had promised to keep.
    pub torn_tail: Option<u64>,
    /// What is missing among the last frames, and whole frames after it. As far as the log can tell
    /// it was never acknowledged. Opening closes these holes, so that they are not met again.
    pub holes: Vec<Damage>,
    /// What was durable and is lost, or cannot be read, which may have been.
    pub damaged: Vec<Damage>,
    /// Pages that the medium could not read. Where there are any, nothing of the log is changed.
    pub unreadable: usize,
    /// Whether the log ends before its [`LogPosition`]. Nothing of it is changed then.
    pub cut: bool,
    /// The keys of payloads that are damaged, by number, as far as they are known.
    pub lost_keys: BTreeMap<u64, u64>,
    /// The number that the next payload gets.
    pub next: u64,
}

impl Replay {
    /// Returns the keys of the payloads of `damage`; `None` if some are not known.
    pub fn keys_of(&self, damage: &Damage) -> Option<Vec<u64>> {
        let known =
            self.lost_keys.range(damage.lost.clone()).map(|(_, key)| *key).collect::<Vec<u64>>();
        let count = damage.lost.end.saturating_sub(damage.lost.start);
        (known.len() as u64 == count).then_some(known)
    }
}

/// Reads the bytes of a log; in an empty one, numbers start at `first`. The log was durable up to
/// `mark`.
pub(super) fn replay(found: &Salvaged, first: u64, mark: LogPosition) -> Replay {
    let mut replay = replay_bytes(found, first, mark.next);
    let end = replay.torn_tail.unwrap_or(found.bytes.len() as u64);
    if replay.next < mark.next {
        let (bytes, lost) = (mark.bytes.saturating_sub(end), replay.next..mark.next);
        replay.damaged.push(Damage { offset: end, bytes, lost });
        (replay.next, replay.torn_tail, replay.cut) = (mark.next, None, true);
    }
    let damaged: Vec<_> = replay.damaged.iter().map(|damage| damage.lost.clone()).collect();
    replay.lost_keys.retain(|number, _| damaged.iter().any(|lost| lost.contains(number)));
    replay
}

fn replay_bytes(found: &Salvaged, first: u64, durable: u64) -> Replay {
    let log = &found.bytes[..];
    let (next, unreadable) = (frame::first(log).unwrap_or(first).max(1), found.lost.len());
    let mut replay = Replay { next, unreadable, ..Replay::default() };
    if log.is_empty() {
        return replay;
    }
    // A header is written with the first flush of the log, so a damaged one without frames is a log
    // that never was.
    let header_lost = frame::first(log).is_none();
    let mut gaps = Vec::new();
    let durable = durable.max(scan(log, !header_lost, &mut replay, &mut gaps));
    let is_damage = |gap: &Damage| {
        gap.lost.start < durable || found.lacks(gap.offset..gap.offset.saturating_add(gap.bytes))
    };
    let (damaged, holes) = gaps.into_iter().partition(is_damage);
    (replay.damaged, replay.holes) = (damaged, holes);
    if header_lost && replay.records.is_empty() {
        replay.torn_tail = Some(0);
        replay.holes.clear();
    } else if header_lost {
        replay.damaged.insert(0, Damage { offset: 0, bytes: HEADER_BYTES as u64, lost: 0..0 });
    }
    // What cannot be read at the end may have been acknowledged, unlike what is there and not
    // whole.
    if let Some(offset) = replay.torn_tail.filter(|&start| found.lacks(start..log.len() as u64)) {
        let bytes = log.len() as u64 - offset;
        let most = bytes.div_ceil(FRAME_BYTES as u64);
        replay.torn_tail = None;
        replay.damaged.push(Damage {
            offset,
            bytes,
            lost: replay.next..replay.next.saturating_add(most),
        });
    }
    replay
}

/// Takes all whole frames, and gives what lies between them. Says up to which number all was
/// durable.
fn scan(log: &[u8], mut numbers_known: bool, replay: &mut Replay, gaps: &mut Vec<Damage>) -> u64 {
    let (mut at, mut durable) = (HEADER_BYTES.min(log.len()), 0);
    while at < log.len() {
        let least = if numbers_known { replay.next } else { 0 };
        let Some((found, head, payload)) = next_whole(log, at, least) else {
            replay.torn_tail = Some(at as u64);
            break;
        };
        // Numbers jump where bytes are missing, and over a hole that was closed; elsewhere they do
        // not.
        let jumps = numbers_known && head.kind == FrameKind::Payload && head.number > replay.next;
        if found > at || jumps {
            let lost = replay.next.min(head.number)..head.number;
            gaps.push(Damage { offset: at as u64, bytes: (found - at) as u64, lost });
        }
        match head.kind {
            FrameKind::Payload => {
                replay.records.push((head.number, payload.to_vec()));
                replay.next = head.number + 1;
            }
            FrameKind::Closed => {
                replay.next = head.number;
                keep_keys(&log[found..], &head, replay, gaps);
            }
        }
        durable = durable.max(head.durable);
        numbers_known = true;
        at = found + head.next;
    }
    durable
}

/// Keeps the keys behind a head that are of frames which are not whole: those of gaps found so far.
fn keep_keys(bytes: &[u8], head: &Head, replay: &mut Replay, gaps: &[Damage]) {
    let Some((first, keys)) = frame::keys(bytes, head) else { return };
    // Gaps are in the order of the log, and only the last few can have frames as young as these.
    let recent: Vec<&Damage> = gaps.iter().rev().take_while(|gap| gap.lost.end > first).collect();
    if recent.is_empty() {
        return;
    }
    for (number, key) in (first..).zip(keys) {
        if recent.iter().any(|gap| gap.lost.contains(&number)) {
            replay.lost_keys.insert(number, key);
        }
    }
}

/// The first whole frame from `at` on whose number is not below `least`: where, its head, its
/// payload. What lies within a frame whose head is good is not looked at: a payload may hold
/// anything, frames too.
fn next_whole(log: &[u8], at: usize, least: u64) -> Option<(usize, Head, &[u8])> {
    let mut at = at;
    while let Some(bytes) = log.get(at..) {
        if bytes.len() < FRAME_BYTES {
            return None;
        }
        let head = frame::head(bytes);
        let step = head.as_ref().map_or(ALIGNMENT, |head| head.next);
        // Numbers begin at 1: a head with number 0 was not written here, even if its checksum is
        // right.
        let numbered = head.filter(|head| head.number >= least.max(1) && head.number < u64::MAX);
        if let Some(head) = numbered
            && let Some(payload) = frame::payload(bytes, &head)
        {
            return Some((at, head, payload));
        }
        at = at.checked_add(step)?;
    }
    None
}
