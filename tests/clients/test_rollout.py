"""Rollouts as clients and operators see them: split, sticky keys, copies, golden requests, limits, by hand."""

import json
import pathlib
import time

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper

from endpoints import triton_inputs
from millpond import Server, drop_in, run
from models import constant, save, value

MODEL = "staged"
# Tests of other limits switch off the limit of the latency: a pause of the machine may affect one version only.
NO_LATENCY = '[rollout.rollback]\nlatency = "off"\n'
HALF = '[rollout]\ntraffic = 0.5\npromote = "hand"\n' + NO_LATENCY
WAIT_S = 60


def plus(path: pathlib.Path, stamp: float) -> pathlib.Path:
    """Adds `stamp` to x, so that the answer names its version."""
    return save(
        path,
        [helper.make_node("Add", ["x", "stamp"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n"])],
        [value("y", TensorProto.FLOAT, ["n"])],
        [constant("stamp", np.array([stamp], np.float32))],
    )


def failing(path: pathlib.Path) -> pathlib.Path:
    """Saves a model that adds 2 to x. It fails if an element is 1 or more, because its table has one row."""
    return save(
        path,
        [
            helper.make_node("Cast", ["x"], ["rows"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "rows"], ["picked"]),
            helper.make_node("Add", ["x", "picked"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, ["n"])],
        [value("y", TensorProto.FLOAT, ["n"])],
        [constant("table", np.array([2], np.float32))],
    )


@pytest.fixture
def staged(serve, tmp_path):
    """Starts a server with version 1 of the model, which adds 1, and these settings."""

    def start(settings: str, golden: list | None = None) -> Server:
        place = tmp_path / "root" / MODEL
        drop_in(plus(tmp_path / "1.onnx", 1), place, 1)
        (place / "millpond.toml").write_text(settings)
        if golden is not None:
            (place / "golden.json").write_text(json.dumps(golden))
        server = serve(tmp_path / "root")
        server.wait_version(MODEL, 1)
        return server

    return start


def rollout(server: Server) -> dict:
    answer = requests.get(f"{server.url}/v2/models/{MODEL}/rollout", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def change(server: Server, **body) -> requests.Response:
    return requests.post(f"{server.url}/v2/models/{MODEL}/rollout", json=body, timeout=60)


def wait_state(server: Server, state: str, ask=lambda: None) -> dict:
    """Waits until the rollout is in a state, and calls `ask` meanwhile."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = rollout(server)
        if found["state"] == state:
            return found
        ask()
        time.sleep(0.01)
    raise AssertionError(f"not {state}: {rollout(server)}\n{server.log_text()[-4000:]}")


def offer(server: Server, tmp_path: pathlib.Path, source: pathlib.Path, version: int = 2) -> None:
    drop_in(source, server.root / MODEL, version)


def ask_rest(session: requests.Session, server: Server, target: str = "", key: str | None = None, x: float = 0) -> int:
    """Returns the version that answers TensorFlow Serving's REST API."""
    headers = {} if key is None else {"x-request-key": key}
    url = f"{server.url}/v1/models/{MODEL}{target}:predict"
    answer = session.post(url, json={"instances": [x]}, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return round(answer.json()["predictions"][0] - x)


def ask_oip(client, module, **options) -> int:
    """Returns the version that answers the Open Inference Protocol."""
    result = client.infer(MODEL, triton_inputs(module, {"x": np.zeros(1, np.float32)}), **options)
    stamp = round(float(result.as_numpy("y")[0]))
    response = result.get_response()
    named = response["model_version"] if isinstance(response, dict) else response.model_version
    assert int(named) == stamp, "the response names its version"
    return stamp


def test_requests_are_split_by_their_keys(staged, tmp_path):
    server = staged(HALF + "[labels]\nold = 1\n")
    assert rollout(server)["state"] == "none"
    offer(server, tmp_path, plus(tmp_path / "2.onnx", 2))
    running = wait_state(server, "running")
    assert (running["stable"], running["candidate"], running["traffic"]) == (1, 2, 0.5)
    with (
        requests.Session() as session,
        tritonclient.http.InferenceServerClient(server.http) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc) as grpc,
    ):
        turns = [ask_rest(session, server) for _ in range(400)]
        assert 196 <= turns.count(2) <= 204, "without a key, requests take turns"
        found = {}
        for key in map(str, range(40)):
            versions = {
                ask_rest(session, server, key=key),
                ask_rest(session, server, key=key),
                ask_oip(http, tritonclient.http, parameters={"request_key": key}),
                ask_oip(http, tritonclient.http, headers={"x-request-key": key}),
                ask_oip(grpc, tritonclient.grpc, parameters={"request_key": key}),
                ask_oip(grpc, tritonclient.grpc, headers={"x-request-key": key}),
            }
            assert len(versions) == 1, f"key {key} got {versions}"
            found[key] = versions.pop()
        assert set(found.values()) == {1, 2}
        for _ in range(20):
            assert ask_rest(session, server, "/versions/1") == 1
            assert ask_rest(session, server, "/labels/old") == 1
            assert ask_rest(session, server, "/versions/2") == 2
            assert ask_oip(grpc, tritonclient.grpc, model_version="1") == 1
        figures = rollout(server)
        assert sum(figures["requests"].values()) == 400 + 6 * 40, "requests with a version do not count"
        larger = change(server, action="start", traffic=0.75)
        assert larger.status_code == 200, larger.text
        kept = [key for key, version in found.items() if version == 2]
        assert all(ask_rest(session, server, key=key) == 2 for key in kept)
        run("models", "rollout", MODEL, "--promote", "--server", server.url)
        assert {ask_rest(session, server) for _ in range(20)} == {2}
    server.wait_version(MODEL, 1, "END")
    ended = rollout(server)
    assert (ended["state"], ended["stable"], ended["history"][0]["candidate"]) == ("promoted", 2, 2)


def test_a_failing_version_is_withdrawn(staged, tmp_path):
    server = staged('[rollout]\ntraffic = 0.5\npromote = "requests:100000"\n' + NO_LATENCY)
    offer(server, tmp_path, failing(tmp_path / "2.onnx"))
    wait_state(server, "running")
    failures = []
    with requests.Session() as session:

        def ask():
            for x in [0, 0, 0, 3]:
                body = {"instances": [x]}
                answer = session.post(f"{server.url}/v1/models/{MODEL}:predict", json=body, timeout=30)
                if answer.status_code != 200:
                    failures.append(answer.text)

        ended = wait_state(server, "rolled_back", ask)
        reason = server.wait_refused(MODEL, 2)
        assert "withdrawn by a rollout" in reason and "failed" in reason
        assert ended["reason"].startswith("errors: ")
        counted = ended["history"][0]
        assert 0 < counted["errors"] <= counted["requests"] <= 2000
        # One request may have been on its way to version 2 when it was withdrawn.
        assert counted["errors"] <= len(failures) <= counted["errors"] + 1
        failures.clear()
        ask()
        assert not failures, "version 1 answers again"
    shown = run("models", "status", MODEL, "--server", server.url).stdout
    assert "withdrawn by a rollout" in shown
    metrics = requests.get(f"{server.url}/metrics", timeout=60).text
    assert f'millpond_rollout_rollbacks_total{{model="{MODEL}",kind="errors"}} 1' in metrics
    assert f'millpond_rollout_running{{model="{MODEL}"}} 0' in metrics
    # It stays withdrawn, over several polls.
    time.sleep(1)
    assert rollout(server)["state"] == "rolled_back"
    assert server.versions(MODEL)[1]["state"] == "AVAILABLE"


def test_copies_find_a_version_that_answers_differently(staged, tmp_path):
    server = staged("[rollout]\nshadow = 1.0\n[rollout.rollback]\ndrift = 0.01\n")
    offer(server, tmp_path, plus(tmp_path / "2.onnx", 2))
    running = wait_state(server, "running")
    assert running["shadow"] == 1.0
    answers = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:

        def ask():
            # Every answer differs, so 100 are enough. A busy server may wait for a core before it judges them, and may
            # have dropped their copies.
            if len(answers) >= 100:
                time.sleep(0.5)
            answers.append(ask_oip(client, tritonclient.grpc))

        ended = wait_state(server, "rolled_back", ask)
    assert set(answers) == {1}, "clients get answers of version 1 only"
    assert ended["reason"].startswith("drift: ")


def test_a_good_version_is_promoted_by_copies(staged, tmp_path):
    server = staged('[rollout]\nshadow = 1.0\npromote = "requests:50"\n' + NO_LATENCY + "drift = 0.01\n")
    offer(server, tmp_path, plus(tmp_path / "2.onnx", 1))
    wait_state(server, "running")
    with requests.Session() as session:
        ended = wait_state(server, "promoted", lambda: ask_rest(session, server))
    assert ended["history"][0]["requests"] >= 50
    server.wait_version(MODEL, 1, "END")


def test_outputs_that_move_withdraw_a_version(staged, tmp_path):
    server = staged('[rollout]\ntraffic = 0.5\npromote = "hand"\n' + NO_LATENCY + "drift = 0.1\n")
    offer(server, tmp_path, plus(tmp_path / "2.onnx", 40))
    wait_state(server, "running")
    with requests.Session() as session:
        ended = wait_state(server, "rolled_back", lambda: ask_rest(session, server))
    assert ended["reason"].startswith("drift: ") and 'output "y"' in ended["reason"]


def test_golden_requests_decide_before_a_version_serves(staged, tmp_path):
    tensor = {"datatype": "FP32", "shape": [2]}
    case = {
        "request": {"inputs": [{"name": "x", **tensor, "data": [1, 2]}]},
        "response": {"outputs": [{"name": "y", **tensor, "data": [2, 3]}]},
    }
    server = staged('[rollout]\ngolden = "golden.json"\ntolerance = 0.001\n', golden=[case])
    offer(server, tmp_path, plus(tmp_path / "2.onnx", 1.5), 2)
    reason = server.wait_refused(MODEL, 2)
    assert 'golden request 0: output "y" element 0 is 2.5 instead of 2' in reason
    offer(server, tmp_path, plus(tmp_path / "3.onnx", 1.0001), 3)
    server.wait_version(MODEL, 3)


def test_a_rollout_by_hand(staged, tmp_path):
    server = staged('policy = "1"\n')
    offer(server, tmp_path, plus(tmp_path / "2.onnx", 2))
    assert change(server, action="promote").status_code == 409
    assert change(server, action="start", version=2).status_code == 400, "no share"
    assert change(server, action="start", version=2, traffic=2).status_code == 400
    assert change(server, action="promote", traffic=0.5).status_code == 400, "no effect"
    assert change(server, action="begin").status_code == 400
    assert change(server, action="start", version=9, traffic=0.5).status_code == 404
    deadline = time.monotonic() + WAIT_S
    while change(server, action="start", version=2, traffic=0.25).status_code == 404:
        assert time.monotonic() < deadline, "the directory is not scanned"
        time.sleep(0.05)
    assert rollout(server)["traffic"] == 0.25
    shown = run("models", "rollout", MODEL, "--version", "2", "--traffic", "0.5", "--server", server.url).stdout
    assert shown.startswith(f"{MODEL}: running, traffic 50 %")
    with requests.Session() as session:
        assert {ask_rest(session, server) for _ in range(10)} == {1, 2}
        run("models", "rollout", MODEL, "--rollback", "--server", server.url)
        assert {ask_rest(session, server) for _ in range(10)} == {1}
    assert "an administrator withdrew it" in server.wait_refused(MODEL, 2)
    assert requests.get(f"{server.url}/v2/models/none/rollout", timeout=60).status_code == 404


def test_settings_without_effect_are_refused(staged):
    server = staged("[rollout]\ntraffic = 0.1\nshadow = 0.1\n")
    assert any("not both" in entry["reason"] for entry in server.index(MODEL)), server.index(MODEL)
