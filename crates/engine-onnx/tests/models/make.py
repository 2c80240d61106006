"""Writes the graphs of the tests, beside this file. They are committed; run it again only to change them:

    python make.py        (needs the package `onnx`)
"""

import pathlib
import struct

from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).parent
OPSET, IR_VERSION = 21, 10  # the first with 4-bit integers
TABLE = (1 << 20, 16)

# Our names and ONNX's.
TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
    "float8e4m3fn": "FLOAT8E4M3FN", "float8e4m3fnuz": "FLOAT8E4M3FNUZ",
    "float8e5m2": "FLOAT8E5M2", "float8e5m2fnuz": "FLOAT8E5M2FNUZ",
    "uint4": "UINT4", "int4": "INT4", "string": "STRING",
}  # fmt: skip

value = helper.make_tensor_value_info
node = helper.make_node
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def external(name, dims, offset, elements):
    """An initialiser whose elements the tests bind. The weights file must be there all the same, because ONNX
    Runtime asks for it and its optimiser reads small operands from it; it has these and ends before the rest."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in {"location": "weights.bin", "offset": offset, "length": 4 * elements}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


def write(name, nodes, inputs, outputs, initializers=(), **metadata):
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "millpond tests"
    for key, text in metadata.items():
        if key == "description":
            model.doc_string = text
        else:
            model.metadata_props.add(key=key, value=text)
    (HERE / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


def echoes():
    for ours, theirs in TYPES.items():
        kind = getattr(TensorProto, theirs)
        nodes = [node("Identity", ["x"], ["y"])]
        if ours.endswith("int4"):  # there is no identity of packed integers
            nodes = [node("Cast", ["x"], ["wide"], to=TensorProto.INT8), node("Cast", ["wide"], ["y"], to=kind)]
        write(f"echo-{ours}", nodes, [value("x", kind, ["n"])], [value("y", kind, ["n"])])
    write("echo-scalar", [node("Identity", ["x"], ["y"])], [value("x", FLOAT, [])], [value("y", FLOAT, [])])


def standard():
    x, y = value("x", FLOAT, ["n"]), value("y", FLOAT, ["n"])
    write(
        "half_plus_two",
        [node("Mul", ["x", "half"], ["scaled"]), node("Add", ["scaled", "two"], ["y"])],
        [x],
        [y],
        [external("half", [1], 0, 1), external("two", [1], 4096, 1)],
        description="half of x plus two",
        labels="none",
    )
    halves = helper.make_tensor("const_half", FLOAT, [1], [0.5])
    two = helper.make_tensor("const_two", FLOAT, [1], [2.0])
    write(
        "two_outputs",
        [node("Mul", ["x", "const_half"], ["half"]), node("Add", ["x", "const_two"], ["plus"])],
        [x],
        [value("half", FLOAT, ["n"]), value("plus", FLOAT, ["n"])],
        [halves, two],
    )
    write(
        "pick",
        [node("Gather", ["table", "index"], ["rows"], name="lookup")],
        [value("index", INT64, ["n"])],
        [value("rows", FLOAT, ["n", TABLE[1]])],
        [external("table", TABLE, 0, TABLE[0] * TABLE[1])],
    )


def special():
    x, y = value("x", FLOAT, ["n"]), value("y", FLOAT, ["n"])
    # An answer that is nothing but an input, and one that is nothing but a parameter.
    write(
        "through",
        [node("Add", ["x", "x"], ["twice"])],
        [x],
        [x, value("twice", FLOAT, ["n"]), value("half", FLOAT, [1])],
        [external("half", [1], 0, 1)],
    )
    # An input with a default, in the way of ONNX: an initialiser that is listed as an input.
    write(
        "default",
        [node("Add", ["x", "bias"], ["y"])],
        [x, value("bias", FLOAT, [1])],
        [y],
        [helper.make_tensor("bias", FLOAT, [1], [10.0])],
    )
    a = value("a", FLOAT, ["rows", "columns"])
    b = value("b", FLOAT, ["?", "columns"])
    write("symbols", [node("Add", ["a", "b"], ["y"])], [a, b], [value("y", FLOAT, ["rows", "columns"])])
    write("any_rank", [node("Neg", ["x"], ["y"])], [value("x", FLOAT, None)], [value("y", FLOAT, None)])
    write(
        "texts",
        [node("StringConcat", ["a", "b"], ["y"])],
        [value("a", TensorProto.STRING, ["n"]), value("b", TensorProto.STRING, ["n"])],
        [value("y", TensorProto.STRING, ["n"])],
    )
    sequence = helper.make_tensor_sequence_value_info("list", FLOAT, ["n"])
    write(
        "sequence_in",
        [node("ConcatFromSequence", ["list"], ["y"], axis=0)],
        [sequence],
        [y],
    )
    write("sequence_out", [node("SequenceConstruct", ["x"], ["list"]), node("Neg", ["x"], ["y"])], [x], [y, sequence])
    write("only_sequence_out", [node("SequenceConstruct", ["x"], ["list"])], [x], [sequence])
    write("unknown_operator", [node("NoSuchOperator", ["x"], ["y"])], [x], [y])
    # Fails while running, and not for an argument: rows that do not fit each other.
    write(
        "reshape",
        [node("Reshape", ["x", "shape"], ["y"], name="fold")],
        [x, value("shape", INT64, [2])],
        [value("y", FLOAT, ["r", "c"])],
    )


def folding():
    """A convolution and a normalisation, which the optimiser folds: it must read bound parameters to do so."""
    shapes = {"weight": (8, 4, 3, 3), "bias": (8,), "scale": (8,), "shift": (8,), "mean": (8,), "variance": (8,)}
    tensors, offset = [], 0
    for name, dims in shapes.items():
        elements = 1
        for dim in dims:
            elements *= dim
        tensors.append(external(name, dims, offset, elements))
        offset += 4096
    write(
        "folding",
        [
            node("Conv", ["x", "weight", "bias"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"]),
        ],
        [value("x", FLOAT, ["n", 4, 5, 5])],
        [value("y", FLOAT, ["n", 8, 5, 5])],
        tensors,
    )


if __name__ == "__main__":
    echoes()
    standard()
    special()
    folding()
    (HERE / "weights.bin").write_bytes(struct.pack("<f4092xf", 0.5, 2.0))
