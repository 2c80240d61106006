//! Rows of a field in the order of its numbers and dates.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use base::Result;
use serde_json::{Number, Value};
use storage::Sealed;

use super::directory::{DenseValue, DictionaryBlock, FieldDirectory};
use super::key::{ExactNumber, KeyOf, KeyRef, NumberKey, compare_values};
use super::read::{FieldLookup, PayloadIndex, RowPiece, rows_of};
use super::values::{ValueRows, first_part};
use crate::filter::parse_date;

/// Maximum values of one part of a visit.
const VALUES_A_PART: usize = 64;
/// Rows of a segment among which one part of a visit finds those of a frequent value.
const ROWS_A_PART: u32 = 1 << 16;

/// Number or date, by which points are ordered. Numbers come before dates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OrderKey {
    Number(NumberKey),
    /// Microseconds since 1970 in UTC.
    Date(i64),
}

impl OrderKey {
    /// Converts a value of a payload. Returns `None` if it is neither a number nor a date.
    pub(crate) fn of(value: &Value) -> Option<OrderKey> {
        match value {
            Value::Number(number) => NumberKey::of(number).map(OrderKey::Number),
            Value::String(text) => parse_date(text).map(OrderKey::Date),
            _ => None,
        }
    }

    fn of_key(key: KeyRef<'_>) -> Option<OrderKey> {
        match key {
            KeyOf::Number(number) => Some(OrderKey::Number(number)),
            KeyOf::Date(micros) => Some(OrderKey::Date(micros)),
            KeyOf::Bool(_) | KeyOf::Text(_) => None,
        }
    }

    fn as_key(self) -> KeyRef<'static> {
        match self {
            OrderKey::Number(number) => KeyOf::Number(number),
            OrderKey::Date(micros) => KeyOf::Date(micros),
        }
    }

    /// Returns the number, or a date as microseconds since 1970.
    pub(crate) fn to_number(self) -> Option<Number> {
        match self {
            OrderKey::Number(number) => match number.exact() {
                ExactNumber::Float => Number::from_f64(number.value()),
                ExactNumber::Signed(value) => Some(value.into()),
                ExactNumber::Unsigned(value) => Some(value.into()),
            },
            OrderKey::Date(micros) => Some(micros.into()),
        }
    }
}

/// Range of values and the direction in which they are visited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderRange {
    low: OrderKey,
    high: OrderKey,
    pub(crate) descending: bool,
}

impl OrderRange {
    /// Returns the range from `from` to the last value, or to the first one if `descending` is
    /// true. Without `from`, it has all values.
    pub(crate) fn new(descending: bool, from: Option<OrderKey>) -> OrderRange {
        let lowest = OrderKey::Number(NumberKey::float(f64::NEG_INFINITY));
        let highest = OrderKey::Date(i64::MAX);
        if descending {
            OrderRange { low: lowest, high: from.unwrap_or(highest), descending }
        } else {
            OrderRange { low: from.unwrap_or(lowest), high: highest, descending }
        }
    }

    /// Returns true if a value is in the range.
    pub(crate) fn contains(&self, key: OrderKey) -> bool {
        self.contains_key(key.as_key())
    }

    fn contains_key(&self, key: KeyRef<'_>) -> bool {
        !self.is_below(key) && compare_to_limit(key, self.high).is_le()
    }

    fn is_below(&self, key: KeyRef<'_>) -> bool {
        compare_to_limit(key, self.low).is_lt()
    }

    /// Returns the blocks that may have values of the range, in the order of the visit.
    fn blocks<'a>(&self, blocks: &'a [DictionaryBlock]) -> Vec<&'a DictionaryBlock> {
        // A block ends before the first value of the next one.
        let below = blocks.partition_point(|block| self.is_below(block.first.as_ref()));
        let start = below.saturating_sub(1);
        let within =
            |block: &&DictionaryBlock| compare_to_limit(block.first.as_ref(), self.high).is_le();
        let mut found: Vec<&DictionaryBlock> = blocks[start..].iter().take_while(within).collect();
        if self.descending {
            found.reverse();
        }
        found
    }

    fn dense<'a>(&self, dense: &'a [DenseValue]) -> Vec<&'a DenseValue> {
        let within = |value: &&DenseValue| self.contains_key(value.key.as_ref());
        let mut found: Vec<&DenseValue> = dense.iter().filter(within).collect();
        if self.descending {
            found.reverse();
        }
        found
    }

    /// Returns true if `one` is visited before `other`.
    fn precedes(&self, one: KeyRef<'_>, other: KeyRef<'_>) -> bool {
        if self.descending { one > other } else { one < other }
    }
}

/// Compares `key` with `limit` in the order of the values.
fn compare_to_limit(key: KeyRef<'_>, limit: OrderKey) -> Ordering {
    match (key, limit) {
        // Several whole numbers have the float of this limit. If all of them were within it, a page
        // that begins with the last value of another page would repeat that page's points.
        (KeyOf::Number(key), OrderKey::Number(limit)) if !limit.has_own_float() => key.cmp(&limit),
        _ => compare_values(key, limit.as_key()),
    }
}

/// Outcome of a visit in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderedVisit {
    /// The visitor stopped the visit. The next call continues it.
    Paused,
    /// All values were visited, or the visitor needs no more.
    Complete,
    /// Nothing was visited: the index does not have that information.
    Unindexed,
}

/// Receiver of rows in the order of their values.
pub(crate) trait OrderedRowVisitor {
    /// Returns true if the visit continues with its next part: rows of a frequent value, or
    /// neighbouring values.
    fn continues(&mut self) -> bool;

    /// Receives rows of a value. A frequent value can come in several calls.
    /// [`ControlFlow::Break`] ends the visit.
    fn visit(&mut self, key: OrderKey, rows: &mut dyn Iterator<Item = u32>) -> ControlFlow<()>;
}

/// Position of a visit: the parts of a field that were visited, in the order of the visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderPosition {
    /// Frequent values.
    dense: usize,
    /// Rows of the segment among which those of the next frequent value were visited.
    dense_rows: u32,
    /// Dictionary blocks.
    blocks: usize,
    /// Values of the next dictionary block.
    values: usize,
}

/// Field that is visited in order.
struct OrderedField<'a> {
    index: &'a PayloadIndex,
    file: &'a dyn Sealed,
    field: &'a FieldDirectory,
    range: OrderRange,
    /// Frequent values of the range, in the order of the visit.
    dense: Vec<&'a DenseValue>,
}

impl OrderedField<'_> {
    /// Visits the values from `position` on.
    fn visit(
        &self,
        position: &mut OrderPosition,
        visitor: &mut dyn OrderedRowVisitor,
    ) -> Result<ControlFlow<OrderedVisit>> {
        let blocks = self.range.blocks(&self.field.blocks);
        for block in blocks.into_iter().skip(position.blocks) {
            let mut entries = self.index.block(self.file, block)?;
            entries.retain(|entry| self.range.contains_key(entry.key.as_ref()));
            if self.range.descending {
                entries.reverse();
            }
            let flow = self.visit_entries(&entries, position, visitor)?;
            if flow.is_break() {
                return Ok(flow);
            }
            position.blocks += 1;
            position.values = 0;
        }
        self.visit_dense(None, position, visitor)
    }

    /// Visits the values of a block from `position` on, and the frequent values between them.
    fn visit_entries(
        &self,
        entries: &[ValueRows],
        position: &mut OrderPosition,
        visitor: &mut dyn OrderedRowVisitor,
    ) -> Result<ControlFlow<OrderedVisit>> {
        while let Some(first) = entries.get(position.values) {
            let flow = self.visit_dense(Some(first.key.as_ref()), position, visitor)?;
            if flow.is_break() {
                return Ok(flow);
            }
            // A part is visited as a whole, so that every slice makes progress.
            if !visitor.continues() {
                return Ok(ControlFlow::Break(OrderedVisit::Paused));
            }
            let part = self.next_part(entries.get(position.values..).unwrap_or_default(), position);
            let listed = self.index.rows_of_entries(self.file, self.field, part)?;
            for (entry, rows) in part.iter().zip(listed) {
                let Some(key) = OrderKey::of_key(entry.key.as_ref()) else { continue };
                if visitor.visit(key, &mut rows.into_iter()).is_break() {
                    return Ok(ControlFlow::Break(OrderedVisit::Complete));
                }
            }
            position.values += part.len();
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the first of `entries` that one part visits before the next frequent value.
    fn next_part<'b>(&self, entries: &'b [ValueRows], position: &OrderPosition) -> &'b [ValueRows] {
        let part = first_part(entries.get(..VALUES_A_PART).unwrap_or(entries));
        let Some(dense) = self.dense.get(position.dense) else { return part };
        let before =
            |entry: &&ValueRows| !self.range.precedes(dense.key.as_ref(), entry.key.as_ref());
        let count = part.iter().take_while(before).count();
        part.get(..count.max(1)).unwrap_or(part)
    }

    /// Visits the frequent values before `key`, or all that are left.
    fn visit_dense(
        &self,
        key: Option<KeyRef<'_>>,
        position: &mut OrderPosition,
        visitor: &mut dyn OrderedRowVisitor,
    ) -> Result<ControlFlow<OrderedVisit>> {
        while let Some(value) = self.dense.get(position.dense)
            && key.is_none_or(|key| self.range.precedes(value.key.as_ref(), key))
        {
            if let Some(key) = OrderKey::of_key(value.key.as_ref()) {
                let flow = self.visit_dense_rows(key, value, position, visitor)?;
                if flow.is_break() {
                    return Ok(flow);
                }
            }
            position.dense += 1;
            position.dense_rows = 0;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits the rows of one frequent value from `position` on.
    fn visit_dense_rows(
        &self,
        key: OrderKey,
        value: &DenseValue,
        position: &mut OrderPosition,
        visitor: &mut dyn OrderedRowVisitor,
    ) -> Result<ControlFlow<OrderedVisit>> {
        if !visitor.continues() {
            return Ok(ControlFlow::Break(OrderedVisit::Paused));
        }
        let rows = self.index.bitmap(self.file, &value.rows)?;
        loop {
            let end = position.dense_rows.saturating_add(ROWS_A_PART);
            let first = rows.next_from(position.dense_rows);
            let after = |row: &u32| rows.next_from(row.saturating_add(1));
            let mut part = std::iter::successors(first, after).take_while(|row| *row < end);
            if visitor.visit(key, &mut part).is_break() {
                return Ok(ControlFlow::Break(OrderedVisit::Complete));
            }
            if end >= rows.rows() {
                return Ok(ControlFlow::Continue(()));
            }
            position.dense_rows = end;
            if !visitor.continues() {
                return Ok(ControlFlow::Break(OrderedVisit::Paused));
            }
        }
    }
}

impl PayloadIndex {
    /// Visits the numbers and dates under `path` from `position` on, in the order of `range`, each
    /// with its rows. Moves `position`. Calls after a pause need the same `range`.
    ///
    /// # Errors
    /// The error of the medium. After `DataLoss`, some values were visited.
    pub(crate) fn ordered_rows(
        &self,
        file: &dyn Sealed,
        path: &str,
        range: OrderRange,
        position: &mut OrderPosition,
        visitor: &mut dyn OrderedRowVisitor,
    ) -> Result<OrderedVisit> {
        let field = match self.field(path) {
            FieldLookup::Absent => return Ok(OrderedVisit::Complete),
            FieldLookup::Unindexed(_) => return Ok(OrderedVisit::Unindexed),
            FieldLookup::Indexed { field, elements_only } => {
                if elements_only && !field.bitmaps.has_all_elements() {
                    return Ok(OrderedVisit::Unindexed);
                }
                field
            }
        };
        let dense = range.dense(&field.dense);
        let ordered = OrderedField { index: self, file, field, range, dense };
        Ok(match ordered.visit(position, visitor)? {
            ControlFlow::Break(visit) => visit,
            ControlFlow::Continue(()) => OrderedVisit::Complete,
        })
    }

    /// Returns the rows of each entry. The entries are neighbours, in either direction.
    fn rows_of_entries(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        entries: &[ValueRows],
    ) -> Result<Vec<Vec<u32>>> {
        let is_reversed = entries
            .first()
            .zip(entries.last())
            .is_some_and(|(first, last)| first.rows.position > last.rows.position);
        let mut pieces: Vec<RowPiece> = entries.iter().map(|entry| entry.rows).collect();
        if is_reversed {
            pieces.reverse();
        }
        let mut rows = vec![Vec::new(); pieces.len()];
        self.listed_rows(file, field, &pieces, &mut |at, bytes| {
            rows[at].extend(rows_of(bytes));
            Ok(())
        })?;
        if is_reversed {
            rows.reverse();
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::filter::each_value;
    use crate::payload_index::segment_of_values;

    /// Values and rows of a field, read from the payloads.
    fn naive(payloads: &[Value], path: &str, range: OrderRange) -> Vec<(OrderKey, u32)> {
        let mut pairs = Vec::new();
        for (row, payload) in (0_u32..).zip(payloads) {
            each_value(payload, path, &mut |value| {
                pairs.extend(OrderKey::of(value).map(|key| (key, row)));
            });
        }
        pairs.retain(|(key, _)| range.contains(*key));
        pairs.sort_unstable();
        pairs.dedup();
        if range.descending {
            pairs.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        pairs
    }

    /// Visitor that collects pairs and pauses after each part.
    struct PairVisitor {
        pairs: Vec<(OrderKey, u32)>,
        /// Parts that may still be visited in this call.
        parts: u32,
        /// Visits after which it needs no more.
        visits: usize,
    }

    impl OrderedRowVisitor for PairVisitor {
        fn continues(&mut self) -> bool {
            let left = self.parts.checked_sub(1);
            self.parts = left.unwrap_or_default();
            left.is_some()
        }

        fn visit(&mut self, key: OrderKey, rows: &mut dyn Iterator<Item = u32>) -> ControlFlow<()> {
            let mut rows: Vec<u32> = rows.collect();
            rows.sort_unstable();
            self.pairs.extend(rows.into_iter().map(|row| (key, row)));
            self.visits -= 1;
            if self.visits == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    /// Pairs of a visit that pauses after each part, and its pauses.
    struct PausedVisit {
        outcome: OrderedVisit,
        pairs: Vec<(OrderKey, u32)>,
        pauses: usize,
    }

    fn visited(payloads: &[Value], path: &str, range: OrderRange, visits: usize) -> PausedVisit {
        let segment = segment_of_values(payloads);
        let mut visitor = PairVisitor { pairs: Vec::new(), parts: 0, visits };
        let mut position = OrderPosition::default();
        let mut pauses = 0;
        loop {
            visitor.parts = 1;
            let outcome =
                segment.segment.ordered_rows(path, range, &mut position, &mut visitor).unwrap();
            if outcome != OrderedVisit::Paused {
                return PausedVisit { outcome, pairs: visitor.pairs, pauses };
            }
            pauses += 1;
            assert!(pauses <= 2 * payloads.len(), "it makes no progress");
        }
    }

    fn indexed(payloads: &[Value], path: &str, range: OrderRange) -> Option<Vec<(OrderKey, u32)>> {
        let visit = visited(payloads, path, range, usize::MAX);
        (visit.outcome == OrderedVisit::Complete).then_some(visit.pairs)
    }

    fn scalar() -> impl Strategy<Value = Value> {
        let texts = ["x", "", "2024-06-15", "2024-06-15T00:00:00Z", "2025-01-01 10:00"];
        prop_oneof![
            4 => (-3i64..4).prop_map(Value::from),
            2 => (-6i64..7).prop_map(|half| Value::from(half as f64 / 2.0)),
            2 => prop::sample::select(texts.to_vec()).prop_map(Value::from),
            1 => any::<bool>().prop_map(Value::from),
            1 => any::<i64>().prop_map(Value::from),
            1 => Just(Value::Null),
        ]
    }

    fn range() -> impl Strategy<Value = OrderRange> {
        let from = prop::option::of(
            scalar().prop_filter_map("a number or date", |value| OrderKey::of(&value)),
        );
        (any::<bool>(), from).prop_map(|(descending, from)| OrderRange::new(descending, from))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_index_orders_as_payloads_do(
            values in prop::collection::vec(prop::collection::vec(scalar(), 0..3), 1..300),
            range in range(),
        ) {
            let payloads: Vec<Value> = values.iter().map(|list| json!({ "a": list })).collect();
            prop_assert_eq!(indexed(&payloads, "a", range), Some(naive(&payloads, "a", range)));
            prop_assert_eq!(indexed(&payloads, "b", range), Some(Vec::new()));
        }
    }

    #[test]
    fn frequent_and_rare_values_are_merged_in_order() {
        let rows = 20_000;
        let payloads: Vec<Value> = (0..rows)
            .map(|row| match row % 3 {
                0 => json!({ "n": 500 }),
                1 => json!({ "n": row }),
                _ => json!({ "n": -1.5 }),
            })
            .collect();
        for descending in [false, true] {
            for from in [None, Some(json!(501)), Some(json!(500.0)), Some(json!(-7))] {
                let from = from.and_then(|from| OrderKey::of(&from));
                let range = OrderRange::new(descending, from);
                assert_eq!(indexed(&payloads, "n", range), Some(naive(&payloads, "n", range)));
            }
        }
    }

    #[test]
    fn a_range_begins_at_one_of_the_numbers_of_a_float() {
        let base = 1_i64 << 60;
        let payloads: Vec<Value> = (0..300).map(|n| json!({ "n": base + n })).collect();
        let from = OrderKey::of(&json!(base + 100));
        let rows = |descending: bool| -> Vec<u32> {
            let pairs = indexed(&payloads, "n", OrderRange::new(descending, from)).unwrap();
            pairs.into_iter().map(|(_, row)| row).collect()
        };
        assert_eq!(rows(false), (100..300).collect::<Vec<u32>>());
        assert_eq!(rows(true), (0..=100).rev().collect::<Vec<u32>>());
    }

    #[test]
    fn a_visit_ends_at_its_break() {
        let payloads: Vec<Value> = (0..1000).map(|n| json!({ "n": n })).collect();
        let visit = visited(&payloads, "n", OrderRange::new(true, None), 3);
        assert_eq!((visit.outcome, visit.pairs.len()), (OrderedVisit::Complete, 3));
    }

    #[test]
    fn values_and_rows_of_a_frequent_value_are_visited_in_parts() {
        let payloads: Vec<Value> = (0..1000).map(|n| json!({ "n": n })).collect();
        let visit = visited(&payloads, "n", OrderRange::new(false, None), usize::MAX);
        assert_eq!(visit.pairs.len(), 1000);
        assert!(visit.pauses >= 1000 / VALUES_A_PART, "{}", visit.pauses);
        let payloads = vec![json!({ "n": 7 }); ROWS_A_PART as usize + 10];
        let visit = visited(&payloads, "n", OrderRange::new(false, None), usize::MAX);
        assert!(visit.pairs.iter().map(|(_, row)| *row).eq(0..ROWS_A_PART + 10));
        assert_eq!(visit.pauses, 1);
    }
}
