//! The TensorFlow engine: SavedModels through TensorFlow's C interface, behind the traits of
//! `engine`.
//!
//! The library is that of the Python package (`make tensorflow`). It is opened at run time, with
//! the first SavedModel; a server without such models never loads it.
//!
//! Rules for every model, and their reasons:
//! * A run uses the calling thread: operators run one after the other there (`inter_op` -1), and an
//!   operator has one thread unless the settings request more. Millpond's workers are the
//!   parallelism.
//! * Feeds and fetches of a signature have one order. TensorFlow keeps a compiled graph for every
//!   order and every set of outputs, so the number of sets is bounded too.
//! * Inputs and outputs are not copied: TensorFlow holds the memory that it points into, and an
//!   output holds TensorFlow's buffer.
//! * Variables are bound to the caller's regions: a run of `AssignVariableOp` over a tensor that
//!   points there keeps the pointer. Variables that a run may assign to are copied instead, and
//!   keep their state from request to request, as in TensorFlow.
//!
//! # Modules
//! * The library: `library` finds it, `api` calls it, `fault` turns statuses into errors.
//! * A model: `model_file`, `generated`, `graph`, `rewrite`, `load`, `opened`, `signature`.
//! * Runs: `session`, `tensor`, `element`.
//! * Conversion: `publish`, `copies`.
//!
//! Layer: `engine-tensorflow` implements `engine`; only `server`, `cli` and `bench` know it exists.
#![allow(unsafe_code)]

mod api;
mod copies;
mod element;
mod fault;
mod generated;
mod graph;
mod library;
mod load;
mod model_file;
mod opened;
pub mod publish;
mod rewrite;
mod session;
mod signature;
mod tensor;

pub use library::TensorFlowEngine;

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    use std::collections::HashSet;

    use base::Result;
    use bytes::Bytes;

    use crate::graph::DecodedGraph;
    use crate::model_file::GraphTags;
    use crate::rewrite::GraphChanges;
    use crate::{load, model_file, signature};

    /// Reads and rewrites the bytes of a `saved_model.pb` as publishing does, without TensorFlow.
    /// Returns the number of nodes that stay.
    ///
    /// # Errors
    /// Returns the errors of publishing: `DataLoss` for a damaged file, `InvalidArgument` for one
    /// without a signature.
    pub fn saved_model(bytes: &[u8]) -> Result<usize> {
        let meta = model_file::parse(Bytes::copy_from_slice(bytes), &GraphTags::of(&[]))?;
        let read = signature::read(&meta)?;
        let graph = DecodedGraph::parse(meta.graph_def.clone())?;
        let reached = graph.reachable(load::roots(&meta, &read));
        let uses = graph.variables(&reached);
        let mut changes = GraphChanges::default();
        changes
            .convert_references(&graph, &reached, &HashSet::new(), |op| op.starts_with("Assign"));
        changes.constants(&graph, &reached, &HashSet::new());
        let rewritten = changes.encode(&graph, &reached, &uses.gathers)?;
        Ok(rewritten.node.len())
    }
}
