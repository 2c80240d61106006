"""A server with real models under light traffic, and a headless Chromium that opens its page."""

import concurrent.futures
import pathlib
import shutil
import sys
import threading

import numpy as np
import pytest
import tritonclient.http
from selenium import webdriver

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

from millpond import BINARY, Server, drop_in, publish  # noqa: E402
from models import MODELS, half_plus_two, stamped  # noqa: E402
from screen import BROKEN, DESKTOP, PICTURES, SWAPPED, UNLOADED, look  # noqa: E402

# Pretrained models under traffic, beside a model that is swapped and one that is unloaded.
REAL = ("text_direction", "voice_step")


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    assert BINARY.exists(), f"no {BINARY}: run `make build`, or `make tests-built` for the tests' own"
    assert shutil.which("chromium") and shutil.which("chromedriver"), "no Chromium: run `make test-page`"
    PICTURES.mkdir(parents=True, exist_ok=True)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    root, scratch = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("sources")
    for model in MODELS:
        if model.name in REAL:
            publish(model.source(scratch), root / model.name, 1)
    publish(stamped(scratch / "stamped.onnx", 1), root / SWAPPED, 1)
    drop_in(half_plus_two(scratch / "half_plus_two.onnx"), root / UNLOADED, 1)
    (root / BROKEN / "1").mkdir(parents=True)
    (root / BROKEN / "1" / "model.onnx").write_text("no model")
    server = Server(root, log=tmp_path_factory.mktemp("log") / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


def ask(server: Server, model: str, arrays: dict[str, np.ndarray], stop: threading.Event) -> None:
    """Sends requests with pauses until stopped. A model that is unloaded meanwhile is not an error."""
    inputs = []
    with tritonclient.http.InferenceServerClient(server.http) as client:
        for name, array in arrays.items():
            kind = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
            inputs.append(tritonclient.http.InferInput(name, array.shape, kind).set_data_from_numpy(array))
        while not stop.wait(0.02):
            try:
                client.infer(model, inputs)
            except tritonclient.http.InferenceServerException as error:
                assert model == UNLOADED, error


@pytest.fixture(scope="session")
def traffic(server):
    stop = threading.Event()
    one = {"x": np.array([1, 2, 5], np.float32)}
    asked = {model.name: model.inputs() for model in MODELS if model.name in REAL} | {SWAPPED: one, UNLOADED: one}
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        callers = [pool.submit(ask, server, model, arrays, stop) for model, arrays in asked.items()]
        yield
        stop.set()
        for caller in callers:
            caller.result(60)


@pytest.fixture(scope="session")
def chromium():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    # Root, as in a container, runs Chromium without a sandbox; /dev/shm may be small there.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """Resets Chromium before each test: a desktop window, light scheme, no open page."""
    chromium.get("about:blank")
    look(chromium, DESKTOP)
    chromium.get_log("browser")
    chromium.get_log("performance")
    yield chromium
    # An open page would hold a connection to a server that the next test may stop.
    chromium.get("about:blank")
