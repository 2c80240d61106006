"""Trains the digits model of `millpond demo` and writes it with the held-out images that the demo checks.

The data are the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn's package contains. 360 of them are held out.
model.onnx takes `pixels`, float32 [-1, 64] from 0 (paper) to 16 (ink), and returns `digit`, int64 [-1], and `probabilities`,
float32 [-1, 10]. held_out.bin has 65 bytes for each held-out image: 64 pixels and the label.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SEED = 32
HELD_OUT = 360
INK = 16.0


def train(pixels: np.ndarray, labels: np.ndarray) -> MLPClassifier:
    """Returns a network with one hidden layer."""
    network = MLPClassifier((64,), alpha=1e-2, max_iter=400, random_state=SEED)
    return network.fit(pixels / INK, labels)


def to_onnx(network: MLPClassifier) -> onnx.ModelProto:
    """Returns the network as an ONNX graph that scales its input itself."""
    hidden, last = (weights.astype(np.float32) for weights in network.coefs_)
    parameters = {
        "hidden.weight": hidden / np.float32(INK),
        "hidden.bias": network.intercepts_[0].astype(np.float32),
        "last.weight": last,
        "last.bias": network.intercepts_[1].astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["pixels", "hidden.weight", "hidden.bias"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "last.weight", "last.bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["digit"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])],
        [
            helper.make_tensor_value_info("digit", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        [numpy_helper.from_array(value, name) for name, value in parameters.items()],
    )
    model = helper.make_model(graph, producer_name="millpond", opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Trains, reports the accuracy, and writes both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True, help="directory of model.onnx and held_out.bin")
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    seen, held_out, seen_labels, labels = train_test_split(
        digits.data, digits.target, test_size=HELD_OUT, stratify=digits.target, random_state=SEED
    )
    network = train(seen, seen_labels)
    print(f"{network.score(held_out / INK, labels):.1%} of {HELD_OUT} held-out digits are right")
    onnx.save(to_onnx(network), folder / "model.onnx")
    records = np.column_stack([held_out, labels]).astype(np.uint8)
    (folder / "held_out.bin").write_bytes(records.tobytes())


if __name__ == "__main__":
    main()
