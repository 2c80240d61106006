//! Conditions on the payload of a row, a JSON object, and on its id.
//!
//! A field that holds a list meets a condition if one of its elements does. A field that is absent,
//! null or an empty list is empty. It meets [`Condition::IsEmpty`] and no other condition. It does
//! not even meet [`Match::Except`], since it has no value to compare. A list of nulls has no value
//! to compare either, but is not empty, as in Qdrant.

use std::borrow::Cow;

use base::{Error, Result};
use serde_json::Value;

use super::geo::GEO_POINTS_MAX;
use super::path::{Bracket, Brackets, PathStep, first_step};
use super::text::{TEXT_QUERY_BYTES_MAX, TEXT_QUERY_WORDS_MAX};
use super::{GeoArea, IdSlice, MatchValues, RangeLimit, TextMatch, parse_date};

/// Maximum conditions of a filter, including those of nested filters.
pub(super) const CONDITIONS_MAX: usize = 1024;
/// Conditions that a slice counts as. In a segment it hashes the ids of all rows, about 10 ns each,
/// and no deadline ends that.
const SLICE_CONDITIONS: usize = 64;
/// Maximum levels of nested filters.
pub const DEPTH_MAX: usize = 16;
/// Maximum values or ids of one condition.
pub const VALUES_MAX: usize = 65_536;

/// Conditions that a row must meet together. A filter without conditions allows every row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// All of these must be met.
    pub must: Vec<Condition>,
    /// At least one of these must be met, unless the list is empty.
    pub should: Vec<Condition>,
    /// None of these may be met.
    pub must_not: Vec<Condition>,
    /// A number of these must be met.
    pub min_should: Option<MinShould>,
}

/// Conditions of which a number must be met.
#[derive(Clone, Debug, PartialEq)]
pub struct MinShould {
    /// Conditions, each of which counts once.
    pub conditions: Vec<Condition>,
    /// Minimum conditions that a row meets.
    pub min_count: usize,
}

/// A condition that a row meets or not.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A value of the field matches.
    Match {
        /// The field's path, as [`first_step`] reads it. It has names joined by dots, and `[]` or a
        /// number in brackets to go into a list.
        key: String,
        /// The comparison.
        matching: Match,
    },
    /// The field has a number within limits.
    Range {
        /// The field's path, as in [`Condition::Match`].
        key: String,
        /// The limits.
        range: Range,
    },
    /// The field has a number within limits, of which at least one is a whole number whose float
    /// other whole numbers have too.
    WholeRange {
        /// The field's path, as in [`Condition::Match`].
        key: String,
        /// The limits.
        range: WholeRange,
    },
    /// The field has a text that is a date within limits.
    DateRange {
        /// The field's path, as in [`Condition::Match`].
        key: String,
        /// Accepted dates.
        range: DateRange,
    },
    /// The field has a number of values within limits. A list has one value for each element. Null
    /// has none.
    ValuesCount {
        /// The field's path, as in [`Condition::Match`].
        key: String,
        /// Accepted numbers of values.
        range: CountRange,
    },
    /// The row's internal id is one of these, in ascending order (see [`Condition::has_id`]).
    HasId(Vec<u64>),
    /// The row belongs to a slice of all rows. An object inside a payload belongs to none.
    Slice(IdSlice),
    /// The field is absent, null or an empty list.
    IsEmpty {
        /// The field's path, as in [`Condition::Match`].
        key: String,
    },
    /// The field is null, or a list with null.
    IsNull {
        /// The field's path, as in [`Condition::Match`].
        key: String,
    },
    /// The field has a point in an area.
    Geo {
        /// The field's path, as in [`Condition::Match`].
        key: String,
        /// The area.
        area: GeoArea,
    },
    /// The row has a vector of a name.
    HasVector {
        /// The name.
        name: String,
        /// True if rows of the collection have it. The reader of the filter does not know it. The
        /// collection's interface sets it before the evaluation.
        is_present: bool,
    },
    /// One object of a list in the field meets all conditions of a filter. Ids and vectors are no
    /// part of such an object.
    Element {
        /// The path of the list, as in [`Condition::Match`].
        key: String,
        /// The filter. Its paths begin in the object.
        filter: Filter,
    },
    /// All conditions of another filter are met.
    Nested(Filter),
}

/// Comparison of a value. Numbers are equal if their values are: 1 equals 1.0.
#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    /// Equal to this string, number or truth value.
    Value(Value),
    /// Equal to one of these.
    Any(MatchValues),
    /// Different from all of these.
    Except(MatchValues),
    /// A text with these words.
    Text(TextMatch),
    /// A text that begins with this text.
    Prefix(String),
    /// A text that contains this text.
    Substring(String),
}

/// Limits of a value. `None` does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueLimits<T> {
    /// The value is greater.
    pub gt: Option<T>,
    /// The value is greater or equal.
    pub gte: Option<T>,
    /// The value is less.
    pub lt: Option<T>,
    /// The value is less or equal.
    pub lte: Option<T>,
}

/// Limits of a number of the payload.
pub type Range = ValueLimits<f64>;
/// Limits of a number of the payload, exact for whole numbers.
pub type WholeRange = ValueLimits<RangeLimit>;
/// Limits of a date, in microseconds since 1970 in UTC, as [`super::parse_date`] returns it.
pub type DateRange = ValueLimits<i64>;
/// Limits of a number of values.
pub type CountRange = ValueLimits<u64>;

impl Filter {
    /// Returns the conditions of the filter itself, not of nested filters.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let min_should = self.min_should.iter().flat_map(|min| &min.conditions);
        self.must.iter().chain(&self.should).chain(&self.must_not).chain(min_should)
    }

    /// Returns the memory that an evaluation by indexes needs at once, at most, in bits per row.
    pub fn working_sets(&self) -> u64 {
        let nested = self.conditions().map(|condition| match condition {
            Condition::Nested(filter) => filter.working_sets(),
            _ => 0,
        });
        // `min_should` counts rows in two lists of 16 bits. A level has up to four sets.
        let counts = if self.min_should.is_some() { 2 * 16 } else { 0 };
        4 + counts + nested.max().unwrap_or(0)
    }

    /// Returns the conditions of the filter itself, not of nested filters.
    pub fn conditions_mut(&mut self) -> impl Iterator<Item = &mut Condition> {
        let min_should = self.min_should.iter_mut().flat_map(|min| &mut min.conditions);
        self.must.iter_mut().chain(&mut self.should).chain(&mut self.must_not).chain(min_should)
    }

    /// Checks that the filter is small enough to be evaluated for every row.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 1,024 conditions, of which a slice counts as 64, or for more
    /// than [`DEPTH_MAX`] levels. Also for more than [`VALUES_MAX`] values in a condition, for a
    /// text or an area above its limit, and for a field without a name.
    pub fn check(&self) -> Result<()> {
        let mut conditions = 0;
        self.check_within(1, &mut conditions)
    }

    fn check_within(&self, depth: usize, conditions: &mut usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!(
                "a filter is nested deeper than {DEPTH_MAX} levels; write it with fewer levels"
            )));
        }
        for condition in self.conditions() {
            let is_slice = matches!(condition, Condition::Slice(_));
            *conditions += if is_slice { SLICE_CONDITIONS } else { 1 };
            if *conditions > CONDITIONS_MAX {
                return Err(Error::invalid(format!(
                    "a filter has more than {CONDITIONS_MAX} conditions; a slice counts as \
                     {SLICE_CONDITIONS}"
                )));
            }
            condition.check(depth, conditions)?;
        }
        Ok(())
    }

    /// Returns about how many bytes of memory the filter takes.
    pub fn memory_bytes(&self) -> u64 {
        self.conditions().map(Condition::memory_bytes).sum()
    }

    /// Splits off the ids that the filter excludes. They differ from query to query, while the rest
    /// of the filter is mostly the same. Returns the rest and those ids.
    pub fn without_ids(&self) -> (Cow<'_, Filter>, Vec<u64>) {
        let (ids, others): (Vec<&Condition>, Vec<&Condition>) =
            self.must_not.iter().partition(|condition| matches!(condition, Condition::HasId(_)));
        let excluded = ids.iter().flat_map(|condition| match condition {
            Condition::HasId(ids) => &ids[..],
            _ => &[],
        });
        let excluded = excluded.copied().collect();
        let alone = self.should.is_empty() && self.min_should.is_none() && others.is_empty();
        let rest = match (&self.must[..], alone) {
            ([Condition::Nested(filter)], true) => Cow::Borrowed(filter.unwrapped()),
            _ if ids.is_empty() => Cow::Borrowed(self),
            (must, _) => Cow::Owned(Filter {
                must: must.to_vec(),
                should: self.should.clone(),
                must_not: others.into_iter().cloned().collect(),
                min_should: self.min_should.clone(),
            }),
        };
        (rest, excluded)
    }

    /// Returns the innermost filter of filters that consist of one nested filter only.
    fn unwrapped(&self) -> &Filter {
        let alone = self.should.is_empty() && self.min_should.is_none() && self.must_not.is_empty();
        match (&self.must[..], alone) {
            ([Condition::Nested(filter)], true) => filter.unwrapped(),
            _ => self,
        }
    }

    /// Returns true if the filter has no conditions and so allows every row.
    pub fn is_empty(&self) -> bool {
        self.must.is_empty()
            && self.should.is_empty()
            && self.must_not.is_empty()
            && self.min_should.is_none()
    }

    /// Returns true if the filter allows a row with this internal id and payload.
    pub fn matches(&self, id: u64, payload: &Value) -> bool {
        self.meets(Some(id), payload)
    }

    /// As [`Filter::matches`]. `id` is `None` for an object inside a payload.
    fn meets(&self, id: Option<u64>, payload: &Value) -> bool {
        self.must.iter().all(|condition| condition.meets(id, payload))
            && (self.should.is_empty()
                || self.should.iter().any(|condition| condition.meets(id, payload)))
            && !self.must_not.iter().any(|condition| condition.meets(id, payload))
            && self.min_should.as_ref().is_none_or(|min| {
                let met = min.conditions.iter().filter(|it| it.meets(id, payload));
                met.take(min.min_count).count() == min.min_count
            })
    }
}

impl Condition {
    /// Returns the condition that a row's internal id is one of `ids`, in any order.
    pub fn has_id(mut ids: Vec<u64>) -> Condition {
        ids.sort_unstable();
        Condition::HasId(ids)
    }

    fn memory_bytes(&self) -> u64 {
        let (key, values) = match self {
            Condition::Match { key, matching } => (key.len(), matching.memory_bytes()),
            Condition::Range { key, .. }
            | Condition::WholeRange { key, .. }
            | Condition::DateRange { key, .. }
            | Condition::ValuesCount { key, .. }
            | Condition::IsEmpty { key }
            | Condition::IsNull { key } => (key.len(), 0),
            Condition::HasId(ids) => (0, std::mem::size_of_val(&ids[..]) as u64),
            Condition::Slice(_) => (0, 0),
            Condition::Geo { key, area } => (key.len(), area.memory_bytes()),
            Condition::HasVector { name, .. } => (name.len(), 0),
            Condition::Element { key, filter } => (key.len(), filter.memory_bytes()),
            Condition::Nested(filter) => (0, filter.memory_bytes()),
        };
        std::mem::size_of::<Condition>() as u64 + key as u64 + values
    }

    /// Checks the limits of a condition at `depth`, and adds it to the number of `conditions`.
    fn check(&self, depth: usize, conditions: &mut usize) -> Result<()> {
        let (key, values) = match self {
            Condition::Match { key, matching: Match::Value(_) } => (Some(key), 1),
            Condition::Match { key, matching: Match::Any(values) | Match::Except(values) } => {
                (Some(key), values.len())
            }
            Condition::Match { key, matching } => {
                matching.check_text()?;
                (Some(key), 1)
            }
            Condition::Geo { key, area } => {
                if area.points() > GEO_POINTS_MAX {
                    return Err(Error::invalid(format!(
                        "a filter's condition has an area of more than {GEO_POINTS_MAX} points"
                    )));
                }
                (Some(key), 1)
            }
            Condition::HasVector { .. } | Condition::Slice(_) => (None, 1),
            Condition::Element { key, filter } => {
                filter.check_within(depth + 1, conditions)?;
                (Some(key), 0)
            }
            Condition::Range { key, .. }
            | Condition::WholeRange { key, .. }
            | Condition::DateRange { key, .. }
            | Condition::ValuesCount { key, .. }
            | Condition::IsEmpty { key }
            | Condition::IsNull { key } => (Some(key), 0),
            Condition::HasId(ids) => (None, ids.len()),
            Condition::Nested(filter) => return filter.check_within(depth + 1, conditions),
        };
        if key.is_some_and(|key| key.is_empty()) {
            return Err(Error::invalid("a filter's condition names no field; give its key"));
        }
        if values > VALUES_MAX {
            return Err(Error::invalid(format!(
                "a filter's condition names more than {VALUES_MAX} values"
            )));
        }
        Ok(())
    }

    /// Returns true if a point meets the condition. `id` is its internal id, or `None` for an
    /// element of a payload, which has no id and no vector.
    fn meets(&self, id: Option<u64>, payload: &Value) -> bool {
        match self {
            Condition::Match { key, matching } => {
                any_value(payload, key, &mut |value| matching.accepts(value))
            }
            Condition::Range { key, range } => any_value(payload, key, &mut |value| {
                value.as_f64().is_some_and(|value| range.contain(value))
            }),
            Condition::WholeRange { key, range } => any_value(payload, key, &mut |value| {
                value.as_number().is_some_and(|number| range.contain_number(number))
            }),
            Condition::DateRange { key, range } => any_value(payload, key, &mut |value| {
                value.as_str().and_then(parse_date).is_some_and(|date| range.contain(date))
            }),
            Condition::ValuesCount { key, range } => has_count(payload, key, range),
            Condition::HasId(ids) => id.is_some_and(|id| ids.binary_search(&id).is_ok()),
            // The payload has the ids of UUIDs.
            Condition::Slice(slice) => id.is_some_and(|id| slice.contains_stored(id, payload)),
            Condition::Geo { key, area } => {
                any_value(payload, key, &mut |value| area.accepts(value))
            }
            Condition::HasVector { is_present, .. } => *is_present && id.is_some(),
            Condition::Element { key, filter } => any_element(payload, key, filter),
            Condition::IsEmpty { key } => !any_found(payload, key, &mut |value| match value {
                Value::Null => false,
                Value::Array(elements) => !elements.is_empty(),
                _ => true,
            }),
            Condition::IsNull { key } => null_at(payload, key),
            Condition::Nested(filter) => filter.meets(id, payload),
        }
    }
}

impl Match {
    fn memory_bytes(&self) -> u64 {
        let one = |value: &Value| {
            let text = value.as_str().map_or(0, str::len);
            (std::mem::size_of::<Value>() + text) as u64
        };
        match self {
            Match::Value(value) => one(value),
            // The lookup table has a second copy of each.
            Match::Any(values) | Match::Except(values) => 2 * values.iter().map(one).sum::<u64>(),
            Match::Text(text) => text.memory_bytes(),
            Match::Prefix(text) | Match::Substring(text) => text.len() as u64,
        }
    }

    /// Checks that a text is short enough to be compared with every row.
    fn check_text(&self) -> Result<()> {
        let (bytes, words) = match self {
            Match::Text(text) => (text.query_bytes(), text.words()),
            Match::Prefix(text) | Match::Substring(text) => (text.len(), 1),
            Match::Value(_) | Match::Any(_) | Match::Except(_) => (0, 0),
        };
        if bytes > TEXT_QUERY_BYTES_MAX || words > TEXT_QUERY_WORDS_MAX {
            return Err(Error::invalid(format!(
                "a filter's condition looks for a text of {bytes} bytes and {words} words; at most \
                 {TEXT_QUERY_BYTES_MAX} and {TEXT_QUERY_WORDS_MAX} are possible"
            )));
        }
        Ok(())
    }

    fn accepts(&self, value: &Value) -> bool {
        match self {
            Match::Value(wanted) => same(wanted, value),
            Match::Any(wanted) => wanted.has(value),
            Match::Except(unwanted) => !unwanted.has(value),
            Match::Text(wanted) => value.as_str().is_some_and(|text| wanted.accepts(text)),
            Match::Prefix(wanted) => value.as_str().is_some_and(|text| text.starts_with(wanted)),
            Match::Substring(wanted) => value.as_str().is_some_and(|text| text.contains(wanted)),
        }
    }
}

impl<T: PartialOrd + Copy> ValueLimits<T> {
    /// Returns true if `value` is within the limits.
    pub fn contain(&self, value: T) -> bool {
        self.gt.is_none_or(|limit| value > limit)
            && self.gte.is_none_or(|limit| value >= limit)
            && self.lt.is_none_or(|limit| value < limit)
            && self.lte.is_none_or(|limit| value <= limit)
    }
}

/// Returns true if two values are equal. Whole numbers are compared exactly, others as 64-bit
/// floats.
pub fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (either_float(one, other) && one.as_f64() == other.as_f64())
        }
        _ => one == other,
    }
}

fn either_float(one: &serde_json::Number, other: &serde_json::Number) -> bool {
    one.is_f64() || other.is_f64()
}

/// Calls `visit` for every value under `path`, and for each element of a list instead of the list.
/// Null is not a value.
pub fn each_value(value: &Value, path: &str, visit: &mut dyn FnMut(&Value)) {
    any_value(value, path, &mut |value| {
        visit(value);
        false
    });
}

/// Returns true if `accepts` does for one of the values under `path`, as [`each_value`] visits
/// them.
fn any_value(value: &Value, path: &str, accepts: &mut dyn FnMut(&Value) -> bool) -> bool {
    let PathStep { name, brackets, rest, .. } = first_step(path);
    value.get(name).is_some_and(|found| any_value_of(found, brackets, rest, accepts))
}

/// Returns true if `accepts` does for a value under `found`, which is the value of a step's name.
/// `brackets` are the brackets after this name, and `rest` is the path after this step.
fn any_value_of(
    found: &Value,
    brackets: Brackets<'_>,
    rest: Option<&str>,
    accepts: &mut dyn FnMut(&Value) -> bool,
) -> bool {
    match (brackets.split_first(), rest, found) {
        (None, Some(rest), found) => any_value(found, rest, accepts),
        (None, None, Value::Null) => false,
        (None, None, Value::Array(elements)) => {
            elements.iter().any(|element| !element.is_null() && accepts(element))
        }
        (None, None, found) => accepts(found),
        // As in Qdrant, `a[]` has the elements of a list in the list, and `a` has that list.
        (Some((Bracket::Each, more)), _, Value::Array(elements)) => {
            elements.iter().any(|element| any_value_of(element, more, rest, accepts))
        }
        (Some((Bracket::At(at), more)), _, Value::Array(elements)) => {
            elements.get(at).is_some_and(|element| any_value_of(element, more, rest, accepts))
        }
        (Some(_), ..) => false,
    }
}

/// Calls `accepts` for every value under `path`, null and whole lists included. Returns true once
/// it does.
fn any_found(value: &Value, path: &str, accepts: &mut dyn FnMut(&Value) -> bool) -> bool {
    let PathStep { name, brackets, rest, .. } = first_step(path);
    value.get(name).is_some_and(|found| any_found_in(found, brackets, rest, accepts))
}

/// Returns true if `accepts` does for a value or a null under `found`, as in [`any_found`].
/// `found`, `brackets` and `rest` are those of [`any_value_of`].
fn any_found_in(
    found: &Value,
    brackets: Brackets<'_>,
    rest: Option<&str>,
    accepts: &mut dyn FnMut(&Value) -> bool,
) -> bool {
    match (brackets.split_first(), found) {
        (None, found) => match rest {
            None => accepts(found),
            Some(rest) => any_found(found, rest, accepts),
        },
        (Some((Bracket::Each, more)), Value::Array(elements)) => {
            elements.iter().any(|element| any_found_in(element, more, rest, accepts))
        }
        (Some((Bracket::At(at), more)), Value::Array(elements)) => {
            elements.get(at).is_some_and(|element| any_found_in(element, more, rest, accepts))
        }
        (Some(_), _) => false,
    }
}

/// Returns true if an object of a list under `path` meets `filter`. `[]` at the end of the path has
/// no effect.
fn any_element(payload: &Value, path: &str, filter: &Filter) -> bool {
    let path = path.strip_suffix("[]").unwrap_or(path);
    any_found(payload, path, &mut |found| match found {
        Value::Array(elements) => {
            elements.iter().any(|element| element.is_object() && filter.meets(None, element))
        }
        _ => false,
    })
}

/// Returns true if there is a null under `path`, or in a list under it.
pub fn null_at(value: &Value, path: &str) -> bool {
    any_found(value, path, &mut |found| match found {
        Value::Array(elements) => elements.iter().any(Value::is_null),
        found => found.is_null(),
    })
}

/// Returns true if a value under `path` has a number of values within `range`. Without a value
/// that number is 0.
fn has_count(payload: &Value, path: &str, range: &CountRange) -> bool {
    let mut found = false;
    let met = any_found(payload, path, &mut |value| {
        found = true;
        range.contain(match value {
            Value::Null => 0,
            Value::Array(elements) => elements.len() as u64,
            _ => 1,
        })
    });
    met || (!found && range.contain(0))
}

#[cfg(test)]
#[path = "condition_tests.rs"]
mod tests;
