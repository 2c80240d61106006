"""Answers equal TensorFlow's in Python to 1e-6, over gRPC and REST."""

import base64
import os
import pathlib
import subprocess
import sys

import grpc
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from conftest import VERSION
from model_server import example, refused
from saved_models import FEATURES, WIDTH, recommender

INVALID = grpc.StatusCode.INVALID_ARGUMENT
TOLERANCE = 1e-6
# Size of the large model; `MILLPOND_LARGE_MODEL_BYTES=1000000000 make test-tfs` is the evaluation.
LARGE_MODEL_BYTES = int(os.environ.get("MILLPOND_LARGE_MODEL_BYTES", 64_000_000))
WORDS = ["red", "green", "violet", "", "blue"]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(11).normal(size=shape).astype(np.float32)


def strings(values) -> np.ndarray:
    return np.array([value if isinstance(value, bytes) else value.encode() for value in values], object)


REQUESTS = {
    "half_plus_two": {"x": random(7, 1)},
    "half_plus_three": {"x": random(1, 1)},
    "product": {"x": random(3, 2, 2)},
    "placed_on_gpu": {"x": random(3, 1)},
    "keras_sequential": {"x": random(4, 1)},
    "keras_preprocessing": {"colour": strings(WORDS).reshape(-1, 1), "price": random(len(WORDS), 1) * 5 + 10},
    "vocabulary": {"word": strings(WORDS)},
    "mutable_table": {"key": strings(["a", "b", "c"])},
    "recommender": {f"c{i:02}": strings([f"user-{i}-{row}" for row in range(5)]) for i in range(FEATURES)},
    "bytes_out": {"image_bytes": strings([b"\x00\xff\x89PNG", b"", b"plain"])},
}


def reference(signatures, model: str, inputs: dict) -> dict[str, np.ndarray]:
    """Runs the model in Python."""
    run = signatures(model)
    names = run.structured_input_signature[1]
    return {name: value.numpy() for name, value in run(**{name: tf.constant(inputs[name]) for name in names}).items()}


def assert_equal(actual: dict, expected: dict, tolerance: float = TOLERANCE) -> None:
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        if value.dtype == object:
            assert [str_bytes(one) for one in np.ravel(actual[name])] == [str_bytes(one) for one in np.ravel(value)]
        else:
            np.testing.assert_allclose(actual[name], value, rtol=tolerance, atol=tolerance)


def str_bytes(value) -> bytes:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("model", REQUESTS)
def test_grpc(server, signatures, model):
    inputs = REQUESTS[model]
    assert_equal(server.predict(model, inputs), reference(signatures, model, inputs))


def to_json(value):
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value if isinstance(value, str) else float(value)


def rows(inputs: dict) -> list[dict]:
    count = len(next(iter(inputs.values())))

    def cell(value):
        return [to_json(one) for one in value] if isinstance(value, np.ndarray) else to_json(value)

    return [{name: nested(value[row]) if isinstance(value[row], np.ndarray) else cell(value[row]) for name, value in inputs.items()} for row in range(count)]


def nested(value):
    return [nested(one) for one in value] if isinstance(value, np.ndarray) and value.ndim else to_json(value[()] if isinstance(value, np.ndarray) else value)


def from_json(value):
    if isinstance(value, dict) and "b64" in value:
        return base64.b64decode(value["b64"])
    return [from_json(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("model", REQUESTS)
def test_rest_in_rows(server, signatures, model):
    inputs = REQUESTS[model]
    expected = reference(signatures, model, inputs)
    answer = server.post(f"{model}:predict", {"instances": rows(inputs)})
    assert answer.status_code == 200, answer.text
    predictions = answer.json()["predictions"]
    if len(expected) == 1:
        (name,) = expected
        actual = {name: [from_json(one) for one in predictions]}
    else:
        actual = {name: [from_json(one[name]) for one in predictions] for name in expected}
    assert_equal({name: as_array(value, expected[name]) for name, value in actual.items()}, expected)


@pytest.mark.parametrize("model", REQUESTS)
def test_rest_in_columns(server, signatures, model):
    inputs = REQUESTS[model]
    expected = reference(signatures, model, inputs)
    answer = server.post(f"{model}:predict", {"inputs": {name: nested(value) for name, value in inputs.items()}})
    assert answer.status_code == 200, answer.text
    outputs = answer.json()["outputs"]
    actual = {next(iter(expected)): outputs} if len(expected) == 1 else outputs
    assert_equal({name: as_array(from_json(value), expected[name]) for name, value in actual.items()}, expected)


def as_array(value, like: np.ndarray) -> np.ndarray:
    return np.array(value, object if like.dtype == object else like.dtype)


EXAMPLES = [
    {"age": 31.0, "city": "tokyo", "clicks": [1, 2, 3]},
    {"age": 54.5, "city": "são paulo"},
    {"age": 18.0, "clicks": [40]},
]


def classified(signatures, name: str):
    serialized = tf.constant([example(one).SerializeToString() for one in EXAMPLES])
    run = signatures("estimator", name)
    (key,) = run.structured_input_signature[1]
    return {name: value.numpy() for name, value in run(**{key: serialized}).items()}


def test_classify_an_estimator(server, signatures):
    expected = classified(signatures, "classification")
    answer = server.classify("estimator", EXAMPLES, "classification")
    assert len(answer.result.classifications) == len(EXAMPLES)
    for row, found in enumerate(answer.result.classifications):
        assert [one.label.encode() for one in found.classes] == list(expected["classes"][row])
        np.testing.assert_allclose([one.score for one in found.classes], expected["scores"][row], rtol=TOLERANCE)


def test_classify_with_the_default_signature(server):
    default = server.classify("estimator", EXAMPLES)
    named = server.classify("estimator", EXAMPLES, "classification")
    assert default.result == named.result
    assert default.model_spec.signature_name == "serving_default"


def test_regress_an_estimator(server, signatures):
    expected = classified(signatures, "regression")["outputs"]
    answer = server.regress("estimator", EXAMPLES, "regression")
    np.testing.assert_allclose([one.value for one in answer.result.regressions], expected.ravel(), rtol=TOLERANCE)


def test_predict_an_estimator(server, signatures):
    serialized = np.array([example(one).SerializeToString() for one in EXAMPLES], object)
    expected = classified(signatures, "predict")
    assert_equal(server.predict("estimator", {"examples": serialized}, "predict"), expected)


def test_classify_an_estimator_over_rest(server, signatures):
    expected = classified(signatures, "classification")
    answer = server.post("estimator:classify", {"signature_name": "classification", "examples": EXAMPLES})
    for row, found in enumerate(answer.json()["results"]):
        assert [label.encode() for label, _ in found] == list(expected["classes"][row])
        np.testing.assert_allclose([score for _, score in found], expected["scores"][row], rtol=TOLERANCE)


def test_labels_that_are_not_text(server):
    """A label of a gRPC message is text, and clients cannot read an answer with other bytes."""
    latin = "caf\u00e9".encode("latin-1")
    refused(lambda: server.classify("labels", [{"label": [latin, b"tea"]}]), INVALID, "UTF-8")
    encoded = {"b64": base64.b64encode(latin).decode()}
    answer = server.post("labels:classify", {"examples": [{"label": [encoded, "tea"]}]})
    assert answer.json()["results"] == [[[encoded, 1.0], ["tea", 1.0]]]


def test_regress_an_estimator_over_rest(server, signatures):
    expected = classified(signatures, "regression")["outputs"]
    answer = server.post("estimator:regress", {"signature_name": "regression", "examples": EXAMPLES})
    np.testing.assert_allclose(answer.json()["results"], expected.ravel(), rtol=TOLERANCE)


def test_context_is_merged_into_each_example(server):
    merged = server.regress("estimator", [{"age": 20.0, "city": "oslo"}, {"age": 40.0, "city": "oslo"}], "regression")
    context = server.regress("estimator", [{"age": 20.0}, {"age": 40.0}], "regression", context={"city": "oslo"})
    assert merged.result == context.result
    rest = server.post(
        "estimator:regress",
        {"signature_name": "regression", "context": {"city": "oslo"}, "examples": [{"age": 20.0}, {"age": 40.0}]},
    )
    np.testing.assert_allclose(rest.json()["results"], [one.value for one in merged.result.regressions], rtol=TOLERANCE)


def test_every_type(server):
    inputs = {}
    for name in ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"]:
        inputs[name] = np.array([[1, 2], [3, 100]], name)
    inputs["bool"] = np.array([[True, False], [False, True]])
    inputs["string"] = np.array([[b"a", b""], [b"\xff\x00", "é".encode()]], object)
    inputs["bfloat16"] = np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16)
    inputs["complex64"] = np.array([[1 + 2j, 0], [3j, 4]], np.complex64)
    inputs["complex128"] = np.array([[1 + 2j, 0], [3j, 4]], np.complex128)
    answer = server.predict("types", inputs)
    for name, value in inputs.items():
        np.testing.assert_array_equal(answer[f"{name}_out"], value, err_msg=name)


def test_state_lives_on_from_request_to_request(server):
    before = float(server.predict("counter", {}, "get")["count"])
    server.predict("counter", {"by": np.float32(2)})
    server.predict("counter", {"by": np.float32(3)})
    assert float(server.predict("counter", {}, "get")["count"]) == before + 5
    assert before == 0, "made-up warm-up requests must not change a model's state"


def test_a_variable_of_version_1_is_read_after_its_assignment(server):
    totals = [float(server.predict("running_total", {"x": np.float32(5)})["y"]) for _ in range(2)]
    assert totals == [5.0, 10.0]


def test_an_assertion_of_the_graph_is_the_clients_error(server):
    answer = server.post("check_fails:predict", {"instances": [1.0, 11.0]})
    assert answer.status_code == 400, answer.text
    assert "too large for this model" in answer.json()["error"]
    assert server.post("check_fails:predict", {"instances": [1.0, 9.0]}).json() == {"predictions": [1.0, 9.0]}


def test_requests_at_once_get_their_own_answers(server):
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> bool:
        x = np.full((1 + number % 5, 1), number, np.float32)
        return bool((server.predict("half_plus_two", {"x": x})["y"] == x / 2 + 2).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(400)))


def test_basic_pitch(start, tmp_path):
    """The SavedModel of the basic-pitch wheel, if it is there."""
    import zipfile

    root = pathlib.Path(__file__).parents[2] / ".cache/audio/wheels"
    wheels = sorted(root.glob("basic_pitch-*.whl"))
    if not wheels:
        pytest.skip("basic-pitch is not fetched (make recognisers fetches it)")
    base = tmp_path / "pitch" / str(VERSION)
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = "basic_pitch/saved_models/icassp_2022/nmp/"
        names = [name for name in wheel.namelist() if name.startswith(inside) and not name.endswith("/")]
        for name in names:
            target = base / name.removeprefix(inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))
    server = start("--model_name=pitch", f"--model_base_path={base.parent}").wait_available("pitch")
    audio = random(2, 43844, 1) * 0.1
    np.savez(tmp_path / "inputs.npz", audio=audio)
    # The server runs a model on one thread. With two, TensorFlow splits sums otherwise: 8e-6 in the second row. The
    # first session of a process decides the threads of all sessions, so the reference needs a process of its own.
    script = pathlib.Path(__file__).parent / "one_thread.py"
    done = subprocess.run([sys.executable, script, base, tmp_path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    expected = dict(np.load(tmp_path / "outputs.npz"))
    assert_equal(server.predict("pitch", {done.stdout.split()[-1]: audio}), expected)
    for body in ({"inputs": audio.tolist()}, {"instances": audio.tolist()}):
        answer = server.post("pitch:predict", body)
        assert answer.status_code == 200, answer.text[:1000]
        found = answer.json()
        if "instances" in body:
            rows = found["predictions"]
            actual = {name: np.array([row[name] for row in rows], np.float32) for name in expected}
        else:
            actual = {name: np.array(value, np.float32) for name, value in found["outputs"].items()}
        assert_equal(actual, expected)


def test_a_large_model(start, tmp_path):
    base = tmp_path / "large"
    recommender(base / "1", buckets=LARGE_MODEL_BYTES // (FEATURES * WIDTH * 4))
    server = start("--model_name=large", f"--model_base_path={base}").wait_available("large")
    inputs = {f"c{i:02}": strings([f"user-{i}-{row}" for row in range(200)]) for i in range(FEATURES)}
    run = tf.saved_model.load(str(base / "1")).signatures["serving_default"]
    expected = {name: value.numpy() for name, value in run(**{k: tf.constant(v) for k, v in inputs.items()}).items()}
    assert_equal(server.predict("large", inputs), expected)
    columns = {name: [text.decode() for text in values] for name, values in inputs.items()}
    answer = server.post("large:predict", {"inputs": columns})
    assert answer.status_code == 200, answer.text
    assert_equal({"ctr": np.array(answer.json()["outputs"], np.float32)}, expected)
