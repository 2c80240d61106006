//! BYTES as raw data: each element its length in four little-endian bytes, then itself.

use base::{Error, Result, Shape, Tensor};
use bytes::{BufMut, Bytes, BytesMut};

use crate::wire;

pub(super) const LENGTH_BYTES: usize = 4;

/// Creates a tensor of `shape` whose strings share `raw`.
pub(crate) fn decode(name: &str, shape: Shape, mut raw: Bytes) -> Result<Tensor> {
    let count = wire::elements(name, &shape)?;
    let mut strings = Vec::with_capacity(count.min(raw.len() / LENGTH_BYTES));
    for position in 0..count {
        let cut = || Error::invalid(format!("\"{name}\" ends inside string {position} of {count}"));
        let (length, _) = raw.split_first_chunk::<LENGTH_BYTES>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let _ = raw.split_to(LENGTH_BYTES);
        if length > raw.len() {
            return Err(cut());
        }
        strings.push(raw.split_to(length));
    }
    if !raw.is_empty() {
        return Err(Error::invalid(format!(
            "\"{name}\" has {} bytes after its {count} strings",
            raw.len()
        )));
    }
    Tensor::from_strings(shape, strings)
}

/// Returns the raw form of `strings`.
pub(crate) fn encode(name: &str, strings: &[Bytes]) -> Result<Bytes> {
    let mut raw =
        BytesMut::with_capacity(strings.iter().map(|string| LENGTH_BYTES + string.len()).sum());
    for string in strings {
        let length = u32::try_from(string.len())
            .map_err(|_| Error::invalid(format!("a string of \"{name}\" is longer than 4 GiB")))?;
        raw.put_u32_le(length);
        raw.put_slice(string);
    }
    Ok(raw.freeze())
}
