//! The text form of a `[recogniser]` section: all keys, and errors in their values.

use std::collections::BTreeMap;

use base::units::parse_duration;
use base::{Error, Result};
use serde::Deserialize;
use toml::Value;

use super::{
    Activation, CLASSES_MAX, ClassNames, ConstantInput, ELEMENTS_MAX, EmbeddingSettings,
    EventSettings, InputAxis, LANES_MAX, OnsetSettings, OutputSettings, PIECE_SECONDS_MAX,
    PieceSettings, RecogniserKind, SMOOTH_MAX, SceneSettings, StateInput, check_range,
};
use crate::features::FeatureFile;
use crate::resample::Channel;

/// The section as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RecogniserFile {
    pub(super) title: Option<String>,
    pub(super) model: Option<String>,
    pub(super) kind: RecogniserKind,
    pub(super) rate: u32,
    #[serde(default = "mix")]
    pub(super) channel: Value,
    pub(super) input: Option<String>,
    pub(super) window: usize,
    pub(super) hop: Option<usize>,
    #[serde(default)]
    pub(super) context: usize,
    pub(super) axes: Option<String>,
    pub(super) batch: Option<usize>,
    #[serde(default)]
    pub(super) sequence: bool,
    #[serde(default)]
    pub(super) constants: BTreeMap<String, Value>,
    #[serde(default = "raw")]
    pub(super) features: FeatureFile,
    #[serde(default)]
    pub(super) state: BTreeMap<String, StateFile>,
    #[serde(default)]
    pub(super) pieces: PiecesFile,
    #[serde(default)]
    pub(super) output: OutputFile,
    pub(super) events: Option<EventsFile>,
    pub(super) scenes: Option<ScenesFile>,
    pub(super) embeddings: Option<EmbeddingsFile>,
}

impl RecogniserFile {
    /// Checks that there is no section of another kind, which would have no effect.
    pub(super) fn check_sections(&self) -> Result<()> {
        let sections = [
            (RecogniserKind::Events, "events", self.events.is_some()),
            (RecogniserKind::Scenes, "scenes", self.scenes.is_some()),
            (RecogniserKind::Embeddings, "embeddings", self.embeddings.is_some()),
        ];
        match sections.into_iter().find(|(kind, _, given)| *given && *kind != self.kind) {
            Some((_, name, _)) => Err(Error::invalid(format!(
                "[recogniser.{name}] has no effect without kind = \"{name}\": remove it"
            ))),
            None => Ok(()),
        }
    }
}

fn mix() -> Value {
    Value::from("mix")
}

fn raw() -> FeatureFile {
    FeatureFile::Raw { scale: 1.0 }
}

/// `[recogniser.state]`: one entry for each input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct StateFile {
    output: String,
    shape: Option<Vec<usize>>,
    #[serde(default)]
    value: f64,
}

/// `[recogniser.pieces]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct PiecesFile {
    length: String,
    lead_in: String,
    lanes: usize,
}

impl Default for PiecesFile {
    fn default() -> Self {
        PiecesFile { length: "60s".into(), lead_in: "5s".into(), lanes: 1 }
    }
}

/// `[recogniser.output]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct OutputFile {
    name: Option<String>,
    trim: [usize; 2],
    activation: Activation,
    classes: Option<Value>,
}

/// `[recogniser.events]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct EventsFile {
    on: f64,
    off: Option<f64>,
    min: String,
    gap: String,
    pad: String,
    smooth: usize,
    onset: Option<OnsetFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OnsetFile {
    output: String,
    on: f64,
}

impl Default for EventsFile {
    fn default() -> Self {
        let text = |text: &str| text.to_owned();
        let min = text("250ms");
        let gap = text("100ms");
        let pad = text("30ms");
        EventsFile { on: 0.5, off: None, min, gap, pad, smooth: 1, onset: None }
    }
}

/// `[recogniser.scenes]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct ScenesFile {
    top: usize,
    threshold: f32,
}

impl Default for ScenesFile {
    fn default() -> Self {
        ScenesFile { top: 1, threshold: 0.3 }
    }
}

/// `[recogniser.embeddings]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct EmbeddingsFile {
    threshold: f32,
    min_level: f32,
    min_coverage: f32,
}

impl Default for EmbeddingsFile {
    fn default() -> Self {
        EmbeddingsFile { threshold: 0.6, min_level: -50.0, min_coverage: 0.75 }
    }
}

impl PiecesFile {
    /// Converts to windows that are `hop` seconds apart.
    pub(super) fn resolve(self, hop: f64) -> Result<PieceSettings> {
        let seconds = |what: &str, text: &str| parse_duration(text).map_err(|e| e.context(what));
        let length = seconds("pieces.length", &self.length)?.as_secs_f64();
        let lead_in = seconds("pieces.lead-in", &self.lead_in)?.as_secs_f64();
        check_range(
            "pieces.length (seconds)",
            length,
            hop.min(PIECE_SECONDS_MAX),
            PIECE_SECONDS_MAX,
        )?;
        check_range("pieces.lead-in (seconds)", lead_in, 0.0, length)?;
        let length = ((length / hop).round() as u64).max(1);
        if !(1..=LANES_MAX).contains(&self.lanes) {
            return Err(Error::invalid(format!("pieces.lanes must be 1 to {LANES_MAX}")));
        }
        Ok(PieceSettings {
            length,
            lead_in: ((lead_in / hop).ceil() as u64).min(length),
            lanes: self.lanes,
        })
    }
}

impl OutputFile {
    pub(super) fn resolve(self) -> Result<OutputSettings> {
        let classes = self.classes.as_ref().map_or(Ok(ClassNames::Numbered), classes)?;
        Ok(OutputSettings {
            name: self.name,
            trim: self.trim,
            activation: self.activation,
            classes,
        })
    }
}

impl EventsFile {
    /// Converts to samples at `rate`.
    pub(super) fn resolve(self, rate: u32) -> Result<EventSettings> {
        // Integers until the last division, so that 30 ms at 16 kHz are exactly 480 samples.
        let samples = |what: &str, text: &str| -> Result<f64> {
            let duration = parse_duration(text).map_err(|e| e.context(format!("events.{what}")))?;
            Ok((duration.as_nanos() * u128::from(rate)) as f64 / 1e9)
        };
        // By default the end's threshold lies as far below the beginning's as in Silero's package.
        let off = self.off.unwrap_or_else(|| (self.on - 0.15).max(0.01));
        check_range("events.smooth", self.smooth, 1, SMOOTH_MAX)?;
        if !(self.on.is_finite() && off <= self.on) {
            return Err(Error::invalid(format!(
                "events.off = {off}: it must not be above on = {}",
                self.on
            )));
        }
        Ok(EventSettings {
            on: self.on,
            off,
            min: samples("min", &self.min)?,
            gap: samples("gap", &self.gap)?,
            pad: samples("pad", &self.pad)?,
            smooth: self.smooth,
            onset: self.onset.map(|onset| OnsetSettings { output: onset.output, on: onset.on }),
        })
    }
}

impl ScenesFile {
    pub(super) fn resolve(self) -> Result<SceneSettings> {
        check_range("scenes.top", self.top, 1, 100)?;
        Ok(SceneSettings { top: self.top, threshold: self.threshold })
    }
}

impl EmbeddingsFile {
    pub(super) fn resolve(self) -> Result<EmbeddingSettings> {
        check_range("embeddings.threshold", self.threshold, -1.0, 1.0)?;
        check_range("embeddings.min-level", self.min_level, -200.0, 0.0)?;
        check_range("embeddings.min-coverage", self.min_coverage, 0.0, 1.0)?;
        let EmbeddingsFile { threshold, min_level, min_coverage } = self;
        Ok(EmbeddingSettings { threshold, min_level, min_coverage })
    }
}

/// Reads `channel`.
pub(super) fn channel(value: &Value) -> Result<Channel> {
    match value {
        Value::String(text) if text == "mix" => Ok(Channel::Mix),
        Value::Integer(number) if *number >= 0 => Ok(Channel::Only(*number as usize)),
        other => {
            Err(Error::invalid(format!("channel = {other}: it must be \"mix\" or a number from 0")))
        }
    }
}

/// Reads `axes`: each letter once, except the axes of size one.
pub(super) fn axes(text: &str, width: usize) -> Result<Vec<InputAxis>> {
    let wrong = || {
        Error::invalid(format!(
            "axes = \"{text}\": it is made of n (windows), t (rows), f (features), each at most once, and 1"
        ))
    };
    let axis = |letter: char| match letter {
        'n' => Ok(InputAxis::Windows),
        't' => Ok(InputAxis::Rows),
        'f' => Ok(InputAxis::Features),
        '1' => Ok(InputAxis::One),
        _ => Err(wrong()),
    };
    let axes = text.chars().map(axis).collect::<Result<Vec<_>>>()?;
    let count = |wanted: InputAxis| axes.iter().filter(|axis| **axis == wanted).count();
    if axes.is_empty()
        || axes.len() > 8
        || [InputAxis::Windows, InputAxis::Rows, InputAxis::Features]
            .iter()
            .any(|axis| count(*axis) > 1)
    {
        return Err(wrong());
    }
    if width > 1 && count(InputAxis::Features) == 0 {
        return Err(Error::invalid(format!(
            "axes = \"{text}\": rows have {width} features, so an f is needed"
        )));
    }
    Ok(axes)
}

/// Reads one of `constants`: a number, or a table of a value and a shape.
pub(super) fn constant(input: String, value: Value) -> Result<ConstantInput> {
    let wrong = || {
        Error::invalid(format!(
            "constants.{input}: it must be a number or {{ value = 0, shape = [1, 1, 128] }}"
        ))
    };
    let table = match &value {
        Value::Table(table) => table,
        plain => {
            let value = number(plain).ok_or_else(wrong)?;
            return Ok(ConstantInput { input, value, shape: None });
        }
    };
    if table.keys().any(|key| key != "value" && key != "shape") {
        return Err(wrong());
    }
    let value = table.get("value").and_then(number).ok_or_else(wrong)?;
    let size = |size: &Value| size.as_integer().and_then(|size| usize::try_from(size).ok());
    let sizes = |shape: &Value| shape.as_array()?.iter().map(size).collect::<Option<Vec<_>>>();
    let shape = match table.get("shape") {
        Some(shape) => Some(sizes(shape).ok_or_else(wrong)?),
        None => None,
    };
    check_elements(&input, shape.as_deref())?;
    Ok(ConstantInput { input, value, shape })
}

/// Reads one of `state`.
pub(super) fn state(input: String, file: StateFile) -> Result<StateInput> {
    check_elements(&input, file.shape.as_deref())?;
    Ok(StateInput { input, output: file.output, value: file.value, shape: file.shape })
}

/// Refuses a shape with more than [`ELEMENTS_MAX`] elements.
pub(super) fn check_elements(input: &str, shape: Option<&[usize]>) -> Result<()> {
    let elements =
        shape.unwrap_or_default().iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    match elements {
        Some(elements) if elements <= ELEMENTS_MAX => Ok(()),
        _ => Err(Error::invalid(format!(
            "\"{input}\": its shape has more than {ELEMENTS_MAX} elements"
        ))),
    }
}

/// Returns the number of a value. True is 1, and false is 0.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::Boolean(yes) => Some(f64::from(u8::from(*yes))),
        _ => None,
    }
}

/// Reads `classes`: names, or the number of the first piano key.
fn classes(value: &Value) -> Result<ClassNames> {
    let wrong = || Error::invalid("output.classes must be a list of names or { midi = NUMBER }");
    match value {
        Value::Array(names) if !names.is_empty() && names.len() <= CLASSES_MAX => {
            let names =
                names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>();
            names.map(ClassNames::Named).ok_or_else(wrong)
        }
        Value::Table(table) if table.len() == 1 => {
            let first = table.get("midi").and_then(Value::as_integer);
            let first = first.filter(|first| (0..=127).contains(first)).ok_or_else(wrong)?;
            Ok(ClassNames::Midi(first as usize))
        }
        _ => Err(wrong()),
    }
}
