//! The section `[signature]` of a model's settings: what its graph does not say about inputs and outputs.
//!
//! TorchScript names its inputs and says neither element types nor shapes; outputs often have no name at all.

use base::{DType, Dim, Error, Result, TensorSpec};
use serde::{Deserialize, Serialize};

/// Axes of a tensor at most.
const RANK_MAX: usize = 32;

/// A `[signature]` section. What it leaves out stays as the graph has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct SignatureFile {
    /// Inputs, in the order in which the graph takes them or by the names it has for them.
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
    /// Its name.
    pub name: String,
    /// [`DType::name`]; "float32" where it is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Its axes, -1 for any size; any shape at all where it is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<i64>>,
}

impl SignatureFile {
    /// Checks types and shapes.
    ///
    /// # Errors
    /// `InvalidArgument` naming the first tensor that is wrong.
    pub fn check(&self) -> Result<()> {
        self.inputs.iter().chain(&self.outputs).try_for_each(|tensor| tensor.spec().map(drop))
    }
}

impl TensorText {
    /// What it says, as a signature has it.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown type or an impossible axis.
    pub fn spec(&self) -> Result<TensorSpec> {
        let wrong = |why: String| Error::invalid(format!("signature: \"{}\" {why}", self.name));
        let dtype = match &self.dtype {
            Some(name) => {
                DType::from_name(name).ok_or_else(|| wrong(format!("has unknown type \"{name}\"")))?
            }
            None => DType::F32,
        };
        let axis = |&size: &i64| match size {
            -1 => Ok(Dim::Dynamic(None)),
            size => {
                usize::try_from(size).map(Dim::Fixed).map_err(|_| wrong(format!("has an axis of {size}")))
            }
        };
        if self.shape.as_ref().is_some_and(|shape| shape.len() > RANK_MAX) {
            return Err(wrong(format!("has more than {RANK_MAX} axes")));
        }
        let shape = self.shape.as_ref().map(|shape| shape.iter().map(axis).collect()).transpose()?;
        Ok(TensorSpec { name: self.name.clone(), dtype, shape, optional: false })
    }
}
