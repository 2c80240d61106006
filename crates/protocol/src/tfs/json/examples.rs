//! Bodies of classify and regress: `{"signature_name", "context", "examples"}`, answered by
//! `{"results"}`.

use base::{Error, Result};
use bytes::Bytes;

use crate::json::{JsonReader, key, single, string_or_base64, text_or_base64};
use crate::tfs::example::{ExampleWriter, Examples, FeatureWriter, MixedKinds};
use crate::tfs::results::ExampleResult;

const CONTEXT: &str = "context";
const EXAMPLES: &str = "examples";
const RESULTS: &str = "results";

/// Memory of an example or a feature besides its values, in bytes: growing lists and their parts.
const OBJECT_BYTES: u64 = 256;
/// Bytes of a value in the message for each byte of its text. A list grows, and is copied into the
/// feature, the entry and the example.
const TEXT_EXPANSION: u64 = 8;
/// Bytes of a number as JSON.
const NUMBER_TEXT_BYTES: usize = 17;
/// Bytes of the object around a label in base64.
const BASE64_OBJECT_BYTES: usize = 10;

/// Returns an upper bound of the bytes that [`parse_examples`] allocates for `body`.
pub fn example_bytes_max(body: &[u8]) -> u64 {
    // An object is an example, and a colon follows the name of a feature.
    let objects = body.iter().filter(|byte| matches!(byte, b'{' | b':')).count() as u64;
    objects * OBJECT_BYTES + body.len() as u64 * TEXT_EXPANSION
}

/// Reads the body of a request into serialised examples. Unknown members are ignored. The values of
/// a feature decide its kind: strings and `{"b64"}`, numbers with a fraction, or whole numbers and
/// bools.
///
/// # Errors
/// `InvalidArgument` for malformed JSON, for no examples, and for values that are not a feature.
pub fn parse_examples(body: &Bytes) -> Result<Examples> {
    let mut context = None;
    let mut examples = None;
    let mut reader = JsonReader::tensorflow(body);
    reader.object(|reader, key| match key {
        CONTEXT if context.is_none() => {
            context = Some(example(reader)?);
            Ok(())
        }
        EXAMPLES if examples.is_none() => {
            if reader.peek() != Some(b'[') {
                return Err(reader.error("Expecting 'examples' value to be an list/array"));
            }
            let mut list = Vec::new();
            reader.array(|reader| {
                let number = list.len();
                list.push(
                    example(reader)
                        .map_err(|error| error.context(format_args!("example {number}")))?,
                );
                Ok(())
            })?;
            if list.is_empty() {
                return Err(reader.error("'examples' value is an empty array"));
            }
            examples = Some(list);
            Ok(())
        }
        CONTEXT | EXAMPLES => Err(reader.error(format_args!("\"{key}\" is given twice"))),
        _ => reader.skip(),
    })?;
    reader.end()?;
    let examples =
        examples.ok_or_else(|| Error::invalid("key 'examples' is expected and was not found"))?;
    Examples::new(examples, context.unwrap_or_default())
}

/// Reads an example, and returns its encoded message.
fn example(reader: &mut JsonReader<'_>) -> Result<Bytes> {
    if reader.peek() != Some(b'{') {
        return Err(reader.error("Example must be JSON object"));
    }
    let mut example = ExampleWriter::default();
    reader.object(|reader, name| {
        let mut feature = FeatureWriter::default();
        match reader.peek() {
            Some(b'[') => {
                reader.array(|reader| value(reader, name, &mut feature))?;
            }
            _ => value(reader, name, &mut feature)?,
        }
        example.feature(name, feature);
        Ok(())
    })?;
    Ok(example.finish())
}

/// Reads a value of the feature `name`, and adds it to `feature`.
fn value(reader: &mut JsonReader<'_>, name: &str, feature: &mut FeatureWriter) -> Result<()> {
    let added = match reader.peek() {
        Some(b'"' | b'{') => {
            let bytes = text_or_base64(reader)
                .map_err(|error| error.context(format_args!("Feature: {}", shown(name))))?;
            feature.bytes(&bytes)
        }
        Some(b't' | b'f') => feature.int64(reader.boolean()?.into()),
        Some(b'-' | b'0'..=b'9' | b'N' | b'I') => return number(reader, name, feature),
        _ => {
            return Err(reader.error(format_args!(
                "Feature: {} has element with unexpected JSON type",
                shown(name)
            )));
        }
    };
    added.map_err(|mixed| refused(reader, name, feature, mixed))
}

/// Adds a number. Whole numbers are int64, as in TensorFlow Serving, and others are floats.
fn number(reader: &mut JsonReader<'_>, name: &str, feature: &mut FeatureWriter) -> Result<()> {
    let token = reader.number()?;
    let added = match (token.whole, token.text.parse::<i64>()) {
        (true, Ok(whole)) => feature.int64(whole),
        (true, Err(_)) if token.text.parse::<u64>().is_ok() => {
            return Err(reader.error(format_args!(
                "Feature: {} has uint64 element. Only int64 is supported.",
                shown(name)
            )));
        }
        _ => {
            let wide: f64 = token.text.parse().unwrap_or(f64::NAN);
            // Infinity and -Infinity end with y, NaN with N. Another infinite value was too large.
            let is_token = token.text.ends_with(['y', 'N']);
            if !is_token && wide.abs() > f64::from(f32::MAX) {
                return Err(reader.error(format_args!(
                    "Cannot convert JSON value: {} to float without loss of precision.",
                    token.shown()
                )));
            }
            feature.float(wide as f32)
        }
    };
    added.map_err(|mixed| refused(reader, name, feature, mixed))
}

fn refused(reader: &JsonReader<'_>, name: &str, feature: &FeatureWriter, _: MixedKinds) -> Error {
    reader.error(format_args!(
        "Unexpected element type in feature: {} expecting type: {}",
        shown(name),
        feature.kind()
    ))
}

fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Returns an upper bound of the bytes of [`result_response`].
pub fn result_text_bytes_max(result: &ExampleResult) -> usize {
    let lists = match result {
        ExampleResult::Values(values) => {
            return 32 + values.regressions.len() * (NUMBER_TEXT_BYTES + 1);
        }
        ExampleResult::Classes(classes) => &classes.classifications,
    };
    // Each byte of a label may be an escape of six bytes. Base64 takes fewer, besides its object.
    let class = |label: &Bytes| 6 * label.len() + NUMBER_TEXT_BYTES + BASE64_OBJECT_BYTES + 6;
    let classes = lists.iter().flat_map(|list| &list.classes);
    32 + 3 * lists.len() + classes.map(|one| class(&one.label)).sum::<usize>()
}

/// Writes the response: for each example a list of labels with their scores, or a number. A label
/// that is not UTF-8 is `{"b64": ...}`, as in an answer of Predict.
pub fn result_response(result: &ExampleResult) -> Bytes {
    let mut out = Vec::with_capacity(result_text_bytes_max(result));
    out.push(b'{');
    key(&mut out, RESULTS);
    match result {
        ExampleResult::Values(values) => list(&mut out, &values.regressions, |out, regression| {
            single(out, regression.value);
        }),
        ExampleResult::Classes(classes) => list(&mut out, &classes.classifications, |out, one| {
            list(out, &one.classes, |out, class| {
                out.push(b'[');
                string_or_base64(out, &class.label);
                out.push(b',');
                single(out, class.score);
                out.push(b']');
            });
        }),
    }
    out.push(b'}');
    out.into()
}

fn list<T>(out: &mut Vec<u8>, elements: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (position, element) in elements.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write(out, element);
    }
    out.push(b']');
}
