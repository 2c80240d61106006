//! Executes a conversion plan.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use engine::layout::{Artifact, LayoutManifest, MANIFEST_NAME};
use engine::publish::GraphWriter;

use super::external::ExternalRoots;
use super::plan::{ConversionPlan, GraphPiece, MovedParameter, ParameterBytes, plan};
use super::source::{COPY_BYTES, WALK_BYTES, WindowedFile};
use super::tensor::stream_typed;
use super::wire::Walker;
use super::{
    ENGINE_NAME, GRAPH_NAME, LayoutWriter, PublishProgress, SourceSummary, WriteOptions,
    layout_writer,
};

/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 4 << 20;

/// A source whose headers were read and checked, with its plan.
pub(super) struct Conversion {
    model: PathBuf,
    /// The opened model. Another file may take its path after the plan.
    walker: Walker,
    plan: ConversionPlan,
    /// Expected parameters, if the source is a published version.
    published: Option<LayoutManifest>,
}

impl Conversion {
    /// Reads the headers of `source` and plans its conversion.
    pub(super) fn open(source: &Path, direct: bool) -> Result<Conversion> {
        let meta = std::fs::metadata(source).map_err(|e| Error::io(source, &e))?;
        if !meta.is_dir() {
            return Conversion::plan(source.to_owned(), None, direct);
        }
        if source.join(MANIFEST_NAME).exists() {
            let artifact = Artifact::open(source)?;
            if artifact.manifest.engine != ENGINE_NAME {
                return Err(Error::unimplemented(format!(
                    "{}: published for the engine \"{}\"; only \"{ENGINE_NAME}\" can be published again",
                    source.display(),
                    artifact.manifest.engine
                )));
            }
            check_graph(&artifact, direct)?;
            return Conversion::plan(artifact.graph(), Some(artifact.manifest), direct);
        }
        let model = source.join(GRAPH_NAME);
        if !model.exists() {
            let mut reason =
                format!("{}: holds neither {GRAPH_NAME} nor a published version", source.display());
            if let Some(foreign) = engine::foreign::identify_dir(source) {
                reason = format!("{reason}: {foreign}");
            }
            return Err(Error::not_found(reason));
        }
        Conversion::plan(model, None, direct)
    }

    /// Plans the conversion of the graph `model`. `published` is the manifest if the source is a
    /// published version. Then every parameter of the manifest moves, also if it is small.
    ///
    /// # Errors
    /// `DataLoss` if the graph lacks a parameter of the manifest; the errors of [`plan`].
    fn plan(model: PathBuf, published: Option<LayoutManifest>, direct: bool) -> Result<Conversion> {
        let required: HashSet<String> = published
            .iter()
            .flat_map(|manifest| &manifest.tensors)
            .map(|tensor| tensor.name.clone())
            .collect();
        let mut walker = Walker::open(&model, WALK_BYTES, direct)?;
        let plan = plan(&mut walker, &model, &required)?;
        let moved: HashSet<&str> =
            plan.moves.iter().map(|parameter| parameter.name.as_str()).collect();
        if let Some(absent) = required.iter().find(|name| !moved.contains(name.as_str())) {
            return Err(Error::data_loss(format!(
                "{}: the manifest has the tensor {absent:?}, the graph does not",
                model.display()
            )));
        }
        Ok(Conversion { model, walker, plan, published })
    }

    /// Returns sizes of the parameters that move.
    pub(super) fn summary(&self) -> SourceSummary {
        let mut summary = SourceSummary {
            published: self.published.is_some(),
            embedded_bytes: 0,
            external_bytes: 0,
            tensors: self.plan.moves.len(),
        };
        for parameter in &self.plan.moves {
            match parameter.data {
                ParameterBytes::File(..) => summary.external_bytes += parameter.bytes,
                ParameterBytes::Raw(_) | ParameterBytes::Typed(_) => {
                    summary.embedded_bytes += parameter.bytes
                }
            }
        }
        summary
    }

    /// Writes the version into `dir`.
    pub(super) fn run(
        self,
        dir: &Path,
        options: WriteOptions,
        progress: &mut dyn FnMut(PublishProgress),
    ) -> Result<LayoutManifest> {
        let Conversion { model, mut walker, plan, published } = self;
        let ConversionPlan { roots, moves, graph, graph_bytes } = plan;
        let mut writer = layout_writer(dir, options)?;
        let total = moves.iter().map(|parameter| parameter.bytes).sum::<u64>() + graph_bytes;
        walker.file().set_window(COPY_BYTES);
        let mut reader = ConversionReader {
            model: walker,
            roots,
            other: None,
            direct: options.direct,
            meter: ProgressMeter { done: 0, reported: 0, total, progress },
        };
        for parameter in &moves {
            reader.copy_parameter(parameter, &mut writer)?;
            if let Some(published) = &published {
                check_parameter(&model, published, &writer)?;
            }
        }
        let manifest = writer.finish_with(|out| reader.graph(&graph, out))?;
        if manifest.graph.bytes != graph_bytes {
            return Err(Error::internal(format!(
                "the graph became {} bytes long instead of {graph_bytes}",
                manifest.graph.bytes
            )));
        }
        reader.meter.report();
        Ok(manifest)
    }
}

/// Compares the parameter just written with the manifest of `model`, which is a published source.
fn check_parameter(model: &Path, published: &LayoutManifest, writer: &LayoutWriter) -> Result<()> {
    let Some(entry) = writer.last() else { return Ok(()) };
    // Both lists are in the graph's order, unless another program made the source.
    let at = writer.count() - 1;
    let hinted = published.tensors.get(at).filter(|tensor| tensor.name == entry.name);
    let Some(wanted) =
        hinted.or_else(|| published.tensors.iter().find(|tensor| tensor.name == entry.name))
    else {
        return Ok(());
    };
    let same =
        (&wanted.dtype, &wanted.dims, &wanted.blake3) == (&entry.dtype, &entry.dims, &entry.blake3);
    if same {
        return Ok(());
    }
    Err(Error::data_loss(format!(
        "{}: tensor {:?} is not the one that its manifest describes; publish it again from its origin",
        model.display(),
        entry.name
    )))
}

/// Compares the graph of a published version with its hash.
fn check_graph(artifact: &Artifact, direct: bool) -> Result<()> {
    let Some(wanted) = &artifact.manifest.graph.blake3 else { return Ok(()) };
    let path = artifact.graph();
    let mut file = WindowedFile::open(&path, COPY_BYTES, direct)?;
    let mut hasher = blake3::Hasher::new();
    file.stream(0..file.length(), &mut |slice| {
        hasher.update(slice);
        Ok(())
    })?;
    if hasher.finalize().to_hex().as_str() != wanted {
        return Err(Error::data_loss(format!(
            "{}: its hash is not the manifest's",
            path.display()
        )));
    }
    Ok(())
}

/// Open files of the source.
struct ConversionReader<'a> {
    model: Walker,
    roots: ExternalRoots,
    /// Last external file that was read.
    other: Option<(PathBuf, WindowedFile)>,
    direct: bool,
    meter: ProgressMeter<'a>,
}

impl ConversionReader<'_> {
    /// Copies the elements of a parameter from the model into the published version.
    fn copy_parameter(
        &mut self,
        parameter: &MovedParameter,
        writer: &mut LayoutWriter,
    ) -> Result<()> {
        writer.begin(&parameter.name, parameter.dtype, &parameter.dims)?;
        let meter = &mut self.meter;
        let mut sink = |slice: &[u8]| {
            writer.write(slice)?;
            meter.add(slice.len());
            Ok(())
        };
        match &parameter.data {
            ParameterBytes::Raw(range) => self.model.file().stream(range.clone(), &mut sink)?,
            ParameterBytes::Typed(payload) => {
                stream_typed(
                    &mut self.model,
                    payload.clone(),
                    parameter.dtype,
                    parameter.bytes,
                    &mut sink,
                )
                .map_err(|e| e.context(format_args!("tensor {:?}", parameter.name)))?;
            }
            ParameterBytes::File(path, range) => {
                external_file(&mut self.other, path, &self.roots, self.direct)?
                    .stream(range.clone(), &mut sink)?;
            }
        }
        let entry = writer.end()?;
        if entry.offset != parameter.offset {
            return Err(Error::internal(format!(
                "tensor \"{}\" went to offset {} instead of {}",
                entry.name, entry.offset, parameter.offset
            )));
        }
        Ok(())
    }

    /// Writes the pieces of the new graph in order.
    fn graph(&mut self, pieces: &[GraphPiece], out: &mut GraphWriter) -> Result<()> {
        for piece in pieces {
            let meter = &mut self.meter;
            let mut sink = |slice: &[u8]| {
                out.put(slice)?;
                meter.add(slice.len());
                Ok(())
            };
            match piece {
                GraphPiece::New(bytes) => sink(bytes)?,
                GraphPiece::Copy(range) => self.model.file().stream(range.clone(), &mut sink)?,
                GraphPiece::File(path, range) => {
                    external_file(&mut self.other, path, &self.roots, self.direct)?
                        .stream(range.clone(), &mut sink)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the external file at `path`, kept open until another one is needed.
fn external_file<'a>(
    slot: &'a mut Option<(PathBuf, WindowedFile)>,
    path: &Path,
    roots: &ExternalRoots,
    direct: bool,
) -> Result<&'a mut WindowedFile> {
    if slot.as_ref().is_some_and(|(open, _)| open != path) {
        *slot = None;
    }
    let (_, file) = match slot {
        Some(open) => open,
        none => none.insert((path.to_owned(), roots.open(path, direct)?)),
    };
    Ok(file)
}

/// Counter of bytes that reports progress.
struct ProgressMeter<'a> {
    done: u64,
    reported: u64,
    total: u64,
    progress: &'a mut dyn FnMut(PublishProgress),
}

impl ProgressMeter<'_> {
    fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.done - self.reported >= REPORT_BYTES {
            self.report();
        }
    }

    fn report(&mut self) {
        self.reported = self.done;
        (self.progress)(PublishProgress { bytes_done: self.done, bytes_total: self.total });
    }
}
