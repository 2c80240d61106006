//! A file of golden requests: a list of infer requests with the responses that a version must give.

use base::{Error, NamedTensor, Result, Signature};
use bytes::Bytes;

use super::{RestInferRequest, parse_infer, parse_response};
use crate::json::JsonReader;

/// A request, and the outputs that its response must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldenInfer {
    /// Request to send, without the model's name.
    pub request: RestInferRequest,
    /// Outputs that the response must have.
    pub outputs: Vec<NamedTensor>,
}

/// Reads `[{"request": BODY, "response": BODY}, ..]` with the bodies of requests and responses.
/// `signature` gives the types of inputs without one.
///
/// # Errors
/// `InvalidArgument` for anything else. Errors of a body name the number of its request.
pub fn parse_golden(file: &Bytes, signature: &Signature) -> Result<Vec<GoldenInfer>> {
    let form = |error: Error| {
        let form = "the file must be a list of {\"request\": .., \"response\": ..}";
        Error::invalid(format!("{}; {form}", error.message()))
    };
    let mut bodies = Vec::new();
    let mut reader = JsonReader::new(file);
    reader
        .array(|reader| {
            let mut request = None;
            let mut response = None;
            reader.object(|reader, key| {
                match key {
                    "request" => request = Some(reader.pass()?),
                    "response" => response = Some(reader.pass()?),
                    _ => return Err(reader.error(format_args!("unknown field \"{key}\""))),
                }
                Ok(())
            })?;
            let (Some(request), Some(response)) = (request, response) else {
                return Err(reader.error("\"request\" or \"response\" is missing"));
            };
            bodies.push((file.slice(request), file.slice(response)));
            Ok(())
        })
        .map_err(form)?;
    reader.end().map_err(form)?;
    let parse = |(number, (request, response)): (usize, (Bytes, Bytes))| {
        let named = |error: Error| error.context(format_args!("golden request {number}"));
        Ok(GoldenInfer {
            request: parse_infer(request, None, signature).map_err(named)?,
            outputs: parse_response(response, None).map_err(named)?.outputs,
        })
    };
    bodies.into_iter().enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<GoldenInfer>> {
        parse_golden(&Bytes::copy_from_slice(text.as_bytes()), &Signature::default())
    }

    #[test]
    fn requests_and_outputs_are_read() {
        let x = r#"{"name":"x","datatype":"FP32","shape":[2],"data":[1,NaN]}"#;
        let case = format!(r#"{{"response":{{"outputs":[{x}]}},"request":{{"inputs":[{x}]}}}}"#);
        let cases = parse(&format!(" [{case}, {case}]\n")).unwrap();
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].request.inputs, cases[0].outputs);
        assert!(parse("[]").unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, wanted) in [
            ("{}", "must be a list"),
            ("[{}]", "is missing"),
            ("[{\"request\": {}}]", "is missing"),
            ("[{\"inputs\": []}]", "unknown field \"inputs\""),
            ("[] []", "the end"),
            ("[{\"request\": {}, \"response\": {}}]", "golden request 0"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message().contains(wanted), "{text}: {error}");
        }
    }
}
