//! Finds the parameters whose axes the library may change.
//!
//! ONNX Runtime moves a `Transpose` past other operators. If such an operator reads a parameter,
//! the library transposes or reshapes the parameter and keeps its name. It then takes bytes that
//! are bound to this name for those of the new layout, without a check.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use base::Result;

use super::encode::WIRE_BYTES;
use super::nested::{self, VisitedField};
use super::schema::{MessageKind, node};
use super::tensor::NAME_BYTES_MAX;
use super::wire::Walker;

/// Maximum bytes of the names of values that are followed to the operators that read them.
const FOLLOWED_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of the names of parameters that one operator reads.
const READ_BYTES_MAX: usize = 16 << 20;
/// Bytes of memory that an entry of either takes, beside its names.
const ENTRY_BYTES: usize = 128;
/// Maximum readings of the nodes. A model with sorted nodes needs two.
const READINGS_MAX: usize = 8;

/// Returns the names of `parameters` that the library may rearrange. The nodes can have any order:
/// the library sorts them.
///
/// # Errors
/// `DataLoss` if the model is damaged; I/O errors.
pub(super) fn collect(walker: &mut Walker, parameters: &HashSet<&str>) -> Result<HashSet<String>> {
    let mut search = RearrangedSearch {
        parameters,
        moves_axes: false,
        followed: HashMap::new(),
        followed_bytes: 0,
        found: HashSet::new(),
    };
    for _ in 0..READINGS_MAX {
        let followed = search.followed.len();
        nested::walk(walker, &mut |walker, visited| search.visit(walker, visited))?;
        if !search.moves_axes {
            return Ok(HashSet::new());
        }
        if search.followed.len() == followed {
            return Ok(search.found);
        }
        // An operator may come before the one whose output it reads.
    }
    search.found.extend(search.followed.into_values());
    Ok(search.found)
}

struct RearrangedSearch<'a> {
    parameters: &'a HashSet<&'a str>,
    /// True if the model has an operator from which the library makes a `Transpose` that it moves.
    moves_axes: bool,
    /// Outputs of operators that the library follows or removes, each with its parameter.
    followed: HashMap<String, String>,
    followed_bytes: usize,
    /// Parameters of operators that a `Transpose` may be moved past.
    found: HashSet<String>,
}

impl RearrangedSearch<'_> {
    /// Reads the operator in a field. Returns true if the field's message can contain further
    /// operators.
    fn visit(&mut self, walker: &mut Walker, visited: &VisitedField) -> Result<bool> {
        let Some(child) = visited.child else { return Ok(false) };
        match child {
            MessageKind::MainNode | MessageKind::Node => {
                let operator = self.read(walker, visited.field.payload.clone())?;
                self.add(operator);
            }
            // The library may replace its calls by its nodes.
            MessageKind::Function => self.moves_axes = true,
            _ => {}
        }
        Ok(matches!(
            child,
            MessageKind::MainGraph
                | MessageKind::Graph
                | MessageKind::MainNode
                | MessageKind::Node
                | MessageKind::Attribute
        ))
    }

    /// Reads a `NodeProto` without its attributes.
    fn read(&self, walker: &mut Walker, payload: Range<u64>) -> Result<OperatorHead> {
        let mut head = OperatorHead::default();
        let mut bytes = 0;
        let mut at = payload.start;
        while at < payload.end {
            let field = walker.field(at, payload.end)?;
            at = field.whole.end;
            if field.wire != WIRE_BYTES {
                continue;
            }
            match field.number {
                node::INPUT => {
                    let input = text(walker, field.payload)?;
                    let Some(parameter) = self.parameter_of(&input) else { continue };
                    bytes += parameter.len() + ENTRY_BYTES;
                    if bytes > READ_BYTES_MAX {
                        return Err(walker
                            .damaged(field.whole.start, "an operator with too many parameters"));
                    }
                    head.parameters.push(parameter.to_owned());
                }
                node::OUTPUT if head.output.is_empty() => {
                    head.output = text(walker, field.payload)?;
                }
                node::OP_TYPE => head.name = text(walker, field.payload)?,
                node::DOMAIN => head.domain = text(walker, field.payload)?,
                _ => {}
            }
        }
        Ok(head)
    }

    /// Returns the parameter that the value is or follows from.
    fn parameter_of(&self, value: &str) -> Option<&str> {
        match self.parameters.get(value) {
            Some(parameter) => Some(parameter),
            None => self.followed.get(value).map(String::as_str),
        }
    }

    /// Adds the parameters of the operator to those found. If the library follows or removes the
    /// operator, follows its first parameter instead, to the operators that read its output.
    fn add(&mut self, operator: OperatorHead) {
        self.moves_axes |= operator.moves_axes();
        if operator.keeps_constants() {
            return;
        }
        let passes_on = operator.passes_on();
        let OperatorHead { output, mut parameters, .. } = operator;
        if passes_on {
            // Scale and zero point, which come after it, keep their shape.
            parameters.truncate(1);
            let Some(parameter) = parameters.pop() else { return };
            self.follow(output, parameter);
            return;
        }
        self.found.extend(parameters);
    }

    /// Follows a parameter to the operators that read `output`.
    fn follow(&mut self, output: String, parameter: String) {
        match self.followed.entry(output) {
            Entry::Vacant(new) => {
                self.followed_bytes += new.key().len() + parameter.len() + ENTRY_BYTES;
                if self.followed_bytes <= FOLLOWED_BYTES_MAX {
                    new.insert(parameter);
                } else {
                    self.found.insert(parameter);
                }
            }
            // Two inner graphs may have a value of the same name.
            Entry::Occupied(known) if *known.get() != parameter => {
                self.found.extend([known.get().clone(), parameter]);
            }
            Entry::Occupied(_) => {}
        }
    }
}

/// Operator of a node, and the parameters that it reads.
#[derive(Default)]
struct OperatorHead {
    name: String,
    domain: String,
    /// Parameters that its inputs are or follow from.
    parameters: Vec<String>,
    /// First output.
    output: String,
}

impl OperatorHead {
    /// Returns true if this is a `Transpose`, or if the library makes one that it moves. It makes
    /// one for a convolution or a pool in another layout, and from the graph or function that the
    /// operator stands for.
    fn moves_axes(&self) -> bool {
        matches!(
            &*self.name,
            "AffineGrid"
                | "Attention"
                | "AveragePool"
                | "CausalConvWithState"
                | "Conv"
                | "DepthToSpace"
                | "FlexAttention"
                | "GlobalAveragePool"
                | "If"
                | "LinearAttention"
                | "MaxPool"
                | "QLinearConv"
                | "RotaryEmbedding"
                | "SpaceToDepth"
                | "Transpose"
        )
    }

    /// Returns true if the library changes the operator's constant only for operators that read its
    /// output. Exporters give a weight that is used twice its second name by `Identity`, and read
    /// weights of 16 bits by `Cast`.
    fn passes_on(&self) -> bool {
        matches!(&*self.domain, "" | "ai.onnx" | "com.microsoft")
            && matches!(&*self.name, "Cast" | "DequantizeLinear" | "Identity")
    }

    /// Returns true if the library does not change constants that the operator reads. These
    /// operators have the large parameters of most models.
    fn keeps_constants(&self) -> bool {
        match &*self.domain {
            "" | "ai.onnx" => matches!(
                &*self.name,
                "Conv"
                    | "ConvInteger"
                    | "ConvTranspose"
                    | "Einsum"
                    | "GRU"
                    | "Gather"
                    | "GatherElements"
                    | "GatherND"
                    | "Gemm"
                    | "LSTM"
                    | "MatMul"
                    | "MatMulInteger"
                    | "QLinearConv"
                    | "QLinearMatMul"
                    | "RNN"
                    | "Transpose"
            ),
            "com.microsoft" => !self.name.starts_with("QLinear") && self.name != "DequantizeLinear",
            _ => false,
        }
    }
}

/// Reads a name. Returns an empty one for a name that is too long for a parameter.
fn text(walker: &mut Walker, range: Range<u64>) -> Result<String> {
    if range.end - range.start > NAME_BYTES_MAX {
        return Ok(String::new());
    }
    let bytes = walker.bytes(range, NAME_BYTES_MAX)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ONNX defines these operators by a graph with a `Transpose` or a `Conv`, the last two since
    /// opset 28. The library uses the graph if it has no kernel of the version.
    #[test]
    fn operators_that_are_defined_by_a_transpose_move_axes() {
        let older = ["AffineGrid", "CausalConvWithState", "FlexAttention", "LinearAttention"];
        for name in older.into_iter().chain(["DepthToSpace", "SpaceToDepth"]) {
            let operator = OperatorHead { name: name.to_owned(), ..OperatorHead::default() };
            assert!(operator.moves_axes(), "{name}");
        }
        assert!(!OperatorHead { name: "Add".to_owned(), ..OperatorHead::default() }.moves_axes());
    }
}
