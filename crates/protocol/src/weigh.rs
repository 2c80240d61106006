//! Bounds the memory of a message from its bytes, before it is decoded.
//!
//! A message of 66 MB can hold 33 million empty elements, which take gigabytes once they are
//! decoded. [`weigh`] skips over the fields of a message without allocating, and refuses counts
//! that every decoder here refuses. It returns an upper bound of the memory that the decoder and
//! the conversion to tensors allocate. It does not read strings and raw contents, so its time grows
//! with the number of fields and not of bytes. The static layouts bound its depth.

use base::{Error, Result};
use bytes::Buf;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};

use crate::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::inference::{InferParameter, ModelInferRequest};
use crate::tensorflow::TensorProto;
use crate::tensorflow::serving::{
    ClassificationRequest, InferenceTask, MultiInferenceRequest, PredictRequest, RegressionRequest,
};
use crate::tensorflow::tensor_shape_proto::Dim;
use crate::tfs::TASKS_MAX;
use crate::wire::{RANK_MAX, TENSORS_MAX, unreadable};

/// Maximum bytes of memory for each byte of any other request message of the services.
///
/// An entry of the parameters of a load has at least five bytes on the wire. It has fewer than 160
/// bytes in memory, and a growing map holds three times as many.
pub const EXPANSION_MAX: u64 = 256;
/// Maximum nesting of skipped groups. It is also the limit of the decoder.
const GROUPS_MAX: u32 = 100;
/// Elements held for each element of a growing list. For a moment they are those of the old and of
/// the new memory, 1 + 2.
const GROWTH: u64 = 3;
/// Smallest capacity of a list.
const ROOM_MIN: u64 = 8;
/// Maximum fields of one layout.
const FIELDS_MAX: usize = 16;

/// The cost of a message once it is decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Upper bound of the bytes that decoding and conversion allocate.
    pub bytes: u64,
    /// Number of fields and elements. Each costs the decoder some nanoseconds.
    pub work: u64,
    /// True if the whole message was read. Otherwise the limit of `work` was reached, and `bytes`
    /// is not a bound.
    pub whole: bool,
}

/// A message that [`weigh`] knows.
pub trait Weighed: Message + Default {
    #[doc(hidden)]
    const LAYOUT: &'static MessageLayout;
}

/// The fields of a message that allocate.
#[derive(Debug)]
pub struct MessageLayout(&'static [(u32, FieldLayout)]);

/// Memory that a field takes when it is decoded.
#[derive(Clone, Copy, Debug)]
enum FieldLayout {
    /// One string, which is copied.
    Text,
    /// A message that lies within its parent.
    One(&'static MessageLayout),
    /// A list of messages or of `bytes`, or a map.
    Many(RepeatedField),
    /// A list of numbers, packed or not. `width` are the bytes of an element in memory. `fixed` are
    /// its bytes on the wire, or `None` if they vary.
    Numbers { width: u64, fixed: Option<u64> },
}

/// Memory of a repeated field, and its limit.
#[derive(Clone, Copy, Debug)]
struct RepeatedField {
    what: &'static str,
    count_max: u32,
    /// Bytes that the first element adds to `each`.
    first: u64,
    /// Bytes for each element, including the first.
    each: u64,
    /// True if the bytes of an element are copied, as those of a string are.
    copied: bool,
    layout: &'static MessageLayout,
}

/// Returns the field of a list whose elements have `size` bytes.
const fn list(
    what: &'static str,
    count_max: u32,
    size: usize,
    layout: &'static MessageLayout,
) -> FieldLayout {
    let size = size as u64;
    FieldLayout::Many(RepeatedField {
        what,
        count_max,
        first: ROOM_MIN * size,
        each: GROWTH * size,
        copied: false,
        layout,
    })
}

/// Returns the field of a list of strings, which are copied.
const fn texts(what: &'static str, count_max: u32) -> FieldLayout {
    let size = size_of::<String>() as u64;
    FieldLayout::Many(RepeatedField {
        what,
        count_max,
        first: ROOM_MIN * size,
        each: GROWTH * size,
        copied: true,
        layout: &NOTHING,
    })
}

/// Returns the field of a map from strings to values of `size` bytes. `layout` is the layout of an
/// entry. A node of a B-tree has room for 11 entries. At least 5 are used once there are two nodes.
const fn map(
    what: &'static str,
    count_max: u32,
    size: usize,
    layout: &'static MessageLayout,
) -> FieldLayout {
    let size = (size + size_of::<String>()) as u64;
    FieldLayout::Many(RepeatedField {
        what,
        count_max,
        first: 11 * size + 112,
        each: 3 * size + 64,
        copied: false,
        layout,
    })
}

const fn varints(width: u64) -> FieldLayout {
    FieldLayout::Numbers { width, fixed: None }
}

const fn fixed(width: u64) -> FieldLayout {
    FieldLayout::Numbers { width, fixed: Some(width) }
}

const UNBOUNDED: u32 = u32::MAX;
const TENSORS: u32 = TENSORS_MAX as u32;
const NOTHING: MessageLayout = MessageLayout(&[]);
const STRINGS: FieldLayout = list("strings", UNBOUNDED, size_of::<bytes::Bytes>(), &NOTHING);

const PARAMETER: MessageLayout = MessageLayout(&[(3, FieldLayout::Text)]);
const PARAMETER_ENTRY: MessageLayout =
    MessageLayout(&[(1, FieldLayout::Text), (2, FieldLayout::One(&PARAMETER))]);
const PARAMETERS: FieldLayout =
    map("parameters", TENSORS, size_of::<InferParameter>(), &PARAMETER_ENTRY);
const CONTENTS: MessageLayout = MessageLayout(&[
    (1, varints(1)),
    (2, varints(4)),
    (3, varints(8)),
    (4, varints(4)),
    (5, varints(8)),
    (6, fixed(4)),
    (7, fixed(8)),
    (8, STRINGS),
]);
/// Axes have no limit here, because an axis has only 8 bytes and the decoder's refusal names the
/// tensor.
const INPUT: MessageLayout = MessageLayout(&[
    (1, FieldLayout::Text),
    (2, FieldLayout::Text),
    (3, varints(8)),
    (4, PARAMETERS),
    (5, FieldLayout::One(&CONTENTS)),
]);
const OUTPUT: MessageLayout = MessageLayout(&[(1, FieldLayout::Text), (2, PARAMETERS)]);

impl Weighed for ModelInferRequest {
    const LAYOUT: &'static MessageLayout = &MessageLayout(&[
        (1, FieldLayout::Text),
        (2, FieldLayout::Text),
        (3, FieldLayout::Text),
        (4, PARAMETERS),
        (5, list("inputs", TENSORS, size_of::<InferInputTensor>(), &INPUT)),
        (6, list("outputs", TENSORS, size_of::<InferRequestedOutputTensor>(), &OUTPUT)),
        (7, list("raw contents", TENSORS, size_of::<bytes::Bytes>(), &NOTHING)),
    ]);
}

const SPEC: MessageLayout =
    MessageLayout(&[(1, FieldLayout::Text), (3, FieldLayout::Text), (4, FieldLayout::Text)]);
const DIM: MessageLayout = MessageLayout(&[(2, FieldLayout::Text)]);
const SHAPE: MessageLayout =
    MessageLayout(&[(2, list("axes of a tensor", RANK_MAX as u32, size_of::<Dim>(), &DIM))]);
const TENSOR: MessageLayout = MessageLayout(&[
    (2, FieldLayout::One(&SHAPE)),
    (5, fixed(4)),
    (6, fixed(8)),
    (7, varints(4)),
    (8, STRINGS),
    (9, fixed(4)),
    (10, varints(8)),
    (11, varints(1)),
    (12, fixed(8)),
    (13, varints(4)),
    (16, varints(4)),
    (17, varints(8)),
]);
const TENSOR_ENTRY: MessageLayout =
    MessageLayout(&[(1, FieldLayout::Text), (2, FieldLayout::One(&TENSOR))]);

impl Weighed for PredictRequest {
    const LAYOUT: &'static MessageLayout = &MessageLayout(&[
        (1, FieldLayout::One(&SPEC)),
        (2, map("inputs", TENSORS, size_of::<TensorProto>(), &TENSOR_ENTRY)),
        (3, texts("outputs", TENSORS)),
    ]);
}

const EXAMPLES: FieldLayout = list("examples", UNBOUNDED, size_of::<bytes::Bytes>(), &NOTHING);
const EXAMPLE_LIST: MessageLayout = MessageLayout(&[(1, EXAMPLES)]);
const EXAMPLE_INPUT: MessageLayout =
    MessageLayout(&[(1, FieldLayout::One(&EXAMPLE_LIST)), (2, FieldLayout::One(&EXAMPLE_LIST))]);
const EXAMPLE_REQUEST: MessageLayout =
    MessageLayout(&[(1, FieldLayout::One(&SPEC)), (2, FieldLayout::One(&EXAMPLE_INPUT))]);
const TASK: MessageLayout = MessageLayout(&[(1, FieldLayout::One(&SPEC)), (2, FieldLayout::Text)]);

impl Weighed for ClassificationRequest {
    const LAYOUT: &'static MessageLayout = &EXAMPLE_REQUEST;
}

impl Weighed for RegressionRequest {
    const LAYOUT: &'static MessageLayout = &EXAMPLE_REQUEST;
}

impl Weighed for MultiInferenceRequest {
    const LAYOUT: &'static MessageLayout = &MessageLayout(&[
        (1, list("tasks", TASKS_MAX as u32, size_of::<InferenceTask>(), &TASK)),
        (2, FieldLayout::One(&EXAMPLE_INPUT)),
    ]);
}

/// Returns the cost of decoding `message` as an `M`. Stops after `work_max` fields and elements,
/// with `whole` false.
///
/// # Errors
/// `InvalidArgument` for bytes that are not a message and for too many elements.
pub fn weigh<M: Weighed>(message: &[u8], work_max: u64) -> Result<Weight> {
    let mut scale = Weigher { weight: Weight::default(), work_max };
    match scale.message(M::LAYOUT, message) {
        Ok(()) => Ok(Weight { whole: true, ..scale.weight }),
        Err(WeighStop::Work) => Ok(scale.weight),
        Err(WeighStop::Wrong(error)) => Err(error),
    }
}

/// Reason why weighing ended early.
enum WeighStop {
    Work,
    Wrong(Error),
}

impl From<prost::DecodeError> for WeighStop {
    fn from(error: prost::DecodeError) -> WeighStop {
        WeighStop::Wrong(unreadable(error))
    }
}

/// Weight so far, and the limit of the work.
struct Weigher {
    weight: Weight,
    work_max: u64,
}

impl Weigher {
    /// Adds the weight of the fields of the message `rest`. Stops if the work or the counts exceed
    /// their limits.
    fn message(
        &mut self,
        layout: &'static MessageLayout,
        mut rest: &[u8],
    ) -> Result<(), WeighStop> {
        let mut counts = [0u32; FIELDS_MAX];
        while !rest.is_empty() {
            self.work(1)?;
            let (tag, wire_type) = decode_key(&mut rest)?;
            let position = layout.0.iter().position(|(known, _)| *known == tag);
            let Some((position, count)) = position.and_then(|at| Some((at, counts.get_mut(at)?)))
            else {
                self.pass(wire_type, &mut rest)?;
                continue;
            };
            let (_, field) = layout.0[position];
            let payload = match wire_type {
                WireType::LengthDelimited => Some(delimited(&mut rest)?),
                _ => {
                    self.pass(wire_type, &mut rest)?;
                    None
                }
            };
            self.field(field, payload, count)?;
        }
        Ok(())
    }

    /// Adds one occurrence of a field after `count` others. `payload` is `None` for a single
    /// number.
    fn field(
        &mut self,
        field: FieldLayout,
        payload: Option<&[u8]>,
        count: &mut u32,
    ) -> Result<(), WeighStop> {
        match (field, payload) {
            (FieldLayout::Text, Some(text)) => self.add(2 * text.len() as u64 + ROOM_MIN),
            (FieldLayout::One(layout), Some(payload)) => self.message(layout, payload)?,
            (FieldLayout::Many(many), Some(payload)) => {
                let RepeatedField { what, count_max, first, each, copied, layout } = many;
                self.add(if *count == 0 { first + each } else { each });
                if copied {
                    self.add(2 * payload.len() as u64 + ROOM_MIN);
                }
                *count = count.saturating_add(1);
                if *count > count_max {
                    let error = Error::invalid(format!(
                        "more than {count_max} {what}, at most {count_max} are taken"
                    ));
                    return Err(WeighStop::Wrong(error));
                }
                if !layout.0.is_empty() {
                    self.message(layout, payload)?;
                }
            }
            (FieldLayout::Numbers { width, fixed }, payload) => {
                let room = if *count == 0 { ROOM_MIN * width } else { 0 };
                *count = 1;
                let elements = match (payload, fixed) {
                    (None, _) => 1,
                    (Some(packed), Some(bytes)) => packed.len() as u64 / bytes,
                    (Some(packed), None) => {
                        // A number has at most ten bytes, and only the last one has no high bit.
                        self.check(packed.len() as u64 / 10)?;
                        packed.iter().filter(|byte| **byte < 0x80).count() as u64
                    }
                };
                self.work(elements)?;
                // The growing list, and the tensor made from it.
                self.add(room + (GROWTH + 1) * width * elements);
            }
            // A number in place of a string or a message, which the decoder refuses.
            (_, None) => {}
        }
        Ok(())
    }

    fn add(&mut self, bytes: u64) {
        self.weight.bytes = self.weight.bytes.saturating_add(bytes);
    }

    fn check(&self, more: u64) -> Result<(), WeighStop> {
        if self.weight.work.saturating_add(more) > self.work_max {
            Err(WeighStop::Work)
        } else {
            Ok(())
        }
    }

    fn work(&mut self, more: u64) -> Result<(), WeighStop> {
        self.check(more)?;
        self.weight.work += more;
        Ok(())
    }

    /// Skips the value of a field that allocates nothing, and a group with its contents.
    fn pass(&mut self, wire_type: WireType, rest: &mut &[u8]) -> Result<(), WeighStop> {
        let mut depth = 0;
        let mut wire_type = wire_type;
        loop {
            match wire_type {
                WireType::Varint => {
                    decode_varint(rest)?;
                }
                WireType::ThirtyTwoBit => {
                    take(rest, 4)?;
                }
                WireType::SixtyFourBit => {
                    take(rest, 8)?;
                }
                WireType::LengthDelimited => {
                    delimited(rest)?;
                }
                WireType::StartGroup => depth += 1,
                WireType::EndGroup if depth > 0 => depth -= 1,
                WireType::EndGroup => return Err(malformed("a group ends that did not begin")),
            }
            if depth == 0 {
                return Ok(());
            }
            if depth > GROUPS_MAX {
                return Err(malformed("groups are nested too deeply"));
            }
            self.work(1)?;
            (_, wire_type) = decode_key(rest)?;
        }
    }
}

fn malformed(why: &str) -> WeighStop {
    WeighStop::Wrong(Error::invalid(format!("the message cannot be read: {why}")))
}

fn delimited<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WeighStop> {
    let length = decode_varint(rest)?;
    take(rest, length)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], WeighStop> {
    let length = usize::try_from(length).ok().filter(|length| *length <= rest.len());
    let length = length.ok_or_else(|| malformed("it ends in the middle of a field"))?;
    let taken = &rest[..length];
    rest.advance(length);
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::ModelRepositoryParameter;

    /// Returns `count` occurrences of an empty field.
    fn empties(tag: u8, count: usize) -> Vec<u8> {
        [(tag << 3) | 2, 0].repeat(count)
    }

    /// Returns a field that holds `inner`.
    fn within(tag: u8, inner: &[u8]) -> Vec<u8> {
        let mut out = vec![(tag << 3) | 2];
        prost::encoding::encode_varint(inner.len() as u64, &mut out);
        out.extend_from_slice(inner);
        out
    }

    const BOMB: usize = 1 << 20;

    #[test]
    fn bombs_are_refused_or_weighed() {
        let inputs = weigh::<ModelInferRequest>(&empties(5, BOMB), u64::MAX).unwrap_err();
        assert!(inputs.message().contains("at most 1024 are taken"), "{inputs}");
        let outputs = weigh::<ModelInferRequest>(&empties(6, BOMB), u64::MAX).unwrap_err();
        assert!(outputs.message().contains("at most 1024"), "{outputs}");
        assert!(weigh::<ModelInferRequest>(&empties(7, BOMB), u64::MAX).is_err());
        let strings = within(5, &within(5, &empties(8, BOMB)));
        let weight = weigh::<ModelInferRequest>(&strings, u64::MAX).unwrap();
        assert!(weight.whole && weight.bytes >= 96 * BOMB as u64, "{weight:?}");
        let axes = within(2, &within(2, &within(2, &empties(2, BOMB))));
        assert!(
            weigh::<PredictRequest>(&axes, u64::MAX)
                .unwrap_err()
                .message()
                .contains("at most 64 are taken")
        );
        assert!(weigh::<PredictRequest>(&empties(2, BOMB), u64::MAX).is_err());
        assert!(weigh::<PredictRequest>(&empties(3, BOMB), u64::MAX).is_err());
        let values = within(2, &within(2, &empties(8, BOMB)));
        assert!(weigh::<PredictRequest>(&values, u64::MAX).unwrap().bytes >= 96 * BOMB as u64);
        let examples = within(2, &within(1, &empties(1, BOMB)));
        assert!(weigh::<RegressionRequest>(&examples, u64::MAX).unwrap().bytes >= 96 * BOMB as u64);
        assert!(weigh::<MultiInferenceRequest>(&empties(1, BOMB), u64::MAX).is_err());
        let numbers = within(5, &within(5, &within(3, &vec![1; BOMB])));
        assert!(weigh::<ModelInferRequest>(&numbers, u64::MAX).unwrap().bytes >= 32 * BOMB as u64);
    }

    #[test]
    fn weighing_ends_at_the_limit_of_work() {
        let raw = within(7, &vec![0; BOMB]);
        let weight = weigh::<ModelInferRequest>(&raw, 10).unwrap();
        assert!(weight.whole && weight.work == 1 && weight.bytes < 1024, "{weight:?}");
        for large in [
            within(5, &within(5, &empties(8, BOMB))),
            within(5, &within(5, &within(3, &vec![1; BOMB]))),
        ] {
            let weight = weigh::<ModelInferRequest>(&large, 1000).unwrap();
            assert!(!weight.whole && weight.work <= 1000, "{weight:?}");
        }
    }

    #[test]
    fn groups_and_unknown_fields_are_passed_over() {
        let group =
            [&[0x7b][..], &[0x08, 1], &within(5, b"xyz"), &[0x7c], &within(1, b"m")].concat();
        let weight = weigh::<ModelInferRequest>(&group, u64::MAX).unwrap();
        assert_eq!(ModelInferRequest::decode(&group[..]).unwrap().model_name, "m");
        assert_eq!(weight.bytes, 2 + ROOM_MIN);
        assert!(weigh::<ModelInferRequest>(&[0x7b; 1000], u64::MAX).is_err());
        assert!(weigh::<ModelInferRequest>(&[0x7c], u64::MAX).is_err());
        assert!(weigh::<ModelInferRequest>(&[0x0a, 5, 1], u64::MAX).is_err());
    }

    #[test]
    fn other_messages_stay_below_the_expansion() {
        let entry = size_of::<String>() + size_of::<ModelRepositoryParameter>();
        assert!(entry < 160 && (entry as u64) * GROWTH / 5 <= EXPANSION_MAX, "{entry}");
        for layout in
            [ModelInferRequest::LAYOUT, PredictRequest::LAYOUT, &TENSOR, &CONTENTS, &INPUT]
        {
            assert!(layout.0.len() <= FIELDS_MAX);
        }
    }
}
