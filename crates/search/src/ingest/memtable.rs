//! Points that are not sealed yet, in memory, searched like all others.
//!
//! A query holds on to the part as it was when it began; a writer then copies what it changes: a list of pointers to
//! blocks, the last block of pointers to rows, a chunk of the bitmap. Rows themselves are never copied.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::sketch::{BlockSketch, SketchQuery};
use crate::budget::BudgetReservation;
use crate::deletes::Deletes;

/// Rows of a part at most.
pub const MEMTABLE_ROWS_MAX: u32 = 1 << 20;
/// Rows of a block.
const BLOCK_ROWS: usize = 256;
/// Rows whose embeddings are asked for ahead of their use, and as many again whose addresses are: each lies somewhere else, and
/// waiting for memory would take most of a scan's time.
const AHEAD: usize = 4;
/// Values of an embedding that are asked for; those behind them the processor asks for by itself.
const AHEAD_VALUES: usize = 256;
/// Bytes of a row beside its contents: pointers, lengths, its entry in the table of ids.
const ROW_OVERHEAD_BYTES: u64 = 192;

/// One point. Its memory is reserved as long as anybody holds it.
#[derive(Debug)]
pub struct MemtableRow {
    /// What it is called by.
    pub id: u64,
    /// Its embedding.
    pub embedding: Box<[f32]>,
    /// Its record.
    pub record: Box<[u8]>,
    /// Its payload.
    pub payload: Box<[u8]>,
    /// The memory it takes.
    pub held: BudgetReservation,
}

/// Bytes of memory that a row of these sizes takes.
pub fn row_bytes(dims: usize, record: usize, payload: usize) -> u64 {
    (dims * 4 + BlockSketch::row_bytes(dims) + record + payload) as u64 + ROW_OVERHEAD_BYTES
}

/// Rows of a part that lie side by side.
#[derive(Clone, Debug, Default)]
pub struct RowBlock {
    rows: Vec<Arc<MemtableRow>>,
    /// Of a block that is full.
    sketch: OnceLock<BlockSketch>,
}

impl RowBlock {
    /// Makes that ready which spares queries most rows of a full block. It takes a fraction of a millisecond, and queries get on
    /// without.
    pub fn sketch(&self) {
        self.sketch.get_or_init(|| BlockSketch::of(&self.rows));
    }
}

/// Rows in the order they came.
#[derive(Clone, Debug)]
pub struct Memtable {
    /// The number of the oldest log that holds changes of this part.
    pub log: u64,
    begun: Instant,
    blocks: Vec<Arc<RowBlock>>,
    rows: u32,
    bytes: u64,
    deleted: Deletes,
}

impl Memtable {
    /// An empty part whose changes are in the log `log` and later ones.
    pub fn new(log: u64) -> Memtable {
        Memtable {
            log,
            begun: Instant::now(),
            blocks: Vec::new(),
            rows: 0,
            bytes: 0,
            deleted: Deletes::none(MEMTABLE_ROWS_MAX),
        }
    }

    /// Since when there is this part.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Adds a row and gives its number. There must be room: fewer than [`MEMTABLE_ROWS_MAX`] rows.
    pub fn push(&mut self, row: Arc<MemtableRow>) -> u32 {
        self.bytes += row.held.bytes();
        if (self.rows as usize).is_multiple_of(BLOCK_ROWS) {
            self.blocks
                .push(Arc::new(RowBlock { rows: Vec::with_capacity(BLOCK_ROWS), ..RowBlock::default() }));
        }
        if let Some(block) = self.blocks.last_mut() {
            Arc::make_mut(block).rows.push(row);
        }
        self.rows += 1;
        self.rows - 1
    }

    /// The block that the last row completed, if it did: for [`RowBlock::sketch`].
    pub fn completed(&self) -> Option<Arc<RowBlock>> {
        self.blocks.last().filter(|block| block.rows.len() == BLOCK_ROWS).cloned()
    }

    /// Marks a row as gone.
    pub fn mark_deleted(&mut self, row: u32) -> bool {
        self.deleted.insert(row)
    }

    /// Whether a row is gone.
    pub fn is_deleted(&self, row: u32) -> bool {
        self.deleted.contains(row)
    }

    /// Which rows are gone.
    pub fn deletes(&self) -> &Deletes {
        &self.deleted
    }

    /// How many rows are gone.
    pub fn deleted(&self) -> u32 {
        self.deleted.count()
    }

    /// How many rows were added.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of memory its rows take, those that are gone included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A row, gone or not.
    pub fn row(&self, row: u32) -> Option<&Arc<MemtableRow>> {
        self.blocks.get(row as usize / BLOCK_ROWS)?.rows.get(row as usize % BLOCK_ROWS)
    }

    /// Hands those rows to `each` that are not gone and may be at least as alike to what is asked for as `floor`, which is then
    /// what `each` says. Their embeddings are on their way from memory by then.
    pub fn scan<'a>(
        &'a self,
        asked: &SketchQuery,
        mut floor: f32,
        mut each: impl FnMut(&'a Arc<MemtableRow>) -> f32,
    ) {
        let mut at_most = [f32::INFINITY; BLOCK_ROWS];
        let mut likely: Vec<(u32, &'a Arc<MemtableRow>)> = Vec::with_capacity(BLOCK_ROWS);
        for (first, block) in (0..).step_by(BLOCK_ROWS).zip(&self.blocks) {
            match block.sketch.get() {
                Some(sketch) => sketch.at_most(asked, &mut at_most),
                None => at_most.fill(f32::INFINITY),
            }
            likely.clear();
            likely.extend((0..).zip(&block.rows).filter(|(at, _)| reaches(at_most[*at as usize], floor)));
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

    /// The rows that are not gone, with their numbers.
    pub fn live(&self) -> impl Iterator<Item = (u32, &Arc<MemtableRow>)> + '_ {
        let rows = self.blocks.iter().flat_map(|block| block.rows.iter());
        (0..).zip(rows).filter(|(row, _)| !self.deleted.contains(*row))
    }
}

/// Whether something that is `at_most` so alike may reach `floor`; what is no number says nothing about it.
fn reaches(at_most: f32, floor: f32) -> bool {
    at_most >= floor || at_most.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MemoryBudget;
    use crate::coarse::Metric;

    #[test]
    fn who_holds_a_part_keeps_it() {
        let budget = MemoryBudget::new(1 << 20);
        let mut memtable = Arc::new(Memtable::new(7));
        let add = |memtable: &mut Arc<Memtable>, id: u64| {
            let held = budget.reserve(row_bytes(2, 1, 0), "a row").unwrap();
            let row = MemtableRow {
                id,
                embedding: Box::new([id as f32, 0.0]),
                record: Box::new([1]),
                payload: Box::new([]),
                held,
            };
            Arc::make_mut(memtable).push(Arc::new(row))
        };
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
        assert!(held.row(300).is_none() && memtable.live().all(|(row, point)| u64::from(row) == point.id));
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
