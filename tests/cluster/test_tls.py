"""Nodes and an etcd that require certificates: a cluster of three nodes without a plain connection."""

import base64
import http.client
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys

import pytest
from processes import BINARY, Node, NodePlan, Process, end_all, free_ports, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

from certificates import issue, make_authority  # noqa: E402

PASSWORD = "a password/of \"etcd\""
NAMES = ["a", "b", "c"]
SHARDS, POINTS = 4, 20
TIMEOUT_S = 60


class Certificates:
    """An authority, a certificate for all servers, one for clients, and one for clients of etcd."""

    def __init__(self, place: pathlib.Path):
        self.place = place
        make_authority(place)
        for name in ("server", "client"):
            issue(place, name)
        # The gateway of an etcd with users refuses certificates with a common name.
        issue(place, "nameless", "/O=test")

    def file(self, name: str) -> str:
        return str(self.place / name)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.file("ca.pem"))
        context.load_cert_chain(self.file("client.pem"), self.file("client-key.pem"))
        return context

    def flags(self) -> list[str]:
        """Returns the flags of a client command."""
        return ["--ca", self.file("ca.pem"), "--cert", self.file("client.pem"), "--key", self.file("client-key.pem")]


def call(address: str, context: ssl.SSLContext, method: str, path: str, body: dict | None = None, token: str = "") -> dict:
    """Sends a request by TLS. Returns the answer, which has the status 200."""
    connection = http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)
    try:
        headers = {"content-type": "application/json"} | ({"authorization": token} if token else {})
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, (path, answer.status, text)
        return json.loads(text or b"{}")
    finally:
        connection.close()


class TlsEtcd(Process):
    """One etcd that requires certificates and has users."""

    def __init__(self, scratch: pathlib.Path, certificates: Certificates):
        port, peer_port = free_ports()
        self.address, self.context = f"127.0.0.1:{port}", certificates.context()
        self.url, peers = f"https://{self.address}", f"http://127.0.0.1:{peer_port}"
        program = shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert program, "no etcd: run `make system`, or install Debian's etcd-server"
        command = [
            program, "--name", "only", "--data-dir", str(scratch / "etcd"),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"only={peers}",
            "--cert-file", certificates.file("server.pem"), "--key-file", certificates.file("server-key.pem"),
            "--client-cert-auth", "--trusted-ca-file", certificates.file("ca.pem"),
        ]  # fmt: skip
        super().__init__("etcd", command, scratch / "etcd.log")

    def healthy(self) -> bool:
        assert self.running(), self.log_tail()
        try:
            return call(self.address, self.context, "GET", "/health")["health"] == "true"
        except (OSError, AssertionError):
            return False

    def enable_users(self) -> None:
        """Makes a user for Millpond's keys, and enables users."""
        key = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
        keys = {"permType": "READWRITE", "key": key("millpond/"), "range_end": key("millpond0")}
        for path, body in [
            ("role/add", {"name": "root"}),
            ("user/add", {"name": "root", "password": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("role/add", {"name": "millpond"}),
            ("role/grant", {"name": "millpond", "perm": keys}),
            ("user/add", {"name": "mill", "password": PASSWORD}),
            ("user/grant", {"user": "mill", "role": "millpond"}),
            ("enable", {}),
        ]:
            call(self.address, self.context, "POST", f"/v3/auth/{path}", body)


class TlsNode(Node):
    """A node that requires certificates of its clients."""

    def __init__(self, name: str, flags: list[str], scratch: pathlib.Path, certificates: Certificates):
        user = {"MILLPOND_ETCD_USER": "mill", "MILLPOND_ETCD_PASSWORD": PASSWORD}
        super().__init__(NodePlan(name, "root,search,ingest"), flags, scratch, scratch, user)
        self.url, self.context = f"https://{self.address}", certificates.context()

    def call(self, method: str, path: str, body: dict | None = None) -> dict:
        return call(self.address, self.context, method, path, body)

    def answers(self) -> bool:
        assert self.running(), f"{self.name} ended with {self.child.poll()}\n{self.log_tail()}"
        try:
            self.call("GET", "/v2/health/ready")
        except (OSError, AssertionError):
            return False
        return True


@pytest.fixture
def certificates(tmp_path) -> Certificates:
    yield Certificates(tmp_path / "tls")
    end_all()


def node_flags(scratch: pathlib.Path, etcd: TlsEtcd, certificates: Certificates, ca: str) -> list[str]:
    file = certificates.file
    return [
        "--cluster-store", str(scratch / "store"), "--cluster-etcd", etcd.url, "--cluster-etcd-ca", file("ca.pem"),
        "--cluster-etcd-cert", file("nameless.pem"), "--cluster-etcd-key", file("nameless-key.pem"),
        "--tls-cert", file("server.pem"), "--tls-key", file("server-key.pem"), "--tls-client-ca", file("ca.pem"),
        "--cluster-tls-ca", ca,
    ]  # fmt: skip


def millpond(node: TlsNode, certificates: Certificates, *words: str) -> str:
    command = [str(BINARY), "cluster", *words, "--url", node.url, *certificates.flags()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended
    return ended.stdout


def test_a_cluster_without_a_plain_connection(tmp_path, certificates):
    (tmp_path / "store").mkdir()
    etcd = TlsEtcd(tmp_path, certificates)
    etcd.start()
    wait_until("etcd answers", etcd.healthy)
    etcd.enable_users()
    flags = node_flags(tmp_path, etcd, certificates, certificates.file("ca.pem"))
    nodes = {name: TlsNode(name, flags, tmp_path, certificates) for name in NAMES}
    for node in nodes.values():
        node.start()
    for node in nodes.values():
        node.wait_ready()
    root = nodes["a"]

    created = root.call("PUT", "/collections/docs", {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": SHARDS})
    assert created["result"] is True, created
    points = [{"id": at, "vector": [at, 1]} for at in range(POINTS)]
    assert root.call("PUT", "/collections/docs/points?wait=true", {"points": points})["status"] == "ok"

    def status() -> dict | None:
        shown = json.loads(millpond(root, certificates, "status", "--json"))
        return shown if sum(node["serving"] for node in shown["nodes"]) == 2 * SHARDS else None

    shown = wait_until("both copies of each shard are served", status)
    assert [node["name"] for node in shown["nodes"]] == NAMES
    assert sum(node["serving"] > 0 for node in shown["nodes"]) > 1, shown

    query = {"query": [1, 0], "limit": 3}
    for node in nodes.values():
        found = node.call("POST", "/collections/docs/points/query?min_coverage=1&consistency=strong", query)
        assert [point["id"] for point in found["result"]["points"]] == [19, 18, 17], found

    # A renewed certificate of this machine counts for new connections.
    issue(certificates.place, "server")
    for node in nodes.values():
        node.send(signal.SIGHUP)
    renewed = "the certificates for other nodes were read again"
    for node in nodes.values():
        wait_until(f"{node.name} reads the certificates", lambda node=node: renewed in node.log.read_text())
    assert "c drains" in millpond(root, certificates, "drain", "c", "--no-wait")
    wait_until("c drains", lambda: "this node drains" in nodes["c"].log.read_text())

    # A node with another authority for the nodes does not start.
    make_authority(tmp_path / "other")
    stranger = TlsNode(
        "d", node_flags(tmp_path, etcd, certificates, str(tmp_path / "other/ca.pem")), tmp_path, certificates
    )
    stranger.start()
    assert stranger.child.wait(TIMEOUT_S) != 0
    assert "is not signed by an issuer in" in stranger.log.read_text(), stranger.log_tail()
    for process in [*nodes.values(), stranger]:
        assert PASSWORD not in process.log.read_text(), process.name
