//! Payload index of a segment: finds the rows that meet a condition without reading payloads.
//!
//! A flush or merge indexes every field that it sees, up to [`FIELDS_MAX`] paths. For each field
//! the index has a dictionary of values in ascending order and the rows of each value. Frequent
//! values have a roaring bitmap (Lemire et al., "Roaring Bitmaps", 2018). The rows of all other
//! values follow each other in the order of the values, so that a range is one piece of that list.
//! Further bitmaps hold the rows with any value, with null, and with values that the dictionary
//! lacks.
//!
//! A long range is the difference of two bitmaps, which `prefix` has for some places of that list.
//!
//! The directory of fields and the first value of each dictionary block are read when the segment
//! is opened. Everything else stays on the medium and is read and checked page by page.
//!
//! An answer may leave rows undecided (`selection::RowSelection`), and the caller compares their
//! payloads. That happens for fields without an index and for texts longer than [`TEXT_BYTES_MAX`].

mod build;
mod directory;
mod key;
mod order;
mod paths;
mod prefix;
mod read;
mod select;
mod selection;
mod spare;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use build::{PayloadIndexBuilder, memory_bytes};
pub(crate) use key::{ExactNumber, KeyOf, KeyRef};
pub(crate) use order::{OrderKey, OrderPosition, OrderRange, OrderedRowVisitor, OrderedVisit};
pub(crate) use read::PayloadIndex;
pub(crate) use select::{FilterInput, IndexAnswer, select};
pub(crate) use selection::SelectionParts;
pub(crate) use spare::SpareIndexMemory;
#[cfg(test)]
pub(crate) use tests::segment_of_values;
pub(crate) use values::{CountPosition, ValueCounts, ValueVisitor};

/// Parser of foreign bytes, for fuzz targets.
#[doc(hidden)]
pub mod fuzzing {
    use super::directory::IndexDirectory;

    /// Decodes a directory of a section of `section_bytes` and encodes it again.
    ///
    /// # Errors
    /// `DataLoss` if the bytes are not a directory.
    pub fn directory(bytes: &[u8], section_bytes: u64) -> base::Result<Vec<u8>> {
        IndexDirectory::decode(bytes, section_bytes).map(|directory| directory.encode())
    }

    /// Decodes a directory and the places of its bitmaps of ranges, and encodes the places again.
    ///
    /// # Errors
    /// `DataLoss` if the bytes are not a directory with such places.
    pub fn prefixes(directory: &[u8], places: &[u8], section_bytes: u64) -> base::Result<Vec<u8>> {
        let mut directory = IndexDirectory::decode(directory, section_bytes)?;
        directory.decode_prefixes(places, section_bytes)?;
        let mut encoded = directory.encode_prefixes(0);
        encoded.truncate(encoded.len() - super::prefix::TRAILER_BYTES as usize);
        Ok(encoded)
    }
}

/// Maximum indexed paths of a segment. Conditions on further ones read payloads.
pub const FIELDS_MAX: usize = 64;
/// Maximum paths without an index that are named with the reason.
const UNINDEXED_MAX: usize = 256;
/// Maximum bytes of a text in a dictionary. Rows with a longer one are listed apart.
pub const TEXT_BYTES_MAX: usize = 512;
/// Bytes at which a dictionary block ends, while the field has few blocks. A search for a value
/// decodes the block that may have it.
const SMALL_BLOCK_BYTES: usize = 4 << 10;
/// Bytes of the directory that small blocks of a field may take. Directories are in memory.
const SMALL_BLOCKS_DIRECTORY_BYTES: usize = 128 << 10;
/// Bytes at which any other dictionary block ends.
const BLOCK_BYTES: usize = 16 << 10;
/// A value of at least one row in this many has a bitmap, which is then smaller than a list.
const DENSE_SHARE: u64 = 64;
/// Minimum rows of a value with a bitmap.
const DENSE_ROWS_MIN: u64 = 128;
/// Maximum values of a field with a bitmap. Their keys are in memory.
const DENSE_MAX: usize = 256;
/// Maximum bytes of a directory, which is in memory.
const DIRECTORY_BYTES_MAX: usize = 32 << 20;
/// Maximum bytes per read.
const READ_BYTES_MAX: usize = 1 << 20;
/// Maximum gap between pieces that are read together. It is about the bytes that NVMe transfers in
/// the time of a read's fixed cost.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Types of values that are counted apart.
const KINDS: usize = 5;

/// Field of a segment's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexedFieldInfo {
    /// Path, as in a filter.
    pub(crate) path: String,
    /// Rows that have a value, including deleted rows.
    pub(crate) rows: u64,
    /// Different values: truth values, whole numbers, fractions, dates, texts. A date is also a
    /// text.
    pub(crate) values: [u64; KINDS],
    /// Reason why the field has no index. Empty if it has one.
    pub(crate) unindexed: String,
}
