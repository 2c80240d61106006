//! Converts command line values to tensors.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::{DType, NamedTensor, Tensor};
use bytes::Bytes;
use command_line::exit::{CommandError, CommandResult};
use command_line::recording;
use serde_json::Value;

use crate::infer::audio::{self, AudioInputArgs};
use crate::infer::image::{self, ImageArgs};
use crate::infer::metadata::InputSpec;
use crate::infer::{json, read_file};

/// Extensions of recordings. A format that cannot be decoded is refused by its name, because its
/// bytes as elements would be noise.
const AUDIO_EXTENSIONS: [&str; 12] =
    ["aac", "aif", "aifc", "aiff", "amr", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav"];

/// Maximum elements of an input of zeros: 1 GiB of 32-bit floats.
const ZEROS_MAX: usize = 1 << 28;

/// One input as typed. Without a name, it is for the first input that no other value names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputArg {
    pub(crate) name: Option<String>,
    pub(crate) value: InputValue,
}

/// Source of an input's elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InputValue {
    Json(Value),
    /// Text that is not JSON: a string, for models that take strings.
    Text(String),
    File(PathBuf),
    /// Zeros of the smallest shape that the model takes.
    Zeros,
}

impl FromStr for InputArg {
    type Err = String;

    /// Parses `NAME=JSON`, `NAME=@FILE` or `NAME=zeros`.
    fn from_str(text: &str) -> Result<InputArg, String> {
        let (name, value) =
            text.split_once('=').ok_or("write NAME=JSON, NAME=@FILE or NAME=zeros")?;
        let value = match value.strip_prefix('@') {
            Some(file) => InputValue::File(file.into()),
            None if value == "zeros" => InputValue::Zeros,
            // `text=hello` needs no quotes inside the shell's quotes, if the model takes strings.
            None => serde_json::from_str(value)
                .map_or_else(|_| InputValue::Text(value.to_owned()), InputValue::Json),
        };
        Ok(InputArg { name: Some(name.to_owned()), value })
    }
}

impl InputArg {
    /// Parses the value of `--input`: `FILE` or `NAME=FILE`.
    pub(crate) fn from_file_argument(text: &str) -> InputArg {
        match text.split_once('=') {
            Some((name, file)) if !name.contains('/') && !Path::new(text).exists() => {
                InputArg { name: Some(name.to_owned()), value: InputValue::File(file.into()) }
            }
            _ => InputArg { name: None, value: InputValue::File(text.into()) },
        }
    }
}

/// Assigns each value to an input.
///
/// # Errors
/// Returns an error for a name that the model does not have, or for more values than inputs.
pub(crate) fn assign(
    given: Vec<InputArg>,
    specs: &[InputSpec],
) -> CommandResult<Vec<(&InputSpec, InputValue)>> {
    let names = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
    let taken: Vec<String> = given.iter().filter_map(|given| given.name.clone()).collect();
    let mut free = specs.iter().filter(|spec| !taken.contains(&spec.name));
    let mut assigned = Vec::new();
    for InputArg { name, value } in given {
        let spec = match &name {
            Some(name) => specs.iter().find(|spec| spec.name == *name),
            None => free.next(),
        };
        let missing = || match &name {
            Some(name) => CommandError::failed(format!(
                "the model has no input \"{name}\"; it has {}",
                names()
            )),
            None => {
                CommandError::failed(format!("more files than inputs; the model has {}", names()))
            }
        };
        assigned.push((spec.ok_or_else(missing)?, value));
    }
    Ok(assigned)
}

/// Builds the tensor for one input.
///
/// # Errors
/// Returns an error that names the input or the file.
pub(crate) fn tensor(
    spec: &InputSpec,
    value: InputValue,
    image: &ImageArgs,
    audio: &AudioInputArgs,
) -> CommandResult<NamedTensor> {
    let tensor = match value {
        InputValue::Json(value) => json::tensor_for(spec, &value)?,
        InputValue::Text(text) if spec.dtype == DType::String => {
            json::tensor_for(spec, &Value::String(text))?
        }
        InputValue::Text(text) => return Err(not_json(spec, &text)),
        InputValue::Zeros => zeros(spec)?,
        InputValue::File(path) => from_file(spec, &path, image, audio)?,
    };
    Ok(NamedTensor::new(spec.name.as_str(), tensor))
}

fn not_json(spec: &InputSpec, text: &str) -> CommandError {
    let name = &spec.name;
    let dtype = spec.dtype;
    let failure = CommandError::failed(format!("input \"{name}\": {text} is not JSON"));
    failure.hint(format!(
        "the model takes {dtype}: write numbers as in {name}=[1,2.5]; strings need quotes, as in {name}='[\"a\"]'"
    ))
}

/// Returns zeros of the smallest shape that the input takes.
fn zeros(spec: &InputSpec) -> CommandResult<Tensor> {
    let shape = spec.smallest();
    let elements = shape.iter().copied().try_fold(1usize, usize::checked_mul);
    let elements = elements.filter(|elements| *elements <= ZEROS_MAX).ok_or_else(|| {
        CommandError::failed(format!(
            "input \"{}\" takes shape {:?}, which is more than {ZEROS_MAX} zeros",
            spec.name, spec.shape
        ))
    })?;
    let tensor = match spec.dtype.bytes_for(elements) {
        Some(bytes) => {
            Tensor::from_bytes(spec.dtype, shape.as_slice(), Bytes::from(vec![0; bytes]))
        }
        None => Tensor::from_strings(shape.as_slice(), vec![Bytes::new(); elements]),
    };
    Ok(tensor?)
}

/// Reads the tensor of an input from a file. Images and audio are decoded, and other files are raw
/// bytes.
fn from_file(
    spec: &InputSpec,
    path: &Path,
    image: &ImageArgs,
    audio: &AudioInputArgs,
) -> CommandResult<Tensor> {
    let named = |failure: CommandError| {
        CommandError::failed(format!("{}: {}", path.display(), failure.message()))
    };
    let extension =
        path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let extension = extension.as_deref();
    // A model that takes strings or uint8 decodes audio itself. Samples, -1 to 1, need a sign.
    let takes_samples = !matches!(spec.dtype, DType::String | DType::U8);
    if takes_samples && extension.is_some_and(|it| AUDIO_EXTENSIONS.contains(&it)) {
        let (input, hint) = recording::open(path)?;
        return audio::tensor(spec, input, hint.as_deref(), audio).map_err(named);
    }
    let bytes = read_file(path)?;
    match extension {
        // A model that takes byte strings decodes images and audio itself.
        _ if spec.dtype == DType::String => {
            let shape = spec.fit(1)?;
            Ok(Tensor::from_strings(shape.as_slice(), vec![Bytes::from(bytes)])?)
        }
        Some("json") => {
            let value = serde_json::from_slice(&bytes).map_err(|error| {
                CommandError::failed(format!("{} is not JSON: {error}", path.display()))
            })?;
            json::tensor_for(spec, &value)
        }
        Some("png" | "jpg" | "jpeg") => image::tensor(spec, &bytes, image).map_err(named),
        _ => raw(spec, bytes).map_err(named),
    }
}

/// Builds a tensor from a file of elements in their memory layout.
fn raw(spec: &InputSpec, bytes: Vec<u8>) -> CommandResult<Tensor> {
    let bits = spec.dtype.bits().unwrap_or(8);
    let shape = spec.fit(bytes.len() * 8 / bits)?;
    Ok(Tensor::from_bytes(spec.dtype, shape.as_slice(), Bytes::from(bytes))?)
}

/// Converts real numbers to the model's type: rounded and clamped for integers.
///
/// # Errors
/// Returns an error for types that hold no such numbers.
pub(crate) fn numbers(dtype: DType, shape: &[usize], values: &[f32]) -> CommandResult<Tensor> {
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
        // `as` saturates, which clamps.
        DType::U8 => all(shape, values, |value| value.round() as u8),
        DType::I8 => all(shape, values, |value| value.round() as i8),
        DType::U16 => all(shape, values, |value| value.round() as u16),
        DType::I16 => all(shape, values, |value| value.round() as i16),
        DType::I32 => all(shape, values, |value| value.round() as i32),
        DType::I64 => all(shape, values, |value| value.round() as i64),
        other => {
            return Err(CommandError::failed(format!(
                "the model takes {other}, and not an image or audio"
            )));
        }
    };
    Ok(tensor?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    /// The options of `millpond infer` for files.
    #[derive(Parser)]
    struct FileOptions {
        #[command(flatten)]
        image: ImageArgs,
        #[command(flatten)]
        audio: AudioInputArgs,
    }

    fn spec(name: &str, shape: &[i64]) -> InputSpec {
        InputSpec { name: name.into(), dtype: DType::F32, shape: shape.to_vec() }
    }

    #[test]
    fn values_of_the_command_line_are_parsed() {
        let given = |text: &str| text.parse::<InputArg>().map(|given| given.value);
        assert_eq!(given("x=[1,2]"), Ok(InputValue::Json(json!([1, 2]))));
        assert_eq!(given("x=hello"), Ok(InputValue::Text("hello".into())));
        assert_eq!(given("x=\"hello\""), Ok(InputValue::Json(json!("hello"))));
        assert_eq!(given("x=@a.png"), Ok(InputValue::File("a.png".into())));
        assert_eq!(given("x=zeros"), Ok(InputValue::Zeros));
        assert!(given("x").is_err());
        assert_eq!(InputArg::from_file_argument("a.png").name, None);
        assert_eq!(InputArg::from_file_argument("x=a.png").name.as_deref(), Some("x"));
    }

    #[test]
    fn files_without_a_name_take_the_remaining_inputs() {
        let specs = [spec("a", &[]), spec("b", &[]), spec("c", &[])];
        let given = vec![InputArg::from_file_argument("f.png"), "a=1".parse().unwrap()];
        let assigned = assign(given, &specs).unwrap();
        let names: Vec<&str> = assigned.iter().map(|(spec, _)| spec.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let error = assign(vec!["z=1".parse().unwrap()], &specs).unwrap_err();
        assert_eq!(error.message(), "the model has no input \"z\"; it has a, b, c");
    }

    #[test]
    fn zeros_have_a_limit() {
        assert_eq!(zeros(&spec("x", &[-1, 3])).unwrap().shape(), [1, 3]);
        for shape in [&[i64::MAX, 4][..], &[1 << 20, 1 << 20]] {
            let error = zeros(&spec("x", shape)).unwrap_err();
            assert!(error.message().ends_with("zeros"), "{}", error.message());
        }
    }

    #[test]
    fn integers_saturate() {
        let tensor = numbers(DType::U8, &[3], &[-4.0, 99.6, 300.0]).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [0, 100, 255]);
        assert!(numbers(DType::Bool, &[1], &[1.0]).is_err());
    }

    #[test]
    fn recordings_of_all_formats_are_decoded() {
        let clips = Path::new(env!("CARGO_MANIFEST_DIR")).join("../audio/tests/data");
        let options =
            FileOptions::try_parse_from(["infer", "--rate", "8000", "--samples", "4000"]).unwrap();
        let spec = spec("x", &[1, -1]);
        let read = |path: &Path| from_file(&spec, path, &options.image, &options.audio);
        for name in ["clip.flac", "clip.mp3", "clip.ogg", "clip.m4a", "clip-last.m4a", "clip.aiff"]
        {
            let tensor = read(&clips.join(name)).unwrap();
            assert_eq!(tensor.shape(), [1, 4000], "{name}");
            let samples = tensor.to_vec::<f32>().unwrap();
            let peak = samples.iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
            assert!((0.1..1.0).contains(&peak), "{name}: {peak}");
        }
        let dir = tempfile::tempdir().unwrap();
        let amr = dir.path().join("voice.AMR");
        std::fs::write(&amr, "#!AMR\n0000").unwrap();
        let error = read(&amr).unwrap_err();
        assert!(error.message().contains("amr is not supported"), "{}", error.message());
    }

    #[test]
    fn models_of_bytes_get_a_recording_as_it_is() {
        let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join("../audio/tests/data/clip.mp3");
        let options = FileOptions::try_parse_from(["infer"]).unwrap();
        let spec = InputSpec { name: "x".into(), dtype: DType::U8, shape: vec![-1] };
        let tensor = from_file(&spec, &clip, &options.image, &options.audio).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), std::fs::read(&clip).unwrap());
    }
}
