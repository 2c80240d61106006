//! Parsers of etcd's answers, for the fuzz targets. Not part of the API.

use base::{Error, Result};

use super::EtcdEntry;
use super::wire::{self, KeepAliveAnswer, LeaseAnswer, RangeAnswer, TransactionAnswer};

/// Reads the answer to a request for keys.
///
/// # Errors
/// `Unavailable` for another text than JSON, and `DataLoss` for keys that are not base64.
pub fn etcd_range(body: &[u8]) -> Result<Vec<EtcdEntry>> {
    let answer: RangeAnswer = wire::message("a:1", body)?;
    answer.kvs.iter().map(|entry| entry.decode()).collect()
}

/// Reads the answers to all other requests, and the error of a `status` that is not 200. Returns
/// the error.
pub fn etcd_refusal(status: u16, body: &[u8]) -> Error {
    let _ = wire::message::<LeaseAnswer>("a:1", body);
    let _ = wire::message::<TransactionAnswer>("a:1", body);
    let _ = wire::token("a:1", body);
    let kept = wire::message::<KeepAliveAnswer>("a:1", body);
    if let Some(error) = kept.ok().and_then(|answer| answer.error) {
        let _ = wire::refused("a:1", &error);
    }
    wire::refusal("a:1", status, body)
}
