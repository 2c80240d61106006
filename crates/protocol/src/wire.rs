//! Checks that all protocols share: names, counts, shapes, raw bytes.

use base::{DType, Error, Result, Shape, Tensor};
use bytes::Bytes;

/// Maximum axes of a tensor that a client may send.
pub(crate) const RANK_MAX: usize = 64;
/// Maximum inputs or requested outputs of one request. Checks that compare them pairwise rely on
/// it.
pub(crate) const TENSORS_MAX: usize = 1024;

/// Longest name of a model, version label or tensor, in bytes. Messages repeat names, and a gRPC
/// status is a header.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

/// Returns the error of a message that cannot be decoded.
pub fn unreadable(error: prost::DecodeError) -> Error {
    Error::invalid("the message cannot be read").caused_by(error)
}

/// Refuses a name longer than [`NAME_BYTES_MAX`].
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a name has {} bytes, at most {NAME_BYTES_MAX} are taken",
            name.len()
        )));
    }
    Ok(())
}

/// Refuses more tensors than [`TENSORS_MAX`].
pub(crate) fn check_count(what: &str, count: usize) -> Result<()> {
    if count > TENSORS_MAX {
        return Err(Error::invalid(format!("{count} {what}, at most {TENSORS_MAX} are taken")));
    }
    Ok(())
}

/// Returns a shape from the signed sizes on the wire. The product of all sizes but 0 fits an
/// `isize`, because engines multiply sizes, and a size of 0 does not prevent an overflow.
pub(crate) fn shape(name: &str, dims: impl ExactSizeIterator<Item = i64>) -> Result<Shape> {
    if dims.len() > RANK_MAX {
        return Err(Error::invalid(format!(
            "\"{name}\" has {} axes, at most {RANK_MAX} are taken",
            dims.len()
        )));
    }
    let mut product = Some(1isize);
    let shape = dims.map(|dim| {
        if dim != 0 {
            let size = isize::try_from(dim).ok();
            product = product.zip(size).and_then(|(product, size)| product.checked_mul(size));
        }
        usize::try_from(dim)
            .map_err(|_| Error::invalid(format!("\"{name}\" has an axis of size {dim}")))
    });
    let shape = shape.collect::<Result<Shape>>()?;
    if product.is_some() { Ok(shape) } else { Err(too_many_elements(name)) }
}

fn too_many_elements(name: &str) -> Error {
    Error::invalid(format!("\"{name}\" has more elements than fit memory"))
}

/// Returns the number of elements of a shape.
pub(crate) fn elements(name: &str, shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))
        .ok_or_else(|| too_many_elements(name))
}

/// Creates a tensor over raw bytes of fixed-size elements. Booleans must be 0 or 1, as C++ engines
/// assume.
pub(crate) fn fixed(name: &str, dtype: DType, shape: Shape, bytes: Bytes) -> Result<Tensor> {
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        return Err(Error::invalid(format!(
            "\"{name}\" is bool and holds bytes other than 0 and 1"
        )));
    }
    Tensor::from_bytes(dtype, shape, bytes)
        .map_err(|error| error.context(format_args!("\"{name}\"")))
}

/// Unpacks 4-bit elements, one into each byte, sign-extended for `I4`.
pub(crate) fn unpack(dtype: DType, count: usize, packed: &[u8]) -> Vec<u8> {
    let nibble = |position: usize| (packed[position / 2] >> (4 * (position % 2))) & 0xf;
    let widen = |nibble: u8| if dtype == DType::I4 && nibble > 7 { nibble | 0xf0 } else { nibble };
    (0..count).map(|position| widen(nibble(position))).collect()
}

/// Packs 4-bit elements, as the inverse of [`unpack`]. Upper halves are dropped.
pub(crate) fn pack(elements: &[u8]) -> Vec<u8> {
    elements
        .chunks(2)
        .map(|pair| (pair[0] & 0xf) | pair.get(1).map_or(0, |high| high << 4))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ONNX Runtime and LibTorch report an overflow as a failure of their own, although the tensor
    /// has no elements.
    #[test]
    fn sizes_overflow_although_another_size_is_0() {
        let read = |dims: &[i64]| shape("x", dims.iter().copied());
        for fits in [&[1i64 << 40, 0][..], &[0, i64::MAX], &[i64::MAX, 0, 1], &[0; RANK_MAX], &[]] {
            assert!(read(fits).is_ok_and(|shape| shape.len() == fits.len()), "{fits:?}");
        }
        for wide in [[1i64 << 32, 1 << 31, 0], [1 << 32, 0, 1 << 31], [0, 1 << 62, 2]] {
            let error = read(&wide).unwrap_err();
            assert_eq!(error.message(), "\"x\" has more elements than fit memory", "{wide:?}");
        }
        assert_eq!(read(&[0, -1]).unwrap_err().message(), "\"x\" has an axis of size -1");
    }

    #[test]
    fn nibbles_round_trip() {
        let elements = [0xf8u8, 7, 0xff, 0, 3];
        assert_eq!(pack(&elements), [0x78, 0x0f, 0x03]);
        assert_eq!(unpack(DType::I4, 5, &pack(&elements)), elements);
        assert_eq!(unpack(DType::U4, 2, &[0x9f]), [15, 9]);
    }
}
