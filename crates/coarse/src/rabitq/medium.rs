//! Scan of lists whose codes are on a medium. The same rows are compared in the same order as in
//! memory, so results are equal. The rows before a row decide if it passes its one-bit bound. So
//! the four-bit codes of all rows that pass with the present limit are read before a scan. A few
//! lists are read first, and then more at once as the limit falls.

use std::sync::Arc;

use base::Result;
use kernels::rabitq::{BLOCK, FACTORS, block_bytes, nibble_bytes};

use super::super::medium::{CodeRange, HeldGroups, ListPart, RowGroups, batch, parts, reader};
use super::super::{CoarseRequest, CodeBlock, ReadCodes, RowSet};
use super::scan::{RowCodes, ScannedList};
use super::store::{FACTORS_OF_LEVELS, FACTORS_OF_SIGNS, LEVELS, SIGNS};
use super::{Rabitq, RabitqScratch};

/// Number of parts of lists that are read first.
const PARTS_FIRST: usize = 1;
/// Factor by which each later read has more parts.
const PARTS_GROWTH: usize = 2;
/// Number of rows compared one by one at once. Each may need groups of its own.
const ROWS_AT_ONCE: usize = 512;
/// Bytes of the factors of a row.
const ROW_FACTORS_BYTES: usize = 12;
/// Bytes of the factors of 32 rows.
const FACTORS_BYTES: usize = FACTORS * 4;

/// Four-bit codes that were read.
#[derive(Default)]
pub(super) struct HeldLevels {
    levels: HeldGroups,
    factors: HeldGroups,
}

/// Groups of four-bit codes and of their factors.
#[derive(Clone, Copy)]
struct LevelGroups {
    levels: RowGroups,
    factors: RowGroups,
}

/// One-bit codes and factors of consecutive blocks.
#[derive(Clone, Copy)]
struct BlockSigns<'a> {
    first_block: usize,
    signs: &'a dyn CodeBlock,
    factors: &'a dyn CodeBlock,
}

impl<'a> BlockSigns<'a> {
    /// Takes the codes and factors that were read for a part, or `None` if one is missing.
    fn of(first_block: usize, read: &'a [Option<Arc<dyn CodeBlock>>; 2]) -> Option<BlockSigns<'a>> {
        let [Some(signs), Some(factors)] = read else { return None };
        Some(BlockSigns { first_block, signs: &**signs, factors: &**factors })
    }
}

/// One-bit codes of a part, and four-bit codes of its rows that are compared.
struct PartCodes<'a> {
    /// One-bit codes. `None` if only rows are compared.
    signs: Option<BlockSigns<'a>>,
    groups: LevelGroups,
    held: &'a HeldLevels,
}

impl RowCodes for PartCodes<'_> {
    fn block(&self, block: usize, bytes: usize) -> Option<(&[u8], &[f32; FACTORS])> {
        let BlockSigns { first_block, signs, factors } = self.signs?;
        let at = block.checked_sub(first_block)?;
        let signs = signs.bytes().get(at * bytes..(at + 1) * bytes)?;
        Some((signs, factors.floats().as_chunks::<FACTORS>().0.get(at)?))
    }

    fn row(&self, row: u32, bytes: usize) -> Option<(&[u8], &[f32; 3])> {
        let LevelGroups { levels, factors } = &self.groups;
        let at = levels.place(row) * bytes;
        let code = self.held.levels.block(levels, row)?.bytes().get(at..at + bytes)?;
        let held = self.held.factors.block(factors, row)?;
        Some((code, held.floats().as_chunks::<3>().0.get(factors.place(row))?))
    }

    fn prefetch(&self, _: u32, _: usize) {}
}

impl HeldLevels {
    fn read(&mut self, groups: &LevelGroups, rows: &[u32], codes: &dyn ReadCodes) -> Result<()> {
        self.levels.read(&groups.levels, rows.iter().copied(), codes)?;
        self.factors.read(&groups.factors, rows.iter().copied(), codes)
    }

    fn clear(&mut self) {
        self.levels.clear();
        self.factors.clear();
    }
}

impl Rabitq {
    fn level_groups(&self) -> LevelGroups {
        let rows = self.starts.last().copied().unwrap_or(0) as usize;
        let row_bytes = nibble_bytes(self.rotation.padded());
        LevelGroups {
            levels: RowGroups { kind: LEVELS, row_bytes, rows, floats: false },
            factors: RowGroups {
                kind: FACTORS_OF_LEVELS,
                row_bytes: ROW_FACTORS_BYTES,
                rows,
                floats: true,
            },
        }
    }

    /// Returns the one-bit codes and the factors of a part.
    fn part_ranges(&self, list: &ScannedList, part: &ListPart) -> [CodeRange; 2] {
        let block = list.first_block + part.first;
        let range = |kind: u32, bytes: usize| CodeRange {
            kind,
            start: (block * bytes) as u64,
            bytes: part.blocks * bytes,
            floats: kind == FACTORS_OF_SIGNS,
            rows: part.blocks * BLOCK,
        };
        [range(SIGNS, block_bytes(self.rotation.padded())), range(FACTORS_OF_SIGNS, FACTORS_BYTES)]
    }

    /// Scans the lists in `work.probed`, whose codes are on the medium. `work.found` must be empty.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    pub(super) fn scan_probed_on_medium(
        &self,
        constant: f32,
        request: &CoarseRequest<'_>,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        let codes = reader(request.codes)?;
        let list = |(_, cluster): &(f32, u32)| self.list(&work.query, constant, *cluster);
        let lists: Vec<ScannedList> = work.probed.iter().map(list).collect();
        let parts = parts(lists.iter().map(ScannedList::blocks));
        // All rows of a block may pass.
        let row_bytes = nibble_bytes(self.rotation.padded()) + ROW_FACTORS_BYTES;
        let block_bytes = block_bytes(self.rotation.padded()) + FACTORS_BYTES + row_bytes * BLOCK;
        let mut wanted = Vec::new();
        let mut found = Vec::new();
        let mut start = 0;
        let mut count = PARTS_FIRST;
        while start < parts.len() {
            let now = batch(&parts, start, count, block_bytes);
            wanted.clear();
            for part in &parts[now.clone()] {
                wanted.extend(self.part_ranges(&lists[part.list], part));
            }
            codes.read(&wanted, &mut found)?;
            self.scan_read(&lists, &parts[now.clone()], &found, request, work)?;
            start = now.end;
            count = count.saturating_mul(PARTS_GROWTH);
        }
        work.levels.clear();
        Ok(())
    }

    /// Scans parts, whose one-bit codes and factors are in `found`.
    fn scan_read(
        &self,
        lists: &[ScannedList],
        parts: &[ListPart],
        found: &[Option<Arc<dyn CodeBlock>>],
        request: &CoarseRequest<'_>,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        let groups = self.level_groups();
        let RabitqScratch { query, found: scan, rows, levels, .. } = work;
        let pairs = found.as_chunks::<2>().0;
        rows.clear();
        rows.extend(scan.waiting());
        let none = HeldLevels::default();
        for (part, read) in parts.iter().zip(pairs) {
            let signs = BlockSigns::of(lists[part.list].first_block + part.first, read);
            let codes = PartCodes { signs, groups, held: &none };
            let numbers = part.first..part.first + part.blocks;
            scan.add_passing_rows(&codes, query, &lists[part.list], numbers, request.allow, rows);
        }
        levels.read(&groups, rows, reader(request.codes)?)?;
        for (part, read) in parts.iter().zip(pairs) {
            let signs = BlockSigns::of(lists[part.list].first_block + part.first, read);
            let codes = PartCodes { signs, groups, held: levels };
            let numbers = part.first..part.first + part.blocks;
            scan.scan_blocks(&codes, query, &lists[part.list], numbers, request.allow);
            if part.is_last {
                scan.end_list(&codes, query, &lists[part.list]);
            }
        }
        Ok(())
    }

    /// Compares every allowed row by its four-bit codes.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    pub(super) fn compare_allowed_on_medium(
        &self,
        constant: f32,
        request: &CoarseRequest<'_>,
        allow: &RowSet,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        let groups = self.level_groups();
        let mut list: Option<ScannedList> = None;
        let allowed: Vec<u32> = allow
            .iter()
            .take_while(|row| *row < self.starts.last().copied().unwrap_or(0))
            .collect();
        for rows in allowed.chunks(ROWS_AT_ONCE) {
            work.levels.read(&groups, rows, reader(request.codes)?)?;
            for &row in rows {
                if list.is_none_or(|list| row >= list.end_row) {
                    let cluster = self.starts.partition_point(|start| *start <= row) - 1;
                    list = Some(self.list(&work.query, constant, cluster as u32));
                }
                let codes = PartCodes { signs: None, groups, held: &work.levels };
                if let Some(list) = &list {
                    work.found.compare(row, &codes, &work.query, list);
                }
            }
        }
        work.levels.clear();
        Ok(())
    }
}
