//! Golden requests of a model. They are a TFRecord of PredictionLog with responses, as the request
//! log writes it, or a JSON list of Open Inference Protocol requests and responses.

use std::path::Path;

use base::Result;
use bytes::Bytes;
use engine::Servable;
use lifecycle::{GoldenCase, WarmupCall};
use protocol::oip::json::{GoldenInfer, parse_golden};
use protocol::tfs::warmup::AnsweredRecord;

use crate::warmup::{predict, read};

/// Reads the golden requests in `file` for the version that `servable` runs. A file that begins
/// with a bracket is JSON.
///
/// # Errors
/// The errors of the file; `InvalidArgument` or `DataLoss` with the number of a malformed request.
pub(crate) fn read_cases(file: &Path, servable: &Servable) -> Result<Vec<GoldenCase>> {
    let bytes = read(file)?;
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    let cases = if start == Some(&b'[') {
        json_cases(&bytes, servable)
    } else {
        protocol::tfs::warmup::read_answered(&bytes)
            .map(|records| records.into_iter().map(|record| recorded(servable, record)).collect())
    };
    cases.map_err(|error| error.context(file.display()))
}

fn recorded(servable: &Servable, record: AnsweredRecord) -> GoldenCase {
    let AnsweredRecord { signature, inputs, requested, outputs } = record;
    let call = WarmupCall { signature, inputs, outputs: requested };
    GoldenCase { call: predict(servable, call), expected: outputs }
}

fn json_cases(bytes: &Bytes, servable: &Servable) -> Result<Vec<GoldenCase>> {
    let case = |GoldenInfer { request, outputs: expected }: GoldenInfer| {
        let outputs = request.outputs.iter().map(|output| output.name.clone()).collect();
        let call = WarmupCall { signature: request.signature, inputs: request.inputs, outputs };
        GoldenCase { call, expected }
    };
    let cases = parse_golden(bytes, servable.signature())?;
    Ok(cases.into_iter().map(case).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{NamedTensor, Tensor, VersionId};
    use engine::fake::FakeEngine;
    use engine::{Engine, LoadRequest, ScheduleOptions};

    use super::*;

    fn echo(dir: &Path) -> Servable {
        let graph = dir.join("graph");
        let text = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
        std::fs::write(&graph, text).unwrap();
        let engine = FakeEngine::new();
        let session = engine.load(&LoadRequest { graph, ..LoadRequest::default() }).unwrap();
        let id = VersionId { model: "echo".into(), version: 1 };
        Servable::new(id, engine.name(), session, ScheduleOptions::default()).unwrap()
    }

    fn tensor(name: &str) -> Vec<NamedTensor> {
        vec![NamedTensor::new(
            name,
            Tensor::from_vec([2usize].as_slice(), vec![1f32, 2.0]).unwrap(),
        )]
    }

    #[test]
    fn both_forms_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let servable = echo(dir.path());
        let file = dir.path().join("golden");
        let json = r#" [{"request":{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]},
            "response":{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1,2]}]}}]"#;
        std::fs::write(&file, json).unwrap();
        let from_json = read_cases(&file, &servable).unwrap();
        let mut records = Vec::new();
        let requested: [Arc<str>; 0] = [];
        let log = protocol::tfs::warmup::encode_log(
            &servable.id,
            "",
            &tensor("x"),
            &requested,
            tensor("y"),
        );
        protocol::tfs::warmup::append(&mut records, &log);
        std::fs::write(&file, records).unwrap();
        let from_records = read_cases(&file, &servable).unwrap();
        for cases in [from_json, from_records] {
            assert_eq!(cases.len(), 1);
            assert_eq!((&cases[0].call.inputs, &cases[0].expected), (&tensor("x"), &tensor("y")));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let servable = echo(dir.path());
        let file = dir.path().join("golden");
        let mut unanswered = Vec::new();
        let requests = protocol::tfs::warmup::write_requests("echo", &[tensor("x")]);
        unanswered.extend_from_slice(&requests);
        for (content, wanted) in [
            (b"[{\"inputs\": []}]".to_vec(), "list of {\"request\""),
            (
                b"[{\"request\": {}, \"response\": {}}]".to_vec(),
                "golden request 0: the request has no",
            ),
            (unanswered, "record 0: it has no response"),
            (b"words".to_vec(), "record 0: the file ends"),
        ] {
            std::fs::write(&file, &content).unwrap();
            let error = read_cases(&file, &servable).unwrap_err();
            assert!(error.message().contains(wanted), "{error}");
        }
        // The read of a named pipe would wait, and that of a device might not end.
        let error = read_cases(Path::new("/dev/null"), &servable).unwrap_err();
        assert!(error.message().contains("not a regular file"), "{error}");
    }
}
