//! Memory of a decoded message, against the bound that was computed before.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use prost::Message;
use protocol::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use protocol::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, infer_parameter::ParameterChoice,
};
use protocol::tensorflow::serving::PredictRequest;
use protocol::weigh::weigh;

type Parameters = std::collections::BTreeMap<String, InferParameter>;

fn parameters() -> impl Strategy<Value = Parameters> {
    let value = ".{0,9}".prop_map(|text| InferParameter {
        parameter_choice: Some(ParameterChoice::StringParam(text)),
    });
    btree_map(".{0,6}", value, 0..40)
}

fn contents() -> impl Strategy<Value = InferTensorContents> {
    let numbers = (
        vec(any::<bool>(), 0..50),
        vec(any::<i32>(), 0..50),
        vec(any::<i64>(), 0..50),
        vec(any::<u32>(), 0..50),
    );
    let others =
        (vec(any::<f32>(), 0..50), vec(any::<f64>(), 0..50), vec(vec(any::<u8>(), 0..3), 0..99));
    (numbers, others).prop_map(|((bools, ints, longs, unsigned), (singles, doubles, strings))| {
        InferTensorContents {
            bool_contents: bools,
            int_contents: ints,
            int64_contents: longs,
            uint_contents: unsigned,
            fp32_contents: singles,
            fp64_contents: doubles,
            bytes_contents: strings.into_iter().map(Into::into).collect(),
            ..InferTensorContents::default()
        }
    })
}

fn request() -> impl Strategy<Value = ModelInferRequest> {
    let input = (".{0,9}", vec(any::<i64>(), 0..9), parameters(), proptest::option::of(contents()));
    let input = input.prop_map(|(name, shape, parameters, contents)| InferInputTensor {
        name,
        shape,
        parameters,
        contents,
        ..InferInputTensor::default()
    });
    let output = (".{0,9}", parameters())
        .prop_map(|(name, parameters)| InferRequestedOutputTensor { name, parameters });
    let raw = vec(vec(any::<u8>(), 0..9), 0..9);
    (".{0,99}", parameters(), vec(input, 0..9), vec(output, 0..9), raw).prop_map(
        |(model_name, parameters, inputs, outputs, raw)| ModelInferRequest {
            model_name,
            parameters,
            inputs,
            outputs,
            raw_input_contents: raw.into_iter().map(Into::into).collect(),
            ..ModelInferRequest::default()
        },
    )
}

/// Bytes that a list holds, and held while it grew to that.
fn list<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>() * 3 / 2
}

/// Bytes of a map whose nodes have room for 11 entries and are half full.
fn map(map: &Parameters) -> usize {
    let texts = map.iter().map(|(name, value)| {
        let text = match &value.parameter_choice {
            Some(ParameterChoice::StringParam(text)) => text.capacity(),
            _ => 0,
        };
        name.capacity() + text
    });
    let nodes = map.len().div_ceil(5);
    nodes * (11 * (size_of::<String>() + size_of::<InferParameter>()) + 16 + 96)
        + texts.sum::<usize>()
}

fn held(request: &ModelInferRequest) -> usize {
    let contents = |contents: &InferTensorContents| {
        list(&contents.bool_contents)
            + list(&contents.int_contents)
            + list(&contents.int64_contents)
            + list(&contents.uint_contents)
            + list(&contents.fp32_contents)
            + list(&contents.fp64_contents)
            + list(&contents.bytes_contents)
    };
    let inputs = request.inputs.iter().map(|input| {
        let within = input.contents.as_ref().map_or(0, contents);
        input.name.capacity() + list(&input.shape) + map(&input.parameters) + within
    });
    let outputs =
        request.outputs.iter().map(|output| output.name.capacity() + map(&output.parameters));
    let lists = list(&request.inputs) + list(&request.outputs) + list(&request.raw_input_contents);
    let sum = inputs.sum::<usize>() + outputs.sum::<usize>() + lists;
    sum + request.model_name.capacity() + map(&request.parameters)
}

proptest! {
    #[test]
    fn no_message_takes_more_than_it_weighs(request in request()) {
        let bytes = bytes::Bytes::from(request.encode_to_vec());
        let weight = weigh::<ModelInferRequest>(&bytes, u64::MAX).unwrap();
        let decoded = ModelInferRequest::decode(bytes).unwrap();
        prop_assert!(weight.whole && weight.bytes >= held(&decoded) as u64, "{weight:?} {}", held(&decoded));
    }

    /// A message that cannot be weighed cannot be decoded either, except for counts.
    #[test]
    fn decodable_messages_can_be_weighed(noise in vec(any::<u8>(), 0..64)) {
        let weight = weigh::<ModelInferRequest>(&noise, u64::MAX);
        if let Err(error) = weight {
            prop_assert!(ModelInferRequest::decode(&noise[..]).is_err(), "{error}");
        }
    }
}

/// Names of outputs are copied, and inputs are not.
#[test]
fn names_of_requested_outputs_are_weighed() {
    let name = "y".repeat(1 << 20);
    let held = name.capacity() as u64;
    let request = PredictRequest { output_filter: vec![name], ..PredictRequest::default() };
    let weight = weigh::<PredictRequest>(&request.encode_to_vec(), u64::MAX).unwrap();
    assert!(weight.whole && weight.bytes >= held, "{weight:?}");
}

#[test]
fn a_million_strings_are_a_request_like_any_other() {
    let strings = vec![bytes::Bytes::from_static(b"text"); 1_000_000];
    let contents =
        InferTensorContents { bytes_contents: strings, ..InferTensorContents::default() };
    let input = InferInputTensor {
        contents: Some(contents),
        shape: vec![1_000_000],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest { inputs: vec![input], ..ModelInferRequest::default() };
    let weight = weigh::<ModelInferRequest>(&request.encode_to_vec(), u64::MAX).unwrap();
    assert!(weight.whole && weight.bytes < 100 << 20, "{weight:?}");
}
