"""The alerts and the dashboard against the metrics of a live server, and the compose file."""

import collections
import pathlib
import re
import subprocess

import pytest
import requests
import yaml

from monitored import COMPOSE, FILES, PROMETHEUS, alerts, dashboard, panels, subject, variables
from prometheus_text import samples

PROMTOOL = PROMETHEUS / "promtool"
REPOSITORY = COMPOSE.parents[1]
SELECTOR = re.compile(r"\b(millpond_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)"([^"]*)"')
# Prometheus adds these labels.
TARGET_LABELS = {"instance", "job"}


@pytest.fixture(scope="session")
def live(tmp_path_factory) -> dict[str, list[dict[str, str]]]:
    """Returns the labels of every series of a server that has answered, failed, swapped and stored points."""
    with subject(tmp_path_factory.mktemp("live")) as running:
        running.swap(2)
        # The new version has no series before its first request.
        running.use()
        series = collections.defaultdict(list)
        for name, labels, _ in samples(requests.get(f"{running.server.url}/metrics", timeout=60).text):
            series[name].append(labels)
        return series


def expressions() -> list[str]:
    """Lists every query of the alerts and the dashboard."""
    return [*alerts().values(), *(expression for _, expression in panels()), *variables()]


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
    for panel in dashboard()["panels"]:
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
    # The file with the key exists in the container only.
    command = [PROMTOOL, "check", "config", "--syntax-only", tmp_path / "prometheus.yml"]
    checked = subprocess.run(command, capture_output=True, text=True)
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
    (mounted,) = compose["services"]["prometheus"]["configs"]
    (scrape,) = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    assert mounted["source"] in compose["configs"] and mounted["target"] == scrape["authorization"]["credentials_file"]
    for file in (COMPOSE / "grafana").iterdir():
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


def test_compose_names_the_version_of_this_tree():
    version = re.search(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
    compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    assert compose["services"]["millpond"]["image"] == f"${{MILLPOND_IMAGE:-millpond:{version}}}"
