//! Values of one condition in a hash table, so that a row costs the same for any number of values.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::OnceLock;

use serde_json::{Number, Value};

use super::condition::same;

/// A list of values. The first lookup builds the table.
#[derive(Clone, Debug, Default)]
pub struct MatchValues {
    list: Vec<Value>,
    table: OnceLock<ValueTable>,
}

/// Values by type. Two whole numbers are compared exactly, a whole number and a fraction as 64-bit
/// floats.
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
    pub(crate) fn has(&self, value: &Value) -> bool {
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
