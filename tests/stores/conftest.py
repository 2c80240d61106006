"""One S3 server for all tests, which is empty at the start of each."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

import pytest  # noqa: E402
from millpond import BINARY, Server  # noqa: E402
from store import S3Store  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    assert BINARY.exists(), f"no {BINARY}: run `make build`, or `make tests-built` for the tests' own"


@pytest.fixture(scope="session")
def s3_server():
    store = S3Store()
    yield store
    store.close()


@pytest.fixture
def s3(s3_server, monkeypatch, tmp_path):
    """The server, empty, with its credentials in the environment."""
    s3_server.clear()
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILLPOND_CACHE_DIR", str(tmp_path / "scratch"))
    return s3_server


@pytest.fixture
def serve(tmp_path):
    """Starts servers for one test, which share a cache: `serve(source, *flags)`."""
    started = []

    def start(source: str, *flags: str, ready: bool = True) -> Server:
        server = Server(source, *flags, log=tmp_path / f"server-{len(started)}.log")
        started.append(server)
        return server.wait_ready() if ready else server

    yield start
    for server in started:
        if server.process.poll() is None:
            assert server.stop() == 0, server.log_text()[-4000:]
