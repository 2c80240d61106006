//! Names of parameters and outputs, which decide which parameters may move.
//!
//! ONNX Runtime binds a parameter by its name, in the main graph and in every graph inside it. A
//! name that is used twice violates ONNX's rules, yet ONNX Runtime accepts it; such parameters stay
//! in the graph.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use base::Result;
use base::units::MIB;

use super::constant;
use super::encode::WIRE_BYTES;
use super::nested::{self, VisitedField};
use super::schema::{MessageKind, graph, sparse};
use super::tensor::{NAME_BYTES_MAX, TensorHead};
use super::wire::{Walker, WireField};

/// Maximum bytes of all names and their entries together.
const NAMES_BYTES_MAX: u64 = 64 * MIB;
/// Bytes of memory that the entries of one parameter take, beside its name. In a file, a parameter
/// can take two bytes.
const ENTRY_BYTES: u64 = 128;

/// Parameter names of a model and output names of its main graph.
#[derive(Default)]
pub(super) struct ParameterNames {
    /// Number of parameters of each name.
    parameters: HashMap<Vec<u8>, u32>,
    outputs: HashSet<Vec<u8>>,
    graphs: usize,
    bytes: u64,
}

impl ParameterNames {
    /// Reads the names of the whole model.
    pub(super) fn collect(walker: &mut Walker) -> Result<ParameterNames> {
        let mut names = ParameterNames::default();
        nested::walk(walker, &mut |walker, visited| names.visit(walker, visited))?;
        if names.graphs == 0 {
            return Err(walker.damaged(0, "not an ONNX model: it has no graph"));
        }
        Ok(names)
    }

    /// Returns the name as text if a parameter of this name can be bound.
    pub(super) fn bindable(&self, name: &[u8]) -> Option<String> {
        let once = self.parameters.get(name).is_some_and(|&count| count == 1);
        let text = std::str::from_utf8(name).ok()?;
        (once && !text.is_empty()).then(|| text.to_owned())
    }

    /// Returns true if the main graph has this output.
    pub(super) fn is_output(&self, name: &[u8]) -> bool {
        self.outputs.contains(name)
    }

    /// Counts the names in a field. Returns true if the message in it can have further ones.
    fn visit(&mut self, walker: &mut Walker, visited: &VisitedField) -> Result<bool> {
        let VisitedField { parent, child, field } = visited;
        if *parent == MessageKind::MainGraph && field.number == graph::OUTPUT {
            self.count_output(walker, field)?;
        }
        let Some(child) = child else { return Ok(false) };
        self.graphs += usize::from(*child == MessageKind::MainGraph);
        if matches!(parent, MessageKind::MainGraph | MessageKind::Graph) {
            self.count_parameter(walker, field)?;
        }
        Ok(!matches!(child, MessageKind::MainTensor | MessageKind::Tensor | MessageKind::Sparse))
    }

    /// Counts a field of a graph if it is a parameter.
    fn count_parameter(&mut self, walker: &mut Walker, field: &WireField) -> Result<()> {
        let payload = field.payload.clone();
        let name = match field.number {
            graph::INITIALIZER => Some(TensorHead::read(walker, payload)?.name),
            graph::SPARSE_INITIALIZER => match last(walker, payload, sparse::VALUES)? {
                Some(values) => Some(TensorHead::read(walker, values)?.name),
                None => None,
            },
            graph::NODE => constant::read(walker, payload)?.map(|constant| constant.output),
            _ => None,
        };
        if let Some(name) = name {
            self.count_name(walker, field, &name)?;
            *self.parameters.entry(name).or_default() += 1;
        }
        Ok(())
    }

    fn count_output(&mut self, walker: &mut Walker, field: &WireField) -> Result<()> {
        if let Some(name) = last(walker, field.payload.clone(), 1)? {
            let name = walker.bytes(name, NAME_BYTES_MAX)?;
            self.count_name(walker, field, &name)?;
            self.outputs.insert(name);
        }
        Ok(())
    }

    fn count_name(&mut self, walker: &Walker, field: &WireField, name: &[u8]) -> Result<()> {
        self.bytes += name.len() as u64 + ENTRY_BYTES;
        if self.bytes > NAMES_BYTES_MAX {
            return Err(walker
                .damaged(field.whole.start, "too many parameters, or names that are too long"));
        }
        Ok(())
    }
}

/// Returns the payload of the last field `number` of a message, which is the one that counts.
fn last(walker: &mut Walker, range: Range<u64>, number: u32) -> Result<Option<Range<u64>>> {
    let mut at = range.start;
    let mut found = None;
    while at < range.end {
        let field = walker.field(at, range.end)?;
        at = field.whole.end;
        if field.is(number, WIRE_BYTES) {
            found = Some(field.payload);
        }
    }
    Ok(found)
}
