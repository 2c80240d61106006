//! Conversions between the text form and the plain values.

use super::{CutText, MergeText, ModeText, PadText, PriorityText, RoundingText};
use crate::{CutOptions, Merge, PadOptions, PriorityOptions, ScheduleMode};

/// Returns `value` unless it is the default.
pub(super) fn changed<T: Clone + PartialEq>(value: &T, default: &T) -> Option<T> {
    (value != default).then(|| value.clone())
}

impl From<ModeText> for ScheduleMode {
    fn from(text: ModeText) -> ScheduleMode {
        match text {
            ModeText::Sync => ScheduleMode::Sync,
            ModeText::Async => ScheduleMode::Async,
        }
    }
}

impl From<ScheduleMode> for ModeText {
    fn from(mode: ScheduleMode) -> ModeText {
        match mode {
            ScheduleMode::Sync => ModeText::Sync,
            ScheduleMode::Async => ModeText::Async,
        }
    }
}

impl From<MergeText> for Merge {
    fn from(text: MergeText) -> Merge {
        match text {
            MergeText::Equal => Merge::Equal,
            MergeText::Pad => Merge::Pad,
        }
    }
}

impl From<Merge> for MergeText {
    fn from(merge: Merge) -> MergeText {
        match merge {
            Merge::Equal => MergeText::Equal,
            Merge::Pad => MergeText::Pad,
        }
    }
}

impl From<&PriorityText> for PriorityOptions {
    fn from(text: &PriorityText) -> PriorityOptions {
        PriorityOptions { queue_max: text.queue, timeout: text.timeout }
    }
}

impl From<&PriorityOptions> for PriorityText {
    fn from(level: &PriorityOptions) -> PriorityText {
        PriorityText { queue: level.queue_max, timeout: level.timeout }
    }
}

impl From<&PadText> for PadOptions {
    fn from(text: &PadText) -> PadOptions {
        let default = PadOptions::default();
        PadOptions {
            axes: text.axes.clone(),
            value: text.value.unwrap_or(default.value),
            buckets: text.buckets.clone(),
            similarity: text.similarity.unwrap_or(default.similarity),
            slack_bytes: text.slack_bytes.unwrap_or(default.slack_bytes),
            mask: text.mask.clone(),
            length: text.length.clone(),
        }
    }
}

impl From<&PadOptions> for PadText {
    fn from(pad: &PadOptions) -> PadText {
        let default = PadOptions::default();
        PadText {
            axes: pad.axes.clone(),
            value: changed(&pad.value, &default.value),
            buckets: pad.buckets.clone(),
            similarity: changed(&pad.similarity, &default.similarity),
            slack_bytes: changed(&pad.slack_bytes, &default.slack_bytes),
            mask: pad.mask.clone(),
            length: pad.length.clone(),
        }
    }
}

impl From<&CutText> for CutOptions {
    fn from(text: &CutText) -> CutOptions {
        CutOptions {
            axis: text.axis,
            input: text.input.clone(),
            input_axis: text.input_axis,
            divisor: text.divisor.unwrap_or(1),
            round_up: text.rounding != Some(RoundingText::Down),
            offset: text.offset.unwrap_or(0),
        }
    }
}

impl From<&CutOptions> for CutText {
    fn from(cut: &CutOptions) -> CutText {
        CutText {
            axis: cut.axis,
            input: cut.input.clone(),
            input_axis: cut.input_axis,
            divisor: changed(&cut.divisor, &1),
            rounding: (!cut.round_up).then_some(RoundingText::Down),
            offset: changed(&cut.offset, &0),
        }
    }
}
