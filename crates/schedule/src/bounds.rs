//! Limits on the work of one request. A tensor without elements may have any size on its other
//! axes, and still takes no bytes on the wire.

use base::{DType, Error, Result};
use engine::BatchPlan;

/// Maximum number of parts of one request. A queue that is at most half full accepts that many,
/// even if it is shorter. So clients need not split large batches. Each part costs time at every
/// scan of the queue.
pub(crate) const PARTS_MAX: usize = 4096;
/// Maximum number of items of a request that is padded but not split. Only a tensor without
/// elements has more.
const ITEMS_MAX: usize = u32::MAX as usize;
/// Maximum bytes of a tensor that the server makes (a mask, a length, a padded input), for any
/// number of received bytes.
const MADE_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes made for a larger request, as a multiple of the bytes received.
const GROWTH_MAX: usize = 4;

/// Refuses a request with more items than [`PARTS_MAX`] batches of `max_batch` items hold. Without
/// batches the limit is [`ITEMS_MAX`].
///
/// # Errors
/// `InvalidArgument` with the allowed number of items.
pub(crate) fn check_items(plan: &BatchPlan, items: usize, max_batch: usize) -> Result<()> {
    let most = if plan.batchable { max_batch.saturating_mul(PARTS_MAX) } else { ITEMS_MAX };
    if items > most {
        return Err(Error::invalid(format!(
            "the request has {items} items and the model takes at most {most} at once; send smaller requests"
        )));
    }
    Ok(())
}

/// Returns the bytes of a tensor of `shape` that the server would make for the input `name` from
/// `received` bytes of the request.
///
/// # Errors
/// `InvalidArgument` if it would be out of proportion, `Unimplemented` for types without a size.
pub(crate) fn check_made_bytes(
    name: &str,
    dtype: DType,
    shape: &[usize],
    received: usize,
) -> Result<usize> {
    if dtype.bits().is_none() {
        return Err(Error::unimplemented(format!("{dtype} cannot be padded")));
    }
    let elements = if shape.contains(&0) {
        Some(0)
    } else {
        shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
    };
    let most = MADE_BYTES_MAX.max(received.saturating_mul(GROWTH_MAX));
    elements.and_then(|elements| dtype.bytes_for(elements)).filter(|&bytes| bytes <= most).ok_or_else(|| {
        Error::invalid(format!(
            "input \"{name}\" would be padded or filled to shape {shape:?}, over {most} bytes; send smaller requests"
        ))
    })
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn made_tensors_are_in_proportion() {
        let made = |shape: &[usize], received| {
            check_made_bytes("x", DType::F32, shape, received).map_err(|e| e.kind())
        };
        assert_eq!(made(&[2, 3], 0), Ok(24));
        assert_eq!(made(&[0, usize::MAX, 2], 0), Ok(0));
        assert_eq!(made(&[usize::MAX, 2, 0], 0), Ok(0));
        assert_eq!(made(&[MADE_BYTES_MAX / 4], 0), Ok(MADE_BYTES_MAX));
        assert_eq!(made(&[MADE_BYTES_MAX / 4 + 1], 4), Err(ErrorKind::InvalidArgument));
        assert_eq!(made(&[MADE_BYTES_MAX / 4 + 1], MADE_BYTES_MAX), Ok(MADE_BYTES_MAX + 4));
        assert_eq!(made(&[usize::MAX, 2], usize::MAX), Err(ErrorKind::InvalidArgument));
    }

    /// 100,000 rows are usual, for a model with the default batch and for one that ranks.
    #[test]
    fn large_batches_are_accepted_and_absurd_ones_refused() {
        let plan = |batchable| BatchPlan { batchable, inputs: vec![], cuts: vec![] };
        for max_batch in [32, 512] {
            assert!(check_items(&plan(true), 100_000, max_batch).is_ok());
            assert!(check_items(&plan(true), max_batch * PARTS_MAX, max_batch).is_ok());
            let error = check_items(&plan(true), max_batch * PARTS_MAX + 1, max_batch).unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidArgument
                    && error.message().contains("smaller requests")
            );
        }
        assert!(check_items(&plan(true), usize::MAX, usize::MAX).is_ok());
        assert!(check_items(&plan(false), 1 << 24, 32).is_ok());
        assert!(check_items(&plan(false), 1 << 60, 32).is_err());
    }
}
