//! Changes of vectors, and conditions under which points are written.

use serde_json::Value;

use super::PointId;
use crate::filter::Filter;

/// A new vector of a point that exists.
#[derive(Clone, Copy, Debug)]
pub struct VectorChange<'a> {
    /// The point's id.
    pub id: PointId,
    /// The vector, with as many values as the collection has dimensions.
    pub embedding: &'a [f32],
}

/// Points that an upsert writes, by their existence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpsertMode {
    /// New points and points that exist.
    #[default]
    All,
    /// New points.
    InsertOnly,
    /// Points that exist.
    UpdateOnly,
}

/// Condition under which an upsert writes a point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpsertCondition {
    /// Existence of the point.
    pub mode: UpsertMode,
    /// Filter that a point that exists must match to be replaced.
    pub filter: Option<Filter>,
}

impl UpsertCondition {
    /// Returns true if every point meets the condition.
    pub fn is_always(&self) -> bool {
        self.mode == UpsertMode::All && self.filter.is_none()
    }

    /// Returns true if a point may be written. `stored` is the stored payload of the point with its
    /// internal id, or `None` if the point does not exist.
    pub(crate) fn permits(&self, internal: u64, stored: Option<&[u8]>) -> bool {
        match stored {
            None => self.mode != UpsertMode::UpdateOnly,
            Some(_) if self.mode == UpsertMode::InsertOnly => false,
            Some(payload) => {
                self.filter.as_ref().is_none_or(|filter| accepts(filter, internal, payload))
            }
        }
    }
}

/// Returns true if a filter accepts the point of an internal id with a stored payload.
pub(crate) fn accepts(filter: &Filter, internal: u64, payload: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(payload).unwrap_or_default();
    filter.matches(internal, &value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::filter::{Condition, Match};

    #[test]
    fn a_condition_is_checked_on_the_stored_point() {
        let matching = Match::Value(json!(1));
        let must = vec![Condition::Match { key: "n".to_owned(), matching }];
        let filter = Some(Filter { must, ..Filter::default() });
        let cases: [(UpsertMode, Option<Filter>, [bool; 3]); 5] = [
            (UpsertMode::All, None, [true, true, true]),
            (UpsertMode::InsertOnly, None, [true, false, false]),
            (UpsertMode::UpdateOnly, None, [false, true, true]),
            (UpsertMode::All, filter.clone(), [true, true, false]),
            (UpsertMode::UpdateOnly, filter, [false, true, false]),
        ];
        for (mode, filter, expected) in cases {
            let condition = UpsertCondition { mode, filter };
            let stored: [Option<&[u8]>; 3] = [None, Some(b"{\"n\":1}"), Some(b"")];
            assert_eq!(stored.map(|stored| condition.permits(7, stored)), expected, "{mode:?}");
        }
        assert!(UpsertCondition::default().is_always());
    }
}
