//! Points that are not sealed yet, in memory, searched like all others.
//!
//! A query holds on to the part as it was when it began; a writer then copies what it changes: a list of pointers to
//! blocks, the last block of pointers to rows, a chunk of the bitmap. Rows themselves are never copied.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::sketch::{Asked, Sketch};
use crate::budget::Reservation;
use crate::deletes::Deletes;

/// Rows of a part at most.
pub const PART_ROWS_MAX: u32 = 1 << 20;
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
pub struct Row {
    /// What it is called by.
    pub id: u64,
    /// Its embedding.
    pub embedding: Box<[f32]>,
    /// Its record.
    pub record: Box<[u8]>,
    /// Its payload.
    pub payload: Box<[u8]>,
    /// The memory it takes.
    pub held: Reservation,
}

/// Bytes of memory that a row of these sizes takes.
pub fn row_bytes(dims: usize, record: usize, payload: usize) -> u64 {
    (dims * 4 + Sketch::row_bytes(dims) + record + payload) as u64 + ROW_OVERHEAD_BYTES
}

/// Rows of a part that lie side by side.
#[derive(Clone, Debug, Default)]
pub struct Block {
    rows: Vec<Arc<Row>>,
    /// Of a block that is full.
    sketch: OnceLock<Sketch>,
}

impl Block {
    /// Makes that ready which spares queries most rows of a full block. It takes a fraction of a millisecond, and queries get on
    /// without.
    pub fn sketch(&self) {
        self.sketch.get_or_init(|| Sketch::of(&self.rows));
    }
}

/// Rows in the order they came.
#[derive(Clone, Debug)]
pub struct Part {
    /// The number of the oldest log that holds changes of this part.
    pub log: u64,
    begun: Instant,
    blocks: Vec<Arc<Block>>,
    rows: u32,
    bytes: u64,
    dead: Deletes,
}

impl Part {
    /// An empty part whose changes are in the log `log` and later ones.
    pub fn new(log: u64) -> Part {
        Part {
            log,
            begun: Instant::now(),
            blocks: Vec::new(),
            rows: 0,
            bytes: 0,
            dead: Deletes::none(PART_ROWS_MAX),
        }
    }

    /// Since when there is this part.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Adds a row and gives its number. There must be room: fewer than [`PART_ROWS_MAX`] rows.
    pub fn push(&mut self, row: Arc<Row>) -> u32 {
        self.bytes += row.held.bytes();
        if (self.rows as usize).is_multiple_of(BLOCK_ROWS) {
            self.blocks.push(Arc::new(Block { rows: Vec::with_capacity(BLOCK_ROWS), ..Block::default() }));
        }
        if let Some(block) = self.blocks.last_mut() {
            Arc::make_mut(block).rows.push(row);
        }
        self.rows += 1;
        self.rows - 1
    }

    /// The block that the last row completed, if it did: for [`Block::sketch`].
    pub fn completed(&self) -> Option<Arc<Block>> {
        self.blocks.last().filter(|block| block.rows.len() == BLOCK_ROWS).cloned()
    }

    /// Marks a row as gone.
    pub fn bury(&mut self, row: u32) -> bool {
        self.dead.insert(row)
    }

    /// Whether a row is gone.
    pub fn is_dead(&self, row: u32) -> bool {
        self.dead.contains(row)
    }

    /// Which rows are gone.
    pub fn deletes(&self) -> &Deletes {
        &self.dead
    }

    /// How many rows are gone.
    pub fn dead(&self) -> u32 {
        self.dead.count()
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
    pub fn row(&self, row: u32) -> Option<&Arc<Row>> {
        self.blocks.get(row as usize / BLOCK_ROWS)?.rows.get(row as usize % BLOCK_ROWS)
    }

    /// Hands those rows to `each` that are not gone and may be at least as alike to what is asked for as `floor`, which is then
    /// what `each` says. Their embeddings are on their way from memory by then.
    pub fn scan<'a>(&'a self, asked: &Asked, mut floor: f32, mut each: impl FnMut(&'a Arc<Row>) -> f32) {
        let mut at_most = [f32::INFINITY; BLOCK_ROWS];
        let mut likely: Vec<(u32, &'a Arc<Row>)> = Vec::with_capacity(BLOCK_ROWS);
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
                if reaches(at_most[at as usize], floor) && !self.dead.contains(first + at) {
                    floor = each(row);
                }
            }
        }
    }

    /// The rows that are not gone, with their numbers.
    pub fn live(&self) -> impl Iterator<Item = (u32, &Arc<Row>)> + '_ {
        let rows = self.blocks.iter().flat_map(|block| block.rows.iter());
        (0..).zip(rows).filter(|(row, _)| !self.dead.contains(*row))
    }
}

/// Whether something that is `at_most` so alike may reach `floor`; what is no number says nothing about it.
fn reaches(at_most: f32, floor: f32) -> bool {
    at_most >= floor || at_most.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::coarse::Metric;

    #[test]
    fn who_holds_a_part_keeps_it() {
        let budget = Budget::new(1 << 20);
        let mut part = Arc::new(Part::new(7));
        let add = |part: &mut Arc<Part>, id: u64| {
            let held = budget.reserve(row_bytes(2, 1, 0), "a row").unwrap();
            let row = Row {
                id,
                embedding: Box::new([id as f32, 0.0]),
                record: Box::new([1]),
                payload: Box::new([]),
                held,
            };
            Arc::make_mut(part).push(Arc::new(row))
        };
        for id in 0..300 {
            assert_eq!(add(&mut part, id), id as u32);
        }
        let held = part.clone();
        add(&mut part, 300);
        assert!(Arc::make_mut(&mut part).bury(5));
        for part in [&*held, &*part] {
            let mut scanned = Vec::new();
            part.scan(&Asked::new(Metric::L2, &[0.0; 2]), f32::NEG_INFINITY, |row| {
                scanned.push(row.id);
                f32::NEG_INFINITY
            });
            assert!(part.live().map(|(_, row)| row.id).eq(scanned));
        }
        assert_eq!(
            (held.rows(), held.live().count(), part.rows(), part.live().count()),
            (300, 300, 301, 300)
        );
        assert!(part.is_dead(5) && !held.is_dead(5));
        assert_eq!(part.row(300).unwrap().id, 300);
        assert!(held.row(300).is_none() && part.live().all(|(row, point)| u64::from(row) == point.id));
        drop(part);
        assert_eq!(
            budget.stats().used,
            300 * row_bytes(2, 1, 0),
            "the dropped state's own row is free again"
        );
        drop(held);
        assert_eq!(budget.stats().used, 0);
    }
}
