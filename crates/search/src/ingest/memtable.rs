//! Memtables: unflushed points in memory, searched like all others.
//!
//! A query keeps the memtable as it was when the query began. A writer copies only the parts that
//! it changes. They are a list of pointers to blocks, the last block of pointers to rows, and one
//! chunk of the bitmap. Rows are never copied.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use roaring::RoaringBitmap;

use super::sketch::{BlockSketch, SketchQuery};
use crate::budget::BudgetReservation;
use crate::deletes::Deletes;

/// Maximum rows of a memtable.
pub(crate) const MEMTABLE_ROWS_MAX: u32 = 1 << 20;
/// Rows per block.
const BLOCK_ROWS: usize = 256;
/// Rows to prefetch ahead. A scan prefetches the embeddings of the next `AHEAD` rows, and the
/// addresses of the `AHEAD` rows after them. Rows lie at random addresses, and waiting for memory
/// would take most of the time of a scan.
const AHEAD: usize = 4;
/// Values of an embedding to prefetch. The processor prefetches the rest itself.
const AHEAD_VALUES: usize = 256;
/// Maximum ids of a [`MemtablePage`]. Writers wait while it is read.
const PAGE_IDS_MAX: usize = 256;
/// Number of no row.
const NO_ROW: u32 = u32::MAX;
/// Maximum fields whose rows with a value are kept, the newest.
const FILLED_FIELDS_MAX: usize = 64;
/// Bytes of a row besides its content: pointers, lengths, the entries in the table of ids.
const ROW_OVERHEAD_BYTES: u64 = 192;

/// Point in memory. Its memory is reserved until the last reference is dropped.
#[derive(Debug)]
pub(crate) struct MemtableRow {
    /// Id of the point.
    pub(crate) id: u64,
    pub(crate) embedding: Box<[f32]>,
    pub(crate) record: Box<[u8]>,
    pub(crate) payload: Box<[u8]>,
    /// Memory that the row takes.
    pub(crate) held: BudgetReservation,
}

/// Returns the bytes of memory of a row of these sizes.
pub(crate) fn row_bytes(dims: usize, record: usize, payload: usize) -> u64 {
    (dims * 4 + BlockSketch::row_bytes(dims) + record + payload) as u64 + ROW_OVERHEAD_BYTES
}

/// Neighbouring rows of a memtable.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowBlock {
    rows: Vec<Arc<MemtableRow>>,
    /// Set for full blocks.
    sketch: OnceLock<BlockSketch>,
}

impl RowBlock {
    /// Builds the block's sketch, which lets queries skip most rows. A block without a sketch is
    /// read whole. Takes a fraction of a millisecond.
    pub(crate) fn sketch(&self) {
        self.sketch.get_or_init(|| BlockSketch::of(&self.rows));
    }
}

/// Rows of each id, live or deleted.
#[derive(Debug, Default)]
struct IdTable {
    /// Newest row of each id, in the order of ids.
    newest: BTreeMap<u64, u32>,
    /// Row before each row that has the same id, or [`NO_ROW`].
    earlier: Vec<u32>,
}

impl IdTable {
    /// Adds the next row.
    fn push(&mut self, id: u64) {
        let row = self.earlier.len() as u32;
        self.earlier.push(self.newest.insert(id, row).unwrap_or(NO_ROW));
    }

    /// Returns the newest row of an id among the first `rows`.
    fn find(&self, id: u64, rows: u32) -> Option<u32> {
        self.among(*self.newest.get(&id)?, rows)
    }

    /// Returns the newest row among the first `rows` of the id whose newest row is `row`.
    fn among(&self, mut row: u32, rows: u32) -> Option<u32> {
        while row >= rows {
            // There is no entry for `NO_ROW`.
            row = *self.earlier.get(row as usize)?;
        }
        Some(row)
    }
}

/// Neighbouring rows in the order of ids.
#[derive(Debug)]
pub(crate) struct MemtablePage<'a> {
    /// Live rows.
    pub(crate) rows: Vec<&'a Arc<MemtableRow>>,
    /// Id to continue with, or `None` after the last one.
    pub(crate) next: Option<u64>,
}

/// Rows with a value of one field, live or deleted.
#[derive(Clone, Debug, Default)]
struct FilledRows {
    path: String,
    rows: RoaringBitmap,
    /// Number of rows that were read.
    read: u32,
}

/// Rows in the order of their writes, with deletes.
#[derive(Clone, Debug)]
pub(crate) struct Memtable {
    /// Number of the oldest log with changes of this memtable.
    pub(crate) log: u64,
    begun: Instant,
    blocks: Vec<Arc<RowBlock>>,
    rows: u32,
    bytes: u64,
    deleted: Deletes,
    /// Rows of each id, which all states of the memtable share. It may have newer rows.
    ids: Arc<Mutex<IdTable>>,
    /// Rows with a value by field, which all states of the memtable share.
    filled: Arc<Mutex<Vec<FilledRows>>>,
}

impl Memtable {
    /// Creates an empty memtable whose changes are in the log `log` and later ones.
    pub(crate) fn new(log: u64) -> Memtable {
        Memtable {
            log,
            begun: Instant::now(),
            blocks: Vec::new(),
            rows: 0,
            bytes: 0,
            deleted: Deletes::none(MEMTABLE_ROWS_MAX),
            ids: Arc::default(),
            filled: Arc::default(),
        }
    }

    /// Returns the time of its creation.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Adds a row to the newest state, and returns its number. The caller keeps the number of rows
    /// below [`MEMTABLE_ROWS_MAX`].
    pub(crate) fn push(&mut self, row: Arc<MemtableRow>) -> u32 {
        self.bytes += row.held.bytes();
        self.ids.lock().push(row.id);
        if (self.rows as usize).is_multiple_of(BLOCK_ROWS) {
            self.blocks.push(Arc::new(RowBlock {
                rows: Vec::with_capacity(BLOCK_ROWS),
                ..RowBlock::default()
            }));
        }
        if let Some(block) = self.blocks.last_mut() {
            Arc::make_mut(block).rows.push(row);
        }
        self.rows += 1;
        self.rows - 1
    }

    /// Returns the block that the last row completed, if it did, for [`RowBlock::sketch`].
    pub(crate) fn completed(&self) -> Option<Arc<RowBlock>> {
        self.blocks.last().filter(|block| block.rows.len() == BLOCK_ROWS).cloned()
    }

    /// Marks a row as deleted. Returns false if it was already.
    pub(crate) fn mark_deleted(&mut self, row: u32) -> bool {
        self.deleted.insert(row)
    }

    /// Returns true if the row is deleted.
    pub(crate) fn is_deleted(&self, row: u32) -> bool {
        self.deleted.contains(row)
    }

    /// Returns the deleted rows.
    pub(crate) fn deletes(&self) -> &Deletes {
        &self.deleted
    }

    /// Counts the deleted rows.
    pub(crate) fn deleted(&self) -> u32 {
        self.deleted.count()
    }

    /// Counts all rows, live or deleted.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the bytes of memory of all rows, live or deleted.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the live row of an id.
    pub(crate) fn find(&self, id: u64) -> Option<u32> {
        let row = self.ids.lock().find(id, self.rows)?;
        (!self.is_deleted(row)).then_some(row)
    }

    /// Returns live rows in the order of their ids, from the id `from` on.
    pub(crate) fn page(&self, from: u64) -> MemtablePage<'_> {
        let mut page = MemtablePage { rows: Vec::new(), next: None };
        let ids = self.ids.lock();
        for (read, (&id, &newest)) in ids.newest.range(from..).enumerate() {
            if read == PAGE_IDS_MAX {
                page.next = Some(id);
                break;
            }
            let row = ids.among(newest, self.rows).filter(|row| !self.is_deleted(*row));
            page.rows.extend(row.and_then(|row| self.row(row)));
        }
        page
    }

    /// Returns a row, live or deleted.
    pub(crate) fn row(&self, row: u32) -> Option<&Arc<MemtableRow>> {
        self.blocks.get(row as usize / BLOCK_ROWS)?.rows.get(row as usize % BLOCK_ROWS)
    }

    /// Calls `each` for every live row whose score can reach `floor`. `each` returns the new floor.
    /// Embeddings are prefetched.
    pub(crate) fn scan<'a>(
        &'a self,
        target: &SketchQuery,
        mut floor: f32,
        mut each: impl FnMut(&'a Arc<MemtableRow>) -> f32,
    ) {
        let mut at_most = [f32::INFINITY; BLOCK_ROWS];
        let mut likely: Vec<(u32, &'a Arc<MemtableRow>)> = Vec::with_capacity(BLOCK_ROWS);
        for (first, block) in (0..).step_by(BLOCK_ROWS).zip(&self.blocks) {
            match block.sketch.get() {
                Some(sketch) => sketch.at_most(target, &mut at_most),
                None => at_most.fill(f32::INFINITY),
            }
            likely.clear();
            likely.extend(
                (0..).zip(&block.rows).filter(|(at, _)| reaches(at_most[*at as usize], floor)),
            );
            for (number, &(at, row)) in likely.iter().enumerate() {
                if let Some((_, later)) = likely.get(number + 2 * AHEAD) {
                    kernels::prefetch(std::slice::from_ref(&***later));
                }
                if let Some((_, soon)) = likely.get(number + AHEAD) {
                    kernels::prefetch(&soon.embedding[..soon.embedding.len().min(AHEAD_VALUES)]);
                }
                if reaches(at_most[at as usize], floor) && !self.deleted.contains(first + at) {
                    floor = each(row);
                }
            }
        }
    }

    /// Counts the live rows with a value under `path`. `is_filled` tells if a row has one, and
    /// returns `None` to stop. A row that was read is not read again by later counts. Returns
    /// `None` after a stop. The next call then continues.
    pub(crate) fn count_filled(
        &self,
        path: &str,
        mut is_filled: impl FnMut(&MemtableRow) -> Option<bool>,
    ) -> Option<u64> {
        let mut field = self.known_filled(path);
        while let Some(row) = self.row(field.read).filter(|_| field.read < self.rows) {
            let Some(filled) = is_filled(row) else { break };
            if filled {
                field.rows.insert(field.read);
            }
            field.read += 1;
        }
        // A newer state may have read more rows.
        let rows = field.rows.iter().take_while(|row| *row < self.rows);
        let count = rows.filter(|row| !self.is_deleted(*row)).count() as u64;
        let is_complete = field.read >= self.rows;
        self.keep_filled(field);
        is_complete.then_some(count)
    }

    /// Returns the rows of a field that were read. The lock is not held while a caller reads more,
    /// because that parses payloads.
    fn known_filled(&self, path: &str) -> FilledRows {
        let fields = self.filled.lock();
        let known = fields.iter().find(|field| field.path == path).cloned();
        known.unwrap_or_else(|| FilledRows { path: path.to_owned(), ..FilledRows::default() })
    }

    /// Keeps the rows of a field, unless another count has read more.
    fn keep_filled(&self, field: FilledRows) {
        let mut fields = self.filled.lock();
        if let Some(at) = fields.iter().position(|known| known.path == field.path) {
            let known = fields.remove(at);
            fields.push(if known.read > field.read { known } else { field });
            return;
        }
        if fields.len() >= FILLED_FIELDS_MAX {
            fields.remove(0);
        }
        fields.push(field);
    }

    /// Returns the live rows with their numbers.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Arc<MemtableRow>)> + '_ {
        let rows = self.blocks.iter().flat_map(|block| block.rows.iter());
        (0..).zip(rows).filter(|(row, _)| !self.deleted.contains(*row))
    }
}

/// Returns true if a score of at most `at_most` can reach `floor`. NaN means no bound.
fn reaches(at_most: f32, floor: f32) -> bool {
    at_most >= floor || at_most.is_nan()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::budget::MemoryBudget;
    use coarse::Metric;

    fn add(budget: &Arc<MemoryBudget>, memtable: &mut Arc<Memtable>, id: u64) -> u32 {
        let held = budget.reserve(row_bytes(2, 1, 0), "a row").unwrap();
        let row = MemtableRow {
            id,
            embedding: Box::new([id as f32, 0.0]),
            record: Box::new([1]),
            payload: Box::new([]),
            held,
        };
        Arc::make_mut(memtable).push(Arc::new(row))
    }

    #[test]
    fn a_state_finds_its_own_row_of_an_id() {
        let budget = MemoryBudget::new(1 << 20);
        let mut memtable = Arc::new(Memtable::new(7));
        let mut states = vec![memtable.clone()];
        for row in 0..3 {
            if row > 0 {
                assert!(Arc::make_mut(&mut memtable).mark_deleted(row - 1));
            }
            assert_eq!(add(&budget, &mut memtable, 5), row);
            states.push(memtable.clone());
        }
        let found: Vec<Option<u32>> = states.iter().map(|state| state.find(5)).collect();
        assert_eq!(found, [None, Some(0), Some(1), Some(2)]);
        assert!(Arc::make_mut(&mut memtable).mark_deleted(2));
        assert_eq!([memtable.find(5), states[3].find(5), states[3].find(6)], [None, Some(2), None]);
    }

    #[test]
    fn pages_list_live_rows_in_the_order_of_ids() {
        let budget = MemoryBudget::new(1 << 24);
        let mut memtable = Arc::new(Memtable::new(7));
        for id in (0..1000).rev() {
            add(&budget, &mut memtable, id);
        }
        // Row 400 has the id 599.
        assert!(Arc::make_mut(&mut memtable).mark_deleted(400));
        let older = memtable.clone();
        add(&budget, &mut memtable, 599);
        add(&budget, &mut memtable, 2000);
        let listed = |memtable: &Memtable, from: u64| {
            let mut ids = Vec::new();
            let mut next = Some(from);
            while let Some(from) = next {
                let page = memtable.page(from);
                assert!(page.rows.len() <= PAGE_IDS_MAX);
                ids.extend(page.rows.iter().map(|row| row.id));
                next = page.next;
            }
            ids
        };
        assert_eq!(listed(&memtable, 100), (100..1000).chain([2000]).collect::<Vec<u64>>());
        let without = (0..1000).filter(|id| *id != 599);
        assert_eq!(listed(&older, 0), without.collect::<Vec<u64>>());
        assert_eq!(memtable.page(0).rows.len(), PAGE_IDS_MAX, "a page does not read all rows");
    }

    #[test]
    fn rows_with_a_value_are_read_once() {
        let budget = MemoryBudget::new(1 << 20);
        let mut memtable = Arc::new(Memtable::new(7));
        for id in 0..10 {
            add(&budget, &mut memtable, id);
        }
        let reads = Cell::new(0);
        let even = |memtable: &Memtable| {
            memtable.count_filled("even", |row| {
                reads.set(reads.get() + 1);
                Some(row.id % 2 == 0)
            })
        };
        assert_eq!(even(&memtable), Some(5));
        let older = memtable.clone();
        add(&budget, &mut memtable, 10);
        add(&budget, &mut memtable, 12);
        assert!(Arc::make_mut(&mut memtable).mark_deleted(2));
        let counts = [even(&memtable), even(&older), even(&memtable)];
        assert_eq!(counts, [Some(6), Some(5), Some(6)]);
        assert_eq!(reads.get(), 12);
    }

    #[test]
    fn a_count_continues_after_a_stop() {
        let budget = MemoryBudget::new(1 << 20);
        let mut memtable = Arc::new(Memtable::new(7));
        for id in 0..10 {
            add(&budget, &mut memtable, id);
        }
        let reads = Cell::new(0);
        let count = |reads_max: u32| {
            memtable.count_filled("any", |_| {
                let may_read = reads.get() < reads_max;
                may_read.then(|| reads.set(reads.get() + 1))?;
                Some(true)
            })
        };
        assert_eq!(count(4), None);
        assert_eq!((count(100), reads.get()), (Some(10), 10));
    }

    #[test]
    fn a_clone_keeps_its_rows() {
        let budget = MemoryBudget::new(1 << 20);
        let mut memtable = Arc::new(Memtable::new(7));
        let add = |memtable: &mut Arc<Memtable>, id| add(&budget, memtable, id);
        for id in 0..300 {
            assert_eq!(add(&mut memtable, id), id as u32);
        }
        let held = memtable.clone();
        add(&mut memtable, 300);
        assert!(Arc::make_mut(&mut memtable).mark_deleted(5));
        for memtable in [&*held, &*memtable] {
            let mut scanned = Vec::new();
            memtable.scan(&SketchQuery::new(Metric::L2, &[0.0; 2]), f32::NEG_INFINITY, |row| {
                scanned.push(row.id);
                f32::NEG_INFINITY
            });
            assert!(memtable.live().map(|(_, row)| row.id).eq(scanned));
        }
        assert_eq!(
            (held.rows(), held.live().count(), memtable.rows(), memtable.live().count()),
            (300, 300, 301, 300)
        );
        assert!(memtable.is_deleted(5) && !held.is_deleted(5));
        assert_eq!(memtable.row(300).unwrap().id, 300);
        assert!(
            held.row(300).is_none()
                && memtable.live().all(|(row, point)| u64::from(row) == point.id)
        );
        drop(memtable);
        assert_eq!(
            budget.stats().used,
            300 * row_bytes(2, 1, 0),
            "the dropped state's own row is free again"
        );
        drop(held);
        assert_eq!(budget.stats().used, 0);
    }
}
