"""Shared parts of the tests of alerts and dashboard: files, queries, and a server that does everything they show."""

import contextlib
import json
import pathlib
import re
import sys
import threading
from collections.abc import Iterator

import requests
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from millpond import REPOSITORY, Server, publish  # noqa: E402
from models import half_plus_two  # noqa: E402

FILES = REPOSITORY / "packaging/kubernetes/millpond/files"
COMPOSE = REPOSITORY / "packaging/compose"
PROMETHEUS = REPOSITORY / ".cache/tools/promtool/usr/bin"
BAD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0]}]}
REQUEST_TIMEOUT_S = 60


def alerts() -> dict[str, str]:
    """Returns the query of each alert."""
    rules = yaml.safe_load((FILES / "alerts.yaml").read_text())
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def dashboard() -> dict:
    return json.loads((FILES / "dashboard.json").read_text())


def panels() -> list[tuple[str, str]]:
    """Returns the title and the query of each line of the dashboard."""
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"]]


def variables() -> list[str]:
    """Returns the queries of the dashboard's variables."""
    return [entry["definition"] for entry in dashboard()["templating"]["list"] if "definition" in entry]


class Subject:
    """A server with a good and a broken model, and its callers."""

    def __init__(self, scratch: pathlib.Path):
        self.models = scratch / "models"
        self.model = half_plus_two(scratch / "model.onnx")
        broken = self.models / "broken/1"
        broken.mkdir(parents=True)
        (broken / "model.onnx").write_bytes(b"no model")
        publish(self.model, self.models / "half", 1)
        self.server = Server(self.models, "--load-retries", "0", log=scratch / "server.log").wait_ready()

    def swap(self, version: int) -> None:
        """Publishes a version and waits until the one before it is released."""
        publish(self.model, self.models / "half", version)
        self.server.wait_version("half", version)
        self.server.wait_version("half", version - 1, "END")

    def use(self) -> None:
        """Sends a good and a bad request, one to the broken model, and a query of points."""
        assert self.server.infer("half", [1.0]).status_code == 200
        assert self.server.infer("broken", [1.0]).status_code == 503
        url = self.server.url
        assert requests.post(f"{url}/v2/models/half/infer", json=BAD, timeout=REQUEST_TIMEOUT_S).status_code == 400
        query = {"query": [1.0, 0.0, 0.0, 0.0]}
        answer = requests.post(f"{url}/collections/points/points/query", json=query, timeout=REQUEST_TIMEOUT_S)
        assert answer.status_code == 200, answer.text


@contextlib.contextmanager
def subject(scratch: pathlib.Path) -> Iterator[Subject]:
    """Runs a server that has answered, failed and stored points."""
    started = Subject(scratch)
    server = started.server
    try:
        server.wait_version("half", 1)
        server.wait_refused("broken", 1)
        settings = {"vectors": {"size": 4, "distance": "Dot"}}
        answer = requests.put(f"{server.url}/collections/points", json=settings, timeout=REQUEST_TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        started.use()
        yield started
    finally:
        assert server.stop() == 0, server.log_text()


@contextlib.contextmanager
def used(running: Subject) -> Iterator[None]:
    """Sends requests from a thread meanwhile."""
    stop = threading.Event()
    failures = []

    def work() -> None:
        while not stop.wait(0.02):
            try:
                running.use()
            except Exception as failure:  # noqa: BLE001
                failures.append(failure)
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(REQUEST_TIMEOUT_S)
    assert not failures, failures


def filled(expression: str) -> str:
    """Puts values in the place of Grafana's variables."""
    return re.sub(r"\$(instance|model)\b", ".*", expression).replace("$__rate_interval", "10s")
