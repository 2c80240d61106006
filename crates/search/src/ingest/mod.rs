//! What is not sealed yet: the changes in the log, and the points in memory that they make.

mod op;
mod part;
mod sketch;

pub use op::{Logged, Op, Point, StoredPoint};
pub use part::{Block, PART_ROWS_MAX, Part, Row, row_bytes};
pub use sketch::Asked;
