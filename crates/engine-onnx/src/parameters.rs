//! Parameters are bound only to a graph that means them. The library itself believes what it is given: an array of
//! another type or shape than the graph's would be read past its end.

use std::collections::HashMap;
use std::path::Path;

use base::{Error, Result};
use engine::BoundTensor;

use crate::publish::initializers;

/// Checks that `bound` is what the graph at `path` wants: every one of them an initialiser of that name, type and
/// shape, and every initialiser that lies in another file among them (else the library would map that file, and
/// its pages would be read in by the threads that serve). Nothing bound is in order: then the library places
/// everything itself.
///
/// # Errors
/// `InvalidArgument` naming the first parameter that is wrong; those of reading the graph.
pub(crate) fn check(path: &Path, bound: &[BoundTensor]) -> Result<()> {
    if bound.is_empty() {
        return Ok(());
    }
    let graph = initializers::read(path)?;
    let mut given: HashMap<&str, &BoundTensor> = HashMap::with_capacity(bound.len());
    for parameter in bound {
        if given.insert(&parameter.name, parameter).is_some() {
            return Err(Error::invalid(format!("parameter \"{}\" is given twice", parameter.name)));
        }
    }
    for wanted in &graph {
        match given.remove(wanted.name.as_str()) {
            Some(got) if wanted.dtype != Some(got.dtype) || wanted.dims != got.dims => {
                let dtype = wanted.dtype.map_or("another type", |dtype| dtype.name());
                return Err(Error::invalid(format!(
                    "parameter \"{}\" is {} of shape {:?}, the graph says {dtype} of shape {:?}",
                    wanted.name, got.dtype, got.dims, wanted.dims
                )));
            }
            None if wanted.external => {
                return Err(Error::invalid(format!("parameter \"{}\" of the graph is missing", wanted.name)));
            }
            _ => {}
        }
    }
    match given.keys().min() {
        Some(unknown) => Err(Error::invalid(format!("the graph has no parameter {unknown:?}"))),
        None => Ok(()),
    }
}
