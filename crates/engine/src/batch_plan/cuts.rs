//! Cutting of the outputs that follow padded inputs.

use base::{Error, Result, Signature, TensorSpec};

use super::{AxisCut, OutputPlan, free, index};
use crate::{CutOptions, ScheduleOptions};

/// Returns the axes of each output that are cut to the sizes of a request's own inputs.
///
/// # Errors
/// `InvalidArgument` for an output or axis that the model does not have, and for a dynamic axis
/// without a rule if inputs are padded and its size must be the request's own.
pub(super) fn cuts(signature: &Signature, options: &ScheduleOptions) -> Result<Vec<OutputPlan>> {
    for name in options.outputs.keys() {
        if signature.output(name).is_none() {
            return Err(Error::invalid(format!("outputs.{name}: the model has no such output")));
        }
    }
    let mut plans = Vec::new();
    for spec in &signature.outputs {
        let rules = options.outputs.get(&spec.name).map_or(&[][..], Vec::as_slice);
        let axes =
            rules.iter().map(|rule| cut(signature, spec, rule)).collect::<Result<Vec<_>>>()?;
        if !options.inputs.is_empty() && !options.data_dependent_shapes {
            if spec.shape.is_none() && axes.is_empty() {
                return Err(Error::invalid(format!(
                    "inputs are padded and the model does not say what axes output \"{}\" has: outputs.{} must say which input's axes they follow",
                    spec.name, spec.name
                )));
            }
            let rank = spec.shape.as_ref().map_or(0, Vec::len);
            if let Some(axis) =
                (1..rank).find(|&axis| free(spec, axis) && !axes.iter().any(|cut| cut.axis == axis))
            {
                return Err(Error::invalid(format!(
                    "inputs are padded and axis {axis} of output \"{}\" is dynamic: outputs.{} must say which input's axis it follows",
                    spec.name, spec.name
                )));
            }
        }
        if !axes.is_empty() {
            plans.push(OutputPlan { name: spec.name.as_str().into(), axes });
        }
    }
    Ok(plans)
}

/// Resolves one rule against the signature.
fn cut(signature: &Signature, spec: &TensorSpec, rule: &CutOptions) -> Result<AxisCut> {
    if spec.shape.as_ref().is_some_and(|dims| rule.axis >= dims.len()) {
        return Err(Error::invalid(format!(
            "outputs.{}: the output has no axis {}",
            spec.name, rule.axis
        )));
    }
    Ok(AxisCut {
        axis: rule.axis,
        source: index(signature, &rule.input)?,
        source_axis: rule.input_axis,
        divisor: rule.divisor,
        round_up: rule.round_up,
        offset: rule.offset,
    })
}
