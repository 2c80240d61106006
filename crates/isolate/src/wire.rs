//! Encoding of messages: little-endian numbers, strings and lists with their length.
//!
//! A worker process may be damaged by its engine, so the server checks every byte it gets from one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::TensorSpec;
use base::{DType, Data, Dim, Error, ErrorKind, NamedTensor, Result, Shape, Signature, Tensor};
use bytes::Bytes;
use engine::NamedSignature;

use crate::frame::LENGTH_BYTES;

/// Alignment of a tensor's elements in a message: that of the widest element type.
const ALIGNMENT: usize = 16;
/// Maximum axes of a tensor. TensorFlow has at most 254; the other engines have no maximum. Each
/// axis takes several times its bytes of the message in the memory of the server.
pub(crate) const RANK_MAX: usize = 1024;

/// A message that is being built, after room for the length of its frame.
pub(crate) struct MessageWriter(Vec<u8>);

impl MessageWriter {
    pub(crate) fn new() -> MessageWriter {
        MessageWriter(vec![0; LENGTH_BYTES])
    }

    /// Returns the frame for [`crate::frame::write`].
    pub(crate) fn into_frame(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn number(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn texts<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a str>) {
        self.number(texts.len() as u64);
        texts.for_each(|text| self.text(text));
    }

    fn dtype(&mut self, dtype: DType) {
        let position = DType::ALL.iter().position(|&other| other == dtype);
        self.byte(position.map_or(u8::MAX, |position| position as u8));
    }

    /// Writes tensors. The elements of each begin at a multiple of [`ALIGNMENT`].
    pub(crate) fn tensors(&mut self, tensors: &[NamedTensor]) {
        self.number(tensors.len() as u64);
        for NamedTensor { name, tensor } in tensors {
            self.text(name);
            self.dtype(tensor.dtype());
            self.number(tensor.shape().len() as u64);
            tensor.shape().iter().for_each(|&size| self.number(size as u64));
            match tensor.data() {
                Data::Bytes(bytes) => {
                    self.number(bytes.len() as u64);
                    let end = (self.0.len() - LENGTH_BYTES).next_multiple_of(ALIGNMENT);
                    self.0.resize(end + LENGTH_BYTES, 0);
                    self.0.extend_from_slice(bytes);
                }
                Data::Strings(strings) => strings.iter().for_each(|string| self.bytes(string)),
            }
        }
    }

    pub(crate) fn error(&mut self, error: &Error) {
        self.text(error.kind().name());
        self.text(error.message());
        self.number(error.retry_after().map_or(0, |after| after.as_millis() as u64));
    }

    pub(crate) fn signature(&mut self, signature: &Signature) {
        for specs in [&signature.inputs, &signature.outputs] {
            self.number(specs.len() as u64);
            specs.iter().for_each(|spec| self.spec(spec));
        }
    }

    fn spec(&mut self, spec: &TensorSpec) {
        self.text(&spec.name);
        self.dtype(spec.dtype);
        self.byte(u8::from(spec.optional));
        let Some(dims) = &spec.shape else { return self.byte(0) };
        self.byte(1);
        self.number(dims.len() as u64);
        for dim in dims {
            match dim {
                Dim::Fixed(size) => {
                    self.byte(0);
                    self.number(*size as u64);
                }
                Dim::Dynamic(None) => self.byte(1),
                Dim::Dynamic(Some(symbol)) => {
                    self.byte(2);
                    self.text(symbol);
                }
            }
        }
    }

    pub(crate) fn named_signatures(&mut self, signatures: &[NamedSignature]) {
        self.number(signatures.len() as u64);
        for named in signatures {
            self.text(&named.name);
            self.text(&named.method);
            self.signature(&named.signature);
            self.texts(named.input_tensors.iter().map(String::as_str));
            self.texts(named.output_tensors.iter().map(String::as_str));
        }
    }

    pub(crate) fn metadata(&mut self, metadata: &BTreeMap<String, String>) {
        self.number(metadata.len() as u64);
        for (key, value) in metadata {
            self.text(key);
            self.text(value);
        }
    }
}

/// A message that is being read. The tensors share its bytes.
pub(crate) struct MessageReader {
    message: Bytes,
    at: usize,
}

/// Builds the error of a malformed message.
fn damaged(what: &str) -> Error {
    Error::internal(format!("a damaged message between server and worker process: {what}"))
}

impl MessageReader {
    pub(crate) fn new(message: Bytes) -> MessageReader {
        MessageReader { message, at: 0 }
    }

    fn take(&mut self, count: usize) -> Result<Bytes> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.message.len());
        let end = end.ok_or_else(|| damaged("it is too short"))?;
        let taken = self.message.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    fn size(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| damaged("an impossible size"))
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes> {
        let count = self.size()?;
        self.take(count)
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec())
            .map_err(|error| damaged("a text is not UTF-8").with_source(error.utf8_error()))
    }

    /// Reads a list by `item`. Every item takes at least one byte, which bounds their number.
    pub(crate) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut MessageReader) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.size()?;
        self.items(count, &mut item)
    }

    fn items<T>(
        &mut self,
        count: usize,
        item: &mut impl FnMut(&mut MessageReader) -> Result<T>,
    ) -> Result<Vec<T>> {
        if count > self.message.len() - self.at {
            return Err(damaged("a list is longer than the message"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn dtype(&mut self) -> Result<DType> {
        let position = usize::from(self.byte()?);
        DType::ALL.get(position).copied().ok_or_else(|| damaged("an unknown element type"))
    }

    pub(crate) fn tensors(&mut self) -> Result<Vec<NamedTensor>> {
        self.list(MessageReader::tensor)
    }

    /// Reads a tensor whose elements share the bytes of the message.
    fn tensor(&mut self) -> Result<NamedTensor> {
        let name = self.text()?;
        let dtype = self.dtype()?;
        let rank = self.size()?;
        if rank > RANK_MAX {
            return Err(damaged("a tensor has too many axes"));
        }
        let shape = Shape::from_vec(self.items(rank, &mut MessageReader::size)?);
        if dtype == DType::String {
            let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
            let count = count.ok_or_else(|| damaged("an impossible shape"))?;
            let strings = self.items(count, &mut MessageReader::bytes)?;
            return Ok(NamedTensor::new(name, Tensor::from_strings(shape, strings)?));
        }
        let count = self.size()?;
        let padding = self.at.next_multiple_of(ALIGNMENT) - self.at;
        self.take(padding)?;
        let elements = self.take(count)?;
        let tensor = Tensor::from_bytes(dtype, shape, elements);
        Ok(NamedTensor::new(name, tensor.map_err(|error| damaged(error.message()))?))
    }

    pub(crate) fn error(&mut self) -> Result<Error> {
        let name = self.text()?;
        let kind = ErrorKind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| damaged("an unknown kind of error"))?;
        let error = Error::new(kind, self.text()?);
        Ok(match self.number()? {
            0 => error,
            after => error.with_retry_after(Duration::from_millis(after)),
        })
    }

    pub(crate) fn signature(&mut self) -> Result<Signature> {
        Ok(Signature {
            inputs: self.list(MessageReader::spec)?,
            outputs: self.list(MessageReader::spec)?,
        })
    }

    fn spec(&mut self) -> Result<TensorSpec> {
        let name = self.text()?;
        let dtype = self.dtype()?;
        let optional = self.byte()? != 0;
        let shape = if self.byte()? == 0 { None } else { Some(self.list(MessageReader::dim)?) };
        Ok(TensorSpec { name, dtype, shape, optional })
    }

    fn dim(&mut self) -> Result<Dim> {
        match self.byte()? {
            0 => self.size().map(Dim::Fixed),
            1 => Ok(Dim::Dynamic(None)),
            2 => self.text().map(|symbol| Dim::Dynamic(Some(symbol))),
            _ => Err(damaged("an unknown axis")),
        }
    }

    pub(crate) fn named_signatures(&mut self) -> Result<Vec<NamedSignature>> {
        self.list(|reader| {
            Ok(NamedSignature {
                name: reader.text()?.into(),
                method: reader.text()?,
                signature: reader.signature()?,
                input_tensors: reader.list(MessageReader::text)?,
                output_tensors: reader.list(MessageReader::text)?,
            })
        })
    }

    pub(crate) fn metadata(&mut self) -> Result<BTreeMap<String, String>> {
        let pairs = self.list(|reader| Ok((reader.text()?, reader.text()?)))?;
        Ok(pairs.into_iter().collect())
    }

    pub(crate) fn names(&mut self) -> Result<Vec<Arc<str>>> {
        self.list(|reader| reader.text().map(Arc::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(writer: MessageWriter) -> Bytes {
        Bytes::from(writer.into_frame()).slice(LENGTH_BYTES..)
    }

    fn tensors() -> Vec<NamedTensor> {
        let packed = Tensor::from_bytes(DType::I4, [3].as_slice(), Bytes::from_static(&[1, 2]));
        let strings = vec![Bytes::from_static(b"a"), Bytes::new(), Bytes::from_static(&[0xff])];
        vec![
            NamedTensor::new("packed", packed.unwrap()),
            NamedTensor::new("x", Tensor::from_vec([2, 1].as_slice(), vec![1.5f64, 2.0]).unwrap()),
            NamedTensor::new("empty", Tensor::from_vec([0].as_slice(), vec![0f32; 0]).unwrap()),
            NamedTensor::new("texts", Tensor::from_strings([3].as_slice(), strings).unwrap()),
        ]
    }

    #[test]
    fn tensors_round_trip_aligned() {
        let mut writer = MessageWriter::new();
        writer.tensors(&tensors());
        let read = MessageReader::new(body(writer)).tensors().unwrap();
        assert_eq!(read, tensors());
        let bytes = read[1].tensor.bytes().unwrap();
        assert_eq!(bytes.as_ptr() as usize % 8, 0);
    }

    #[test]
    fn the_axes_of_a_tensor_are_bounded() {
        let read = |rank: usize| {
            let tensor = Tensor::from_vec(vec![1usize; rank], vec![7f32]).unwrap();
            let mut writer = MessageWriter::new();
            writer.tensors(&[NamedTensor::new("x", tensor)]);
            MessageReader::new(body(writer)).tensors()
        };
        assert_eq!(read(RANK_MAX).unwrap()[0].tensor.shape().len(), RANK_MAX);
        let error = read(RANK_MAX + 1).unwrap_err();
        assert!(error.message().ends_with("too many axes"), "{error}");
    }

    #[test]
    fn signatures_round_trip() {
        let dims = vec![Dim::Fixed(3), Dim::Dynamic(None), Dim::Dynamic(Some("n".to_owned()))];
        let spec =
            |shape| TensorSpec { name: "x".into(), dtype: DType::I64, shape, optional: true };
        let signature = Signature {
            inputs: vec![spec(Some(dims))],
            outputs: vec![spec(None), spec(Some(vec![]))],
        };
        let named = vec![NamedSignature {
            name: "classify".into(),
            method: "tensorflow/serving/classify".into(),
            signature: signature.clone(),
            input_tensors: vec!["x:0".into()],
            output_tensors: vec!["y:0".into(), "z:0".into()],
        }];
        let metadata = BTreeMap::from([("producer".to_owned(), "a test".to_owned())]);
        let error = Error::unavailable("later").with_retry_after(Duration::from_millis(1500));
        let mut writer = MessageWriter::new();
        writer.signature(&signature);
        writer.named_signatures(&named);
        writer.metadata(&metadata);
        writer.error(&error);
        let mut reader = MessageReader::new(body(writer));
        assert_eq!(reader.signature().unwrap(), signature);
        assert_eq!(reader.named_signatures().unwrap(), named);
        assert_eq!(reader.metadata().unwrap(), metadata);
        assert_eq!(reader.error().unwrap(), error);
    }

    proptest::proptest! {
        /// Truncated and arbitrary bytes cause no panic and no allocation of an announced length.
        #[test]
        fn damaged_bytes_are_errors(at in 0usize..200, value: u8, cut in 0usize..200) {
            let mut writer = MessageWriter::new();
            writer.tensors(&tensors());
            let mut bytes = body(writer).to_vec();
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(bytes.len().saturating_sub(cut));
            let _ = MessageReader::new(bytes.into()).tensors();
        }
    }
}
