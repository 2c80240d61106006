"""A server with every ready recogniser, and shared recordings."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

from millpond import BINARY, Server  # noqa: E402

from listening import RECOGNISERS  # noqa: E402
from recordings import CLIPS, speech, wave  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def made() -> None:
    assert BINARY.exists(), f"no {BINARY}: run `make build`, or `make tests-built` for the tests' own"
    assert (RECOGNISERS / "ready").exists(), "no recognisers: run `make recognisers`"
    assert (CLIPS / "ready").exists(), "no recordings: run `make recognisers`"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("server")
    flags = ("--speakers-dir", str(place / "speakers"), "--client-timeout", "120s")
    server = Server(RECOGNISERS, *flags, log=place / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


@pytest.fixture(scope="session")
def long(tmp_path_factory) -> pathlib.Path:
    """A recording of more than two pieces."""
    return wave(tmp_path_factory.mktemp("long") / "long.wav", speech(540))
