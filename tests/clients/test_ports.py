"""The admin port, Unix sockets and origins of browsers, with public clients."""

import json
import os
import re
import socket
import stat
import subprocess

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from millpond import BINARY, run

TIMEOUT_S = 60
INFER = "/v2/models/half_plus_two/infer"
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [4.0]}]}
ORIGIN = "https://app.example"


def admin_url(server) -> str:
    """Returns the address of the admin port, which the server chose."""
    return re.search(r"admin=(https?://[\d.]+:\d+)", server.log_text())[1]


def curl(path, target: str, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        ["curl", "--silent", "--unix-socket", path, "--write-out", "\n%{http_code}", *options, f"http://localhost{target}"],
        check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    body, status = done.stdout.rsplit("\n", 1)
    return int(status), body


def test_operators_have_a_port_of_their_own(serve, tmp_path):
    server = serve(tmp_path / "models", "--admin-port", "0")
    admin = admin_url(server)
    port = admin.rsplit(":", 1)[1]
    for method, path in [
        ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/v1/log"),
        ("POST", "/v2/repository/models/half_plus_two/load"),
    ]:  # fmt: skip
        refused = requests.request(method, server.url + path, timeout=TIMEOUT_S)
        assert refused.status_code == 404
        assert f"at the admin port, {port}" in refused.json()["error"]
        assert requests.request(method, admin + path, timeout=TIMEOUT_S).status_code == 200, path
    for url in (server.url, admin):
        assert requests.post(url + INFER, json=BODY, timeout=TIMEOUT_S).json()["outputs"][0]["data"] == [4.0]
        assert requests.get(f"{url}/readyz", timeout=TIMEOUT_S).status_code == 200
    client = triton_grpc.InferenceServerClient(server.grpc)
    assert client.is_server_ready()
    with pytest.raises(triton_grpc.InferenceServerException, match=f"UNIMPLEMENTED.*admin port, {port}"):
        client.load_model("half_plus_two")


def test_the_admin_port_needs_keys_too(serve, tmp_path):
    made = subprocess.run([BINARY, "keys", "new", "--role", "read"], check=True, capture_output=True, text=True)
    (tmp_path / "keys.toml").write_text(made.stdout)
    key = made.stderr.split()[-1]
    server = serve(tmp_path / "models", "--admin-port", "0", "--keys", str(tmp_path / "keys.toml"))
    admin = admin_url(server)
    assert requests.get(f"{admin}/metrics", timeout=TIMEOUT_S).status_code == 401
    headers = {"authorization": f"Bearer {key}"}
    assert requests.get(f"{admin}/metrics", headers=headers, timeout=TIMEOUT_S).status_code == 200
    load = requests.post(f"{admin}/v2/repository/models/half_plus_two/load", headers=headers, timeout=TIMEOUT_S)
    assert load.status_code == 403, load.text
    assert requests.get(f"{admin}/livez", timeout=TIMEOUT_S).status_code == 200


def test_unix_sockets_of_both_protocols(serve, tmp_path):
    http, grpc_path = tmp_path / "http.sock", tmp_path / "grpc.sock"
    flags = ("--http-socket", str(http), "--grpc-socket", str(grpc_path), "--socket-mode", "0660", "--admin-port", "0")
    server = serve(tmp_path / "models", *flags)
    for path in (http, grpc_path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert curl(http, "/readyz")[0] == 200
    answer = curl(http, INFER, "--data", json.dumps(BODY), "--header", "content-type: application/json")
    assert json.loads(answer[1])["outputs"][0]["data"] == [4.0]
    # Its clients are on this machine, and it offers what the admin port does.
    assert curl(http, "/v2/repository/models/half_plus_two/load", "--request", "POST")[0] == 200
    assert curl(http, "/metrics")[0] == 200
    proxied = curl(http, "/v2/repository/models/half_plus_two/load", "--request", "POST", "--header", "x-forwarded-for: a")
    assert proxied[0] == 403
    with grpc.insecure_channel(f"unix:{grpc_path}") as channel:
        check = health_pb2.HealthCheckRequest(service="half_plus_two")
        status = health_pb2_grpc.HealthStub(channel).Check(check, timeout=TIMEOUT_S).status
        assert status == health_pb2.HealthCheckResponse.ServingStatus.SERVING
    client = triton_grpc.InferenceServerClient(f"unix:{grpc_path}")
    client.load_model("half_plus_two")
    x = triton_grpc.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.array([4.0], dtype=np.float32))
    np.testing.assert_array_equal(client.infer("half_plus_two", [x]).as_numpy("y"), [4.0])
    assert server.stop() == 0
    assert not http.exists() and not grpc_path.exists()


def test_a_socket_in_use_is_not_taken(serve, tmp_path):
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        serve(tmp_path / "models").stop()
        taken = run("serve", str(tmp_path / "models"), "--http-port", "0", "--grpc-port", "0",
                    "--http-socket", str(path), check=False)  # fmt: skip
        assert taken.returncode != 0 and "another server listens there" in taken.stderr
    assert path.exists()
    # No process listens there any more.
    server = serve(tmp_path / "models", "--http-socket", str(path))
    assert curl(path, "/livez")[0] == 200
    server.stop()


def test_listed_origins_may_use_the_api(serve, tmp_path):
    server = serve(tmp_path / "models", "--cors", ORIGIN)
    preflight = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,inference-header-content-length",
    }
    answer = requests.options(server.url + INFER, headers=preflight, timeout=TIMEOUT_S)
    assert answer.status_code == 200 and answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    allowed = {name.strip() for name in answer.headers["Access-Control-Allow-Headers"].split(",")}
    assert set(preflight["Access-Control-Request-Headers"].split(",")) <= allowed
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert "Access-Control-Allow-Credentials" not in answer.headers
    answer = requests.post(server.url + INFER, json=BODY, headers={"Origin": ORIGIN}, timeout=TIMEOUT_S)
    assert answer.status_code == 200
    assert "retry-after" in answer.headers["Access-Control-Expose-Headers"]
    for path in (INFER, "/collections"):
        for method in ("OPTIONS", "GET"):
            refused = requests.request(
                method, server.url + path, headers={**preflight, "Origin": "https://other.example"}, timeout=TIMEOUT_S
            )
            assert not [name for name in refused.headers if name.lower().startswith("access-control")]
