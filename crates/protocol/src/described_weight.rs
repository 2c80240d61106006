//! Bounds the memory of a message of Qdrant's interface by its descriptor, before it is decoded.
//!
//! A message without content takes two bytes on the wire and hundreds in memory. So the messages
//! inside are counted, each at the size of the largest, and texts and numbers by their bytes.

use base::{Error, Result};
use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_reflect::{Kind, MessageDescriptor};

use crate::generated::DESCRIPTORS;
use crate::wire::unreadable;

/// Bytes of the largest message of the interface in memory, without what it refers to.
const MESSAGE_BYTES_MAX: u64 = 1280;
/// Full name of a point's id. Lists of ids are the longest lists of messages, and an id is small.
const POINT_ID: &str = "qdrant.PointId";
/// Bytes of a point's id in memory, and of its JSON value.
const POINT_ID_BYTES_MAX: u64 = 64;
/// Elements held for each element of a growing list. For a moment they are those of the old and of
/// the new memory, 1 + 2.
const GROWTH: u64 = 3;
/// Bytes of memory for each byte of a text or of a list of numbers: the growing value, and a copy.
const CONTENT_GROWTH: u64 = 4;
/// Maximum nesting. It is also the limit of the decoder.
const DEPTH_MAX: u32 = 100;

/// Returns an upper bound of the bytes that decoding `message` as a `qdrant.NAME` allocates.
///
/// # Errors
/// `InvalidArgument` for bytes that are not a message, for an unknown name, and for messages that
/// are nested too deeply.
pub fn weigh_described(name: &str, message: &[u8]) -> Result<u64> {
    weigh(&described(name)?, message, DEPTH_MAX)
}

/// Returns an upper bound of the bytes that `message`, a `qdrant.NAME`, takes while it is decoded.
/// The elements of the field with the number `list` are decoded one after the other.
///
/// # Errors
/// As [`weigh_described`].
pub fn weigh_element_wise(name: &str, list: u32, message: &[u8]) -> Result<u64> {
    let descriptor = described(name)?;
    let mut bytes = held_bytes(&descriptor);
    let mut largest = 0;
    let mut rest = message;
    while rest.has_remaining() {
        let field = next_field(&mut rest)?;
        let weight = weigh_field(&descriptor, &field, DEPTH_MAX)?;
        if field.tag == list {
            largest = weight.max(largest);
        } else {
            bytes = bytes.saturating_add(weight);
        }
    }
    Ok(bytes.saturating_add(largest))
}

fn described(name: &str) -> Result<MessageDescriptor> {
    let unknown = || Error::internal(format!("there is no message qdrant.{name}"));
    DESCRIPTORS.get_message_by_name(&format!("qdrant.{name}")).ok_or_else(unknown)
}

/// Returns an upper bound of the memory of a message and its content. `depth` is the permitted
/// nesting.
fn weigh(descriptor: &MessageDescriptor, mut rest: &[u8], depth: u32) -> Result<u64> {
    if depth == 0 {
        return Err(Error::invalid("the message is nested too deeply"));
    }
    let mut bytes = held_bytes(descriptor);
    while rest.has_remaining() {
        let field = next_field(&mut rest)?;
        bytes = bytes.saturating_add(weigh_field(descriptor, &field, depth)?);
    }
    Ok(bytes)
}

/// Returns the bytes of a message without its content, as an element of a growing list.
fn held_bytes(descriptor: &MessageDescriptor) -> u64 {
    let is_id = descriptor.full_name() == POINT_ID;
    GROWTH * if is_id { POINT_ID_BYTES_MAX } else { MESSAGE_BYTES_MAX }
}

/// A field of an encoded message.
struct DescribedField<'a> {
    tag: u32,
    /// Bytes of a text, a list of numbers or a message, or `None` for a number.
    content: Option<&'a [u8]>,
}

/// Takes the next field off the front of `rest`.
fn next_field<'a>(rest: &mut &'a [u8]) -> Result<DescribedField<'a>> {
    let (tag, wire_type) = decode_key(rest).map_err(unreadable)?;
    if wire_type != WireType::LengthDelimited {
        skip_field(wire_type, tag, rest, DecodeContext::default()).map_err(unreadable)?;
        return Ok(DescribedField { tag, content: None });
    }
    let length = decode_varint(rest).map_err(unreadable)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let bytes = *rest;
    let (content, after) = bytes
        .split_at_checked(length)
        .ok_or_else(|| Error::invalid("the message cannot be read: it is cut off"))?;
    *rest = after;
    Ok(DescribedField { tag, content: Some(content) })
}

/// Returns the weight of a field of a message with this descriptor.
fn weigh_field(
    descriptor: &MessageDescriptor,
    field: &DescribedField<'_>,
    depth: u32,
) -> Result<u64> {
    let Some(content) = field.content else {
        // A number of a list that is not packed.
        return Ok(GROWTH * size_of::<u64>() as u64);
    };
    Ok(match descriptor.get_field(field.tag).map(|field| field.kind()) {
        Some(Kind::Message(inner)) => weigh(&inner, content, depth - 1)?,
        // A varint of one byte may become a number of eight.
        Some(Kind::String | Kind::Bytes | Kind::Float | Kind::Double) | None => {
            CONTENT_GROWTH * content.len() as u64 + GROWTH * size_of::<String>() as u64
        }
        Some(_) => CONTENT_GROWTH * size_of::<u64>() as u64 * content.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::qdrant as pb;

    #[test]
    fn no_message_is_larger_than_the_limit() {
        for size in [
            size_of::<pb::QueryPoints>(),
            size_of::<pb::PrefetchQuery>(),
            size_of::<pb::Condition>(),
            size_of::<pb::SearchPoints>(),
            size_of::<pb::RecommendPoints>(),
            size_of::<pb::DiscoverPoints>(),
            size_of::<pb::PointStruct>(),
            size_of::<pb::PointsUpdateOperation>(),
            size_of::<pb::CreateCollection>(),
            size_of::<pb::UpdateCollection>(),
            size_of::<pb::QueryPointGroups>(),
            size_of::<pb::RecommendPointGroups>(),
            // A node of a map has room for eleven entries, of which five are used.
            2 * (size_of::<pb::Value>() + size_of::<String>()) + 64,
            2 * (size_of::<pb::Vector>() + size_of::<String>()) + 64,
        ] {
            assert!(size as u64 <= MESSAGE_BYTES_MAX, "{size}");
        }
        assert!(2 * size_of::<pb::PointId>() as u64 <= POINT_ID_BYTES_MAX);
        assert_eq!(described("PointId").unwrap().full_name(), POINT_ID);
    }

    #[test]
    fn a_list_of_ids_weighs_less_than_other_messages() {
        let num = pb::point_id::PointIdOptions::Num(7);
        let ids = vec![pb::PointId { point_id_options: Some(num) }; 1000];
        let get = pb::GetPoints { ids, ..pb::GetPoints::default() };
        let weight = weigh_described("GetPoints", &get.encode_to_vec()).unwrap();
        let held = 1000 * GROWTH * size_of::<pb::PointId>() as u64;
        assert!((held..1000 * MESSAGE_BYTES_MAX).contains(&weight), "{weight}");
    }

    #[test]
    fn elements_decoded_one_by_one_weigh_as_the_largest() {
        let of = |points: Vec<pb::PointStruct>| {
            let upsert = pb::UpsertPoints { points, ..pb::UpsertPoints::default() };
            weigh_element_wise("UpsertPoints", 3, &upsert.encode_to_vec()).unwrap()
        };
        let small = pb::PointStruct::default();
        let num = pb::point_id::PointIdOptions::Num(7);
        let id = Some(pb::PointId { point_id_options: Some(num) });
        let large = pb::PointStruct { id, ..pb::PointStruct::default() };
        let one = of(vec![large.clone()]);
        assert_eq!(of(vec![small.clone(), large, small.clone()]), one);
        assert!(of(vec![small]) < one);
        // Other fields add up.
        let upsert = pb::UpsertPoints { collection_name: "c".to_owned(), ..Default::default() };
        let named = weigh_element_wise("UpsertPoints", 3, &upsert.encode_to_vec()).unwrap();
        assert!(named > of(Vec::new()));
        assert!(weigh_element_wise("UpsertPoints", 3, &[0x1a, 9]).is_err());
    }

    #[test]
    fn empty_messages_weigh_more_than_their_bytes() {
        let conditions = vec![pb::Condition::default(); 1000];
        let filter = pb::Filter { must: conditions, ..pb::Filter::default() };
        let query = pb::QueryPoints { filter: Some(filter), ..pb::QueryPoints::default() };
        let weight = weigh_described("QueryPoints", &query.encode_to_vec()).unwrap();
        let held = 1000 * GROWTH * size_of::<pb::Condition>() as u64;
        assert!(weight >= held, "{weight} {held}");
    }

    #[test]
    fn content_weighs_a_multiple_of_its_bytes() {
        let vector = vec![0.5; 10_000];
        let search = pb::SearchPoints { vector, ..pb::SearchPoints::default() };
        let weight = weigh_described("SearchPoints", &search.encode_to_vec()).unwrap();
        assert!((160_000..170_000).contains(&weight), "{weight}");
    }

    #[test]
    fn nesting_and_damage_are_refused() {
        let mut filter = pb::Filter::default();
        for _ in 0..60 {
            let inner = pb::condition::ConditionOneOf::Filter(filter);
            let condition = pb::Condition { condition_one_of: Some(inner) };
            filter = pb::Filter { must: vec![condition], ..pb::Filter::default() };
        }
        let bytes = filter.encode_to_vec();
        assert!(weigh_described("Filter", &bytes).unwrap_err().message().contains("nested"));
        assert!(weigh_described("Filter", &bytes[..bytes.len() - 1]).is_err());
        assert!(weigh_described("Nothing", &[]).is_err());
    }
}
