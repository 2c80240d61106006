"""Processes, proxies and loads against small servers in this process."""

import http.server
import json
import os
import threading
import time

import pytest
from history import History, violations
from load import Batches, Client, QueryLoad, Registers, Unreachable
from points import Points
from processes import Etcd, Process, Proxy, end_all, http_call


@pytest.fixture(autouse=True)
def ended():
    yield
    end_all()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        status, answer = self.server.answer(self.path, json.loads(body))
        content = json.dumps(answer).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", "1")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_POST

    def log_message(self, *_arguments):
        """Requests are not logged."""


@pytest.fixture
def serve():
    """Starts servers: `serve(answer)` returns an address. `answer(path, body)` returns a status and JSON."""
    started = []

    def start(answer) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.answer = answer
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        started.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_a_killed_process_is_gone_even_if_paused(tmp_path):
    process = Process("sleep", ["sleep", "60"], tmp_path / "log")
    process.start()
    process.pause()
    pid = process.pid
    process.kill()
    assert not process.running()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_etcd_starts_pauses_and_continues(tmp_path):
    etcd = Etcd(tmp_path, tmp_path)
    etcd.start()
    etcd.wait_ready()
    put = {"key": "YS8x", "value": "eyJuIjogMX0="}
    assert http_call(etcd.address, "POST", "/v3/kv/put", json.dumps(put).encode())[0] == 200
    assert etcd.range("a/") == {"1": ({"n": 1}, "0")}
    etcd.pause()
    etcd.resume()
    assert etcd.range("b/") == {}


def test_fault_proxy_fails_requests_and_carries_out_half_of_them(tmp_path, serve):
    seen = []
    target = serve(lambda path, body: (seen.append(body), (200, {"ok": True}))[1])
    proxy = Proxy("faults", "proxy", target, tmp_path)
    proxy.start()
    assert http_call(proxy.address, "POST", "/", b"{}") == (200, b'{"ok": true}')
    proxy.set(error_share=1)
    assert {http_call(proxy.address, "POST", "/", b"{}")[0] for _ in range(30)} == {503}
    assert 5 < len(seen) < 27


def test_delay_proxy_passes_bytes_and_a_lost_server(tmp_path, serve):
    proxy = Proxy("delay", "proxy", serve(lambda path, body: (200, body)), tmp_path)
    proxy.start()
    big = json.dumps({"text": "x" * 300_000}).encode()
    assert http_call(proxy.address, "POST", "/", big) == (200, big)
    lost = Proxy("delay", "lost", "127.0.0.1:9", tmp_path)
    lost.start()
    with pytest.raises(OSError):
        http_call(lost.address, "GET", "/")


def test_client_uses_another_root_if_one_refuses(serve):
    client = Client(["127.0.0.1:9", serve(lambda path, body: (200, {}))])
    assert client.call("POST", "/", b"{}") == (200, b"{}")
    with pytest.raises(Unreachable):
        Client(["127.0.0.1:9"]).call("POST", "/", b"{}")


def test_answers_to_queries_are_judged(serve):
    points = Points(count=50, dims=4, queries=4)
    right = {at: list(zip(points.expected[at].tolist(), points.distances[at].tolist(), strict=True)) for at in range(4)}

    def answer(_path, body):
        at = [points.queries[number].tolist() for number in range(4)].index(body["query"])
        found = [{"id": point, "score": score} for point, score in right[at]]
        if at == 1:
            found[0]["id"] = found[1]["id"]
        return (500, {}) if at == 3 else (200, {"result": {"points": found, "partial": at == 2}})

    load = QueryLoad(points, [serve(answer)], rate=400, threads=4)
    load.start()
    while len(load.sent) < 40:
        time.sleep(0.01)
    load.stop()
    whole = load.window()
    bad = [whole.wrong, whole.partial, whole.failed]
    assert min(bad) >= 8
    assert whole.requests - sum(bad) >= 8


def test_registers_of_a_correct_server_are_linearizable(serve):
    stored, lock = {}, threading.Lock()

    def answer(path, body):
        with lock:
            if path.endswith("strong"):
                found = [{"id": point, "payload": stored[point]} for point in body["ids"] if point in stored]
                return 200, {"result": found}
            point = body["points"][0]
            if point["payload"]["value"] % 5 == 0:
                return 503, {}
            stored[point["id"]] = point["payload"]
            return 200, {"result": {}}

    history, root = History(), serve(answer)
    registers = Registers(Points(20, 4, 1), history, writers=2, readers=2, own=2, pause_s=0.001)
    registers.start([root])
    while len(history.taken()) < 200:
        time.sleep(0.01)
    registers.stop()
    assert registers.last_values([root]) == {point: payload["value"] for point, payload in stored.items()}
    assert violations(history.taken()) == []
    assert registers.refused
    stored[registers.ids[0]] = {"value": 1}
    registers.last_values([root])
    assert len(violations(history.taken())) == 1


def test_an_answer_that_cannot_be_read_is_wrong(serve):
    load = QueryLoad(Points(count=50, dims=4, queries=4), [serve(lambda path, body: (200, {}))], rate=400, threads=2)
    load.start()
    while len(load.sent) < 10:
        time.sleep(0.01)
    load.stop()
    whole = load.window()
    assert whole.wrong >= 10
    assert "KeyError" in whole.reasons[0]


def test_a_client_that_ends_early_is_reported(serve):
    """The reader finds a point without its payload."""

    def answer(path, body):
        return 200, {"result": [{"id": body["ids"][0]}] if path.endswith("strong") else {}}

    registers = Registers(Points(20, 4, 1), History(), writers=1, readers=1, own=2, pause_s=0.001)
    registers.start([serve(answer)])
    registers.threads[-1].join(60)
    registers.stop()
    assert registers.broken == ["KeyError: 'payload'"]


def test_a_writer_of_batches_continues_after_a_refusal(serve):
    asked = []

    def answer(_path, body):
        asked.append(body)
        return (429 if len(asked) == 1 else 503), {}

    batches = Batches(Points(20, 4, 1), threads=1, pause_s=0.001)
    batches.start([serve(answer)])
    deadline = time.monotonic() + 60
    while len(asked) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    batches.stop()
    assert batches.refused >= 3
    assert batches.broken == []
