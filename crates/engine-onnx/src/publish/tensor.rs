//! Reads `TensorProto`: type, shape, location of the bytes, and the bytes in memory order.

use std::ops::Range;

use base::{DType, Result};

use super::encode::{WIRE_BYTES, WIRE_FIXED32, WIRE_FIXED64, WIRE_VARINT};
use super::schema::{self, tensor};
use super::wire::{Varint, Walker, WireField};

/// Maximum axes of a tensor.
const DIMS_MAX: usize = 256;
/// Maximum bytes of a name.
pub(super) const NAME_BYTES_MAX: u64 = 64 << 10;
/// Maximum bytes of a location, which is a path.
const LOCATION_BYTES_MAX: u64 = 4 << 10;
/// Maximum entries that locate external data.
const EXTERNAL_ENTRIES_MAX: usize = 64;
/// Maximum runs of fields that are copied unchanged.
const KEPT_MAX: usize = 1024;
/// Bytes collected before converted elements are passed on.
const BATCH_BYTES: usize = 64 << 10;

/// Location of external data, as stated by the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExternalLocation {
    pub(super) path: Vec<u8>,
    pub(super) offset: u64,
    pub(super) length: Option<u64>,
}

/// A `TensorProto` without its elements.
#[derive(Clone, Debug, Default)]
pub(super) struct TensorHead {
    /// Range of the whole message.
    pub(super) payload: Range<u64>,
    pub(super) dims: Vec<u64>,
    /// `TensorProto.DataType`.
    pub(super) code: i64,
    pub(super) name: Vec<u8>,
    pub(super) raw: Option<Range<u64>>,
    /// True for a segment of a tensor.
    pub(super) segmented: bool,
    /// Location of its data, if that lies in another file.
    pub(super) external: Option<ExternalLocation>,
    /// Ranges of the fields that are neither data nor name.
    pub(super) kept: Vec<Range<u64>>,
}

impl TensorHead {
    /// Reads the message in `payload` without its data.
    pub(super) fn read(walker: &mut Walker, payload: Range<u64>) -> Result<TensorHead> {
        let mut head = TensorHead { payload: payload.clone(), ..TensorHead::default() };
        let mut location = ExternalLocation::default();
        let mut entries = 0;
        let mut is_external = false;
        let mut at = payload.start;
        while at < payload.end {
            let field = walker.field(at, payload.end)?;
            at = field.whole.end;
            match field.number {
                tensor::NAME if field.wire == WIRE_BYTES => {
                    head.name = walker.bytes(field.payload, NAME_BYTES_MAX)?;
                }
                tensor::RAW_DATA if field.wire == WIRE_BYTES => head.raw = Some(field.payload),
                tensor::EXTERNAL_DATA if field.wire == WIRE_BYTES => {
                    entries += 1;
                    if entries > EXTERNAL_ENTRIES_MAX {
                        return Err(walker
                            .damaged(field.whole.start, "too many entries about external data"));
                    }
                    location.entry(walker, &field)?;
                }
                tensor::DATA_LOCATION if field.wire == WIRE_VARINT => {
                    is_external = field.varint as i64 == schema::LOCATION_EXTERNAL;
                }
                tensor::FLOAT_DATA
                | tensor::INT32_DATA
                | tensor::STRING_DATA
                | tensor::INT64_DATA
                | tensor::DOUBLE_DATA
                | tensor::UINT64_DATA => {}
                _ => head.keep_field(walker, &field)?,
            }
        }
        if is_external {
            if location.path.is_empty() {
                return Err(walker.damaged(payload.start, "external data without a location"));
            }
            head.external = Some(location);
        }
        Ok(head)
    }

    /// Keeps a field to be copied to the new message. Also reads shape, type and segment.
    fn keep_field(&mut self, walker: &mut Walker, field: &WireField) -> Result<()> {
        match (field.number, field.wire) {
            (tensor::DIMS, WIRE_VARINT) => self.dim(walker, field.whole.start, field.varint)?,
            (tensor::DIMS, WIRE_BYTES) => {
                let mut at = field.payload.start;
                while at < field.payload.end {
                    let dim = walker.varint(at, field.payload.end)?;
                    self.dim(walker, at, dim.value)?;
                    at = dim.end;
                }
            }
            (tensor::DATA_TYPE, WIRE_VARINT) => self.code = field.varint as i64,
            (tensor::SEGMENT, _) => self.segmented = true,
            _ => {}
        }
        match self.kept.last_mut() {
            Some(last) if last.end == field.whole.start => last.end = field.whole.end,
            _ => self.kept.push(field.whole.clone()),
        }
        if self.kept.len() > KEPT_MAX {
            return Err(walker.damaged(field.whole.start, "a tensor in too many pieces"));
        }
        Ok(())
    }

    fn dim(&mut self, walker: &Walker, at: u64, dim: u64) -> Result<()> {
        if dim as i64 <= -1 {
            return Err(walker.damaged(at, format_args!("a tensor axis of size {}", dim as i64)));
        }
        self.dims.push(dim);
        if self.dims.len() > DIMS_MAX {
            return Err(walker.damaged(at, format_args!("a tensor of more than {DIMS_MAX} axes")));
        }
        Ok(())
    }

    /// Returns the number of bytes that the tensor's type and shape need, or `None` for strings and
    /// unknown types.
    ///
    /// # Errors
    /// `DataLoss` if the number of elements or of bits exceeds a `u64`.
    pub(super) fn bytes(&self, walker: &Walker) -> Result<Option<u64>> {
        let Some(bits) = schema::bits(self.code) else { return Ok(None) };
        self.dims
            .iter()
            .try_fold(1u64, |product, &dim| product.checked_mul(dim))
            .and_then(|elements| Some(elements.checked_mul(bits)?.div_ceil(8)))
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .map(Some)
            .ok_or_else(|| {
                walker.damaged(
                    self.payload.start,
                    format_args!("a tensor of impossible shape {:?}", self.dims),
                )
            })
    }

    /// Returns its name for messages, in one line.
    pub(super) fn label(&self) -> String {
        String::from_utf8_lossy(&self.name).escape_debug().collect()
    }
}

impl ExternalLocation {
    /// Reads one `StringStringEntryProto`.
    fn entry(&mut self, walker: &mut Walker, field: &WireField) -> Result<()> {
        let mut key = Vec::new();
        let mut value = Vec::new();
        let mut at = field.payload.start;
        while at < field.payload.end {
            let part = walker.field(at, field.payload.end)?;
            at = part.whole.end;
            if part.is(1, WIRE_BYTES) {
                key = walker.bytes(part.payload, LOCATION_BYTES_MAX)?;
            } else if part.is(2, WIRE_BYTES) {
                value = walker.bytes(part.payload, LOCATION_BYTES_MAX)?;
            }
        }
        let number = |value: &[u8]| {
            std::str::from_utf8(value).ok().and_then(|text| text.trim().parse::<u64>().ok())
        };
        let bad = |walker: &Walker| {
            walker.damaged(field.whole.start, "external data with a bad offset or length")
        };
        match key.as_slice() {
            b"location" => self.path = value,
            b"offset" => self.offset = number(&value).ok_or_else(|| bad(walker))?,
            b"length" => self.length = Some(number(&value).ok_or_else(|| bad(walker))?),
            _ => {}
        }
        Ok(())
    }
}

/// Returns the field that holds elements of `dtype` if they are not raw.
fn typed_field(dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::Complex64 => tensor::FLOAT_DATA,
        DType::F64 | DType::Complex128 => tensor::DOUBLE_DATA,
        DType::I64 => tensor::INT64_DATA,
        DType::U32 | DType::U64 => tensor::UINT64_DATA,
        _ => tensor::INT32_DATA,
    }
}

/// Passes on the elements in the typed fields of the tensor in `payload`, in memory order: exactly
/// `wanted` bytes, or an error.
pub(super) fn stream_typed(
    walker: &mut Walker,
    payload: Range<u64>,
    dtype: DType,
    wanted: u64,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut batch =
        ElementBatch { dtype, bytes: Vec::with_capacity(BATCH_BYTES + 8), passed: 0, wanted, sink };
    let number = typed_field(dtype);
    let fixed = match number {
        tensor::FLOAT_DATA => Some((WIRE_FIXED32, 4)),
        tensor::DOUBLE_DATA => Some((WIRE_FIXED64, 8)),
        _ => None,
    };
    let mut at = payload.start;
    while at < payload.end {
        let field = walker.field(at, payload.end)?;
        at = field.whole.end;
        if field.number != number {
            continue;
        }
        match (field.wire, fixed) {
            (WIRE_BYTES, Some((_, width))) => {
                if !(field.payload.end - field.payload.start).is_multiple_of(width) {
                    return Err(walker.damaged(field.payload.start, "half an element"));
                }
                batch.copy(walker, field.payload)?;
            }
            (wire, Some((fixed, _))) if wire == fixed => batch.copy(walker, field.payload)?,
            (WIRE_BYTES, None) => batch.varints(walker, field.payload)?,
            (WIRE_VARINT, None) => batch.element(walker, field.payload.start, field.varint)?,
            _ => {}
        }
    }
    batch.flush()?;
    if batch.passed != wanted {
        let passed = batch.passed;
        return Err(walker.damaged(
            payload.start,
            format_args!("a tensor of {wanted} bytes that holds {passed}"),
        ));
    }
    Ok(())
}

/// Converted elements that are not yet passed on.
struct ElementBatch<'a> {
    dtype: DType,
    bytes: Vec<u8>,
    /// Bytes passed on.
    passed: u64,
    wanted: u64,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl ElementBatch<'_> {
    /// Appends the bytes of `range`. Passes the batch on if it is full.
    fn copy(&mut self, walker: &mut Walker, range: Range<u64>) -> Result<()> {
        self.room(walker, range.start, range.end - range.start)?;
        let bytes = &mut self.bytes;
        let passed = &mut self.passed;
        let sink = &mut self.sink;
        walker.file().stream(range, &mut |slice| {
            bytes.extend_from_slice(slice);
            if bytes.len() >= BATCH_BYTES {
                *passed += bytes.len() as u64;
                sink(bytes)?;
                bytes.clear();
            }
            Ok(())
        })
    }

    /// Adds the elements in a packed field of varints.
    fn varints(&mut self, walker: &mut Walker, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let Varint { value, end: next } = walker.varint(at, range.end)?;
            self.element(walker, at, value)?;
            at = next;
        }
        Ok(())
    }

    /// Adds an element that is written as a number.
    fn element(&mut self, walker: &Walker, at: u64, value: u64) -> Result<()> {
        let width = match self.dtype {
            DType::Bool => return self.push(walker, at, &[u8::from(value != 0)]),
            DType::I64 | DType::U64 => 8,
            DType::I32 | DType::U32 => 4,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            // Bytes, and pairs of 4-bit elements.
            _ => 1,
        };
        self.push(walker, at, &value.to_le_bytes()[..width])
    }

    fn push(&mut self, walker: &Walker, at: u64, element: &[u8]) -> Result<()> {
        self.room(walker, at, element.len() as u64)?;
        self.bytes.extend_from_slice(element);
        if self.bytes.len() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn room(&self, walker: &Walker, at: u64, bytes: u64) -> Result<()> {
        if bytes > self.wanted - self.passed - self.bytes.len() as u64 {
            return Err(walker.damaged(at, "more elements than the tensor's shape has"));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.passed += self.bytes.len() as u64;
        (self.sink)(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}
