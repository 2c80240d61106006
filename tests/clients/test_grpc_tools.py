"""The command-line tools of gRPC, grpcurl and grpc-health-probe, and Qdrant's client for Go, unmodified
(`make grpc-tools`)."""

import json
import subprocess
import threading

import pytest
import requests
from collections_server import start
from millpond import REPOSITORY, drop_in
from models import half_plus_two

TOOLS = REPOSITORY / ".cache/tools/bin"
TIMEOUT_S = 60
HEALTH = "grpc.health.v1.Health"
OIP = "inference.GRPCInferenceService"
PREDICT = "tensorflow.serving.PredictionService"
QDRANT = {"qdrant.Collections", "qdrant.Points", "qdrant.Qdrant", "qdrant.Snapshots"}


def grpcurl(target: str, *words: str, data: dict | None = None, check: bool = True) -> subprocess.CompletedProcess:
    message = ["-d", json.dumps(data)] if data is not None else []
    limit = ["-connect-timeout", str(TIMEOUT_S)]
    return subprocess.run([TOOLS / "grpcurl", "-plaintext", *limit, *message, target, *words], check=check, text=True,
                          capture_output=True, timeout=TIMEOUT_S)  # fmt: skip


def call(target: str, method: str, data: dict) -> dict:
    return json.loads(grpcurl(target, method, data=data).stdout)


def probe(target: str, service: str = "") -> subprocess.CompletedProcess:
    # Its own limits are 1 s.
    limits = ["-connect-timeout", f"{TIMEOUT_S}s", "-rpc-timeout", f"{TIMEOUT_S}s"]
    return subprocess.run([TOOLS / "grpc-health-probe", "-addr", target, "-service", service, *limits], text=True,
                          capture_output=True, timeout=2 * TIMEOUT_S)  # fmt: skip


def test_reflection_lists_and_describes_the_services(server):
    listed = grpcurl(server.grpc, "list").stdout.split()
    assert {HEALTH, OIP, PREDICT, "tensorflow.serving.ModelService"} | QDRANT <= set(listed)
    described = grpcurl(server.grpc, "describe", f"{PREDICT}.Predict").stdout
    assert ".tensorflow.serving.PredictRequest" in described
    assert ".qdrant.QueryPoints" in grpcurl(server.grpc, "describe", "qdrant.Points.Query").stdout


def test_calls_of_both_protocols(server):
    assert call(server.grpc, f"{OIP}/ServerReady", {}) == {"ready": True}
    assert call(server.grpc, f"{OIP}/ModelMetadata", {"name": "half_plus_two"})["inputs"][0]["name"] == "x"
    tensor = {"dtype": "DT_FLOAT", "tensorShape": {"dim": [{"size": "2"}]}, "floatVal": [1.0, 2.0]}
    request = {"modelSpec": {"name": "half_plus_two"}, "inputs": {"x": tensor}}
    answer = call(server.grpc, f"{PREDICT}/Predict", request)
    assert answer["outputs"]["y"]["floatVal"] == [2.5, 3.0]
    refused = grpcurl(server.grpc, f"{PREDICT}/Predict", data={"modelSpec": {"name": "none"}}, check=False)
    assert refused.returncode != 0 and "NotFound" in refused.stderr


def test_health_of_server_and_models(server):
    for service in ("", "half_plus_two", OIP):
        healthy = probe(server.grpc, service)
        assert healthy.returncode == 0 and "SERVING" in healthy.stderr + healthy.stdout, service
    assert call(server.grpc, f"{HEALTH}/Check", {"service": "half_plus_two"}) == {"status": "SERVING"}
    unknown = probe(server.grpc, "none")
    assert unknown.returncode != 0, unknown


def test_watch_follows_an_unload_and_a_swap(serve, tmp_path):
    server = serve(tmp_path / "models", "--grpc-socket", str(tmp_path / "grpc.sock"))
    command = [TOOLS / "grpcurl", "-plaintext", "-connect-timeout", str(TIMEOUT_S), "-d", '{"service": "half_plus_two"}', server.grpc, f"{HEALTH}/Watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        killer = threading.Timer(4 * TIMEOUT_S, watch.kill)
        killer.start()

        def status() -> str:
            """Returns the next status: each message is a JSON object of three lines."""
            lines = [watch.stdout.readline() for _ in range(3)]
            return json.loads("".join(lines))["status"]

        assert status() == "SERVING"
        # A swap keeps the model serving, so only the unload below is reported next.
        drop_in(half_plus_two(tmp_path / "next.onnx"), server.root / "half_plus_two", 2)
        server.wait_version("half_plus_two", 2)
        repository = f"{server.url}/v2/repository/models/half_plus_two"
        assert requests.post(f"{repository}/unload", timeout=TIMEOUT_S).status_code == 200
        assert status() == "NOT_SERVING"
        assert probe(server.grpc, "half_plus_two").returncode != 0
        assert requests.post(f"{repository}/load", timeout=TIMEOUT_S).status_code == 200
        assert status() == "SERVING"
        assert probe(f"unix:{tmp_path}/grpc.sock", "half_plus_two").returncode == 0
        watch.terminate()
        killer.cancel()


@pytest.mark.parametrize("tool", ["grpcurl", "grpc-health-probe"])
def test_tools_are_installed(tool):
    assert (TOOLS / tool).exists(), "run `make grpc-tools`"


def test_the_client_of_qdrant_for_go(tmp_path):
    server = start(tmp_path)
    try:
        used = subprocess.run([TOOLS / "qdrant-go", "127.0.0.1", str(server.grpc_port)], capture_output=True, text=True,
                              timeout=TIMEOUT_S)  # fmt: skip
        assert used.returncode == 0, used.stderr
        hit, described, refused = used.stdout.splitlines()
        assert (hit, described) == ("1 1 Ulm 1", "2 [go] Green 2")
        assert "NotFound" in refused and "nowhere" in refused
    finally:
        assert server.stop() == 0, server.log_text()
