//! How many points have which value of a payload's field.

use std::collections::HashMap;

use base::{Error, Result};
use serde_json::Value;

use super::filters::value_of;
use super::inner::Inner;
use crate::filter::{Clause, each_value};

/// Different values that one call counts at most.
pub const FACET_VALUES_MAX: usize = 65_536;
/// Bytes that their texts may take together.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// A value that points are counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FacetValue {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Whole(i64),
    /// A string.
    Text(String),
}

impl FacetValue {
    /// `None` for what is not counted: numbers that are not whole, objects.
    fn of(value: &Value) -> Option<FacetValue> {
        match value {
            Value::Bool(value) => Some(FacetValue::Bool(*value)),
            Value::Number(number) => number.as_i64().map(FacetValue::Whole),
            Value::String(text) => Some(FacetValue::Text(text.clone())),
            _ => None,
        }
    }
}

/// Values and how many points have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facet {
    /// The most frequent first, equally frequent ones in their order.
    pub hits: Vec<(FacetValue, u64)>,
    /// Whether points that belong here may not be counted, because something is damaged or not open yet.
    pub partial: bool,
}

/// Counts, and what they take.
#[derive(Default)]
struct Counts {
    counts: HashMap<FacetValue, u64>,
    text_bytes: usize,
    /// The values of one point: it counts once for each, however often its list has it.
    of_point: Vec<FacetValue>,
    too_many: bool,
}

impl Counts {
    fn add(&mut self, payload: &Value, key: &str) {
        self.of_point.clear();
        each_value(payload, key, &mut |value| {
            let value = FacetValue::of(value).filter(|value| !self.of_point.contains(value));
            self.of_point.extend(value);
        });
        for value in self.of_point.drain(..) {
            if let Some(count) = self.counts.get_mut(&value) {
                *count += 1;
                continue;
            }
            let bytes = if let FacetValue::Text(text) = &value { text.len() } else { 0 };
            if self.counts.len() == FACET_VALUES_MAX || self.text_bytes + bytes > TEXT_BYTES_MAX {
                self.too_many = true;
                return;
            }
            self.text_bytes += bytes;
            self.counts.insert(value, 1);
        }
    }

    fn check(&self, key: &str) -> Result<()> {
        match self.too_many {
            false => Ok(()),
            true => Err(Error::invalid(format!(
                "\"{key}\" has more than {FACET_VALUES_MAX} different values, or more than {TEXT_BYTES_MAX} bytes of \
                 them: too many to count; filter for fewer points"
            ))),
        }
    }

    /// The `max` most frequent.
    fn top(self, max: usize) -> Vec<(FacetValue, u64)> {
        let mut hits: Vec<(FacetValue, u64)> = self.counts.into_iter().collect();
        hits.sort_unstable_by(|(one, count), (other, than)| than.cmp(count).then_with(|| one.cmp(other)));
        hits.truncate(max);
        hits
    }
}

impl Inner {
    /// How many of the points that `clause` allows have which value under `key`; the `max` most frequent values. Every
    /// payload is read.
    pub(super) fn facet(&self, key: &str, clause: Option<&Clause>, max: usize) -> Result<Facet> {
        if key.is_empty() {
            return Err(Error::invalid("a facet names no field; give its key"));
        }
        let state = self.state();
        let (mut counts, mut partial) = (Counts::default(), self.is_partial(&state));
        for (_, _, view) in state.open() {
            self.go_on()?;
            let filtered = self.filtered(clause, view, &mut partial)?;
            let allow = filtered.as_ref().or(view.allowed().map(|allowed| &**allowed));
            let mut unreadable = false;
            let lost = view.segment.payloads(&mut |row, bytes| {
                if counts.too_many || allow.is_some_and(|allow| !allow.contains(row)) {
                    return;
                }
                match value_of(bytes) {
                    Some(payload) => counts.add(&payload, key),
                    None => unreadable = true,
                }
            })?;
            partial |= lost > 0 || unreadable;
            counts.check(key)?;
        }
        for row in state.parts.iter().flat_map(|part| part.live().map(|(_, row)| row)) {
            match value_of(&row.payload) {
                Some(payload) if clause.is_none_or(|clause| clause.matches(row.id, &payload)) => {
                    counts.add(&payload, key);
                }
                Some(_) => {}
                None => partial = true,
            }
        }
        counts.check(key)?;
        Ok(Facet { hits: counts.top(max), partial })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_point_counts_once_for_each_value_and_there_is_an_end_to_values() {
        let mut counts = Counts::default();
        for payload in [
            json!({"a": ["x", "x", 1, 1.5, null, true]}),
            json!({"a": "x"}),
            json!({"a": {"b": 1}}),
            json!({"b": "x"}),
            json!({"a": 1}),
            Value::Null,
        ] {
            counts.add(&payload, "a");
        }
        let (text, one, yes) = (FacetValue::Text("x".into()), FacetValue::Whole(1), FacetValue::Bool(true));
        assert_eq!(counts.top(9), [(one, 2), (text, 2), (yes, 1)]);
        let mut counts = Counts::default();
        (0..FACET_VALUES_MAX).for_each(|value| counts.add(&json!({"a": value}), "a"));
        assert!(counts.check("a").is_ok());
        counts.add(&json!({"a": 0}), "a");
        assert!(counts.check("a").is_ok(), "a known value takes no more room");
        counts.add(&json!({"a": -1}), "a");
        assert!(counts.check("a").unwrap_err().message().contains("too many to count"));
        let mut counts = Counts::default();
        counts.add(&json!({"a": "x".repeat(TEXT_BYTES_MAX)}), "a");
        assert!(counts.check("a").is_ok());
        counts.add(&json!({"a": "y"}), "a");
        assert!(counts.check("a").is_err());
    }
}
