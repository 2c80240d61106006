//! The text form of [`ScheduleOptions`]: the section `[schedule]` of settings files.
//!
//! Settings that a file omits keep their values, so that files can be layered. The server's
//! settings come first, then the model's section in the server's file, then the model's own file.
//! Lists and the tables of inputs and outputs are replaced whole, as labels are.

mod convert;
mod span;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{CutOptions, Merge, PriorityOptions, ScheduleMode, ScheduleOptions};
use convert::changed;

/// A `[schedule]` section. Times are text: "2ms".
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ScheduleFile {
    /// Batching mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeText>,
    /// Maximum concurrent runs of this model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Relative share of the workers' time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Maximum items of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<usize>,
    /// Maximum time that the oldest request waits for batch-mates.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub max_queue_delay: Option<Duration>,
    /// Batch sizes that do not linger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_batch_sizes: Option<Vec<usize>>,
    /// Batch sizes that the model runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_batch_sizes: Option<Vec<usize>>,
    /// True to merge even without a measured gain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always_merge: Option<bool>,
    /// True to merge requests although sizes of outputs depend on values of the inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dependent_shapes: Option<bool>,
    /// Maximum number of queued requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// Deadline of a request that has none.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub timeout: Option<Duration>,
    /// Level of a request that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priority: Option<usize>,
    /// Priority levels, level 1 first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priorities: Option<Vec<PriorityText>>,
    /// Requests that may share a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergeText>,
    /// Inputs whose axes may be padded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<BTreeMap<String, PadText>>,
    /// Outputs whose axes are cut back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<BTreeMap<String, Vec<CutText>>>,
}

/// [`ScheduleMode`] as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeText {
    /// "sync"
    Sync,
    /// "async"
    Async,
}

/// [`Merge`] as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeText {
    /// "equal"
    Equal,
    /// "pad"
    Pad,
}

/// [`PriorityOptions`] as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct PriorityText {
    /// Maximum queued requests of this level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// Deadline of a request of this level that has none.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub timeout: Option<Duration>,
}

/// [`crate::PadOptions`] as text; omitted keys have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct PadText {
    /// Axes that may grow.
    pub axes: Vec<usize>,
    /// Value of padded elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Sizes that the axes are rounded up to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<usize>,
    /// Share of the padded shape that a request must fill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub similarity: Option<f64>,
    /// Bytes of padding that are allowed at any share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slack_bytes: Option<usize>,
    /// Input that the server fills with ones for this input's real elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// Input that the server fills with the real sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<String>,
}

/// [`CutOptions`] as text; by default divisor 1, rounding "up" and offset 0.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CutText {
    /// Axis of the output.
    pub axis: usize,
    /// Padded input that it follows.
    pub input: String,
    /// Axis of that input.
    pub input_axis: usize,
    /// Divisor of the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divisor: Option<usize>,
    /// Direction in which the division rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<RoundingText>,
    /// Number added after the division.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
}

/// Rounding of a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundingText {
    /// "up"
    Up,
    /// "down"
    Down,
}

impl ScheduleFile {
    /// Returns `base` with the file's settings applied. Not checked; see
    /// [`ScheduleOptions::check`].
    pub fn apply(&self, base: &ScheduleOptions) -> ScheduleOptions {
        let base = base.clone();
        ScheduleOptions {
            mode: self.mode.map_or(base.mode, ScheduleMode::from),
            threads: self.threads.or(base.threads),
            weight: self.weight.unwrap_or(base.weight),
            max_batch: self.max_batch.unwrap_or(base.max_batch),
            max_queue_delay: self.max_queue_delay.unwrap_or(base.max_queue_delay),
            preferred_batch_sizes: self
                .preferred_batch_sizes
                .clone()
                .unwrap_or(base.preferred_batch_sizes),
            allowed_batch_sizes: self
                .allowed_batch_sizes
                .clone()
                .unwrap_or(base.allowed_batch_sizes),
            always_merge: self.always_merge.unwrap_or(base.always_merge),
            data_dependent_shapes: self.data_dependent_shapes.unwrap_or(base.data_dependent_shapes),
            queue_max: self.queue.or(base.queue_max),
            timeout: self.timeout.or(base.timeout),
            priorities: match &self.priorities {
                Some(levels) => levels.iter().map(PriorityOptions::from).collect(),
                None => base.priorities,
            },
            default_priority: self.default_priority.unwrap_or(base.default_priority),
            merge: self.merge.map_or(base.merge, Merge::from),
            inputs: match &self.inputs {
                Some(inputs) => {
                    inputs.iter().map(|(name, pad)| (name.clone(), pad.into())).collect()
                }
                None => base.inputs,
            },
            outputs: match &self.outputs {
                Some(outputs) => outputs
                    .iter()
                    .map(|(name, cuts)| (name.clone(), cuts.iter().map(CutOptions::from).collect()))
                    .collect(),
                None => base.outputs,
            },
        }
    }

    /// Returns the file that turns the defaults into `options`. Omits defaults.
    pub fn from_options(options: &ScheduleOptions) -> ScheduleFile {
        let default = ScheduleOptions::default();
        let priorities = || options.priorities.iter().map(PriorityText::from).collect();
        let inputs =
            || options.inputs.iter().map(|(name, pad)| (name.clone(), pad.into())).collect();
        let outputs = || {
            let cuts = |cuts: &Vec<CutOptions>| cuts.iter().map(CutText::from).collect();
            options.outputs.iter().map(|(name, rules)| (name.clone(), cuts(rules))).collect()
        };
        ScheduleFile {
            mode: changed(&options.mode, &default.mode).map(ModeText::from),
            threads: options.threads,
            weight: changed(&options.weight, &default.weight),
            max_batch: changed(&options.max_batch, &default.max_batch),
            max_queue_delay: changed(&options.max_queue_delay, &default.max_queue_delay),
            preferred_batch_sizes: changed(
                &options.preferred_batch_sizes,
                &default.preferred_batch_sizes,
            ),
            allowed_batch_sizes: changed(
                &options.allowed_batch_sizes,
                &default.allowed_batch_sizes,
            ),
            always_merge: changed(&options.always_merge, &default.always_merge),
            data_dependent_shapes: changed(
                &options.data_dependent_shapes,
                &default.data_dependent_shapes,
            ),
            queue: options.queue_max,
            timeout: options.timeout,
            default_priority: changed(&options.default_priority, &default.default_priority),
            priorities: (!options.priorities.is_empty()).then(priorities),
            merge: changed(&options.merge, &default.merge).map(MergeText::from),
            inputs: (!options.inputs.is_empty()).then(inputs),
            outputs: (!options.outputs.is_empty()).then(outputs),
        }
    }
}

#[cfg(test)]
mod tests;
