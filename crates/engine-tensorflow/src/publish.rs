//! Publishes SavedModels: the values of variables go to the weights file, and a graph that is cut
//! to its signatures to the graph file.
//!
//! TensorFlow loads the model and returns the values, so every form of checkpoint can be read. This
//! runs in a process of its own, never in the server.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use bytes::Bytes;
use engine::SessionOptions;
use engine::layout::{Artifact, LayoutManifest, MANIFEST_NAME};
use engine::publish::{
    LayoutNames, LayoutWriter, PublishOptions, PublishProgress, Published, VersionClaim,
    WriteOptions, copy_directory, copy_requests,
};
use prost::Message;

use crate::api::{RawOutput, TensorFlowLibrary};
use crate::copies::copy_tensors;
use crate::element;
use crate::generated::{MetaGraphDef, OperatorList, SavedModel};
use crate::graph::{DecodedGraph, REFERENCE_VARIABLES, VARIABLE, VariableUses};
use crate::library::{NAME, TensorFlowEngine};
use crate::load::{ASSETS_DIR, VARIABLES_DIR, checkpoint, roots};
use crate::model_file::{self, GraphTags, INIT_COLLECTIONS, operation_of};
use crate::opened::{Feeds, OpenedModel};
use crate::rewrite::GraphChanges;
use crate::signature::{self, ReadSignatures};
use crate::tensor::TfTensor;

/// Names of the layout's files.
const NAMES: LayoutNames = LayoutNames { engine: NAME, graph: model_file::NAME };

/// Returns true if `source` is a SavedModel, or a version that was published from one.
pub fn is_source(source: &Path) -> bool {
    if source.is_dir() {
        source.join(model_file::NAME).exists()
    } else {
        source.ends_with(model_file::NAME)
    }
}

/// A SavedModel, or a version that was published from one, and the graph to take from it.
#[derive(Clone, Copy, Debug)]
pub struct SavedModelGraph<'a> {
    /// Directory of the SavedModel, or the file `saved_model.pb` in it.
    pub source: &'a Path,
    /// Tags of the graph; empty for the graph with the tag "serve".
    pub tags: &'a [String],
}

/// Publishes a graph of a SavedModel, or copies a published one and checks every hash. Renames the
/// finished version into place in one step. After an error, no new file remains.
///
/// # Errors
/// `AlreadyExists` for an existing version; `NotFound`, `DataLoss` or `InvalidArgument` if the
/// source is missing, damaged or wrong; I/O errors; the errors of opening TensorFlow.
pub fn publish(
    engine: &TensorFlowEngine,
    options: &PublishOptions,
    tags: &[String],
    progress: &mut dyn FnMut(PublishProgress),
) -> Result<Published> {
    let claim = VersionClaim::new(&options.dest_root, options.version)?;
    let write = WriteOptions { rate: options.rate, direct: options.direct };
    let graph = SavedModelGraph { source: &options.source, tags };
    let manifest = convert_into(engine, graph, claim.dir(), write, progress)?;
    let (version, dir) = claim.commit()?;
    Ok(Published { version, dir, manifest })
}

/// Converts a graph into the layout inside the existing directory `dir`.
///
/// # Errors
/// As [`publish`]. Files written so far stay in `dir`, without a manifest.
pub fn convert_into(
    engine: &TensorFlowEngine,
    graph: SavedModelGraph<'_>,
    dir: &Path,
    options: WriteOptions,
    progress: &mut dyn FnMut(PublishProgress),
) -> Result<LayoutManifest> {
    let SavedModelGraph { source, tags } = graph;
    let source = if source.ends_with(model_file::NAME) && source.is_file() {
        source.parent().map(Path::to_owned).unwrap_or_default()
    } else {
        source.to_owned()
    };
    let mut writer = LayoutWriter::create(dir, NAMES, options)?;
    let mut meter =
        ByteMeter { progress, state: PublishProgress { bytes_done: 0, bytes_total: 0 } };
    if source.join(MANIFEST_NAME).exists() {
        if !tags.is_empty() {
            model_file::read(&source.join(model_file::NAME), &GraphTags::of(tags))?;
        }
        return copy_published(&source, dir, writer, &mut meter);
    }
    let library = engine.open()?;
    let model =
        SourceModel::open(library, &source, tags).map_err(|e| e.context(source.display()))?;
    copy_requests(&source, dir)?;
    copy_directory(&source.join(ASSETS_DIR), &dir.join(ASSETS_DIR))?;
    if model.needs_checkpoint {
        copy_directory(&source.join(VARIABLES_DIR), &dir.join(VARIABLES_DIR))?;
    }
    meter.state.bytes_total = model.parameters.iter().map(|it| it.bytes.len() as u64).sum();
    for parameter in &model.parameters {
        let name = &parameter.name;
        let dtype = parameter.dtype;
        writer.begin(name, dtype, &parameter.dims)?;
        writer.write(&parameter.bytes)?;
        writer.end()?;
        meter.add(parameter.bytes.len());
    }
    writer.finish(&model.graph_file)
}

struct ByteMeter<'a> {
    progress: &'a mut dyn FnMut(PublishProgress),
    state: PublishProgress,
}

impl ByteMeter<'_> {
    fn add(&mut self, bytes: usize) {
        self.state.bytes_done += bytes as u64;
        (self.progress)(self.state);
    }
}

/// Copies a published version and compares every hash.
fn copy_published(
    source: &Path,
    dir: &Path,
    mut writer: LayoutWriter,
    meter: &mut ByteMeter<'_>,
) -> Result<LayoutManifest> {
    let artifact = Artifact::open(source)?;
    if artifact.manifest.engine != NAME {
        return Err(Error::unimplemented(format!(
            "{}: published for the engine \"{}\", not for TensorFlow",
            source.display(),
            artifact.manifest.engine
        )));
    }
    copy_requests(source, dir)?;
    for directory in [ASSETS_DIR, VARIABLES_DIR] {
        copy_directory(&source.join(directory), &dir.join(directory))?;
    }
    meter.state.bytes_total = artifact.parameter_bytes();
    copy_tensors(&artifact, &mut writer, &mut |bytes| meter.add(bytes))?;
    let path = artifact.graph();
    let graph = std::fs::read(&path).map_err(|e| Error::io(&path, &e))?;
    let manifest = writer.finish(&graph)?;
    if manifest.graph.blake3 == artifact.manifest.graph.blake3 {
        Ok(manifest)
    } else {
        let _ = std::fs::remove_file(dir.join(MANIFEST_NAME));
        Err(Error::data_loss(format!("{}: its hash is not the manifest's", path.display())))
    }
}

struct SourceParameter {
    name: String,
    dtype: base::DType,
    dims: Vec<usize>,
    bytes: Bytes,
}

/// Content of a published version, made from a SavedModel.
struct SourceModel {
    parameters: Vec<SourceParameter>,
    /// The bytes of the version's graph file.
    graph_file: Vec<u8>,
    /// True if a part of its state can only be restored from the checkpoint.
    needs_checkpoint: bool,
}

impl SourceModel {
    /// Reads a SavedModel, loads it, and plans the changes that make its parameters bindable.
    fn open(
        library: &'static TensorFlowLibrary,
        dir: &Path,
        tags: &[String],
    ) -> Result<SourceModel> {
        let path: PathBuf = dir.join(model_file::NAME);
        let meta = model_file::read(&path, &GraphTags::of(tags))?;
        let read = signature::read(&meta)?;
        let graph = DecodedGraph::parse(meta.graph_def.clone())?;
        let operators = Operators::of(library)?;
        let served = graph.reachable(roots(&meta, &read));
        let uses = graph.variables(&served);
        let options = SessionOptions { graph_tags: tags.to_vec(), ..SessionOptions::default() };
        let model = OpenedModel::load(library, dir, &options)?;

        let fetched = fetched(&read);
        let mut changes = GraphChanges::default();
        let stay = changes
            .convert_references(&graph, &served, &fetched, |op| operators.takes_reference(op));
        let values = Values::read(&model, &uses)?;
        let restore = meta.saver_def.as_ref().map(|saver| saver.restore_op_name.as_str());
        let restored = graph.reachable(restore);
        let is_restored =
            |name: &&String| graph.position(name).is_some_and(|position| restored[position]);
        let others = restored_otherwise(&graph, &served, &restored, &operators);
        let checkpoint = checkpoint(&meta, dir);
        let lacking = stay.iter().chain(&values.lacking).find(is_restored).is_some();
        let needs_checkpoint = checkpoint.is_some() && (lacking || others);
        let mut kept = served.clone();
        let mut parameters = values.parameters;
        parameters.extend(reference_parameters(&model, &changes.references)?);
        if let Some(checkpoint) = checkpoint.filter(|_| needs_checkpoint) {
            let more = [checkpoint.prefix_tensor, checkpoint.restore];
            kept = graph.reachable(roots(&meta, &read).chain(more));
            changes = GraphChanges::default();
            changes.convert_references(&graph, &kept, &fetched, |op| operators.takes_reference(op));
        }
        let fed: HashSet<&str> = fed(&meta, &read).collect();
        changes.constants(&graph, &served, &fed);
        parameters.extend(changes.constants.drain(..).map(|constant| SourceParameter {
            name: constant.name,
            dtype: constant.dtype,
            dims: constant.dims,
            bytes: constant.bytes,
        }));
        let graph_def = changes.encode(&graph, &kept, &uses.gathers)?;
        let graph_file = graph_file(meta, graph_def.encode_to_vec(), needs_checkpoint, |tensor| {
            graph.position(operation_of(tensor)).is_some_and(|at| kept[at])
        });
        Ok(SourceModel { parameters, graph_file, needs_checkpoint })
    }
}

/// Returns the operations that the runs of signatures fetch.
fn fetched(read: &ReadSignatures) -> HashSet<&str> {
    let tensors = read.signatures.iter().flat_map(|named| &named.output_tensors);
    tensors.map(|name| operation_of(name)).collect()
}

/// Lists the operations that runs feed.
fn fed<'a>(meta: &'a MetaGraphDef, read: &'a ReadSignatures) -> impl Iterator<Item = &'a str> {
    let assets = meta.asset_file_def.iter().filter_map(|asset| asset.tensor_info.as_ref());
    let inputs = read.signatures.iter().flat_map(|named| &named.input_tensors);
    assets.map(|info| operation_of(&info.name)).chain(inputs.map(|name| operation_of(name)))
}

/// Returns the graph file of a version. `keeps_saver` is true if a part of the state is restored
/// from the checkpoint. Assets stay if the graph has their tensors, as `has` says.
fn graph_file(
    meta: MetaGraphDef,
    graph_def: Vec<u8>,
    keeps_saver: bool,
    has: impl Fn(&str) -> bool,
) -> Vec<u8> {
    let asset = |asset: &crate::generated::AssetFileDef| {
        asset.tensor_info.as_ref().is_some_and(|info| has(&info.name))
    };
    let collections: BTreeMap<_, _> = meta
        .collection_def
        .into_iter()
        .filter(|(key, _)| INIT_COLLECTIONS.contains(&key.as_str()))
        .collect();
    let meta = MetaGraphDef {
        graph_def: graph_def.into(),
        saver_def: meta.saver_def.filter(|_| keeps_saver),
        collection_def: collections,
        asset_file_def: meta.asset_file_def.into_iter().filter(asset).collect(),
        meta_info_def: meta.meta_info_def,
        signature_def: meta.signature_def,
    };
    let saved = SavedModel {
        saved_model_schema_version: 1,
        meta_graphs: vec![meta.encode_to_vec().into()],
    };
    saved.encode_to_vec()
}

/// Returns true if a signature uses state other than variables that the checkpoint fills, such as a
/// table.
fn restored_otherwise(
    graph: &DecodedGraph,
    served: &[bool],
    restored: &[bool],
    operators: &Operators,
) -> bool {
    let both = |at: &usize| served[*at] && restored[*at];
    let mut nodes = (0..graph.nodes.len()).filter(both).map(|at| graph.nodes[at].op.as_str());
    nodes
        .any(|op| op != VARIABLE && !REFERENCE_VARIABLES.contains(&op) && operators.is_stateful(op))
}

/// Values of variables.
struct Values {
    parameters: Vec<SourceParameter>,
    /// Variables without a value, and those whose value has no fixed size.
    lacking: Vec<String>,
}

impl Values {
    fn read(model: &OpenedModel, uses: &VariableUses) -> Result<Values> {
        let mut lacking = Vec::new();
        let mut names = Vec::new();
        let mut ready = Vec::new();
        let mut reads = Vec::new();
        for (number, variable) in uses.variables.iter().enumerate() {
            let fixed = element::from_tensorflow(variable.dtype).filter(|it| it.bits().is_some());
            if fixed.is_none() {
                lacking.push(variable.name.clone());
                continue;
            }
            let handle = [model.output(&variable.name)?];
            let add = |kind: &str, what: &str, dtype| -> Result<RawOutput> {
                let name = format!("millpond/{what}_{number}");
                let operation = model.add(kind, &name, &handle, dtype)?;
                Ok(RawOutput { operation, index: 0 })
            };
            names.push(&variable.name);
            ready.push(add("VarIsInitializedOp", "ready", None)?);
            reads.push(add("ReadVariableOp", "read", Some(variable.dtype))?);
        }
        let mut parameters = Vec::new();
        let states = prepare(model, &ready)?;
        let mut chosen = Vec::new();
        for ((name, read), state) in names.into_iter().zip(reads).zip(states) {
            let state = state.into_tensor(|_| false)?;
            match state.bytes().and_then(|bytes| bytes.first()) {
                Some(1) => chosen.push((name, read)),
                _ => lacking.push(name.clone()),
            }
        }
        // One run for all: TensorFlow compiles a graph for each set of fetches.
        let fetches: Vec<RawOutput> = chosen.iter().map(|(_, read)| *read).collect();
        for ((name, _), tensor) in chosen.into_iter().zip(prepare(model, &fetches)?) {
            parameters.push(parameter(name, tensor)?);
        }
        Ok(Values { parameters, lacking })
    }
}

/// Returns the values of variables of version 1.
fn reference_parameters(
    model: &OpenedModel,
    names: &[(String, String)],
) -> Result<Vec<SourceParameter>> {
    let fetches: Vec<RawOutput> =
        names.iter().map(|(_, tensor)| model.output(tensor)).collect::<Result<_>>()?;
    let tensors = prepare(model, &fetches)?;
    names.iter().zip(tensors).map(|((name, _), tensor)| parameter(name, tensor)).collect()
}

fn prepare(model: &OpenedModel, fetches: &[RawOutput]) -> Result<Vec<TfTensor>> {
    if fetches.is_empty() {
        Ok(Vec::new())
    } else {
        Ok(model.prepare(&Feeds::default(), fetches, &[])?.into_vec())
    }
}

fn parameter(name: &str, tensor: TfTensor) -> Result<SourceParameter> {
    let tensor = tensor.into_tensor(|_| false)?;
    let bytes = tensor.bytes().cloned().unwrap_or_default();
    let dtype = tensor.dtype();
    let dims = tensor.shape().to_vec();
    Ok(SourceParameter { name: name.to_owned(), dtype, dims, bytes })
}

/// Facts about the operators of the library.
struct Operators {
    stateful: HashSet<String>,
    take_references: HashSet<String>,
}

impl Operators {
    /// Reads the list of operators from the library.
    fn of(library: &'static TensorFlowLibrary) -> Result<Operators> {
        let list = OperatorList::decode(library.operators())
            .map_err(|e| Error::internal("TensorFlow's list of operators").caused_by(e))?;
        let mut operators = Operators { stateful: HashSet::new(), take_references: HashSet::new() };
        for operator in list.op {
            if operator.input_arg.iter().any(|argument| argument.is_ref) {
                operators.take_references.insert(operator.name.clone());
            }
            if operator.is_stateful {
                operators.stateful.insert(operator.name);
            }
        }
        Ok(operators)
    }

    fn takes_reference(&self, op: &str) -> bool {
        self.take_references.contains(op)
    }

    fn is_stateful(&self, op: &str) -> bool {
        self.stateful.contains(op)
    }
}
