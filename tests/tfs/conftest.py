"""One server with every model for most tests; own servers for tests of flags and configuration."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
from millpond import BINARY  # noqa: E402
from model_server import ModelServer  # noqa: E402
from saved_models import MODELS  # noqa: E402

VERSION = 123


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    assert BINARY.exists(), f"no {BINARY}: run `make build`, or `make tests-built` for the tests' own"


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Returns the directory of each model; its version is 00000123, as in TensorFlow Serving's tests."""
    root = tmp_path_factory.mktemp("saved")
    for name, make in MODELS.items():
        make(root / name / f"{VERSION:08}")
    return {name: root / name for name in MODELS}


@pytest.fixture(scope="session")
def signatures(saved):
    """Returns a function that gives a model's signature as TensorFlow runs it in Python."""
    loaded = {}

    def find(model: str, signature: str = "serving_default"):
        if model not in loaded:
            loaded[model] = tf.saved_model.load(str(saved[model] / f"{VERSION:08}"))
        return loaded[model].signatures[signature]

    return find


def config_text(**directories: pathlib.Path) -> str:
    """Returns a model_config_file."""
    entry = '  config {{ name: "{}" base_path: "{}" model_platform: "tensorflow" }}\n'
    return "model_config_list {\n" + "".join(entry.format(*item) for item in directories.items()) + "}\n"


@pytest.fixture(scope="session")
def server(saved, tmp_path_factory):
    """Serves every model under its name, from a model_config_file."""
    directory = tmp_path_factory.mktemp("server")
    config = directory / "models.config"
    config.write_text(config_text(**saved))
    server = ModelServer(f"--model_config_file={config}", directory=directory)
    for name in saved:
        server.wait_available(name)
    yield server
    assert server.stop() == 0, server.log_text()[-4000:]


@pytest.fixture
def start(tmp_path):
    """Starts servers for one test: `start("--flag=value", ...)`."""
    started = []

    def run(*flags: str, **options) -> ModelServer:
        server = ModelServer(*flags, directory=tmp_path / f"server-{len(started)}", **options)
        started.append(server)
        return server

    yield run
    codes = [server.stop() for server in started]
    assert codes == [0] * len(codes), [server.log_text()[-4000:] for server in started]
