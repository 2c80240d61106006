//! Data that no segment has yet: the changes in the log, and the points in memory that they
//! produce.

mod memtable;
mod op;
mod sketch;

pub(crate) use memtable::{MEMTABLE_ROWS_MAX, Memtable, MemtableRow, RowBlock, row_bytes};
pub use op::{LoggedOp, Op, PointRef, StoredPoint};
pub(crate) use sketch::SketchQuery;
