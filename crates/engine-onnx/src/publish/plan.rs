//! Plan of a conversion. One walk over the model collects names, another one the edits.
//!
//! Protobuf writes the length of a message before it, so every enclosing length must be known
//! before the first byte is written. The plan is a list of pieces of known length: ranges of the
//! source, new bytes, and ranges of external files. Its size grows with the number of parameters,
//! not with their size.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use base::units::{MIB, format_bytes};
use base::{DType, Error, Result};
use engine::layout::{TENSOR_ALIGNMENT, WEIGHTS_NAME};

use super::build::{MODEL_BYTES_MAX, external_data};
use super::encode::{self, WIRE_BYTES};
use super::external::{ExternalFiles, ExternalRoots};
use super::names::ParameterNames;
use super::schema::{DEPTH_MAX, MessageKind, graph, tensor};
use super::tensor::TensorHead;
use super::wire::{Walker, WireField};
use super::{EXTERNALISE_MIN, constant, schema};

/// Maximum external bytes that move into the graph because they cannot be bound.
const EMBED_BYTES_MAX: u64 = 256 * MIB;

/// Location and form of a parameter's bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ParameterBytes {
    /// Bytes in memory order, in the model file.
    Raw(Range<u64>),
    /// Typed fields of this `TensorProto`.
    Typed(Range<u64>),
    /// Bytes in memory order, in another file.
    File(PathBuf, Range<u64>),
}

/// A parameter that moves to the weights file.
#[derive(Clone, Debug)]
pub(super) struct MovedParameter {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) data: ParameterBytes,
}

#[derive(Clone, Debug)]
pub(super) enum GraphPiece {
    /// A range of the model file.
    Copy(Range<u64>),
    /// New bytes.
    New(Vec<u8>),
    /// A range of an external file.
    File(PathBuf, Range<u64>),
}

/// The whole conversion.
pub(super) struct ConversionPlan {
    /// Directories of the external files.
    pub(super) roots: ExternalRoots,
    pub(super) moves: Vec<MovedParameter>,
    pub(super) graph: Vec<GraphPiece>,
    pub(super) graph_bytes: u64,
}

/// Plans the conversion of the model under `walker`, which lies at `path`. Parameters named in
/// `required` move at any size.
pub(super) fn plan(
    walker: &mut Walker,
    path: &Path,
    required: &HashSet<String>,
) -> Result<ConversionPlan> {
    let names = ParameterNames::collect(walker)?;
    // Without it, only the model's directory counts.
    let opened = walker.file().real_path().ok();
    let externals = ExternalFiles::beside(path, opened.as_deref())?;
    let mut planner =
        Planner { walker, externals, names, required, moves: Vec::new(), end: 0, embedded: 0 };
    let whole = planner.walker.whole();
    let body = match planner.message(MessageKind::Model, whole.clone(), 0)? {
        Some(body) => body,
        None => EditedMessage { length: whole.end, pieces: vec![GraphPiece::Copy(whole)] },
    };
    if body.length >= MODEL_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the graph takes {} without its large parameters, ONNX allows less than 2 GiB",
            format_bytes(body.length)
        )));
    }
    Ok(ConversionPlan {
        roots: planner.externals.roots().clone(),
        moves: planner.moves,
        graph: body.pieces,
        graph_bytes: body.length,
    })
}

/// A message that differs from its source.
struct EditedMessage {
    pieces: Vec<GraphPiece>,
    length: u64,
}

impl EditedMessage {
    fn new() -> EditedMessage {
        EditedMessage { pieces: Vec::new(), length: 0 }
    }

    /// Plans to copy a range of the file. Joins it to the range before, if that ends where it
    /// begins.
    fn copy(&mut self, range: Range<u64>) {
        self.length += range.end - range.start;
        match self.pieces.last_mut() {
            Some(GraphPiece::Copy(before)) if before.end == range.start => before.end = range.end,
            _ if range.is_empty() => {}
            _ => self.pieces.push(GraphPiece::Copy(range)),
        }
    }

    fn new_bytes(&mut self, bytes: Vec<u8>) {
        self.length += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(GraphPiece::New(before)) => before.extend_from_slice(&bytes),
            _ => self.pieces.push(GraphPiece::New(bytes)),
        }
    }

    fn file(&mut self, path: PathBuf, range: Range<u64>) {
        self.length += range.end - range.start;
        self.pieces.push(GraphPiece::File(path, range));
    }

    /// Appends `inner` as field `number`.
    fn field(&mut self, number: u32, inner: EditedMessage) {
        let mut header = Vec::new();
        encode::header(&mut header, number, inner.length);
        self.new_bytes(header);
        self.length += inner.length;
        let mut pieces = inner.pieces.into_iter();
        if let Some(GraphPiece::New(first)) = pieces.as_slice().first() {
            let first = first.clone();
            self.length -= first.len() as u64;
            self.new_bytes(first);
            pieces.next();
        }
        self.pieces.extend(pieces);
    }
}

struct Planner<'a> {
    walker: &'a mut Walker,
    externals: ExternalFiles,
    names: ParameterNames,
    required: &'a HashSet<String>,
    moves: Vec<MovedParameter>,
    /// End of the last parameter in the weights file.
    end: u64,
    /// External bytes that move into the graph.
    embedded: u64,
}

impl Planner<'_> {
    /// Returns the new form of a message, or `None` if it does not change.
    fn message(
        &mut self,
        kind: MessageKind,
        range: Range<u64>,
        depth: usize,
    ) -> Result<Option<EditedMessage>> {
        if depth > DEPTH_MAX {
            return Err(self
                .walker
                .damaged(range.start, format_args!("messages nested more than {DEPTH_MAX} deep")));
        }
        let mut body = EditedMessage::new();
        let mut at = range.start;
        let mut copied = range.start;
        while at < range.end {
            let field = self.walker.field(at, range.end)?;
            at = field.whole.end;
            if field.wire != WIRE_BYTES {
                continue;
            }
            let Some(child) = kind.child(field.number) else { continue };
            if let Some((number, inner)) = self.child(child, &field, depth + 1)? {
                body.copy(copied..field.whole.start);
                body.field(number, inner);
                copied = field.whole.end;
            }
        }
        if copied == range.start && body.pieces.is_empty() {
            return Ok(None);
        }
        body.copy(copied..range.end);
        Ok(Some(body))
    }

    /// Returns the new number and payload of a field.
    fn child(
        &mut self,
        kind: MessageKind,
        field: &WireField,
        depth: usize,
    ) -> Result<Option<(u32, EditedMessage)>> {
        let payload = field.payload.clone();
        let body = match kind {
            MessageKind::MainTensor => self.parameter(payload)?,
            MessageKind::Tensor => {
                let head = TensorHead::read(self.walker, payload)?;
                self.embed(&head)?
            }
            MessageKind::MainNode => match self.constant(payload.clone())? {
                Some(body) => return Ok(Some((graph::INITIALIZER, body))),
                None => self.message(kind, payload, depth)?,
            },
            _ => self.message(kind, payload, depth)?,
        };
        Ok(body.map(|body| (field.number, body)))
    }

    /// Plans an initialiser of the main graph.
    fn parameter(&mut self, payload: Range<u64>) -> Result<Option<EditedMessage>> {
        let head = TensorHead::read(self.walker, payload)?;
        let name = self.names.bindable(&head.name);
        match self.movable(&head, name)? {
            Some(parameter) => self.move_out(&head, parameter).map(Some),
            None => self.embed(&head),
        }
    }

    /// Turns a large `Constant` of the main graph into an initialiser, as ONNX Runtime would, but
    /// one that can be bound.
    fn constant(&mut self, payload: Range<u64>) -> Result<Option<EditedMessage>> {
        let Some(constant) = constant::read(self.walker, payload)? else { return Ok(None) };
        if self.names.is_output(&constant.output) {
            return Ok(None);
        }
        let mut head = TensorHead::read(self.walker, constant.value)?;
        let name = self.names.bindable(&constant.output);
        head.name = constant.output;
        match self.movable(&head, name)? {
            Some(parameter) => self.move_out(&head, parameter).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the move of a parameter of the main graph if it moves. `name` is `None` if it cannot
    /// be bound.
    fn movable(
        &mut self,
        head: &TensorHead,
        name: Option<String>,
    ) -> Result<Option<MovedParameter>> {
        let (Some(name), Some(bytes)) = (name, head.bytes(self.walker)?) else { return Ok(None) };
        let Some(dtype) = schema::dtype(head.code) else { return Ok(None) };
        if head.segmented || (bytes < EXTERNALISE_MIN && !self.required.contains(&name)) {
            return Ok(None);
        }
        let dims = head.dims.iter().filter_map(|&dim| usize::try_from(dim).ok()).collect();
        let data = match (&head.external, &head.raw) {
            (Some(location), _) => {
                let (path, range) = self
                    .externals
                    .resolve(location, bytes)
                    .map_err(|e| e.context(format_args!("tensor {name:?}")))?;
                ParameterBytes::File(path, range)
            }
            (None, Some(raw)) if raw.end - raw.start == bytes => ParameterBytes::Raw(raw.clone()),
            (None, Some(raw)) => {
                let held = raw.end - raw.start;
                return Err(self.walker.damaged(
                    raw.start,
                    format_args!("tensor {name:?} holds {held} bytes, type and shape take {bytes}"),
                ));
            }
            (None, None) => ParameterBytes::Typed(head.payload.clone()),
        };
        let offset = self.end.next_multiple_of(TENSOR_ALIGNMENT);
        Ok(Some(MovedParameter { name, dtype, dims, offset, bytes, data }))
    }

    /// Plans to move the elements of a parameter to the weights file. Returns the message that
    /// refers to them.
    fn move_out(&mut self, head: &TensorHead, parameter: MovedParameter) -> Result<EditedMessage> {
        self.end = parameter
            .offset
            .checked_add(parameter.bytes)
            .filter(|&end| end < i64::MAX as u64)
            .ok_or_else(|| {
                self.walker.damaged(head.payload.start, "more parameters than a file can hold")
            })?;
        let mut body = kept(head);
        let mut place = Vec::new();
        external_data(&mut place, WEIGHTS_NAME, parameter.offset, parameter.bytes);
        body.new_bytes(place);
        self.moves.push(parameter);
        Ok(body)
    }

    /// Plans a tensor whose external data moves into the graph.
    fn embed(&mut self, head: &TensorHead) -> Result<Option<EditedMessage>> {
        let Some(location) = &head.external else { return Ok(None) };
        let Some(bytes) = head.bytes(self.walker)? else {
            return Err(self.walker.damaged(
                head.payload.start,
                format_args!(
                    "tensor \"{}\" has external data and a type without a size",
                    head.label()
                ),
            ));
        };
        self.embedded = self.embedded.saturating_add(bytes);
        if self.embedded > EMBED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "tensor \"{}\": external data outside the main graph's initialisers is copied into the graph, up \
                 to {} in all; make it an initialiser of the main graph with a unique name",
                head.label(),
                format_bytes(EMBED_BYTES_MAX)
            )));
        }
        let (path, range) = self
            .externals
            .resolve(location, bytes)
            .map_err(|e| e.context(format_args!("tensor \"{}\"", head.label())))?;
        let mut body = kept(head);
        let mut header = Vec::new();
        encode::header(&mut header, tensor::RAW_DATA, bytes);
        body.new_bytes(header);
        body.file(path, range);
        Ok(Some(body))
    }
}

/// Returns a tensor's fields other than its data.
fn kept(head: &TensorHead) -> EditedMessage {
    let mut body = EditedMessage::new();
    for range in &head.kept {
        body.copy(range.clone());
    }
    let mut name = Vec::new();
    if !head.name.is_empty() {
        encode::bytes(&mut name, tensor::NAME, &head.name);
    }
    body.new_bytes(name);
    body
}
