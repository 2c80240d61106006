//! The inputs of a model, from its server's metadata.

use base::DType;
use command_line::exit::{CommandError, CommandResult};
use protocol::oip::from_datatype;
use serde_json::Value;

/// One input of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputSpec {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Sizes of the axes; -1 is any size.
    pub(crate) shape: Vec<i64>,
}

/// Parses the inputs in a model's metadata.
///
/// # Errors
/// Returns an error if the response does not follow the protocol.
pub(crate) fn inputs(metadata: &Value) -> CommandResult<Vec<InputSpec>> {
    let list = metadata.get("inputs").and_then(Value::as_array);
    list.and_then(|inputs| inputs.iter().map(spec).collect::<Option<Vec<InputSpec>>>()).ok_or_else(
        || CommandError::failed("the model's metadata is not that of the Open Inference Protocol"),
    )
}

fn spec(input: &Value) -> Option<InputSpec> {
    Some(InputSpec {
        name: input.get("name")?.as_str()?.to_owned(),
        dtype: from_datatype(input.get("datatype")?.as_str()?)?,
        shape: input.get("shape")?.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?,
    })
}

impl InputSpec {
    /// Returns the shape for `elements` elements in one row. Fixed axes stay. The last free axis
    /// gets the needed size, and other free axes get the size 1.
    ///
    /// # Errors
    /// Returns an error that names the input if no shape fits.
    pub(crate) fn fit(&self, elements: usize) -> CommandResult<Vec<usize>> {
        let mut sizes = self.shape.iter().filter_map(|&size| usize::try_from(size).ok());
        let free = self.shape.iter().rposition(|&size| size < 0);
        let fits = |fixed: &usize| match free {
            Some(_) => *fixed > 0 && elements.is_multiple_of(*fixed),
            None => *fixed == elements,
        };
        // The sizes come from a server, so their product may be too large.
        let fixed = sizes.try_fold(1usize, usize::checked_mul).filter(fits);
        // Metadata show rank 0 and unknown rank in the same way. One row is right for the second
        // and harmless for the first.
        if self.shape.is_empty() && elements != 1 {
            return Ok(vec![elements]);
        }
        let Some(fixed) = fixed else {
            return Err(CommandError::failed(format!(
                "input \"{}\" takes shape {:?} (-1 is any size), which {} not fit",
                self.name,
                self.shape,
                if elements == 1 {
                    "1 value does".to_owned()
                } else {
                    format!("{elements} values do")
                }
            )));
        };
        let size = |(axis, &size): (usize, &i64)| match size {
            size if size >= 0 => size as usize,
            _ if Some(axis) == free => elements / fixed,
            _ => 1,
        };
        Ok(self.shape.iter().enumerate().map(size).collect())
    }

    /// Returns the smallest shape that the input takes.
    pub(crate) fn smallest(&self) -> Vec<usize> {
        self.shape.iter().map(|&size| usize::try_from(size).unwrap_or(1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(shape: &[i64], elements: usize) -> Option<Vec<usize>> {
        InputSpec { name: "x".into(), dtype: DType::F32, shape: shape.to_vec() }.fit(elements).ok()
    }

    #[test]
    fn shapes_that_fit() {
        assert_eq!(fit(&[-1, -1], 512), Some(vec![1, 512]));
        assert_eq!(fit(&[-1, 4], 8), Some(vec![2, 4]));
        assert_eq!(fit(&[-1, 4], 7), None);
        assert_eq!(fit(&[2, 2], 4), Some(vec![2, 2]));
        assert_eq!(fit(&[2, 2], 5), None);
        assert_eq!(fit(&[], 1), Some(vec![]));
        assert_eq!(fit(&[], 3), Some(vec![3]));
        assert_eq!(fit(&[-1, 0], 3), None);
        assert_eq!(fit(&[-1, i64::MAX, 4], 3), None);
    }
}
