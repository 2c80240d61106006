"""Wrong requests get the right status and a message that names the mistake, and the server keeps serving."""

import json
import select
import socket
import time

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from endpoints import triton_inputs
from millpond import Server
from prometheus_text import samples

IDLE_CONNECTIONS = 10_000
INFER = "/v2/models/half_plus_two/infer"


@pytest.fixture(autouse=True)
def still_serving(server):
    yield
    server.assert_serving()


def tensor(**changes) -> dict:
    return {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]} | changes


def post(server: Server, body, path: str = INFER, **headers) -> requests.Response:
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    return requests.post(server.url + path, data=data, headers=headers, timeout=60)


def assert_refused(answer: requests.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]
    assert message
    assert all(word in message for word in words), message


# ---- well-formed requests that cannot be served, by both of tritonclient's clients

WRONG = {
    "shape": ("half_plus_two", {"x": np.ones((2, 2), np.float32)}, "", "INVALID_ARGUMENT", 400, ["x"]),
    "inner dimension": (
        "symbolic",
        {"items": np.ones((1, 2, 5), np.float32), "bias": np.ones((1, 4), np.float32)},
        "", "INVALID_ARGUMENT", 400, ["items"],
    ),
    "shared dimension": (
        "symbolic",
        {"items": np.ones((2, 2, 4), np.float32), "bias": np.ones((3, 4), np.float32)},
        "", "INVALID_ARGUMENT", 400, [],
    ),
    "type": ("half_plus_two", {"x": np.ones(2, np.float64)}, "", "INVALID_ARGUMENT", 400, ["x", "float32"]),
    "name": ("half_plus_two", {"z": np.ones(2, np.float32)}, "", "INVALID_ARGUMENT", 400, ["z"]),
    "too many inputs": (
        "half_plus_two",
        {"x": np.ones(2, np.float32), "z": np.ones(2, np.float32)},
        "", "INVALID_ARGUMENT", 400, ["z"],
    ),
    "missing input": ("symbolic", {"bias": np.ones((1, 4), np.float32)}, "", "INVALID_ARGUMENT", 400, ["items"]),
    "index out of range": ("gather", {"ids": np.array([[10**6]], np.int64)}, "", "INVALID_ARGUMENT", 400, []),
    "unknown model": ("nobody", {"x": np.ones(2, np.float32)}, "", "NOT_FOUND", 404, ["nobody"]),
    "unknown version": ("half_plus_two", {"x": np.ones(2, np.float32)}, "77", "NOT_FOUND", 404, ["77"]),
    "version without digits": ("half_plus_two", {"x": np.ones(2, np.float32)}, "new", "INVALID_ARGUMENT", 400, ["new"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_of_the_http_client(server, case):
    model, inputs, version, _, status, words = WRONG[case]
    with tritonclient.http.InferenceServerClient(server.http) as client, pytest.raises(InferenceServerException) as caught:
        client.infer(model, triton_inputs(tritonclient.http, inputs), model_version=version)
    assert caught.value.status() == str(status), caught.value
    assert all(word in caught.value.message() for word in words), caught.value


@pytest.mark.parametrize("case", WRONG)
def test_errors_of_the_grpc_client(server, case):
    model, inputs, version, code, _, words = WRONG[case]
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client, pytest.raises(InferenceServerException) as caught:
        client.infer(model, triton_inputs(tritonclient.grpc, inputs), model_version=version)
    assert caught.value.status() == f"StatusCode.{code}", caught.value
    assert all(word in caught.value.message() for word in words), caught.value


def test_unknown_output(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client, pytest.raises(InferenceServerException) as caught:
        wanted = [tritonclient.grpc.InferRequestedOutput("q")]
        client.infer("half_plus_two", triton_inputs(tritonclient.grpc, {"x": np.ones(1, np.float32)}), outputs=wanted)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "q" in caught.value.message()


# ---- malformed bodies


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", []),
        ("{", []),
        ("null", []),
        ('{"inputs": 3}', []),
        (b"\xff\xfe\x00", []),
        ("[" * 100_000, []),
        ({"inputs": [{"name": "x"}]}, []),
        ({"inputs": [tensor(datatype="FP33")]}, ["FP33"]),
        ({"inputs": [tensor(shape=[-2])]}, []),
        ({"inputs": [tensor(shape=[2**62, 2**62])]}, []),
        ({"inputs": [tensor(shape=[3])]}, ["x"]),
        ({"inputs": [tensor(data=["a", "b"])]}, ["x"]),
        ({"inputs": [tensor(data=[1e300, 2])]}, []),
        ({"inputs": [tensor(), tensor()]}, ["x"]),
        ({"inputs": [tensor()], "outputs": [{"name": "q"}]}, ["q"]),
        ({"inputs": []}, ["x"]),
        ({}, []),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, list) else "",
)
def test_malformed_json(server, body, words):
    assert_refused(post(server, body), 400, *words)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/%ff"),
        ("GET", "/v1/models/a%ff"),
        ("GET", "/v1/images/%ff"),
        ("POST", "/v1/audio/%ff"),
        ("POST", "/v2/repository/models/%c3/load"),
    ],
)
def test_a_name_in_the_path_that_is_not_utf8(server, method, path):
    assert_refused(requests.request(method, server.url + path, timeout=60), 400, "UTF-8")


def test_the_name_of_a_snapshot_that_is_not_utf8(server):
    answer = requests.get(f"{server.url}/collections/a/snapshots/%ff", timeout=60)
    assert answer.status_code == 400, answer.text
    assert "UTF-8" in answer.json()["status"]["error"]


def binary_body(data: bytes, size: int, **changes) -> tuple[bytes, int]:
    head = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}} | changes
    header = json.dumps({"inputs": [head]}).encode()
    return header + data, len(header)


GOOD = np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize(
    ("data", "size", "shift"),
    [
        (GOOD, 4, 0),
        (GOOD, 12, 0),
        (GOOD, 2**63, 0),
        (GOOD, -1, 0),
        (GOOD, 8, 1_000_000),
        (GOOD, 8, -3),
        (GOOD + b"left over", 8, 0),
        (b"", 8, 0),
        (b"", 0, 0),
    ],
)
def test_wrong_binary_length(server, data, size, shift):
    body, length = binary_body(data, size)
    headers = {"Inference-Header-Content-Length": str(length + shift)}
    assert_refused(post(server, body, **headers), 400)


@pytest.mark.parametrize("value", ["x", "-5", "99999999999999999999999", ""])
def test_an_invalid_header_length(server, value):
    body, _ = binary_body(GOOD, 8)
    assert_refused(post(server, body, **{"Inference-Header-Content-Length": value}), 400)


@pytest.mark.parametrize(
    "raw", [b"\xff\xff\xff\xff", b"\x05\x00\x00\x00abc", b"\x01\x00\x00\x00a", b"\x00\x00\x00\x00" * 5, b"\x00"]
)
def test_strings_with_wrong_lengths(server, raw):
    """The length before each string of a BYTES tensor may be wrong."""
    body, length = binary_body(raw, len(raw), name="text", shape=[1, 2], datatype="BYTES")
    headers = {"Inference-Header-Content-Length": str(length)}
    assert_refused(post(server, body, "/v2/models/strings/infer", **headers), 400)


def test_unknown_routes(server):
    assert_refused(requests.get(f"{server.url}/v3/anything", timeout=60), 404)
    assert_refused(requests.get(f"{server.url}/v2/models/half_plus_two/versions/x", timeout=60), 400)
    assert requests.get(server.url + INFER, timeout=60).status_code == 405
    assert_refused(requests.get(f"{server.url}/v2/models/nobody", timeout=60), 404, "nobody")


# ---- gRPC below the client


def call_raw(server: Server, method: str, request: bytes) -> grpc.RpcError:
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=60)
        return caught.value


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe"])
@pytest.mark.parametrize(
    "method", ["/inference.GRPCInferenceService/ModelInfer", "/tensorflow.serving.PredictionService/Predict"]
)
def test_malformed_protobuf(server, method, garbage):
    # gRPC's own libraries answer INTERNAL if a message does not parse.
    error = call_raw(server, method, garbage)
    assert error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
    assert error.details()


def test_unknown_method(server):
    # gRPC's libraries send the code without a message.
    assert call_raw(server, "/inference.GRPCInferenceService/ModelSing", b"").code() == grpc.StatusCode.UNIMPLEMENTED


def grpc_infer(server: Server, **fields) -> grpc.StatusCode:
    """Sends a ModelInfer to half_plus_two with `fields` of its tensor or message changed."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    raw = fields.pop("raw_input_contents", [GOOD])
    request = service_pb2.ModelInferRequest(model_name="half_plus_two", raw_input_contents=raw)
    request.inputs.add(**({"name": "x", "datatype": "FP32", "shape": [2]} | fields))
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
    return caught.value.code()


@pytest.mark.parametrize(
    "fields",
    [
        {"raw_input_contents": [GOOD[:5]]},
        {"raw_input_contents": [GOOD + b"more"]},
        {"raw_input_contents": [GOOD, GOOD]},
        {"raw_input_contents": []},
        {"datatype": "FP33"},
        {"datatype": "BYTES"},
        {"shape": [-2]},
        {"shape": [2**62, 4]},
        {"contents": {"fp32_contents": [1, 2]}},
        {"raw_input_contents": [], "contents": {"fp32_contents": [1, 2, 3]}},
        {"raw_input_contents": [], "contents": {"int64_contents": [1, 2]}},
    ],
    ids=str,
)
def test_grpc_tensors_that_contradict_themselves(server, fields):
    assert grpc_infer(server, **fields) == grpc.StatusCode.INVALID_ARGUMENT


def test_tensor_protos_that_contradict_themselves(server):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    def proto(**changes):
        made = tf.make_tensor_proto(np.ones(2, np.float32))
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    # One value for all elements: a few bytes that stand for four terabytes.
    huge = proto(tensor_content=b"")
    huge.tensor_shape.dim[0].size = 2**40
    huge.float_val.append(1)
    wrong = {
        "length": (proto(tensor_content=b"123"), {grpc.StatusCode.INVALID_ARGUMENT}),
        "type": (proto(dtype=9999), {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}),
        "size": (huge, {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}),
    }
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for name, (case, codes) in wrong.items():
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "half_plus_two"
            request.inputs["x"].CopyFrom(case)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Predict(request, timeout=60)
            assert caught.value.code() in codes, f"{name}: {caught.value.details()}"


# ---- too large, too slow, disconnected, too many


def test_oversized_bodies(serve, tmp_path):
    server = serve(tmp_path / "root", "--max-body", "1MiB")
    too_large = {"x": np.zeros(1 << 20, np.float32)}
    fits = {"x": np.zeros(1 << 15, np.float32)}
    answer = requests.post(server.url + INFER, data=b" " * (2 << 20), timeout=60)
    assert_refused(answer, 413)
    # A body of unknown length is counted while it arrives.
    answer = requests.post(server.url + INFER, data=(b" " * 65536 for _ in range(64)), timeout=60)
    assert answer.status_code == 413
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("half_plus_two", triton_inputs(tritonclient.grpc, too_large))
        assert caught.value.status() in ("StatusCode.RESOURCE_EXHAUSTED", "StatusCode.OUT_OF_RANGE")
        client.infer("half_plus_two", triton_inputs(tritonclient.grpc, fits))
    server.assert_serving()


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=30)


def request_head(length: int) -> bytes:
    return f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_a_truncated_body(server):
    with connect(server) as connection:
        connection.sendall(request_head(1000) + b'{"inputs"')
        connection.shutdown(socket.SHUT_WR)
        received = read_to_end(connection)
    assert received == b"" or received.startswith(b"HTTP/1.1 400"), received


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"2\r\n{}no end\r\n", b"fffffffffffffffff\r\n"])
def test_a_malformed_chunk_is_named(server, chunk):
    with connect(server) as connection:
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + chunk)
        received = read_to_end(connection)
    assert received.startswith(b"HTTP/1.1 400"), received
    message = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    assert "chunk" in message and "ended early" not in message, message


def test_a_client_that_disconnects_in_its_body(server):
    for _ in range(50):
        with connect(server) as connection:
            connection.sendall(request_head(1000) + b'{"inputs"')


def test_bytes_that_are_not_http(server):
    with connect(server) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert b"200" not in read_to_end(connection)[:20]


def test_a_client_that_stalls_in_its_body_is_disconnected(serve, tmp_path):
    server = serve(tmp_path / "root", "--client-timeout", "1s")
    with connect(server) as connection:
        connection.sendall(request_head(1000) + b"{")
        connection.settimeout(60)
        server.assert_serving()
        assert read_to_end(connection).startswith(b"HTTP/1.1 408"), "408 Request Timeout"
    server.assert_serving()


def test_a_client_that_sends_its_headers_slowly_is_disconnected(serve, tmp_path):
    server = serve(tmp_path / "root", "--client-timeout", "1s")
    started = time.monotonic()
    with connect(server) as connection:
        connection.settimeout(0.1)
        connection.sendall(b"POST ")
        ended = False
        while not ended and time.monotonic() - started < 60:
            try:
                connection.sendall(b"x")
                ended = connection.recv(100) == b""
            except TimeoutError:
                server.assert_serving()
            except OSError:
                ended = True
        assert ended, "still connected after 60 s, --client-timeout is 1 s"


def test_ten_thousand_idle_connections(serve, tmp_path):
    server = serve(tmp_path / "root", "--max-connections", str(2 * IDLE_CONNECTIONS), "--client-timeout", "120s")
    connections = []
    try:
        for number in range(IDLE_CONNECTIONS):
            port = server.grpc_port if number % 4 == 0 else server.http_port
            connections.append(socket.create_connection(("127.0.0.1", port), timeout=30))
        server.assert_serving()
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            client.infer("half_plus_two", triton_inputs(tritonclient.grpc, {"x": np.ones(1, np.float32)}))
    finally:
        for connection in connections:
            connection.close()
    server.assert_serving()


def test_connections_over_the_limit_are_closed_at_once(serve, tmp_path):
    server = serve(tmp_path / "root", "--max-connections", "8", "--client-timeout", "60s")
    connections = [connect(server) for _ in range(9)]
    # The server may not have seen yet that the connection of the readiness probe was closed.
    closed = select.select(connections, [], [], 40)[0]
    assert 0 < len(closed) < len(connections), f"{len(closed)} of nine connections are closed"
    closed[0].settimeout(60)
    answer = read_to_end(closed[0])
    assert answer == b"" or b"503" in answer, answer
    for connection in connections:
        connection.close()
    # The server has to see the connections close.
    deadline = time.monotonic() + 60
    while True:
        try:
            server.assert_serving()
            break
        except requests.ConnectionError:
            assert time.monotonic() < deadline, "closed connections count on"
            time.sleep(0.1)


def test_overload_is_refused(serve, tmp_path, sources):
    """More requests than the limit: some are served, the others refused at once with 429 or 503."""
    import concurrent.futures

    from millpond import publish

    publish(sources["spin"], tmp_path / "root" / "spin", 1)
    server = serve(tmp_path / "root", "--max-requests", "8", "--workers", "1", "--queue", "4")

    def ask(_):
        return requests.post(f"{server.url}/v1/models/spin:predict", json={"inputs": [1500]}, timeout=60)

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        # The requests of clients that wait for a core may not overlap.
        for _ in range(5):
            answers = list(pool.map(ask, range(24)))
            codes = {answer.status_code for answer in answers}
            assert 200 in codes
            assert codes <= {200, 429, 503}
            if refused := codes & {429, 503}:
                break
    assert refused
    failed = [answer for answer in answers if answer.status_code != 200]
    assert all(answer.json()["error"] for answer in failed)
    found = samples(requests.get(f"{server.url}/metrics", timeout=60).text)
    counted = {labels["kind"]: count for name, labels, count in found if name == "millpond_refused_total"}
    assert counted.get("queue_max", 0) + counted.get("requests_max", 0) == len(failed), counted
    server.assert_serving()


def test_an_expired_deadline(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        inputs = triton_inputs(tritonclient.grpc, {"rounds": np.array([20_000], np.int64)})
        with pytest.raises(InferenceServerException) as caught:
            client.infer("spin", inputs, client_timeout=0.2)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
