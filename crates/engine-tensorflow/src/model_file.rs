//! Reads `saved_model.pb`.

use std::collections::BTreeSet;
use std::path::Path;

use base::{Error, Result};
use bytes::Bytes;
use prost::Message;

use crate::generated::{AssetFileDef, MetaGraphDef, SavedModel, TensorInfo};

/// File name of a SavedModel's graph.
pub(crate) const NAME: &str = "saved_model.pb";
/// Tag of the graph that is served by default.
const SERVING_TAG: &str = "serve";
/// Maximum bytes of the file: the maximum of a message in this format.
const BYTES_MAX: u64 = 2 << 30;
/// Name of the signature whose output is the operation that initialises tables.
pub(crate) const INIT_SIGNATURE: &str = "__saved_model_init_op";
/// Names of signatures that no request runs.
pub(crate) const OWN_SIGNATURES: [&str; 2] = [INIT_SIGNATURE, "__saved_model_train_op"];
/// Collections that name the initialising operation in models of version 1, best first.
pub(crate) const INIT_COLLECTIONS: [&str; 2] = ["saved_model_main_op", "legacy_init_op"];

/// Collection that lists the assets in models of version 1.
const ASSETS_COLLECTION: &str = "saved_model_assets";

/// Tags of the graph that is opened. A SavedModel may have several graphs, each with a set of tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphTags(Vec<String>);

impl GraphTags {
    /// Returns the tags of a model's settings. Without any, returns the tag of the graph for
    /// serving.
    pub(crate) fn of(tags: &[String]) -> GraphTags {
        match tags {
            [] => GraphTags(vec![SERVING_TAG.to_owned()]),
            tags => GraphTags(tags.to_vec()),
        }
    }

    /// Lists the tags.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns true if `tags` is the same set, as TensorFlow demands.
    fn are(&self, tags: &[String]) -> bool {
        let set = |tags: &[String]| tags.iter().cloned().collect::<BTreeSet<String>>();
        set(&self.0) == set(tags)
    }
}

/// Reads the graph with these tags from the file at `path`.
///
/// # Errors
/// `NotFound`, `InvalidArgument` for a directory, `DataLoss` for a damaged file; the errors of
/// [`parse`].
pub(crate) fn read(path: &Path, tags: &GraphTags) -> Result<MetaGraphDef> {
    let file = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?;
    if file.len() > BYTES_MAX {
        return Err(Error::data_loss(format!(
            "{}: larger than a SavedModel can be",
            path.display()
        )));
    }
    let bytes = os::read_regular_file(path, BYTES_MAX).map_err(|e| Error::io(path, &e))?;
    parse(Bytes::from(bytes), tags).map_err(|e| e.context(path.display()))
}

/// Finds the graph with these tags in the bytes of the file.
///
/// # Errors
/// `DataLoss` if they are not a SavedModel, `InvalidArgument` if it has no graph with these tags.
pub(crate) fn parse(bytes: Bytes, tags: &GraphTags) -> Result<MetaGraphDef> {
    let damaged = |e: prost::DecodeError| Error::data_loss("is not a SavedModel").caused_by(e);
    let saved = SavedModel::decode(bytes).map_err(damaged)?;
    let mut found = Vec::new();
    for bytes in saved.meta_graphs {
        let mut meta = MetaGraphDef::decode(bytes).map_err(damaged)?;
        let of_graph = meta.meta_info_def.as_ref().map_or(&[][..], |info| &info.tags[..]);
        if tags.are(of_graph) {
            meta.asset_file_def.extend(collected_assets(&meta).map_err(damaged)?);
            return Ok(meta);
        }
        found.push(format!("{{{}}}", of_graph.join(", ")));
    }
    if found.is_empty() {
        Err(Error::data_loss("is not a SavedModel: it has no graph"))
    } else {
        Err(Error::invalid(format!(
            "has no graph with exactly the tags {{{}}}, but graphs with {}: name one of these with \
             saved-model-tags in the model's millpond.toml (--saved_model_tags of `millpond tfs`, --tags of \
             `millpond publish`), or export the model for serving",
            tags.0.join(", "),
            found.join(", ")
        )))
    }
}

/// Returns the assets of a model of version 1, which lists them in a collection only.
fn collected_assets(meta: &MetaGraphDef) -> Result<Vec<AssetFileDef>, prost::DecodeError> {
    let list = meta.collection_def.get(ASSETS_COLLECTION).and_then(|list| list.any_list.as_ref());
    match list {
        Some(list) if meta.asset_file_def.is_empty() => {
            list.value.iter().map(|packed| AssetFileDef::decode(packed.value.clone())).collect()
        }
        _ => Ok(Vec::new()),
    }
}

/// Returns the name of the operation that initialises tables, if there is one.
pub(crate) fn init_operation(meta: &MetaGraphDef) -> Option<&str> {
    let signature = meta.signature_def.get(INIT_SIGNATURE);
    let named = signature.and_then(|signature| signature.outputs.get(INIT_SIGNATURE));
    let collected = || {
        let lists = INIT_COLLECTIONS.iter().filter_map(|key| meta.collection_def.get(*key));
        lists.filter_map(|list| list.node_list.as_ref()?.value.first()).next()
    };
    named
        .map(|info| &info.name)
        .or_else(collected)
        .map(|name| operation_of(name))
        .filter(|name| !name.is_empty())
}

/// Returns the operation of a tensor's name such as "x:0" or "^x".
pub(crate) fn operation_of(tensor: &str) -> &str {
    let name = tensor.strip_prefix('^').unwrap_or(tensor);
    name.split(':').next().unwrap_or(name)
}

/// Returns true if the tensor is a plain one, and not made of several.
pub(crate) fn is_plain(info: &TensorInfo) -> bool {
    !info.name.is_empty() && info.coo_sparse.is_none() && info.composite_tensor.is_empty()
}
