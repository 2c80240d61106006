"""Status codes of refused gRPC calls."""

import grpc
import numpy as np
import tensorflow as tf
from model_server import fill_spec, refused
from tensorflow_serving.apis import classification_pb2, predict_pb2, regression_pb2

HALF = "half_plus_two"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
X = {"x": np.array([[2.0]], np.float32)}


def test_no_model_spec(server):
    refused(lambda: server.stub().Predict(predict_pb2.PredictRequest(), timeout=60), INVALID, "model_spec")


def test_unknown_version(server):
    refused(lambda: server.predict(HALF, X, version=7), NOT_FOUND, "7")


def test_unknown_label(server):
    refused(lambda: server.predict(HALF, X, label="stable"), INVALID, "stable")


def test_unknown_signature(server):
    refused(lambda: server.predict(HALF, X, "nothing"), PRECONDITION, 'Serving signature name: "nothing"')


def test_missing_input(server):
    refused(lambda: server.predict(HALF, {}), INVALID, "x")


def test_unknown_input(server):
    refused(lambda: server.predict(HALF, {**X, "more": np.float32(1)}), INVALID, "more")


def test_wrong_type(server):
    refused(lambda: server.predict(HALF, {"x": np.array([[2]], np.int64)}), INVALID, "x")


def test_unknown_output(server):
    refused(lambda: server.predict(HALF, X, outputs=("z",)), INVALID, "z")


def test_wrong_number_of_values(server):
    request = predict_pb2.PredictRequest()
    fill_spec(request.model_spec, HALF, "")
    request.inputs["x"].dtype = tf.float32.as_datatype_enum
    request.inputs["x"].tensor_shape.dim.add(size=2)
    request.inputs["x"].float_val.extend([1, 2, 3])
    refused(lambda: server.stub().Predict(request, timeout=60), INVALID, "x")


def test_classify_without_examples(server):
    refused(lambda: server.classify(HALF, [], "classify_x_to_y"), INVALID)


def test_classify_with_empty_input(server):
    request = classification_pb2.ClassificationRequest()
    fill_spec(request.model_spec, HALF, "classify_x_to_y")
    refused(lambda: server.stub().Classify(request, timeout=60), INVALID)


def test_regress_without_model(server):
    request = regression_pb2.RegressionRequest()
    request.input.example_list.examples.add()
    refused(lambda: server.stub().Regress(request, timeout=60), INVALID)


def test_classify_of_a_regression_signature(server):
    refused(lambda: server.classify(HALF, [{"x": 2.0}], "regress_x_to_y"), PRECONDITION, "scores")


def test_regress_of_a_classification_signature(server):
    refused(lambda: server.regress(HALF, [{"x": 2.0}], "classify_x_to_y"), PRECONDITION, "outputs")


def test_example_without_a_needed_feature(server):
    refused(lambda: server.classify(HALF, [{"other": 2.0}], "classify_x_to_y"), INVALID, "x")


def test_example_with_a_feature_of_the_wrong_kind(server):
    refused(lambda: server.classify(HALF, [{"x": "text"}], "classify_x_to_y"), INVALID, "x")


def test_multi_inference_of_two_models(server):
    tasks = [(HALF, "regress_x_to_y", "regress"), ("half_plus_three", "regress_x_to_y", "regress")]
    refused(lambda: server.multi_inference(tasks, [{"x": 2.0}]), INVALID)


def test_multi_inference_of_one_signature_twice(server):
    tasks = [(HALF, "regress_x_to_y", "regress"), (HALF, "regress_x_to_y", "regress")]
    refused(lambda: server.multi_inference(tasks, [{"x": 2.0}]), INVALID)


def test_multi_inference_with_an_unknown_method(server):
    refused(lambda: server.multi_inference([(HALF, "regress_x_to_y", "predict")], [{"x": 2.0}]), grpc.StatusCode.UNIMPLEMENTED)


def test_multi_inference_without_tasks(server):
    refused(lambda: server.multi_inference([], [{"x": 2.0}]), INVALID)


def test_metadata_of_an_unknown_model(server):
    refused(lambda: server.metadata("nothing", "signature_def"), NOT_FOUND, "nothing")


def test_metadata_without_a_field(server):
    refused(lambda: server.metadata(HALF), INVALID)


def test_metadata_of_an_unknown_field(server):
    refused(lambda: server.metadata(HALF, "nothing"), INVALID, "signature_def")


def test_status_of_an_unknown_model(server):
    refused(lambda: server.status("nothing"), NOT_FOUND, "nothing")


def test_status_of_an_unknown_version(server):
    refused(lambda: server.status(HALF, version=7), NOT_FOUND)


def test_a_deadline_that_passes(server):
    body = {"instances": [[2.0]]}
    assert server.post(f"{HALF}:predict", body, headers={"Grpc-Timeout": "1n"}).status_code == 504


def test_requests_with_a_context(server):
    plain = server.classify(HALF, [{"x": 2.0}, {"x": 4.0}], "classify_x_to_y")
    context = server.classify(HALF, [{}, {}], "classify_x_to_y", context={"x": 2.0})
    assert [one.classes[0].score for one in plain.result.classifications] == [3.0, 4.0]
    assert [one.classes[0].score for one in context.result.classifications] == [3.0, 3.0]


def test_an_examples_own_feature_wins_over_the_context(server):
    answer = server.regress(HALF, [{"x": 4.0}, {}], "regress_x_to_y", context={"x": 2.0})
    assert [one.value for one in answer.result.regressions] == [4.0, 3.0]
