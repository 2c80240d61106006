"""A graph that aborts its process costs only its own requests if the model is isolated."""

import threading
import time

import grpc
import numpy as np
import requests
from conftest import config_text
from saved_models import aborts

HALF = "half_plus_two"
X = {"x": np.array([[2.0]], np.float32)}


def test_an_abort_is_contained(start, saved, tmp_path):
    base = tmp_path / "aborts"
    aborts(base / "1")
    (base / "millpond.toml").write_text("isolate = true\n")
    config = tmp_path / "models.config"
    config.write_text(config_text(half_plus_two=saved[HALF], aborts=base))
    server = start(f"--model_config_file={config}").wait_available(HALF).wait_available("aborts")
    stop = threading.Event()
    answers: list[float] = []
    failures: list[str] = []

    def load() -> None:
        while not stop.is_set():
            try:
                answers.append(float(server.predict(HALF, X)["y"][0, 0]))
            except grpc.RpcError as error:
                failures.append(error.details())

    worker = threading.Thread(target=load)
    worker.start()
    try:
        for _ in range(3):
            abort_once(server)
    finally:
        stop.set()
        worker.join()
    assert failures == []
    assert len(answers) > 10
    assert set(answers) == {3.0}
    assert metric(server, 'millpond_worker_restarts_total{model="aborts"}') == 3


def test_a_spare_process_takes_over(start, tmp_path):
    base = tmp_path / "aborts"
    aborts(base / "1")
    (base / "millpond.toml").write_text("isolate = true\n")
    server = start("--model_name=aborts", f"--model_base_path={base}").wait_available("aborts")
    wait_for_spare(server, 1)
    abort_once(server)
    assert metric(server, 'millpond_worker_restarts_total{model="aborts"}') == 1
    assert metric(server, 'millpond_worker_spares_total{kind="used"}') == 1
    assert metric(server, 'millpond_worker_restart_last_seconds{model="aborts"}') > 0
    wait_for_spare(server, 2)
    assert metric(server, 'millpond_worker_spares_total{kind="failed"}') == 0


def metric(server, series: str) -> float:
    """Returns the value of a series; 0 if it does not exist."""
    text = requests.get(f"http://127.0.0.1:{server.rest_port}/metrics", timeout=60).text
    values = [line.split()[1] for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(values[0]) if values else 0.0


def wait_for_spare(server, count: int) -> None:
    """Waits until `count` spare processes have opened the library, since the start of the server."""
    deadline = time.monotonic() + 120
    while metric(server, 'millpond_worker_spares_total{kind="started"}') < count:
        assert time.monotonic() < deadline, server.log_text()[-3000:]
        time.sleep(0.1)


def abort_once(server) -> None:
    """Ends the worker process by a request, and waits until a new one answers."""
    try:
        server.predict("aborts", {"x": np.array([11.0], np.float32)})
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error.details()
        assert "worker process ended" in error.details(), error.details()
        # TensorFlow writes a stack trace after the reason.
        assert "Check failed: a test" in error.details(), error.details()
    else:
        raise AssertionError("the request that aborts was answered")
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = server.predict("aborts", {"x": np.array([1.0], np.float32)})
            assert list(answer["y"]) == [1.0]
            return
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error.details()
            assert time.monotonic() < deadline, server.log_text()[-3000:]
        time.sleep(0.05)
