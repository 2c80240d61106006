//! Rows of a field in the order of its numbers and dates.

use std::ops::ControlFlow;

use base::Result;
use serde_json::{Number, Value};
use storage::Sealed;

use super::directory::{DenseValue, DictionaryBlock, FieldDirectory};
use super::key::{ExactNumber, KeyOf, KeyRef, NumberKey, is_before};
use super::read::{FieldLookup, PayloadIndex, RowPiece, rows_of};
use super::values::ValueRows;
use crate::filter::{RowSet, parse_date};

/// Values whose rows are read at once.
const VALUES_A_READ: usize = 64;

/// Number or date, by which points are ordered. Numbers come before dates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OrderKey {
    Number(NumberKey),
    /// Microseconds since 1970 in UTC.
    Date(i64),
}

impl OrderKey {
    /// Converts a value of a payload; `None` if it is neither a number nor a date.
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

    /// Returns the number; a date as microseconds since 1970.
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
    /// Returns the range that begins with `from`, or with the first value.
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
        !self.is_below(key) && is_before(key, self.high.as_key(), true)
    }

    fn is_below(&self, key: KeyRef<'_>) -> bool {
        is_before(key, self.low.as_key(), false)
    }

    /// Returns the blocks that may have values of the range, in the order of the visit.
    fn blocks<'a>(&self, blocks: &'a [DictionaryBlock]) -> Vec<&'a DictionaryBlock> {
        // A block ends before the first value of the next one.
        let below = blocks.partition_point(|block| self.is_below(block.first.as_ref()));
        let start = below.saturating_sub(1);
        let within =
            |block: &&DictionaryBlock| is_before(block.first.as_ref(), self.high.as_key(), true);
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

/// Called with a value and its rows. [`ControlFlow::Break`] ends the visit.
pub(crate) type VisitRows<'a> =
    dyn FnMut(OrderKey, &mut dyn Iterator<Item = u32>) -> ControlFlow<()> + 'a;

impl PayloadIndex {
    /// Calls `visit` with the numbers and dates under `path` in the order of `range`, each with its
    /// rows. Returns false, and does not call `visit`, if the index does not have that information.
    ///
    /// # Errors
    /// The error of the medium. After `DataLoss`, some values were visited.
    pub(crate) fn ordered_rows(
        &self,
        file: &dyn Sealed,
        path: &str,
        range: OrderRange,
        visit: &mut VisitRows<'_>,
    ) -> Result<bool> {
        let field = match self.field(path) {
            FieldLookup::Absent => return Ok(true),
            FieldLookup::Unindexed(_) => return Ok(false),
            FieldLookup::Indexed { field, elements_only } => {
                if elements_only && field.bitmaps.bare.count > 0 {
                    return Ok(false);
                }
                field
            }
        };
        let mut dense = range.dense(&field.dense).into_iter().peekable();
        for block in range.blocks(&field.blocks) {
            let mut entries = self.block(file, block)?;
            entries.retain(|entry| range.contains_key(entry.key.as_ref()));
            if range.descending {
                entries.reverse();
            }
            for entries in entries.chunks(VALUES_A_READ) {
                let listed = self.rows_of_entries(file, field, entries)?;
                for (entry, rows) in entries.iter().zip(listed) {
                    let key = entry.key.as_ref();
                    while let Some(value) =
                        dense.next_if(|value| range.precedes(value.key.as_ref(), key))
                    {
                        if self.visit_dense(file, value, visit)?.is_break() {
                            return Ok(true);
                        }
                    }
                    let Some(key) = OrderKey::of_key(key) else { continue };
                    if visit(key, &mut rows.into_iter()).is_break() {
                        return Ok(true);
                    }
                }
            }
        }
        for value in dense {
            if self.visit_dense(file, value, visit)?.is_break() {
                break;
            }
        }
        Ok(true)
    }

    fn visit_dense(
        &self,
        file: &dyn Sealed,
        value: &DenseValue,
        visit: &mut VisitRows<'_>,
    ) -> Result<ControlFlow<()>> {
        let Some(key) = OrderKey::of_key(value.key.as_ref()) else {
            return Ok(ControlFlow::Continue(()));
        };
        let rows: RowSet = self.bitmap(file, &value.rows)?;
        Ok(visit(key, &mut rows.iter()))
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

    fn indexed(payloads: &[Value], path: &str, range: OrderRange) -> Option<Vec<(OrderKey, u32)>> {
        let segment = segment_of_values(payloads);
        let mut pairs = Vec::new();
        let known = segment
            .segment
            .ordered_rows(path, range, &mut |key, rows| {
                let mut rows: Vec<u32> = rows.collect();
                rows.sort_unstable();
                pairs.extend(rows.into_iter().map(|row| (key, row)));
                ControlFlow::Continue(())
            })
            .unwrap();
        known.then_some(pairs)
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
    fn a_visit_ends_at_its_break() {
        let payloads: Vec<Value> = (0..1000).map(|n| json!({ "n": n })).collect();
        let segment = segment_of_values(&payloads);
        let mut visits = 0;
        let range = OrderRange::new(true, None);
        let visit = &mut |_: OrderKey, _: &mut dyn Iterator<Item = u32>| {
            visits += 1;
            if visits == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(segment.segment.ordered_rows("n", range, visit).unwrap());
        assert_eq!(visits, 3);
    }
}
