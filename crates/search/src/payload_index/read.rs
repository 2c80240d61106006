//! Reads of an open payload index: its bytes, bitmaps, dictionary blocks and rows.

use std::borrow::Cow;

use base::{Error, Result};
use coarse::RowSet;
use roaring::RoaringBitmap;
use storage::Sealed;

use super::directory::{
    BitmapPlace, DictionaryBlock, DirectoryPlace, FieldDirectory, IndexDirectory, TRAILER_BYTES,
    decode_trailer,
};
use super::key::{KeyRef, decode_number, is_before};
use super::prefix;
use super::{DIRECTORY_BYTES_MAX, GAP_BYTES_MAX, IndexedFieldInfo, KINDS, READ_BYTES_MAX};
use crate::filter::is_indexable;
use crate::points::RESERVED_KEY;
use crate::segment::index_section::IndexSection;

/// Payload index of an open segment.
pub(crate) struct PayloadIndex {
    section: IndexSection,
    directory: IndexDirectory,
}

/// Field under a path.
pub(super) enum FieldLookup<'a> {
    /// With an index. `elements_only` is true if the path stands for elements of lists only. Rows
    /// with a value outside of a list, or with a list in a list, are then undecided.
    Indexed { field: &'a FieldDirectory, elements_only: bool },
    /// No row has a value or null there.
    Absent,
    /// Without an index, for this reason.
    Unindexed(Cow<'a, str>),
}

/// Entry of a dictionary block.
#[derive(Clone, Copy, Debug)]
pub(super) struct DictionaryEntry<'a> {
    pub(super) key: KeyRef<'a>,
    /// Position of its first row in the field's list.
    pub(super) position: u64,
    /// Number of its rows.
    pub(super) count: u64,
}

/// Piece of a field's list of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowPiece {
    pub(super) position: u64,
    pub(super) count: u64,
}

impl PayloadIndex {
    /// Returns the bytes of the directory, which [`PayloadIndex::open`] reads.
    ///
    /// # Errors
    /// `DataLoss` if the section is damaged. Otherwise the error of the medium.
    pub(crate) fn directory_bytes(file: &dyn Sealed, section: &IndexSection) -> Result<u64> {
        PayloadIndex::locate(file, section).map(|place| place.bytes)
    }

    /// Returns the place of the directory, after a check that it fits the section.
    fn locate(file: &dyn Sealed, section: &IndexSection) -> Result<DirectoryPlace> {
        let odd = || Error::data_loss("the payload index is cut off");
        let end = section.bytes().checked_sub(TRAILER_BYTES).ok_or_else(odd)?;
        let mut trailer = Vec::new();
        section.read_once(file, end, TRAILER_BYTES, &mut trailer)?;
        let place = decode_trailer(&trailer)?;
        let fits = place.offset.checked_add(place.bytes) == Some(end)
            && place.bytes <= DIRECTORY_BYTES_MAX as u64;
        if fits { Ok(place) } else { Err(odd()) }
    }

    /// Opens the index of a segment of `rows` rows.
    ///
    /// # Errors
    /// `DataLoss` if the section is damaged. Otherwise the error of the medium.
    pub(crate) fn open(
        file: &dyn Sealed,
        section: IndexSection,
        rows: u32,
    ) -> Result<PayloadIndex> {
        let DirectoryPlace { offset, bytes } = PayloadIndex::locate(file, &section)?;
        let start = offset.saturating_sub(prefix::TRAILER_BYTES);
        let mut read = Vec::new();
        section.read_once(file, start, offset - start + bytes, &mut read)?;
        let (trailer, directory) = read.split_at((offset - start) as usize);
        let mut directory = IndexDirectory::decode(directory, offset)?;
        if directory.rows != rows {
            return Err(Error::data_loss("the payload index belongs to another segment"));
        }
        if let Some(places) = prefix::decode_trailer(trailer, offset) {
            let mut bytes = Vec::new();
            section.read_once(file, places, start - places, &mut bytes)?;
            directory.decode_prefixes(&bytes, places)?;
        }
        Ok(PayloadIndex { section, directory })
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.directory.memory_bytes() + self.section.memory_bytes()
    }

    /// Returns its bytes in the segment.
    pub(crate) fn section(&self) -> &IndexSection {
        &self.section
    }

    /// Returns the fields, with and without an index.
    pub(crate) fn fields(&self) -> Vec<IndexedFieldInfo> {
        let unindexed = self.directory.unindexed.iter().map(|field| IndexedFieldInfo {
            path: field.path.clone(),
            rows: 0,
            values: [0; KINDS],
            unindexed: field.reason.clone(),
        });
        self.directory.fields.iter().map(FieldDirectory::info).chain(unindexed).collect()
    }

    /// Returns true if it has the values under `path`, or knows that there are none.
    pub(crate) fn covers(&self, path: &str) -> bool {
        !matches!(self.field(path), FieldLookup::Unindexed(_))
    }

    /// Counts the rows of `allow` with a value under `path`. Returns `None` if the index does not
    /// have that information.
    ///
    /// # Errors
    /// As [`PayloadIndex::bitmap`].
    pub(crate) fn present(
        &self,
        file: &dyn Sealed,
        path: &str,
        allow: Option<&RowSet>,
    ) -> Result<Option<u64>> {
        let FieldLookup::Indexed { field, elements_only: false } = self.field(path) else {
            return Ok(None);
        };
        let place = &field.bitmaps.present;
        let Some(allow) = allow else { return Ok(Some(place.count)) };
        let mut rows = self.bitmap(file, place)?;
        rows.intersect(allow);
        Ok(Some(rows.count().into()))
    }

    /// Returns the bytes of the file that hold it.
    #[cfg(test)]
    pub(crate) fn file_range(&self) -> std::ops::Range<u64> {
        self.section.file_range()
    }

    pub(super) fn rows(&self) -> u32 {
        self.directory.rows
    }

    /// Returns the field under `path`, a path of a condition.
    pub(super) fn field(&self, path: &str) -> FieldLookup<'_> {
        if path == RESERVED_KEY || !is_indexable(path) {
            return FieldLookup::Unindexed("such names have none".into());
        }
        let (path, elements_only) = path.strip_suffix("[]").map_or((path, false), |it| (it, true));
        let IndexDirectory { fields, unindexed, complete, .. } = &self.directory;
        if let Ok(at) = fields.binary_search_by(|field| (*field.path).cmp(path)) {
            return FieldLookup::Indexed { field: &fields[at], elements_only };
        }
        match unindexed.iter().find(|field| field.path == path) {
            Some(field) => FieldLookup::Unindexed(field.reason.as_str().into()),
            None if *complete => FieldLookup::Absent,
            None => FieldLookup::Unindexed("the segment has too many fields to index all".into()),
        }
    }

    /// Returns the rows of a bitmap.
    ///
    /// # Errors
    /// `DataLoss` if its bytes are damaged. Otherwise the error of the medium.
    pub(super) fn bitmap(&self, file: &dyn Sealed, place: &BitmapPlace) -> Result<RowSet> {
        let rows = self.directory.rows;
        let mut set = RowSet::none(rows);
        self.add_bitmap(file, place, &mut set)?;
        Ok(set)
    }

    /// Adds the rows of a bitmap to `set`.
    ///
    /// # Errors
    /// As [`PayloadIndex::bitmap`].
    pub(super) fn add_bitmap(
        &self,
        file: &dyn Sealed,
        place: &BitmapPlace,
        set: &mut RowSet,
    ) -> Result<()> {
        match place.count {
            0 => {}
            count if count == u64::from(self.directory.rows) => {
                *set = RowSet::all(self.directory.rows);
            }
            _ => {
                let mut bytes = Vec::new();
                self.section.read(file, place.offset, place.bytes, &mut bytes)?;
                let bitmap = RoaringBitmap::deserialize_from(&bytes[..])
                    .map_err(|error| Error::data_loss("a bitmap of rows").caused_by(error))?;
                set.extend(&bitmap);
            }
        }
        Ok(())
    }

    /// Calls `each` with the entries of some blocks, in order. Neighbouring blocks are read
    /// together.
    ///
    /// # Errors
    /// `DataLoss` if their bytes are damaged. Otherwise the error of the medium or of `each`.
    pub(super) fn entries(
        &self,
        file: &dyn Sealed,
        blocks: &[&DictionaryBlock],
        each: &mut dyn FnMut(DictionaryEntry<'_>) -> Result<()>,
    ) -> Result<()> {
        let pieces: Vec<BytePiece> =
            blocks.iter().map(|it| BytePiece { offset: it.offset, bytes: it.bytes }).collect();
        self.pieces(file, &pieces, &mut |at, mut bytes| {
            let mut position = blocks[at].position;
            while !bytes.is_empty() {
                let entry = KeyRef::decode(&mut bytes).zip(decode_number(&mut bytes));
                let (key, count) =
                    entry.ok_or_else(|| Error::data_loss("a block of values is wrong"))?;
                each(DictionaryEntry { key, position, count })?;
                position = position.saturating_add(count);
            }
            Ok(())
        })
    }

    /// Calls `each` with the rows of some pieces of a field's list, with the index of the piece.
    ///
    /// # Errors
    /// As [`PayloadIndex::entries`].
    pub(super) fn listed_rows(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        pieces: &[RowPiece],
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut owners = Vec::with_capacity(pieces.len());
        let mut read = Vec::with_capacity(pieces.len());
        for (owner, piece) in pieces.iter().enumerate() {
            let end = piece.position.saturating_add(piece.count);
            if end > field.postings {
                return Err(Error::data_loss("a value has rows beyond the end of the list"));
            }
            let mut at = piece.position * 4;
            while at < end * 4 {
                let bytes = (end * 4 - at).min(READ_BYTES_MAX as u64);
                read.push(BytePiece { offset: field.rows_offset + at, bytes });
                owners.push(owner);
                at += bytes;
            }
        }
        self.pieces(file, &read, &mut |at, bytes| each(owners[at], bytes))
    }

    /// Adds the rows of some pieces of a field's list to `set`.
    ///
    /// # Errors
    /// As [`PayloadIndex::entries`].
    pub(super) fn add_rows(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        pieces: &[RowPiece],
        set: &mut RowSet,
    ) -> Result<()> {
        let mut adder = set.adder();
        self.listed_rows(file, field, pieces, &mut |_, bytes| {
            adder.add(rows_of(bytes));
            Ok(())
        })
    }

    /// Reads pieces of the section in ascending order, near ones together.
    fn pieces(
        &self,
        file: &dyn Sealed,
        pieces: &[BytePiece],
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = Vec::new();
        let mut at = 0;
        while let Some(first) = pieces.get(at) {
            let start = first.offset;
            let mut end = start + first.bytes;
            let mut next = at + 1;
            while let Some(piece) = pieces.get(next)
                && piece.offset >= end
                && piece.offset - end <= GAP_BYTES_MAX
                && piece.offset + piece.bytes - start <= READ_BYTES_MAX as u64
            {
                end = piece.offset + piece.bytes;
                next += 1;
            }
            self.section.read(file, start, end - start, &mut buffer)?;
            for (number, piece) in (at..).zip(&pieces[at..next]) {
                let from = (piece.offset - start) as usize;
                each(number, &buffer[from..from + piece.bytes as usize])?;
            }
            at = next;
        }
        Ok(())
    }

    /// Returns a position in the field's list. If `after` is false, it is that of the first value
    /// that is not before `bound`. Otherwise it is that of the first value after `bound`.
    ///
    /// # Errors
    /// As [`PayloadIndex::entries`].
    pub(super) fn position(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        bound: KeyRef<'_>,
        after: bool,
    ) -> Result<u64> {
        let above = field.blocks.partition_point(|it| is_before(it.first.as_ref(), bound, after));
        let Some(block) = above.checked_sub(1).and_then(|at| field.blocks.get(at)) else {
            return Ok(0);
        };
        let mut position = block.position;
        self.entries(file, &[block], &mut |entry| {
            if is_before(entry.key, bound, after) {
                position = entry.position.saturating_add(entry.count);
            }
            Ok(())
        })?;
        Ok(position)
    }
}

/// Piece of the section.
#[derive(Clone, Copy)]
struct BytePiece {
    offset: u64,
    bytes: u64,
}

/// Returns the rows of a piece of a list.
pub(super) fn rows_of(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row))
}

impl std::fmt::Debug for PayloadIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadIndex").field("fields", &self.directory.fields.len()).finish()
    }
}
