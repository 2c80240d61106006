//! Values of one condition in a hash table, and limits of numbers. With the table, a row costs the
//! same for any number of values.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::OnceLock;

use serde_json::{Number, Value};

use super::condition::{Range, WholeRange, same};

/// Whole number from which on several whole numbers have the same 64-bit float.
const FLOATS_MEET: u128 = 1 << 53;

/// Limit of a number. Two whole numbers are compared exactly, others as 64-bit floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangeLimit {
    /// Fraction, or a number beyond 64 bits.
    Float(f64),
    /// Whole number of 64 bits.
    Whole(i128),
}

/// A list of values. The first lookup builds the table.
#[derive(Clone, Debug, Default)]
pub struct MatchValues {
    list: Vec<Value>,
    table: OnceLock<ValueTable>,
}

/// Values by type. Two whole numbers are compared exactly, others as 64-bit floats.
#[derive(Clone, Debug, Default)]
struct ValueTable {
    texts: HashSet<String>,
    whole: HashSet<i128>,
    /// The whole numbers once more, as floats.
    whole_as_floats: HashSet<u64>,
    floats: HashSet<u64>,
    /// Truth values, lists and objects, each once. Requests have no lists and objects here.
    others: Vec<Value>,
}

impl From<Vec<Value>> for MatchValues {
    fn from(list: Vec<Value>) -> MatchValues {
        MatchValues { list, table: OnceLock::new() }
    }
}

impl Deref for MatchValues {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.list
    }
}

impl PartialEq for MatchValues {
    fn eq(&self, other: &MatchValues) -> bool {
        self.list == other.list
    }
}

impl MatchValues {
    /// Returns true if `value` is one of the values.
    pub fn has(&self, value: &Value) -> bool {
        let table = self.table.get_or_init(|| ValueTable::new(&self.list));
        match value {
            Value::String(text) => table.texts.contains(text),
            Value::Number(number) => match whole(number) {
                Some(number) => {
                    table.whole.contains(&number) || table.floats.contains(&bits(number as f64))
                }
                None => number.as_f64().is_some_and(|number| {
                    table.floats.contains(&bits(number))
                        || table.whole_as_floats.contains(&bits(number))
                }),
            },
            other => table.others.iter().any(|known| same(known, other)),
        }
    }
}

impl ValueTable {
    /// Sorts values by their type. A whole number is also found as the float of the same value.
    fn new(list: &[Value]) -> ValueTable {
        let mut table = ValueTable::default();
        for value in list {
            match value {
                Value::String(text) => {
                    table.texts.insert(text.clone());
                }
                Value::Number(number) => match whole(number) {
                    Some(number) => {
                        table.whole.insert(number);
                        table.whole_as_floats.insert(bits(number as f64));
                    }
                    None => {
                        table.floats.extend(number.as_f64().map(bits));
                    }
                },
                other if table.others.contains(other) => {}
                other => table.others.push(other.clone()),
            }
        }
        table
    }
}

impl RangeLimit {
    /// Converts a JSON number. Returns `None` if it has no float.
    pub fn of(number: &Number) -> Option<RangeLimit> {
        let float = || number.as_f64().map(RangeLimit::Float);
        whole(number).map(RangeLimit::Whole).or_else(float)
    }

    /// Returns the nearest float.
    pub fn float(self) -> f64 {
        match self {
            RangeLimit::Float(value) => value,
            RangeLimit::Whole(value) => value as f64,
        }
    }

    /// Returns true for a float, and for a whole number whose float no other whole number has.
    pub fn has_own_float(self) -> bool {
        match self {
            RangeLimit::Float(_) => true,
            RangeLimit::Whole(value) => value.unsigned_abs() < FLOATS_MEET,
        }
    }

    /// Compares a number with the limit.
    fn order_of(self, number: &Number) -> Option<Ordering> {
        match (whole(number), self) {
            (Some(number), RangeLimit::Whole(limit)) => Some(number.cmp(&limit)),
            _ => number.as_f64()?.partial_cmp(&self.float()),
        }
    }
}

impl WholeRange {
    /// Returns the limits as floats, or `None` if other whole numbers have the float of a limit.
    pub fn as_floats(&self) -> Option<Range> {
        let limits = [self.gt, self.gte, self.lt, self.lte];
        let is_exact = limits.into_iter().flatten().all(RangeLimit::has_own_float);
        is_exact.then(|| Range {
            gt: self.gt.map(RangeLimit::float),
            gte: self.gte.map(RangeLimit::float),
            lt: self.lt.map(RangeLimit::float),
            lte: self.lte.map(RangeLimit::float),
        })
    }

    /// Returns true if `number` is within the limits.
    pub fn contain_number(&self, number: &Number) -> bool {
        let fits = |limit: Option<RangeLimit>, is_fitting: fn(Ordering) -> bool| {
            limit.is_none_or(|limit| limit.order_of(number).is_some_and(is_fitting))
        };
        fits(self.gt, Ordering::is_gt)
            && fits(self.gte, Ordering::is_ge)
            && fits(self.lt, Ordering::is_lt)
            && fits(self.lte, Ordering::is_le)
    }
}

/// Returns a number that is written without a fraction.
fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// Returns the bits of a float, the same ones for both zeros.
fn bits(number: f64) -> u64 {
    (number + 0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        let edges = vec![
            json!(0),
            json!(-0.0),
            json!(9_007_199_254_740_993_u64),
            json!(9_007_199_254_740_992.0),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1.0),
            json!(true),
            json!("1"),
        ];
        prop_oneof![
            (-3i64..3).prop_map(Value::from),
            (-6i64..6).prop_map(|half| Value::from(half as f64 / 2.0)),
            "[ab]{0,2}".prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            prop::sample::select(edges),
        ]
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_comparisons(
            list in prop::collection::vec(any_value(), 0..12),
            value in any_value(),
        ) {
            let expected = list.iter().any(|known| same(known, &value));
            prop_assert_eq!(MatchValues::from(list).has(&value), expected);
        }
    }
}
