"""TensorFlow Serving's API through tensorflow-serving-api and plain REST calls."""

import grpc
import numpy as np
import pytest
import requests
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from endpoints import b64, tfs_channel
from millpond import drop_in
from models import half_plus_two


@pytest.fixture
def channel(server):
    with tfs_channel(server) as channel:
        yield channel


@pytest.fixture
def prediction(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture
def service(channel):
    return model_service_pb2_grpc.ModelServiceStub(channel)


def predict_request(model: str, version: int | None = None, **inputs) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    if version is not None:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def refused(call, code: grpc.StatusCode, *words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value.details()
    for word in words:
        assert word in caught.value.details()


# ---- gRPC


def test_predict(prediction):
    answer = prediction.Predict(predict_request("half_plus_two", x=np.array([1, 2, 5], np.float32)), timeout=60)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["y"]), np.array([2.5, 3, 4.5], np.float32))
    # As in TensorFlow Serving's example clients.
    assert list(answer.outputs["y"].float_val) == [2.5, 3, 4.5]
    assert answer.model_spec.name == "half_plus_two"
    assert answer.model_spec.version.value == 1
    assert answer.model_spec.signature_name == "serving_default"


def test_predict_in_typed_fields(prediction):
    """Small tensors use float_val; long ones of one value use a single entry, as in TensorFlow."""
    request = predict_request("half_plus_two")
    proto = request.inputs["x"]
    proto.dtype = tf.float32.as_datatype_enum
    proto.tensor_shape.dim.add(size=3)
    proto.float_val.append(4.0)
    answer = prediction.Predict(request, timeout=60)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [4, 4, 4]


def test_predict_without_values(prediction):
    """A tensor with a shape and no values is all zeros, as in TensorFlow."""
    request = predict_request("half_plus_two")
    request.inputs["x"].dtype = tf.float32.as_datatype_enum
    request.inputs["x"].tensor_shape.dim.add(size=2)
    assert tf.make_ndarray(prediction.Predict(request, timeout=60).outputs["y"]).tolist() == [2, 2]


def test_predict_only_the_requested_outputs(prediction):
    request = predict_request("symbolic", items=np.ones((1, 2, 4), np.float32), bias=np.zeros((1, 4), np.float32))
    request.output_filter.append("total")
    answer = prediction.Predict(request, timeout=60)
    assert list(answer.outputs) == ["total"]


def test_predict_by_version(prediction):
    x = np.array([1], np.float32)
    assert prediction.Predict(predict_request("half_plus_two", 1, x=x), timeout=60).model_spec.version.value == 1
    refused(lambda: prediction.Predict(predict_request("half_plus_two", 9, x=x), timeout=60), grpc.StatusCode.NOT_FOUND, "9")


def test_predict_refuses_mistakes(prediction):
    x = np.array([1], np.float32)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    ask = lambda **inputs: prediction.Predict(predict_request("half_plus_two", **inputs), timeout=60)  # noqa: E731
    refused(lambda: prediction.Predict(predict_request("nobody", x=x), timeout=60), grpc.StatusCode.NOT_FOUND, "nobody")
    refused(lambda: ask(), invalid, "x")
    refused(lambda: ask(wrong=x), invalid, "wrong")
    refused(lambda: ask(x=np.array([1], np.int64)), invalid, "x")
    refused(lambda: ask(x=np.ones((2, 2), np.float32)), invalid, "x")
    request = predict_request("half_plus_two", x=x)
    request.model_spec.signature_name = "regress"
    refused(lambda: prediction.Predict(request, timeout=60), grpc.StatusCode.FAILED_PRECONDITION, "regress")
    request = predict_request("half_plus_two", x=x)
    request.model_spec.version_label = "none"
    refused(lambda: prediction.Predict(request, timeout=60), invalid, "none")


def test_batches_of_different_sizes_are_refused(prediction, server):
    items, bias = np.ones((2, 2, 4), np.float32), np.zeros((3, 4), np.float32)
    request = predict_request("symbolic", items=items, bias=bias)
    refused(lambda: prediction.Predict(request, timeout=60), grpc.StatusCode.INVALID_ARGUMENT, "bias")
    # tf2onnx names the batch differently in each input, so only the engine finds the mistake.
    body = {"inputs": {"uid": [[5.0], [6.0]], "price": [[1.0]]}}
    answer = post(server, "unnamed_batches:predict", json=body)
    assert answer.status_code == 400 and "batch" in answer.json()["error"], answer.text


def test_get_model_metadata(prediction):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half_plus_two"
    answer = prediction.GetModelMetadata(request, timeout=60)
    assert answer.model_spec.version.value == 1
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    signature = signatures.signature_def["serving_default"]
    assert signature.inputs["x"].dtype == tf.float32.as_datatype_enum
    assert [dim.size for dim in signature.inputs["x"].tensor_shape.dim] == [-1]
    assert signature.outputs["y"].dtype == tf.float32.as_datatype_enum
    assert signature.method_name == "tensorflow/serving/predict"


def test_get_model_metadata_refuses_mistakes(prediction):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "nobody"
    refused(lambda: prediction.GetModelMetadata(request, timeout=60), grpc.StatusCode.NOT_FOUND, "nobody")
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["weather"])
    request.model_spec.name = "half_plus_two"
    refused(lambda: prediction.GetModelMetadata(request, timeout=60), grpc.StatusCode.INVALID_ARGUMENT, "metadata_field")


def test_get_model_status(service):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "half_plus_two"
    (status,) = service.GetModelStatus(request, timeout=60).model_version_status
    assert status.version == 1
    assert status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert status.status.error_code == 0
    request.model_spec.name = "nobody"
    refused(lambda: service.GetModelStatus(request, timeout=60), grpc.StatusCode.NOT_FOUND, "nobody")


# ---- Examples, which the settings of any model map to its inputs and outputs


EXAMPLE_SETTINGS = """
[classify]
scores = "y"
labels = ["half"]
[regress]
output = "y"
[examples.defaults]
x = 8.0
"""


@pytest.fixture
def examples(serve, tmp_path):
    """Serves half_plus_two with sections for Classify and Regress."""
    model = tmp_path / "models" / "half_plus_two"
    drop_in(half_plus_two(tmp_path / "model.onnx"), model, 1)
    (model / "millpond.toml").write_text(EXAMPLE_SETTINGS)
    return serve(tmp_path / "models")


def example(**features: float) -> tf.train.Example:
    values = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[value])) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=values))


def test_classify_and_regress(examples):
    with tfs_channel(examples) as channel:
        prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = "half_plus_two"
        request.input.example_list.examples.extend([example(x=1), example(x=5), example()])
        answer = prediction.Classify(request, timeout=60)
        found = [[(one.label, one.score) for one in list.classes] for list in answer.result.classifications]
        assert found == [[("half", 2.5)], [("half", 4.5)], [("half", 6.0)]]
        assert (answer.model_spec.version.value, answer.model_spec.signature_name) == (1, "serving_default")

        request = regression_pb2.RegressionRequest()
        request.model_spec.name = "half_plus_two"
        request.input.example_list_with_context.context.CopyFrom(example(x=2))
        request.input.example_list_with_context.examples.extend([example(), example(x=4)])
        answer = prediction.Regress(request, timeout=60)
        assert [one.value for one in answer.result.regressions] == [3, 4]

        request = inference_pb2.MultiInferenceRequest(input=request.input)
        for method in ("regress", "classify"):
            task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
            task.model_spec.name = "half_plus_two"
        first, second = prediction.MultiInference(request, timeout=60).results
        assert [one.value for one in first.regression_result.regressions] == [3, 4]
        assert second.classification_result.classifications[1].classes[0].score == 4
        request.tasks[0].method_name = "tensorflow/serving/predict"
        refused(lambda: prediction.MultiInference(request, timeout=60), grpc.StatusCode.UNIMPLEMENTED, "predict")


def test_rest_classify_and_regress(examples):
    body = {"context": {"x": 2.0}, "examples": [{}, {"x": 4.0}, {"x": 1}]}
    answer = post(examples, "half_plus_two:classify", json=body)
    assert (answer.status_code, answer.json()) == (200, {"results": [[["half", 3]], [["half", 4]], [["half", 2.5]]]})
    for path in ("half_plus_two:regress", "half_plus_two/versions/1:regress"):
        answer = post(examples, path, json=body)
        assert (answer.status_code, answer.json()) == (200, {"results": [3, 4, 2.5]})
    for wrong, words in [({"examples": [{"x": "word"}]}, "float32"), ({"examples": []}, "empty"), ({}, "examples")]:
        answer = post(examples, "half_plus_two:classify", json=wrong)
        assert answer.status_code == 400 and words in answer.json()["error"], answer.text
    answer = requests.get(f"{examples.url}/V1/Models/half_plus_two/Metadata", timeout=60)
    assert answer.json()["model_spec"]["name"] == "half_plus_two"
    slow = post(examples, "half_plus_two:predict", json={"instances": [1]}, headers={"Grpc-Timeout": "20S"})
    assert slow.status_code == 200, slow.text
    assert post(examples, "half_plus_two:predict", json={}, headers={"Grpc-Timeout": "soon"}).status_code == 400


# ---- REST


def post(server, path: str, **options) -> requests.Response:
    return requests.post(f"{server.url}/v1/models/{path}", timeout=60, **options)


def test_rest_row_form(server):
    for path in ("half_plus_two:predict", "half_plus_two/versions/1:predict"):
        answer = post(server, path, json={"instances": [1.0, 2.0, 5.0]})
        assert (answer.status_code, answer.json()) == (200, {"predictions": [2.5, 3.0, 4.5]})


def test_rest_row_form_with_names(server):
    rows = [{"items": [[1, 1, 1, 1]], "bias": [0, 0, 0, 0]}, {"items": [[2, 2, 2, 2]], "bias": [1, 0, 0, 0]}]
    answer = post(server, "symbolic:predict", json={"instances": rows, "signature_name": "serving_default"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "predictions": [
            {"shifted": [[1, 1, 1, 1]], "total": 4},
            {"shifted": [[3, 2, 2, 2]], "total": 9},
        ]
    }


def test_rest_column_form(server):
    answer = post(server, "half_plus_two:predict", json={"inputs": [1.0, 2.0, 5.0]})
    assert (answer.status_code, answer.json()) == (200, {"outputs": [2.5, 3.0, 4.5]})
    answer = post(server, "half_plus_two:predict", json={"inputs": {"x": [1.0]}})
    assert (answer.status_code, answer.json()) == (200, {"outputs": [2.5]})


def test_rest_bytes(server):
    row = [b64(b"\x00\xff raw"), "plain"]
    answer = post(server, "strings:predict", json={"instances": [["a", "b"], ["c", b64(b"d")]]})
    assert (answer.status_code, answer.json()) == (200, {"predictions": [["a", "b"], ["c", "d"]]})
    # Bytes that are not text cannot be a JSON string. An output whose name does not end in _bytes has no other
    # form, so the server may refuse but must not fail.
    assert post(server, "strings:predict", json={"instances": [row]}).status_code in (200, 400)
    server.assert_serving()


def test_rest_numbers_that_json_lacks(server):
    """TensorFlow Serving reads and writes NaN and Infinity as bare words."""
    answer = post(server, "half_plus_two:predict", data='{"instances": [NaN, Infinity, -Infinity]}')
    assert answer.status_code == 200, answer.text
    first, *rest = answer.json()["predictions"]
    assert first != first
    assert rest == [float("inf"), float("-inf")]


def test_rest_status(server):
    expected = {
        "model_version_status": [
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    for path in ("half_plus_two", "half_plus_two/versions/1"):
        answer = requests.get(f"{server.url}/v1/models/{path}", timeout=60)
        assert (answer.status_code, answer.json()) == (200, expected)


def test_rest_metadata(server):
    answer = requests.get(f"{server.url}/v1/models/half_plus_two/metadata", timeout=60)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["model_spec"] == {"name": "half_plus_two", "signature_name": "", "version": "1"}
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signature["inputs"]["x"]["tensor_shape"]["dim"] == [{"size": "-1", "name": "batch"}] or (
        signature["inputs"]["x"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
    )
    assert signature["method_name"] == "tensorflow/serving/predict"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("nobody:predict", '{"instances": [1]}', 404, ["nobody"]),
        ("half_plus_two/versions/9:predict", '{"instances": [1]}', 404, ["9"]),
        ("half_plus_two/labels/nolabel:predict", '{"instances": [1]}', 400, ["nolabel"]),
        ("half_plus_two:predict", '{"instances": [1', 400, []),
        ("half_plus_two:predict", "", 400, []),
        ("half_plus_two:predict", "[1, 2]", 400, []),
        ("half_plus_two:predict", "{}", 400, ["instances"]),
        ("half_plus_two:predict", '{"instances": [1], "inputs": [1]}', 400, []),
        ("half_plus_two:predict", '{"instances": []}', 400, []),
        ("half_plus_two:predict", '{"instances": [[1], [1, 2]]}', 400, []),
        ("half_plus_two:predict", '{"instances": ["word"]}', 400, []),
        ("half_plus_two:predict", '{"inputs": {"wrong": [1]}}', 400, ["wrong"]),
        ("half_plus_two:predict", '{"inputs": [[1, 2]]}', 400, ["x"]),
        ("half_plus_two:predict", '{"instances": [1], "signature_name": "other"}', 400, ["other"]),
        ("half_plus_two:classify", '{"examples": [{"x": 1}]}', 400, ["[classify]"]),
        ("half_plus_two:predict", '{"instances": [' * 5000, 400, []),
    ],
)
def test_rest_refuses_mistakes(server, path, body, status, words):
    answer = post(server, path, data=body)
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]
    assert message and all(word in message for word in words), message
    server.assert_serving()
