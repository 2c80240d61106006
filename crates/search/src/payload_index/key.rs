//! Values of a dictionary, their order and their bytes.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Value of a field. Truth values come first, then numbers, dates and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyOf<T> {
    Bool(bool),
    Number(NumberKey),
    /// Microseconds since 1970 in UTC. The text from which the date was parsed is a separate value.
    Date(i64),
    Text(T),
}

/// Value in memory.
pub(crate) type IndexKey = KeyOf<Box<str>>;

/// Value in the bytes of a dictionary, or in a payload.
pub(crate) type KeyRef<'a> = KeyOf<&'a str>;

/// Number: by value as a 64-bit float, then exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NumberKey {
    /// Bits of the float, changed so that they have the order of the floats.
    order: u64,
    exact: ExactNumber,
}

/// Form of a number. Whole numbers above 2^53 have no float of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ExactNumber {
    Float,
    Signed(i64),
    /// Above the largest signed number.
    Unsigned(u64),
}

/// Whole number from which on several whole numbers have the same float.
const FLOATS_MEET: u64 = 1 << 53;

const FALSE: u8 = 0;
const TRUE: u8 = 1;
const FLOAT: u8 = 2;
const SIGNED: u8 = 3;
const UNSIGNED: u8 = 4;
const DATE: u8 = 5;
const TEXT: u8 = 6;

impl NumberKey {
    /// Returns the key of a float. Both zeros are one value.
    pub(crate) fn float(value: f64) -> NumberKey {
        NumberKey { order: order_of(value), exact: ExactNumber::Float }
    }

    fn signed(value: i64) -> NumberKey {
        NumberKey { order: order_of(value as f64), exact: ExactNumber::Signed(value) }
    }

    fn unsigned(value: u64) -> NumberKey {
        NumberKey { order: order_of(value as f64), exact: ExactNumber::Unsigned(value) }
    }

    /// Returns the key of a JSON number, or `None` if it has no float.
    pub(crate) fn of(number: &Number) -> Option<NumberKey> {
        match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Some(NumberKey::signed(value)),
            (None, Some(value)) => Some(NumberKey::unsigned(value)),
            (None, None) => number.as_f64().map(NumberKey::float),
        }
    }

    /// Returns the number as a float.
    pub(crate) fn value(self) -> f64 {
        let bits = if self.order >> 63 == 1 { self.order ^ (1 << 63) } else { !self.order };
        f64::from_bits(bits)
    }

    pub(crate) fn exact(self) -> ExactNumber {
        self.exact
    }

    /// Returns true for a float, and for a whole number whose float no other whole number has.
    pub(crate) fn has_own_float(self) -> bool {
        match self.exact {
            ExactNumber::Float => true,
            ExactNumber::Signed(value) => value.unsigned_abs() < FLOATS_MEET,
            ExactNumber::Unsigned(_) => false,
        }
    }

    /// Returns true if a filter treats the numbers as equal: whole numbers exactly, others as
    /// floats.
    pub(crate) fn same(self, other: NumberKey) -> bool {
        self.order == other.order
            && (self.exact == other.exact
                || self.exact == ExactNumber::Float
                || other.exact == ExactNumber::Float)
    }
}

/// Returns the bits of a float in the order of the floats.
fn order_of(value: f64) -> u64 {
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

impl IndexKey {
    /// Returns the value by reference.
    pub(crate) fn as_ref(&self) -> KeyRef<'_> {
        match self {
            KeyOf::Bool(value) => KeyOf::Bool(*value),
            KeyOf::Number(number) => KeyOf::Number(*number),
            KeyOf::Date(micros) => KeyOf::Date(*micros),
            KeyOf::Text(text) => KeyOf::Text(text),
        }
    }
}

impl<'a> KeyRef<'a> {
    /// Returns the key of a scalar, or `None` for other values.
    pub(crate) fn of(value: &'a Value) -> Option<KeyRef<'a>> {
        match value {
            Value::Bool(value) => Some(KeyOf::Bool(*value)),
            Value::Number(number) => NumberKey::of(number).map(KeyOf::Number),
            Value::String(text) => Some(KeyOf::Text(text)),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Returns the value with memory of its own.
    pub(crate) fn into_owned(self) -> IndexKey {
        match self {
            KeyOf::Bool(value) => KeyOf::Bool(value),
            KeyOf::Number(number) => KeyOf::Number(number),
            KeyOf::Date(micros) => KeyOf::Date(micros),
            KeyOf::Text(text) => KeyOf::Text(text.into()),
        }
    }

    /// Returns the scalar. A date has none.
    pub(crate) fn to_value(self) -> Option<Value> {
        match self {
            KeyOf::Bool(value) => Some(Value::Bool(value)),
            KeyOf::Number(number) => match number.exact {
                ExactNumber::Float => Number::from_f64(number.value()).map(Value::Number),
                ExactNumber::Signed(value) => Some(value.into()),
                ExactNumber::Unsigned(value) => Some(value.into()),
            },
            KeyOf::Date(_) => None,
            KeyOf::Text(text) => Some(Value::from(text)),
        }
    }

    /// Returns the index of its type in [`super::IndexedFieldInfo::values`].
    pub(crate) fn kind(self) -> usize {
        match self {
            KeyOf::Bool(_) => 0,
            KeyOf::Number(NumberKey { exact: ExactNumber::Float, .. }) => 2,
            KeyOf::Number(_) => 1,
            KeyOf::Date(_) => 3,
            KeyOf::Text(_) => 4,
        }
    }

    pub(crate) fn text_bytes(self) -> usize {
        if let KeyOf::Text(text) = self { text.len() } else { 0 }
    }

    /// Returns true if a filter treats the values as equal.
    pub(crate) fn same(self, other: KeyRef<'_>) -> bool {
        match (self, other) {
            (KeyOf::Number(one), KeyOf::Number(other)) => one.same(other),
            _ => self == other,
        }
    }

    /// Appends the key's bytes. They are a tag, and a number of 8 bytes or a text with its length.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let (tag, number) = match self {
            KeyOf::Bool(value) => return out.push(if value { TRUE } else { FALSE }),
            KeyOf::Number(number) => match number.exact {
                ExactNumber::Float => (FLOAT, number.value().to_bits()),
                ExactNumber::Signed(value) => (SIGNED, value.cast_unsigned()),
                ExactNumber::Unsigned(value) => (UNSIGNED, value),
            },
            KeyOf::Date(micros) => (DATE, micros.cast_unsigned()),
            KeyOf::Text(text) => {
                out.push(TEXT);
                encode_number(text.len() as u64, out);
                return out.extend_from_slice(text.as_bytes());
            }
        };
        out.push(tag);
        out.extend_from_slice(&number.to_le_bytes());
    }

    /// Takes a key off the front of `bytes`. Returns `None` if there is none.
    pub(crate) fn decode(bytes: &mut &'a [u8]) -> Option<KeyRef<'a>> {
        let (&tag, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(match tag {
            FALSE => KeyOf::Bool(false),
            TRUE => KeyOf::Bool(true),
            FLOAT => {
                let value = Some(f64::from_bits(take_u64(bytes)?)).filter(|it| it.is_finite())?;
                KeyOf::Number(NumberKey::float(value))
            }
            SIGNED => KeyOf::Number(NumberKey::signed(take_u64(bytes)?.cast_signed())),
            UNSIGNED => KeyOf::Number(NumberKey::unsigned(take_u64(bytes)?)),
            DATE => KeyOf::Date(take_u64(bytes)?.cast_signed()),
            TEXT => {
                let length = usize::try_from(decode_number(bytes)?).ok()?;
                let text = bytes.get(..length)?;
                *bytes = &bytes[length..];
                KeyOf::Text(std::str::from_utf8(text).ok()?)
            }
            _ => return None,
        })
    }
}

/// Takes eight bytes off the front.
pub(super) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

/// Appends a number in LEB128: seven bits a byte, the lowest first.
pub(super) fn encode_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number in LEB128 off the front.
pub(super) fn decode_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Compares two keys by their values. A whole number and a fraction of one value are equal.
pub(super) fn compare_values(one: KeyRef<'_>, other: KeyRef<'_>) -> Ordering {
    match (one, other) {
        (KeyOf::Number(one), KeyOf::Number(other)) => one.order.cmp(&other.order),
        _ => one.cmp(&other),
    }
}

/// Returns true if `key` is below `bound`, or if both are equal and `after` is true.
pub(super) fn is_before(key: KeyRef<'_>, bound: KeyRef<'_>, after: bool) -> bool {
    let order = compare_values(key, bound);
    order.is_lt() || (after && order.is_eq())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn numbers() -> Vec<Value> {
        vec![
            json!(0),
            json!(-0.0),
            json!(1),
            json!(1.0),
            json!(1.5),
            json!(-1.5),
            json!(-7),
            json!(9_007_199_254_740_993_u64),
            json!(9_007_199_254_740_992_u64),
            json!(9_007_199_254_740_992.0),
            json!(u64::MAX),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(1e300),
            json!(-1e300),
        ]
    }

    #[test]
    fn numbers_are_the_same_as_in_a_filter() {
        for one in numbers() {
            for other in numbers() {
                let (Some(KeyOf::Number(a)), Some(KeyOf::Number(b))) =
                    (KeyRef::of(&one), KeyRef::of(&other))
                else {
                    panic!("numbers are numbers")
                };
                let expected = crate::filter::same(&one, &other);
                assert_eq!(a.same(b), expected, "{one} {other}");
                let order = one.as_f64().partial_cmp(&other.as_f64());
                assert!(
                    order == Some(Ordering::Equal) || order == Some(a.cmp(&b)),
                    "{one} {other}"
                );
                assert_eq!(Some(a.value()), one.as_f64().map(|value| value + 0.0));
            }
        }
    }

    fn any_key() -> impl Strategy<Value = IndexKey> {
        prop_oneof![
            any::<bool>().prop_map(KeyOf::Bool),
            prop::sample::select(numbers())
                .prop_map(|value| KeyRef::of(&value).unwrap().into_owned()),
            any::<i64>().prop_map(KeyOf::Date),
            ".{0,40}".prop_map(|text| KeyOf::Text(text.as_str().into())),
        ]
    }

    proptest! {
        #[test]
        fn keys_decode_to_themselves(keys in prop::collection::vec(any_key(), 0..9)) {
            let mut bytes = Vec::new();
            keys.iter().for_each(|key| key.as_ref().encode(&mut bytes));
            let mut rest = &bytes[..];
            for key in &keys {
                prop_assert_eq!(KeyRef::decode(&mut rest), Some(key.as_ref()));
            }
            prop_assert!(rest.is_empty() && KeyRef::decode(&mut rest).is_none());
        }

        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = KeyRef::decode(&mut &bytes[..]);
            let _ = decode_number(&mut &bytes[..]);
        }

        #[test]
        fn counts_decode_to_themselves(number: u64) {
            let mut bytes = Vec::new();
            encode_number(number, &mut bytes);
            prop_assert_eq!(decode_number(&mut &bytes[..]), Some(number));
        }
    }
}
