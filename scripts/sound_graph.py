"""Joins openWakeWord's two ONNX graphs and a head: samples in, probabilities of classes out.

samples f32[n, 12640] in -1..1 -> mel spectrum [n, 1, 76, 32] -> embedding [n, 96] -> probabilities f32[n, classes]
"""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

# Input of one embedding: 76 rows of the mel spectrum, 10 ms apart. 0.79 s at 16 kHz.
WINDOW_SAMPLES = 12_640
EMBEDDING = 96
OPSET = 13
IR_VERSION = 8


def embedding_graph(models: pathlib.Path) -> onnx.ModelProto:
    """Builds samples -> embedding f32[n, 96]."""
    mel = onnx.load(models / "melspectrogram.onnx")
    floor_of_each_item(mel.graph)
    mel = compose.add_prefix(mel, "mel/")
    embed = compose.add_prefix(onnx.load(models / "embedding_model.onnx"), "embed/")
    for part in (mel, embed):
        part.ir_version = IR_VERSION
    graph = compose.merge_models(scale(), mel, io_map=[("scaled", "mel/input")])
    graph = compose.merge_models(graph, adapt(), io_map=[("mel/output", "spectrum")])
    graph = compose.merge_models(graph, embed, io_map=[("adapted", "embed/input_1")])
    graph = compose.merge_models(graph, flatten(), io_map=[("embed/conv2d_19", "deep")])
    return graph


def with_head(graph: onnx.ModelProto, weight: np.ndarray, bias: np.ndarray) -> onnx.ModelProto:
    """Builds embedding -> probabilities: a logistic regression of f32[96, classes] and f32[classes]."""
    nodes = [
        helper.make_node("Gemm", ["vector", "head_weight", "head_bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    values = [
        numpy_helper.from_array(weight.astype(np.float32), "head_weight"),
        numpy_helper.from_array(bias.astype(np.float32), "head_bias"),
    ]
    head = model("head", nodes, ("vector", ["n", EMBEDDING]), ("probabilities", ["n", bias.size]), values)
    graph = compose.merge_models(graph, head, io_map=[("embedding", "vector")])
    onnx.checker.check_model(graph, full_check=True)
    return graph


def floor_of_each_item(graph: onnx.GraphProto) -> None:
    """Computes the spectrum's floor, 80 dB below the maximum, for each item.

    The shipped graph takes the maximum over the whole batch, so an answer would depend on its batch-mates.
    """
    (highest,) = [node for node in graph.node if node.op_type == "ReduceMax"]
    del highest.attribute[:]
    highest.attribute.extend([helper.make_attribute("axes", [1, 2, 3]), helper.make_attribute("keepdims", 1)])
    clip = [node for node in graph.node if node.op_type == "Clip"][-1]
    assert list(clip.output) == [graph.output[0].name], clip
    # Clip takes one floor for all items, Max one for each. Clip's upper end is infinity.
    clip.op_type = "Max"
    unlimited = clip.input.pop(2)
    graph.initializer.remove(next(value for value in graph.initializer if value.name == unlimited))


def scale() -> onnx.ModelProto:
    """Scales -1..1 to 16-bit numbers, which the spectrum expects."""
    nodes = [helper.make_node("Mul", ["samples", "full_scale"], ["scaled"])]
    values = [numpy_helper.from_array(np.float32(32768.0), "full_scale")]
    return model("scale", nodes, ("samples", ["n", WINDOW_SAMPLES]), ("scaled", ["n", WINDOW_SAMPLES]), values)


def adapt() -> onnx.ModelProto:
    """Maps [n, 1, 76, 32] decibels to x / 10 + 2 as [n, 76, 32, 1]."""
    nodes = [
        helper.make_node("Div", ["spectrum", "ten"], ["tenth"]),
        helper.make_node("Add", ["tenth", "two"], ["shifted"]),
        helper.make_node("Transpose", ["shifted"], ["adapted"], perm=[0, 2, 3, 1]),
    ]
    values = [numpy_helper.from_array(np.float32(10.0), "ten"), numpy_helper.from_array(np.float32(2.0), "two")]
    return model("adapt", nodes, ("spectrum", ["n", 1, 76, 32]), ("adapted", ["n", 76, 32, 1]), values)


def flatten() -> onnx.ModelProto:
    nodes = [helper.make_node("Flatten", ["deep"], ["embedding"], axis=1)]
    return model("flatten", nodes, ("deep", ["n", 1, 1, EMBEDDING]), ("embedding", ["n", EMBEDDING]), [])


def model(name: str, nodes: list, taken: tuple, given: tuple, values: list) -> onnx.ModelProto:
    tensor = [helper.make_tensor_value_info(end, TensorProto.FLOAT, shape) for end, shape in (taken, given)]
    graph = helper.make_graph(nodes, name, tensor[:1], tensor[1:], values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version = IR_VERSION
    return made
