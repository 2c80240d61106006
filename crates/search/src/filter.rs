//! Filters: conditions on payloads and ids, and the sets of rows that meet them.
//!
//! A filter is evaluated before ranking, so that a search for ten rows finds ten even if few are
//! allowed. The conditions are those of Qdrant's filters. `api-qdrant` reads them from JSON.

mod condition;
mod date;
mod row_set;
mod values;

pub use condition::{
    Condition, CountRange, DEPTH_MAX, DateRange, Filter, Match, MinShould, Range, VALUES_MAX,
    ValueLimits, each_value,
};
#[cfg(test)]
pub(crate) use condition::{null_at, same};
pub use date::parse_date;
pub use row_set::RowSet;
pub use values::MatchValues;
