"""Every model through every endpoint answers as ONNX Runtime in Python does."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from endpoints import ENDPOINTS, UNSUPPORTED
from millpond import drop_in, publish
from models import MODELS, constant, value

TOLERANCE = 1e-5


def assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    if expected.dtype.kind in "OSUbiu":
        assert (found == expected).all(), f"{found} is not {expected}"
        return
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


CASES = [(endpoint, model) for model in MODELS for endpoint in ENDPOINTS if (endpoint, model.name) not in UNSUPPORTED]


@pytest.mark.parametrize(("endpoint", "model"), CASES, ids=[f"{endpoint}-{model.name}" for endpoint, model in CASES])
def test_the_answer_is_that_of_onnx_runtime(server, references, endpoint, model):
    reference, inputs = references[model.name], model.inputs()
    expected = reference.run(inputs)
    found = ENDPOINTS[endpoint](server, model.name, inputs, reference.outputs)
    for name in reference.outputs:
        assert_equal(found[name], expected[name])


@pytest.mark.parametrize("batch", [1, 3, 17])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_shapes_may_change_from_request_to_request(server, references, endpoint, batch):
    inputs = {
        "items": np.random.default_rng(batch).normal(size=(batch, batch + 1, 4)).astype(np.float32),
        "bias": np.ones((batch, 4), np.float32),
    }
    expected = references["symbolic"].run(inputs)
    found = ENDPOINTS[endpoint](server, "symbolic", inputs, ["shifted", "total"])
    for name, array in expected.items():
        assert_equal(found[name], array)


def test_the_recogniser_reads_the_line(server, references):
    """The answer has the words of the image."""
    from models import ASSETS, recogniser_input

    (name,) = references["text_recogniser"].outputs
    found = ENDPOINTS["oip-grpc"](server, "text_recogniser", {"x": recogniser_input()}, [name])[name]
    characters = references["text_recogniser"].session.get_modelmeta().custom_metadata_map["character"].split("\n")
    table = ["", *characters, " "]
    indexes = found[0].argmax(-1)
    kept = [i for i, previous in zip(indexes, [0, *indexes[:-1]], strict=True) if i != previous]
    assert "".join(table[i] for i in kept).strip() == (ASSETS / "text.txt").read_text().strip()


def test_the_detector_hears_the_voice(server):
    from models import voice_sequence, voice_windows

    def loudest(windows: np.ndarray) -> float:
        inputs = voice_sequence() | {"input": windows}
        return ENDPOINTS["oip-grpc"](server, "voice_sequence", inputs, ["speech_probs"])["speech_probs"].max()

    assert loudest(voice_windows("voice")) > 0.9
    assert loudest(voice_windows("silence")) < 0.5


@pytest.mark.parametrize("place", [publish, drop_in])
def test_the_newest_format_of_onnx_is_served(serve, tmp_path, place):
    """`make_model` writes the newest format and operators of the `onnx` package if the caller names no others."""
    weights = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "newest",
        [value("x", TensorProto.FLOAT, ["batch", 64])],
        [value("y", TensorProto.FLOAT, ["batch", 64])],
        initializer=[constant("weights", weights)],
    )
    model = helper.make_model(graph)
    assert model.ir_version == onnx.IR_VERSION and model.opset_import[0].version == onnx.defs.onnx_opset_version()
    onnx.save(model, tmp_path / "newest.onnx")
    place(tmp_path / "newest.onnx", tmp_path / "models/newest", 1)
    server = serve(tmp_path / "models")
    found = ENDPOINTS["oip-grpc"](server, "newest", {"x": np.eye(64, dtype=np.float32)[:3]}, ["y"])
    assert_equal(found["y"], weights[:3])
