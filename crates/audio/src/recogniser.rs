//! The section `[recogniser]` of a model. It maps a recording to the model's inputs, and the
//! model's outputs to labels.
//!
//! [`Recogniser::parse`] refuses every error in the text alone. [`Recogniser::check`] compares the
//! section with a model's signature. The times of the section are converted to counts of windows
//! and samples here, once.

mod file;
mod fit;

pub(crate) use fit::ModelBinding;

use base::{Error, Result, Signature};

use crate::features::{FeatureExtractor, FeatureFile};
use crate::resample::Channel;
use crate::segment::WindowSpec;
use file::RecogniserFile;

/// Lowest rate of a recogniser, in samples per second.
const RATE_MIN: u32 = 1_000;
/// Maximum rate of a recogniser, in samples per second.
const RATE_MAX: u32 = 384_000;
/// Maximum windows of one run.
const BATCH_MAX: usize = 4096;
/// Number of windows of a batch by default.
const BATCH_DEFAULT: usize = 32;
/// Maximum values (of four bytes) of one run, and of one piece whose windows wait.
const VALUES_MAX: usize = 1 << 26;
/// Maximum elements of a constant or of a state.
const ELEMENTS_MAX: usize = 1 << 22;
/// Maximum seconds of one piece without its lead-in.
const PIECE_SECONDS_MAX: f64 = 3600.0;
/// Maximum pieces side by side in one batch.
const LANES_MAX: usize = 32;
/// Maximum classes.
const CLASSES_MAX: usize = 1 << 16;
/// Maximum frames of the moving mean before the thresholds.
const SMOOTH_MAX: usize = 10_000;
/// MIDI number of a piano's last key.
const LAST_KEY: usize = 108;

/// Kind of labels that a recogniser makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecogniserKind {
    /// Periods in which a class is active.
    Events,
    /// The likeliest classes of each window.
    Scenes,
    /// Unit vectors, compared with those of enrolled speakers, whose names are the labels.
    Embeddings,
}

/// A parsed `[recogniser]` section.
#[derive(Clone, Debug)]
pub struct Recogniser {
    /// Name in commands and URLs.
    pub name: String,
    /// Name for display.
    pub title: String,
    /// Model that it runs; `None` for the model whose settings contain it.
    pub model: Option<String>,
    /// Kind of labels.
    pub kind: RecogniserKind,
    /// Samples per second of the model's input.
    pub rate: u32,
    pub(crate) channel: Channel,
    pub(crate) input: Option<String>,
    pub(crate) spec: WindowSpec,
    pub(crate) axes: Vec<InputAxis>,
    pub(crate) batch: usize,
    pub(crate) sequence: bool,
    pub(crate) constants: Vec<ConstantInput>,
    pub(crate) features: FeatureFile,
    /// Number of values of a row of features.
    pub(crate) width: usize,
    /// Number of samples from one row to the next.
    pub(crate) row_samples: u64,
    pub(crate) state: Vec<StateInput>,
    pub(crate) pieces: PieceSettings,
    pub(crate) output: OutputSettings,
    pub(crate) events: EventSettings,
    pub(crate) scenes: SceneSettings,
    pub(crate) embeddings: EmbeddingSettings,
}

/// Meaning of an axis of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputAxis {
    Windows,
    Rows,
    Features,
    One,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConstantInput {
    pub(crate) input: String,
    pub(crate) value: f64,
    /// `None`: the signature's shape, with size one for dynamic axes.
    pub(crate) shape: Option<Vec<usize>>,
}

/// An input that is an output of the run before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StateInput {
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) value: f64,
    pub(crate) shape: Option<Vec<usize>>,
}

/// Pieces of a recording for models with a state, in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceSettings {
    pub(crate) length: u64,
    pub(crate) lead_in: u64,
    /// Number of pieces side by side in one batch, if the state is inside the model.
    pub(crate) lanes: usize,
}

/// Reading of an output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutputSettings {
    pub(crate) name: Option<String>,
    /// Frames dropped at the beginning and at the end of each window.
    pub(crate) trim: [usize; 2],
    pub(crate) activation: Activation,
    pub(crate) classes: ClassNames,
}

/// Function that turns the model's numbers into probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Activation {
    #[default]
    None,
    Sigmoid,
    Softmax,
}

/// Names of the classes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClassNames {
    /// Class numbers.
    Numbered,
    Named(Vec<String>),
    /// Piano keys: the first class is the key of this MIDI number.
    Midi(usize),
}

impl ClassNames {
    /// Returns the names of `count` classes.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more or fewer names.
    pub(crate) fn names(&self, count: usize) -> Result<Vec<String>> {
        const KEYS: [&str; 12] = ["C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"];
        let key = |number: usize| format!("{}{}", KEYS[number % 12], (number / 12) as i64 - 1);
        match self {
            _ if count > CLASSES_MAX => Err(Error::invalid(format!(
                "the output has {count} classes, {CLASSES_MAX} are allowed"
            ))),
            ClassNames::Numbered => Ok((0..count).map(|number| number.to_string()).collect()),
            ClassNames::Midi(first) => Ok((*first..first + count).map(key).collect()),
            ClassNames::Named(names) if names.len() == count => Ok(names.clone()),
            ClassNames::Named(names) => Err(Error::invalid(format!(
                "the output has {count} classes and [recogniser.output] names {}: list one name a class",
                names.len()
            ))),
        }
    }
}

/// Thresholds of events. Lengths in samples at the recogniser's rate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EventSettings {
    pub(crate) on: f64,
    pub(crate) off: f64,
    pub(crate) min: f64,
    pub(crate) gap: f64,
    pub(crate) pad: f64,
    pub(crate) smooth: usize,
    pub(crate) onset: Option<OnsetSettings>,
}

/// An output whose rise above `on` starts a new event of the class.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OnsetSettings {
    pub(crate) output: String,
    pub(crate) on: f64,
}

/// Selection of a scene's classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SceneSettings {
    pub(crate) top: usize,
    pub(crate) threshold: f32,
}

/// Thresholds of speakers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EmbeddingSettings {
    /// Lowest similarity, -1 to 1, at which a voice counts as a speaker's.
    pub(crate) threshold: f32,
    /// Lowest level of a window in dB of full scale; quieter windows are silence.
    pub(crate) min_level: f32,
    /// Minimum share of a window that belongs to the recording.
    pub(crate) min_coverage: f32,
}

impl Recogniser {
    /// Parses the body of a `[recogniser]` section: TOML with its keys at the top.
    ///
    /// # Errors
    /// `InvalidArgument` that names the recogniser, the setting and its allowed values.
    pub fn parse(name: &str, text: &str) -> Result<Recogniser> {
        let read = || {
            let file: RecogniserFile = toml::from_str(text)
                .map_err(|error| Error::invalid(error.to_string().trim().replace('\n', " ")))?;
            resolve(name, file)
        };
        read().map_err(|error| error.context(format!("recogniser \"{name}\"")))
    }

    /// Checks that a model has the inputs and outputs of this recogniser, with types and sizes that
    /// fit.
    ///
    /// # Errors
    /// `InvalidArgument` that states the mismatch and lists the model's inputs and outputs.
    pub fn check(&self, signature: &Signature) -> Result<()> {
        ModelBinding::new(self, signature).map(drop)
    }

    /// Returns the names of the classes in the model's order. Classes of a piano end with its last
    /// key, since the section does not state their number. Empty for embeddings and for numbered
    /// classes.
    pub fn classes(&self) -> Vec<String> {
        let count = match &self.output.classes {
            _ if self.kind == RecogniserKind::Embeddings => 0,
            ClassNames::Numbered => 0,
            ClassNames::Named(names) => names.len(),
            ClassNames::Midi(first) => (LAST_KEY + 1).saturating_sub(*first),
        };
        self.output.classes.names(count).unwrap_or_default()
    }

    /// Returns the lowest similarity, -1 to 1, at which a voice counts as a speaker's; `None` for
    /// other kinds.
    pub fn threshold(&self) -> Option<f32> {
        (self.kind == RecogniserKind::Embeddings).then_some(self.embeddings.threshold)
    }

    /// Returns the seconds from one window to the next.
    pub(crate) fn hop_seconds(&self) -> f64 {
        (self.spec.hop as u64 * self.row_samples) as f64 / f64::from(self.rate)
    }

    /// Returns the values of one window for the model: context and window.
    pub(crate) fn window_values(&self) -> usize {
        (self.spec.context + self.spec.window) * self.width
    }

    /// Refuses `windows` waiting windows if they need more memory than a recording may have.
    pub(crate) fn may_wait(&self, windows: usize) -> Result<()> {
        let rows = self.spec.context + self.spec.window;
        let values = rows.checked_mul(self.width).and_then(|values| values.checked_mul(windows));
        if values.is_some_and(|values| values <= VALUES_MAX) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{windows} windows of {rows} rows of {} values are more than the {VALUES_MAX} values that may wait at \
             once: choose a smaller batch or shorter pieces",
            self.width
        )))
    }

    /// Returns the start of the middle hop of window `window`, in seconds.
    pub(crate) fn middle_seconds(&self, window: u64) -> f64 {
        let rows =
            window as f64 * self.spec.hop as f64 + (self.spec.window - self.spec.hop) as f64 / 2.0;
        self.seconds(rows)
    }

    /// Returns the seconds of the recording that are processed after window `window`, of which
    /// `real` rows belong to the recording.
    pub(crate) fn done_seconds(&self, window: u64, real: usize) -> f64 {
        self.seconds(window as f64 * self.spec.hop as f64 + real.min(self.spec.hop) as f64)
    }

    fn seconds(&self, rows: f64) -> f64 {
        rows * self.row_samples as f64 / f64::from(self.rate)
    }
}

/// Checks the settings of a recogniser, and sets the defaults of missing ones.
///
/// # Errors
/// `InvalidArgument` that names the wrong setting.
fn resolve(name: &str, file: RecogniserFile) -> Result<Recogniser> {
    check_range("rate", file.rate, RATE_MIN, RATE_MAX)?;
    file.check_sections()?;
    let rate = file.rate;
    let raw = matches!(file.features, FeatureFile::Raw { .. });
    let features = FeatureExtractor::new(&file.features, rate)
        .map_err(|e| e.context("[recogniser.features]"))?;
    let width = features.width();
    let row_samples = (features.step() * f64::from(rate)).round().max(1.0);
    let hop = file.hop.unwrap_or(file.window);
    check_range("window", file.window, 1, VALUES_MAX)?;
    check_range("hop", hop, 1, file.window)?;
    check_range("context", file.context, 0, VALUES_MAX)?;
    let batch = file.batch.unwrap_or(BATCH_DEFAULT);
    check_range("batch", batch, 1, BATCH_MAX)?;
    let spec = WindowSpec { window: file.window, hop, context: file.context };
    let axes = file::axes(file.axes.as_deref().unwrap_or(if raw { "nt" } else { "ntf" }), width)?;
    let has_windows = axes.contains(&InputAxis::Windows);
    if !has_windows && file.batch.is_some_and(|batch| batch > 1) {
        return Err(Error::invalid(
            "batch has no effect without n (windows) in axes: remove batch, or add n to axes",
        ));
    }
    let batch = if has_windows { batch } else { 1 };
    let hop_seconds = hop as f64 * row_samples / f64::from(rate);
    let recogniser = Recogniser {
        name: name.to_owned(),
        title: file.title.unwrap_or_else(|| name.to_owned()),
        model: file.model,
        kind: file.kind,
        rate,
        channel: file::channel(&file.channel)?,
        input: file.input,
        spec,
        axes,
        batch,
        sequence: file.sequence,
        constants: file
            .constants
            .into_iter()
            .map(|(input, value)| file::constant(input, value))
            .collect::<Result<_>>()?,
        features: file.features,
        width,
        row_samples: row_samples as u64,
        state: file
            .state
            .into_iter()
            .map(|(input, state)| file::state(input, state))
            .collect::<Result<_>>()?,
        pieces: file.pieces.resolve(hop_seconds)?,
        output: file.output.resolve()?,
        events: file.events.unwrap_or_default().resolve(rate)?,
        scenes: file.scenes.unwrap_or_default().resolve()?,
        embeddings: file.embeddings.unwrap_or_default().resolve()?,
    };
    check_axes(&recogniser)?;
    Ok(recogniser)
}

/// Refuses axes that contradict other settings, and runs that are too large.
fn check_axes(recogniser: &Recogniser) -> Result<()> {
    recogniser.may_wait(recogniser.batch)?;
    let axis = |axis: InputAxis| recogniser.axes.contains(&axis);
    if (recogniser.sequence || !recogniser.state.is_empty())
        && recogniser.axes[0] != InputAxis::Windows
    {
        return Err(Error::invalid(
            "a state and sequences need axes that begin with n, the windows",
        ));
    }
    if !axis(InputAxis::Rows) && recogniser.spec.context + recogniser.spec.window > 1 {
        return Err(Error::invalid("axes have no t, so a window must be one row without context"));
    }
    Ok(())
}

/// Checks that a number lies in its range.
fn check_range<T: PartialOrd + std::fmt::Display>(
    what: &str,
    value: T,
    least: T,
    most: T,
) -> Result<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} = {value}: it must lie between {least} and {most}")))
}

#[cfg(test)]
mod tests;
