//! Content of the manifest: the files of a collection, as JSON. The manifest checks its hash.

use std::collections::BTreeSet;

use base::{Error, Result};
use coarse::Metric;
use serde::{Deserialize, Serialize};
use storage::log::LogPosition;

use super::names::FILE_NUMBER_MAX;
use super::options::CollectionShape;
use crate::segment::VectorEncoding;

/// Version that this program writes.
const VERSION: u32 = 1;

/// Files of a collection at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ManifestContent {
    version: u32,
    dims: usize,
    metric: Metric,
    encoding: VectorEncoding,
    /// First log with changes that no segment has.
    pub(super) first_log: u64,
    /// Lower bound of file numbers not yet used.
    pub(super) next: u64,
    pub(super) segments: Vec<SegmentEntry>,
    /// Damaged logs before `first_log`, kept for manual recovery.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) kept_logs: BTreeSet<u64>,
    /// Durable lengths of the logs from `first_log` on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) logs: Vec<NamedLog>,
    /// Logs that lost changes, until they are abandoned or all points affected are known again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) damaged_logs: Vec<DamagedLog>,
}

/// Log, and the position up to which it was durable when the list was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamedLog {
    pub(super) number: u64,
    /// Bytes of its file.
    pub(super) bytes: u64,
    /// Number of the first change that was not durable.
    pub(super) next: u64,
}

impl NamedLog {
    pub(super) fn new(number: u64, mark: LogPosition) -> NamedLog {
        NamedLog { number, bytes: mark.bytes, next: mark.next }
    }

    pub(super) fn mark(self) -> LogPosition {
        LogPosition { bytes: self.bytes, next: self.next }
    }
}

/// Damage of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DamagedLog {
    pub(super) log: u64,
    pub(super) reasons: Vec<String>,
    /// Points of which changes are lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unknown: Vec<u64>,
    /// True if changes of other points may be lost too.
    #[serde(default)]
    pub(super) doubtful: bool,
}

/// Segment and the files that belong to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SegmentEntry {
    /// Number of its file.
    pub(super) number: u64,
    pub(super) uuid: String,
    pub(super) rows: u32,
    /// Number of the file with its deleted rows, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deletes: Option<u64>,
    /// Number of the file with its pending deletes, if any.
    #[serde(rename = "waiting", default, skip_serializing_if = "Option::is_none")]
    pub(super) pending_deletes: Option<u64>,
    /// Numbers of files of pending deletes that could not be read. Later ones are in
    /// `pending_deletes`. The segment is not served before all of them are known.
    #[serde(rename = "waiting_unread", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unread_pending: Vec<u64>,
}

impl ManifestContent {
    pub(super) fn new(
        shape: &CollectionShape,
        first_log: u64,
        next: u64,
        segments: Vec<SegmentEntry>,
    ) -> ManifestContent {
        ManifestContent {
            version: VERSION,
            dims: shape.dims,
            metric: shape.metric,
            encoding: shape.encoding,
            first_log,
            next,
            segments,
            kept_logs: BTreeSet::new(),
            logs: Vec::new(),
            damaged_logs: Vec::new(),
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|error| Error::internal("the list of segments").caused_by(error))
    }

    /// Decodes the list of segments.
    ///
    /// # Errors
    /// `FailedPrecondition` for a list of another version. `DataLoss` for bytes that are not a
    /// list, and for a file number above [`FILE_NUMBER_MAX`].
    pub(super) fn decode(bytes: &[u8]) -> Result<ManifestContent> {
        /// The part that all versions have.
        #[derive(Deserialize)]
        struct ManifestVersion {
            version: u32,
        }
        let damaged = |error: serde_json::Error| {
            Error::data_loss("the list of segments cannot be read").caused_by(error)
        };
        // First, because another version may have other members.
        let ManifestVersion { version } = serde_json::from_slice(bytes).map_err(damaged)?;
        if version != VERSION {
            return Err(Error::precondition(format!(
                "the collection has version {version}, this program reads {VERSION}; use the program that wrote it"
            )));
        }
        let manifest: ManifestContent = serde_json::from_slice(bytes).map_err(damaged)?;
        // A copy is made of a list that another server wrote.
        if manifest.next > FILE_NUMBER_MAX {
            return Err(Error::data_loss(format!(
                "the list of segments has the file number {}, and {FILE_NUMBER_MAX} is the highest",
                manifest.next
            )));
        }
        Ok(manifest)
    }

    /// Removes the names of damaged logs, whose files a copy does not have.
    pub(super) fn forget_damage(&mut self) {
        self.kept_logs.clear();
        self.damaged_logs.clear();
    }

    pub(super) fn shape(&self) -> CollectionShape {
        CollectionShape { dims: self.dims, metric: self.metric, encoding: self.encoding }
    }
}

/// Formats a UUID as 32 hexadecimal digits.
pub(super) fn uuid_text(uuid: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(uuid))
}

pub(super) fn uuid_of(text: &str) -> Option<[u8; 16]> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(u128::to_be_bytes)
}

/// Returns a new random UUID, made of two hashes with keys drawn by the system.
pub(super) fn new_uuid() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let half = |which: u8| {
        RandomState::new().hash_one((which, std::process::id(), std::time::SystemTime::now()))
    };
    (u128::from(half(0)) << 64 | u128::from(half(1))).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_catalog_round_trips() {
        let shape =
            CollectionShape { dims: 3, metric: Metric::Dot, encoding: VectorEncoding::Bf16 };
        let entry = SegmentEntry {
            number: 4,
            uuid: uuid_text(new_uuid()),
            rows: 9,
            deletes: Some(5),
            pending_deletes: None,
            unread_pending: vec![3],
        };
        let mut manifest = ManifestContent::new(&shape, 2, 6, vec![entry]);
        manifest.kept_logs.insert(1);
        manifest.logs.push(NamedLog::new(2, LogPosition { bytes: 99, next: 7 }));
        let reasons = vec!["gone".to_owned()];
        manifest.damaged_logs.push(DamagedLog {
            log: 1,
            reasons,
            unknown: vec![3],
            doubtful: true,
        });
        let back = ManifestContent::decode(&manifest.encode().unwrap()).unwrap();
        assert_eq!((back.shape(), &back), (shape, &manifest));
        let beyond = ManifestContent { next: FILE_NUMBER_MAX + 1, ..manifest.clone() };
        assert_eq!(
            ManifestContent::decode(&beyond.encode().unwrap()).unwrap_err().kind(),
            base::ErrorKind::DataLoss
        );
        let newer = ManifestContent { version: 2, ..manifest }.encode().unwrap();
        let with_other_members = br#"{"version":2,"dims":3,"metric":"manhattan","levels":[]}"#;
        for newer in [newer.as_slice(), with_other_members] {
            let error = ManifestContent::decode(newer).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::FailedPrecondition);
            assert!(error.message().contains("has version 2"), "{error}");
        }
    }

    #[test]
    fn uuids_round_trip_and_differ() {
        let uuid = new_uuid();
        assert_eq!(uuid_of(&uuid_text(uuid)), Some(uuid));
        assert_ne!(uuid, new_uuid());
        assert_eq!((uuid_of("12"), uuid_of(&"g".repeat(32))), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(ManifestContent::decode(&bytes).is_err());
        }
    }
}
