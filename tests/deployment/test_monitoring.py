"""The alerts and the dashboard against the metrics of a live server, and the compose file."""

import collections
import json
import pathlib
import re
import subprocess
import sys

import pytest
import requests
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from millpond import REPOSITORY, Server, publish  # noqa: E402
from models import half_plus_two  # noqa: E402
from prometheus_text import samples  # noqa: E402

FILES = REPOSITORY / "packaging/kubernetes/millpond/files"
COMPOSE = REPOSITORY / "packaging/compose"
PROMTOOL = REPOSITORY / ".cache/tools/promtool/usr/bin/promtool"
SELECTOR = re.compile(r"\b(millpond_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)"([^"]*)"')
# Prometheus adds these labels.
TARGET_LABELS = {"instance", "job"}


@pytest.fixture(scope="session")
def live(tmp_path_factory) -> dict[str, list[dict[str, str]]]:
    """Returns the labels of every series of a server that has answered, failed, swapped and stored points."""
    scratch = tmp_path_factory.mktemp("live")
    model = half_plus_two(scratch / "model.onnx")
    broken = scratch / "models/broken/1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no model")
    publish(model, scratch / "models/half", 1)
    server = Server(scratch / "models", "--load-retries", "0", log=scratch / "server.log").wait_ready()
    try:
        server.wait_version("half", 1)
        publish(model, scratch / "models/half", 2)
        server.wait_version("half", 2)
        server.wait_version("half", 1, "END")
        assert server.infer("half", [1.0]).status_code == 200
        tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0]}
        answer = requests.post(f"{server.url}/v2/models/half/infer", json={"inputs": [tensor]}, timeout=20)
        assert answer.status_code == 400, answer.text
        server.wait_refused("broken", 1)
        settings = {"vectors": {"size": 4, "distance": "Dot"}}
        answer = requests.put(f"{server.url}/collections/points", json=settings, timeout=20)
        assert answer.status_code == 200, answer.text
        series = collections.defaultdict(list)
        for name, labels, _ in samples(requests.get(f"{server.url}/metrics", timeout=20).text):
            series[name].append(labels)
        return series
    finally:
        assert server.stop() == 0, server.log_text()


def expressions() -> list[str]:
    """Lists every query of the alerts and the dashboard."""
    rules = yaml.safe_load((FILES / "alerts.yaml").read_text())
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return found + [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]


@pytest.mark.parametrize("expression", expressions())
def test_queries_name_series_that_exist(live, expression):
    selectors = SELECTOR.findall(expression)
    for name, matchers in selectors:
        assert name in live, f"no metric {name}"
        for label, operator, text in MATCHER.findall(matchers):
            if label in TARGET_LABELS:
                continue
            values = {labels.get(label) for labels in live[name]}
            assert values != {None}, f"{name} has no label {label}"
            if operator == "=":
                assert text in values, f"no {name} has {label}={text}, only {values}"
    assert selectors or expression.startswith("up{")


def test_legends_name_labels_that_exist(live):
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            name = SELECTOR.search(target["expr"])[1]
            known = set().union(*live[name]) | TARGET_LABELS
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, (panel["title"], known)


def test_promtool_accepts_alerts_and_configuration(tmp_path):
    rules = subprocess.run([PROMTOOL, "check", "rules", FILES / "alerts.yaml"], capture_output=True, text=True)
    assert rules.returncode == 0, rules.stdout + rules.stderr
    # The container has the rules beside the configuration.
    for file in (FILES / "alerts.yaml", COMPOSE / "prometheus.yml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    checked = subprocess.run([PROMTOOL, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_raises_the_alerts():
    test = subprocess.run([PROMTOOL, "test", "rules", "alerts_test.yaml"], cwd=pathlib.Path(__file__).parent,
                          capture_output=True, text=True)  # fmt: skip
    assert test.returncode == 0, test.stdout + test.stderr


def test_files_that_compose_mounts_exist():
    compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    bound = [volume.split(":") for service in compose["services"].values() for volume in service["volumes"]]
    files = [source for source, *_ in bound if source.startswith((".", "/"))]
    assert len(files) == 5
    for file in files:
        assert (COMPOSE / file).is_file(), file
    named = {source for source, *_ in bound if re.fullmatch(r"\w+", source)}
    assert named == set(compose["volumes"])
    for file in (COMPOSE / "grafana").iterdir():
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


def test_compose_names_the_version_of_this_tree():
    version = re.search(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
    compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    assert compose["services"]["millpond"]["image"] == f"${{MILLPOND_IMAGE:-millpond:{version}}}"
