//! Which rows a search may find: a bitmap, and the conditions on payloads that make one.
//!
//! A filter is made before ranking, so that a search for ten rows finds ten even where few are allowed. The vocabulary
//! of conditions is that of Qdrant's filters, which clients know; reading it from their requests is not done here.

mod condition;
mod row_set;
mod values;

pub use condition::{CONDITIONS_MAX, Condition, DEPTH_MAX, Filter, Match, Range, VALUES_MAX, each_value};
pub use row_set::RowSet;
pub use values::MatchValues;
