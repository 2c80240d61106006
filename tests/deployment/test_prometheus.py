"""The queries of alerts and dashboard in a real Prometheus that scrapes a real server."""

import contextlib
import re
import subprocess
import time

import pytest
import requests
import yaml
from monitored import COMPOSE, FILES, PROMETHEUS, alerts, filled, panels, subject, used, variables

from millpond import free_ports

TIMEOUT_S = 60
# Prometheus is asked again until a query has an answer: rates need two scrapes.
POLL_S = 0.5
CONDITION = re.compile(r" (==|>) [\d.]+$")
VARIABLE = re.compile(r"label_values\((\w+), (\w+)\)")


class Prometheus:
    """A running Prometheus with the configuration of `packaging/compose`, which scrapes faster."""

    def __init__(self, scratch, target: str):
        config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        # Compose writes this for a server without keys.
        (scratch / "key").write_text("none")
        config["scrape_configs"][0]["authorization"]["credentials_file"] = str(scratch / "key")
        (scratch / "prometheus.yml").write_text(yaml.safe_dump(config))
        (scratch / "alerts.yaml").write_bytes((FILES / "alerts.yaml").read_bytes())
        port, _ = free_ports()
        self.url = f"http://127.0.0.1:{port}/api/v1"
        self.log = scratch / "prometheus.log"
        command = [
            PROMETHEUS / "prometheus", f"--config.file={scratch / 'prometheus.yml'}",
            f"--storage.tsdb.path={scratch / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=scratch, stdout=output, stderr=subprocess.STDOUT)

    def get(self, path: str, **parameters: str):
        answer = requests.get(f"{self.url}/{path}", params=parameters, timeout=TIMEOUT_S).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def wait(self, what: str, ask):
        """Waits until `ask` returns something, and returns it."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(requests.ConnectionError):
                if found := ask():
                    return found
            time.sleep(POLL_S)
        raise AssertionError(f"no answer in {TIMEOUT_S} s: {what}\n{self.log.read_text()}")

    def query(self, expression: str) -> list[dict]:
        """Returns the series of a query once it has any."""
        return self.wait(expression, lambda: self.get("query", query=expression)["result"])

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Scrapes a server that is in use and has swapped twice."""
    with subject(tmp_path_factory.mktemp("subject")) as running, used(running):
        started = Prometheus(tmp_path_factory.mktemp("prometheus"), running.server.http)
        try:
            # An increase needs a sample of the counter before it.
            running.swap(2)
            started.query('millpond_swaps_total{model="half"} == 1')
            running.swap(3)
            yield started
        finally:
            started.stop()


@pytest.mark.parametrize(("title", "expression"), panels())
def test_panels_show_series(prometheus, title, expression):
    series = prometheus.query(filled(expression))
    assert all(len(one["value"]) == 2 for one in series), title


@pytest.mark.parametrize("definition", variables())
def test_variables_have_values(prometheus, definition):
    metric, label = VARIABLE.fullmatch(definition).groups()
    assert prometheus.get(f"label/{label}/values", **{"match[]": metric})


@pytest.mark.parametrize(("alert", "expression"), alerts().items())
def test_alerts_compare_series(prometheus, alert, expression):
    compared, conditions = CONDITION.subn("", expression)
    assert conditions == 1
    if alert == "MillpondThrottled":
        # Two scrapes have a slope.
        compared = compared.replace("5m", "10s")
    assert prometheus.query(compared)


def test_the_broken_model_raises_its_alert(prometheus):
    active = lambda: [one for one in prometheus.get("alerts")["alerts"] if one["labels"].get("model") == "broken"]  # noqa: E731
    (alert,) = prometheus.wait("the alert", active)
    assert alert["labels"]["alertname"] == "MillpondVersionFailed"
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == set(alerts())
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]


def test_panels_show_the_right_figures(prometheus):
    labels = lambda series: {(one["metric"]["version"], one["metric"]["state"]) for one in series}  # noqa: E731
    state = dict(panels())["Versions by state"]
    of_half = filled(state).replace('model=~".*"', 'model="half"')
    # The last scrape may be older than the swap.
    prometheus.wait("version 3", lambda: ("3", "ready") in labels(prometheus.get("query", query=of_half)["result"]))
    (rate,) = prometheus.query('sum by (model) (rate(millpond_requests_total{model="half",status="ok"}[10s])) > 0')
    assert rate["metric"] == {"model": "half"}
    # Prometheus stores these from the exposition's own types.
    types = prometheus.get("metadata", metric="millpond_requests") or prometheus.get("metadata", metric="millpond_requests_total")
    assert {entry["type"] for entries in types.values() for entry in entries} == {"counter"}
