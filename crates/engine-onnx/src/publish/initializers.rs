//! Reads a graph's parameters, to check the parameters that a session binds.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use base::{DType, Result};

use super::encode::WIRE_BYTES;
use super::names::ParameterNames;
use super::rearranged;
use super::schema::{self, graph, model};
use super::source::WALK_BYTES;
use super::tensor::TensorHead;
use super::wire::Walker;

/// An initialiser of the main graph, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Initializer {
    pub(crate) name: String,
    /// `None` for a type that Millpond does not have.
    pub(crate) dtype: Option<DType>,
    pub(crate) dims: Vec<usize>,
    /// True if its elements lie in another file.
    pub(crate) external: bool,
}

/// The parameters of a model.
pub(crate) struct GraphParameters {
    /// Parameters of the main graph.
    pub(crate) main: Vec<Initializer>,
    names: ParameterNames,
    rearranged: HashSet<String>,
}

impl GraphParameters {
    /// Returns true if only one parameter has the name, in the main graph and all graphs inside it.
    pub(crate) fn only(&self, name: &str) -> bool {
        self.names.bindable(name.as_bytes()).is_some()
    }

    /// Returns true if the library may change the shape of the main graph's parameter `name`.
    pub(crate) fn may_rearrange(&self, name: &str) -> bool {
        self.rearranged.contains(name)
    }
}

/// Reads the parameters of the model at `path`, without their elements.
///
/// # Errors
/// `DataLoss` if it is not protobuf or has no graph; I/O errors.
pub(crate) fn read(path: &Path) -> Result<GraphParameters> {
    let mut walker = Walker::open(path, WALK_BYTES, false)?;
    let names = ParameterNames::collect(&mut walker)?;
    let mut found = Vec::new();
    let whole = walker.whole();
    for graph in fields(&mut walker, whole, model::GRAPH)? {
        for tensor in fields(&mut walker, graph, graph::INITIALIZER)? {
            let head = TensorHead::read(&mut walker, tensor)?;
            found.push(Initializer {
                name: String::from_utf8_lossy(&head.name).into_owned(),
                dtype: schema::dtype(head.code),
                dims: head.dims.iter().map(|&dim| dim as usize).collect(),
                external: head.external.is_some(),
            });
        }
    }
    let rearranged = {
        let parameters: HashSet<&str> =
            found.iter().map(|parameter: &Initializer| parameter.name.as_str()).collect();
        rearranged::collect(&mut walker, &parameters)?
    };
    Ok(GraphParameters { main: found, names, rearranged })
}

/// Returns the payloads of the message fields `number` of the message in `range`.
fn fields(walker: &mut Walker, range: Range<u64>, number: u32) -> Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let field = walker.field(at, range.end)?;
        at = field.whole.end;
        if field.is(number, WIRE_BYTES) {
            found.push(field.payload);
        }
    }
    Ok(found)
}
