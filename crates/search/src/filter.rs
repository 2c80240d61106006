//! Filters: conditions on payloads and ids.
//!
//! A filter is evaluated before ranking, so that a search for ten rows finds ten even if few are
//! allowed. The conditions are those of Qdrant's filters. `api-qdrant` reads them from JSON.

mod condition;
mod date;
mod geo;
mod path;
mod slice;
mod text;
mod values;

#[cfg(test)]
pub(crate) use condition::same;
pub use condition::{
    Condition, CountRange, DEPTH_MAX, DateRange, Filter, Match, MinShould, Range, VALUES_MAX,
    ValueLimits, WholeRange, each_value, null_at,
};
pub use date::parse_date;
pub use geo::{GEO_POINTS_MAX, GeoArea, GeoPoint};
pub(crate) use path::is_indexable;
pub use path::{Bracket, Brackets, PathStep, check_path, first_step};
pub use slice::IdSlice;
pub use text::{
    TEXT_QUERY_BYTES_MAX, TEXT_QUERY_WORDS_MAX, TextMatch, TextMatchKind, Tokenizer, WordSplit,
};
pub use values::{MatchValues, RangeLimit};
