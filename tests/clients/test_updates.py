"""Servers of a fleet take turns in etcd to load a new version, and a bad version stops at the first of them."""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import subprocess
import threading

import pytest
import requests
from prometheus_text import samples

from millpond import Server, drop_in, free_ports, publish, wait_for
from models import stamped

SERVERS = 3
MODEL = "stamped"
MEGABYTES = 32
# A load of the model takes two seconds, in which the others are seen to wait.
LOAD_RATE = "16MB"
LOADED = re.compile(r"loaded in ([\d.]+) s and warmed up in ([\d.]+) s")
# The events round both times to 10 ms.
ROUNDING_MS = 20


class Etcd:
    """An etcd on free ports of the loopback."""

    def __init__(self, directory: pathlib.Path):
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports())
        self.url = client
        command = [
            "etcd", "--name", "test", "--data-dir", str(directory / "etcd"), "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def answers(self) -> bool:
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{self.url}/health", timeout=5).json().get("health") == "true"
        return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def etcd(tmp_path):
    assert shutil.which("etcd"), "no etcd: `make system` installs it (package etcd-server)"
    etcd = Etcd(tmp_path)
    try:
        wait_for(etcd.answers, lambda answers: answers)
        yield etcd
    finally:
        etcd.stop()


@pytest.fixture
def fleet(etcd, tmp_path):
    """Three servers that serve version 1 of the same directory."""
    root = tmp_path / "root"
    publish(stamped(tmp_path / "one.onnx", 1), root / MODEL, 1)
    flags = ("--update-concurrency", "1", "--update-etcd", etcd.url, "--load-rate", LOAD_RATE, "--pool", "256MiB")
    servers = []
    for number in range(SERVERS):
        # Each has its own cache.
        (tmp_path / str(number)).mkdir()
        servers.append(Server(root, *flags, log=tmp_path / str(number) / "server.log"))
    try:
        for server in servers:
            server.wait_ready()
        yield servers
        for server in servers:
            assert server.stop() == 0, server.log_text()[-4000:]
    finally:
        for server in servers:
            server.process.kill()


def reason(server: Server, version: int) -> str:
    reasons = {entry.get("version"): entry.get("reason") for entry in server.index(MODEL)}
    return reasons.get(str(version)) or ""


def counter(server: Server, name: str) -> float:
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    return sum(value for sample, _, value in samples(text) if sample == name)


@dataclasses.dataclass
class Client:
    """Asks one server without a pause."""

    server: Server
    answers: list[float] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            answer = self.server.infer(MODEL, [0.0])
            if answer.status_code == 200:
                self.answers.append(answer.json()["outputs"][0]["data"][0])
            else:
                self.failures.append(answer.text)


@contextlib.contextmanager
def asking(servers: list[Server]):
    """Asks all servers meanwhile. Each request must be answered, by a version that is not older than the last one."""
    stop, clients = threading.Event(), [Client(server) for server in servers]
    threads = [threading.Thread(target=client.run, args=(stop,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for client in clients:
        assert not client.failures, client.failures[:3]
        assert client.answers and client.answers == sorted(client.answers)


def load_time(server: Server, version: int) -> tuple[float, float]:
    """Returns the begin and the end of a version's load in milliseconds."""
    events = requests.get(f"{server.url}/v2/events", params={"model": MODEL}, timeout=60).json()["events"]
    (loaded,) = [event for event in events if event["kind"] == "loaded" and event["version"] == version]
    seconds = sum(map(float, LOADED.search(loaded["text"]).groups()))
    return loaded["time_ms"] - seconds * 1000, loaded["time_ms"]


def test_a_fleet_updates_in_turns_and_a_bad_version_stops(fleet, tmp_path):
    place = fleet[0].root / MODEL
    second = publish(stamped(tmp_path / "two.onnx", 2, MEGABYTES), tmp_path / "elsewhere" / MODEL, 2)
    with asking(fleet):
        second.rename(place / "2")
        shown = wait_for(
            lambda: [reason(server, 2) for server in fleet], lambda found: any("waits for its turn" in it for it in found)
        )
        for server in fleet:
            server.wait_version(MODEL, 2)
            server.wait_version(MODEL, 1, "END")
    loads = sorted(load_time(server, 2) for server in fleet)
    for (begin, end), (following, _) in zip(loads, loads[1:], strict=False):
        assert end - begin > ROUNDING_MS, "the load is long enough to overlap"
        assert following >= end - ROUNDING_MS, (loads, shown)
    assert [counter(server, "millpond_updates_without_turn_total") for server in fleet] == [0] * SERVERS

    whole = stamped(tmp_path / "three.onnx", 3).read_bytes()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(whole[: len(whole) // 2])
    with asking(fleet):
        drop_in(cut, place, 3)
        failed = wait_for(
            lambda: [server for server in fleet if server.versions(MODEL).get(3, {}).get("state") == "END"], bool
        )
        others = [server for server in fleet if server is not failed[0]]
        for server in others:
            held = wait_for(lambda server=server: reason(server, 3), lambda text: text.startswith("held back: "))
            # It names the server that tried it, and its error.
            assert f":{failed[0].http_port} at " in held, held
            assert reason(failed[0], 3) in held, (held, reason(failed[0], 3))
    # One server has tried it, and the others count the failure.
    assert sum(counter(server, "millpond_load_failures_total") for server in fleet) == 1
    assert [counter(server, "millpond_updates_held_back_total") for server in others] == [1, 1]
    assert [server.infer(MODEL, [0.0]).json()["outputs"][0]["data"] for server in fleet] == [[2.0]] * SERVERS
