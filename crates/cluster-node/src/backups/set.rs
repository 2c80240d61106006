//! The description of a backup of a whole collection: its record, and the backup of each shard.

use backup::BackupId;
use base::{Error, Result};
use cluster::{EntryNumber, Epoch};
use cluster_log::FollowPosition;
use serde::{Deserialize, Serialize};

use super::originals::OriginalsBackup;
use crate::changes::CollectionChanges;
use crate::node::catalog::check_record;
use crate::types::CollectionRecord;

/// Version of the format.
const VERSION: u32 = 1;
/// Version of the format of a backup with original images. Programs that read only version 1 refuse
/// it.
const VERSION_ORIGINALS: u32 = 2;
/// Text before the checksum, which is the last member of a description. The checksum is the BLAKE3
/// hash of everything before this text, in hexadecimal digits. Descriptions of earlier versions
/// have none, and programs of earlier versions ignore it.
const CHECKSUM_PREFIX: &[u8] = b",\"blake3\":\"";
/// Text after the checksum.
const CHECKSUM_SUFFIX: &[u8] = b"\"}";
/// Number of digits of the checksum.
const CHECKSUM_DIGITS: usize = 2 * blake3::OUT_LEN;
/// Maximum bytes of a description.
pub(super) const SET_BYTES_MAX: u64 = 64 << 20;

/// A backup of a collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackupSet {
    version: u32,
    /// Id of the backup, and of the backup of each shard.
    pub id: BackupId,
    /// Record of the collection.
    pub record: CollectionRecord,
    /// Changes of the collection after its creation.
    pub changes: CollectionChanges,
    /// Backups of the shards, by number.
    pub shards: Vec<ShardBackup>,
    /// Original images of a collection of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub originals: Option<OriginalsBackup>,
}

/// Backup of a shard: a snapshot, and the log from there on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardBackup {
    /// Bytes of the snapshot; `None` if the log has everything.
    pub snapshot_bytes: Option<u64>,
    /// First entry after the snapshot.
    pub next: u64,
    /// End of the log at the time of the backup.
    pub end: u64,
    /// Parts of the log.
    pub log: Vec<LogPart>,
}

/// Entries in one object: each with its length before it, in 4 bytes, little-endian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// Number of entries.
    pub entries: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// BLAKE3 hash of the object in hexadecimal digits.
    pub blake3: String,
}

impl ShardBackup {
    /// Returns the position in the log of a shard that begins with the snapshot. Its epoch is 0,
    /// below that of each owner, because the entries of a restored log have no owner.
    pub(super) fn position(&self) -> FollowPosition {
        FollowPosition { next: EntryNumber(self.next), epoch: Epoch(0) }
    }
}

impl BackupSet {
    pub(super) fn new(
        id: BackupId,
        record: CollectionRecord,
        changes: CollectionChanges,
        shards: Vec<ShardBackup>,
        originals: Option<OriginalsBackup>,
    ) -> BackupSet {
        let version = if originals.is_some() { VERSION_ORIGINALS } else { VERSION };
        BackupSet { version, id, record, changes, shards, originals }
    }

    /// Returns the number of bytes of all snapshots, logs and original images.
    pub fn bytes(&self) -> u64 {
        // A description may name any lengths.
        let log = |shard: &ShardBackup| {
            shard.log.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
        };
        let shards = self.shards.iter();
        let bytes =
            shards.map(|shard| shard.snapshot_bytes.unwrap_or(0).saturating_add(log(shard)));
        let originals = self.originals.as_ref().map_or(0, |originals| originals.bytes);
        bytes.fold(originals, u64::saturating_add)
    }

    /// Reads a description.
    ///
    /// # Errors
    /// `DataLoss` for a damaged one, `FailedPrecondition` for one of a newer program.
    pub(crate) fn decode(bytes: &[u8]) -> Result<BackupSet> {
        #[derive(Deserialize)]
        struct SetHead {
            version: u32,
        }
        let damaged = |error: serde_json::Error| {
            Error::data_loss("the description of the backup").caused_by(error)
        };
        let SetHead { version } = serde_json::from_slice(bytes).map_err(damaged)?;
        if ![VERSION, VERSION_ORIGINALS].contains(&version) {
            return Err(Error::precondition(format!(
                "the backup has version {version}, this program reads {VERSION} and {VERSION_ORIGINALS}; use the \
                 program that made it"
            )));
        }
        check_sum(bytes)?;
        let set: BackupSet = serde_json::from_slice(bytes).map_err(damaged)?;
        check_record(&set.record)?;
        set.originals.as_ref().map_or(Ok(()), OriginalsBackup::check)?;
        if set.shards.len() != set.record.shards as usize {
            return Err(Error::data_loss(format!(
                "the description of the backup has {} of {} shards",
                set.shards.len(),
                set.record.shards
            )));
        }
        Ok(set)
    }

    /// Writes the description, with its checksum.
    ///
    /// # Errors
    /// `TooLarge` for more than 64 MiB.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)
            .map_err(|error| Error::internal("the description of a backup").caused_by(error))?;
        // The checksum becomes the last member of the object.
        text.pop();
        let checksum = blake3::hash(&text).to_hex();
        text.extend_from_slice(CHECKSUM_PREFIX);
        text.extend_from_slice(checksum.as_bytes());
        text.extend_from_slice(CHECKSUM_SUFFIX);
        if text.len() as u64 > SET_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the description of the backup has {} bytes, and at most {SET_BYTES_MAX} are stored",
                text.len()
            )));
        }
        Ok(text)
    }
}

/// Compares a description with its checksum. One without a checksum is accepted.
///
/// # Errors
/// `DataLoss` if they differ.
fn check_sum(bytes: &[u8]) -> Result<()> {
    let Some(rest) = bytes.strip_suffix(CHECKSUM_SUFFIX) else { return Ok(()) };
    let Some(at) = rest.len().checked_sub(CHECKSUM_DIGITS) else { return Ok(()) };
    let Some(content) = rest[..at].strip_suffix(CHECKSUM_PREFIX) else { return Ok(()) };
    if rest[at..] == *blake3::hash(content).to_hex().as_bytes() {
        Ok(())
    } else {
        Err(Error::data_loss("the description of the backup does not match its checksum"))
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn descriptions_survive_encoding_and_are_checked() {
        let record = CollectionRecord {
            name: "docs".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: Value::Null,
            images: None,
        };
        let part = LogPart { entries: 2, bytes: 30, blake3: "0".to_owned() };
        let shard = ShardBackup { snapshot_bytes: Some(100), next: 7, end: 9, log: vec![part] };
        let changes = CollectionChanges::default();
        let originals = OriginalsBackup { count: 2, bytes: 20, parts: vec!["0a".to_owned()] };
        for (originals, bytes) in [(None, 130), (Some(originals), 150)] {
            let (record, changes) = (record.clone(), changes.clone());
            let set =
                BackupSet::new(BackupId::now(), record, changes, vec![shard.clone()], originals);
            assert_eq!(set.bytes(), bytes);
            assert_eq!(BackupSet::decode(&set.encode().unwrap()).unwrap(), set);
        }
        let set = BackupSet::new(BackupId::now(), record, changes, vec![shard], None);
        let text = set.encode().unwrap();
        let mut value: Value = serde_json::from_slice(&text).unwrap();
        value["shards"] = json!([]);
        let error = BackupSet::decode(value.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        value["version"] = json!(3);
        let error = BackupSet::decode(value.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    }

    #[test]
    fn damage_of_any_value_is_found() {
        let record = CollectionRecord {
            name: "docs".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: json!({ "vectors": { "size": 8, "distance": "Dot" } }),
            images: None,
        };
        let shards = vec![ShardBackup::default()];
        let set =
            BackupSet::new(BackupId::now(), record, CollectionChanges::default(), shards, None);
        let text = String::from_utf8(set.encode().unwrap()).unwrap();
        for (old, damaged) in
            [("Dot", "Cot"), ("\"size\":8", "\"size\":9"), ("\"version\":1", "\"version\":2")]
        {
            let error = BackupSet::decode(text.replacen(old, damaged, 1).as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss, "{damaged}");
            assert!(error.message().contains("does not match its checksum"), "{error}");
        }
        // Earlier versions wrote no checksum, and do not know it.
        let plain = serde_json::to_string(&set).unwrap();
        assert!(!plain.contains("blake3\":\"") && text.starts_with(plain.trim_end_matches('}')));
        assert_eq!(BackupSet::decode(plain.as_bytes()).unwrap(), set);
        assert_eq!(serde_json::from_str::<BackupSet>(&text).unwrap(), set);
    }
}
