"""`GET /v2/slow` names the causes of slow requests."""

import json
import socket
import threading
import time

import requests
from prometheus_text import samples

from millpond import drop_in
from models import SPIN_ROUNDS_MAX

# One late request of these is above their p99, so it does not raise the limit.
USUAL_REQUESTS = 200
DEADLINE_S = 200


def slow_requests(server) -> list[dict]:
    answer = requests.get(f"{server.url}/v2/slow", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["slow"]


def wait_slow(server, act) -> dict:
    """Sends usual requests and calls `act` until a request of half_plus_two is listed as slow."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for _ in range(USUAL_REQUESTS):
            server.assert_serving()
        # The limit of a model follows its requests once a second.
        time.sleep(1.5)
        before = {slow["number"] for slow in slow_requests(server)}
        act()
        # The causes are found within two samples of the machine.
        time.sleep(1)
        listed = [slow for slow in slow_requests(server) if slow["model"] == "half_plus_two"]
        fresh = [slow for slow in listed if slow["number"] not in before]
        if fresh:
            return max(fresh, key=lambda slow: slow["total_ms"])
    raise AssertionError(f"no slow request in {DEADLINE_S} s: {server.log_text()}")


def send_slowly(server, pause_s: float) -> None:
    """Sends a request whose body pauses in the middle."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}).encode()
    head = (
        f"POST /v2/models/half_plus_two/infer HTTP/1.1\r\nHost: {server.http}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as client:
        client.sendall(head + body[:10])
        time.sleep(pause_s)
        client.sendall(body[10:])
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200"), answer


def test_a_client_that_sends_slowly_is_named(serve, tmp_path):
    server = serve(tmp_path / "root")
    assert slow_requests(server) == []
    slow = wait_slow(server, lambda: send_slowly(server, 2.0))
    assert slow["model"] == "half_plus_two" and slow["version"] == 1
    assert slow["protocol"] == "oip-http" and slow["status"] == "ok"
    assert slow["causes"][0]["cause"] == "client_slow_send", slow
    # The server's clock starts later than the client's if the server waits for a core.
    assert slow["causes"][0]["ms"] >= 1000 and slow["total_ms"] >= 1000, slow
    assert slow["expected_ms"] < slow["total_ms"]
    counted = [
        value
        for name, labels, value in samples(requests.get(f"{server.url}/metrics", timeout=60).text)
        if name == "millpond_slow_requests_total"
        and labels == {"model": "half_plus_two", "cause": "client_slow_send"}
    ]
    assert counted and counted[0] >= 1


def test_a_run_of_another_model_in_front_is_named(serve, tmp_path, sources):
    root = tmp_path / "root"
    drop_in(sources["spin"], root / "spin", 1)
    server = serve(root, "--threads", "1")

    def spin(rounds: int) -> float:
        started = time.monotonic()
        answer = requests.post(f"{server.url}/v1/models/spin:predict", json={"inputs": [rounds]}, timeout=60)
        assert answer.status_code == 200, answer.text
        return time.monotonic() - started

    trial = 1000
    # The shortest of some trials had no pause of the machine. The run should take one second.
    rounds = min(SPIN_ROUNDS_MAX, round(trial / min(spin(trial) for _ in range(5))))

    def behind_spin() -> None:
        front = threading.Thread(target=spin, args=(rounds,))
        front.start()
        time.sleep(0.2)
        server.assert_serving()
        front.join()

    slow = wait_slow(server, behind_spin)
    first = slow["causes"][0]
    # On a busy machine the run in front may itself have waited for a core most of the time.
    assert first["cause"] in ("behind_batch", "cpu_contention", "stolen_time", "throttled"), slow
    if first["cause"] == "behind_batch":
        assert "model spin" in first["detail"], slow
