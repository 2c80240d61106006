//! Requests, and the expected answers of each version.

use std::sync::Arc;

use base::{NamedTensor, Result};
use bytes::Bytes;

use super::contents::{ContentPair, index_of};
use crate::ctr::{Ctr, CtrInputs};
use crate::layers::TOLERANCE;
use loadgen::connection::{Endpoint, RawResponse, Template};
use loadgen::drive::{Judge, Judgement};
use loadgen::wire::{Api, ModelEndpoint, read_answer};

/// Number of different requests.
const REQUESTS: u64 = 32;
/// Seed of the requests.
const REQUEST_SEED: u64 = 2026;
/// Requests and expected answers.
pub struct Traffic {
    requests: Vec<Vec<NamedTensor>>,
    /// Expected answers by content and request.
    expected: Vec<Vec<Vec<f32>>>,
}

impl Traffic {
    /// Makes the requests and computes the answers of both contents.
    pub fn new(ctr: &Ctr, pair: ContentPair, batch: usize) -> Result<Traffic> {
        let features: Vec<CtrInputs> =
            (0..REQUESTS).map(|index| ctr.inputs(REQUEST_SEED, index, batch)).collect();
        Ok(Traffic {
            requests: features.iter().map(CtrInputs::tensors).collect::<Result<_>>()?,
            expected: pair.iter().map(|&content| ctr.reference(content, &features)).collect(),
        })
    }

    /// Encodes the requests to `model` for a gRPC listener.
    pub fn encode(&self, endpoint: &Endpoint, model: &str) -> Result<(Template, Arc<[Bytes]>)> {
        let target =
            ModelEndpoint { endpoint: endpoint.clone(), api: Api::Oip, model: model.into() };
        let encoded = target.encode(&self.requests)?;
        Ok((encoded.template, encoded.bodies.into()))
    }
}

impl Judge for Traffic {
    fn judge(&self, shot: usize, answer: &RawResponse) -> (Judgement, u64) {
        let Ok(outputs) = read_answer(answer) else { return (Judgement::Wrong, 0) };
        let expected = &self.expected[index_of(outputs.version)][shot];
        let right = outputs.version > 0
            && outputs.floats("prob").is_ok_and(|(_, values)| {
                values.len() == expected.len()
                    && values
                        .iter()
                        .zip(expected)
                        .all(|(value, wanted)| (value - wanted).abs() <= TOLERANCE)
            });
        (if right { Judgement::Right } else { Judgement::Wrong }, outputs.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::DISTINCT;
    use prost::Message;
    use protocol::inference::{ModelInferResponse, model_infer_response::InferOutputTensor};

    fn answer(version: u64, values: &[f32]) -> RawResponse {
        let output = InferOutputTensor {
            name: "prob".into(),
            datatype: "FP32".into(),
            shape: vec![values.len() as i64, 1],
            ..InferOutputTensor::default()
        };
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let message = ModelInferResponse {
            model_version: version.to_string(),
            outputs: vec![output],
            raw_output_contents: vec![raw.into()],
            ..ModelInferResponse::default()
        };
        RawResponse { body: message.encode_to_vec().into() }
    }

    #[test]
    fn an_answer_must_be_that_of_the_version_it_names() {
        let traffic = Traffic::new(&Ctr::of_bytes(4_000_000), DISTINCT, 2).unwrap();
        let (first, second) = (traffic.expected[0][5].clone(), traffic.expected[1][5].clone());
        assert_eq!(traffic.judge(5, &answer(1, &first)), (Judgement::Right, 1));
        assert_eq!(traffic.judge(5, &answer(3, &first)), (Judgement::Right, 3));
        assert_eq!(traffic.judge(5, &answer(2, &second)), (Judgement::Right, 2));
        assert_eq!(traffic.judge(5, &answer(2, &first)), (Judgement::Wrong, 2));
        assert_eq!(traffic.judge(6, &answer(1, &first)), (Judgement::Wrong, 1));
        assert_eq!(traffic.judge(5, &answer(1, &first[..1])), (Judgement::Wrong, 1));
        assert_eq!(traffic.judge(5, &answer(0, &first)), (Judgement::Wrong, 0));
        assert_eq!(
            traffic.judge(5, &RawResponse { body: Bytes::from_static(b"\xff\xff") }).0,
            Judgement::Wrong
        );
    }
}
