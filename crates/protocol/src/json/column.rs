//! Reads elements of one type from JSON into a tensor.

use std::borrow::Cow;

use base::{DType, Element, Error, Result, Shape, Tensor};
use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use super::nesting::{Nesting, Ragged};
use super::reader::JsonReader;
use crate::wire;

/// Base64 with or without padding, and with any bits after the last byte, as TensorFlow Serving
/// accepts it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A tensor that grows while values are read.
pub(crate) trait Column {
    /// Reads one value or nested list, `depth` axes down in the tensor.
    fn read(&mut self, reader: &mut JsonReader<'_>, depth: usize) -> Result<()>;

    /// Returns the shape read so far, from depth 0.
    fn nesting(&mut self) -> &mut Nesting;

    /// Returns the tensor with `shape`, which has as many elements as were read.
    fn finish(self: Box<Self>, shape: Shape) -> Result<Tensor>;
}

/// Creates an empty column for elements of `dtype`.
///
/// # Errors
/// `InvalidArgument` for types that have no form in JSON.
pub(crate) fn column(dtype: DType) -> Result<Box<dyn Column>> {
    Ok(match dtype {
        DType::Bool => TypedColumn::<Booleans>::boxed(),
        DType::U8 => TypedColumn::<u8>::boxed(),
        DType::U16 => TypedColumn::<u16>::boxed(),
        DType::U32 => TypedColumn::<u32>::boxed(),
        DType::U64 => TypedColumn::<u64>::boxed(),
        DType::I8 => TypedColumn::<i8>::boxed(),
        DType::I16 => TypedColumn::<i16>::boxed(),
        DType::I32 => TypedColumn::<i32>::boxed(),
        DType::I64 => TypedColumn::<i64>::boxed(),
        DType::F16 => TypedColumn::<half::f16>::boxed(),
        DType::BF16 => TypedColumn::<half::bf16>::boxed(),
        DType::F32 => TypedColumn::<f32>::boxed(),
        DType::F64 => TypedColumn::<f64>::boxed(),
        DType::U4 => TypedColumn::<Nibbles<false>>::boxed(),
        DType::I4 => TypedColumn::<Nibbles<true>>::boxed(),
        DType::String => TypedColumn::<Strings>::boxed(),
        other => {
            return Err(Error::invalid(format!(
                "{other} has no form in JSON; send it as binary data, or use gRPC"
            )));
        }
    })
}

/// Reader and store of elements of one type.
trait ElementReader {
    type Value;
    fn read(reader: &mut JsonReader<'_>) -> Result<Self::Value>;
    fn tensor(values: Vec<Self::Value>, shape: Shape) -> Result<Tensor>;
}

/// Elements of one type, with the shape of their lists.
struct TypedColumn<L: ElementReader> {
    values: Vec<L::Value>,
    nesting: Nesting,
}

impl<L: ElementReader + 'static> TypedColumn<L> {
    fn boxed() -> Box<dyn Column> {
        Box::new(TypedColumn::<L> { values: Vec::new(), nesting: Nesting::default() })
    }

    /// Reads a list at `depth`, with the lists in it, or a value.
    fn read_nested(&mut self, reader: &mut JsonReader<'_>, depth: usize) -> Result<()> {
        if reader.peek() != Some(b'[') {
            let misplaced = self.nesting.leaf(depth).map_err(|ragged| refused(reader, ragged));
            // Text that is not an element, such as the ']' after a last comma, is named first.
            let value = L::read(reader)?;
            misplaced?;
            self.values.push(value);
            return Ok(());
        }
        self.nesting.open(depth).map_err(|ragged| refused(reader, ragged))?;
        let length = reader.array(|reader| self.read_nested(reader, depth + 1))?;
        self.nesting.close(depth, length).map_err(|ragged| refused(reader, ragged))
    }
}

fn refused(reader: &JsonReader<'_>, ragged: Ragged) -> Error {
    match ragged {
        Ragged::Uneven => {
            reader.error("the lists do not make a tensor: their lengths or depths differ")
        }
        Ragged::TooDeep => reader.error(format_args!("more than {} axes", wire::RANK_MAX)),
    }
}

impl<L: ElementReader + 'static> Column for TypedColumn<L> {
    fn read(&mut self, reader: &mut JsonReader<'_>, depth: usize) -> Result<()> {
        self.read_nested(reader, depth)
    }

    fn nesting(&mut self) -> &mut Nesting {
        &mut self.nesting
    }

    fn finish(self: Box<Self>, shape: Shape) -> Result<Tensor> {
        L::tensor(self.values, shape)
    }
}

/// A number that can be parsed from JSON text.
trait Number: Element {
    /// Parses a number. Returns `None` if the text is not a value of this type. An integer may have
    /// a fraction of zeros. `whole` is true if the text has neither fraction nor exponent.
    fn parse(text: &str, whole: bool) -> Option<Self>;

    /// Parses a number as TensorFlow Serving does. A finite number out of range becomes infinite if
    /// the type has infinities, and an integer has no fraction.
    fn parse_as_tensorflow(text: &str, whole: bool) -> Option<Self>;
}

/// Returns the text of a number without a fraction of zeros. Clients that keep all numbers as
/// floats write the integer 1 as `1.0`, such as the Open Inference Protocol's client for Python.
fn without_zero_fraction(text: &str) -> &str {
    match text.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|digit| digit == b'0') => whole,
        _ => text,
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            fn parse(text: &str, whole: bool) -> Option<Self> {
                if whole {
                    return Self::parse_as_tensorflow(text, whole);
                }
                let shorter = without_zero_fraction(text);
                Self::parse_as_tensorflow(shorter, shorter.len() < text.len())
            }

            fn parse_as_tensorflow(text: &str, whole: bool) -> Option<Self> {
                if text == "-0" {
                    return Some(0);
                }
                if whole { text.parse().ok() } else { None }
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i8, i16, i32, i64);

/// A float type that a double is rounded to.
trait FloatElement {
    /// Returns the value of this type that NumPy converts the double to.
    fn nearest(value: f64) -> Self;
}

impl FloatElement for f64 {
    fn nearest(value: f64) -> f64 {
        value
    }
}

impl FloatElement for f32 {
    fn nearest(value: f64) -> f32 {
        value as f32
    }
}

impl FloatElement for half::f16 {
    fn nearest(value: f64) -> half::f16 {
        base::round_to_f16(value)
    }
}

impl FloatElement for half::bf16 {
    fn nearest(value: f64) -> half::bf16 {
        base::round_to_bf16(value)
    }
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            fn parse(text: &str, whole: bool) -> Option<Self> {
                let value = Self::parse_as_tensorflow(text, whole)?;
                // A finite number out of range must not turn into infinity unnoticed.
                (value.is_finite() || text.ends_with(['y', 'N'])).then_some(value)
            }

            fn parse_as_tensorflow(text: &str, _: bool) -> Option<Self> {
                // Clients hold numbers as doubles. The double is rounded, and not its text, so
                // that JSON gives the value that the client's own conversion gives. The shortest
                // text of a single still gives that single: 7.038531e-26 is the only exception.
                text.parse::<f64>().ok().map(Self::nearest)
            }
        }
    )*};
}
floats!(f32, f64, half::f16, half::bf16);

impl<T: Number> ElementReader for T {
    type Value = T;

    fn read(reader: &mut JsonReader<'_>) -> Result<T> {
        let token = reader.number()?;
        let parse = if reader.is_tensorflow() { T::parse_as_tensorflow } else { T::parse };
        parse(token.text, token.whole).ok_or_else(|| {
            reader.error(format_args!("{} is not a valid {} value", token.shown(), T::DTYPE))
        })
    }

    fn tensor(values: Vec<T>, shape: Shape) -> Result<Tensor> {
        Tensor::from_vec(shape, values)
    }
}

/// `true` and `false`, or 1 and 0. TensorFlow Serving accepts no numbers.
struct Booleans;

impl ElementReader for Booleans {
    type Value = u8;

    fn read(reader: &mut JsonReader<'_>) -> Result<u8> {
        match reader.peek() {
            Some(b'0' | b'1') if !reader.is_tensorflow() => {
                let token = reader.number()?;
                let value = match without_zero_fraction(token.text) {
                    "0" => Some(0),
                    "1" => Some(1),
                    _ => None,
                };
                value.ok_or_else(|| {
                    reader.error(format_args!("{} is not a valid bool value", token.shown()))
                })
            }
            _ => reader.boolean().map(u8::from),
        }
    }

    fn tensor(values: Vec<u8>, shape: Shape) -> Result<Tensor> {
        Tensor::from_bytes(DType::Bool, shape, Bytes::from(values))
    }
}

/// 4-bit integers, packed once all are read.
struct Nibbles<const SIGNED: bool>;

impl<const SIGNED: bool> ElementReader for Nibbles<SIGNED> {
    type Value = u8;

    fn read(reader: &mut JsonReader<'_>) -> Result<u8> {
        let token = reader.number()?;
        let range = if SIGNED { -8..=7 } else { 0..=15 };
        let parse = if reader.is_tensorflow() { i8::parse_as_tensorflow } else { i8::parse };
        let value = parse(token.text, token.whole).filter(|value| range.contains(value));
        value.map(|value| value as u8).ok_or_else(|| {
            reader.error(format_args!(
                "{} is not a valid {} value",
                token.shown(),
                if SIGNED { "int4" } else { "uint4" }
            ))
        })
    }

    fn tensor(values: Vec<u8>, shape: Shape) -> Result<Tensor> {
        let dtype = if SIGNED { DType::I4 } else { DType::U4 };
        if wire::elements("data", &shape)? != values.len() {
            return Err(Error::invalid(format!(
                "shape {shape:?} does not have {} elements",
                values.len()
            )));
        }
        Tensor::from_bytes(dtype, shape, Bytes::from(wire::pack(&values)))
    }
}

/// Reads text, or TensorFlow Serving's `{"b64": "..."}` for bytes that are not text.
///
/// # Errors
/// `InvalidArgument` for another value.
pub(crate) fn text_or_base64(reader: &mut JsonReader<'_>) -> Result<Bytes> {
    if reader.peek() != Some(b'{') {
        return reader.string_bytes();
    }
    let mut decoded = None;
    reader.object(|reader, key| {
        if key != "b64" || decoded.is_some() {
            return Err(reader.error("expected a string or {\"b64\": \"...\"}"));
        }
        let text = reader.string()?;
        let bytes = decode_base64(text)
            .map_err(|error| reader.error("\"b64\" is not base64").with_source(error))?;
        decoded = Some(Bytes::from(bytes));
        Ok(())
    })?;
    decoded.ok_or_else(|| reader.error("expected a string or {\"b64\": \"...\"}"))
}

/// Decodes base64. Skips white space, as TensorFlow Serving does, because many encoders break
/// lines.
fn decode_base64(mut text: Cow<'_, str>) -> std::result::Result<Vec<u8>, base64::DecodeError> {
    if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        text.to_mut().retain(|character| !character.is_ascii_whitespace());
    }
    BASE64.decode(text.as_bytes())
}

/// Strings, as [`text_or_base64`] reads them.
struct Strings;

impl ElementReader for Strings {
    type Value = Bytes;

    fn read(reader: &mut JsonReader<'_>) -> Result<Bytes> {
        text_or_base64(reader)
    }

    fn tensor(values: Vec<Bytes>, shape: Shape) -> Result<Tensor> {
        Tensor::from_strings(shape, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dtype: DType, text: &str) -> Result<Tensor> {
        let body = Bytes::copy_from_slice(text.as_bytes());
        let mut column = column(dtype)?;
        column.read(&mut JsonReader::new(&body), 0)?;
        let shape = column.nesting().shape();
        column.finish(shape)
    }

    #[test]
    fn shapes_are_learned() {
        for (text, shape) in
            [("5", &[][..]), ("[]", &[0]), ("[[],[]]", &[2, 0]), ("[[1,2,3],[4,5,6]]", &[2, 3])]
        {
            assert_eq!(read(DType::I32, text).unwrap().shape(), shape, "{text}");
        }
        for ragged in ["[1,[2]]", "[[1],2]", "[[1],[2,3]]", "[[],1]", "[[],[[]]]", "[[[]],[]]"] {
            assert!(read(DType::I32, ragged).is_err(), "{ragged}");
        }
        assert!(read(DType::I32, &format!("{}1{}", "[".repeat(65), "]".repeat(65))).is_err());
    }

    #[test]
    fn numbers_must_fit_their_type() {
        assert_eq!(
            read(DType::F32, "[1, 2.5, NaN, -Infinity]").unwrap().to_vec::<f32>().unwrap()[3],
            f32::NEG_INFINITY
        );
        assert_eq!(
            read(DType::U64, "18446744073709551615").unwrap().to_vec::<u64>(),
            Ok(vec![u64::MAX])
        );
        assert_eq!(read(DType::I4, "[-8, 7, -1]").unwrap().bytes().unwrap().as_ref(), [0x78, 0x0f]);
        for (dtype, text) in [
            (DType::U8, "256"),
            (DType::U8, "-1"),
            (DType::I32, "1.5"),
            (DType::I32, "1.00000000000000000001"),
            (DType::I64, "1e3"),
            (DType::I64, "1.0e3"),
            (DType::U8, "256.0"),
            (DType::I32, "NaN"),
            (DType::F32, "1e39"),
            (DType::F16, "70000"),
            (DType::F64, "\"1\""),
            (DType::F64, "null"),
            (DType::I4, "8"),
            (DType::U4, "-1"),
            (DType::Bool, "2"),
            (DType::Bool, "1.5"),
            (DType::String, "1"),
            (DType::String, "{\"b64\":\"?\"}"),
            (DType::String, "{}"),
            (DType::Complex64, "1"),
        ] {
            assert!(read(dtype, text).is_err(), "{dtype} {text}");
        }
    }

    /// A client holds the text of a double. In binary form it sends the double as a narrower type.
    #[test]
    fn floats_round_as_a_conversion_of_the_double() {
        // The double is halfway between two singles, and its shortest text is above it.
        let tie = (1.0 + f64::from(1.0 + f32::EPSILON)) / 2.0;
        let singles = read(DType::F32, &format!("[{tie:?}, -{tie:?}]")).unwrap();
        assert_eq!(singles.to_vec::<f32>(), Ok(vec![1.0, -1.0]));
        // The nearest single is halfway between two half floats, and the number is above it.
        let halves = read(DType::F16, "[1.00048828125, 1.00048828126, -1.00048828126]").unwrap();
        let next = half::f16::from_bits(0x3c01);
        assert_eq!(halves.to_vec::<half::f16>(), Ok(vec![half::f16::ONE, next, -next]));
        let brains = read(DType::BF16, "[1.00390625, 1.00390626]").unwrap();
        assert_eq!(brains.to_vec::<half::bf16>(), Ok(vec![half::bf16::ONE; 2]));
        for (dtype, text) in [(DType::F16, "65520"), (DType::BF16, "3.4e38"), (DType::F32, "1e300")]
        {
            assert!(read(dtype, text).is_err(), "{dtype} {text}");
        }
    }

    #[test]
    fn an_integer_may_have_a_fraction_of_zeros() {
        let numbers = read(DType::I64, "[1.0, -7.00, -0.0, 2]").unwrap();
        assert_eq!(numbers.to_vec::<i64>(), Ok(vec![1, -7, 0, 2]));
        let largest = read(DType::U64, "18446744073709551615.0").unwrap();
        assert_eq!(largest.to_vec::<u64>(), Ok(vec![u64::MAX]));
        assert_eq!(read(DType::Bool, "[1.0, 0.0]").unwrap().bytes().unwrap().as_ref(), [1, 0]);
        assert_eq!(read(DType::I4, "[-1.0]").unwrap().bytes().unwrap().as_ref(), [0x0f]);
    }

    #[test]
    fn tensorflow_serving_reads_some_values_otherwise() {
        let tensorflow = |dtype, text: &str| {
            let body = Bytes::copy_from_slice(text.as_bytes());
            let mut column = column(dtype).unwrap();
            column.read(&mut JsonReader::tensorflow(&body), 0)?;
            let shape = column.nesting().shape();
            column.finish(shape)
        };
        let floats =
            tensorflow(DType::F32, "[1.8e308, -1e39, 1]").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(floats, [f32::INFINITY, f32::NEG_INFINITY, 1.0]);
        let doubles = tensorflow(DType::F64, "[1.8e308]").unwrap().to_vec::<f64>().unwrap();
        assert_eq!(doubles, [f64::INFINITY]);
        assert!(tensorflow(DType::F16, "[70000]").is_ok());
        assert!(tensorflow(DType::I32, "[4294967296]").is_err());
        assert!(tensorflow(DType::I32, "[1.0]").is_err());
        assert!(tensorflow(DType::Bool, "[true]").is_ok());
        for number in ["[1]", "[0]"] {
            assert!(tensorflow(DType::Bool, number).is_err());
            assert!(read(DType::Bool, number).is_ok());
        }
        let broken = r#"{"b64":"A\nP 8=\r\n"}"#;
        for text in [r#"{"b64":"AP8="}"#, r#"{"b64":"AP8"}"#, r#"{"b64":"AP9"}"#, broken] {
            let tensor = read(DType::String, text).unwrap();
            assert_eq!(tensor.strings().unwrap(), [Bytes::from_static(&[0, 255])]);
        }
    }

    #[test]
    fn strings_share_the_body() {
        let body = Bytes::from_static(br#"["shared","esc\n",{"b64":"AP8="}]"#);
        let mut column = column(DType::String).unwrap();
        column.read(&mut JsonReader::new(&body), 0).unwrap();
        let tensor = column.finish([3usize].as_slice().into()).unwrap();
        let strings = tensor.strings().unwrap();
        assert_eq!(strings[0].as_ptr(), body[2..].as_ptr());
        assert_eq!(strings[1..], [Bytes::from_static(b"esc\n"), Bytes::from_static(&[0, 255])]);
    }
}
