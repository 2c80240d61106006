//! Values of a field: the number of rows of each, and rows in the order of their values.

use base::Result;
use coarse::RowSet;
use storage::Sealed;
use storage::page::PAGE_BYTES;

use super::READ_BYTES_MAX;
use super::directory::{DictionaryBlock, FieldDirectory};
use super::key::{IndexKey, KeyOf, KeyRef};
use super::read::{FieldLookup, PayloadIndex, RowPiece, rows_of};

/// Dictionary blocks of one part of a count without a filter.
const BLOCKS_A_PART: usize = 32;
/// Maximum rows of one part of a count with a filter, unless one value has more.
const ROWS_A_PART: u64 = (READ_BYTES_MAX / 4) as u64;

/// Outcome of a count of values.
#[derive(Debug)]
pub(crate) enum ValueCounts {
    /// The visitor stopped the count. The next call continues it.
    Paused,
    /// All values were counted.
    Complete,
    /// All values but the long texts of these rows were counted.
    WithoutLongTexts(RowSet),
    /// Nothing was counted, because the field has no index or reading payloads costs less.
    Undecided,
}

/// Receiver of the values of a field.
pub(crate) trait ValueVisitor {
    /// Returns true if the count continues with its next part: a frequent value, or neighbouring
    /// values.
    fn continues(&mut self) -> bool;

    /// Receives a value and its number of rows. A date is a text here.
    ///
    /// # Errors
    /// The error of the receiver, which ends the count.
    fn visit(&mut self, value: KeyRef<'_>, rows: u64) -> Result<()>;
}

/// Position of a count: the parts of a field that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountPosition {
    /// Frequent values.
    dense: usize,
    /// Dictionary blocks.
    blocks: usize,
    /// Values of the next dictionary block.
    values: usize,
}

impl PayloadIndex {
    /// Visits every value under `path` from `position` on, each with the number of rows of `allow`
    /// that have it. If `allow` is `None`, all rows count. Moves `position`. Calls after a pause
    /// need the same `allow`.
    ///
    /// # Errors
    /// The error of the medium or of `visitor`. After `DataLoss`, some values were visited.
    pub(crate) fn count_values(
        &self,
        file: &dyn Sealed,
        path: &str,
        allow: Option<&RowSet>,
        position: &mut CountPosition,
        visitor: &mut dyn ValueVisitor,
    ) -> Result<ValueCounts> {
        let field = match self.field(path) {
            FieldLookup::Absent => return Ok(ValueCounts::Complete),
            FieldLookup::Unindexed(_) => return Ok(ValueCounts::Undecided),
            FieldLookup::Indexed { field, elements_only } => {
                if elements_only && !field.bitmaps.has_all_elements() {
                    return Ok(ValueCounts::Undecided);
                }
                field
            }
        };
        let is_counted = match allow {
            None => self.count_all(file, field, position, visitor)?,
            Some(allow) => {
                // A payload is read with its page.
                let bytes = field.postings * 4 + field.dictionary_bytes();
                if u64::from(allow.count()) * (PAGE_BYTES as u64) < bytes {
                    return Ok(ValueCounts::Undecided);
                }
                self.count_allowed(file, field, allow, position, visitor)?
            }
        };
        if !is_counted {
            return Ok(ValueCounts::Paused);
        }
        Ok(match field.bitmaps.long.count {
            0 => ValueCounts::Complete,
            _ => ValueCounts::WithoutLongTexts(self.bitmap(file, &field.bitmaps.long)?),
        })
    }

    /// Visits the values with the numbers of all their rows. Returns false if the visitor stopped.
    fn count_all(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        position: &mut CountPosition,
        visitor: &mut dyn ValueVisitor,
    ) -> Result<bool> {
        // The numbers of frequent values are in memory.
        for dense in field.dense.iter().skip(position.dense) {
            visit(visitor, dense.key.as_ref(), dense.rows.count)?;
            position.dense += 1;
        }
        let blocks: Vec<&DictionaryBlock> = field.blocks.iter().skip(position.blocks).collect();
        for part in blocks.chunks(BLOCKS_A_PART) {
            if !visitor.continues() {
                return Ok(false);
            }
            self.entries(file, part, &mut |entry| visit(visitor, entry.key, entry.count))?;
            position.blocks += part.len();
        }
        Ok(true)
    }

    /// Visits the values with the numbers of their rows of `allow`. Returns false if the visitor
    /// stopped.
    fn count_allowed(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        allow: &RowSet,
        position: &mut CountPosition,
        visitor: &mut dyn ValueVisitor,
    ) -> Result<bool> {
        for dense in field.dense.iter().skip(position.dense) {
            if !visitor.continues() {
                return Ok(false);
            }
            let mut rows = self.bitmap(file, &dense.rows)?;
            rows.intersect(allow);
            if !rows.is_empty() {
                visit(visitor, dense.key.as_ref(), rows.count().into())?;
            }
            position.dense += 1;
        }
        for block in field.blocks.iter().skip(position.blocks) {
            let entries = self.block(file, block)?;
            let mut rest = entries.get(position.values..).unwrap_or_default();
            while !rest.is_empty() {
                if !visitor.continues() {
                    return Ok(false);
                }
                let part = first_part(rest);
                self.count_entries(file, field, allow, part, visitor)?;
                position.values += part.len();
                rest = rest.get(part.len()..).unwrap_or_default();
            }
            position.blocks += 1;
            position.values = 0;
        }
        Ok(true)
    }

    /// Counts the rows of `allow` with each of `entries`, and passes counts above 0 to `visitor`.
    fn count_entries(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        allow: &RowSet,
        entries: &[ValueRows],
        visitor: &mut dyn ValueVisitor,
    ) -> Result<()> {
        let pieces: Vec<RowPiece> = entries.iter().map(|entry| entry.rows).collect();
        let mut counts = vec![0; entries.len()];
        self.listed_rows(file, field, &pieces, &mut |at, bytes| {
            counts[at] += rows_of(bytes).filter(|row| allow.contains(*row)).count() as u64;
            Ok(())
        })?;
        for (entry, count) in entries.iter().zip(counts).filter(|(_, count)| *count > 0) {
            visit(visitor, entry.key.as_ref(), count)?;
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

/// Visits a value. A date is left out, because its text is another value.
fn visit(visitor: &mut dyn ValueVisitor, key: KeyRef<'_>, rows: u64) -> Result<()> {
    if matches!(key, KeyOf::Date(_)) { Ok(()) } else { visitor.visit(key, rows) }
}

/// Returns the first values that have at most [`ROWS_A_PART`] rows together, at least one.
pub(super) fn first_part(entries: &[ValueRows]) -> &[ValueRows] {
    let mut rows = 0_u64;
    let fits = |entry: &&ValueRows| {
        rows = rows.saturating_add(entry.rows.count);
        rows <= ROWS_A_PART
    };
    let count = entries.iter().take_while(fits).count();
    entries.get(..count.max(1)).unwrap_or(entries)
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
