"""Few descriptors, and host names and keys of a server, as a user sees them."""

import contextlib
import os
import pathlib
import re
import select
import shutil
import socket
import subprocess
import time

import pytest
import requests

from millpond import BINARY, Server
from prometheus_text import samples

# Open-file limit of the server only.
FEW_FILES = 256
LIMITED = ("bash", "-c", f'ulimit -n {FEW_FILES} && exec "$@"', "limited")
COLLECTION = {"vectors": {"size": 2, "distance": "Dot"}}


@pytest.fixture
def limited(tmp_path):
    (tmp_path / "models").mkdir()
    flags = ("--collections-dir", str(tmp_path / "collections"))
    server = Server(tmp_path / "models", *flags, log=tmp_path / "log", prefix=LIMITED).wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


def value(server: Server, name: str, kind: str) -> float:
    answer = requests.get(f"{server.url}/metrics", timeout=60)
    return sum(value for found, labels, value in samples(answer.text) if found == name and labels.get("kind") == kind)


def test_collections_and_connections_share_few_descriptors(limited):
    room = int(re.search(r"the limit of open files leaves room for (\d+) connections", limited.log_text())[1])
    made = [requests.put(f"{limited.url}/collections/c{n}", json=COLLECTION, timeout=60).status_code for n in range(20)]
    assert made == [200] * 12 + [429] * 8
    assert value(limited, "millpond_file_descriptors", "limit") == FEW_FILES
    idle = [socket.create_connection(("127.0.0.1", limited.http_port), timeout=60) for _ in range(300)]
    # A connection without room is closed at once. The descriptors of earlier requests may be free for later ones.
    left, deadline = set(idle), time.monotonic() + 60
    while len(left) > room and time.monotonic() < deadline:
        for connection in select.select(left, [], [], 1)[0]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
            left.remove(connection)
    assert len(left) <= room < 150
    for connection in idle:
        connection.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{limited.url}/collections/c0", timeout=60).status_code == 200:
                break
    assert value(limited, "millpond_file_descriptors", "open") < FEW_FILES
    assert limited.log_text().count("connections could not be accepted") <= 1


def as_user_without_threads(program: pathlib.Path) -> list[str]:
    """Returns a command that runs `program` as a user who may have no second thread."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become a user without other processes")
    user = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
    command = ["bash", "-c", 'ulimit -u 1 && exec "$@"', "limited", *user, str(program)]
    if subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip(f"another user cannot run {program}")
    return command


def test_a_command_that_may_start_no_thread(serve, tmp_path):
    command = as_user_without_threads(BINARY)
    server = serve(tmp_path / "root")
    for host in ("127.0.0.1", "localhost"):
        listed = [*command, "models", "ls", "--url", f"http://{host}:{server.http_port}"]
        done = subprocess.run(listed, cwd="/", capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "half_plus_two" in done.stdout, done


def test_figures_on_a_full_disk_are_an_error(serve, tmp_path):
    server = serve(tmp_path / "root")
    load = [str(BINARY), "bench", "load", "--url", server.url, "--model", "half_plus_two", "--dims", "x=2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*load, "--clients", "1", "--duration", "1s"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1, done
    assert done.stderr.count("cannot write to standard output") == 1, done


def test_names_that_another_site_may_own(serve, tmp_path):
    server = serve(tmp_path / "root", "--allowed-hosts", "mill.example,other.example")
    infer = f"{server.url}/v2/models/half_plus_two"
    for host, status in [("evil.example", 403), ("mill.example", 200), ("other.example:8501", 200), ("localhost", 200)]:
        assert requests.get(infer, headers={"Host": host}, timeout=60).status_code == status, host


def test_an_open_server_says_what_anyone_can_do(tmp_path):
    (tmp_path / "root").mkdir()
    server = Server(tmp_path / "root", log=tmp_path / "log", host="0.0.0.0").wait_ready()
    assert server.stop() == 0
    assert "WARN" in server.log_text() and "anyone who reaches this address can" in server.log_text()


def test_load_by_command_shows_the_key(serve, tmp_path):
    server = serve(tmp_path / "root", "--api-key", "s3cret")
    load = [str(BINARY), "models", "load", "half_plus_two", "--url", server.url]
    refused = subprocess.run(load, text=True, capture_output=True, timeout=60, check=False)
    assert refused.returncode == 1 and "--admin-key" in refused.stderr, refused.stderr
    done = subprocess.run([*load, "--admin-key", "s3cret"], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
