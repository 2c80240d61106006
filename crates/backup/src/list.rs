//! The list of a backup: the settings of the collection, its own list of files, and the object and
//! checksum of each file.
//!
//! A stored list has two lines. The first is `{"millpond":"backup","version":1,"blake3":"HEX"}`.
//! The second is JSON, and the hash covers its bytes.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base::{Error, Result};
use chrono::{DateTime, NaiveDateTime, Utc};
use search::registry::CollectionSettings;
use serde::{Deserialize, Serialize};

/// Version that this program writes.
const VERSION: u32 = 1;
/// Kind of a stored list.
const KIND: &str = "backup";
/// Maximum bytes of a stored list.
pub(crate) const LIST_BYTES_MAX: u64 = 64 << 20;
/// Maximum files of a list.
pub(crate) const FILES_MAX: usize = 1 << 20;
/// Maximum bytes of all files of a list.
const BYTES_MAX: u64 = 1 << 60;
/// Format of the time in an id.
const ID_TIME: &str = "%Y%m%dT%H%M%S%3fZ";
/// Number of characters of the time in an id.
const ID_TIME_CHARS: usize = 19;

/// Id of a backup: its time in UTC, in milliseconds, and eight random hexadecimal digits. Ids sort
/// by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupId {
    text: String,
    created: DateTime<Utc>,
}

impl BackupId {
    /// Returns a new id of this moment.
    pub fn now() -> BackupId {
        let since = base::unix_time(SystemTime::now());
        BackupId::at(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns a new id of this moment that sorts after `newest`, even if the clock was set back.
    pub(crate) fn after(newest: Option<&BackupId>) -> BackupId {
        let id = BackupId::now();
        match newest {
            Some(newest) if newest.created >= id.created => {
                BackupId::at(newest.created.timestamp_millis().saturating_add(1))
            }
            _ => id,
        }
    }

    /// Returns a new id of a time in milliseconds since the epoch.
    fn at(milliseconds: i64) -> BackupId {
        use std::hash::{BuildHasher, RandomState};
        let random = RandomState::new().hash_one((std::process::id(), milliseconds)) as u32;
        let created = DateTime::from_timestamp_millis(milliseconds).unwrap_or_default();
        BackupId { text: format!("{}-{random:08x}", created.format(ID_TIME)), created }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the time at which the backup was begun.
    pub fn created(&self) -> DateTime<Utc> {
        self.created
    }

    /// Returns the age at `now`.
    pub(crate) fn age(&self, now: DateTime<Utc>) -> Duration {
        (now - self.created).to_std().unwrap_or_default()
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for BackupId {
    type Err = Error;

    fn from_str(text: &str) -> Result<BackupId> {
        let wrong = || {
            let shown: String = text.chars().take(80).collect();
            Error::invalid(format!(
                "{shown:?} is not an id of a backup, such as 20260131T235959123Z-0123abcd"
            ))
        };
        let (time, random) = text.split_once('-').ok_or_else(wrong)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if random.len() != 8 || !random.bytes().all(is_hex) || time.len() != ID_TIME_CHARS {
            return Err(wrong());
        }
        let created = NaiveDateTime::parse_from_str(time, ID_TIME).map_err(|_| wrong())?;
        Ok(BackupId { text: text.to_owned(), created: created.and_utc() })
    }
}

impl TryFrom<String> for BackupId {
    type Error = Error;

    fn try_from(text: String) -> Result<BackupId> {
        text.parse()
    }
}

impl From<BackupId> for String {
    fn from(id: BackupId) -> String {
        id.text
    }
}

/// Damage of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupProblem {
    /// Backups that it affects.
    pub backups: Vec<BackupId>,
    /// Description, which names the object or the list.
    pub problem: String,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupFile {
    /// Name in the collection's directory.
    pub name: String,
    /// Name of its object.
    pub object: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 hash in hexadecimal digits.
    pub blake3: String,
}

/// The list of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackupList {
    /// Id; `backups/ID` is the key of the list in the store.
    pub id: BackupId,
    /// Name of the collection.
    pub collection: String,
    /// Name of the directory of its points, which no other collection ever has.
    pub source: String,
    /// Number of points at that time.
    pub points: u64,
    /// Settings of the collection.
    pub settings: CollectionSettings,
    /// The collection's own list of files, as JSON text.
    pub state: String,
    /// Files of the collection, each with its object.
    pub files: Vec<BackupFile>,
}

#[derive(Serialize, Deserialize)]
struct ListHead {
    millpond: String,
    version: u32,
    blake3: String,
}

impl BackupList {
    /// Returns the number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Encodes the list.
    ///
    /// # Errors
    /// `TooLarge` for more than 64 MiB.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let broken = |error| Error::internal("the list of a backup").caused_by(error);
        let body = serde_json::to_vec(self).map_err(broken)?;
        let blake3 = blake3::hash(&body).to_hex().to_string();
        let head = ListHead { millpond: KIND.to_owned(), version: VERSION, blake3 };
        let mut text = serde_json::to_vec(&head).map_err(broken)?;
        text.push(b'\n');
        text.extend_from_slice(&body);
        text.push(b'\n');
        if text.len() as u64 > LIST_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the list of the backup has {} bytes, and at most {LIST_BYTES_MAX} are stored",
                text.len()
            )));
        }
        Ok(text)
    }

    /// Decodes the output of [`BackupList::encode`].
    ///
    /// # Errors
    /// `DataLoss` for a damaged list, `FailedPrecondition` for one of a newer program.
    pub(crate) fn decode(text: &[u8]) -> Result<BackupList> {
        let damaged = |why: String| Error::data_loss(format!("the list of the backup: {why}"));
        let at = text.iter().position(|&byte| byte == b'\n');
        let at = at.ok_or_else(|| damaged("it has no second line".to_owned()))?;
        let head: ListHead =
            serde_json::from_slice(&text[..at]).map_err(|error| damaged(error.to_string()))?;
        if head.millpond != KIND {
            return Err(damaged(format!("it is a {:?}", head.millpond)));
        }
        if head.version != VERSION {
            return Err(Error::precondition(format!(
                "the backup has version {}, this program reads {VERSION}; use the program that made it",
                head.version
            )));
        }
        let body = text[at + 1..].strip_suffix(b"\n");
        let body = body.ok_or_else(|| damaged("its end is missing".to_owned()))?;
        if blake3::hash(body).to_hex().as_str() != head.blake3 {
            return Err(damaged("it does not match its checksum".to_owned()));
        }
        let list: BackupList =
            serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))?;
        if list.files.len() > FILES_MAX {
            return Err(damaged(format!("it has {} files", list.files.len())));
        }
        // A list that was uploaded may name any length; sums of lengths must not overflow.
        let mut lengths = list.files.iter().map(|file| file.bytes);
        let sum = lengths.try_fold(0u64, u64::checked_add);
        if sum.is_none_or(|sum| sum > BYTES_MAX) {
            return Err(damaged(format!("its files have more than {BYTES_MAX} bytes")));
        }
        Ok(list)
    }

    /// Returns the list of a backup of the collection "c" that has no points and no files.
    #[cfg(test)]
    pub(crate) fn empty(id: &BackupId) -> BackupList {
        BackupList {
            id: id.clone(),
            collection: "c".to_owned(),
            source: "points-1".to_owned(),
            points: 0,
            settings: CollectionSettings::new(3, search::Metric::Dot),
            state: "{}".to_owned(),
            files: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use search::Metric;

    use super::*;

    fn example() -> BackupList {
        BackupList {
            id: BackupId::now(),
            collection: "docs".to_owned(),
            source: "points-1".to_owned(),
            points: 7,
            settings: CollectionSettings::new(3, Metric::Dot),
            state: "{}".to_owned(),
            files: vec![BackupFile {
                name: "segment-000000000001".to_owned(),
                object: "segment-00".to_owned(),
                bytes: 9,
                blake3: "ab".to_owned(),
            }],
        }
    }

    #[test]
    fn a_list_survives_encoding_and_damage_is_found() {
        let list = example();
        let text = list.encode().unwrap();
        assert_eq!(BackupList::decode(&text).unwrap(), list);
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 4;
            assert!(BackupList::decode(&damaged).is_err(), "byte {at}");
            assert!(BackupList::decode(&text[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_sum_of_lengths_that_overflows_is_refused() {
        let mut list = example();
        list.files[0].bytes = u64::MAX;
        list.files.push(list.files[0].clone());
        assert!(BackupList::decode(&list.encode().unwrap()).is_err());
        list.files.truncate(1);
        assert!(BackupList::decode(&list.encode().unwrap()).is_err());
    }

    #[test]
    fn ids_sort_by_time_and_are_checked() {
        let id: BackupId = "20260131T235959123Z-0123abcd".parse().unwrap();
        assert_eq!(id.created().timestamp(), 1_769_903_999);
        assert!(id < BackupId::now());
        assert_eq!(BackupId::now().as_str().parse::<BackupId>().unwrap().as_str().len(), 28);
        let future: BackupId = "29990131T235959123Z-ffffffff".parse().unwrap();
        assert!(BackupId::after(Some(&future)) > future);
        for wrong in
            ["", "x", "20260131T235959123Z", "20260131T235959123Z-0123ABCD", "../a-01234567"]
        {
            assert!(wrong.parse::<BackupId>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(BackupList::decode(&bytes).is_err());
        }
    }
}
