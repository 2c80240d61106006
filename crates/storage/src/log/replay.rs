//! Replay: reads a log back.
//!
//! A frame that is not whole is one of three things. If no whole frame with a higher number
//! follows, it is the torn end of the log. Otherwise it is *damage* if the whole frames show that
//! it was durable. Each frame holds the number before which everything was durable when that frame
//! was written. If it was not durable, it is a *hole* in the bytes being written when the power
//! failed, because sectors reach a disk in any order. No bytes can make the opening fail.
//!
//! A frame has no information about later frames. So the caller may pass the position up to which
//! the log was durable ([`LogPosition`]). A log that ends before it is damaged at its end and not
//! torn.

use std::collections::BTreeMap;

use crate::medium::Salvaged;

use super::LogPosition;
use super::frame::{self, ALIGNMENT, FRAME_BYTES, FrameHead, FrameKind, HEADER_BYTES};

/// A part of a log that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Numbers of payloads that may be missing. Their start is a guess if the header is lost too.
    /// Empty if only the header is lost.
    pub lost: std::ops::Range<u64>,
}

/// Contents of a log when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Payloads with their numbers, in order.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Start of the torn end that was cut off, if there was one. It was never acknowledged, unless
    /// the medium lost bytes that it had made durable.
    pub torn_tail: Option<u64>,
    /// Missing parts among the last frames, with whole frames after them. As far as the log can
    /// tell they were never acknowledged. Opening closes these holes, so they appear once.
    pub holes: Vec<Damage>,
    /// Lost parts that were durable, and unreadable parts, which may have been.
    pub damaged: Vec<Damage>,
    /// Pages that the medium could not read. If there are any, the log stays unchanged.
    pub unreadable: usize,
    /// True if the log ends before its [`LogPosition`]. The log stays unchanged then.
    pub cut: bool,
    /// Known keys of damaged payloads, by number.
    lost_keys: BTreeMap<u64, u64>,
    /// Number of the next payload.
    pub next: u64,
}

impl Replay {
    /// Returns the keys of the payloads of `damage`, or `None` if some are unknown.
    pub fn keys_of(&self, damage: &Damage) -> Option<Vec<u64>> {
        let known =
            self.lost_keys.range(damage.lost.clone()).map(|(_, key)| *key).collect::<Vec<u64>>();
        let count = damage.lost.end.saturating_sub(damage.lost.start);
        (known.len() as u64 == count).then_some(known)
    }
}

/// Replays the bytes `found` of a log that was durable up to `mark`. The payloads of an empty log
/// have numbers from 1.
pub(super) fn replay(found: &Salvaged, mark: LogPosition) -> Replay {
    let mut replay = replay_bytes(found, mark.next);
    let end = replay.torn_tail.unwrap_or(found.bytes.len() as u64);
    if replay.next < mark.next {
        let bytes = mark.bytes.saturating_sub(end);
        let lost = replay.next..mark.next;
        replay.damaged.push(Damage { offset: end, bytes, lost });
        replay.next = mark.next;
        replay.torn_tail = None;
        replay.cut = true;
    }
    let damaged: Vec<_> = replay.damaged.iter().map(|damage| damage.lost.clone()).collect();
    replay.lost_keys.retain(|number, _| damaged.iter().any(|lost| lost.contains(number)));
    replay
}

/// Replays the bytes of a log without its mark. Frames before the number `durable` were
/// acknowledged.
fn replay_bytes(found: &Salvaged, durable: u64) -> Replay {
    let log = &found.bytes[..];
    let next = frame::first(log).unwrap_or(1).max(1);
    let unreadable = found.lost.len();
    let mut replay = Replay { next, unreadable, ..Replay::default() };
    if log.is_empty() {
        return replay;
    }
    // The first flush of a log writes its header, so a log with a damaged header and no frames was
    // never used.
    let header_lost = frame::first(log).is_none();
    let mut gaps = Vec::new();
    let durable = durable.max(scan(log, !header_lost, &mut replay, &mut gaps));
    let is_damage = |gap: &Damage| {
        gap.lost.start < durable || found.lacks(gap.offset..gap.offset.saturating_add(gap.bytes))
    };
    let (damaged, holes) = gaps.into_iter().partition(is_damage);
    replay.damaged = damaged;
    replay.holes = holes;
    if header_lost && replay.records.is_empty() {
        replay.torn_tail = Some(0);
        replay.holes.clear();
    } else if header_lost {
        replay.damaged.insert(0, Damage { offset: 0, bytes: HEADER_BYTES as u64, lost: 0..0 });
    }
    // An unreadable end may have been acknowledged, unlike one that is readable and not whole.
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

/// Adds all whole frames of the bytes `log` to `replay`, and the bytes between them to `gaps`.
/// Returns the number before which all payloads were durable. `numbers_known` is true if the header
/// gave the first number.
fn scan(log: &[u8], mut numbers_known: bool, replay: &mut Replay, gaps: &mut Vec<Damage>) -> u64 {
    let mut at = HEADER_BYTES.min(log.len());
    let mut durable = 0;
    while at < log.len() {
        let least = if numbers_known { replay.next } else { 0 };
        let Some(WholeFrame { offset: found, head, payload }) = next_whole(log, at, least) else {
            replay.torn_tail = Some(at as u64);
            break;
        };
        // Numbers jump only over missing bytes and closed holes.
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

/// Keeps the keys after a head that belong to frames in the gaps found so far.
fn keep_keys(bytes: &[u8], head: &FrameHead, replay: &mut Replay, gaps: &[Damage]) {
    let Some((first, keys)) = frame::keys(bytes, head) else { return };
    // Gaps are in log order, and only the last few can hold frames as young as these.
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

/// A frame whose head and payload are intact.
struct WholeFrame<'a> {
    /// Offset in the log.
    offset: usize,
    head: FrameHead,
    payload: &'a [u8],
}

/// Finds the first whole frame from `at` on with a number of at least `least`. The inside of a
/// frame with an intact head is skipped, because a payload may hold anything, even frames.
fn next_whole(log: &[u8], at: usize, least: u64) -> Option<WholeFrame<'_>> {
    let mut at = at;
    while let Some(bytes) = log.get(at..) {
        if bytes.len() < FRAME_BYTES {
            return None;
        }
        let head = frame::head(bytes);
        let step = head.as_ref().map_or(ALIGNMENT, |head| head.next);
        // Numbers begin at 1, so a head with number 0 was not written here, even with a valid
        // checksum.
        let numbered = head.filter(|head| head.number >= least.max(1) && head.number < u64::MAX);
        if let Some(head) = numbered
            && let Some(payload) = frame::payload(bytes, &head)
        {
            return Some(WholeFrame { offset: at, head, payload });
        }
        at = at.checked_add(step)?;
    }
    None
}
