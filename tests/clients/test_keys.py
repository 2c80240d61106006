"""Quotas, tokens, audit lines and reloads of keys, with public clients."""

import concurrent.futures
import re
import signal
import subprocess
import time

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
from keys import new_key, token
from millpond import BINARY, Server, drop_in
from models import half_plus_two
from prometheus_text import samples
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from tritonclient.utils import InferenceServerException

TIMEOUT_S = 60
SECRET = "s3cret"
INFER = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [2.0, 4.0]}]}


@pytest.fixture
def start(tmp_path):
    """Starts servers with one model, which end with the test."""
    servers = []
    drop_in(half_plus_two(tmp_path / "half_plus_two.onnx"), tmp_path / "models/half_plus_two", 1)

    def run(*flags: str) -> Server:
        collections = ("--collections-dir", str(tmp_path / "collections"))
        server = Server(tmp_path / "models", *collections, *flags, log=tmp_path / f"log{len(servers)}")
        servers.append(server.wait_ready())
        return server

    yield run
    for server in servers:
        assert server.stop() == 0, server.log_text()


def infer(server: Server, key: str) -> requests.Response:
    url = f"{server.url}/v2/models/half_plus_two/infer"
    return requests.post(url, json=INFER, headers={"api-key": key}, timeout=TIMEOUT_S)


def counted(server: Server, key: str) -> dict[tuple[str, str], float]:
    """Returns the requests by key and outcome, and the processor seconds under ("NAME", "cpu")."""
    text = requests.get(f"{server.url}/metrics", headers={"api-key": key}, timeout=TIMEOUT_S).text
    found = {}
    for name, labels, value in samples(text):
        if name == "millpond_key_requests_total":
            found[labels["key"], labels["outcome"]] = value
        elif name == "millpond_key_cpu_seconds_total":
            found[labels["key"], "cpu"] = value
    return found


def test_a_tenant_over_its_quota_is_refused_and_others_are_not(start, tmp_path):
    file = tmp_path / "keys.toml"
    root = new_key(file, "--role", "admin", "--name", "root")
    busy = new_key(file, "--role", "infer", "--name", "busy")
    other = new_key(file, "--role", "infer", "--name", "other")
    server = start("--keys", str(file))
    costs, used = [], 0.0
    for _ in range(5):
        for _ in range(20):
            assert infer(server, busy).status_code == 200
        total = counted(server, root)["busy", "cpu"]
        costs.append((total - used) / 20)
        used = total
    # On some machines the time of a pause counts as processor time, so the cheapest requests show the cost.
    cost = min(costs)
    assert cost > 0
    # The quota is a tenth of what the tenant will ask for: 400 requests in at most a minute.
    lines = file.read_text().split("[[keys]]")
    quota = 40 * cost
    lines[2] += f"cpu-seconds-per-minute = {quota!r}\n"
    file.write_text("[[keys]]".join(lines))
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + TIMEOUT_S
    while infer(server, busy).status_code != 429:
        assert time.monotonic() < deadline, "the quota has no effect"
    before = counted(server, root)
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(infer, server, busy) for _ in range(400)]
        answers = [infer(server, other).status_code for _ in range(100)]
        refused = [call.result().status_code for call in asked].count(429)
    minutes = max(1.0, (time.monotonic() - started) / 60)
    assert answers == [200] * 100
    # At most a minute's quota and its burst, and what runs at a moment.
    assert refused >= 400 - 40 * minutes - 8
    after = counted(server, root)
    assert after["busy", "refused_cpu"] - before["busy", "refused_cpu"] == refused
    assert after["other", "accepted"] - before.get(("other", "accepted"), 0) == 100
    assert after["other", "refused_cpu"] == after["other", "refused_rate"] == 0


def test_a_refusal_says_when_to_try_again(start, tmp_path):
    file = tmp_path / "keys.toml"
    key = new_key(file, "--role", "infer", "--cpu-seconds-per-minute", "1e-9", "--name", "small")
    server = start("--keys", str(file))
    assert infer(server, key).status_code == 200
    refused = infer(server, key)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 60, refused.text
    x = triton_grpc.InferInput("x", [2], "FP32")
    x.set_data_from_numpy(np.array([2.0, 4.0], dtype=np.float32))
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(b"", metadata=[("api-key", key)], timeout=TIMEOUT_S)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = {name: value for name, value in (*error.value.initial_metadata(), *error.value.trailing_metadata())}
    assert b"type.googleapis.com/google.rpc.RetryInfo" in trailers["grpc-status-details-bin"]
    assert int(trailers["retry-after"]) > 60, "Qdrant's client waits for this time"
    with (
        triton_grpc.InferenceServerClient(server.grpc) as client,
        pytest.raises(triton_grpc.InferenceServerException, match="CPU seconds per minute"),
    ):
        client.infer("half_plus_two", [x], headers={"api-key": key})


def refused(call, status: int, words: str) -> None:
    with pytest.raises(UnexpectedResponse) as error:
        call()
    assert error.value.status_code == status and words in error.value.content.decode(), error.value


def qdrant(server: Server, key: str) -> QdrantClient:
    return QdrantClient(url=server.url, api_key=key, check_compatibility=False, timeout=TIMEOUT_S)


def test_tokens_of_qdrant(start):
    server = start("--api-key", SECRET)
    owner = qdrant(server, SECRET)
    vectors = models.VectorParams(size=2, distance=models.Distance.DOT)
    point = lambda number: models.PointStruct(id=number, vector=[1.0, number])  # noqa: E731
    for name in ("open", "shared", "secret"):
        owner.create_collection(name, vectors_config=vectors)
        owner.upsert(name, [point(1)], wait=True)

    access = [{"collection": "open", "access": "r"}, {"collection": "shared", "access": "rw"}]
    part = qdrant(server, token(SECRET, {"access": access, "exp": int(time.time()) + 600, "sub": "part"}))
    assert {found.name for found in part.get_collections().collections} == {"open", "shared"}
    assert part.query_points("open", query=[1.0, 0.0]).points[0].id == 1
    assert part.upsert("shared", [point(2)], wait=True).status == models.UpdateStatus.COMPLETED
    assert part.count("shared").count == 2
    refused(lambda: part.upsert("open", [point(2)]), 403, "may only read collection open")
    refused(lambda: part.count("secret"), 403, "may not use collection secret")
    secret = models.LookupLocation(collection="secret")
    refused(lambda: part.query_points("open", query=1, lookup_from=secret), 403, "may not use the collection")
    refused(lambda: part.delete_collection("shared"), 403, "as a whole")
    refused(lambda: part.create_collection("new", vectors_config=vectors), 403, "may not use collection new")
    for path in ("/metrics", "/v2/models", "/v2/models/half_plus_two"):
        answer = requests.get(server.url + path, headers={"api-key": token(SECRET, {"access": access})}, timeout=60)
        assert answer.status_code == 403, path

    reads = qdrant(server, token(SECRET, {"access": "r"}))
    assert reads.count("secret").count == 1
    refused(lambda: reads.upsert("secret", [point(2)]), 403, "role read")
    manages = qdrant(server, token(SECRET, {"access": "m"}))
    manages.delete_collection("secret")

    for claims, words in [
        ({"exp": int(time.time()) - 60}, "expired"),
        ({"value_exists": {"collection": "open", "matches": []}}, 'claim \\"value_exists\\"'),
        ({"access": [{"collection": "open", "access": "r", "payload": {"a": 1}}]}, '\\"payload\\" of the claim'),
        ({"access": [{"collection": "open", "access": "prw"}]}, 'access \\"prw\\"'),
    ]:
        client = qdrant(server, token(SECRET, claims))
        refused(client.get_collections, 401, words)
    refused(qdrant(server, token("other", {"access": "r"})).get_collections, 401, "not signed")
    refused(qdrant(server, token(SECRET, {}, algorithm="none")).get_collections, 401, "HS256")


def audit_lines(server: Server) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", server.log_text())
    return [line for line in plain.splitlines() if " admin call " in line]


def test_a_long_name_makes_a_short_line_in_the_log(start):
    """A client whose call is refused chooses the name, too."""
    server = start()
    elsewhere = {"x-forwarded-for": "203.0.113.7"}
    load = f"{server.url}/v2/repository/models/{'n' * 50_000}/load"
    answer = requests.post(load, headers=elsewhere, timeout=TIMEOUT_S)
    assert answer.status_code == 403, answer.text
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for headers in ({}, elsewhere):
            with pytest.raises(InferenceServerException):
                client.load_model("n" * 2_000_000, headers=headers)
    lines = audit_lines(server)
    assert len(lines) == 3 and all("nnnnn…" in line for line in lines), [line[:300] for line in lines]
    assert max(map(len, lines)) < 4096


def test_admin_calls_are_logged(start, tmp_path):
    file = tmp_path / "keys.toml"
    root = new_key(file, "--role", "admin", "--name", "root")
    reader = new_key(file, "--role", "read", "--name", "reader")
    other = new_key(file, "--role", "admin", "--name", "other", "--models", "other*")
    server = start("--keys", str(file))
    put = lambda log: requests.put(  # noqa: E731
        f"{server.url}/v1/log", json={"filter": log}, headers={"api-key": root}, timeout=TIMEOUT_S
    )
    assert put("audit=info,warn").status_code == 200
    load = f"{server.url}/v2/repository/models/{{}}/load"
    for key, model, status in [(root, "half_plus_two", 200), (root, "none", 404), (reader, "half_plus_two", 403)]:
        answer = requests.post(load.format(model), headers={"api-key": key}, timeout=TIMEOUT_S)
        assert answer.status_code == status, answer.text
    assert requests.post(load.format("half_plus_two"), timeout=TIMEOUT_S).status_code == 401
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.load_model("half_plus_two", headers={"authorization": f"Bearer {root}"})
        for key in (reader, other):
            with pytest.raises(triton_grpc.InferenceServerException, match="PERMISSION_DENIED"):
                client.unload_model("half_plus_two", headers={"authorization": f"Bearer {key}"})
    lines = audit_lines(server)
    wanted = [
        ("root", "change the log's filter", "ok"),
        ("root", "load model", "ok"),
        ("root", "load model", "not_found"),
        ("reader", "POST /v2/repository/models/half_plus_two/load", "permission_denied"),
        ("-", "POST /v2/repository/models/half_plus_two/load", "permission_denied"),
        ("root", "load model", "ok"),
        ("reader", "/inference.GRPCInferenceService/RepositoryModelUnload", "permission_denied"),
        ("other", "/inference.GRPCInferenceService/RepositoryModelUnload", "permission_denied"),
    ]
    assert len(lines) == len(wanted), lines
    for line, (key, action, outcome) in zip(lines, wanted, strict=True):
        for part in (f'key="{key}"', f'action="{action}"', f'outcome="{outcome}"', 'peer="127.0.0.1:'):
            assert part in line, (part, line)
    assert root not in server.log_text() and reader not in server.log_text()
    assert put("warn").status_code == 200
    assert requests.post(load.format("half_plus_two"), headers={"api-key": root}, timeout=TIMEOUT_S).status_code == 200
    assert len(audit_lines(server)) == len(wanted), "the filter leaves the target out"


def test_sighup_does_not_end_a_server(start):
    server = start()
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    server.assert_serving()


def test_remote_admin_needs_a_key(tmp_path):
    (tmp_path / "models").mkdir()
    serve = [BINARY, "serve", str(tmp_path / "models"), "--allow-remote-admin"]
    for more in ([], ["--api-key", SECRET]):
        done = subprocess.run([*serve, *more], text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 2 and "--admin-key" in done.stderr, done.stderr
