"""Small ONNX models with the inputs and outputs of models that CI does not download.

    python stand_in.py images|text FILE
"""

import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def images(output: str) -> onnx.ModelProto:
    """Classifies images as ResNet-50 does: `data` [n, 3, 224, 224] to `prob` [n, 1000]."""
    head = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["data"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["mean", "head"], ["scores"]),
        helper.make_node("Softmax", ["scores"], [output], axis=1),
    ]
    inputs = [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["n", 3, 224, 224])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", 1000])]
    return _model(nodes, inputs, outputs, {"head": head})


def text() -> onnx.ModelProto:
    """Classifies tokens as an exported DistilBERT does: `logits` [n, 2]."""
    random = np.random.default_rng(0)
    words = random.standard_normal((30522, 8)).astype(np.float32)
    head = random.standard_normal((8, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["embedded", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "tokens"], ["sum"], keepdims=0),
        helper.make_node("MatMul", ["sum", "head"], ["logits"]),
    ]
    shape = ["batch_size", "sequence_length"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", 2])]
    constants = {"words": words, "head": head, "last": np.array([2]), "tokens": np.array([1])}
    return _model(nodes, inputs, outputs, constants)


def _model(nodes, inputs, outputs, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    kind, file, *names = sys.argv[1:]
    path = pathlib.Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(text() if kind == "text" else images(*names or ["prob"]), path)
