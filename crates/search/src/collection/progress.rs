//! Recovery of logs. It finds the logs that must exist and the positions that they reached, the
//! damaged parts, and the points that are unknown because of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use storage::Medium;
use storage::log::{Damage, Log, LogPosition, Replay};
use storage::page::PAGE_BYTES;
use storage::watermark::{LogPositions, Watermark};

use super::inner::{Collection, CollectionLogs};
use super::manifest::{DamagedLog, ManifestContent};
use super::names::CollectionFile;
use super::state::CollectionState;
use crate::segment::Quarantined;

/// Minimum interval between records of how far the logs are durable.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of an empty log: its header.
const EMPTY_LOG_BYTES: u64 = 64;
/// Maximum points that are tracked as unknown. Beyond that, any point of the log may be unknown.
const UNKNOWN_MAX: usize = 16 << 10;
/// Maximum ids in a message.
const NAMED_MAX: usize = 8;
/// Maximum reasons kept per log.
const REASONS_MAX: usize = 16;

/// Record of how far the logs are durable.
pub(super) struct LogProgress {
    watermark: Watermark,
    recorded: Option<Instant>,
    /// True once all logs were replayed. Before that, the positions of some logs are known from the
    /// watermark only, so it must not be overwritten.
    is_replayed: bool,
}

/// Logs that a start opens.
pub(super) struct Logs {
    /// Numbers of the logs, ascending. A file may be missing.
    pub(super) numbers: Vec<u64>,
    /// Known durable length of each.
    marks: LogPositions,
    /// Bytes of the existing files.
    bytes: BTreeMap<u64, u64>,
    /// Empty files that a full disk left. No list names them.
    empty: Vec<u64>,
    /// Reason why it is unknown how far logs were durable.
    problem: Option<String>,
}

impl LogProgress {
    /// Opens the watermark and compares the existing logs with the required ones.
    pub(super) fn open(
        medium: &Arc<dyn Medium>,
        manifest: &ManifestContent,
        is_new: bool,
        found: &[(String, u64)],
    ) -> Result<(LogProgress, Logs)> {
        let (watermark, recorded) = Watermark::open(medium)?;
        let lost = recorded.is_none() && !manifest.logs.is_empty();
        let problem = lost.then(|| {
            "the file watermark is missing or damaged: a log that lost its end is detected only up to the last \
             list of segments"
                .to_owned()
        });
        let mut marks: LogPositions =
            manifest.logs.iter().map(|log| (log.number, log.mark())).collect();
        for (number, mark) in recorded.unwrap_or_default() {
            let known = marks.entry(number).or_default();
            if mark.next >= known.next {
                *known = mark;
            }
        }
        marks.retain(|number, _| *number >= manifest.first_log);
        if !is_new {
            // The log was created before the list that names it.
            marks
                .entry(manifest.first_log)
                .or_insert(LogPosition { bytes: EMPTY_LOG_BYTES, next: 1 });
        }
        let log = |(name, bytes): &(String, u64)| match CollectionFile::of(name) {
            Some(CollectionFile::Log(number)) if number >= manifest.first_log => {
                Some((number, *bytes))
            }
            _ => None,
        };
        let bytes: BTreeMap<u64, u64> = found.iter().filter_map(log).collect();
        let is_first = |number: u64| !is_new && number == manifest.first_log;
        let held =
            |number: u64| is_first(number) || marks.get(&number).is_some_and(|mark| mark.next > 1);
        let is_empty = |(number, bytes): (&u64, &u64)| {
            (*bytes <= EMPTY_LOG_BYTES && !held(*number)).then_some(*number)
        };
        let empty: Vec<u64> = bytes.iter().filter_map(is_empty).collect();
        let mut numbers: Vec<u64> =
            bytes.keys().copied().filter(|number| !empty.contains(number)).collect();
        numbers.extend(
            marks.keys().copied().filter(|number| held(*number) && !bytes.contains_key(number)),
        );
        numbers.sort_unstable();
        Ok((
            LogProgress { watermark, recorded: None, is_replayed: false },
            Logs { numbers, marks, bytes, empty, problem },
        ))
    }
}

impl Collection {
    /// Records how far the logs are durable, at most once a second. The record later shows that a
    /// log was truncated ([`storage::watermark`]). It costs a sync, so idle threads call it.
    pub(crate) fn record_progress(&self) {
        if let Some(mut progress) = self.progress.try_lock() {
            let recent = |at: Instant| at.elapsed() < RECORD_INTERVAL;
            if !progress.recorded.is_some_and(recent) {
                self.record(&mut progress);
            }
        }
    }

    /// Records how far the logs are durable, at once. For closing the collection.
    pub(super) fn record_progress_now(&self) {
        self.record(&mut self.progress.lock());
    }

    /// Records how far the logs are durable. A failure only makes later damage harder to find.
    fn record(&self, progress: &mut LogProgress) {
        if !progress.is_replayed {
            return;
        }
        let marks = self.log_marks();
        progress.recorded = Some(Instant::now());
        if let Err(error) = progress.watermark.record(marks) {
            tracing::debug!(%error, "how far logs are durable is not recorded");
        }
    }

    /// Returns how far the logs are durable.
    pub(super) fn log_marks(&self) -> LogPositions {
        self.writer.lock().logs.iter().map(|(number, log)| (*number, log.durable())).collect()
    }

    /// Replays all logs, after which their positions are recorded.
    ///
    /// # Errors
    /// The error of a log or of a flush. The positions that were recorded before stay.
    pub(super) fn replay_logs(&self, logs: &Logs) -> Result<()> {
        self.replay_each(logs)?;
        self.progress.lock().is_replayed = true;
        Ok(())
    }

    /// Replays the logs. Records their damage. Points whose changes are lost become unknown.
    fn replay_each(&self, logs: &Logs) -> Result<()> {
        self.remove_empty(&logs.empty);
        for &number in &logs.numbers {
            let name = CollectionFile::Log(number).name();
            let mark = logs.marks.get(&number).copied().unwrap_or_default();
            // An error here may be temporary. To continue without the log would lose its content.
            let (log, replay) = Log::open_at(&self.medium, &name, mark)?;
            self.writer.lock().logs.push((number, Arc::new(log)));
            let bytes = logs.bytes.get(&number).copied();
            let mut losses = self.losses(number, &replay, bytes, mark);
            losses.sort_by_key(|(start, _)| std::cmp::Reverse(*start));
            for (sequence, frame) in replay.records {
                while losses.last().is_some_and(|(start, _)| *start < sequence) {
                    let keys = losses.pop().and_then(|(_, keys)| keys);
                    self.record_lost_changes(number, keys);
                }
                match self.decoded(&frame) {
                    // A flush may fail during the replay; that is not the fault of the change.
                    Ok(change) => {
                        self.replay(number, change).map_err(|error| error.context(&name))?
                    }
                    Err(error) => {
                        self.log_damaged(number, None, &format!("change {sequence}: {error}"));
                        self.record_lost_changes(number, None);
                    }
                }
            }
            losses.into_iter().rev().for_each(|(_, keys)| self.record_lost_changes(number, keys));
        }
        self.health.lock().repairs.extend(logs.problem.clone());
        let mut writer = self.writer.lock();
        if !writer.logs.is_empty() {
            return Ok(());
        }
        // No change was replayed, so the only memtable is empty and may start with a new log.
        let number = self.new_file_number();
        self.live.lock().restart(number);
        match self.ensure_log(&mut writer) {
            // The first write that finds room creates it.
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                tracing::warn!(%error, "there is no space for a log; the stored points are served");
                Ok(())
            }
            made => made,
        }
    }

    /// Creates the active memtable's log if there is none because the disk was full at the start.
    pub(super) fn ensure_log(&self, writer: &mut CollectionLogs) -> Result<()> {
        if writer.logs.is_empty() {
            let number = self.live.lock().active().log;
            let (log, _) = Log::open(&self.medium, &CollectionFile::Log(number).name())?;
            writer.logs.push((number, Arc::new(log)));
        }
        Ok(())
    }

    /// Removes empty logs. A failure only costs space.
    fn remove_empty(&self, logs: &[u64]) {
        for &number in logs {
            let name = CollectionFile::Log(number).name();
            if let Err(error) = self.medium.remove(&name) {
                tracing::warn!(%error, name, "an empty log stays");
            }
        }
    }

    /// Records the damage of a log. Returns the lost changes: the number of the first, and the ids
    /// affected if known.
    fn losses(
        &self,
        number: u64,
        replay: &Replay,
        bytes: Option<u64>,
        mark: LogPosition,
    ) -> Vec<(u64, Option<Vec<u64>>)> {
        let mut losses = Vec::new();
        for damage in &replay.damaged {
            let page = Some(damage.offset / PAGE_BYTES as u64);
            let is_end = replay.cut && damage.lost.end >= replay.next;
            if damage.lost.is_empty() && !is_end {
                let name = CollectionFile::Log(number).name();
                let note = format!(
                    "{name}: {} bytes at {} are damaged, no change is lost",
                    damage.bytes, damage.offset
                );
                self.health.lock().repairs.push(note);
                continue;
            }
            let keys = replay.keys_of(damage).filter(|_| !damage.lost.is_empty());
            let page = page.filter(|_| bytes.is_some());
            self.log_damaged(number, page, &reason(damage, bytes, is_end, keys.as_deref()));
            losses.push((damage.lost.start, keys));
        }
        // The list named the log when it was known to be empty.
        if let Some(there) =
            bytes.filter(|there| losses.is_empty() && *there < mark.bytes.min(EMPTY_LOG_BYTES))
        {
            self.log_damaged(
                number,
                None,
                &format!("it is cut off at {there} bytes; {UNKNOWN_IDS_REASON}"),
            );
            losses.push((0, None));
        }
        losses
    }

    /// Records that changes of a log are lost, either of the given points or of any.
    fn record_lost_changes(&self, log: u64, ids: Option<Vec<u64>>) {
        let mut live = self.live.lock();
        match ids.filter(|ids| live.state.unknown.len() + ids.len() <= UNKNOWN_MAX) {
            Some(ids) => ids.into_iter().for_each(|id| live.mark_unknown(id, log)),
            None => live.change_doubtful(|doubtful| {
                doubtful.insert(log);
            }),
        }
    }

    fn log_damaged(&self, number: u64, page: Option<u64>, reason: &str) {
        let file = CollectionFile::Log(number).name();
        self.quarantine(Quarantined { file, page, reason: reason.to_owned() });
        self.publisher.lock().kept_logs.insert(number);
        let mut health = self.health.lock();
        let reasons = health.damaged_logs.entry(number).or_default();
        if reasons.len() < REASONS_MAX {
            reasons.push(reason.to_owned());
        }
    }

    /// Restores the list of damaged logs that an earlier start found and a flush has replaced. A
    /// log that this start still reads reports its damage again.
    pub(super) fn restore_damaged(&self, manifest: &ManifestContent) {
        for damaged in
            manifest.damaged_logs.iter().filter(|damaged| damaged.log < manifest.first_log)
        {
            for reason in &damaged.reasons {
                let file = CollectionFile::Log(damaged.log).name();
                self.quarantine(Quarantined { file, page: None, reason: reason.clone() });
            }
            self.health.lock().damaged_logs.insert(damaged.log, damaged.reasons.clone());
            let mut live = self.live.lock();
            let lost = damaged.unknown.iter().map(|id| (*id, damaged.log));
            live.change_unknown(|unknown| unknown.extend(lost));
            if damaged.doubtful {
                live.change_doubtful(|doubtful| {
                    doubtful.insert(damaged.log);
                });
            }
        }
    }

    /// Returns the damaged logs for the list of `state`. A log before `first_log` is forgotten once
    /// all points affected have been written or deleted. A point that was written after `state` is
    /// still unknown, since that write may not be durable yet.
    pub(super) fn damaged_logs(&self, state: &CollectionState, first_log: u64) -> Vec<DamagedLog> {
        let mut unknown: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        state.unknown.iter().for_each(|(id, log)| unknown.entry(*log).or_default().push(*id));
        let logs = self.health.lock().damaged_logs.clone();
        let mut damaged = Vec::new();
        for (log, reasons) in logs {
            let mut unknown = unknown.remove(&log).unwrap_or_default();
            unknown.sort_unstable();
            let doubtful = state.doubtful.contains(&log);
            if log < first_log && unknown.is_empty() && !doubtful {
                self.forget_damaged(log);
            } else {
                damaged.push(DamagedLog { log, reasons, unknown, doubtful });
            }
        }
        damaged
    }

    fn forget_damaged(&self, log: u64) {
        self.health.lock().damaged_logs.remove(&log);
        self.unquarantine(&CollectionFile::Log(log).name());
    }

    /// Abandons the lost changes of a damaged log. Points that are unknown because of the damage
    /// count as deleted, and the rest of the log is removed.
    pub(super) fn abandon_log(&self, number: u64) -> Result<()> {
        let name = CollectionFile::Log(number).name();
        if !self.health.lock().damaged_logs.contains_key(&number) {
            return Err(Error::not_found(format!("there is no damaged log {name}")));
        }
        {
            let mut writer = self.writer.lock();
            // After a start, changes of this log and of later logs may be in one memtable.
            let is_active = self.live.lock().active().log <= number;
            if is_active {
                self.freeze_active(&mut writer)?;
            }
        }
        // A flush ensures that no list names the log any more.
        while self.writer.lock().logs.iter().any(|(log, _)| *log <= number) {
            if !self.flush_once(super::stall::Urgency::Escalated)? {
                break;
            }
        }
        {
            let mut live = self.live.lock();
            live.change_unknown(|unknown| unknown.retain(|_, log| *log != number));
            live.change_doubtful(|doubtful| {
                doubtful.remove(&number);
            });
        }
        self.forget_damaged(number);
        self.publisher.lock().kept_logs.remove(&number);
        self.publish()?;
        tracing::warn!(name, "a damaged log was dropped; its changes are lost");
        Ok(())
    }
}

/// Reason text if the ids are unknown.
const UNKNOWN_IDS_REASON: &str = "their points are not known: any point may be older than what was acknowledged, \
                       missing, or removed";

/// Returns the text about a damaged part of a log. `bytes` is the length of the file, or `None` if
/// it is missing. `keys` are the ids whose changes are lost, if they are known.
fn reason(damage: &Damage, bytes: Option<u64>, is_end: bool, keys: Option<&[u64]>) -> String {
    let Damage { offset, bytes: length, lost } = damage;
    let place = match (bytes, is_end) {
        (None, _) => format!("the file is missing; it had at least {length} bytes"),
        (Some(there), true) => {
            format!("it ends at {offset} of {} bytes ({there} are there)", offset + length)
        }
        (Some(_), false) => format!("{length} bytes at {offset} are damaged"),
    };
    let changes = if lost.is_empty() {
        "changes may be lost".to_owned()
    } else {
        format!("changes {} to before {} are lost", lost.start, lost.end)
    };
    let points = match keys {
        None => UNKNOWN_IDS_REASON.to_owned(),
        Some(keys) => {
            let named: Vec<String> = keys.iter().take(NAMED_MAX).map(u64::to_string).collect();
            let more = keys.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "they were of points {}{more}, which are unknown until they are written again",
                named.join(", ")
            )
        }
    };
    format!("{place}: {changes}; {points}")
}

#[cfg(test)]
mod tests {
    use os::Rate;
    use storage::UringMedium;

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::{CollectionOptions, Resources};
    use crate::ingest::PointRef;
    use crate::rerank::SharedCaches;
    use coarse::Metric;

    fn unknown(collection: &Collection, state: &CollectionState) -> Vec<Vec<u64>> {
        let logs = collection.damaged_logs(state, 9).into_iter();
        logs.map(|damaged| damaged.unknown).collect()
    }

    #[test]
    fn a_list_names_the_unknown_points_of_its_state() {
        let root = tempfile::tempdir().unwrap();
        let medium = Arc::new(UringMedium::plain(root.path().to_owned()).unwrap());
        let budget = MemoryBudget::new(64 << 20);
        let resources = Resources::new(budget, 1 << 20, Rate::unlimited()).unwrap();
        let options = CollectionOptions::new(2, Metric::L2);
        let shared = Arc::new(SharedCaches::new(0, 512));
        let collection = Collection::open(medium, options, &resources, shared).unwrap();
        collection.log_damaged(1, None, "on purpose");
        collection.record_lost_changes(1, Some(vec![7]));
        let published = collection.state();
        let point = PointRef { id: 7, embedding: &[1.0, 0.0], record: b"", payload: b"" };
        collection.upsert(point).unwrap();
        // That write may not be durable when the list of the earlier state is.
        assert_eq!(unknown(&collection, &published), [vec![7]]);
        assert!(unknown(&collection, &collection.state()).is_empty());
    }
}
