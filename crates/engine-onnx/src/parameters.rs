//! Checks parameters against the graph before they are bound. The library does not check them: it
//! would read past the end of an array whose type or shape differs from the graph's.

use std::collections::HashMap;
use std::path::Path;

use base::{Error, Result};
use engine::BoundTensor;

use crate::publish::initializers::{self, GraphParameters, Initializer};

/// Use of a parameter by a new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterBinding {
    /// The library reads it in the caller's memory.
    InPlace,
    /// The library makes a copy, whose shape it may change.
    Copied,
    /// The library reads its elements in the graph's file, and may change its shape.
    FromGraph,
}

/// Checks `bound` against the graph at `path`, and returns the binding of each. Every parameter
/// must be an initialiser of that name, type and shape. No other value in any graph of the model
/// may have the name, because the library binds every value of that name. Every initialiser that
/// lies in another file must be bound. Otherwise the library would map that file, and the serving
/// threads would read its pages. Binding nothing is valid: then the library places all parameters.
///
/// # Errors
/// `InvalidArgument` that names the first wrong parameter; the errors of reading the graph.
pub(crate) fn check(path: &Path, bound: &[BoundTensor]) -> Result<Vec<ParameterBinding>> {
    let mut bindings = vec![ParameterBinding::InPlace; bound.len()];
    if bound.is_empty() {
        return Ok(bindings);
    }
    let graph = initializers::read(path)?;
    let mut given: HashMap<&str, usize> = HashMap::with_capacity(bound.len());
    for (index, parameter) in bound.iter().enumerate() {
        if given.insert(&parameter.name, index).is_some() {
            return Err(Error::invalid(format!("parameter \"{}\" is given twice", parameter.name)));
        }
    }
    for wanted in &graph.main {
        let index = given.remove(wanted.name.as_str());
        match index.map(|index| &bound[index]) {
            Some(got) if wanted.dtype != Some(got.dtype) || wanted.dims != got.dims => {
                let dtype = wanted.dtype.map_or("another type", |dtype| dtype.name());
                return Err(Error::invalid(format!(
                    "parameter \"{}\" is {} of shape {:?}, the graph says {dtype} of shape {:?}",
                    wanted.name, got.dtype, got.dims, wanted.dims
                )));
            }
            Some(_) if !graph.only(&wanted.name) => {
                let name = &wanted.name;
                return Err(Error::invalid(format!(
                    "the graph gives the name \"{name}\" to several parameters"
                )));
            }
            None if wanted.external => {
                return Err(Error::invalid(format!(
                    "parameter \"{}\" of the graph is missing",
                    wanted.name
                )));
            }
            _ => {}
        }
        if let Some(index) = index {
            bindings[index] = binding(&graph, wanted);
        }
    }
    match given.keys().min() {
        Some(unknown) => Err(Error::invalid(format!("the graph has no parameter {unknown:?}"))),
        None => Ok(bindings),
    }
}

/// Returns the way in which the library gets a parameter.
fn binding(graph: &GraphParameters, parameter: &Initializer) -> ParameterBinding {
    if !graph.may_rearrange(&parameter.name) {
        ParameterBinding::InPlace
    } else if parameter.external {
        ParameterBinding::Copied
    } else {
        ParameterBinding::FromGraph
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::DType;
    use memory::{PoolConfig, SlotPool};
    use os::Rate;

    use super::*;
    use crate::publish::build::{ModelBuilder, Node};

    fn bound(name: &str, dims: &[usize]) -> BoundTensor {
        let config =
            PoolConfig { bytes_max: 16 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
        let region = SlotPool::new(config).unwrap().allocate(4096).unwrap();
        let bytes = 4 * dims.iter().product::<usize>();
        let region = Arc::new(region.freeze());
        BoundTensor {
            name: name.into(),
            dtype: DType::F32,
            dims: dims.into(),
            region,
            offset: 0,
            bytes,
        }
    }

    /// The library would bind the array to both, and read past its end for the larger one.
    #[test]
    fn a_name_that_occurs_twice_is_not_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("graph.onnx");
        let refusal = |model: ModelBuilder| {
            std::fs::write(&path, model.encode()).unwrap();
            check(&path, &[bound("w", &[2])])
        };
        let model = || ModelBuilder::new("twice", 17).floats("w", &[2], &[1.0, 2.0]);
        let accepted = refusal(model().floats("v", &[3], &[0.0; 3]));
        assert_eq!(accepted, Ok(vec![ParameterBinding::InPlace]));
        let error = refusal(model().floats("w", &[3], &[0.0; 3])).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument);
        assert!(error.message().contains("the name \"w\" to several parameters"), "{error}");
    }

    /// The library transposes or reshapes constants of operators that it moves a transpose past.
    #[test]
    fn a_parameter_that_may_change_is_not_bound_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("graph.onnx");
        let binding = |nodes: &[Node]| {
            let model = ModelBuilder::new("moved", 17).floats("w", &[2], &[1.0, 2.0]);
            let model = nodes.iter().cloned().fold(model, ModelBuilder::node);
            std::fs::write(&path, model.encode()).unwrap();
            check(&path, &[bound("w", &[2])]).unwrap()[0]
        };
        let turn = Node::new("Transpose", &["x"], &["a"]);
        let add = |value| Node::new("Add", &["a", value], &["y"]);
        let scaled = Node::new("DequantizeLinear", &["w", "s"], &["d"]);
        let renamed = Node::new("Identity", &["w"], &["i"]);
        let widened = Node::new("Cast", &["i"], &["c"]);
        let product = |value| Node::new("MatMul", &["a", value], &["y"]);
        let in_place = ParameterBinding::InPlace;
        assert_eq!(binding(&[add("w")]), in_place, "nothing moves");
        assert_eq!(binding(&[turn.clone(), product("w")]), in_place);
        assert_eq!(binding(&[turn.clone(), scaled.clone(), product("d")]), in_place);
        let renamed_and_widened = [turn.clone(), renamed.clone(), widened.clone(), product("c")];
        assert_eq!(binding(&renamed_and_widened), in_place);
        let from_graph = ParameterBinding::FromGraph;
        assert_eq!(binding(&[turn.clone(), add("w")]), from_graph);
        assert_eq!(binding(&[turn.clone(), scaled.clone(), add("d")]), from_graph);
        assert_eq!(binding(&[turn.clone(), add("d"), scaled]), from_graph, "not sorted");
        assert_eq!(binding(&[turn.clone(), renamed, widened, add("c")]), from_graph);
        let pool = Node::new("MaxPool", &["x"], &["a"]);
        assert_eq!(binding(&[pool, add("w")]), from_graph, "the pool may get another layout");
        assert_eq!(binding(&[turn, product("w").domain("own")]), from_graph);
    }
}
