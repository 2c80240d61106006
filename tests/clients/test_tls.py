"""Public clients against a server that speaks TLS and asks for keys, unmodified."""

import contextlib
import subprocess
import time

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from millpond import BINARY, START_TIMEOUT_S
from qdrant_client import QdrantClient, models


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path):
    """Makes an authority (ca.pem), a certificate of this machine, and one of a client."""
    place = tmp_path / "tls"
    place.mkdir()
    file = lambda name: str(place / name)  # noqa: E731
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
            "-keyout", file("ca-key.pem"), "-out", file("ca.pem"))  # fmt: skip
    (place / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ["server", "client"]:
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                "-keyout", file(f"{name}-key.pem"), "-out", file(f"{name}.csr"))  # fmt: skip
        openssl("x509", "-req", "-days", "2", "-in", file(f"{name}.csr"), "-CA", file("ca.pem"),
                "-CAkey", file("ca-key.pem"), "-CAcreateserial", "-extfile", file("names"),
                "-out", file(f"{name}.pem"))  # fmt: skip
    return place


def new_key(place, *arguments: str) -> str:
    made = subprocess.run([BINARY, "keys", "new", *arguments], check=True, capture_output=True, text=True)
    with (place / "keys.toml").open("a") as file:
        file.write(made.stdout)
    return made.stderr.split()[-1]


def start(serve, root, certificates, *flags: str):
    server = serve(
        root, "--tls-cert", str(certificates / "server.pem"), "--tls-key", str(certificates / "server-key.pem"),
        *flags, ready=False,
    )  # fmt: skip
    server.url = f"https://127.0.0.1:{server.http_port}"
    return server


def wait_ready(server, **options) -> None:
    """Waits for a server; the options of TLS are those of `requests.get`."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log_text()
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{server.url}/v2/health/ready", timeout=5, **options).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(server.log_text())


def check_triton(client, package, headers) -> None:
    x = package.InferInput("x", [2], "FP32")
    x.set_data_from_numpy(np.array([2.0, 4.0], dtype=np.float32))
    # The HTTP client adds its own headers to the dictionary.
    answer = client.infer("half_plus_two", [x], headers=dict(headers))
    np.testing.assert_array_equal(answer.as_numpy("y"), [3.0, 4.0])


def test_clients_with_keys_over_tls(serve, tmp_path, certificates):
    key = new_key(tmp_path, "--role", "infer", "--models", "half*")
    writer = new_key(tmp_path, "--role", "write")
    server = start(serve, tmp_path / "models", certificates, "--keys", str(tmp_path / "keys.toml"))
    ca = str(certificates / "ca.pem")
    wait_ready(server, verify=ca)
    headers = {"authorization": f"Bearer {key}"}
    options = {"ca_certs": ca}
    client = triton_http.InferenceServerClient(f"localhost:{server.http_port}", ssl=True, ssl_options=options)
    check_triton(client, triton_http, headers)
    client = triton_grpc.InferenceServerClient(
        f"localhost:{server.grpc_port}", ssl=True, root_certificates=ca
    )
    check_triton(client, triton_grpc, headers)
    with pytest.raises(triton_grpc.InferenceServerException, match="UNAUTHENTICATED"):
        client.get_server_metadata()
    # The check of versions does not use `verify`.
    qdrant = QdrantClient(
        url=f"https://localhost:{server.http_port}", https=True, api_key=writer, verify=ca, check_compatibility=False
    )
    qdrant.create_collection("c", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT))
    qdrant.upsert("c", [models.PointStruct(id=1, vector=[1.0, 0.0])], wait=True)
    assert qdrant.query_points("c", query=[1.0, 0.0]).points[0].id == 1


def test_client_certificates(serve, tmp_path, certificates):
    ca = certificates / "ca.pem"
    server = start(serve, tmp_path / "models", certificates, "--tls-client-ca", str(ca))
    wait_ready(server, verify=str(ca), cert=(str(certificates / "client.pem"), str(certificates / "client-key.pem")))
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"{server.url}/v2/health/live", verify=str(ca), timeout=10)
    pem = lambda name: (certificates / name).read_bytes()  # noqa: E731
    credentials = grpc.ssl_channel_credentials(pem("ca.pem"), pem("client-key.pem"), pem("client.pem"))
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
