//! Opens models: a SavedModel as it is, or a graph whose variables are bound to parameters of ours.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use base::{Error, Result};
use bytes::Bytes;
use engine::{BoundTensor, LoadRequest, Session, SignatureFile};

use crate::api::{RawOperation, RawOutput, TensorFlowLibrary};
use crate::generated::tensor_shape::Dim;
use crate::generated::{AssetFileDef, MetaGraphDef, TensorShape};
use crate::graph::{DecodedGraph, GraphVariable};
use crate::model_file::GraphTags;
use crate::opened::{Feeds, OpenedModel};
use crate::session::{CHANGED_KEY, LoadedModel, TABLES_KEY, TfSession};
use crate::signature::ReadSignatures;
use crate::tensor::TfTensor;
use crate::{element, model_file, signature};

/// Directory of a SavedModel with the checkpoint.
pub(crate) const VARIABLES_DIR: &str = "variables";
/// Prefix of the checkpoint's files in it.
const VARIABLES_PREFIX: &str = "variables";
/// Directory of a SavedModel with the files that its graph reads.
pub(crate) const ASSETS_DIR: &str = "assets";

/// Loads a SavedModel, with its variables bound to the parameters of `request` if it has any.
///
/// # Errors
/// `InvalidArgument` for settings of the signature, which a SavedModel states itself; the errors of
/// the model. Each names the path of the graph.
pub(crate) fn load(
    library: &'static TensorFlowLibrary,
    request: &LoadRequest,
) -> Result<Box<dyn Session>> {
    let with_path = |error: Error| {
        if error.message().contains(&*request.graph.to_string_lossy()) {
            error
        } else {
            error.context(request.graph.display())
        }
    };
    if request.options.signature != SignatureFile::default() {
        return Err(with_path(Error::invalid(
            "a SavedModel states its inputs and outputs: remove [signature] from millpond.toml",
        )));
    }
    let tags = GraphTags::of(&request.options.graph_tags);
    let meta = model_file::read(&request.graph, &tags)?;
    let read = signature::read(&meta).map_err(with_path)?;
    let loaded = open(library, &meta, &read, request).map_err(with_path)?;
    Ok(Box::new(TfSession::new(loaded, read).map_err(with_path)?))
}

/// Opens the graph: as it is, or with its variables bound to the parameters of `request`.
fn open(
    library: &'static TensorFlowLibrary,
    meta: &MetaGraphDef,
    read: &ReadSignatures,
    request: &LoadRequest,
) -> Result<LoadedModel> {
    let dir = request.graph.parent().filter(|_| request.graph.ends_with(model_file::NAME));
    let dir =
        dir.ok_or_else(|| Error::invalid("the file of a SavedModel is called saved_model.pb"))?;
    let graph = DecodedGraph::parse(meta.graph_def.clone())?;
    let reached = graph.reachable(roots(meta, read));
    let variables = graph.variables(&reached).variables;
    let initialised = graph.reachable(model_file::init_operation(meta));
    let initialises = |name: &str| graph.position(name).is_some_and(|at| initialised[at]);
    let mut metadata = BTreeMap::new();
    // Variables that only the initialisation assigns to do not change afterwards.
    let served = graph.reachable(tensors(read));
    let changes =
        [(CHANGED_KEY, graph.assigned(&served)), (TABLES_KEY, graph.table_writers(&served))];
    for (key, names) in changes.into_iter().filter(|(_, names)| !names.is_empty()) {
        metadata.insert(key.to_owned(), names.join(", "));
    }
    let copies_outputs = graph.has_reference_variables(&reached);
    let model = if request.parameters.is_empty() {
        OpenedModel::load(library, dir, &request.options)?
    } else {
        let checkpoint = checkpoint(meta, dir);
        // The checkpoint or the initialisation gives the other variables their values.
        let lacks = |variable: &GraphVariable| {
            checkpoint.is_none()
                && element::from_tensorflow(variable.dtype)
                    .is_some_and(|dtype| dtype.bits().is_some())
                && !initialises(&variable.name)
        };
        let pairs = matched(&variables, &request.parameters, lacks)?;
        let changed = graph.assigned(&initialised);
        open_bound(library, meta, &pairs, checkpoint, request, &changed)?
    };
    let region = |parameter: &BoundTensor| {
        let start = parameter.as_slice().as_ptr().addr();
        start..start + parameter.bytes
    };
    let mut regions: Vec<Range<usize>> = request.parameters.iter().map(region).collect();
    regions.sort_unstable_by_key(|region| (region.start, region.end));
    Ok(LoadedModel { model, regions, copies_outputs, metadata })
}

/// Lists the tensors and operations that a loaded model uses.
pub(crate) fn roots<'a>(
    meta: &'a MetaGraphDef,
    read: &'a ReadSignatures,
) -> impl Iterator<Item = &'a str> {
    tensors(read).chain(model_file::init_operation(meta))
}

/// Lists the tensors of all signatures.
fn tensors(read: &ReadSignatures) -> impl Iterator<Item = &str> {
    let signatures = read.signatures.iter();
    let tensors =
        signatures.flat_map(|named| named.input_tensors.iter().chain(&named.output_tensors));
    tensors.map(String::as_str)
}

/// Opens a graph with its variables in the regions of `request`. The initialisation may assign to
/// the variables `changed`.
fn open_bound(
    library: &'static TensorFlowLibrary,
    meta: &MetaGraphDef,
    pairs: &[(&GraphVariable, &BoundTensor)],
    checkpoint: Option<Checkpoint<'_>>,
    request: &LoadRequest,
    changed: &[String],
) -> Result<OpenedModel> {
    let dir = request.graph.parent().unwrap_or(Path::new("."));
    let model = OpenedModel::import(library, &meta.graph_def)?;
    let mut assignments = Vec::with_capacity(pairs.len());
    for (number, &(variable, parameter)) in pairs.iter().enumerate() {
        let place = format!("millpond/value_{number}");
        model.add("Placeholder", &place, &[], Some(variable.dtype))?;
        let handle = model.output(&variable.name)?;
        let place = model.output(&place)?;
        let name = format!("millpond/assign_{number}");
        let operation =
            model.add("AssignVariableOp", &name, &[handle, place], Some(variable.dtype))?;
        assignments.push(ParameterAssignment { variable, parameter, place, operation });
    }
    let model = model.start(&request.options)?;
    let assets = AssetPaths::of(&model, meta, dir);
    if let Some(checkpoint) = checkpoint {
        let mut feeds = assets.feeds(&model)?;
        let prefix = text(library, &checkpoint.prefix)?;
        feeds.push(model.output(checkpoint.prefix_tensor)?, prefix);
        model.prepare(&feeds, &[], &[model.operation(checkpoint.restore)?])?;
    }
    // The values in the regions replace those of the checkpoint.
    assign(&model, assignments.iter())?;
    if let Some(init) = model_file::init_operation(meta) {
        model.prepare(&assets.feeds(&model)?, &[], &[model.operation(init)?])?;
        // The publisher read the parameters after an initialisation. If it adds to a variable, it
        // must not add a second time.
        assign(&model, assignments.iter().filter(|one| changed.contains(&one.variable.name)))?;
    }
    seal(pairs);
    Ok(model)
}

/// Operation that gives a variable the value of its parameter.
struct ParameterAssignment<'a> {
    variable: &'a GraphVariable,
    parameter: &'a BoundTensor,
    /// Place of the value.
    place: RawOutput,
    operation: *mut RawOperation,
}

/// Gives variables the values of their parameters.
fn assign<'a>(
    model: &OpenedModel,
    assignments: impl Iterator<Item = &'a ParameterAssignment<'a>>,
) -> Result<()> {
    let mut feeds = Feeds::default();
    let mut operations = Vec::new();
    for assignment in assignments {
        let ParameterAssignment { variable, parameter, place, operation } = assignment;
        let tensor = if variable.assigned {
            TfTensor::copy_of_parameter(model.library, parameter)?
        } else {
            TfTensor::of_parameter(model.library, parameter)?
        };
        feeds.push(*place, tensor);
        operations.push(*operation);
    }
    // TensorFlow refuses a run without operations.
    if operations.is_empty() {
        return Ok(());
    }
    model.prepare(&feeds, &[], &operations).map(drop)
}

/// A checkpoint beside a graph.
pub(crate) struct Checkpoint<'a> {
    /// Path of its files without their endings.
    pub(crate) prefix: String,
    /// Tensor that takes the path.
    pub(crate) prefix_tensor: &'a str,
    /// Operation that reads the checkpoint.
    pub(crate) restore: &'a str,
}

/// Returns the checkpoint in the model's directory, if there is one.
pub(crate) fn checkpoint<'a>(meta: &'a MetaGraphDef, dir: &Path) -> Option<Checkpoint<'a>> {
    let saver = meta.saver_def.as_ref().filter(|saver| !saver.restore_op_name.is_empty())?;
    let prefix = dir.join(VARIABLES_DIR).join(VARIABLES_PREFIX);
    prefix.with_extension("index").exists().then(|| Checkpoint {
        prefix: prefix.to_string_lossy().into_owned(),
        prefix_tensor: &saver.filename_tensor_name,
        restore: &saver.restore_op_name,
    })
}

/// Pairs variables with their parameters.
///
/// # Errors
/// `InvalidArgument` for a parameter that is not a variable, has another type or shape, or comes
/// twice. Also for a variable without a parameter, if `lacks` is true for it.
fn matched<'a>(
    variables: &'a [GraphVariable],
    parameters: &'a [BoundTensor],
    lacks: impl Fn(&GraphVariable) -> bool,
) -> Result<Vec<(&'a GraphVariable, &'a BoundTensor)>> {
    let mut given: HashMap<&str, &BoundTensor> = HashMap::with_capacity(parameters.len());
    for parameter in parameters {
        if given.insert(&parameter.name, parameter).is_some() {
            return Err(Error::invalid(format!("parameter \"{}\" is given twice", parameter.name)));
        }
    }
    let mut pairs = Vec::with_capacity(parameters.len());
    for variable in variables {
        let name = &variable.name;
        match given.remove(name.as_str()) {
            Some(parameter) => {
                let fits = element::from_tensorflow(variable.dtype) == Some(parameter.dtype)
                    && fits(variable.shape.as_ref(), &parameter.dims);
                if !fits {
                    return Err(Error::invalid(format!(
                        "parameter \"{name}\" is {} of shape {:?}, which the graph's variable is not",
                        parameter.dtype, parameter.dims
                    )));
                }
                pairs.push((variable, parameter));
            }
            None if !lacks(variable) => {}
            None => {
                return Err(Error::invalid(format!(
                    "parameter \"{name}\" of the graph is missing"
                )));
            }
        }
    }
    match given.keys().min() {
        Some(unknown) => Err(Error::invalid(format!("the graph has no parameter {unknown:?}"))),
        None => Ok(pairs),
    }
}

fn fits(shape: Option<&TensorShape>, dims: &[usize]) -> bool {
    let Some(shape) = shape.filter(|shape| !shape.unknown_rank) else { return true };
    let equal = |(wanted, got): (&Dim, &usize)| {
        usize::try_from(wanted.size).map_or(true, |wanted| wanted == *got)
    };
    shape.dim.len() == dims.len() && shape.dim.iter().zip(dims).all(equal)
}

/// Makes the processor refuse writes to the regions that TensorFlow points into.
fn seal(pairs: &[(&GraphVariable, &BoundTensor)]) {
    let mut sealed = Vec::new();
    for (_, parameter) in pairs.iter().filter(|(variable, _)| !variable.assigned) {
        let address = parameter.region.as_ptr();
        if sealed.contains(&address) {
            continue;
        }
        sealed.push(address);
        if let Err(error) = parameter.region.seal() {
            tracing::warn!(%error, "a model's parameters stay writable");
        }
    }
}

/// Paths of the files that the graph reads, by tensor.
struct AssetPaths(Vec<(String, String)>);

impl AssetPaths {
    fn of(model: &OpenedModel, meta: &MetaGraphDef, dir: &Path) -> AssetPaths {
        let path = |asset: &AssetFileDef| {
            let tensor = asset.tensor_info.as_ref().map(|info| info.name.clone())?;
            let path = dir.join(ASSETS_DIR).join(&asset.filename);
            Some((tensor, path.to_string_lossy().into_owned()))
        };
        let paths = meta.asset_file_def.iter().filter_map(path);
        // A graph that was cut to its signatures has no tensor for an asset that none of them
        // reads.
        AssetPaths(paths.filter(|(tensor, _)| model.output(tensor).is_ok()).collect())
    }

    fn feeds(&self, model: &OpenedModel) -> Result<Feeds> {
        let mut feeds = Feeds::default();
        for (tensor, path) in &self.0 {
            feeds.push(model.output(tensor)?, text(model.library, path)?);
        }
        Ok(feeds)
    }
}

/// Makes a scalar of one string.
fn text(library: &'static TensorFlowLibrary, text: &str) -> Result<TfTensor> {
    TfTensor::of_strings(library, &[], &[Bytes::copy_from_slice(text.as_bytes())])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::DType;
    use engine::LibrarySearch;
    use memory::{PoolConfig, SlotPool};
    use os::Rate;
    use prost::Message;

    use super::*;
    use crate::TensorFlowEngine;
    use crate::api::RawOutput;
    use crate::generated::attr_value::Value;
    use crate::generated::{
        AttrValue, GraphDef, MetaInfoDef, NodeDef, SavedModel, SignatureDef, TensorInfo,
    };

    const BYTES: usize = 64 << 20;
    const FLOAT: i32 = 1;

    /// A SavedModel whose only output is the variable "table".
    fn saved_model() -> Vec<u8> {
        let node = |name: &str, op: &str, input: &[&str], attrs: &[(&str, Value)]| {
            let attr = |(name, value): &(&str, Value)| {
                ((*name).to_owned(), AttrValue { value: Some(value.clone()) })
            };
            let node = NodeDef {
                name: name.to_owned(),
                op: op.to_owned(),
                input: input.iter().map(|&name| name.to_owned()).collect(),
                attr: attrs.iter().map(attr).collect(),
                ..NodeDef::default()
            };
            Bytes::from(node.encode_to_vec())
        };
        let size = Dim { size: (BYTES / 4) as i64, ..Dim::default() };
        let shape = Value::Shape(TensorShape { dim: vec![size], unknown_rank: false });
        let dtype = ("dtype", Value::Type(FLOAT));
        let graph = GraphDef {
            node: vec![
                node("table", "VarHandleOp", &[], &[dtype.clone(), ("shape", shape)]),
                node("read", "ReadVariableOp", &["table"], &[dtype]),
            ],
            ..GraphDef::default()
        };
        let output = TensorInfo { name: "read:0".into(), dtype: FLOAT, ..TensorInfo::default() };
        let signature =
            SignatureDef { outputs: [("y".to_owned(), output)].into(), ..SignatureDef::default() };
        let info = MetaInfoDef { tags: vec!["serve".into()], ..MetaInfoDef::default() };
        let meta = MetaGraphDef {
            meta_info_def: Some(info),
            graph_def: graph.encode_to_vec().into(),
            signature_def: [("serving_default".to_owned(), signature)].into(),
            ..MetaGraphDef::default()
        };
        SavedModel { saved_model_schema_version: 1, meta_graphs: vec![meta.encode_to_vec().into()] }
            .encode_to_vec()
    }

    #[test]
    fn a_variable_is_the_region() {
        let search = LibrarySearch::around_process(None, None);
        if let Err(error) = TensorFlowEngine::find_library(&search) {
            eprintln!("SKIPPED: {error}");
            return;
        }
        let library = TensorFlowEngine::new(search).open().unwrap();
        let config =
            PoolConfig { bytes_max: 80 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
        let region = Arc::new(SlotPool::new(config).unwrap().allocate(BYTES).unwrap().freeze());
        let parameter = BoundTensor {
            name: "table".into(),
            dtype: DType::F32,
            dims: vec![BYTES / 4],
            region: region.clone(),
            offset: 0,
            bytes: BYTES,
        };
        let dir = tempfile::tempdir().unwrap();
        let graph = dir.path().join(model_file::NAME);
        std::fs::write(&graph, saved_model()).unwrap();
        let request = LoadRequest { graph, parameters: vec![parameter], ..LoadRequest::default() };
        let meta = model_file::read(&request.graph, &GraphTags::of(&[])).unwrap();
        let read = signature::read(&meta).unwrap();
        let loaded = open(library, &meta, &read, &request).unwrap();
        let value = RawOutput { operation: loaded.model.operation("read").unwrap(), index: 0 };
        let got = loaded.model.prepare(&Feeds::default(), &[value], &[]).unwrap();
        assert_eq!(got[0].address(), region.as_ptr().addr());
        // An output is a copy, so that a slow client does not keep the region.
        let session = TfSession::new(loaded, read).unwrap();
        let outputs = session.run(&[], &[]).unwrap();
        assert_ne!(outputs[0].tensor.bytes().unwrap().as_ptr(), region.as_ptr());
        drop((got, session, request));
        assert_eq!(Arc::strong_count(&region), 1);
    }
}
