//! Messages between the server and a worker process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, NamedTensor, Result, Signature};
use bytes::Bytes;
use engine::{NamedSignature, Session, SessionOptions};
use serde::{Deserialize, Serialize};

use crate::frame::LENGTH_BYTES;
use crate::wire::{MessageReader, MessageWriter};

/// Rates and kinds of memory for the parameters of published versions.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct WorkerMemory {
    /// Bytes read per second; 0 is unlimited.
    pub read_rate: u64,
    /// Bytes of memory faulted in per second; 0 is unlimited.
    pub fault_rate: u64,
    /// True to request pages of 2 MiB.
    pub huge_pages: bool,
    /// True to read with O_DIRECT.
    pub direct: bool,
}

/// Byte before the message of a load, sent with the sockets of the runs.
pub(crate) const LOAD_REQUEST: u8 = 0;
/// Byte before a [`LibraryMessage`]. Once the process has replied, it waits for a load.
pub(crate) const LIBRARY_REQUEST: u8 = 1;

/// A library for a spare worker process to open, as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct LibraryMessage {
    pub(crate) engine: String,
    /// True to open it at idle priority, false at ordinary priority.
    pub(crate) idle: bool,
}

impl LibraryMessage {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut body = vec![0; LENGTH_BYTES];
        serde_json::to_writer(&mut body, self)
            .map_err(|error| Error::internal(error.to_string()))?;
        Ok(body)
    }

    pub(crate) fn decode(body: &[u8]) -> Result<LibraryMessage> {
        serde_json::from_slice(body).map_err(|error| Error::internal(error.to_string()))
    }
}

/// A model for a worker process to open, as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct LoadMessage {
    pub(crate) model: String,
    pub(crate) engine: String,
    pub(crate) graph: PathBuf,
    pub(crate) options: SessionOptions,
    pub(crate) memory: WorkerMemory,
    /// True to load at idle priority.
    pub(crate) background: bool,
}

impl LoadMessage {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut body = vec![0; LENGTH_BYTES];
        serde_json::to_writer(&mut body, self)
            .map_err(|error| Error::invalid(self.graph.display().to_string()).caused_by(error))?;
        Ok(body)
    }

    pub(crate) fn decode(body: &[u8]) -> Result<LoadMessage> {
        serde_json::from_slice(body).map_err(|error| Error::internal(error.to_string()))
    }
}

/// Facts about an opened model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelFacts {
    pub(crate) signature: Signature,
    pub(crate) signatures: Vec<NamedSignature>,
    pub(crate) default_signature: usize,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) stateful: bool,
    pub(crate) changes_state: bool,
}

impl ModelFacts {
    pub(crate) fn of(session: &dyn Session) -> ModelFacts {
        ModelFacts {
            signature: session.signature().clone(),
            signatures: session.signatures().to_vec(),
            default_signature: session.default_signature(),
            metadata: session.metadata().clone(),
            stateful: session.stateful(),
            changes_state: session.changes_state(),
        }
    }

    fn read(reader: &mut MessageReader) -> Result<ModelFacts> {
        Ok(ModelFacts {
            signature: reader.signature()?,
            signatures: reader.named_signatures()?,
            default_signature: reader.number()? as usize,
            metadata: reader.metadata()?,
            stateful: reader.byte()? != 0,
            changes_state: reader.byte()? != 0,
        })
    }

    fn write(&self, writer: &mut MessageWriter) {
        writer.signature(&self.signature);
        writer.named_signatures(&self.signatures);
        writer.number(self.default_signature as u64);
        writer.metadata(&self.metadata);
        writer.byte(u8::from(self.stateful));
        writer.byte(u8::from(self.changes_state));
    }
}

/// Inputs of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct RunMessage {
    /// Position of the signature; `None` for the default one.
    pub(crate) signature: Option<usize>,
    pub(crate) outputs: Vec<Arc<str>>,
    pub(crate) inputs: Vec<NamedTensor>,
}

/// Builds the message of a run.
pub(crate) fn encode_run(
    signature: Option<usize>,
    inputs: &[NamedTensor],
    outputs: &[Arc<str>],
) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    writer.number(signature.map_or(0, |number| number as u64 + 1));
    writer.texts(outputs.iter().map(|name| &**name));
    writer.tensors(inputs);
    writer.into_frame()
}

impl RunMessage {
    pub(crate) fn decode(body: Bytes) -> Result<RunMessage> {
        let mut reader = MessageReader::new(body);
        Ok(RunMessage {
            signature: (reader.number()? as usize).checked_sub(1),
            outputs: reader.names()?,
            inputs: reader.tensors()?,
        })
    }
}

/// Builds the answer to a load or a run.
fn encode_reply<T>(outcome: &Result<T>, write: impl FnOnce(&mut MessageWriter, &T)) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    match outcome {
        Ok(value) => {
            writer.byte(1);
            write(&mut writer, value);
        }
        Err(error) => {
            writer.byte(0);
            writer.error(error);
        }
    }
    writer.into_frame()
}

/// Reads an answer. The outer error means a damaged message, and the inner error is the engine's.
fn decode_reply<T>(
    body: Bytes,
    read: impl FnOnce(&mut MessageReader) -> Result<T>,
) -> Result<Result<T>> {
    let mut reader = MessageReader::new(body);
    match reader.byte()? {
        0 => reader.error().map(Err),
        _ => read(&mut reader).map(Ok),
    }
}

pub(crate) fn encode_library_opened(outcome: &Result<()>) -> Vec<u8> {
    encode_reply(outcome, |_, _| {})
}

pub(crate) fn decode_library_opened(body: Bytes) -> Result<Result<()>> {
    decode_reply(body, |_| Ok(()))
}

pub(crate) fn encode_loaded(outcome: &Result<ModelFacts>) -> Vec<u8> {
    encode_reply(outcome, |writer, facts| facts.write(writer))
}

pub(crate) fn decode_loaded(body: Bytes) -> Result<Result<ModelFacts>> {
    decode_reply(body, ModelFacts::read)
}

pub(crate) fn encode_outputs(outcome: &Result<Vec<NamedTensor>>) -> Vec<u8> {
    encode_reply(outcome, |writer, outputs| writer.tensors(outputs))
}

pub(crate) fn decode_outputs(body: Bytes) -> Result<Result<Vec<NamedTensor>>> {
    decode_reply(body, MessageReader::tensors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Tensor;

    fn body(frame: Vec<u8>) -> Bytes {
        Bytes::from(frame).slice(LENGTH_BYTES..)
    }

    #[test]
    fn messages_round_trip() {
        let x = NamedTensor::new("x", Tensor::from_vec([2].as_slice(), vec![1f32, 2.0]).unwrap());
        let run =
            RunMessage { signature: Some(0), outputs: vec!["y".into()], inputs: vec![x.clone()] };
        let encoded = encode_run(run.signature, &run.inputs, &run.outputs);
        assert_eq!(RunMessage::decode(body(encoded)).unwrap(), run);
        for outcome in [Ok(vec![x]), Err(Error::invalid("an index out of range"))] {
            assert_eq!(decode_outputs(body(encode_outputs(&outcome))).unwrap(), outcome);
        }
        for outcome in [Ok(()), Err(Error::not_found("no library"))] {
            let encoded = encode_library_opened(&outcome);
            assert_eq!(decode_library_opened(body(encoded)).unwrap(), outcome);
        }
    }

    /// A program from before spare processes reads each message as a load. It answers with an
    /// error, so the server does not wait for it.
    #[test]
    fn an_older_program_refuses_a_library() {
        let message = LibraryMessage { engine: "fake".to_owned(), idle: true };
        let encoded = body(message.encode().unwrap());
        assert!(LoadMessage::decode(&encoded).is_err());
        let decoded = LibraryMessage::decode(&encoded).unwrap();
        assert_eq!((decoded.engine, decoded.idle), (message.engine, message.idle));
    }
}
