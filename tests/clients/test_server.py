"""The process: shutdown, metrics, access to admin calls, errors at start."""

import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import requests
import tritonclient.grpc
from prometheus_text import samples

from endpoints import triton_inputs
from millpond import BINARY, REPOSITORY, drop_in, publish, run
from models import SPIN_ROUNDS_MAX

# Duration of a request that must still run at the signal, and the rounds that measure it.
SPIN_S = 3.0
SPIN_TRIAL = 1000


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_sigterm_finishes_requests_in_flight(serve, tmp_path, sources, kind):
    publish(sources["spin"], tmp_path / "root" / "spin", 1)
    server = serve(tmp_path / "root", "--threads", "2", "--oversubscribe")

    def ask_http(rounds: int) -> list:
        answer = requests.post(f"{server.url}/v1/models/spin:predict", json={"inputs": [rounds]}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["outputs"]

    def ask_grpc(rounds: int) -> list:
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            inputs = triton_inputs(tritonclient.grpc, {"rounds": np.array([rounds], np.int64)})
            return client.infer("spin", inputs).as_numpy("y").tolist()

    ask = ask_http if kind == "http" else ask_grpc

    def trial_s() -> float:
        started = time.monotonic()
        ask(SPIN_TRIAL)
        return time.monotonic() - started

    # The shortest of some trials had no pause of the machine.
    rounds = min(SPIN_ROUNDS_MAX, round(SPIN_TRIAL * SPIN_S / min(trial_s() for _ in range(5))))

    def in_server() -> float:
        """Returns the requests of the model that run or wait."""
        counts = ("millpond_running", "millpond_queued_requests")
        return sum(count for name, labels, count in scrape(server) if name in counts and labels["model"] == "spin")

    def in_flight(calls: list) -> bool:
        """Waits until the server has all requests. Returns false if some are over before."""
        deadline = time.monotonic() + 60
        while in_server() < len(calls):
            assert time.monotonic() < deadline, "the requests do not arrive"
            if any(call.done() for call in calls):
                return False
            time.sleep(0.05)
        return True

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            calls = [pool.submit(ask, rounds) for _ in range(4)]
            if arrived := in_flight(calls):
                break
            # This process was paused for longer than the requests take.
            concurrent.futures.wait(calls, 60)
        server.terminate()
        assert arrived, f"requests of {rounds} rounds are over before the signal comes"
        for call in calls:
            assert len(call.result(60)) == 1
    assert server.process.wait(60) == 0, server.log_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.http_port), timeout=60)


def test_sigterm_with_idle_connections_ends_at_once(serve, tmp_path):
    server = serve(tmp_path / "root", "--shutdown-grace", "120s")
    with (
        requests.Session() as session,
        tritonclient.grpc.InferenceServerClient(server.grpc) as client,
        socket.create_connection(("127.0.0.1", server.http_port)),
    ):
        session.get(f"{server.url}/v2/health/live", timeout=60)
        assert client.is_server_live()
        server.terminate()
        # Idle connections must not use up the grace time.
        assert server.process.wait(60) == 0, server.log_text()


def test_metrics(server):
    labels = {"model": "half_plus_two", "version": "1", "protocol": "oip-http", "status": "ok"}

    def requests_total() -> float:
        return sum(value for name, found, value in scrape(server) if name.endswith("requests_total") and found == labels)

    before = requests_total()
    for _ in range(5):
        server.assert_serving()
    assert requests_total() - before == 5


def test_metrics_have_phases_percentiles_bytes_and_states(server):
    server.assert_serving()
    found = scrape(server)
    phases = {labels["phase"] for name, labels, _ in found if name.endswith("request_seconds_count")}
    assert {"queue", "compute", "total"} <= phases
    quantiles = {labels["quantile"] for _, labels, _ in found if labels.get("model") == "half_plus_two" and "quantile" in labels}
    assert quantiles == {"0.5", "0.8", "0.9", "0.99", "0.999"}
    table = [value for name, labels, value in found if "parameter" in name and labels.get("model") == "text_recogniser"]
    assert sum(table) > 5e6, "the recogniser's parameters are accounted for"
    states = {(labels["model"], labels["state"]): value for _, labels, value in found if "state" in labels}
    assert states["half_plus_two", "ready"] == 1


def test_metrics_count_refused_requests(server):
    def failed() -> float:
        return sum(value for name, labels, value in scrape(server)
                   if name.endswith("requests_total") and labels.get("status") == "invalid_argument")  # fmt: skip

    before = failed()
    assert requests.post(f"{server.url}/v2/models/half_plus_two/infer", json={"inputs": []}, timeout=60).status_code == 400
    assert failed() == before + 1


def scrape(server) -> list:
    answer = requests.get(f"{server.url}/metrics", timeout=60)
    assert answer.status_code == 200
    assert "openmetrics" in answer.headers["Content-Type"] or "text/plain" in answer.headers["Content-Type"]
    return samples(answer.text)


@pytest.mark.parametrize(
    ("flags", "keyless", "http", "grpc"),
    [
        ((), 403, 403, "StatusCode.PERMISSION_DENIED"),
        (("--allow-remote-admin", "--admin-key", "adm1n"), 401, 200, "OK"),
    ],
)
def test_admin_calls_are_taken_from_the_loopback_only(tmp_path, sources, flags, keyless, http, grpc):
    namespace = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace may be made here, so no call can come from another address")
    drop_in(sources["half_plus_two"], tmp_path / "root" / "half_plus_two", 1)
    probe = [sys.executable, str(pathlib.Path(__file__).with_name("remote_admin.py"))]
    done = subprocess.run(
        [*namespace, *probe, str(tmp_path / "root"), str(tmp_path / "log"), *flags],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ready": 200, "load without the key": keyless, "load": http, "unload": http, "load by gRPC": grpc, "load from the loopback": "OK", "exit": 0,
    }  # fmt: skip


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(BINARY), "serve", *arguments], cwd=REPOSITORY, text=True, capture_output=True, timeout=60,
        env=os.environ | environment, check=False,
    )  # fmt: skip


def test_a_missing_library_is_one_line_with_the_remedy(tmp_path):
    (tmp_path / "root").mkdir()
    done = start(str(tmp_path / "root"), "--onnxruntime", str(tmp_path / "none.so"), "--http-port", "0", "--grpc-port", "0")
    assert done.returncode == 3
    assert "none.so" in done.stderr
    assert "onnxruntime" in done.stderr
    assert "panicked" not in done.stderr


def test_a_file_that_is_not_a_library(tmp_path):
    (tmp_path / "root").mkdir()
    wrong = tmp_path / "libonnxruntime.so"
    wrong.write_bytes(b"not a library")
    done = start(str(tmp_path / "root"), "--onnxruntime", str(wrong), "--http-port", "0", "--grpc-port", "0")
    assert done.returncode == 3
    assert str(wrong) in done.stderr
    assert "panicked" not in done.stderr


def test_a_port_in_use(server, tmp_path):
    (tmp_path / "root").mkdir()
    done = start(str(tmp_path / "root"), "--http-port", str(server.http_port), "--grpc-port", "0")
    assert done.returncode == 3
    assert str(server.http_port) in done.stderr


def test_a_missing_directory(tmp_path):
    done = start(str(tmp_path / "nowhere"), "--http-port", "0", "--grpc-port", "0")
    assert done.returncode in (1, 2, 3)
    assert "nowhere" in done.stderr


def test_a_refused_publish_leaves_no_files(tmp_path: pathlib.Path):
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"no model")
    done = run("publish", str(wrong), "--to", str(tmp_path / "model"), "--version", "1", check=False)
    assert done.returncode == 1
    assert "wrong.onnx" in done.stderr
    left = list((tmp_path / "model").rglob("*")) if (tmp_path / "model").exists() else []
    assert left == []


def test_publish_does_not_replace_a_version(tmp_path, sources):
    publish(sources["gather"], tmp_path / "model", 1)
    before = (tmp_path / "model/1/millpond.json").read_bytes()
    done = run("publish", str(sources["half_plus_two"]), "--to", str(tmp_path / "model"), "--version", "1", check=False)
    assert done.returncode != 0
    assert (tmp_path / "model/1/millpond.json").read_bytes() == before


def test_publish_takes_the_next_number(tmp_path, sources):
    publish(sources["gather"], tmp_path / "model", 4)
    run("publish", str(sources["gather"]), "--to", str(tmp_path / "model"))
    assert (tmp_path / "model/5/millpond.json").exists()


def test_models_and_doctor_print_for_people(server):
    listing = run("models", "ls", "--url", server.url).stdout
    assert "half_plus_two" in listing
    assert "ready" in listing.lower()
    assert "text_recogniser" in run("models", "status", "text_recogniser", "--url", server.url).stdout
    assert "ONNX Runtime" in run("doctor").stdout
