"""One server with every model for most tests; own servers for tests that stop, flood or starve one."""

import pathlib
import resource
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from millpond import BINARY, Server, drop_in, publish  # noqa: E402
from models import MODELS, Reference, half_plus_two  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    assert BINARY.exists(), f"no {BINARY}: run `make build`, or `make tests-built` for the tests' own"
    # Children inherit the limit. The test of idle connections needs it here and in the server.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Returns the ONNX file (or directory) of each model."""
    scratch = tmp_path_factory.mktemp("sources")
    return {model.name: model.source(scratch) for model in MODELS}


@pytest.fixture(scope="session")
def references(sources) -> dict[str, Reference]:
    return {name: Reference(path) for name, path in sources.items()}


@pytest.fixture(scope="session")
def server(tmp_path_factory, sources):
    """Serves every model of models.MODELS, version 1."""
    root = tmp_path_factory.mktemp("repository")
    for model in MODELS:
        place = publish if model.published else drop_in
        place(sources[model.name], root / model.name, 1)
    server = Server(root, log=tmp_path_factory.mktemp("log") / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


@pytest.fixture
def serve(tmp_path):
    """Starts servers for one test: `serve(root, *flags)`. Each serves half_plus_two."""
    started = []

    def start(root: pathlib.Path, *flags: str, ready: bool = True) -> Server:
        if not (root / "half_plus_two").exists():
            drop_in(half_plus_two(tmp_path / "half_plus_two.onnx"), root / "half_plus_two", 1)
        server = Server(root, *flags, log=tmp_path / f"server-{len(started)}.log")
        started.append(server)
        return server.wait_ready() if ready else server

    yield start
    codes = [server.stop() for server in started]
    assert codes == [0] * len(codes), [server.log_text()[-4000:] for server in started]
