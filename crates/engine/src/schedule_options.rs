//! Scheduling settings of a model: plain values that the [`Servable`](crate::Servable) carries from
//! `lifecycle` to `schedule`.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{Error, Result, Signature};

use crate::NamedSignature;

/// Maximum items of a merged batch.
pub const BATCH_MAX: usize = 4096;
/// Maximum number of priority levels.
pub const PRIORITY_LEVELS_MAX: usize = 16;
/// Maximum linger. Users do not wait longer for a response.
pub const QUEUE_DELAY_MAX: Duration = Duration::from_secs(10);
/// Maximum bucket sizes of an input, and allowed batch sizes of a model.
pub const BUCKETS_MAX: usize = 256;

/// Batching mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleMode {
    /// A worker runs each request alone.
    #[default]
    Sync,
    /// Workers take merged batches.
    Async,
}

/// Requests that may share a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// Requests of equal shape, after rounding up to buckets if there are any.
    #[default]
    Equal,
    /// Requests of one shape, and requests whose shapes differ on paddable axes, within the bound
    /// on waste.
    Pad,
}

/// Scheduling settings of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleOptions {
    /// Batching mode.
    pub mode: ScheduleMode,
    /// Maximum concurrent runs of this model; `None` allows as many as there are workers.
    pub threads: Option<usize>,
    /// Relative share of the workers' time while other models have requests queued: 2 gets twice as
    /// much as 1.
    pub weight: u32,
    /// Maximum items (size of axis 0) of a batch.
    pub max_batch: usize,
    /// Maximum time that the oldest request waits for batch-mates while the batch is smaller than a
    /// preferred size.
    pub max_queue_delay: Duration,
    /// Batch sizes that do not linger. If empty, only a full batch does not linger.
    pub preferred_batch_sizes: Vec<usize>,
    /// Batch sizes that the model runs, ascending, up to [`BATCH_MAX`]. A smaller batch is rounded
    /// up to the next of them by copies of an item, whose outputs are dropped. If empty, the model
    /// runs any size.
    pub allowed_batch_sizes: Vec<usize>,
    /// True to merge even without a measured gain. For measurements; see the cost model of
    /// `schedule`.
    pub always_merge: bool,
    /// True to merge requests although sizes of outputs depend on values of the inputs. An answer
    /// then has the padding of its batch.
    pub data_dependent_shapes: bool,
    /// Maximum queued requests of this model. A request of several batches counts as many. Requests
    /// of lower priority than the new one do not count. `None` uses the server's bound.
    pub queue_max: Option<usize>,
    /// Deadline of a request that has none; `None` uses the server's.
    pub timeout: Option<Duration>,
    /// Priority levels, level 1 first. Empty means one level.
    pub priorities: Vec<PriorityOptions>,
    /// Level of a request that names none, from 1 to the number of levels.
    pub default_priority: usize,
    /// Requests that may share a batch.
    pub merge: Merge,
    /// Inputs whose axes may be padded, by name.
    pub inputs: BTreeMap<String, PadOptions>,
    /// Outputs whose axes are cut back, by name.
    pub outputs: BTreeMap<String, Vec<CutOptions>>,
}

/// Limits of one priority level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriorityOptions {
    /// Maximum queued requests of this level; `None` uses the model's bound.
    pub queue_max: Option<usize>,
    /// Deadline of a request of this level that has none; `None` uses the model's.
    pub timeout: Option<Duration>,
}

/// Padding of an input. Two settings that pad with NaN are equal.
#[derive(Clone, Debug)]
pub struct PadOptions {
    /// Axes that may grow; never axis 0.
    pub axes: Vec<usize>,
    /// Value of padded elements.
    pub value: f64,
    /// Sizes that these axes are always rounded up to, ascending. Larger sizes stay as they are.
    /// The rounding does not depend on batch-mates.
    pub buckets: Vec<usize>,
    /// Share of the padded shape that a request must exceed (the similarity a/M of the merge rule;
    /// 0.5 in Paddle Serving's documentation).
    pub similarity: f64,
    /// Padding in bytes below which a request may be padded at any share (1024 in Paddle Serving's
    /// documentation).
    pub slack_bytes: usize,
    /// Input that the server fills with 1 for real and 0 for padded elements of this input. After
    /// axis 0 it has this input's padded axes in order, or this input's axes with size 1 where they
    /// are not padded.
    pub mask: Option<String>,
    /// Input that the server fills with the real sizes of the padded axes, of shape `[items]` or
    /// `[items, axes]`.
    pub length: Option<String>,
}

impl Default for PadOptions {
    fn default() -> Self {
        PadOptions {
            axes: Vec::new(),
            value: 0.0,
            buckets: Vec::new(),
            similarity: 0.5,
            slack_bytes: 1024,
            mask: None,
            length: None,
        }
    }
}

/// Size of an output's axis: `round(input size / divisor) + offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOptions {
    /// Axis of the output; never axis 0.
    pub axis: usize,
    /// Padded input that it follows.
    pub input: String,
    /// Axis of that input.
    pub input_axis: usize,
    /// Divisor of the size; at least 1.
    pub divisor: usize,
    /// True if the division rounds up.
    pub round_up: bool,
    /// Number added after the division.
    pub offset: i64,
}

impl Default for ScheduleOptions {
    fn default() -> Self {
        ScheduleOptions {
            mode: ScheduleMode::default(),
            threads: None,
            weight: 1,
            max_batch: 32,
            max_queue_delay: Duration::ZERO,
            preferred_batch_sizes: Vec::new(),
            allowed_batch_sizes: Vec::new(),
            always_merge: false,
            data_dependent_shapes: false,
            queue_max: None,
            timeout: None,
            priorities: Vec::new(),
            default_priority: 1,
            merge: Merge::default(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
        }
    }
}

impl ScheduleOptions {
    /// Checks everything that does not depend on the model.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first setting that is out of range or contradicts another.
    pub fn check(&self) -> Result<()> {
        let wrong = |why: String| Err(Error::invalid(why));
        if !(1..=BATCH_MAX).contains(&self.max_batch) {
            return wrong(format!("max-batch must be 1 to {BATCH_MAX}"));
        }
        if self.threads == Some(0) || self.queue_max == Some(0) || self.weight == 0 {
            return wrong("threads, queue and weight must be at least 1".into());
        }
        let mut timeouts = self.priorities.iter().map(|level| level.timeout).chain([self.timeout]);
        if timeouts.any(|timeout| timeout == Some(Duration::ZERO)) {
            return wrong(
                "timeout must be more than 0; leave it out for the deadline of the server".into(),
            );
        }
        if self.max_queue_delay > QUEUE_DELAY_MAX {
            return wrong(format!(
                "max-queue-delay must be at most {} s",
                QUEUE_DELAY_MAX.as_secs()
            ));
        }
        if let Some(size) =
            self.preferred_batch_sizes.iter().find(|size| !(1..=self.max_batch).contains(*size))
        {
            return wrong(format!(
                "preferred-batch-sizes: {size} is not 1 to max-batch, which is {}",
                self.max_batch
            ));
        }
        self.check_allowed_sizes()?;
        if self.data_dependent_shapes && self.mode == ScheduleMode::Sync {
            return wrong(
                "data-dependent-shapes has no effect without mode = \"async\"; set it, or remove \
                 data-dependent-shapes"
                    .into(),
            );
        }
        if self.priorities.len() > PRIORITY_LEVELS_MAX {
            return wrong(format!("at most {PRIORITY_LEVELS_MAX} priorities"));
        }
        if self.priorities.iter().any(|level| level.queue_max == Some(0)) {
            return wrong("priorities: queue must be at least 1".into());
        }
        if !(1..=self.levels()).contains(&self.default_priority) {
            return wrong(format!("default-priority must be 1 to {}", self.levels()));
        }
        self.inputs.iter().try_for_each(|(name, input)| input.check(name))?;
        self.outputs.iter().try_for_each(|(name, cuts)| self.check_cuts(name, cuts))
    }

    /// Checks that every batch has an allowed size to be rounded up to.
    fn check_allowed_sizes(&self) -> Result<()> {
        let sizes = &self.allowed_batch_sizes;
        let Some(&last) = sizes.last() else { return Ok(()) };
        let why = if sizes.len() > BUCKETS_MAX {
            format!("at most {BUCKETS_MAX} sizes")
        } else if sizes.first() == Some(&0) || !sizes.is_sorted_by(|a, b| a < b) {
            "sizes must be positive and ascending".to_owned()
        } else if last > BATCH_MAX {
            format!("{last} is more than {BATCH_MAX}")
        } else if last < self.max_batch {
            format!(
                "the last is {last}; it must be at least max-batch, which is {}",
                self.max_batch
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("allowed-batch-sizes: {why}")))
    }

    /// Returns the options for `signature`, one of the signatures `all` of a version. They have no
    /// rules for inputs and outputs that only other signatures have. A name that no signature has
    /// stays, and [`crate::BatchPlan::new`] refuses it.
    pub(crate) fn for_signature(
        &self,
        signature: &Signature,
        all: &[NamedSignature],
    ) -> ScheduleOptions {
        let is_input = |name: &String| {
            signature.input(name).is_some()
                || all.iter().all(|named| named.signature.input(name).is_none())
        };
        let is_output = |name: &String| {
            signature.output(name).is_some()
                || all.iter().all(|named| named.signature.output(name).is_none())
        };
        let mut options = self.clone();
        options
            .inputs
            .retain(|name, pad| is_input(name) && pad.mask.iter().chain(&pad.length).all(is_input));
        options.outputs.retain(|name, cuts| {
            cuts.retain(|cut| options.inputs.contains_key(&cut.input));
            is_output(name) && !cuts.is_empty()
        });
        options
    }

    /// Returns the number of priority levels; at least one.
    pub fn levels(&self) -> usize {
        self.priorities.len().max(1)
    }

    /// Returns the level of a request with this priority, 1 for the first level. Priority 0, and
    /// one beyond the last level, stand for the default level, as in Triton.
    pub fn level(&self, priority: usize) -> usize {
        let levels = self.levels();
        if (1..=levels).contains(&priority) {
            priority
        } else {
            self.default_priority.clamp(1, levels)
        }
    }

    /// Checks the rules that cut padding from an output.
    fn check_cuts(&self, output: &str, cuts: &[CutOptions]) -> Result<()> {
        for cut in cuts {
            let followed = self
                .inputs
                .get(&cut.input)
                .is_some_and(|input| input.axes.contains(&cut.input_axis));
            let why = if cut.axis == 0 {
                "axis 0 is the batch".to_owned()
            } else if cut.divisor == 0 {
                "divisor must be at least 1".to_owned()
            } else if !followed {
                format!(
                    "axis {} of input \"{}\" is not one that may be padded; add it to axes of \
                     inputs.{}",
                    cut.input_axis, cut.input, cut.input
                )
            } else {
                continue;
            };
            return Err(Error::invalid(format!("outputs.{output}: {why}")));
        }
        Ok(())
    }
}

impl PartialEq for PadOptions {
    fn eq(&self, other: &PadOptions) -> bool {
        self.key() == other.key()
    }
}

impl PadOptions {
    fn key(&self) -> impl PartialEq + '_ {
        let PadOptions { axes, value, buckets, similarity, slack_bytes, mask, length } = self;
        (axes, value.to_bits(), buckets, similarity.to_bits(), slack_bytes, mask, length)
    }

    fn check(&self, name: &str) -> Result<()> {
        let why = if self.axes.is_empty() {
            "axes must name at least one axis".to_owned()
        } else if self.axes.contains(&0) {
            "axis 0 is the batch and cannot be padded".to_owned()
        } else if !self.axes.is_sorted_by(|a, b| a < b) {
            "axes must be ascending, each once".to_owned()
        } else if self.buckets.len() > BUCKETS_MAX {
            format!("at most {BUCKETS_MAX} buckets")
        } else if self.buckets.first() == Some(&0) || !self.buckets.is_sorted_by(|a, b| a < b) {
            "buckets must be positive and ascending".to_owned()
        } else if !(0.0..1.0).contains(&self.similarity) {
            "similarity must be at least 0 and less than 1".to_owned()
        } else if self.mask.as_deref() == Some(name) || self.length.as_deref() == Some(name) {
            "cannot be its own mask or length".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("inputs.{name}: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pad(axes: &[usize]) -> PadOptions {
        PadOptions { axes: axes.to_vec(), ..PadOptions::default() }
    }

    fn error(change: impl FnOnce(&mut ScheduleOptions)) -> String {
        let mut options = ScheduleOptions::default();
        change(&mut options);
        options.check().unwrap_err().message().to_owned()
    }

    #[test]
    fn mistakes_are_named() {
        ScheduleOptions::default().check().unwrap();
        assert!(error(|o| o.max_batch = 0).contains("max-batch"));
        assert!(error(|o| o.weight = 0).contains("weight"));
        assert!(error(|o| o.max_queue_delay = Duration::from_secs(11)).contains("max-queue-delay"));
        assert!(error(|o| o.timeout = Some(Duration::ZERO)).contains("timeout"));
        let level = PriorityOptions { timeout: Some(Duration::ZERO), queue_max: None };
        assert!(error(|o| o.priorities = vec![level]).contains("timeout"));
        assert!(error(|o| o.preferred_batch_sizes = vec![64]).contains("64"));
        let allowed = |sizes: &[usize]| error(|o| o.allowed_batch_sizes = sizes.to_vec());
        assert!(allowed(&[8, 16]).contains("the last is 16; it must be at least max-batch"));
        assert!(allowed(&[32, 8]).contains("ascending") && allowed(&[0, 32]).contains("positive"));
        assert!(allowed(&[32, BATCH_MAX + 1]).contains("4097 is more than 4096"));
        assert!(error(|o| o.data_dependent_shapes = true).contains("without mode = \"async\""));
        assert!(error(|o| o.default_priority = 2).contains("1 to 1"));
        assert!(error(|o| o.priorities = vec![PriorityOptions::default(); 17]).contains("16"));
        let input = |change: fn(&mut PadOptions)| {
            error(|o| {
                let mut input = pad(&[1]);
                change(&mut input);
                o.inputs.insert("x".into(), input);
            })
        };
        assert!(input(|i| i.axes = vec![0]).contains("inputs.x: axis 0"));
        assert!(input(|i| i.axes = vec![2, 1]).contains("ascending"));
        assert!(input(|i| i.buckets = vec![64, 32]).contains("buckets"));
        assert!(input(|i| i.similarity = f64::NAN).contains("similarity"));
        assert!(input(|i| i.similarity = 1.0).contains("less than 1"));
        assert!(input(|i| i.mask = Some("x".into())).contains("own mask"));
    }

    #[test]
    fn settings_that_pad_with_nan_equal_themselves() {
        let nan = || PadOptions { value: f64::NAN, ..pad(&[1]) };
        assert_eq!(nan(), nan());
        assert_ne!(nan(), pad(&[1]));
        assert_ne!(nan(), PadOptions { slack_bytes: 1, ..nan() });
    }

    #[test]
    fn an_output_follows_a_padded_axis() {
        let mut options = ScheduleOptions::default();
        options.inputs.insert("x".into(), pad(&[3]));
        let cut = |input_axis, divisor| CutOptions {
            axis: 1,
            input: "x".into(),
            input_axis,
            divisor,
            round_up: true,
            offset: 0,
        };
        options.outputs.insert("y".into(), vec![cut(3, 8)]);
        options.check().unwrap();
        options.outputs.insert("y".into(), vec![cut(2, 8)]);
        let refusal = options.check().unwrap_err();
        assert!(refusal.message().starts_with("outputs.y: axis 2 of input \"x\""), "{refusal}");
        assert!(refusal.message().ends_with("add it to axes of inputs.x"), "{refusal}");
        options.outputs.insert("y".into(), vec![cut(3, 0)]);
        assert!(options.check().unwrap_err().message().contains("divisor"));
    }
}
