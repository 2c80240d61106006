"""TensorFlow Serving's REST API: paths, forms of JSON, numbers that JSON lacks, errors."""

import base64
import json
import math

import pytest
import requests

HALF = "half_plus_two"


@pytest.mark.parametrize(
    "path",
    [
        f"{HALF}:predict",
        f"{HALF}/versions/123:predict",
        f"{HALF}:PREDICT",
    ],
)
def test_paths_of_predict(server, path):
    assert server.post(path, {"instances": [2.0]}).json() == {"predictions": [3.0]}


@pytest.mark.parametrize("path", [HALF, f"{HALF}/versions/123"])
def test_paths_of_status(server, path):
    assert server.get(path).json()["model_version_status"][0]["state"] == "AVAILABLE"


@pytest.mark.parametrize("path", [f"{HALF}/metadata", f"{HALF}/versions/123/metadata"])
def test_paths_of_metadata(server, path):
    assert server.get(path).json()["model_spec"]["version"] == "123"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"instances": [1.0, 2.0]}, [2.5, 3.0]),
        ({"instances": [[1.0], [2.0]]}, [[2.5], [3.0]]),
        ({"instances": [{"x": 1.0}, {"x": 2.0}]}, [2.5, 3.0]),
        ({"instances": [{"x": [1.0]}, {"x": [2.0]}]}, [[2.5], [3.0]]),
        ({"instances": [1, 2]}, [2.5, 3.0]),
        ({"instances": [1e0, 2E0]}, [2.5, 3.0]),
        ({"signature_name": "serving_default", "instances": [2.0]}, [3.0]),
        ({"signature_name": "", "instances": [2.0]}, [3.0]),
        ({"ignored": {"deep": [1]}, "instances": [2.0]}, [3.0]),
    ],
)
def test_rows(server, body, expected):
    answer = server.post(f"{HALF}:predict", body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"predictions": expected}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"inputs": [1.0, 2.0]}, [2.5, 3.0]),
        ({"inputs": {"x": [1.0, 2.0]}}, [2.5, 3.0]),
        ({"inputs": {"x": [[1.0], [2.0]]}}, [[2.5], [3.0]]),
        ({"inputs": {"x": [[1.0], [2.0]]}, "signature_name": "serving_default"}, [[2.5], [3.0]]),
    ],
)
def test_columns(server, body, expected):
    answer = server.post(f"{HALF}:predict", body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"outputs": expected}


def test_numbers_that_json_lacks(server):
    answer = server.post(f"{HALF}:predict", '{"instances": [NaN, Infinity, -Infinity]}')
    assert answer.status_code == 200, answer.text
    values = json.loads(answer.text)["predictions"]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


def test_binary_values(server):
    raw = b"\x00\xff\x89PNG"
    body = {"instances": [{"image_bytes": {"b64": base64.b64encode(raw).decode()}}]}
    (row,) = server.post("bytes_out:predict", body).json()["predictions"]
    assert row["length"] == len(raw)
    assert base64.b64decode(row["copy_bytes"]["b64"]) == raw


def test_plain_strings(server):
    (row,) = server.post("vocabulary:predict", {"instances": ["green"]}).json()["predictions"]
    assert (row["id"], row["row"], row["word"]) == (1, [2.0, 3.0], "GREEN")


def test_no_signature_takes_the_place_of_the_default_one(server):
    answer = server.post("ragged_default:predict", {"inputs": 1.0})
    assert answer.status_code == 400, answer.text
    assert "the model has add; signatures that cannot be run: serving_default" in answer.json()["error"]
    answer = server.post("ragged_default:predict", {"inputs": 1.0, "signature_name": "add"})
    assert answer.json() == {"outputs": 1.0}


def test_another_signature(server):
    body = {"signature_name": "custom_signature_key", "instances": [5.0]}
    assert server.post("two_signatures:predict", body).json() == {"predictions": [2.0]}


REFUSED = [
    (f"{HALF}:predict", "{", 400, "JSON"),
    (f"{HALF}:predict", "", 400, ""),
    (f"{HALF}:predict", "[]", 400, ""),
    (f"{HALF}:predict", "{}", 400, "instances"),
    (f"{HALF}:predict", '{"instances": [1.0], "inputs": [1.0]}', 400, ""),
    (f"{HALF}:predict", '{"instances": []}', 400, ""),
    (f"{HALF}:predict", '{"instances": {}}', 400, ""),
    (f"{HALF}:predict", '{"instances": [[1.0], [1.0, 2.0]]}', 400, ""),
    (f"{HALF}:predict", '{"instances": ["text"]}', 400, ""),
    (f"{HALF}:predict", '{"instances": [{"wrong": 1.0}]}', 400, ""),
    (f"{HALF}:predict", '{"instances": [{"x": 1.0}, 2.0]}', 400, ""),
    (f"{HALF}:predict", '{"inputs": {"wrong": [1.0]}}', 400, ""),
    (f"{HALF}:predict", '{"signature_name": "nothing", "instances": [1.0]}', 400, "signature"),
    (f"{HALF}:predict", '{"signature_name": 5, "instances": [1.0]}', 400, ""),
    ("nothing:predict", '{"instances": [1.0]}', 404, "Servable not found for request"),
    (f"{HALF}/versions/7:predict", '{"instances": [1.0]}', 404, ""),
    (f"{HALF}/versions/x:predict", '{"instances": [1.0]}', 400, ""),
    (f"{HALF}/labels/none:predict", '{"instances": [1.0]}', 400, "none"),
    (f"{HALF}:explode", '{"instances": [1.0]}', 400, ""),
    (f"{HALF}:classify", '{"signature_name": "classify_x_to_y"}', 400, "examples"),
    (f"{HALF}:classify", '{"signature_name": "classify_x_to_y", "examples": []}', 400, ""),
    (f"{HALF}:classify", '{"signature_name": "classify_x_to_y", "examples": {}}', 400, ""),
    (f"{HALF}:classify", '{"signature_name": "classify_x_to_y", "examples": [{}]}', 400, "x"),
    (f"{HALF}:classify", '{"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}]}', 400, ""),
    (f"{HALF}:regress", '{"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}]}', 400, ""),
    (f"{HALF}:regress", '{"signature_name": "regress_x_to_y", "examples": [{"x": [1.0, {}]}]}', 400, ""),
    (f"{HALF}:regress", '{"signature_name": "regress_x_to_y", "examples": [{"x": [1.0, "mixed"]}]}', 400, ""),
]


@pytest.mark.parametrize(("path", "body", "status", "word"), REFUSED)
def test_refused(server, path, body, status, word):
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]


def test_get_of_an_unknown_model(server):
    answer = server.get("nothing")
    assert answer.status_code == 404
    assert "nothing" in answer.json()["error"]


def test_get_of_predict_is_refused(server):
    assert requests.get(f"{server.url}/{HALF}:predict", timeout=60).status_code in (400, 404, 405)


def test_examples_with_every_kind_of_feature(server):
    binary = {"b64": base64.b64encode(b"tokyo").decode()}
    body = {"signature_name": "classification", "examples": [{"age": 31.0, "city": binary, "clicks": [1, 2, 3]}]}
    plain = {"signature_name": "classification", "examples": [{"age": [31.0], "city": "tokyo", "clicks": [1, 2, 3]}]}
    one, other = server.post("estimator:classify", body), server.post("estimator:classify", plain)
    assert one.status_code == 200, one.text
    assert one.json() == other.json()


def test_integers_are_not_floats_in_examples(server):
    """As in TensorFlow Serving, the JSON number decides the kind of a feature: 31 is int64."""
    answer = server.post("estimator:classify", {"signature_name": "classification", "examples": [{"age": 31}]})
    assert answer.status_code == 400
    assert "age" in answer.json()["error"]


def test_cors_is_an_option(start, saved):
    server = start(
        "--model_name=default", f"--model_base_path={saved[HALF]}", "--rest_api_enable_cors_support"
    ).wait_available()
    answer = server.post("default:predict", {"instances": [2.0]}, headers={"Origin": "http://elsewhere"})
    assert answer.headers.get("Access-Control-Allow-Origin") in ("*", "http://elsewhere")
