//! Conditions on the payload of a row, a JSON object, and on its id.
//!
//! A field that holds a list meets a condition when one of its elements does. A field that is absent, null or an empty
//! list is empty: it meets [`Condition::IsEmpty`] and no other condition, `except` included, since there is no value
//! that could be compared.

use std::borrow::Cow;

use base::{Error, Result};
use serde_json::Value;

use super::{MatchValues, RowSet};

/// Conditions of a filter at most, those inside nested clauses included.
pub const CONDITIONS_MAX: usize = 1024;
/// How deep clauses may be nested.
pub const DEPTH_MAX: usize = 16;
/// Values or ids that one condition may name.
pub const VALUES_MAX: usize = 65_536;

/// Conditions that are met together. A clause without conditions allows everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// All of these are met.
    pub must: Vec<Condition>,
    /// Where there are any, at least one of these is met.
    pub should: Vec<Condition>,
    /// None of these is met.
    pub must_not: Vec<Condition>,
}

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// The field has a value that matches.
    Match {
        /// The field's path: names joined by dots, `[]` after a name whose list is meant element by element.
        key: String,
        /// What the value is compared with.
        matching: Match,
    },
    /// The field has a number within limits.
    Range {
        /// The field's path, as in [`Condition::Match`].
        key: String,
        /// The limits.
        range: Range,
    },
    /// The row's id is one of these, in ascending order (see [`Condition::has_id`]).
    HasId(Vec<u64>),
    /// The field is absent, null or an empty list.
    IsEmpty {
        /// The field's path, as in [`Condition::Match`].
        key: String,
    },
    /// The clause is met.
    Nested(Filter),
}

/// What a value is compared with. Numbers are equal when they mean the same: 1 and 1.0 are.
#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    /// This value: a string, a number or a truth value.
    Value(Value),
    /// One of these.
    Any(MatchValues),
    /// Some value that is none of these.
    Except(MatchValues),
}

/// Limits of a number; one that is absent does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// Greater than this.
    pub gt: Option<f64>,
    /// This or greater.
    pub gte: Option<f64>,
    /// Less than this.
    pub lt: Option<f64>,
    /// This or less.
    pub lte: Option<f64>,
}

impl Filter {
    /// Refuses a clause that is too large to be evaluated for every row.
    ///
    /// # Errors
    /// `InvalidArgument` over [`CONDITIONS_MAX`], [`DEPTH_MAX`] or [`VALUES_MAX`], or for a field without a name.
    pub fn check(&self) -> Result<()> {
        let mut conditions = 0;
        self.check_within(1, &mut conditions)
    }

    fn check_within(&self, depth: usize, conditions: &mut usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!(
                "a filter is nested deeper than {DEPTH_MAX}; write it flatter"
            )));
        }
        for condition in self.must.iter().chain(&self.should).chain(&self.must_not) {
            *conditions += 1;
            if *conditions > CONDITIONS_MAX {
                return Err(Error::invalid(format!("a filter has more than {CONDITIONS_MAX} conditions")));
            }
            condition.check(depth, conditions)?;
        }
        Ok(())
    }

    /// Whether the clause reads the payload at all; where it does not, [`Filter::matches`] may be given `Null`.
    pub fn needs_payload(&self) -> bool {
        self.must.iter().chain(&self.should).chain(&self.must_not).any(|condition| match condition {
            Condition::HasId(_) => false,
            Condition::Nested(clause) => clause.needs_payload(),
            _ => true,
        })
    }

    /// About how many bytes of memory it takes.
    pub fn memory_bytes(&self) -> u64 {
        let conditions = self.must.iter().chain(&self.should).chain(&self.must_not);
        conditions.map(Condition::memory_bytes).sum()
    }

    /// The clause without the ids that it excludes by itself, and those ids: they differ from query to query where the rest
    /// does not.
    pub fn without_ids(&self) -> (Cow<'_, Filter>, Vec<u64>) {
        let (ids, others): (Vec<&Condition>, Vec<&Condition>) =
            self.must_not.iter().partition(|condition| matches!(condition, Condition::HasId(_)));
        let excluded = ids.iter().flat_map(|condition| match condition {
            Condition::HasId(ids) => &ids[..],
            _ => &[],
        });
        let excluded = excluded.copied().collect();
        let rest = match (&self.must[..], self.should.is_empty() && others.is_empty()) {
            ([Condition::Nested(clause)], true) => Cow::Borrowed(clause.unwrapped()),
            _ if ids.is_empty() => Cow::Borrowed(self),
            (must, _) => Cow::Owned(Filter {
                must: must.to_vec(),
                should: self.should.clone(),
                must_not: others.into_iter().cloned().collect(),
            }),
        };
        (rest, excluded)
    }

    /// What it consists of, where that is one other clause.
    fn unwrapped(&self) -> &Filter {
        match (&self.must[..], self.should.is_empty() && self.must_not.is_empty()) {
            ([Condition::Nested(clause)], true) => clause.unwrapped(),
            _ => self,
        }
    }

    /// Whether it allows everything.
    pub fn is_empty(&self) -> bool {
        self.must.is_empty() && self.should.is_empty() && self.must_not.is_empty()
    }

    /// Whether a row with this id and payload is allowed.
    pub fn matches(&self, id: u64, payload: &Value) -> bool {
        self.must.iter().all(|condition| condition.matches(id, payload))
            && (self.should.is_empty() || self.should.iter().any(|condition| condition.matches(id, payload)))
            && !self.must_not.iter().any(|condition| condition.matches(id, payload))
    }

    /// The rows of 0 to `rows` that the clause allows. `fetch` gives a row's id and puts its payload, JSON text, into
    /// the buffer, which is cleared before; no text means no payload.
    ///
    /// # Errors
    /// What [`Filter::check`] refuses, what `fetch` returns, and `DataLoss` where a payload is not JSON.
    pub fn select(
        &self,
        rows: u32,
        mut fetch: impl FnMut(u32, &mut Vec<u8>) -> Result<u64>,
    ) -> Result<RowSet> {
        self.check()?;
        let reads = self.needs_payload();
        let (mut filter, mut text) = (RowSet::none(rows), Vec::new());
        for row in 0..rows {
            text.clear();
            let id = fetch(row, &mut text)?;
            let payload = if reads && !text.is_empty() { parse(row, &text)? } else { Value::Null };
            if self.matches(id, &payload) {
                filter.insert(row);
            }
        }
        Ok(filter)
    }
}

fn parse(row: u32, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).map_err(|error| {
        Error::data_loss(format!("the payload of row {row} is not JSON: {error}; write it again"))
    })
}

impl Condition {
    /// The row's id is one of `ids`.
    pub fn has_id(mut ids: Vec<u64>) -> Condition {
        ids.sort_unstable();
        Condition::HasId(ids)
    }

    fn memory_bytes(&self) -> u64 {
        let (key, values) = match self {
            Condition::Match { key, matching } => (key.len(), matching.memory_bytes()),
            Condition::Range { key, .. } | Condition::IsEmpty { key } => (key.len(), 0),
            Condition::HasId(ids) => (0, std::mem::size_of_val(&ids[..]) as u64),
            Condition::Nested(clause) => (0, clause.memory_bytes()),
        };
        std::mem::size_of::<Condition>() as u64 + key as u64 + values
    }

    fn check(&self, depth: usize, conditions: &mut usize) -> Result<()> {
        let (key, values) = match self {
            Condition::Match { key, matching: Match::Value(_) } => (Some(key), 1),
            Condition::Match { key, matching: Match::Any(values) | Match::Except(values) } => {
                (Some(key), values.len())
            }
            Condition::Range { key, .. } | Condition::IsEmpty { key } => (Some(key), 0),
            Condition::HasId(ids) => (None, ids.len()),
            Condition::Nested(clause) => return clause.check_within(depth + 1, conditions),
        };
        if key.is_some_and(|key| key.is_empty()) {
            return Err(Error::invalid("a filter's condition names no field; give its key"));
        }
        if values > VALUES_MAX {
            return Err(Error::invalid(format!("a filter's condition names more than {VALUES_MAX} values")));
        }
        Ok(())
    }

    fn matches(&self, id: u64, payload: &Value) -> bool {
        match self {
            Condition::Match { key, matching } => {
                any_value(payload, key, &mut |value| matching.accepts(value))
            }
            Condition::Range { key, range } => any_value(payload, key, &mut |value| range.accepts(value)),
            Condition::HasId(ids) => ids.binary_search(&id).is_ok(),
            Condition::IsEmpty { key } => !any_value(payload, key, &mut |_| true),
            Condition::Nested(clause) => clause.matches(id, payload),
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
            // The table that looks them up has each once more.
            Match::Any(values) | Match::Except(values) => 2 * values.iter().map(one).sum::<u64>(),
        }
    }

    fn accepts(&self, value: &Value) -> bool {
        match self {
            Match::Value(wanted) => same(wanted, value),
            Match::Any(wanted) => wanted.has(value),
            Match::Except(unwanted) => !unwanted.has(value),
        }
    }
}

impl Range {
    fn accepts(&self, value: &Value) -> bool {
        let Some(value) = value.as_f64() else { return false };
        self.gt.is_none_or(|limit| value > limit)
            && self.gte.is_none_or(|limit| value >= limit)
            && self.lt.is_none_or(|limit| value < limit)
            && self.lte.is_none_or(|limit| value <= limit)
    }
}

/// Whether two values are the same. Whole numbers are compared exactly, others as 64-bit floats.
pub(super) fn same(one: &Value, other: &Value) -> bool {
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

/// Hands every value under `path` to `give`: null is none, the elements of a list are several.
pub fn each_value(value: &Value, path: &str, give: &mut dyn FnMut(&Value)) {
    any_value(value, path, &mut |value| {
        give(value);
        false
    });
}

/// Whether `accepts` says yes to one of the values under `path`: null is none, the elements of a list are several.
fn any_value(value: &Value, path: &str, accepts: &mut dyn FnMut(&Value) -> bool) -> bool {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let (name, each) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
    let Some(found) = value.get(name) else { return false };
    match (rest, found) {
        (None, Value::Null) => false,
        (None, Value::Array(elements)) => {
            elements.iter().any(|element| !element.is_null() && accepts(element))
        }
        (None, found) => !each && accepts(found),
        (Some(rest), Value::Array(elements)) if each => {
            elements.iter().any(|element| any_value(element, rest, accepts))
        }
        (Some(rest), found) => !each && any_value(found, rest, accepts),
    }
}

#[cfg(test)]
#[path = "condition_tests.rs"]
mod tests;
