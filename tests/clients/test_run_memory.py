"""A run that needs more memory than the model's `run-memory` fails alone."""

import pathlib
import time

import numpy as np
import requests
from onnx import TensorProto, helper

from millpond import Server, drop_in
from models import constant, save, value

# 256 MiB of float32.
TOO_MANY = 64 << 20


def ones(path: pathlib.Path) -> pathlib.Path:
    """As many ones as the input says."""
    return save(
        path,
        [helper.make_node("Expand", ["one", "count"], ["y"])],
        [value("count", TensorProto.INT64, [1])],
        [value("y", TensorProto.FLOAT, ["n"])],
        [constant("one", np.array([1], np.float32))],
    )


def ask(server: Server, count: int) -> requests.Response:
    tensor = {"name": "count", "datatype": "INT64", "shape": [1], "data": [count]}
    return requests.post(f"{server.url}/v2/models/ones/infer", json={"inputs": [tensor]}, timeout=60)


def test_a_size_in_a_request_cannot_take_all_memory(serve, tmp_path):
    root = tmp_path / "models"
    drop_in(ones(tmp_path / "ones.onnx"), root / "ones", 1)
    (root / "ones" / "millpond.toml").write_text('isolate = true\nrun-memory = "64MiB"\n')
    server = serve(root)
    assert ask(server, 3).json()["outputs"][0]["data"] == [1.0, 1.0, 1.0]
    for _ in range(3):
        refused = ask(server, TOO_MANY)
        assert refused.status_code in (429, 503), refused.text[:300]
        if refused.status_code == 429:
            assert 'more memory than run-memory = "64.0 MiB"' in refused.json()["error"], refused.text
        server.assert_serving()
        deadline = time.monotonic() + 60
        # The worker process may have ended. It is started again.
        while (answer := ask(server, 2)).status_code == 503:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        assert answer.json()["outputs"][0]["data"] == [1.0, 1.0], answer.text


def test_the_setting_needs_a_worker_process(serve, tmp_path):
    root = tmp_path / "models"
    drop_in(ones(tmp_path / "ones.onnx"), root / "ones", 1)
    (root / "ones" / "millpond.toml").write_text('run-memory = "64MiB"\n')
    server = serve(root)
    status = requests.post(f"{server.url}/v2/repository/index", json={}, timeout=60).json()
    assert "run-memory needs isolate = true" in str(status), status
