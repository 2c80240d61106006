"""The Open Inference Protocol through tritonclient: health, metadata, infer and its options, repository, statistics."""

import json
import queue

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from endpoints import triton_inputs
from millpond import Server, drop_in
from models import stamped

X = {"x": np.array([1, 2, 5], np.float32)}
Y = np.array([2.5, 3, 4.5], np.float32)


@pytest.fixture
def http(server):
    with tritonclient.http.InferenceServerClient(server.http, concurrency=4) as client:
        yield client


@pytest.fixture
def grpc(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def client(request):
    return request.getfixturevalue(request.param)


def module_of(client):
    return tritonclient.grpc if type(client).__module__.startswith("tritonclient.grpc") else tritonclient.http


def as_dict(answer) -> dict:
    """Reads a field: the HTTP client returns dictionaries, the gRPC client messages."""
    if isinstance(answer, dict | list):
        return answer
    from google.protobuf import json_format

    return json_format.MessageToDict(answer, preserving_proto_field_name=True)


# ---- health and metadata


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("half_plus_two")
    assert client.is_model_ready("half_plus_two", "1")
    assert not client.is_model_ready("half_plus_two", "2")
    assert not client.is_model_ready("nobody")


def test_server_metadata(client):
    metadata = as_dict(client.get_server_metadata())
    assert metadata["name"] == "millpond"
    assert metadata["version"]
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(metadata["extensions"])


def test_model_metadata(client):
    metadata = as_dict(client.get_model_metadata("symbolic"))
    assert metadata["name"] == "symbolic"
    assert metadata["versions"] == ["1"]
    shapes = {entry["name"]: [int(n) for n in entry["shape"]] for entry in metadata["inputs"] + metadata["outputs"]}
    assert shapes == {"items": [-1, -1, 4], "bias": [-1, 4], "shifted": [-1, -1, 4], "total": [-1]}
    assert {entry["datatype"] for entry in metadata["inputs"]} == {"FP32"}


def test_metadata_names_every_type(client):
    metadata = as_dict(client.get_model_metadata("every_type", "1"))
    found = {entry["name"].removeprefix("in_"): entry["datatype"] for entry in metadata["inputs"]}
    assert found == {
        "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
        "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float32": "FP32", "float64": "FP64",
    }  # fmt: skip
    assert as_dict(client.get_model_metadata("strings"))["inputs"][0]["datatype"] == "BYTES"
    assert as_dict(client.get_model_metadata("half_precision"))["inputs"][0]["datatype"] == "FP16"
    assert as_dict(client.get_model_metadata("brain_float"))["inputs"][0]["datatype"] == "BF16"


# ---- infer


def test_infer_by_version_and_id(client):
    result = client.infer("half_plus_two", triton_inputs(module_of(client), X), model_version="1", request_id="r-7")
    answer = as_dict(result.get_response())
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("half_plus_two", "1", "r-7")
    np.testing.assert_array_equal(result.as_numpy("y"), Y)


def test_only_the_requested_outputs(client):
    module = module_of(client)
    inputs = {"items": np.ones((1, 2, 4), np.float32), "bias": np.zeros((1, 4), np.float32)}
    wanted = [module.InferRequestedOutput("total")]
    result = client.infer("symbolic", triton_inputs(module, inputs), outputs=wanted)
    assert [entry["name"] for entry in as_dict(result.get_response())["outputs"]] == ["total"]
    np.testing.assert_array_equal(result.as_numpy("total"), [8])
    assert result.as_numpy("shifted") is None


def test_http_mixes_json_and_binary(http):
    module = tritonclient.http
    items = module.InferInput("items", [1, 1, 4], "FP32").set_data_from_numpy(np.ones((1, 1, 4), np.float32))
    bias = module.InferInput("bias", [1, 4], "FP32")
    bias.set_data_from_numpy(np.full((1, 4), 2, np.float32), binary_data=False)
    wanted = [
        module.InferRequestedOutput("shifted", binary_data=False),
        module.InferRequestedOutput("total", binary_data=True),
    ]
    result = http.infer("symbolic", [items, bias], outputs=wanted)
    outputs = {entry["name"]: entry for entry in result.get_response()["outputs"]}
    assert outputs["shifted"]["data"] == [3, 3, 3, 3]
    assert outputs["total"]["parameters"]["binary_data_size"] == 4
    np.testing.assert_array_equal(result.as_numpy("total"), [12])


def test_http_without_outputs_answers_all_as_json(server):
    """A request written by hand, as in KServe's examples."""
    body = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]}
    answer = requests.post(f"{server.url}/v2/models/half_plus_two/infer", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2], "data": [2.5, 3.0]}]


def test_http_takes_nested_json_data(server):
    """In the protocol `data` may be nested like the tensor, or flat."""
    data = [[[1, 2, 3, 4], [1, 1, 1, 1]]]
    body = {
        "inputs": [
            {"name": "items", "shape": [1, 2, 4], "datatype": "FP32", "data": data},
            {"name": "bias", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]},
        ],
        "outputs": [{"name": "total"}],
    }
    answer = requests.post(f"{server.url}/v2/models/symbolic/versions/1/infer", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["data"] == [14.0]


def test_http_answers_all_outputs_as_binary(server):
    body = {
        "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}],
        "parameters": {"binary_data_output": True},
    }
    answer = requests.post(f"{server.url}/v2/models/half_plus_two/infer", json=body, timeout=60)
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert json.loads(answer.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert answer.content[length:] == np.float32(2.5).tobytes()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client, algorithm):
    inputs = triton_inputs(module_of(client), X)
    name = "compression_algorithm" if module_of(client) is tritonclient.grpc else "request_compression_algorithm"
    result = client.infer("half_plus_two", inputs, **{name: algorithm})
    np.testing.assert_array_equal(result.as_numpy("y"), Y)


def test_a_sequence_is_refused(client):
    inputs = triton_inputs(module_of(client), X)
    with pytest.raises(InferenceServerException, match="sequences are not offered"):
        client.infer("half_plus_two", inputs, sequence_id=7, sequence_start=True)
    with pytest.raises(InferenceServerException, match="temperature"):
        client.infer("half_plus_two", inputs, parameters={"temperature": 1})


def test_a_load_with_settings_is_refused(client):
    with pytest.raises(InferenceServerException, match=r"millpond\.toml"):
        client.load_model("half_plus_two", config="{}")
    with pytest.raises(InferenceServerException, match=r"millpond\.toml"):
        client.load_model("half_plus_two", config="{}", files={"file:1/model.onnx": b"onnx"})


def test_a_repeated_output_is_refused(client):
    module = module_of(client)
    wanted = [module.InferRequestedOutput("y")] * 2
    with pytest.raises(InferenceServerException, match="twice"):
        client.infer("half_plus_two", triton_inputs(module, X), outputs=wanted)


def test_bytes_that_are_not_text(client):
    """BYTES need not be UTF-8."""
    module = module_of(client)
    array = np.array([[b"\xff\xfe", b"\x80"]], object)
    result = client.infer("strings", triton_inputs(module, {"text": array}))
    assert result.as_numpy("same").tolist() == array.tolist()


def test_an_empty_batch(client):
    result = client.infer("half_plus_two", triton_inputs(module_of(client), {"x": np.zeros(0, np.float32)}))
    assert result.as_numpy("y").shape == (0,)


def test_grpc_typed_contents(server):
    """Tensors in typed fields instead of raw bytes, as clients other than Triton's send them."""
    import grpc as grpc_core
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="half_plus_two")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[3])
    tensor.contents.fp32_contents.extend([1, 2, 5])
    with grpc_core.insecure_channel(server.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
    assert answer.outputs[0].name == "y"
    raw = answer.raw_output_contents[0] if answer.raw_output_contents else None
    found = np.frombuffer(raw, np.float32) if raw else np.array(answer.outputs[0].contents.fp32_contents)
    np.testing.assert_array_equal(found, Y)


def test_asynchronous_calls_of_the_plain_clients(http, grpc):
    pending = [http.async_infer("half_plus_two", triton_inputs(tritonclient.http, X)) for _ in range(20)]
    for call in pending:
        np.testing.assert_array_equal(call.get_result().as_numpy("y"), Y)

    import queue

    answers = queue.Queue()
    for _ in range(20):
        inputs = triton_inputs(tritonclient.grpc, X)
        grpc.async_infer("half_plus_two", inputs, callback=lambda result, error: answers.put((result, error)))
    for _ in range(20):
        result, error = answers.get(timeout=60)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("y"), Y)


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
async def test_asyncio_clients(server, module):
    import asyncio

    address = server.http if module is tritonclient.http else server.grpc
    async with module.aio.InferenceServerClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("half_plus_two")
        assert as_dict(await client.get_model_metadata("half_plus_two"))["name"] == "half_plus_two"
        calls = [client.infer("half_plus_two", triton_inputs(module, X)) for _ in range(50)]
        for result in await asyncio.gather(*calls):
            np.testing.assert_array_equal(result.as_numpy("y"), Y)
        with pytest.raises(InferenceServerException, match="nobody"):
            await client.infer("nobody", triton_inputs(module, X))


# ---- repository and statistics


def entries(answer) -> dict[tuple[str, str], dict]:
    found = as_dict(answer)
    found = found["models"] if isinstance(found, dict) else found
    return {(entry["name"], entry["version"]): entry for entry in found}


def test_repository_index(client):
    index = entries(client.get_model_repository_index())
    assert index["half_plus_two", "1"]["state"] == "READY"
    assert index["voice_step", "1"]["state"] == "READY"


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_unload_and_load(serve, tmp_path, kind):
    root = tmp_path / "root"
    drop_in(stamped(tmp_path / "stamped.onnx", 1), root / "stamped", 1)
    server = serve(root)
    module = tritonclient.http if kind == "http" else tritonclient.grpc
    with module.InferenceServerClient(server.http if kind == "http" else server.grpc) as client:
        client.unload_model("stamped")
        wait_until(lambda: not client.is_model_ready("stamped"))
        assert entries(client.get_model_repository_index())["stamped", "1"]["state"] != "READY"
        with pytest.raises(InferenceServerException):
            client.infer("stamped", triton_inputs(module, X))
        # An unloaded model stays unloaded, although its directory exists and is scanned again.
        import time

        time.sleep(1)
        assert not client.is_model_ready("stamped")
        server.assert_serving()

        client.load_model("stamped")
        assert client.is_model_ready("stamped"), "load answers when the model serves"
        result = client.infer("stamped", triton_inputs(module, X))
        np.testing.assert_array_equal(result.as_numpy("y"), X["x"] + 1)
        with pytest.raises(InferenceServerException, match="nobody"):
            client.load_model("nobody")


def test_kserves_messages_unload_and_load(serve, tmp_path):
    """KServe has the model's name in field 1; its answers have the name and a flag, and Triton's have no fields."""
    import grpc as grpc_core

    root = tmp_path / "root"
    drop_in(stamped(tmp_path / "stamped.onnx", 1), root / "stamped", 1)
    server = serve(root)
    with grpc_core.insecure_channel(server.grpc) as channel:
        for method in ("RepositoryModelUnload", "RepositoryModelLoad"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            assert call(b"\n\x07stamped", timeout=60) == b"\n\x07stamped\x10\x01", method
    assert requests.get(f"{server.url}/v2/models/stamped/ready", timeout=60).status_code == 200


def wait_until(condition, timeout_s: float = 60) -> None:
    import time

    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be so"
        time.sleep(0.05)


def counts(client, model: str) -> dict[str, int]:
    (entry,) = as_dict(client.get_inference_statistics(model))["model_stats"]
    assert (entry["name"], entry["version"]) == (model, "1")
    stats = entry["inference_stats"]
    return {kind: int(stats.get(kind, {}).get("count", 0)) for kind in ("success", "fail", "queue", "compute_infer")}


def test_answers_of_a_stream_keep_the_order_of_its_requests(grpc):
    """The client passes no id of a failed request on, so the order alone shows which one has failed."""
    answers = queue.Queue()
    grpc.start_stream(callback=lambda result, error: answers.put(result if error is None else error))
    for number in range(100):
        inputs = triton_inputs(tritonclient.grpc, {"x": np.array([number], np.float32)})
        grpc.async_stream_infer("none" if number == 50 else "half_plus_two", inputs, request_id=str(number))
    for number in range(100):
        answer = answers.get(timeout=60)
        if number == 50:
            assert isinstance(answer, InferenceServerException), answer
        else:
            assert answer.get_response().id == str(number)
            assert answer.as_numpy("y").tolist() == [number / 2 + 2]
    grpc.stop_stream()


def test_statistics_count_requests(client):
    before = counts(client, "gather")
    good = {"ids": np.array([[1]], np.int64)}
    for _ in range(3):
        client.infer("gather", triton_inputs(module_of(client), good))
    with pytest.raises(InferenceServerException):
        client.infer("gather", triton_inputs(module_of(client), {"ids": np.array([[10**6]], np.int64)}))
    after = counts(client, "gather")
    difference = {kind: after[kind] - before[kind] for kind in after}
    assert difference["success"] == 3
    assert difference["fail"] == 1
    assert difference["queue"] >= 3
    assert difference["compute_infer"] >= 3


def test_statistics_of_all_models(client):
    names = {entry["name"] for entry in as_dict(client.get_inference_statistics())["model_stats"]}
    assert {"half_plus_two", "gather", "strings"} <= names


def test_the_address_of_the_server_is_one_argument(server: Server):
    """`curl HOST:PORT/v2` works as the protocol's documents print it."""
    answer = requests.get(f"{server.url}/v2", timeout=60)
    assert answer.status_code == 200
    assert answer.json()["name"] == "millpond"
