//! Reader of a pinned file. It checks what it reads, so that damage of the disk does not get into a
//! copy. The damage is recorded in the open segment.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use storage::Sealed;
use storage::page::PAGE_BYTES;

use super::inner::Collection;
use super::state::SegmentSlot;
use crate::deletes::DeletesFile;
use crate::segment::{SegmentFileCheck, SegmentFileDamage};

/// Reader of a pinned file. A segment is read in order, from its start to its end.
pub struct PinnedReader<'a> {
    source: PinnedSource<'a>,
    bytes: u64,
}

/// Source of a pinned file.
enum PinnedSource<'a> {
    Segment(Box<CheckedSegment<'a>>),
    Memory(Vec<u8>),
}

/// Segment's file that is read in order.
struct CheckedSegment<'a> {
    collection: &'a Collection,
    file: Arc<dyn Sealed>,
    name: String,
    /// Number of the segment.
    number: Option<u64>,
    check: Mutex<SegmentFileCheck>,
}

impl<'a> PinnedReader<'a> {
    /// Creates the reader of the segment `number` in `file`, which has the name `name`.
    ///
    /// # Errors
    /// `DataLoss` if the superblock or the checksums are damaged. Otherwise the error of the
    /// medium.
    pub(super) fn of_segment(
        collection: &'a Collection,
        file: Arc<dyn Sealed>,
        name: String,
        number: Option<u64>,
    ) -> Result<PinnedReader<'a>> {
        let check = SegmentFileCheck::begin(&*file).map_err(|error| match error.kind() {
            ErrorKind::DataLoss => {
                let reason = error.message().to_owned();
                let damage = SegmentFileDamage { page: None, reason, loses_data: false };
                record(collection, number, &damage);
                damage_error(&name, &damage).context(&name)
            }
            _ => error.context(&name),
        })?;
        let bytes = file.bytes();
        let check = Mutex::new(check);
        let segment = CheckedSegment { collection, file, name, number, check };
        Ok(PinnedReader { source: PinnedSource::Segment(Box::new(segment)), bytes })
    }

    /// Creates the reader of a file in memory.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> PinnedReader<'a> {
        PinnedReader { bytes: bytes.len() as u64, source: PinnedSource::Memory(bytes) }
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `buffer` from `offset` on. In a segment, `offset` is the end of the last read.
    ///
    /// # Errors
    /// `DataLoss` past the end, if the medium has lost the bytes, or with the page of a segment
    /// that does not match its checksum. `Internal` for a read out of order. Otherwise the error of
    /// the medium.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match &self.source {
            PinnedSource::Segment(segment) => segment.read_at(offset, buffer),
            PinnedSource::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(buffer.len());
                let found = bytes.get(start..end);
                buffer.copy_from_slice(found.ok_or_else(|| {
                    Error::data_loss(format!("the file ends at byte {}", bytes.len()))
                })?);
                Ok(())
            }
        }
    }
}

impl CheckedSegment<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut check = self.check.lock();
        if offset != check.position() {
            return Err(Error::internal(format!(
                "a copy reads byte {offset} of {}, and the next byte is {}",
                self.name,
                check.position()
            )));
        }
        if let Err(error) = self.file.read_at(offset, buffer) {
            return Err(self.read_error(&check, buffer, error));
        }
        let mut checked = check.add(buffer);
        if check.position() == self.file.bytes() {
            checked = checked.and_then(|()| check.finish());
        }
        checked.map_err(|damage| self.damaged(&damage))
    }

    /// Returns the error for a step that could not be read. If the medium has lost bytes, records
    /// the first page that cannot be read.
    fn read_error(&self, check: &SegmentFileCheck, buffer: &mut [u8], error: Error) -> Error {
        if error.kind() != ErrorKind::DataLoss {
            return error;
        }
        let mut offset = check.position();
        for page in buffer.chunks_mut(PAGE_BYTES) {
            if let Err(error) = self.file.read_at(offset, page) {
                let page = offset / PAGE_BYTES as u64;
                return self.damaged(&check.unreadable(page, error.message()));
            }
            offset += page.len() as u64;
        }
        error
    }

    /// Records damage and returns its error.
    fn damaged(&self, damage: &SegmentFileDamage) -> Error {
        record(self.collection, self.number, damage);
        damage_error(&self.name, damage)
    }
}

/// Checks the bytes of the file `name` with deletes of the segment `number`.
///
/// # Errors
/// `DataLoss` that names the file and its damaged page.
pub(super) fn check_deletes(
    collection: &Collection,
    name: &str,
    bytes: &[u8],
    number: Option<u64>,
) -> Result<()> {
    DeletesFile::check_pages(bytes).map_err(|error| {
        let reason = format!("{name}: {}", error.message());
        let damage = SegmentFileDamage { page: None, reason, loses_data: false };
        record(collection, number, &damage);
        damage_error(name, &damage)
    })
}

/// Records damage in the open segment `number`, unless it was merged meanwhile. If data is lost, a
/// node of a cluster then replaces its copy. Otherwise a merge writes the segment again.
fn record(collection: &Collection, number: Option<u64>, damage: &SegmentFileDamage) {
    let state = collection.state();
    let slot = state.segments.iter().find(|slot| Some(slot.number) == number);
    if let Some(view) = slot.and_then(SegmentSlot::view) {
        view.segment.note_copied(damage);
    }
}

/// Returns the error for damage of the file `name`.
fn damage_error(name: &str, damage: &SegmentFileDamage) -> Error {
    let page = damage.page.map_or_else(String::new, |page| format!("page {page}: "));
    let reason = &damage.reason;
    Error::data_loss(if damage.loses_data {
        format!(
            "{page}{reason}; {name} is not copied, because the copy would lack points. Restore the \
             collection from an earlier backup, or copy its points to another collection"
        )
    } else {
        format!(
            "{page}{reason}; {name} is not copied. The points are intact in memory and in other \
             parts of the collection: a merge writes the segment again, so try again later"
        )
    })
}
