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
/// Elements held for each element of a growing list: the old and the new memory, 1 + 2, for a
/// moment.
const GROWTH: u64 = 3;
/// Bytes of memory for each byte of a text or of a list of numbers: the growing value, and a copy.
const CONTENT_GROWTH: u64 = 4;
/// Deepest nesting; the decoder's own limit.
const DEPTH_MAX: u32 = 100;

/// Returns an upper bound of the bytes that decoding `message` as a `qdrant.NAME` allocates.
///
/// # Errors
/// `InvalidArgument` for bytes that are not a message, for an unknown name, and for messages that
/// are nested too deeply.
pub fn weigh_described(name: &str, message: &[u8]) -> Result<u64> {
    let descriptor = DESCRIPTORS.get_message_by_name(&format!("qdrant.{name}"));
    let unknown = || Error::internal(format!("there is no message qdrant.{name}"));
    weigh(&descriptor.ok_or_else(unknown)?, message, DEPTH_MAX)
}

fn weigh(descriptor: &MessageDescriptor, mut rest: &[u8], depth: u32) -> Result<u64> {
    if depth == 0 {
        return Err(Error::invalid("the message is nested too deeply"));
    }
    let mut bytes = GROWTH * MESSAGE_BYTES_MAX;
    while rest.has_remaining() {
        let (tag, wire_type) = decode_key(&mut rest).map_err(unreadable)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(unreadable)?;
            // A number of a list that is not packed.
            bytes = bytes.saturating_add(GROWTH * size_of::<u64>() as u64);
            continue;
        }
        let length = decode_varint(&mut rest).map_err(unreadable)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (content, after) = rest
            .split_at_checked(length)
            .ok_or_else(|| Error::invalid("the message cannot be read: it is cut off"))?;
        rest = after;
        let field = descriptor.get_field(tag);
        bytes = bytes.saturating_add(match field.map(|field| field.kind()) {
            Some(Kind::Message(inner)) => weigh(&inner, content, depth - 1)?,
            // A varint of one byte may become a number of eight.
            Some(Kind::String | Kind::Bytes | Kind::Float | Kind::Double) | None => {
                CONTENT_GROWTH * content.len() as u64 + GROWTH * size_of::<String>() as u64
            }
            Some(_) => CONTENT_GROWTH * size_of::<u64>() as u64 * content.len() as u64,
        });
    }
    Ok(bytes)
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
