//! From what was typed to a tensor.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::{DType, NamedTensor, Tensor};
use bytes::Bytes;
use serde_json::Value;

use crate::exit::{Failure, Outcome};
use crate::infer::image::{self, ImageArgs};
use crate::infer::metadata::Spec;
use crate::infer::sound::{self, SoundArgs};
use crate::infer::{json, read_file};

/// One input as typed; without a name it is for the first input that no other one names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Given {
    pub(crate) name: Option<String>,
    pub(crate) value: GivenValue,
}

/// Where its elements are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GivenValue {
    Json(Value),
    /// Text that is not JSON: a string, for a model that takes strings.
    Text(String),
    File(PathBuf),
    /// Zeros of the smallest shape the model takes.
    Zeros,
}

impl FromStr for Given {
    type Err = String;

    /// `NAME=JSON`, `NAME=@FILE`, `NAME=zeros`.
    fn from_str(text: &str) -> Result<Given, String> {
        let (name, value) = text.split_once('=').ok_or("write NAME=JSON, NAME=@FILE or NAME=zeros")?;
        let value = match value.strip_prefix('@') {
            Some(file) => GivenValue::File(file.into()),
            None if value == "zeros" => GivenValue::Zeros,
            // `text=hello` needs no quotes inside the shell's quotes, if the model takes strings.
            None => serde_json::from_str(value)
                .map_or_else(|_| GivenValue::Text(value.to_owned()), GivenValue::Json),
        };
        Ok(Given { name: Some(name.to_owned()), value })
    }
}

impl Given {
    /// `--input FILE` or `--input NAME=FILE`.
    pub(crate) fn from_file_argument(text: &str) -> Given {
        match text.split_once('=') {
            Some((name, file)) if !name.contains('/') && !Path::new(text).exists() => {
                Given { name: Some(name.to_owned()), value: GivenValue::File(file.into()) }
            }
            _ => Given { name: None, value: GivenValue::File(text.into()) },
        }
    }
}

/// Gives each value its input.
///
/// # Errors
/// A failure for a name that the model does not have, or more values than inputs.
pub(crate) fn assign(given: Vec<Given>, specs: &[Spec]) -> Outcome<Vec<(&Spec, GivenValue)>> {
    let names = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
    let taken: Vec<String> = given.iter().filter_map(|given| given.name.clone()).collect();
    let mut free = specs.iter().filter(|spec| !taken.contains(&spec.name));
    let mut assigned = Vec::new();
    for Given { name, value } in given {
        let spec = match &name {
            Some(name) => specs.iter().find(|spec| spec.name == *name),
            None => free.next(),
        };
        let missing = || match &name {
            Some(name) => Failure::failed(format!("the model has no input \"{name}\"; it has {}", names())),
            None => Failure::failed(format!("more files than inputs; the model has {}", names())),
        };
        assigned.push((spec.ok_or_else(missing)?, value));
    }
    Ok(assigned)
}

/// Makes the tensor for one input.
///
/// # Errors
/// A failure naming the input or the file.
pub(crate) fn tensor(
    spec: &Spec,
    value: GivenValue,
    image: &ImageArgs,
    sound: &SoundArgs,
) -> Outcome<NamedTensor> {
    let tensor = match value {
        GivenValue::Json(value) => json::tensor_for(spec, &value)?,
        GivenValue::Text(text) if spec.dtype == DType::String => {
            json::tensor_for(spec, &Value::String(text))?
        }
        GivenValue::Text(text) => return Err(not_json(spec, &text)),
        GivenValue::Zeros => zeros(spec)?,
        GivenValue::File(path) => from_file(spec, &path, image, sound)?,
    };
    Ok(NamedTensor::new(spec.name.as_str(), tensor))
}

fn not_json(spec: &Spec, text: &str) -> Failure {
    let (name, dtype) = (&spec.name, spec.dtype);
    let failure = Failure::failed(format!("input \"{name}\": {text} is not JSON"));
    failure.hint(format!(
        "the model takes {dtype}: write numbers as in {name}=[1,2.5]; strings need quotes, as in {name}='[\"a\"]'"
    ))
}

fn zeros(spec: &Spec) -> Outcome<Tensor> {
    let shape = spec.smallest();
    let elements: usize = shape.iter().product();
    let tensor = match spec.dtype.bytes_for(elements) {
        Some(bytes) => Tensor::from_bytes(spec.dtype, shape.as_slice(), Bytes::from(vec![0; bytes])),
        None => Tensor::from_strings(shape.as_slice(), vec![Bytes::new(); elements]),
    };
    Ok(tensor?)
}

fn from_file(spec: &Spec, path: &Path, image: &ImageArgs, sound: &SoundArgs) -> Outcome<Tensor> {
    let bytes = read_file(path)?;
    let named = |failure: Failure| Failure::failed(format!("{}: {}", path.display(), failure.message()));
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        // A model that takes byte strings decodes pictures and sound itself.
        _ if spec.dtype == DType::String => {
            let shape = spec.fit(1)?;
            Ok(Tensor::from_strings(shape.as_slice(), vec![Bytes::from(bytes)])?)
        }
        Some("json") => {
            let value = serde_json::from_slice(&bytes)
                .map_err(|error| Failure::failed(format!("{} is not JSON: {error}", path.display())))?;
            json::tensor_for(spec, &value)
        }
        Some("png" | "jpg" | "jpeg") => image::tensor(spec, &bytes, image).map_err(named),
        Some("wav") => sound::tensor(spec, &bytes, sound).map_err(named),
        _ => raw(spec, bytes).map_err(named),
    }
}

/// A file of elements as they lie in memory.
fn raw(spec: &Spec, bytes: Vec<u8>) -> Outcome<Tensor> {
    let bits = spec.dtype.bits().unwrap_or(8);
    let shape = spec.fit(bytes.len() * 8 / bits)?;
    Ok(Tensor::from_bytes(spec.dtype, shape.as_slice(), Bytes::from(bytes))?)
}

/// Real numbers as elements of the type that the model takes: rounded and clamped for integers.
///
/// # Errors
/// A failure for types that do not stand for numbers of this kind.
pub(crate) fn numbers(dtype: DType, shape: &[usize], values: &[f32]) -> Outcome<Tensor> {
    fn all<T: base::Element>(
        shape: &[usize],
        values: &[f32],
        convert: impl Fn(f32) -> T,
    ) -> base::Result<Tensor> {
        Tensor::from_vec(shape, values.iter().map(|&value| convert(value)).collect())
    }
    let tensor = match dtype {
        DType::F32 => all(shape, values, |value| value),
        DType::F64 => all(shape, values, f64::from),
        DType::F16 => all(shape, values, half::f16::from_f32),
        DType::BF16 => all(shape, values, half::bf16::from_f32),
        // "as" saturates, which is the clamp.
        DType::U8 => all(shape, values, |value| value.round() as u8),
        DType::I8 => all(shape, values, |value| value.round() as i8),
        DType::U16 => all(shape, values, |value| value.round() as u16),
        DType::I16 => all(shape, values, |value| value.round() as i16),
        DType::I32 => all(shape, values, |value| value.round() as i32),
        DType::I64 => all(shape, values, |value| value.round() as i64),
        other => {
            return Err(Failure::failed(format!("the model takes {other}, which a picture or sound is not")));
        }
    };
    Ok(tensor?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(name: &str, shape: &[i64]) -> Spec {
        Spec { name: name.into(), dtype: DType::F32, shape: shape.to_vec() }
    }

    #[test]
    fn what_is_typed() {
        let given = |text: &str| text.parse::<Given>().map(|given| given.value);
        assert_eq!(given("x=[1,2]"), Ok(GivenValue::Json(json!([1, 2]))));
        assert_eq!(given("x=hello"), Ok(GivenValue::Text("hello".into())));
        assert_eq!(given("x=\"hello\""), Ok(GivenValue::Json(json!("hello"))));
        assert_eq!(given("x=@a.png"), Ok(GivenValue::File("a.png".into())));
        assert_eq!(given("x=zeros"), Ok(GivenValue::Zeros));
        assert!(given("x").is_err());
        assert_eq!(Given::from_file_argument("a.png").name, None);
        assert_eq!(Given::from_file_argument("x=a.png").name.as_deref(), Some("x"));
    }

    #[test]
    fn files_without_a_name_take_what_is_left() {
        let specs = [spec("a", &[]), spec("b", &[]), spec("c", &[])];
        let given = vec![Given::from_file_argument("f.png"), "a=1".parse().unwrap()];
        let assigned = assign(given, &specs).unwrap();
        let names: Vec<&str> = assigned.iter().map(|(spec, _)| spec.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let error = assign(vec!["z=1".parse().unwrap()], &specs).unwrap_err();
        assert_eq!(error.message(), "the model has no input \"z\"; it has a, b, c");
    }

    #[test]
    fn integers_saturate() {
        let tensor = numbers(DType::U8, &[3], &[-4.0, 99.6, 300.0]).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [0, 100, 255]);
        assert!(numbers(DType::Bool, &[1], &[1.0]).is_err());
    }
}
