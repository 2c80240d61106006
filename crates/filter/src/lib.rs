//! Filters: conditions on payloads and ids of points.
//!
//! A filter is evaluated before ranking, so that a search for ten rows finds ten even if few are
//! allowed. The conditions are those of Qdrant's filters. `api-qdrant` reads them from JSON.
//!
//! # Modules
//! * `condition` has filters and their conditions, `path` the paths of payloads.
//! * Values that conditions compare: `values` has numbers and lists, `date`, `geo` and `text` the
//!   others.
//! * `id` has the ids of points, `slice` a part of all ids.

mod condition;
mod date;
mod geo;
mod id;
mod path;
mod slice;
mod text;
mod values;

pub use condition::{
    Condition, CountRange, DEPTH_MAX, DateRange, Filter, Match, MinShould, Range, VALUES_MAX,
    ValueLimits, WholeRange, each_value, null_at, same,
};
pub use date::parse_date;
pub use geo::{GEO_POINTS_MAX, GeoArea, GeoPoint};
pub use id::{NUMBERS_MAX, PointId, RESERVED_KEY, uuid_hash};
pub use path::{Bracket, Brackets, PathStep, check_path, first_step, is_indexable};
pub use slice::IdSlice;
pub use text::{
    TEXT_QUERY_BYTES_MAX, TEXT_QUERY_WORDS_MAX, TextMatch, TextMatchKind, Tokenizer, WordSplit,
};
pub use values::{MatchValues, RangeLimit};
