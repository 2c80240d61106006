//! The elements of a `TensorProto` that its typed fields do not spell out.
//!
//! Fewer values than the shape has elements mean that the last value, or zero where there is none, fills the rest. A
//! message of a few bytes could so ask for any amount of memory, which is why filling draws on a budget.

use base::{Error, Result};

/// Bytes that the filled parts of all tensors of one request may take.
pub(crate) const FILLED_BYTES_MAX: usize = 64 << 20;

/// What is left to fill.
#[derive(Debug)]
pub(crate) struct FillBudget(usize);

impl Default for FillBudget {
    fn default() -> FillBudget {
        FillBudget(FILLED_BYTES_MAX)
    }
}

impl FillBudget {
    /// Makes `values` as long as `count`.
    ///
    /// # Errors
    /// `InvalidArgument` when there are more values than that, `TooLarge` over the budget.
    pub(crate) fn fill<T: Clone + Default>(&mut self, mut values: Vec<T>, count: usize) -> Result<Vec<T>> {
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
