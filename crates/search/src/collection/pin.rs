//! Pinned files: the files of one published state, which stay until a backup or a copy has read
//! them. Reads and writes of the collection continue meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use super::inner::Collection;
use super::manifest::{ManifestContent, SegmentEntry};
use super::names::{COPIED_NUMBER_MAX, CollectionFile};
use super::pinned_reader::{PinnedReader, check_deletes};
use super::state::SegmentContent;

/// Minimum unflushed bytes that are flushed before files are pinned. Fewer bytes are copied faster
/// as a log than as a segment.
const FLUSH_BYTES_MIN: u64 = 1 << 20;
/// Longest wait for that flush. Then its changes are copied as a log.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(20);

/// Files of one published state of a collection. They stay until this is dropped.
pub struct PinnedFiles<'a> {
    collection: &'a Collection,
    content: ManifestContent,
    files: Vec<PinnedFile>,
}

/// A file of a pinned state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedFile {
    /// Name in the collection's directory.
    pub name: String,
    /// Length in bytes. A log may be longer. The rest belongs to a later state.
    pub bytes: u64,
    /// Content of the file.
    pub role: FileRole,
}

/// Content of a file of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRole {
    /// Segment with this UUID, in hexadecimal digits. Segments of the same UUID are equal.
    Segment {
        /// UUID.
        uuid: String,
    },
    /// Deleted rows of a segment. No other file of the collection ever has the name.
    Deletes,
    /// Changes that no segment has. The file grows.
    Log,
}

impl Collection {
    /// Freezes the memtable if it is large, and waits a limited time until the flush threads have
    /// flushed it. A backup then copies a segment, and the next one does not copy it again.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn flush_before_pin(&self) -> Result<()> {
        if self.unflushed_bytes() < FLUSH_BYTES_MIN {
            return Ok(());
        }
        self.freeze()?;
        let deadline = Instant::now() + FLUSH_WAIT_MAX;
        loop {
            let seen = self.events.count();
            if self.state().memtables.len() <= 1 || !self.events.wait_past(seen, deadline) {
                return Ok(());
            }
        }
    }

    /// Publishes the current state and pins its files.
    ///
    /// Changes that are not flushed are in the logs among the files. The logs are pinned at a
    /// length that has at least the changes of the deletes files.
    ///
    /// # Errors
    /// `Unavailable` while segments are being opened, `FailedPrecondition` if the collection is
    /// damaged. Otherwise the error of the medium.
    pub fn pin(&self) -> Result<PinnedFiles<'_>> {
        self.check_whole()?;
        self.publish()?;
        // No file is removed while this lock is held.
        let publisher = self.publisher.lock();
        let listed = publisher.listed.clone();
        let mut content =
            listed.ok_or_else(|| Error::internal("a list was published and is not known"))?;
        content.forget_damage();
        let lengths: BTreeMap<String, u64> = self.medium.list()?.into_iter().collect();
        let files = pinned_files(&content, &lengths)?;
        let mut pins = self.files.pins.lock();
        for file in &files {
            *pins.entry(file.name.clone()).or_insert(0) += 1;
        }
        Ok(PinnedFiles { collection: self, content, files })
    }

    /// Checks that all files can be read, because a copy must not silently lack points.
    fn check_whole(&self) -> Result<()> {
        if let Some((log, reasons)) = self.health.lock().damaged_logs.iter().next() {
            let name = CollectionFile::Log(*log).name();
            let why = reasons.first().map_or("", String::as_str);
            return Err(damaged(&name, why));
        }
        for slot in &self.state().segments {
            let SegmentContent::Closed(closed) = &slot.content else { continue };
            return Err(match &closed.reason {
                Some(reason) => damaged(&reason.file, &reason.reason),
                None => Error::unavailable("a segment is still being opened; try again"),
            });
        }
        Ok(())
    }

    /// Returns true if a backup or a copy still reads the file.
    pub(super) fn is_pinned(&self, name: &str) -> bool {
        self.files.pins.lock().contains_key(name)
    }
}

fn damaged(name: &str, reason: &str) -> Error {
    Error::precondition(format!(
        "{name} is damaged ({reason}), so a copy would lack points; restore the collection from an \
         earlier backup, or drop the damaged part with DELETE /collections/NAME/segments/{name}"
    ))
}

/// Returns the files that `content` names.
fn pinned_files(
    content: &ManifestContent,
    lengths: &BTreeMap<String, u64>,
) -> Result<Vec<PinnedFile>> {
    let mut files = Vec::new();
    let mut add = |file: CollectionFile, role: FileRole| {
        let name = file.name();
        let bytes = lengths.get(&name).copied();
        let bytes = bytes.ok_or_else(|| Error::data_loss(format!("{name} is missing")))?;
        files.push(PinnedFile { name, bytes, role });
        Ok::<(), Error>(())
    };
    for entry in &content.segments {
        let SegmentEntry { number, uuid, deletes, .. } = entry;
        add(CollectionFile::Segment(*number), FileRole::Segment { uuid: uuid.clone() })?;
        if let Some(number) = deletes {
            add(CollectionFile::Deletes(*number), FileRole::Deletes)?;
        }
        for number in entry.pending_deletes.iter().chain(&entry.unread_pending) {
            add(CollectionFile::PendingDeletes(*number), FileRole::Deletes)?;
        }
    }
    for log in &content.logs {
        let name = CollectionFile::Log(log.number).name();
        files.push(PinnedFile { name, bytes: log.bytes, role: FileRole::Log });
    }
    Ok(files)
}

impl PinnedFiles<'_> {
    /// Returns the list of the files, which [`crate::registry::RestoringCollection::finish`] takes.
    ///
    /// # Errors
    /// `Internal` if it cannot be written.
    pub fn list(&self) -> Result<Vec<u8>> {
        self.content.encode()
    }

    /// Returns the pinned files, which stay until this is dropped.
    pub fn files(&self) -> &[PinnedFile] {
        &self.files
    }

    /// Opens a file of [`PinnedFiles::files`]. Deletes are checked here, segments while read.
    ///
    /// # Errors
    /// The error of the medium, for example because the collection was removed. `DataLoss` if the
    /// file is shorter than it was, or damaged.
    pub fn open(&self, file: &PinnedFile) -> Result<PinnedReader<'_>> {
        match &file.role {
            FileRole::Segment { .. } => {
                let opened = self.collection.medium.open(&file.name)?;
                if opened.bytes() != file.bytes {
                    return Err(truncated(file, opened.bytes()));
                }
                let name = file.name.clone();
                PinnedReader::of_segment(self.collection, opened, name, self.segment_of(file))
            }
            FileRole::Deletes => {
                let bytes = self.collection.medium.load(&file.name)?;
                if bytes.len() as u64 != file.bytes {
                    return Err(truncated(file, bytes.len() as u64));
                }
                check_deletes(self.collection, &file.name, &bytes, self.segment_of(file))?;
                Ok(PinnedReader::of_bytes(bytes))
            }
            FileRole::Log => {
                let mut bytes = self.collection.medium.load(&file.name)?;
                if (bytes.len() as u64) < file.bytes {
                    return Err(truncated(file, bytes.len() as u64));
                }
                bytes.truncate(usize::try_from(file.bytes).unwrap_or(usize::MAX));
                Ok(PinnedReader::of_bytes(bytes))
            }
        }
    }

    /// Returns the number of the segment that a file belongs to.
    fn segment_of(&self, file: &PinnedFile) -> Option<u64> {
        let belongs = |entry: &&SegmentEntry| match CollectionFile::of(&file.name) {
            Some(CollectionFile::Segment(number)) => entry.number == number,
            Some(CollectionFile::Deletes(number)) => entry.deletes == Some(number),
            _ => false,
        };
        self.content.segments.iter().find(belongs).map(|entry| entry.number)
    }
}

fn truncated(file: &PinnedFile, bytes: u64) -> Error {
    Error::data_loss(format!("{} has {bytes} bytes, fewer than it had", file.name))
}

impl Drop for PinnedFiles<'_> {
    fn drop(&mut self) {
        {
            let mut pins = self.collection.files.pins.lock();
            for file in &self.files {
                if let Some(count) = pins.get_mut(&file.name) {
                    *count -= 1;
                    if *count == 0 {
                        pins.remove(&file.name);
                    }
                }
            }
        }
        // Merged segments were kept for this reader.
        let publisher = self.collection.publisher.lock();
        // After a failed publication there are files that this list does not name. The next
        // publication removes them.
        let is_unpublished = self.collection.files.unpublished.load(Ordering::Relaxed);
        if let Some(listed) = publisher.listed.as_ref().filter(|_| !is_unpublished) {
            self.collection.remove_leftovers(listed);
        }
    }
}

/// Checks the list of a copy, and makes the files of `medium` a collection of `shape`.
///
/// # Errors
/// `DataLoss` for a damaged list, a missing file or file numbers that are too high.
/// `FailedPrecondition` for the list of a newer program or of another shape. Otherwise the error of
/// the medium.
pub(crate) fn publish_copy(
    medium: &Arc<dyn storage::Medium>,
    list: &[u8],
    shape: &super::CollectionShape,
) -> Result<()> {
    let content = ManifestContent::decode(list)?;
    if content.shape() != *shape {
        return Err(Error::precondition(format!(
            "the list is of {:?}, and the settings are of {shape:?}",
            content.shape()
        )));
    }
    let lengths: BTreeMap<String, u64> = medium.list()?.into_iter().collect();
    check_numbers(&content, &lengths)?;
    for file in pinned_files(&content, &lengths)? {
        let bytes = lengths.get(&file.name).copied().unwrap_or(0);
        if bytes != file.bytes {
            let PinnedFile { name, bytes: listed, .. } = file;
            return Err(Error::data_loss(format!("{name} has {bytes} bytes, and not {listed}")));
        }
    }
    let (mut watermark, _) = storage::watermark::Watermark::open(medium)?;
    watermark.record(content.logs.iter().map(|log| (log.number, log.mark())).collect())?;
    let (mut manifest, found) = storage::manifest::Manifest::open(medium)?;
    if found.is_some() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            "the directory holds a collection already",
        ));
    }
    // Twice, so that both slots name the files.
    manifest.publish(list)?;
    manifest.publish(list)?;
    medium.persist_names()
}

/// Checks that a copy leaves numbers for new files. Another server chose its numbers.
///
/// # Errors
/// `DataLoss`.
fn check_numbers(content: &ManifestContent, lengths: &BTreeMap<String, u64>) -> Result<()> {
    let files = lengths.keys().filter_map(|name| CollectionFile::of(name));
    let logs = content.logs.iter().map(|log| log.number);
    let numbers = files.map(CollectionFile::number).chain(logs);
    let highest = numbers.chain([content.first_log, content.next]).max().unwrap_or(0);
    if highest > COPIED_NUMBER_MAX {
        return Err(Error::data_loss(format!(
            "the copy has the file number {highest}, and {COPIED_NUMBER_MAX} is the highest of a copy"
        )));
    }
    Ok(())
}

/// Returns true for a name that a file of a collection may have in a copy.
pub(crate) fn is_file_name(name: &str) -> bool {
    CollectionFile::of(name).is_some()
}

#[cfg(test)]
mod tests {
    use coarse::Metric;
    use storage::{Medium, UringMedium};

    use super::*;
    use crate::collection::CollectionShape;
    use crate::segment::VectorEncoding;

    #[test]
    fn a_copy_leaves_numbers_for_new_files() {
        let shape =
            CollectionShape { dims: 3, metric: Metric::Dot, encoding: VectorEncoding::Bf16 };
        let copied = |first_log, next| {
            let root = tempfile::tempdir().unwrap();
            let medium: Arc<dyn Medium> =
                Arc::new(UringMedium::plain(root.path().to_owned()).unwrap());
            let content = ManifestContent::new(&shape, first_log, next, Vec::new());
            publish_copy(&medium, &content.encode().unwrap(), &shape)
        };
        assert!(copied(COPIED_NUMBER_MAX, COPIED_NUMBER_MAX).is_ok());
        for (first_log, next) in [(0, COPIED_NUMBER_MAX + 1), (u64::MAX, 0)] {
            assert_eq!(copied(first_log, next).unwrap_err().kind(), ErrorKind::DataLoss);
        }
    }
}
