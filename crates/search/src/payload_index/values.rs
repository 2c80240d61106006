//! Values of a field: the number of rows of each, and rows in the order of their values.

use base::Result;
use storage::Sealed;
use storage::page::PAGE_BYTES;

use super::directory::{DictionaryBlock, FieldDirectory};
use super::key::{IndexKey, KeyOf, KeyRef};
use super::read::{FieldLookup, PayloadIndex, RowPiece, rows_of};
use crate::filter::RowSet;

/// Outcome of a count of values.
#[derive(Debug)]
pub(crate) enum ValueCounts {
    /// All values were counted.
    Complete,
    /// All values but the long texts of these rows were counted.
    WithoutLongTexts(RowSet),
    /// Nothing was counted: the field has no index, or reading payloads costs less.
    Undecided,
}

impl PayloadIndex {
    /// Calls `each` with every value under `path` and the number of rows of `allow` with it; all
    /// rows if `None`. Dates are counted as texts only.
    ///
    /// # Errors
    /// The error of the medium or of `each`. After `DataLoss`, some values were counted.
    pub(crate) fn count_values(
        &self,
        file: &dyn Sealed,
        path: &str,
        allow: Option<&RowSet>,
        each: &mut dyn FnMut(KeyRef<'_>, u64) -> Result<()>,
    ) -> Result<ValueCounts> {
        let field = match self.field(path) {
            FieldLookup::Absent => return Ok(ValueCounts::Complete),
            FieldLookup::Unindexed(_) => return Ok(ValueCounts::Undecided),
            FieldLookup::Indexed { field, elements_only } => {
                if elements_only && field.bitmaps.bare.count > 0 {
                    return Ok(ValueCounts::Undecided);
                }
                field
            }
        };
        let each = &mut |key: KeyRef<'_>, count| match key {
            KeyOf::Date(_) => Ok(()),
            key => each(key, count),
        };
        match allow {
            None => self.count_all(file, field, each)?,
            Some(allow) => {
                // A payload is read with its page.
                let bytes = field.postings * 4 + field.dictionary_bytes();
                if u64::from(allow.count()) * (PAGE_BYTES as u64) < bytes {
                    return Ok(ValueCounts::Undecided);
                }
                self.count_allowed(file, field, allow, each)?;
            }
        }
        Ok(match field.bitmaps.long.count {
            0 => ValueCounts::Complete,
            _ => ValueCounts::WithoutLongTexts(self.bitmap(file, &field.bitmaps.long)?),
        })
    }

    fn count_all(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        each: &mut dyn FnMut(KeyRef<'_>, u64) -> Result<()>,
    ) -> Result<()> {
        for dense in &field.dense {
            each(dense.key.as_ref(), dense.rows.count)?;
        }
        let blocks: Vec<&DictionaryBlock> = field.blocks.iter().collect();
        self.entries(file, &blocks, &mut |entry| each(entry.key, entry.count))
    }

    fn count_allowed(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        allow: &RowSet,
        each: &mut dyn FnMut(KeyRef<'_>, u64) -> Result<()>,
    ) -> Result<()> {
        for dense in &field.dense {
            let mut rows = self.bitmap(file, &dense.rows)?;
            rows.intersect(allow);
            if !rows.is_empty() {
                each(dense.key.as_ref(), rows.count().into())?;
            }
        }
        for block in &field.blocks {
            let entries = self.block(file, block)?;
            let pieces: Vec<RowPiece> = entries.iter().map(|entry| entry.rows).collect();
            let mut counts = vec![0; entries.len()];
            self.listed_rows(file, field, &pieces, &mut |at, bytes| {
                counts[at] += rows_of(bytes).filter(|row| allow.contains(*row)).count() as u64;
                Ok(())
            })?;
            for (entry, count) in entries.iter().zip(counts).filter(|(_, count)| *count > 0) {
                each(entry.key.as_ref(), count)?;
            }
        }
        Ok(())
    }

    /// Returns the entries of a block.
    pub(super) fn block(
        &self,
        file: &dyn Sealed,
        block: &DictionaryBlock,
    ) -> Result<Vec<ValueRows>> {
        let mut entries = Vec::new();
        self.entries(file, &[block], &mut |entry| {
            let rows = RowPiece { position: entry.position, count: entry.count };
            entries.push(ValueRows { key: entry.key.into_owned(), rows });
            Ok(())
        })?;
        Ok(entries)
    }
}

impl FieldDirectory {
    fn dictionary_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }
}

/// Value and its rows in the field's list.
pub(super) struct ValueRows {
    pub(super) key: IndexKey,
    pub(super) rows: RowPiece,
}
