"""Public clients, unmodified, against a server that speaks TLS and requires keys."""

import contextlib
import json
import signal
import ssl
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from certificates import issue, make_authority, openssl
from keys import new_key
from millpond import START_TIMEOUT_S, run
from prometheus_text import samples
from qdrant_client import QdrantClient, models


@pytest.fixture
def certificates(tmp_path):
    """Makes an authority (ca.pem), a certificate of this machine, and one of a client."""
    place = tmp_path / "tls"
    make_authority(place)
    for name in ["server", "client"]:
        issue(place, name)
    return place


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
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            if requests.get(f"{server.url}/v2/health/ready", timeout=60, **options).status_code == 200:
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
    key = new_key(tmp_path / "keys.toml", "--role", "infer", "--models", "half*")
    writer = new_key(tmp_path / "keys.toml", "--role", "write")
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
        url=f"https://localhost:{server.http_port}", https=True, api_key=writer, verify=ca, check_compatibility=False,
        timeout=60,
    )
    qdrant.create_collection("c", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT))
    qdrant.upsert("c", [models.PointStruct(id=1, vector=[1.0, 0.0])], wait=True)
    assert qdrant.query_points("c", query=[1.0, 0.0]).points[0].id == 1


def test_a_plain_grpc_call_ends_with_the_reason(serve, tmp_path, certificates):
    server = start(serve, tmp_path / "models", certificates)
    wait_ready(server, verify=str(certificates / "ca.pem"))
    client = triton_grpc.InferenceServerClient(server.grpc)
    # gRPC repeats a call by itself until its deadline, if the server does not answer it.
    with pytest.raises(triton_grpc.InferenceServerException, match="takes encrypted connections only"):
        client.get_server_metadata(client_timeout=60)
    metrics = requests.get(f"{server.url}/metrics", verify=str(certificates / "ca.pem"), timeout=60).text
    plain = [count for name, labels, count in samples(metrics)
             if (name, labels) == ("millpond_tls_handshakes_total", {"kind": "plaintext"})]  # fmt: skip
    # The client may have connected again meanwhile.
    assert len(plain) == 1 and plain[0] >= 1, metrics


def test_client_certificates(serve, tmp_path, certificates):
    ca = certificates / "ca.pem"
    server = start(serve, tmp_path / "models", certificates, "--tls-client-ca", str(ca))
    wait_ready(server, verify=str(ca), cert=(str(certificates / "client.pem"), str(certificates / "client-key.pem")))
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"{server.url}/v2/health/live", verify=str(ca), timeout=60)
    pem = lambda name: (certificates / name).read_bytes()  # noqa: E731
    credentials = grpc.ssl_channel_credentials(pem("ca.pem"), pem("client-key.pem"), pem("client.pem"))
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)


ROTATIONS = 20


def replace_with(path, text: str) -> None:
    """Replaces a file at once, as a renewal does."""
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.rename(path)


def new_certificate(certificates, number: int) -> None:
    """Writes a new certificate of this machine by the same authority, and its key, to a directory of their own."""
    place = certificates / f"renewed-{number}"
    place.mkdir()
    file = lambda name: str(place / name)  # noqa: E731
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN=server {number}",
            "-keyout", file("key.pem"), "-out", file("csr"))  # fmt: skip
    openssl("x509", "-req", "-days", "2", "-in", file("csr"), "-CA", str(certificates / "ca.pem"),
            "-CAkey", str(certificates / "ca-key.pem"), "-CAcreateserial",
            "-extfile", str(certificates / "names"), "-out", file("cert.pem"))  # fmt: skip


def point(link, target: str) -> None:
    """Points a symbolic link elsewhere at once, as Kubernetes does with a mounted secret."""
    aside = link.with_suffix(".new")
    aside.symlink_to(target)
    aside.rename(link)


def shown_name(server) -> str:
    """Returns the name in the certificate that a new connection gets."""
    text = ssl.get_server_certificate(("127.0.0.1", server.http_port))
    shown = subprocess.run(["openssl", "x509", "-noout", "-subject"], input=text, check=True,
                           capture_output=True, text=True)  # fmt: skip
    return shown.stdout.strip().rsplit("=", 1)[1].strip()


class Callers:
    """Threads that call without a pause: on new and on kept connections, over HTTP and gRPC."""

    def __init__(self, server, ca: str, key: str):
        self.url, self.ca, self.key = server.url, ca, key
        self.grpc = f"localhost:{server.grpc_port}"
        self.stop = threading.Event()
        self.answered = {"new": 0, "kept": 0, "grpc": 0}
        self.failures = []
        loops = [("new", self.call_new), ("kept", self.kept()), ("grpc", self.call_grpc())]
        self.threads = [threading.Thread(target=self.work, args=loop) for loop in loops]

    def work(self, kind: str, call) -> None:
        while not self.stop.is_set():
            try:
                call()
                self.answered[kind] += 1
            except Exception as failure:  # noqa: BLE001
                self.failures.append((kind, failure))

    def call_new(self, send=requests.post) -> None:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [4.0]}]}
        answer = send(f"{self.url}/v2/models/half_plus_two/infer", json=body, verify=self.ca, timeout=60,
                      headers={"authorization": f"Bearer {self.key}"})  # fmt: skip
        assert answer.status_code == 200, answer.text

    def kept(self):
        session = requests.Session()
        return lambda: self.call_new(session.post)

    def call_grpc(self):
        client = triton_grpc.InferenceServerClient(self.grpc, ssl=True, root_certificates=self.ca)
        return lambda: check_triton(client, triton_grpc, {"authorization": f"Bearer {self.key}"})

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


def test_no_call_fails_while_certificates_and_keys_are_replaced(serve, tmp_path, certificates):
    key = new_key(tmp_path / "keys.toml", "--role", "infer")
    reader = new_key(tmp_path / "keys.toml", "--role", "read")
    keys = tmp_path / "keys.toml"
    text = keys.read_text()
    for number in range(2):
        new_certificate(certificates, number)
    current = certificates / "current"
    current.symlink_to("renewed-1")
    server = serve(
        tmp_path / "models", "--tls-cert", str(current / "cert.pem"), "--tls-key", str(current / "key.pem"),
        "--keys", str(keys), ready=False,
    )  # fmt: skip
    server.url = f"https://127.0.0.1:{server.http_port}"
    ca = str(certificates / "ca.pem")
    wait_ready(server, verify=ca)

    def reloads() -> int:
        metrics = requests.get(f"{server.url}/metrics", verify=ca, headers={"api-key": reader}, timeout=60).text
        found = {labels["kind"]: value for name, labels, value in samples(metrics) if name.startswith("millpond_access_reloads")}
        assert "failed" not in found, found
        return int(found.get("ok", 0))

    with Callers(server, ca, key) as callers:
        for number in range(ROTATIONS):
            before = reloads()
            point(current, f"renewed-{number % 2}")
            replace_with(keys, f"# {number}\n{text}")
            answered = dict(callers.answered)
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + START_TIMEOUT_S
            # Each kind of caller has at least one answer in each rotation.
            while (
                reloads() < before + 2
                or shown_name(server) != f"server {number % 2}"
                or any(callers.answered[kind] == count for kind, count in answered.items())
            ):
                assert not callers.failures, callers.failures[:5]
                assert time.monotonic() < deadline, (callers.answered, server.log_text()[-4000:])
                time.sleep(0.05)
    assert not callers.failures, callers.failures[:5]
    assert all(count >= ROTATIONS for count in callers.answered.values()), callers.answered


def test_client_commands_over_tls_and_sockets(serve, tmp_path, certificates):
    socket_path = tmp_path / "http.sock"
    grpc_path = tmp_path / "grpc.sock"
    ca = str(certificates / "ca.pem")
    server = start(
        serve, tmp_path / "models", certificates, "--tls-client-ca", ca,
        "--http-socket", str(socket_path), "--grpc-socket", str(grpc_path),
    )  # fmt: skip
    identity = ("--ca", ca, "--cert", str(certificates / "client.pem"), "--key", str(certificates / "client-key.pem"))
    wait_ready(server, verify=ca, cert=(str(certificates / "client.pem"), str(certificates / "client-key.pem")))
    url, grpcs = server.url, f"grpcs://127.0.0.1:{server.grpc_port}"
    # On a busy machine the process may get no core for half a second.
    load = ("bench", "load", "--model", "half_plus_two", "--clients", "1", "--duration", "2s", "--warm-up", "0s")
    request = tmp_path / "request.json"
    request.write_text('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [5.0]}]}')
    for address, flags in [(url, identity), (f"unix:{socket_path}", ())]:
        assert "half_plus_two" in run("models", "ls", "--url", address, *flags).stdout
        answer = run("infer", "half_plus_two", "--input", str(request), "--json", "--url", address, *flags)
        assert json.loads(answer.stdout)["outputs"][0]["data"] == [4.5]
    for address, flags in [
        (url, identity), (grpcs, identity), (f"unix:{grpc_path}", ()), (f"http+unix:{socket_path}", ())
    ]:  # fmt: skip
        report = tmp_path / "load.json"
        run(*load, "--url", address, *flags, "--json", str(report))
        measured = json.loads(report.read_text())
        assert measured["n"] > 0 and measured["failed"] == 0, (address, measured)
    plain = f"127.0.0.1:{server.grpc_port}"
    for arguments, wanted in [
        ((*load, "--url", f"grpc://{plain}"), f"use grpcs://{plain}"),
        ((*load, "--url", grpcs, "--ca", ca), "requires a certificate of its clients"),
        ((*load, "--url", f"grpcs://127.0.0.1:{server.http_port}", *identity), "speaks another protocol"),
        ((*load, "--url", f"grpc://{plain}", "--ca", ca), "--ca has no effect without TLS"),
        (("models", "ls", "--url", f"http://127.0.0.1:{server.http_port}"), "encrypted connections only"),
        (("models", "ls", "--url", url), "is not trusted"),
        (("models", "ls", "--url", f"unix:{tmp_path}/none.sock"), "none.sock"),
    ]:
        failed = run(*arguments, check=False)
        assert failed.returncode != 0 and wanted in failed.stderr, failed
    open_server = serve(tmp_path / "models")
    failed = run(*load, "--url", f"grpcs://{open_server.grpc}", "--ca", ca, check=False)
    assert "does not speak TLS" in failed.stderr, failed
