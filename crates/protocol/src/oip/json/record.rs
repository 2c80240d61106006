//! Records of a request log: one line of JSON for each request. A line is a body of an infer
//! request with further members, so a client can send it as it is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Error, NamedTensor, Result, UtcTime, VersionId};
use bytes::Bytes;
use memchr::memchr;

use super::request::read_request;
use super::tensor::{TensorForm, write_tensors};
use super::{RestInferRequest, parse_response};
use crate::json::{JsonReader, key, string};
use crate::oip::SIGNATURE_NAME;

/// Maximum bytes of a line.
const RECORD_BYTES_MAX: usize = 256 << 20;
/// Status of a request that was answered.
const OK: &str = "ok";

/// A request that has ended, to be logged.
#[derive(Clone, Debug)]
pub struct InferRecord<'a> {
    /// Time at which the request started.
    pub time: SystemTime,
    /// Time from the start until the outputs were ready.
    pub duration: Duration,
    /// Version that ran the request.
    pub id: &'a VersionId,
    /// Protocol of the request.
    pub protocol: &'a str,
    /// "ok" or the kind of its error.
    pub status: &'a str,
    /// Message of the error of a failed request.
    pub error: Option<&'a str>,
    /// Id of the trace, if the request is traced.
    pub trace_id: Option<String>,
    /// Signature of the request, or `None` for the model's default.
    pub signature: Option<&'a str>,
    /// Inputs of the request.
    pub inputs: &'a [NamedTensor],
    /// Names of the requested outputs. Empty for all.
    pub requested: &'a [Arc<str>],
    /// Outputs of the request. Empty after an error.
    pub outputs: &'a [NamedTensor],
}

/// A request of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedInfer {
    /// Model that the request named.
    pub model: String,
    /// Version that ran the request.
    pub version: String,
    /// "ok" or the kind of its error.
    pub status: String,
    /// Request as the client sent it, with its tensors.
    pub request: RestInferRequest,
    /// The outputs that the server answered with.
    pub response: Vec<NamedTensor>,
}

impl RecordedInfer {
    /// Returns true if the server answered the request with outputs, so that it can be replayed.
    pub fn answered(&self) -> bool {
        self.status == OK
    }
}

/// Writes a record as one line with its end.
///
/// # Errors
/// `InvalidArgument` for a tensor whose type has no form in JSON.
pub fn encode_record(record: &InferRecord<'_>) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    line.push(b'{');
    key(&mut line, "time");
    string(&mut line, &utc(record.time));
    member(&mut line, "model_name", &record.id.model);
    member(&mut line, "model_version", &record.id.version.to_string());
    member(&mut line, "protocol", record.protocol);
    member(&mut line, "status", record.status);
    if let Some(error) = record.error {
        member(&mut line, "error", error);
    }
    if let Some(trace_id) = &record.trace_id {
        member(&mut line, "trace_id", trace_id);
    }
    line.extend_from_slice(format!(",\"duration_us\":{}", record.duration.as_micros()).as_bytes());
    if let Some(signature) = record.signature {
        line.extend_from_slice(b",\"parameters\":{");
        key(&mut line, SIGNATURE_NAME);
        string(&mut line, signature);
        line.push(b'}');
    }
    line.push(b',');
    write_tensors(&mut line, "inputs", record.inputs, TensorForm::Lossless)?;
    if !record.requested.is_empty() {
        line.extend_from_slice(b",\"outputs\":[");
        for (position, output) in record.requested.iter().enumerate() {
            line.extend_from_slice(if position > 0 { b",{\"name\":" } else { b"{\"name\":" });
            string(&mut line, output);
            line.push(b'}');
        }
        line.push(b']');
    }
    if record.status == OK {
        line.extend_from_slice(b",\"response\":{");
        write_tensors(&mut line, "outputs", record.outputs, TensorForm::Lossless)?;
        line.push(b'}');
    }
    line.extend_from_slice(b"}\n");
    Ok(line)
}

fn member(line: &mut Vec<u8>, name: &str, value: &str) {
    line.push(b',');
    key(line, name);
    string(line, value);
}

/// Takes the first line that is not blank off `rest`. Returns `None` if there is none.
pub fn next_line(rest: &mut Bytes) -> Option<Bytes> {
    while !rest.is_empty() {
        let end = memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest.split_to(end);
        // The end of the line.
        let _ = rest.split_to(rest.len().min(1));
        if !line.trim_ascii().is_empty() {
            return Some(line);
        }
    }
    None
}

/// Reads a line. A line without a status, such as the body of an infer request, counts as answered.
///
/// # Errors
/// `InvalidArgument` for anything but an infer request in JSON.
pub fn parse_record(line: Bytes) -> Result<RecordedInfer> {
    if line.len() > RECORD_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the record is longer than {RECORD_BYTES_MAX} bytes"
        )));
    }
    let mut record = RecordedInfer { status: OK.to_owned(), ..RecordedInfer::default() };
    let mut response = None;
    let text = |reader: &mut JsonReader<'_>| Ok(reader.string()?.into_owned());
    let request = read_request(&line, |reader, key| {
        match key {
            "model_name" => record.model = text(reader)?,
            "model_version" => record.version = text(reader)?,
            "status" => record.status = text(reader)?,
            "response" => response = Some(reader.pass()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    record.request = request;
    if let Some(response) = response {
        record.response = parse_response(line.slice(response), None)?.outputs;
    }
    Ok(record)
}

/// Returns `time` in UTC as RFC 3339 has it, with microseconds.
fn utc(time: SystemTime) -> String {
    let UtcTime { year, month, day, hour, minute, second, micros } = UtcTime::of(time);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use base::Tensor;
    use proptest::prelude::*;

    use super::*;

    fn id() -> VersionId {
        VersionId { model: "iris \"x\"".into(), version: 7 }
    }

    fn record<'a>(
        id: &'a VersionId,
        inputs: &'a [NamedTensor],
        outputs: &'a [NamedTensor],
    ) -> InferRecord<'a> {
        InferRecord {
            time: UNIX_EPOCH + Duration::from_micros(1_795_642_245_123_456),
            duration: Duration::from_micros(1234),
            id,
            protocol: "oip-http",
            status: "ok",
            error: None,
            trace_id: None,
            signature: None,
            inputs,
            requested: &[],
            outputs,
        }
    }

    #[test]
    fn a_record_is_an_infer_request() {
        let inputs =
            [NamedTensor::new("x", Tensor::from_vec(&[2][..], vec![1.5f32, 2.0]).unwrap())];
        let (id, requested) = (id(), ["y".into()]);
        let record = InferRecord {
            signature: Some("other"),
            requested: &requested,
            trace_id: Some("4bf9".into()),
            ..record(&id, &inputs, &inputs)
        };
        let line = encode_record(&record).unwrap();
        let text = r#"{"time":"2026-11-25T21:30:45.123456Z","model_name":"iris \"x\"","model_version":"7","#
            .to_owned()
            + r#""protocol":"oip-http","status":"ok","trace_id":"4bf9","duration_us":1234,"#
            + r#""parameters":{"signature_name":"other"},"#
            + r#""inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1.5,2.0]}],"outputs":[{"name":"y"}],"#
            + r#""response":{"outputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1.5,2.0]}]}}"#
            + "\n";
        assert_eq!(String::from_utf8(line.clone()).unwrap(), text);
        let body =
            super::super::parse_infer(line.into(), None, &base::Signature::default()).unwrap();
        assert_eq!(body.inputs, inputs);
        assert_eq!((body.signature.as_str(), &*body.outputs[0].name), ("other", "y"));
    }

    #[test]
    fn a_failed_request_is_not_answered() {
        let id = id();
        let record =
            InferRecord { status: "internal", error: Some("it\nbroke"), ..record(&id, &[], &[]) };
        let line = encode_record(&record).unwrap();
        assert_eq!(memchr(b'\n', &line), Some(line.len() - 1));
        let parsed = parse_record(line.into()).unwrap();
        assert!(!parsed.answered() && parsed.response.is_empty());
        let body = Bytes::from_static(br#"{"inputs":[]}"#);
        assert!(parse_record(body).unwrap().answered(), "a plain request");
        for wrong in ["", "{", "[]", r#"{"inputs":1}"#, r#"{"outputs":[]}"#] {
            assert!(parse_record(Bytes::from_static(wrong.as_bytes())).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines_are_split() {
        let mut rest = Bytes::from_static(b"\n{1}\r\n \n{2}");
        let lines: Vec<Bytes> = std::iter::from_fn(|| next_line(&mut rest)).collect();
        assert_eq!(lines, ["{1}\r", "{2}"]);
    }

    #[test]
    fn dates_are_gregorian() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000Z");
    }

    proptest! {
        #[test]
        fn tensors_survive(
            floats in prop::collection::vec(any::<f32>(), 0..9),
            doubles in prop::collection::vec(any::<f64>(), 0..9),
            halves in prop::collection::vec(any::<u16>(), 0..9),
            strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..9),
        ) {
            // A NaN has many forms, and JSON has one word for all.
            let floats: Vec<f32> = floats.into_iter().map(|x| if x.is_nan() { 0.0 } else { x }).collect();
            let doubles: Vec<f64> = doubles.into_iter().map(|x| if x.is_nan() { 0.0 } else { x }).collect();
            let halves: Vec<half::f16> = halves.into_iter().map(half::f16::from_bits)
                .map(|x| if x.is_nan() { half::f16::ZERO } else { x }).collect();
            let strings: Vec<Bytes> = strings.into_iter().map(Bytes::from).collect();
            let tensors = [
                NamedTensor::new("f", Tensor::from_vec(&[floats.len()][..], floats).unwrap()),
                NamedTensor::new("d", Tensor::from_vec(&[doubles.len()][..], doubles).unwrap()),
                NamedTensor::new("h", Tensor::from_vec(&[halves.len()][..], halves).unwrap()),
                NamedTensor::new("s", Tensor::from_strings(&[strings.len()][..], strings).unwrap()),
            ];
            let id = id();
            let line = encode_record(&record(&id, &tensors, &tensors)).unwrap();
            let parsed = parse_record(line.into()).unwrap();
            prop_assert_eq!(&parsed.request.inputs[..], &tensors[..]);
            prop_assert_eq!(&parsed.response[..], &tensors[..]);
            prop_assert_eq!((parsed.model, parsed.version), (id.model.to_string(), "7".to_owned()));
        }

        #[test]
        fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_record(line.into());
        }
    }
}
