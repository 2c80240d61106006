//! Records of removals on disk: of collections, and of images whose originals could not be removed.
//! Each names originals that are still to be removed.
//!
//! A record gets its name once it is complete and durable. So a record that cannot be read is
//! damaged. It is set aside, because it may be the only file that names the originals.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::{Error, ErrorKind, Result};
use tempfile::NamedTempFile;

use super::originals::StoredOriginal;

/// Directory of the records, beside the collections. No collection has a name that starts with a
/// dot.
const DIRECTORY: &str = ".removed-collections";
/// Prefix of the file name of a record.
const RECORD_PREFIX: &str = "removal-";
/// Extension of a record that is being written.
const NEW_EXTENSION: &str = "new";
/// Extension of a damaged record, which is kept.
const DAMAGED_EXTENSION: &str = "damaged";
/// Maximum bytes of a record. The keys of its originals are limited, and an escape of JSON takes at
/// most six bytes a byte.
const RECORD_BYTES_MAX: u64 = 2 << 20;
/// Maximum bytes of the originals of one record, with [`ORIGINAL_BYTES`] each.
const ORIGINALS_BYTES_MAX: usize = 256 << 10;
/// Bytes of an original in a record, in addition to its key.
const ORIGINAL_BYTES: usize = 64;
/// Maximum files of the directory that one start checks.
const FILES_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct RemovalRecord {
    /// Directory of its originals.
    pub(crate) space: String,
    /// Name of the store of the originals; `None` means that of the server.
    pub(crate) store: Option<String>,
    /// Time of the removal by the clock of the store; `None` if it is not known yet.
    pub(crate) until: Option<SystemTime>,
    /// Originals that could not be removed after their images were deleted or refused. `None` means
    /// all originals of a removed collection that were written until `until`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) originals: Option<BTreeSet<StoredOriginal>>,
}

impl RemovalRecord {
    /// Adds originals up to the maximum. Returns the number of originals that were not added.
    pub(crate) fn add_originals(&mut self, more: &[StoredOriginal]) -> usize {
        let originals = self.originals.get_or_insert_default();
        let bytes_of = |original: &StoredOriginal| original.key.len() + ORIGINAL_BYTES;
        let mut bytes: usize = originals.iter().map(bytes_of).sum();
        let mut left = 0;
        for original in more {
            if originals.contains(original) {
                continue;
            }
            if bytes + bytes_of(original) > ORIGINALS_BYTES_MAX {
                left += 1;
                continue;
            }
            bytes += bytes_of(original);
            originals.insert(original.clone());
        }
        left
    }
}

/// Record that the last process has left.
#[derive(Debug)]
pub(crate) struct LeftRecord {
    pub(crate) record: RemovalRecord,
    pub(crate) file: PathBuf,
}

/// Records that the last process has left.
#[derive(Debug, Default)]
pub(crate) struct LeftRecords {
    pub(crate) records: Vec<LeftRecord>,
    /// Number of damaged records, those of earlier starts included.
    pub(crate) damaged: u64,
}

/// Store of the records of removals, in the directory of the collections.
pub(crate) struct RemovalRecords {
    /// Directory of the records. If it is `None`, no records are kept.
    directory: Option<PathBuf>,
}

impl RemovalRecords {
    /// Creates the view of the records in `collections`, the directory of the collections.
    pub(crate) fn new(collections: Option<&Path>) -> RemovalRecords {
        RemovalRecords { directory: collections.map(|directory| directory.join(DIRECTORY)) }
    }

    /// Writes a record, which is durable when this returns. Returns its file.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub(crate) fn write(&self, record: &RemovalRecord) -> Result<Option<PathBuf>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let failed = |error: IoError| Error::io(directory, &error);
        os::private::create_dir_all(directory).map_err(failed)?;
        if let Some(collections) = directory.parent() {
            os::sync_directory(collections)?;
        }
        let new = new_file(directory, record)?;
        let file = new.path().with_extension("");
        new.persist_noclobber(&file).map_err(|error| failed(error.error))?;
        // The caller does not know this record, which would have no time at the next start.
        os::sync_directory(directory).inspect_err(|_| remove_record(&file))?;
        Ok(Some(file))
    }

    /// Replaces the record in `file`. The new one is durable when this returns.
    ///
    /// # Errors
    /// Returns the errors of the file system. The old record then stays.
    pub(crate) fn replace(&self, file: &Path, record: &RemovalRecord) -> Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let new = new_file(directory, record)?;
        new.persist(file).map_err(|error| Error::io(file, &error.error))?;
        os::sync_directory(directory)
    }

    /// Reads the records that the last process has left, at most `count_max`. Leaves the others to
    /// the next start. Sets damaged records aside.
    ///
    /// # Errors
    /// Returns the errors of reading the directory. An error of one record is logged.
    pub(crate) fn read(&self, count_max: usize) -> Result<LeftRecords> {
        let mut left = LeftRecords::default();
        let Some(directory) = &self.directory else { return Ok(left) };
        for file in files(directory)? {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(RECORD_PREFIX) {
                continue;
            }
            match file.extension().and_then(|extension| extension.to_str()) {
                // The process ended before it removed the collection or replaced a record.
                Some(NEW_EXTENSION) => remove_record(&file),
                Some(DAMAGED_EXTENSION) => {
                    warn_of_damage(&file);
                    left.damaged += 1;
                }
                _ if left.records.len() < count_max => left.read_one(file),
                _ => tracing::warn!(
                    path = %file.display(),
                    "the originals of a removed collection stay until the next start: {count_max} removals wait"
                ),
            }
        }
        Ok(left)
    }
}

impl LeftRecords {
    /// Adds the record in `file`. Sets a damaged one aside.
    fn read_one(&mut self, file: PathBuf) {
        match read_record(&file) {
            Ok(record) => self.records.push(LeftRecord { record, file }),
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                tracing::warn!(%error, "a record of a removed collection is damaged");
                set_aside(&file);
                self.damaged += 1;
            }
            Err(error) => {
                tracing::warn!(%error, "originals of a removed collection stay until the next start");
            }
        }
    }
}

/// Removes a record, durably. After a power loss, it would remove originals that were copied back
/// with their old times. If the record stays, the next start checks the originals again.
pub(crate) fn remove_record(file: &Path) {
    let removed = match std::fs::remove_file(file) {
        Ok(()) => file.parent().map_or(Ok(()), os::sync_directory),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(file, &error)),
    };
    if let Err(error) = removed {
        tracing::warn!(
            %error,
            path = %file.display(),
            "the record of a removal stays or may return: before the next start, remove it, or copy no originals back"
        );
    }
}

/// Writes a record under a temporary name in `directory`. Its bytes are durable, its name is not.
fn new_file(directory: &Path, record: &RemovalRecord) -> Result<NamedTempFile> {
    let failed = |error: IoError| Error::io(directory, &error);
    let text = serde_json::to_vec(record)
        .map_err(|error| Error::internal("the record of a removal").caused_by(error))?;
    let mut file = tempfile::Builder::new()
        .prefix(RECORD_PREFIX)
        .suffix(&format!(".{NEW_EXTENSION}"))
        .tempfile_in(directory)
        .map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    Ok(file)
}

/// Returns the files of `directory`, at most [`FILES_MAX`]; none if it does not exist. Logs that
/// there may be more.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: IoError| Error::io(directory, &error);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let paths = entries.take(FILES_MAX).map(|entry| entry.map(|entry| entry.path()));
    let files = paths.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    if files.len() == FILES_MAX {
        tracing::warn!(
            path = %directory.display(),
            "at most {FILES_MAX} records of removals are read at a start: remove damaged ones as docs/images.md says"
        );
    }
    Ok(files)
}

/// Reads a record.
///
/// # Errors
/// `DataLoss` for a damaged one; the errors of the file system.
fn read_record(file: &Path) -> Result<RemovalRecord> {
    let mut text = Vec::new();
    let opened = File::open(file).map_err(|error| Error::io(file, &error))?;
    let read = opened.take(RECORD_BYTES_MAX).read_to_end(&mut text);
    read.map_err(|error| Error::io(file, &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::data_loss(file.display().to_string()).caused_by(error))
}

/// Renames a damaged record, so that it stays and no start reads it.
fn set_aside(file: &Path) {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{DAMAGED_EXTENSION}"));
    let aside = PathBuf::from(name);
    match std::fs::rename(file, &aside) {
        Ok(()) => warn_of_damage(&aside),
        Err(error) => {
            tracing::warn!(%error, path = %file.display(), "a damaged record cannot be renamed; the next start reads it again");
        }
    }
}

fn warn_of_damage(file: &Path) {
    tracing::warn!(
        path = %file.display(),
        "originals of a removed collection stay, because its record is damaged: remove them as docs/images.md says, then remove this file"
    );
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use search::points::PointId;

    use super::*;

    /// Returns the record of a removed collection.
    pub(crate) fn record() -> RemovalRecord {
        let until = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let store = Some(".originals".to_owned());
        let space = "photos".to_owned();
        RemovalRecord { space, store, until: Some(until), originals: None }
    }

    fn original(number: u8, key: String) -> StoredOriginal {
        StoredOriginal { id: PointId::Uuid([number; 16]), key }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory.join(DIRECTORY)).unwrap();
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    #[test]
    fn a_damaged_record_is_set_aside_and_counted_at_each_start() {
        let dir = tempfile::tempdir().unwrap();
        let records = RemovalRecords::new(Some(dir.path()));
        let file = records.write(&record()).unwrap().unwrap();
        for (name, text) in [("removal-cut", r#"{"space":"pho"#), ("removal-empty", "")] {
            std::fs::write(file.with_file_name(name), text).unwrap();
        }
        for _ in 0..2 {
            let left = records.read(9).unwrap();
            assert_eq!((left.records.len(), left.damaged), (1, 2));
            let kept = names(dir.path());
            assert!(kept.contains(&"removal-cut.damaged".to_owned()), "{kept:?}");
            assert!(kept.contains(&"removal-empty.damaged".to_owned()), "{kept:?}");
        }
        remove_record(&file);
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn a_record_that_was_being_written_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = RemovalRecords::new(Some(dir.path()));
        let file = records.write(&record()).unwrap().unwrap();
        std::fs::write(file.with_file_name("removal-1.new"), r#"{"sp"#).unwrap();
        let left = records.read(9).unwrap();
        assert_eq!((left.records.len(), left.damaged), (1, 0));
        assert_eq!(left.records[0].record, record());
        assert_eq!(names(dir.path()).len(), 1);
    }

    #[test]
    fn a_record_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let records = RemovalRecords::new(Some(dir.path()));
        let file = records.write(&RemovalRecord { until: None, ..record() }).unwrap().unwrap();
        records.replace(&file, &record()).unwrap();
        let left = records.read(9).unwrap().records;
        assert_eq!((left.len(), &left[0].record, &left[0].file), (1, &record(), &file));
    }

    #[test]
    fn a_record_by_hand_needs_only_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let records = RemovalRecords::new(Some(dir.path()));
        let file = records.write(&record()).unwrap().unwrap();
        remove_record(&file);
        std::fs::write(file.with_file_name("removal-photos"), r#"{"space": "photos"}"#).unwrap();
        let left = records.read(9).unwrap();
        let record = RemovalRecord { store: None, until: None, ..record() };
        assert_eq!(left.records[0].record, record);
    }

    #[test]
    fn a_record_names_its_originals_up_to_the_maximum() {
        let dir = tempfile::tempdir().unwrap();
        let records = RemovalRecords::new(Some(dir.path()));
        let mut record = RemovalRecord { until: None, ..record() };
        // Escapes make the record longer than the keys.
        let long = |number| original(number, "\u{1}".repeat(100 << 10));
        let three: Vec<StoredOriginal> = (1..4).map(long).collect();
        assert_eq!(record.add_originals(&three), 1);
        assert_eq!(record.add_originals(&three), 1, "the others are in the record already");
        assert_eq!(record.add_originals(&[original(4, "photos/04.png".to_owned())]), 0);
        records.write(&record).unwrap();
        let left = records.read(9).unwrap();
        assert_eq!((left.damaged, left.records.len()), (0, 1));
        assert_eq!(left.records[0].record, record);
        assert_eq!(record.originals.map(|originals| originals.len()), Some(3));
    }

    #[test]
    fn records_above_the_maximum_stay_for_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let records = RemovalRecords::new(Some(dir.path()));
        for _ in 0..3 {
            records.write(&record()).unwrap();
        }
        assert_eq!(records.read(2).unwrap().records.len(), 2);
        assert_eq!(names(dir.path()).len(), 3);
    }
}
