"""Batching as clients see it: merged answers equal ONNX Runtime's, padding never shows, limits refuse with a status."""

import concurrent.futures
import pathlib
import random
import subprocess
import time

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from prometheus_text import samples
from tritonclient.utils import InferenceServerException

from endpoints import triton_inputs
from millpond import BINARY, REPOSITORY, Server, publish, wait_for
from models import Arrays, Reference, constant, save, value

CLIENTS = 16
FEATURES = 16
BATCHED = """
[schedule]
mode = "async"
max-batch = 16
max-queue-delay = "20ms"
preferred-batch-sizes = [8]
always-merge = true
"""
PADDED = """
[schedule]
mode = "async"
merge = "pad"
max-queue-delay = "20ms"
always-merge = true
[schedule.inputs.x]
axes = [1]
value = 7.0
similarity = 0.1
mask = "mask"
length = "length"
[[schedule.outputs.marked]]
axis = 1
input = "x"
input-axis = 1
"""
OVERFLOWING = """
[schedule]
mode = "async"
queue = 2
"""
MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def ranker(path: pathlib.Path) -> pathlib.Path:
    """Rows through one layer, which gains from merging. Whole numbers, so that the order of sums does not matter."""
    weights = np.random.default_rng(3).integers(-4, 5, (FEATURES, 8)).astype(np.float32)
    return save(
        path,
        [helper.make_node("MatMul", ["features", "weights"], ["z"]), helper.make_node("Relu", ["z"], ["scores"])],
        [value("features", TensorProto.FLOAT, ["n", FEATURES])],
        [value("scores", TensorProto.FLOAT, ["n", 8])],
        [constant("weights", weights)],
    )


def lines(path: pathlib.Path) -> pathlib.Path:
    """Lines of any width with a mask and a length for the server to fill. Each output shows a wrong value."""
    return save(
        path,
        [
            helper.make_node("Mul", ["x", "mask"], ["real"]),
            helper.make_node("ReduceSum", ["real", "last"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "last"], ["width"], keepdims=0),
            helper.make_node("Add", ["x", "mask"], ["marked"]),
            helper.make_node("Identity", ["length"], ["told"]),
        ],
        [
            value("x", TensorProto.FLOAT, ["n", "w"]),
            value("mask", TensorProto.FLOAT, ["n", "w"]),
            value("length", TensorProto.INT64, ["n"]),
        ],
        [
            value("sum", TensorProto.FLOAT, ["n"]),
            value("width", TensorProto.FLOAT, ["n"]),
            value("marked", TensorProto.FLOAT, ["n", "w"]),
            value("told", TensorProto.INT64, ["n"]),
        ],
        [constant("last", np.array([1], np.int64))],
    )


def pairs(path: pathlib.Path) -> pathlib.Path:
    """Scores of all items of a run against each other. The shape names no symbol that says so."""
    return save(
        path,
        [
            helper.make_node("Transpose", ["x"], ["columns"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "columns"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, [None, 3])],
        [value("y", TensorProto.FLOAT, [None, None])],
    )


def configure(root: pathlib.Path, model: str, settings: str) -> None:
    (root / model).mkdir(parents=True, exist_ok=True)
    (root / model / "millpond.toml").write_text(settings)


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory, sources):
    """Starts a server whose models merge. Also returns ONNX Runtime's answers."""
    scratch, root = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("repository")
    found = {"ranker": ranker(scratch / "ranker.onnx"), "lines": lines(scratch / "lines.onnx"), "spin": sources["spin"]}
    settings = {"ranker": BATCHED, "lines": PADDED, "spin": OVERFLOWING}
    for name, source in found.items():
        configure(root, name, settings[name])
        publish(source, root / name, 1)
    server = Server(root, log=tmp_path_factory.mktemp("log") / "server.log").wait_ready()
    yield server, {name: Reference(path) for name, path in found.items()}
    assert server.stop() == 0, server.log_text()


def ask(server: Server, endpoint: str, model: str, inputs: Arrays, **options) -> tritonclient.http.InferResult:
    module = MODULES[endpoint]
    with module.InferenceServerClient(server.http if endpoint == "http" else server.grpc) as client:
        return client.infer(model, triton_inputs(module, inputs), **options)


def from_many_clients(task, requests_each: int) -> list:
    """Runs `task(client, request)` on CLIENTS threads at once. Returns all results."""

    def work(client: int) -> list:
        return [task(client, request) for request in range(requests_each)]

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return [result for results in pool.map(work, range(CLIENTS)) for result in results]


def metric(server: Server, name: str, **labels: str) -> float:
    answer = requests.get(f"{server.url}/metrics", timeout=60)
    matching = [v for found, has, v in samples(answer.text) if found == f"millpond_{name}" and labels.items() <= has.items()]
    assert len(matching) == 1, (name, labels, matching)
    return matching[0]


def statistics(server: Server, model: str) -> dict:
    answer = requests.get(f"{server.url}/v2/models/{model}/stats", timeout=60)
    return answer.json()["model_stats"][0]


# ---- answers


def test_merged_answers_equal_onnx_runtimes(scheduled):
    """Requests of one to forty items, so that some are joined and some are split, through two endpoints."""
    server, references = scheduled

    def task(client: int, request: int) -> int:
        numbers = random.Random(client * 100 + request)
        items = numbers.choice([1, 1, 2, 3, 5, 16, 17, 40])
        features = np.random.default_rng(client * 100 + request).integers(-9, 10, (items, FEATURES)).astype(np.float32)
        answer = ask(server, ["http", "grpc"][client % 2], "ranker", {"features": features}).as_numpy("scores")
        np.testing.assert_array_equal(answer, references["ranker"].run({"features": features})["scores"])
        return items

    items = from_many_clients(task, 10)
    # The worker counts a batch after it has sent the answers.
    deadline = time.monotonic() + 60
    while metric(server, "batch_size_sum", model="ranker") < sum(items) and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = statistics(server, "ranker")
    assert stats["inference_count"] == sum(items)
    assert stats["inference_stats"]["success"]["count"] == len(items)
    runs = metric(server, "batch_size_count", model="ranker")
    assert metric(server, "batch_size_sum", model="ranker") == sum(items)
    assert metric(server, "batch_size_bucket", model="ranker", le="16.0") == runs, "no batch exceeds max-batch"
    assert sum(items) / 16 <= runs < sum(-(-count // 16) for count in items), "some were joined"
    assert stats["execution_count"] > 0
    assert all(1 <= entry["batch_size"] <= 16 for entry in stats["batch_stats"])
    assert metric(server, "scheduled_requests_total", model="ranker", kind="refused") == 0


def test_padding_never_shows(scheduled):
    """Lines of many widths share batches, and each answer equals that of the line alone."""
    server, references = scheduled

    def task(client: int, request: int) -> int:
        shape = (1 + request % 2, 3 + (client * 7 + request * 5) % 40)
        x = np.random.default_rng(client * 100 + request).integers(-9, 10, shape).astype(np.float32)
        answer = ask(server, ["http", "grpc"][client % 2], "lines", {"x": x})
        whole = {"x": x, "mask": np.ones_like(x), "length": np.full(shape[0], shape[1], np.int64)}
        for name, wanted in references["lines"].run(whole).items():
            np.testing.assert_array_equal(answer.as_numpy(name), wanted, err_msg=name)
        return x.size

    elements = from_many_clients(task, 10)
    assert metric(server, "input_elements_total", model="lines", kind="real") >= sum(elements)
    assert metric(server, "input_elements_total", model="lines", kind="padding") > 0, "some were padded"
    runs = metric(server, "batch_size_count", model="lines")
    assert runs < len(elements), "some were joined"


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
def test_inputs_that_the_server_fills_may_be_sent(scheduled, endpoint):
    server, references = scheduled
    inputs = {
        "x": np.array([[1, 2, 3, 4]], np.float32),
        "mask": np.array([[1, 1, 0, 0]], np.float32),
        "length": np.array([2], np.int64),
    }
    answer = ask(server, endpoint, "lines", inputs)
    for name, wanted in references["lines"].run(inputs).items():
        np.testing.assert_array_equal(answer.as_numpy(name), wanted, err_msg=name)


# ---- metadata and parameters


def test_the_configuration_shows_the_batching(scheduled):
    server, _ = scheduled
    config = requests.get(f"{server.url}/v2/models/ranker/config", timeout=60).json()
    assert config["max_batch_size"] == 16
    assert (config["input"][0]["dims"], config["output"][0]["dims"]) == ([FEATURES], [8])
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 20_000
    metadata = requests.get(f"{server.url}/v2/models/ranker", timeout=60).json()
    assert metadata["inputs"][0]["shape"] == [-1, FEATURES], "the metadata keeps the batch axis, as Triton's does"
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        config = client.get_model_config("lines").config
        assert {entry.name: entry.optional for entry in config.input} == {"x": False, "mask": True, "length": True}
        assert config.HasField("dynamic_batching")


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
def test_a_priority_is_accepted(scheduled, endpoint):
    server, references = scheduled
    features = np.ones((2, FEATURES), np.float32)
    wanted = references["ranker"].run({"features": features})["scores"]
    for priority in [0, 1, 99]:
        answer = ask(server, endpoint, "ranker", {"features": features}, priority=priority)
        np.testing.assert_array_equal(answer.as_numpy("scores"), wanted)


def test_an_unknown_priority_is_refused(scheduled):
    server, _ = scheduled
    tensor = {"name": "features", "datatype": "FP32", "shape": [1, FEATURES], "data": [0] * FEATURES}
    for wrong in [-1, "high", 1.5]:
        body = {"inputs": [tensor], "parameters": {"priority": wrong}}
        answer = requests.post(f"{server.url}/v2/models/ranker/infer", json=body, timeout=60)
        assert answer.status_code == 400
        assert "priority" in answer.json()["error"]


@pytest.mark.parametrize(("settings", "items"), [("allowed-batch-sizes = [4]", 2), ("", 8)])
def test_scores_against_each_other_are_those_of_the_request(serve, tmp_path, settings, items):
    """The answer has no column for an item that the server added, and no piece of the request is an answer."""
    root = tmp_path / "root"
    configure(root, "pairs", f'[schedule]\nmode = "async"\nmax-batch = 4\n{settings}\n')
    source = pairs(tmp_path / "pairs.onnx")
    publish(source, root / "pairs", 1)
    server = serve(root)
    x = {"x": np.arange(items * 3, dtype=np.float32).reshape(items, 3)}
    for _ in range(2):
        np.testing.assert_array_equal(ask(server, "http", "pairs", x).as_numpy("y"), Reference(source).run(x)["y"])


def test_a_warm_up_shows_that_a_model_mixes_its_items(serve, tmp_path):
    """Each item has one object. So a run has as many rows as items, which start with the number of the item."""
    root = tmp_path / "root"
    objects = save(
        tmp_path / "objects.onnx",
        [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Transpose", ["found"], ["y"], perm=[1, 0])],
        [value("x", TensorProto.FLOAT, ["n", 5])],
        [value("y", TensorProto.INT64, ["k", 2])],
    )
    publish(objects, root / "objects", 1)
    configure(root, "objects", '[schedule]\nmode = "async"\nmax-queue-delay = "100ms"\nalways-merge = true\n')
    server = serve(root)

    def task(client: int, request: int) -> None:
        x = np.eye(5, dtype=np.float32)[[client % 5]]
        found = ask(server, ["http", "grpc"][client % 2], "objects", {"x": x}).as_numpy("y")
        np.testing.assert_array_equal(found, [[0, client % 5]])

    from_many_clients(task, 3)
    wait_for(lambda: metric(server, "unjoined_versions_total", model="objects"), lambda versions: versions == 1)


def test_the_log_says_why_requests_are_not_merged(serve, tmp_path, sources):
    root = tmp_path / "root"
    rows = save(
        tmp_path / "rows.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 3])],
        [value("y", TensorProto.FLOAT, [4, 3])],
    )
    publish(rows, root / "rows", 1)
    publish(ranker(tmp_path / "ranker.onnx"), root / "ranker", 1)
    configure(root, "rows", '[schedule]\nmode = "async"\n')
    configure(root, "ranker", '[schedule]\nmode = "async"\n')
    log = serve(root).log_text()
    reasons = [line for line in log.splitlines() if "requests are not merged" in line]
    assert len(reasons) == 1, log
    assert "rows/1" in reasons[0] and 'output \\"y\\" has no dynamic axis 0' in reasons[0]


# ---- limits


def test_a_full_queue_refuses_with_advice(scheduled):
    """Two requests may wait. The others are refused at once, over HTTP and gRPC."""
    server, _ = scheduled
    rounds = {"rounds": np.array([1500], np.int64)}

    def over_http(_) -> str:
        body = {"inputs": [{"name": "rounds", "datatype": "INT64", "shape": [1], "data": [1500]}]}
        answer = requests.post(f"{server.url}/v2/models/spin/infer", json=body, timeout=60)
        if answer.status_code != 200:
            assert answer.status_code in (429, 503), answer.text
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["error"]
        return str(answer.status_code)

    def over_grpc(_) -> str:
        try:
            ask(server, "grpc", "spin", rounds, client_timeout=60)
        except InferenceServerException as error:
            return error.status()
        return "200"

    http, grpc = set(), set()
    refusals = {"429", "503"}, {"StatusCode.RESOURCE_EXHAUSTED", "StatusCode.UNAVAILABLE"}
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        # The requests of clients that wait for a core may not overlap.
        for _ in range(5):
            found = pool.map(over_http, range(16)), pool.map(over_grpc, range(16))
            http.update(found[0])
            grpc.update(found[1])
            if http & refusals[0] and grpc & refusals[1]:
                break
    assert "200" in http | grpc
    assert http & refusals[0]
    assert grpc <= {"200", *refusals[1]}
    assert grpc & refusals[1]
    assert metric(server, "scheduled_requests_total", model="spin", kind="refused") > 0
    # Other models are not affected.
    ask(server, "grpc", "ranker", {"features": np.ones((1, FEATURES), np.float32)})


def test_a_models_deadline_applies_to_requests_without_one(serve, tmp_path, sources):
    root = tmp_path / "root"
    configure(root, "spin", '[schedule]\ntimeout = "100ms"\n')
    publish(sources["spin"], root / "spin", 1)
    server = serve(root)
    with pytest.raises(InferenceServerException) as caught:
        ask(server, "grpc", "spin", {"rounds": np.array([20_000], np.int64)})
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    # A short request is served. A pause of a busy machine may be longer than the timeout, so it is repeated.
    deadline = time.monotonic() + 60
    while True:
        try:
            ask(server, "grpc", "spin", {"rounds": np.array([1], np.int64)})
            break
        except InferenceServerException as late:
            assert late.status() == "StatusCode.DEADLINE_EXCEEDED" and time.monotonic() < deadline, late


def test_a_rule_that_does_not_fit_the_model_is_refused(serve, tmp_path):
    root = tmp_path / "root"
    source = ranker(tmp_path / "ranker.onnx")
    publish(source, root / "ranker", 1)
    server = serve(root)
    features = {"features": np.ones((2, FEATURES), np.float32)}
    before = ask(server, "http", "ranker", features).as_numpy("scores")
    configure(root, "ranker", '[schedule]\nmode = "async"\n[schedule.inputs.features]\naxes = [1]\n')
    publish(source, root / "ranker", 2)
    assert "features" in server.wait_refused("ranker", 2)
    answer = ask(server, "http", "ranker", features)
    assert answer.get_response()["model_version"] == "1"
    np.testing.assert_array_equal(answer.as_numpy("scores"), before)


def test_settings_for_all_models_come_from_flags(serve, tmp_path):
    root = tmp_path / "root"
    publish(ranker(tmp_path / "ranker.onnx"), root / "ranker", 1)
    server = serve(root, "--threads", "1", "--runtime-threads", "1", "--max-batch", "4", "--max-queue-delay", "1ms")
    config = requests.get(f"{server.url}/v2/models/ranker/config", timeout=60).json()
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 1000
    features = np.ones((10, FEATURES), np.float32)
    assert ask(server, "http", "ranker", {"features": features}).as_numpy("scores").shape == (10, 8)
    # The worker counts a batch after it has sent the answers.
    deadline = time.monotonic() + 60
    while metric(server, "batch_size_count", model="ranker") < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert metric(server, "batch_size_count", model="ranker") == 3, "ten items in batches of at most four"
    assert metric(server, "threads", kind="worker") == 1
    assert metric(server, "threads", kind="connection") > 0
    assert metric(server, "workers", kind="all") == 1


def test_more_threads_than_cores_are_refused(serve, tmp_path):
    serve(tmp_path / "root", "--threads", "100", "--oversubscribe").assert_serving()
    command = [str(BINARY), "serve", str(tmp_path / "root"), "--threads", "100", "--http-port", "0", "--grpc-port", "0"]
    done = subprocess.run(command, cwd=REPOSITORY, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--threads 100 on" in done.stderr
    assert "--oversubscribe" in done.stderr
