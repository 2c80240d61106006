"""Models of many tensors, whose answers show the version that gave them."""

import pathlib

import numpy as np
from onnx import TensorProto, helper

from millpond import run
from models import constant, save, value
from store import BUCKET

URL = f"s3://{BUCKET}/models"


def layered(path: pathlib.Path, version: int, seeds: list[int], kib: int = 1024) -> pathlib.Path:
    """y = x + version. It holds a tensor of `kib` KiB for each of `seeds`. The seed decides the tensor's content."""
    rows = kib * 1024 // 4 // 64
    tensors = [
        constant(f"layer{at}", np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32))
        for at, seed in enumerate(seeds)
    ]
    # Each layer is used: an unused one would not be part of the graph. 0 * finite is 0.
    nodes = [helper.make_node("ReduceMax", [f"layer{at}"], [f"max{at}"], keepdims=0) for at in range(len(seeds))]
    return save(
        path,
        [
            *nodes,
            helper.make_node("Sum", [f"max{at}" for at in range(len(seeds))], ["all"]),
            helper.make_node("Mul", ["all", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "version"], ["stamp"]),
            helper.make_node("Add", ["x", "stamp"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, ["batch"])],
        [value("y", TensorProto.FLOAT, ["batch"])],
        [*tensors, constant("zero", np.float32(0)), constant("version", np.float32(version))],
    )


def upload(scratch: pathlib.Path, name: str, version: int, seeds: list[int], kib: int = 1024) -> str:
    """Publishes a version to the store with `millpond publish`. Returns its URL."""
    source = layered(scratch / f"{name}-{version}.onnx", version, seeds, kib)
    done = run("publish", str(source), "--to", f"{URL}/{name}", "--version", str(version))
    return done.stdout.strip()


def stamp(server, name: str) -> int:
    """Returns the version that answers."""
    answer = server.infer(name, [1.0])
    assert answer.status_code == 200, answer.text
    return int(answer.json()["outputs"][0]["data"][0] - 1)
