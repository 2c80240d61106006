//! Facets: counts points by the value of a payload field.

use std::collections::HashMap;
use std::ops::ControlFlow;

use base::{Error, ErrorKind, Result};
use serde_json::Value;

use super::filters::value_of;
use super::inner::Collection;
use super::scan::{PayloadScan, ScanStep};
use super::state::SegmentView;
use crate::budget::BudgetReservation;
use crate::filter::{Filter, RowSet, each_value};
use crate::payload_index::{
    ExactNumber, KeyOf, KeyRef, TEXT_BYTES_MAX as INDEXED_BYTES_MAX, ValueCounts,
};

/// Maximum different values of one call.
pub(crate) const FACET_VALUES_MAX: usize = 65_536;
/// Maximum bytes of the texts of all values.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Bytes of a value besides its text: its entry in a hash table that may be half empty or growing,
/// and in the sorted list.
const VALUE_BYTES: usize = 192;
/// Step in which memory is reserved.
const STEP_BYTES: usize = 1 << 20;

/// Value of a payload field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FacetValue {
    /// Truth value.
    Bool(bool),
    /// Whole number.
    Whole(i64),
    /// String.
    Text(String),
}

impl FacetValue {
    /// Converts a value; `None` for values that are not counted: fractions and objects.
    fn of(value: &Value) -> Option<FacetValue> {
        match value {
            Value::Bool(value) => Some(FacetValue::Bool(*value)),
            Value::Number(number) => number.as_i64().map(FacetValue::Whole),
            Value::String(text) => Some(FacetValue::Text(text.clone())),
            _ => None,
        }
    }

    /// Converts a value of an index; `None` for values that are not counted.
    fn of_key(key: KeyRef<'_>) -> Option<FacetValue> {
        match key {
            KeyOf::Bool(value) => Some(FacetValue::Bool(value)),
            KeyOf::Number(number) => match number.exact() {
                ExactNumber::Signed(value) => Some(FacetValue::Whole(value)),
                ExactNumber::Float | ExactNumber::Unsigned(_) => None,
            },
            KeyOf::Date(_) => None,
            KeyOf::Text(text) => Some(FacetValue::Text(text.to_owned())),
        }
    }

    fn text_bytes(&self) -> usize {
        if let FacetValue::Text(text) = self { text.len() } else { 0 }
    }
}

/// Values and their numbers of points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facet {
    /// Most frequent value first; equally frequent ones in their own order.
    pub hits: Vec<(FacetValue, u64)>,
    /// True if points may be missing because data is damaged or a segment is not open yet.
    pub partial: bool,
}

/// Counts by value, and the memory they take.
struct FacetCounts {
    counts: HashMap<FacetValue, u64>,
    text_bytes: usize,
    /// Values of the current point, each counted once.
    of_point: Vec<FacetValue>,
    held: BudgetReservation,
    /// Error that ended the count.
    refusal: Option<Error>,
}

impl FacetCounts {
    fn new(held: BudgetReservation) -> FacetCounts {
        FacetCounts {
            counts: HashMap::new(),
            text_bytes: 0,
            of_point: Vec::new(),
            held,
            refusal: None,
        }
    }

    /// Adds the values of a point whose texts have at least `least_bytes` bytes.
    fn add(&mut self, payload: &Value, key: &str, least_bytes: usize) {
        let mut values = std::mem::take(&mut self.of_point);
        each_value(payload, key, &mut |value| values.extend(FacetValue::of(value)));
        values.retain(|value| value.text_bytes() >= least_bytes);
        values.sort_unstable();
        values.dedup();
        for value in values.drain(..) {
            self.add_points(value, 1, key);
        }
        self.of_point = values;
    }

    fn add_points(&mut self, value: FacetValue, points: u64, key: &str) {
        if let Some(count) = self.counts.get_mut(&value) {
            *count += points;
        } else if self.refusal.is_none() {
            self.refusal = self.add_value(value, points, key).err();
        }
    }

    fn add_value(&mut self, value: FacetValue, points: u64, key: &str) -> Result<()> {
        let text_bytes = self.text_bytes + value.text_bytes();
        if self.counts.len() == FACET_VALUES_MAX || text_bytes > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "\"{key}\" has more than {FACET_VALUES_MAX} different values, or more than {TEXT_BYTES_MAX} bytes of \
                 them: too many to count; filter for fewer points"
            )));
        }
        let needed = (text_bytes + (self.counts.len() + 1) * VALUE_BYTES) as u64;
        if needed > self.held.bytes() {
            self.held.resize(needed.next_multiple_of(STEP_BYTES as u64), "counting values")?;
        }
        self.text_bytes = text_bytes;
        self.counts.insert(value, points);
        Ok(())
    }

    /// Adds the allowed rows of a segment; all if `None`. Returns true if some could not be read.
    fn add_segment(
        &mut self,
        view: &SegmentView,
        key: &str,
        allow: Option<&RowSet>,
    ) -> Result<bool> {
        let mut found = Vec::new();
        let counted = view.segment.count_values(key, allow, &mut |value, points| {
            if found.len() <= FACET_VALUES_MAX
                && let Some(value) = FacetValue::of_key(value)
            {
                found.push((value, points));
            }
            Ok(())
        });
        let counted = match counted {
            // The payloads have their own checksums, so they can still be counted.
            Err(error) if error.kind() == ErrorKind::DataLoss => ValueCounts::Undecided,
            counted => counted?,
        };
        let mut read = |rows: &RowSet, least| self.add_payloads(view, key, rows, least);
        match counted {
            ValueCounts::Undecided => match allow {
                Some(allow) => read(allow, 0),
                None => read(&RowSet::all(view.segment.rows()), 0),
            },
            ValueCounts::WithoutLongTexts(mut rows) => {
                if let Some(allow) = allow {
                    rows.intersect(allow);
                }
                let lost = read(&rows, INDEXED_BYTES_MAX + 1)?;
                found.into_iter().for_each(|(value, points)| self.add_points(value, points, key));
                Ok(lost)
            }
            ValueCounts::Complete => {
                found.into_iter().for_each(|(value, points)| self.add_points(value, points, key));
                Ok(false)
            }
        }
    }

    /// Adds the payloads of some rows. Returns true if some could not be read.
    fn add_payloads(
        &mut self,
        view: &SegmentView,
        key: &str,
        rows: &RowSet,
        least_bytes: usize,
    ) -> Result<bool> {
        let mut unreadable = false;
        let mut scan = PayloadScan::new();
        let pass = view.segment.payloads_of(rows, 0, &mut |_, bytes| {
            if scan.next_row() != ScanStep::Read || self.refusal.is_some() {
                return ControlFlow::Break(());
            }
            match value_of(bytes) {
                Some(payload) => self.add(&payload, key, least_bytes),
                None => unreadable = true,
            }
            ControlFlow::Continue(())
        })?;
        scan.check(&format!("\"{key}\" has no index"))?;
        Ok(unreadable || pass.lost > 0)
    }

    fn check(&self) -> Result<()> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// Returns the `max` most frequent values.
    fn top(self, max: usize) -> Vec<(FacetValue, u64)> {
        let mut hits: Vec<(FacetValue, u64)> = self.counts.into_iter().collect();
        hits.sort_unstable_by(|(one, count), (other, than)| {
            than.cmp(count).then_with(|| one.cmp(other))
        });
        hits.truncate(max);
        hits
    }
}

impl Collection {
    /// Counts the points that match `filter` by the value of the payload field `key` (a path as in
    /// a filter) and returns the `max` most frequent values. Counts are exact. They come from the
    /// payload index, or from payloads for a field without one.
    ///
    /// # Errors
    /// As [`Collection::ids_from`]; `InvalidArgument` for an empty key or more than
    /// `FACET_VALUES_MAX` values; `ResourceExhausted` if the memory limit has no room for the
    /// values.
    pub fn facet(&self, key: &str, clause: Option<&Filter>, max: usize) -> Result<Facet> {
        if key.is_empty() {
            return Err(Error::invalid("a facet names no field; give its key"));
        }
        let state = self.state();
        let mut counts =
            FacetCounts::new(self.budget.reserve(STEP_BYTES as u64, "counting values")?);
        let mut partial = self.is_partial(&state);
        for (_, _, view) in state.open() {
            self.check_open()?;
            let filtered = self.filtered(clause, view, &mut partial)?;
            let allow = filtered.as_ref().or(view.allowed().map(|allowed| &**allowed));
            partial |= counts.add_segment(view, key, allow)?;
            counts.check()?;
        }
        for row in state.memtables.iter().flat_map(|memtable| memtable.live().map(|(_, row)| row)) {
            match value_of(&row.payload) {
                Some(payload) if clause.is_none_or(|clause| clause.matches(row.id, &payload)) => {
                    counts.add(&payload, key, 0);
                }
                Some(_) => {}
                None => partial = true,
            }
        }
        counts.check()?;
        Ok(Facet { hits: counts.top(max), partial })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MemoryBudget;
    use base::ErrorKind;
    use serde_json::json;

    fn counts(budget: u64) -> FacetCounts {
        FacetCounts::new(MemoryBudget::new(budget).reserve(0, "a test").unwrap())
    }

    #[test]
    fn a_point_counts_once_for_each_value() {
        let mut counts = counts(STEP_BYTES as u64);
        for payload in [
            json!({"a": ["x", "x", 1, 1.5, null, true]}),
            json!({"a": "x"}),
            json!({"a": {"b": 1}}),
            json!({"b": "x"}),
            json!({"a": 1}),
            Value::Null,
        ] {
            counts.add(&payload, "a", 0);
        }
        let text = FacetValue::Text("x".into());
        let one = FacetValue::Whole(1);
        let yes = FacetValue::Bool(true);
        assert_eq!(counts.top(9), [(one, 2), (text, 2), (yes, 1)]);
    }

    #[test]
    fn values_texts_and_memory_are_limited() {
        let mut values = counts(1 << 30);
        (0..FACET_VALUES_MAX).for_each(|value| values.add(&json!({"a": value}), "a", 0));
        values.add(&json!({"a": 0}), "a", 0);
        assert!(values.check().is_ok(), "a known value takes no more room");
        values.add(&json!({"a": -1}), "a", 0);
        assert!(values.check().unwrap_err().message().contains("too many to count"));
        let mut texts = counts(1 << 30);
        texts.add(&json!({"a": "x".repeat(TEXT_BYTES_MAX)}), "a", 0);
        assert!(texts.check().is_ok());
        texts.add(&json!({"a": "y"}), "a", 0);
        assert_eq!(texts.check().unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mut memory = counts(STEP_BYTES as u64);
        (0..STEP_BYTES / VALUE_BYTES).for_each(|value| memory.add(&json!({"a": value}), "a", 0));
        assert!(memory.check().is_ok());
        memory.add(&json!({"a": -1}), "a", 0);
        assert_eq!(memory.check().unwrap_err().kind(), ErrorKind::ResourceExhausted);
    }
}
