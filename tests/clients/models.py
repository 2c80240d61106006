"""The models of the tests: small generated ones, and pretrained ones from wheels.

Each generated model tests one thing that a server can get wrong, named in its docstring.
"""

import ctypes
import dataclasses
import pathlib
import wave
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from millpond import REPOSITORY

PRETRAINED = REPOSITORY / ".cache/models"
ASSETS = REPOSITORY / ".cache/demo"
IR_VERSION = 9
OPSET = 18

Arrays = dict[str, np.ndarray]


def save(path: pathlib.Path, nodes: list, inputs: list, outputs: list, initializers: list = ()) -> pathlib.Path:
    """Writes a checked model to `path`."""
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, initializer=list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def value(name: str, kind: int, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


# ---- generated models


def half_plus_two(path: pathlib.Path) -> pathlib.Path:
    """Saves TensorFlow Serving's example x / 2 + 2. It has rank 1, so that the documented curl call works unchanged."""
    return save(
        path,
        [helper.make_node("Mul", ["x", "a"], ["ax"]), helper.make_node("Add", ["ax", "b"], ["y"])],
        [value("x", TensorProto.FLOAT, ["batch"])],
        [value("y", TensorProto.FLOAT, ["batch"])],
        [constant("a", np.float32(0.5)), constant("b", np.float32(2))],
    )


def strings(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with strings in and out, of any shape [n, 2]."""
    return save(
        path,
        [helper.make_node("Identity", ["text"], ["same"])],
        [value("text", TensorProto.STRING, ["n", 2])],
        [value("same", TensorProto.STRING, ["n", 2])],
    )


def half_precision(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with float16 in and out."""
    return save(
        path,
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        [value("x", TensorProto.FLOAT16, ["n", 4])],
        [value("y", TensorProto.FLOAT16, ["n", 4])],
        [constant("scale", np.array([1, 2, 3, 4], np.float16))],
    )


def brain_float(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with bfloat16 in and out, and the same as float32."""
    return save(
        path,
        [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT)],
        [value("x", TensorProto.BFLOAT16, ["n", 3])],
        [value("same", TensorProto.BFLOAT16, ["n", 3]), value("wide", TensorProto.FLOAT, ["n", 3])],
    )


GATHER_ROWS = 1000


def gather(path: pathlib.Path) -> pathlib.Path:
    """Saves a model that looks rows of a table up by int64 ids. Each row differs, so that a wrong index is visible."""
    table = np.arange(GATHER_ROWS * 16, dtype=np.float32).reshape(GATHER_ROWS, 16)
    return save(
        path,
        [helper.make_node("Gather", ["table", "ids"], ["rows"])],
        [value("ids", TensorProto.INT64, ["batch", "k"])],
        [value("rows", TensorProto.FLOAT, ["batch", "k", 16])],
        [constant("table", table)],
    )


def external_gather(path: pathlib.Path) -> pathlib.Path:
    """Saves the model of `gather` with its table in a second file, as large models have it. `path` is the directory."""
    model = onnx.load(gather(path.parent / "embedded" / f"{path.name}.onnx"))
    path.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path / "model.onnx", save_as_external_data=True, location="table.data", size_threshold=1024)
    return path


def symbolic(path: pathlib.Path) -> pathlib.Path:
    """Saves a model of two inputs that share a symbolic batch, two outputs of different rank."""
    return save(
        path,
        [
            helper.make_node("Unsqueeze", ["bias", "axis"], ["wide"]),
            helper.make_node("Add", ["items", "wide"], ["shifted"]),
            helper.make_node("ReduceSum", ["shifted", "all"], ["total"], keepdims=0),
        ],
        [value("items", TensorProto.FLOAT, ["batch", "length", 4]), value("bias", TensorProto.FLOAT, ["batch", 4])],
        [value("shifted", TensorProto.FLOAT, ["batch", "length", 4]), value("total", TensorProto.FLOAT, ["batch"])],
        [constant("axis", np.array([1], np.int64)), constant("all", np.array([1, 2], np.int64))],
    )


def unnamed_batches(path: pathlib.Path) -> pathlib.Path:
    """Saves a model of two inputs joined item by item. The batch has another name in each, as tf2onnx writes it."""
    return save(
        path,
        [helper.make_node("Concat", ["uid", "price"], ["joined"], axis=1)],
        [value("uid", TensorProto.FLOAT, ["unk__6", 1]), value("price", TensorProto.FLOAT, ["unk__7", 1])],
        [value("joined", TensorProto.FLOAT, ["unk__8", 2])],
    )


PLAIN_TYPES = {
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}


def every_type(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with one input and one output of each plain element type."""
    return save(
        path,
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in PLAIN_TYPES],
        [value(f"in_{name}", kind, ["n", 3]) for name, kind in PLAIN_TYPES.items()],
        [value(f"out_{name}", kind, ["n", 3]) for name, kind in PLAIN_TYPES.items()],
    )


SPIN_WIDTH = 192
SPIN_ROUNDS_MAX = 20_000


def spin(path: pathlib.Path) -> pathlib.Path:
    """Saves a slow model: `rounds` matrix products of SPIN_WIDTH squared, one after another."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "weights"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []),
         value("state", TensorProto.FLOAT, [SPIN_WIDTH, SPIN_WIDTH])],
        [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, [SPIN_WIDTH, SPIN_WIDTH])],
    )  # fmt: skip
    # Halving keeps the numbers finite.
    weights = np.eye(SPIN_WIDTH, dtype=np.float32) * np.float32(0.5)
    return save(
        path,
        [
            helper.make_node("Clip", ["rounds", "none", "most"], ["clipped"]),
            helper.make_node("Squeeze", ["clipped"], ["count"]),
            helper.make_node("Loop", ["count", "", "start"], ["end"], body=body),
            helper.make_node("ReduceSum", ["end"], ["sum"], keepdims=0),
            helper.make_node("Reshape", ["sum", "one"], ["y"]),
        ],
        [value("rounds", TensorProto.INT64, [1])],
        [value("y", TensorProto.FLOAT, [1])],
        [
            constant("weights", weights),
            constant("start", np.eye(SPIN_WIDTH, dtype=np.float32)),
            constant("none", np.int64(0)),
            constant("most", np.int64(SPIN_ROUNDS_MAX)),
            constant("one", np.array([1], np.int64)),
        ],
    )


def stamped(path: pathlib.Path, version: int, megabytes: float = 4) -> pathlib.Path:
    """Saves the model y = x + version.

    The version fills a table of the given size and is read from its end. So an answer shows the version that its bytes
    came from."""
    rows = int(megabytes * 1e6 / 4 / 64)
    return save(
        path,
        [
            helper.make_node("Gather", ["table", "last"], ["row"]),
            helper.make_node("ReduceMax", ["row"], ["stamp"], keepdims=0),
            helper.make_node("Add", ["x", "stamp"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, ["batch"])],
        [value("y", TensorProto.FLOAT, ["batch"])],
        [constant("table", np.full((rows, 64), version, np.float32)), constant("last", np.int64(rows - 1))],
    )


# ---- requests


def recogniser_input() -> np.ndarray:
    """Returns the demo's line of text for PP-OCR: BGR, scaled to [-1, 1], channels first."""
    pixels = np.asarray(Image.open(ASSETS / "text.png").convert("RGB"), np.float32)[:, :, ::-1]
    return np.ascontiguousarray(((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None])


def direction_input() -> np.ndarray:
    return np.ascontiguousarray(recogniser_input()[:, :, :, :192])


def voice_windows(name: str = "voice") -> np.ndarray:
    """Returns a recording for Silero: windows of 512 samples, each preceded by the 64 samples before it."""
    with wave.open(str(ASSETS / f"{name}.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    samples = np.concatenate([np.zeros(64, np.float32), samples])
    starts = range(0, samples.size - 576, 512)
    return np.stack([samples[start : start + 576] for start in starts])


def voice_sequence() -> Arrays:
    zero = np.zeros((1, 1, 128), np.float32)
    return {"input": voice_windows(), "h": zero, "c": zero.copy()}


def voice_step() -> Arrays:
    return {
        "input": voice_windows()[10:12],
        "state": np.zeros((2, 2, 128), np.float32),
        "sr": np.array(16_000, np.int64),
    }


def plain_type_inputs() -> Arrays:
    arrays = {}
    for name in PLAIN_TYPES:
        kind = np.dtype(name)
        if kind == bool:
            row = [True, False, True]
        elif kind.kind == "f":
            row = [0.1, -2.5e-7, 3.5e7]
        else:
            row = [np.iinfo(kind).min, 1, np.iinfo(kind).max]
        arrays[f"in_{name}"] = np.array([row, row[::-1]], kind)
    return arrays


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, its form in the repository, and one request for it."""

    name: str
    make: Callable[[pathlib.Path], pathlib.Path]
    inputs: Callable[[], Arrays]
    published: bool = True

    def source(self, scratch: pathlib.Path) -> pathlib.Path:
        return self.make(scratch / f"{self.name}.onnx")


def pretrained(name: str) -> Callable[[pathlib.Path], pathlib.Path]:
    return lambda _: PRETRAINED / name


MODELS = [
    Model("half_plus_two", half_plus_two, lambda: {"x": np.array([1, 2, 5], np.float32)}, published=False),
    Model("strings", strings, lambda: {"text": np.array([["", "mill"], ["p\u00f6nd", "\u6c34"]], object)}),
    Model("half_precision", half_precision, lambda: {"x": np.array([[0.5, -1, 65504, 1e-4]], np.float16)}),
    Model("brain_float", brain_float, lambda: {"x": np.array([[0.5, -3, 1e38]], ml_dtypes.bfloat16)}),
    Model("gather", gather, lambda: {"ids": np.array([[0, 999, 7], [1, 2, 3]], np.int64)}),
    Model(
        "external_gather",
        lambda path: external_gather(path.with_suffix("")),
        lambda: {"ids": np.array([[5], [998]], np.int64)},
        published=False,
    ),
    Model(
        "symbolic",
        symbolic,
        lambda: {
            "items": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
            "bias": np.array([[1, 0, 0, 0], [0, 0, 0, -1]], np.float32),
        },
    ),
    Model(
        "unnamed_batches",
        unnamed_batches,
        lambda: {"uid": np.array([[5], [6]], np.float32), "price": np.array([[1], [2]], np.float32)},
    ),
    Model("every_type", every_type, plain_type_inputs, published=False),
    Model("spin", spin, lambda: {"rounds": np.array([3], np.int64)}),
    Model("text_recogniser", pretrained("ch_PP-OCRv4_rec_infer.onnx"), lambda: {"x": recogniser_input()}),
    Model(
        "text_direction",
        pretrained("ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        lambda: {"x": direction_input()},
        published=False,
    ),
    Model("voice_sequence", pretrained("silero_vad_16k_sequence.onnx"), voice_sequence),
    Model("voice_step", pretrained("silero_vad.onnx"), voice_step),
]


class Reference:
    """Returns the answer of ONNX Runtime in Python for the same model and request."""

    def __init__(self, source: pathlib.Path):
        path = source / "model.onnx" if source.is_dir() else source
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.outputs = [entry.name for entry in self.session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        if not any(array.dtype == ml_dtypes.bfloat16 for array in inputs.values()):
            return dict(zip(self.outputs, self.session.run(None, inputs), strict=True))
        feeds = {name: brain_value(array) for name, array in inputs.items()}
        values = self.session.run_with_ort_values(self.outputs, feeds)
        return {name: brain_array(value) for name, value in zip(self.outputs, values, strict=True)}


def brain_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Returns an input of bfloat16. numpy has no such type, so ONNX Runtime gets the bits and the type."""
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)


def brain_array(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.element_type() != TensorProto.BFLOAT16:
        return value.numpy()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, ml_dtypes.bfloat16).reshape(value.shape())
