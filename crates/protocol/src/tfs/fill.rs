//! Fills the elements of a `TensorProto` that its typed fields leave out.
//!
//! If there are fewer values than elements, the last value fills the rest, or zero without any
//! value. A message of a few bytes could request any amount of memory this way, so a budget bounds
//! it.

use base::{Error, Result};

/// Maximum bytes of the filled parts of all tensors in one request.
pub(crate) const FILLED_BYTES_MAX: usize = 64 << 20;

/// Bytes that may still be filled.
#[derive(Debug)]
pub(crate) struct FillBudget(usize);

impl Default for FillBudget {
    fn default() -> FillBudget {
        FillBudget(FILLED_BYTES_MAX)
    }
}

impl FillBudget {
    /// Extends `values` to `count` elements.
    ///
    /// # Errors
    /// `InvalidArgument` for more than `count` values. `TooLarge` over the budget.
    pub(crate) fn fill<T: Clone + Default>(
        &mut self,
        mut values: Vec<T>,
        count: usize,
    ) -> Result<Vec<T>> {
        if values.len() > count {
            return Err(Error::invalid(format!("{} values for {count} elements", values.len())));
        }
        let bytes = (count - values.len()).saturating_mul(size_of::<T>());
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            Error::too_large(format!(
                "repeating values to {count} elements takes more than {FILLED_BYTES_MAX} bytes; send them all"
            ))
        })?;
        let last = values.last().cloned().unwrap_or_default();
        values.resize(count, last);
        Ok(values)
    }
}
