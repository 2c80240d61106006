//! The text form of [`ScheduleOptions`]: the section `[schedule]` of settings files.
//!
//! What a file leaves out stays as it was, so one file can be laid over another: the server's settings, then one
//! model's in the server's file, then the model's own. Lists and the tables of inputs and outputs are replaced
//! whole, as labels are.

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
    /// Whether requests are merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeText>,
    /// Runs of this model at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Share of the workers' time against other models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Items of a batch at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<usize>,
    /// How long the oldest request waits for company.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub max_queue_delay: Option<Duration>,
    /// Batches of these sizes do not wait for company.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_batch_sizes: Option<Vec<usize>>,
    /// Merge although the measured gain is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always_merge: Option<bool>,
    /// Requests that may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// Deadline of a request without one.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub timeout: Option<Duration>,
    /// Level of a request that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priority: Option<usize>,
    /// Level 1 first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priorities: Option<Vec<PriorityText>>,
    /// Which requests may share a batch.
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
    /// Requests of this level that may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// Deadline of a request of this level without one of its own.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub timeout: Option<Duration>,
}

/// [`PadOptions`] as text; what it leaves out is the default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct PadText {
    /// The axes that may grow.
    pub axes: Vec<usize>,
    /// What padded elements hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Sizes that the axes are rounded up to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<usize>,
    /// Share of the padded shape that a request must fill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub similarity: Option<f64>,
    /// Bytes of padding allowed whatever the share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slack_bytes: Option<usize>,
    /// An input the server fills with ones where this one is real.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// An input the server fills with the real sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<String>,
}

/// [`CutOptions`] as text; divisor 1, rounding "up" and offset 0 where it is silent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CutText {
    /// The output's axis.
    pub axis: usize,
    /// The padded input it follows.
    pub input: String,
    /// That input's axis.
    pub input_axis: usize,
    /// What the size is divided by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divisor: Option<usize>,
    /// How the division rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<RoundingText>,
    /// Added afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
}

/// How a division rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundingText {
    /// "up"
    Up,
    /// "down"
    Down,
}

impl ScheduleFile {
    /// `base` with what the file says instead. Not checked; see [`ScheduleOptions::check`].
    pub fn apply(&self, base: &ScheduleOptions) -> ScheduleOptions {
        let base = base.clone();
        ScheduleOptions {
            mode: self.mode.map_or(base.mode, ScheduleMode::from),
            threads: self.threads.or(base.threads),
            weight: self.weight.unwrap_or(base.weight),
            max_batch: self.max_batch.unwrap_or(base.max_batch),
            max_queue_delay: self.max_queue_delay.unwrap_or(base.max_queue_delay),
            preferred_batch_sizes: self.preferred_batch_sizes.clone().unwrap_or(base.preferred_batch_sizes),
            always_merge: self.always_merge.unwrap_or(base.always_merge),
            queue_max: self.queue.or(base.queue_max),
            timeout: self.timeout.or(base.timeout),
            priorities: match &self.priorities {
                Some(levels) => levels.iter().map(PriorityOptions::from).collect(),
                None => base.priorities,
            },
            default_priority: self.default_priority.unwrap_or(base.default_priority),
            merge: self.merge.map_or(base.merge, Merge::from),
            inputs: match &self.inputs {
                Some(inputs) => inputs.iter().map(|(name, pad)| (name.clone(), pad.into())).collect(),
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

    /// The file that makes `options` of the defaults; what is a default is left out.
    pub fn from_options(options: &ScheduleOptions) -> ScheduleFile {
        let default = ScheduleOptions::default();
        let priorities = || options.priorities.iter().map(PriorityText::from).collect();
        let inputs = || options.inputs.iter().map(|(name, pad)| (name.clone(), pad.into())).collect();
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
            preferred_batch_sizes: changed(&options.preferred_batch_sizes, &default.preferred_batch_sizes),
            always_merge: changed(&options.always_merge, &default.always_merge),
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
