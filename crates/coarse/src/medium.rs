//! Access to codes that lie on a medium.
//!
//! Lists are contiguous in their sections. So a query reads parts of the lists that it scans. It
//! also reads groups of the rows that it compares by finer codes. The division of sections into
//! parts depends on the index alone, so that queries share cached parts.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, Result};

/// Number of blocks of 32 rows in a part of a list. Most lists are one part.
pub(super) const PART_BLOCKS: usize = 64;
/// Bytes of parts that a query reads at once; at least one part.
const PARTS_BYTES_MAX: usize = 4 << 20;
/// Bytes of a group of rows: about a page.
const GROUP_BYTES: usize = 4096;

/// Range of a section that is read as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRange {
    /// Kind of the section; a constant in [`super::section`].
    pub kind: u32,
    /// Offset in the section, in bytes.
    pub start: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// True if these are finite or infinite numbers of 32 bits, and no codes.
    pub floats: bool,
    /// Number of rows that are lost if the range is damaged.
    pub rows: usize,
}

/// Range of a section that was read from the medium and verified.
pub trait CodeBlock: Send + Sync {
    /// Returns the bytes; empty for a block of numbers.
    fn bytes(&self) -> &[u8];

    /// Returns the numbers; empty for a block of bytes.
    fn floats(&self) -> &[f32];
}

/// Reader of codes for one search.
pub trait ReadCodes {
    /// Writes a block for each of `wanted` to `out` (cleared first), in their order; `None` for
    /// damaged ones, whose rows the reader counts as lost.
    ///
    /// # Errors
    /// The error of the reader itself.
    fn read(&self, wanted: &[CodeRange], out: &mut Vec<Option<Arc<dyn CodeBlock>>>) -> Result<()>;
}

/// Function that returns the length of a section in bytes.
pub type SectionBytes<'a> = &'a dyn Fn(u32) -> Result<u64>;

/// Returns the reader of a request to an index on the medium.
///
/// # Errors
/// `Internal` if there is no reader.
pub(super) fn reader(codes: Option<&dyn ReadCodes>) -> Result<&dyn ReadCodes> {
    codes.ok_or_else(|| Error::internal("codes on the medium were searched without a reader"))
}

/// Checks the length of a section that stays on the medium.
///
/// # Errors
/// `DataLoss` if it is another one.
pub(super) fn check_bytes(bytes_of: SectionBytes<'_>, kind: u32, expected: usize) -> Result<()> {
    if bytes_of(kind)? == expected as u64 {
        Ok(())
    } else {
        Err(Error::data_loss(format!(
            "section {kind:#x} of the coarse index has {} bytes, {expected} were expected; build the \
             segment again",
            bytes_of(kind)?
        )))
    }
}

/// Blocks of one list that are read together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ListPart {
    /// Place of the list in the lists of the search.
    pub(super) list: usize,
    /// First block of the part, counted from the list's first one.
    pub(super) first: usize,
    /// Number of blocks.
    pub(super) blocks: usize,
    /// True for the last part of its list.
    pub(super) is_last: bool,
}

/// Divides lists with these numbers of blocks into parts.
pub(super) fn parts(blocks: impl Iterator<Item = usize>) -> Vec<ListPart> {
    let mut parts = Vec::new();
    for (list, blocks) in blocks.enumerate() {
        for first in (0..blocks).step_by(PART_BLOCKS) {
            let end = blocks.min(first + PART_BLOCKS);
            parts.push(ListPart { list, first, blocks: end - first, is_last: end == blocks });
        }
    }
    parts
}

/// Returns the parts from `start` on that are read at once: at most `count`, of `block_bytes` a
/// block.
pub(super) fn batch(
    parts: &[ListPart],
    start: usize,
    count: usize,
    block_bytes: usize,
) -> Range<usize> {
    let mut bytes = 0;
    let fits = |part: &&ListPart| {
        bytes += part.blocks * block_bytes;
        bytes <= PARTS_BYTES_MAX
    };
    let fitting = parts[start..].iter().take(count).take_while(fits).count();
    start..start + fitting.max(1).min(parts.len() - start)
}

/// Groups of rows that are read together.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowGroups {
    pub(super) kind: u32,
    pub(super) row_bytes: usize,
    /// Number of rows of the index.
    pub(super) rows: usize,
    /// True if the section holds numbers of 32 bits, and no codes.
    pub(super) floats: bool,
}

impl RowGroups {
    fn group_rows(&self) -> usize {
        (GROUP_BYTES / self.row_bytes).max(1)
    }

    /// Returns the number of the group that holds a row.
    pub(super) fn group(&self, row: u32) -> u32 {
        (row as usize / self.group_rows()) as u32
    }

    /// Returns the place of a row in its group, in rows.
    pub(super) fn place(&self, row: u32) -> usize {
        row as usize % self.group_rows()
    }

    /// Returns the range of a group.
    pub(super) fn range(&self, group: u32) -> CodeRange {
        let first = (group as usize * self.group_rows()).min(self.rows);
        let rows = (self.rows - first).min(self.group_rows());
        CodeRange {
            kind: self.kind,
            start: (first * self.row_bytes) as u64,
            bytes: rows * self.row_bytes,
            floats: self.floats,
            rows,
        }
    }
}

/// Blocks of the groups that a search has read.
#[derive(Default)]
pub(super) struct HeldGroups {
    /// Group numbers, ascending.
    numbers: Vec<u32>,
    blocks: Vec<Option<Arc<dyn CodeBlock>>>,
}

impl HeldGroups {
    /// Drops all groups.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.blocks.clear();
    }

    /// Reads the groups of `rows` and drops the others.
    ///
    /// # Errors
    /// As [`ReadCodes::read`].
    pub(super) fn read(
        &mut self,
        groups: &RowGroups,
        rows: impl Iterator<Item = u32>,
        codes: &dyn ReadCodes,
    ) -> Result<()> {
        self.numbers.clear();
        self.numbers.extend(rows.map(|row| groups.group(row)));
        self.numbers.sort_unstable();
        self.numbers.dedup();
        let wanted: Vec<CodeRange> = self.numbers.iter().map(|at| groups.range(*at)).collect();
        codes.read(&wanted, &mut self.blocks)
    }

    /// Returns the block that holds a row; `None` if it was not read or is damaged.
    pub(super) fn block(&self, groups: &RowGroups, row: u32) -> Option<&dyn CodeBlock> {
        let at = self.numbers.binary_search(&groups.group(row)).ok()?;
        self.blocks.get(at)?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::section;
    use super::*;

    #[test]
    fn parts_cover_their_lists_in_order() {
        let lists = [3, 0, PART_BLOCKS, 2 * PART_BLOCKS + 1];
        let parts = parts(lists.into_iter());
        let of = |list: usize| parts.iter().filter(move |part| part.list == list);
        for (list, blocks) in lists.into_iter().enumerate() {
            assert_eq!(of(list).map(|part| part.blocks).sum::<usize>(), blocks);
            assert_eq!(of(list).filter(|part| part.is_last).count(), usize::from(blocks > 0));
        }
        assert_eq!(parts.len(), 5);
        assert_eq!(batch(&parts, 0, 99, 1), 0..5);
        assert_eq!(batch(&parts, 1, 2, 1), 1..3);
        assert_eq!(batch(&parts, 1, 9, PARTS_BYTES_MAX), 1..2, "one part at least");
        assert_eq!(batch(&parts, 1, 9, PARTS_BYTES_MAX / PART_BLOCKS / 2), 1..3);
    }

    #[test]
    fn groups_cover_all_rows() {
        let groups =
            RowGroups { kind: section::BYTE_CODES, row_bytes: 100, rows: 95, floats: false };
        let mut end = 0;
        for group in 0..3 {
            let range = groups.range(group);
            assert_eq!(range.start, end);
            end += range.bytes as u64;
        }
        assert_eq!(end, 9500);
        assert_eq!((groups.group(39), groups.group(40), groups.place(41)), (0, 1, 1));
        assert_eq!(RowGroups { row_bytes: 9000, ..groups }.group(7), 7);
    }
}
