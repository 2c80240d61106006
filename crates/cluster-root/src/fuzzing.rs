//! Parsers of the answers of other nodes, for the fuzz targets. Not part of the API.

use std::collections::BTreeMap;

use base::Result;
use bytes::Bytes;
use http::HeaderMap;
use http_client::HttpAnswer;
use serde_json::value::RawValue;

use super::wire::{self, OwnerReply};

/// Reads a node's answer to a read. Returns the result of each shard as JSON text.
///
/// # Errors
/// `Internal` for another text than the expected JSON.
pub fn read_answer(body: &[u8]) -> Result<BTreeMap<u32, Result<String>>> {
    let shards = wire::parse_read(body)?;
    let text = |result: Result<Box<RawValue>>| result.map(|text| text.get().to_owned());
    Ok(shards.into_iter().map(|(shard, result)| (shard, text(result))).collect())
}

/// Reads a node's answer to a write. Returns the number of the entry, or `None` if the operations
/// were certainly not written.
///
/// # Errors
/// The node's refusal of the operations; `Unavailable` if the operations may have been written.
pub fn write_answer(status: u16, body: &[u8]) -> Result<Option<u64>> {
    let body = Bytes::copy_from_slice(body);
    let answer = HttpAnswer { status, headers: HeaderMap::new(), body };
    match wire::owner_reply("a:1", &answer)? {
        OwnerReply::Made(entry) => Ok(Some(entry)),
        OwnerReply::Conflict(_) | OwnerReply::Full(_) | OwnerReply::NotMade { .. } => Ok(None),
    }
}
