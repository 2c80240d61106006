//! Facets: counts points by the value of a payload field.

use std::collections::HashMap;

use base::{Error, ErrorKind, Result};
use coarse::RowSet;
use serde_json::Value;

use super::inner::Collection;
use super::points_pass::{KeptPasses, PointVisitor, PointsPass};
use super::scan::{self, PayloadScan, ScanStep};
use super::state::SegmentView;
use crate::budget::BudgetReservation;
use crate::filter::{Filter, each_value};
use crate::payload_index::{
    CountPosition, ExactNumber, KeyOf, KeyRef, TEXT_BYTES_MAX as INDEXED_BYTES_MAX, ValueCounts,
    ValueVisitor,
};

/// Maximum different values of one call.
pub(crate) const FACET_VALUES_MAX: usize = 65_536;
/// Maximum bytes of the texts of all values.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Bytes of a value besides its text. They are for its entry in a hash table, which may be half
/// empty or growing, and in the sorted list.
const VALUE_BYTES: usize = 192;
/// Step in which memory is reserved.
const STEP_BYTES: usize = 1 << 20;
/// Use of the memory, for errors.
const COUNTING: &str = "counting values";

/// Value of a payload field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FacetValue {
    /// Truth value.
    Bool(bool),
    /// Whole number of 64 bits with a sign.
    Whole(i64),
    /// Text, compared byte by byte.
    Text(String),
}

impl FacetValue {
    /// Converts a value. Returns `None` for fractions and objects, which are not counted.
    fn of(value: &Value) -> Option<FacetValue> {
        match value {
            Value::Bool(value) => Some(FacetValue::Bool(*value)),
            Value::Number(number) => number.as_i64().map(FacetValue::Whole),
            Value::String(text) => Some(FacetValue::Text(text.clone())),
            _ => None,
        }
    }

    /// Converts a value of an index. Returns `None` for values that are not counted.
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
    /// Most frequent value first. Equally frequent ones are in their own order.
    pub hits: Vec<(FacetValue, u64)>,
    /// True if points may be missing because data is damaged or a segment is not open yet.
    pub partial: bool,
}

/// Values of the current segment's index and their numbers of points. They are apart, because a
/// damaged index does not count.
#[derive(Default)]
struct IndexedValues {
    position: CountPosition,
    values: Vec<(FacetValue, u64)>,
    text_bytes: usize,
}

/// Visitor that collects the values of an index.
struct IndexVisitor<'a> {
    key: &'a str,
    values: &'a mut Vec<(FacetValue, u64)>,
    text_bytes: &'a mut usize,
    /// Bytes of the values of other segments.
    other_bytes: usize,
    held: &'a mut BudgetReservation,
    scan: &'a mut PayloadScan,
}

impl ValueVisitor for IndexVisitor<'_> {
    fn continues(&mut self) -> bool {
        let bytes = self.other_bytes + *self.text_bytes + self.values.len() * VALUE_BYTES;
        let held = &mut *self.held;
        // Without free memory for the values during a pause, the count continues.
        self.scan.next_part(|| held.grow_if_free(in_steps(bytes))) == ScanStep::Read
    }

    fn visit(&mut self, value: KeyRef<'_>, points: u64) -> Result<()> {
        let Some(value) = FacetValue::of_key(value) else { return Ok(()) };
        // The values of a segment differ, so the others need not be read.
        if self.values.len() >= FACET_VALUES_MAX {
            return Err(too_many_values(self.key));
        }
        *self.text_bytes += value.text_bytes();
        self.values.push((value, points));
        Ok(())
    }
}

/// Returns the memory to reserve for values of `bytes` bytes.
fn in_steps(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(STEP_BYTES as u64)
}

/// Counts by value, and the memory they take.
struct FacetCounts {
    counts: HashMap<FacetValue, u64>,
    text_bytes: usize,
    /// Values of the current segment's index that are not in `counts` yet.
    indexed: IndexedValues,
    /// Values of the current point, each counted once.
    of_point: Vec<FacetValue>,
    /// Minimum bytes of the texts that payloads of the current segment add. The index has counted
    /// the shorter ones.
    least_bytes: usize,
    held: BudgetReservation,
    /// Error that ended the count.
    refusal: Option<Error>,
}

impl FacetCounts {
    fn new(held: BudgetReservation) -> FacetCounts {
        FacetCounts {
            counts: HashMap::new(),
            text_bytes: 0,
            indexed: IndexedValues::default(),
            of_point: Vec::new(),
            least_bytes: 0,
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

    /// Adds a value that is not counted yet. `key` names the field in the error for too many
    /// values.
    fn add_value(&mut self, value: FacetValue, points: u64, key: &str) -> Result<()> {
        let text_bytes = self.text_bytes + value.text_bytes();
        if self.counts.len() == FACET_VALUES_MAX || text_bytes > TEXT_BYTES_MAX {
            return Err(too_many_values(key));
        }
        let needed = in_steps(text_bytes + (self.counts.len() + 1) * VALUE_BYTES);
        if needed > self.held.bytes() {
            self.held.resize(needed, COUNTING)?;
        }
        self.text_bytes = text_bytes;
        self.counts.insert(value, points);
        Ok(())
    }

    /// Adds the allowed rows of a segment by its index, or all rows if `None`. Returns the rows
    /// whose payloads are still to be added. If `scan` stops, the next call continues.
    fn add_index(
        &mut self,
        view: &SegmentView,
        key: &str,
        allow: Option<&RowSet>,
        scan: &mut PayloadScan,
    ) -> Result<Option<RowSet>> {
        let mut indexed = std::mem::take(&mut self.indexed);
        let mut visitor = IndexVisitor {
            key,
            values: &mut indexed.values,
            text_bytes: &mut indexed.text_bytes,
            other_bytes: self.text_bytes + self.counts.len() * VALUE_BYTES,
            held: &mut self.held,
            scan,
        };
        let counted = view.segment.count_values(key, allow, &mut indexed.position, &mut visitor);
        let counted = match counted {
            // The payloads have their own checksums, so they can still be counted.
            Err(error) if error.kind() == ErrorKind::DataLoss => ValueCounts::Undecided,
            counted => counted?,
        };
        let mut long_texts = match counted {
            ValueCounts::Paused => {
                self.indexed = indexed;
                return Ok(None);
            }
            ValueCounts::Undecided => {
                self.least_bytes = 0;
                let rows = || RowSet::all(view.segment.rows());
                return Ok(Some(allow.cloned().unwrap_or_else(rows)));
            }
            ValueCounts::WithoutLongTexts(rows) => Some(rows),
            ValueCounts::Complete => None,
        };
        indexed.values.into_iter().for_each(|(value, points)| self.add_points(value, points, key));
        self.least_bytes = INDEXED_BYTES_MAX + 1;
        if let Some((rows, allow)) = long_texts.as_mut().zip(allow) {
            rows.intersect(allow);
        }
        Ok(long_texts)
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

fn too_many_values(key: &str) -> Error {
    Error::invalid(format!(
        "\"{key}\" has more than {FACET_VALUES_MAX} different values, or more than {TEXT_BYTES_MAX} bytes of \
         them: too many to count; filter for fewer points"
    ))
}

/// Facet that is being counted.
struct FacetPass {
    call: FacetCall,
    pass: PointsPass,
    counts: FacetCounts,
}

/// Call of a facet. An equal call of the same work continues its pass.
#[derive(PartialEq)]
struct FacetCall {
    /// Address of the collection.
    collection: usize,
    key: String,
    filter: Option<Filter>,
}

/// Visitor that adds the points of a pass to the counts of a field.
struct FacetVisitor<'a> {
    counts: &'a mut FacetCounts,
    key: &'a str,
}

impl PointVisitor for FacetVisitor<'_> {
    fn visit_index(
        &mut self,
        view: &SegmentView,
        allow: Option<&RowSet>,
        scan: &mut PayloadScan,
    ) -> Result<Option<RowSet>> {
        let unread = self.counts.add_index(view, self.key, allow, scan)?;
        self.counts.check()?;
        Ok(unread)
    }

    fn visit_row(&mut self, _: &SegmentView, _: u32, payload: &Value) -> Result<bool> {
        let least_bytes = self.counts.least_bytes;
        self.counts.add(payload, self.key, least_bytes);
        self.counts.check()?;
        Ok(true)
    }

    fn visit_unflushed(&mut self, _: u64, payload: &Value) -> Result<()> {
        self.counts.add(payload, self.key, 0);
        self.counts.check()
    }
}

impl Collection {
    /// Counts the points that match `filter` by the value of the payload field `key`, which is a
    /// path as in a filter. Returns the `max` most frequent values. Counts are exact. They come
    /// from the payload index, or from payloads for a field without one.
    ///
    /// # Errors
    /// As [`Collection::ids_from`]. `InvalidArgument` for an empty key or more than
    /// `FACET_VALUES_MAX` values. `ResourceExhausted` if the memory limit has no room for the
    /// values. `DeadlineExceeded` if payloads had to be read and the time was up. `Cancelled` after
    /// a pause, which [`super::in_slice`] notices.
    pub fn facet(&self, key: &str, filter: Option<&Filter>, max: usize) -> Result<Facet> {
        if key.is_empty() {
            return Err(Error::invalid("a facet names no field; give its key"));
        }
        let call = FacetCall {
            collection: std::ptr::from_ref(self).addr(),
            key: key.to_owned(),
            filter: filter.cloned(),
        };
        let passes = scan::progress().map(|progress| progress.get::<KeptPasses<FacetPass>>());
        let kept = passes.as_ref().and_then(|passes| passes.take(|pass| pass.call == call));
        let mut facet = match kept {
            Some(facet) => facet,
            None => {
                let held = self.budget.reserve(STEP_BYTES as u64, COUNTING)?;
                let counts = FacetCounts::new(held);
                FacetPass { call, pass: PointsPass::new(self, 0), counts }
            }
        };
        let mut visitor = FacetVisitor { counts: &mut facet.counts, key };
        let counted = facet.pass.run(self, key, filter, &mut visitor);
        if let Err(error) = counted {
            if let Some(passes) = passes.filter(|_| scan::is_paused()) {
                passes.keep(facet);
            }
            return Err(error);
        }
        let partial = facet.pass.is_partial();
        Ok(Facet { hits: facet.counts.top(max), partial })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::scan::{SliceOutcome, in_ended_slice};
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

    #[test]
    fn a_count_without_free_memory_continues_and_is_no_refusal() {
        let budget = MemoryBudget::new(STEP_BYTES as u64);
        let mut held = budget.reserve(STEP_BYTES as u64, "a test").unwrap();
        let counted = in_ended_slice(&Arc::default(), || {
            let mut scan = PayloadScan::in_slices();
            let mut visitor = IndexVisitor {
                key: "a",
                values: &mut Vec::new(),
                text_bytes: &mut 0,
                other_bytes: STEP_BYTES + 1,
                held: &mut held,
                scan: &mut scan,
            };
            assert!((0..3).all(|_| visitor.continues()));
            visitor.other_bytes = STEP_BYTES;
            assert!(!visitor.continues(), "the memory suffices for a pause");
        });
        assert_eq!(counted, SliceOutcome::Done(()));
        assert_eq!(budget.stats().refused, 0);
    }
}
