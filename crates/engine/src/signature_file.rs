//! The section `[signature]` of a model's settings: facts about inputs and outputs that its graph
//! does not state.
//!
//! TorchScript names its inputs but states neither element types nor shapes; its outputs often have
//! no name.

use base::{DType, Dim, Error, Result, TensorSpec};
use serde::{Deserialize, Serialize};

/// Maximum axes of a tensor.
const RANK_MAX: usize = 32;

/// A `[signature]` section. Omitted facts stay as in the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct SignatureFile {
    /// Inputs, in the graph's order or by the graph's names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<TensorText>,
    /// Outputs, in the graph's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<TensorText>,
}

/// One input or output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TensorText {
    /// Name that requests use for the tensor.
    pub name: String,
    /// [`DType::name`] of the element type; "float32" by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Sizes of its axes, -1 for any size; any shape by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<i64>>,
}

impl SignatureFile {
    /// Checks names, types and shapes.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first wrong tensor.
    pub fn check(&self) -> Result<()> {
        for tensors in [&self.inputs, &self.outputs] {
            for (position, tensor) in tensors.iter().enumerate() {
                tensor.spec()?;
                if tensors.iter().take(position).any(|earlier| earlier.name == tensor.name) {
                    let name = &tensor.name;
                    return Err(Error::invalid(format!("signature: \"{name}\" is listed twice")));
                }
            }
        }
        Ok(())
    }
}

impl TensorText {
    /// Returns the entry in the form of a signature.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown type or an impossible axis.
    pub fn spec(&self) -> Result<TensorSpec> {
        let wrong = |why: String| Error::invalid(format!("signature: \"{}\" {why}", self.name));
        let dtype = match &self.dtype {
            Some(name) => DType::from_name(name)
                .ok_or_else(|| wrong(format!("has unknown type \"{name}\"")))?,
            None => DType::F32,
        };
        let axis = |&size: &i64| match size {
            -1 => Ok(Dim::Dynamic(None)),
            size => usize::try_from(size)
                .map(Dim::Fixed)
                .map_err(|_| wrong(format!("has an axis of {size}"))),
        };
        if self.shape.as_ref().is_some_and(|shape| shape.len() > RANK_MAX) {
            return Err(wrong(format!("has more than {RANK_MAX} axes")));
        }
        let shape =
            self.shape.as_ref().map(|shape| shape.iter().map(axis).collect()).transpose()?;
        Ok(TensorSpec { name: self.name.clone(), dtype, shape, optional: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_listed_once() {
        let text = |name: &str| TensorText { name: name.into(), dtype: None, shape: None };
        let file = SignatureFile { inputs: vec![text("x"), text("y")], outputs: vec![text("x")] };
        assert_eq!(file.check(), Ok(()));
        let twice = SignatureFile { inputs: vec![text("x"), text("x")], ..file };
        assert!(twice.check().unwrap_err().message().contains("\"x\" is listed twice"));
    }
}
