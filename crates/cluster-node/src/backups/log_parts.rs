//! Parts of a shard's log in a backup.
//!
//! Entries that do not count, and fences, are left out. The others get epoch 0, which is below the
//! epoch of every owner of a restored log, also in a cluster with another etcd.

use base::{Error, Result};
use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, Epoch, LogEntry, WriterId};
use cluster_log::{
    Batch, CreateOutcome, ENTRY_BYTES_MAX, FollowPosition, FollowStep, LogFollower, ShardLog,
    decode_entry, encode_entry,
};
use tokio::task::{JoinError, JoinSet};

use super::set::LogPart;

/// Bytes from which a part is complete.
const PART_BYTES: usize = 16 << 20;
/// Maximum bytes of a part: one of almost [`PART_BYTES`], and one more entry.
pub(super) const PART_BYTES_MAX: u64 = (PART_BYTES + ENTRY_BYTES_MAX + LENGTH_BYTES) as u64;
/// Bytes of the length before each entry of a part.
const LENGTH_BYTES: usize = size_of::<u32>();
/// Maximum number of entries that are written at the same time. A collection with many shards may
/// have hundreds of thousands, and a restore has a time limit. The bytes of a part limit their
/// memory.
const WRITES_AT_ONCE_MAX: usize = 32;

/// Reader of a log that returns parts for a backup.
pub(super) struct PartReader {
    follower: LogFollower,
    end: EntryNumber,
}

impl PartReader {
    /// Creates a reader of the entries from `from` up to `end`.
    pub(super) fn new(log: ShardLog, from: FollowPosition, end: EntryNumber) -> PartReader {
        PartReader { follower: LogFollower::new(log, from.next, from.epoch), end }
    }

    /// Returns the next part; `None` at the end.
    ///
    /// # Errors
    /// `Unavailable` if the log was shortened meanwhile; `DataLoss` for a damaged entry; the
    /// store's error.
    pub(super) async fn next(&mut self) -> Result<Option<(LogPart, Vec<u8>)>> {
        let mut bytes = Vec::new();
        let mut entries = 0;
        while self.follower.position().next < self.end && bytes.len() < PART_BYTES {
            match self.follower.next().await? {
                FollowStep::Entry { batch: Some(batch), .. } => {
                    push(&mut bytes, &batch)?;
                    entries += 1;
                }
                FollowStep::Entry { batch: None, .. } => {}
                FollowStep::End | FollowStep::Removed(_) => {
                    return Err(Error::unavailable(
                        "the log of a shard was shortened during the backup; try again",
                    ));
                }
            }
        }
        if entries == 0 {
            return Ok(None);
        }
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        Ok(Some((LogPart { entries, bytes: bytes.len() as u64, blake3 }, bytes)))
    }
}

/// Appends the entry of `batch` to a part, after its length.
fn push(part: &mut Vec<u8>, batch: &Batch) -> Result<()> {
    let entry = encode_entry(&LogEntry {
        epoch: Epoch(0),
        writer: WriterId(0),
        body: EntryBody::Writes(batch.clone()),
    })?;
    // An entry has less than 2^32 bytes.
    part.extend_from_slice(&(entry.len() as u32).to_le_bytes());
    part.extend_from_slice(&entry);
    Ok(())
}

/// Checks a part and decodes its entries.
///
/// # Errors
/// `DataLoss` if it does not match its description.
pub(crate) fn entries(part: &LogPart, bytes: &Bytes) -> Result<Vec<LogEntry<Batch>>> {
    if blake3::hash(bytes).to_hex().as_str() == part.blake3 {
        decode_part(bytes, part.entries)
    } else {
        Err(Error::data_loss("a part of the log does not match its checksum"))
    }
}

/// Decodes the entries of a part. `count` is their number by the part's description.
///
/// # Errors
/// `DataLoss` if the bytes are damaged or have another number of entries.
pub(crate) fn decode_part(bytes: &Bytes, count: u64) -> Result<Vec<LogEntry<Batch>>> {
    let damaged =
        || Error::data_loss("a part of the log does not have the entries that its backup states");
    let mut entries = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes.get(at..at + LENGTH_BYTES).and_then(|length| length.try_into().ok());
        let length = u32::from_le_bytes(length.ok_or_else(damaged)?) as usize;
        at += LENGTH_BYTES;
        let end = at.checked_add(length).filter(|end| *end <= bytes.len()).ok_or_else(damaged)?;
        entries.push(decode_entry(&bytes.slice(at..end))?);
        at = end;
    }
    if entries.len() as u64 == count { Ok(entries) } else { Err(damaged()) }
}

/// Writes the entries of a part to a log that no node knows yet, several at the same time. Returns
/// the number after the last one.
///
/// # Errors
/// `AlreadyExists` if the log has another entry of such a number; the store's error.
pub(super) async fn write(
    log: &ShardLog,
    from: EntryNumber,
    entries: &[LogEntry<Batch>],
) -> Result<EntryNumber> {
    let mut running = JoinSet::new();
    let mut number = from;
    for entry in entries {
        if running.len() >= WRITES_AT_ONCE_MAX
            && let Some(ended) = running.join_next().await
        {
            written(ended)?;
        }
        let log = log.clone();
        let entry = entry.clone();
        running.spawn(async move { create(&log, number, &entry).await });
        number = number.plus(1);
    }
    while let Some(ended) = running.join_next().await {
        written(ended)?;
    }
    Ok(number)
}

fn written(ended: Result<Result<()>, JoinError>) -> Result<()> {
    ended.map_err(|error| Error::internal("a write of an entry ended early").caused_by(error))?
}

/// Creates an entry unless it exists. The client of a store repeats a request after an error of the
/// server, and may then find its own entry.
async fn create(log: &ShardLog, number: EntryNumber, entry: &LogEntry<Batch>) -> Result<()> {
    let outcome = log.create(number, entry).await;
    if outcome == CreateOutcome::Created {
        return Ok(());
    }
    match (log.read(number).await?, outcome) {
        (Some(found), _) if found == *entry => Ok(()),
        (None, CreateOutcome::Unknown(error)) => Err(error),
        _ => Err(Error::new(
            base::ErrorKind::AlreadyExists,
            format!("the log of shard {} has another entry {number}", log.shown()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model_store::StorePlace;
    use object_store::memory::InMemory;

    use super::*;
    use crate::types::ShardKey;

    fn log(id: &str) -> ShardLog {
        let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
        ShardLog::new(&place, &ShardKey::new(id, 0))
    }

    fn entry(epoch: u64, text: &'static str) -> LogEntry<Batch> {
        let batch = Batch::from(vec![Bytes::from_static(text.as_bytes())]);
        LogEntry { epoch: Epoch(epoch), writer: WriterId(7), body: EntryBody::Writes(batch) }
    }

    #[tokio::test]
    async fn entries_that_count_are_restored_with_epoch_0() {
        let log_a = log("a");
        let fence = LogEntry { body: EntryBody::Fence, ..entry(9, "") };
        // The third entry is one of an owner that was fenced out.
        let written = [entry(5, "one"), fence, entry(5, "late"), entry(9, "two"), entry(9, "new")];
        write(&log_a, EntryNumber(0), &written).await.unwrap();
        let end = log_a.end().await.unwrap();
        assert_eq!(end, EntryNumber(5));
        let mut reader = PartReader::new(log_a, FollowPosition::default(), EntryNumber(4));
        let (part, bytes) = reader.next().await.unwrap().unwrap();
        assert!(reader.next().await.unwrap().is_none());
        let bytes = Bytes::from(bytes);
        let found = entries(&part, &bytes).unwrap();
        let restored = |text| LogEntry { writer: WriterId(0), ..entry(0, text) };
        assert_eq!(found, [restored("one"), restored("two")]);
        let log_b = log("b");
        for _ in 0..2 {
            // The second time, it finds its own entries.
            assert_eq!(write(&log_b, EntryNumber(3), &found).await.unwrap(), EntryNumber(5));
        }
        let error = write(&log_b, EntryNumber(4), &found).await.unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::AlreadyExists);

        let mut damaged = bytes.to_vec();
        damaged[9] ^= 1;
        assert!(entries(&part, &damaged.into()).is_err());
        assert!(entries(&LogPart { entries: 3, ..part }, &bytes).is_err());
    }

    #[tokio::test]
    async fn many_entries_get_their_numbers() {
        let log = log("a");
        let numbered = |number| LogEntry { writer: WriterId(number), ..entry(0, "text") };
        let entries: Vec<LogEntry<Batch>> = (0..100).map(numbered).collect();
        assert_eq!(write(&log, EntryNumber(7), &entries).await.unwrap(), EntryNumber(107));
        for (number, expected) in (7..).zip(entries) {
            assert_eq!(log.read(EntryNumber(number)).await.unwrap(), Some(expected));
        }
    }

    #[tokio::test]
    async fn a_log_that_ends_early_is_an_error() {
        let log = log("a");
        write(&log, EntryNumber(0), &[entry(1, "one")]).await.unwrap();
        let mut reader = PartReader::new(log, FollowPosition::default(), EntryNumber(2));
        assert_eq!(reader.next().await.unwrap_err().kind(), base::ErrorKind::Unavailable);
    }
}
