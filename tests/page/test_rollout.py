"""A rollout in the view of a model: its figures, and the buttons that promote and withdraw the new version."""

import pytest
import requests
from millpond import Server, publish
from models import stamped
from screen import SWAPPED, in_model, js, open_model, wait

SETTINGS = '[rollout]\ntraffic = 0.5\npromote = "hand"\n'
REQUESTS = 20


def rollout(server) -> dict:
    answer = requests.get(f"{server.url}/v2/models/{SWAPPED}/rollout", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def rolling(tmp_path):
    """A server that gives version 2 half of the requests."""
    root = tmp_path / "root"
    publish(stamped(tmp_path / "first.onnx", 1), root / SWAPPED, 1)
    (root / SWAPPED / "millpond.toml").write_text(SETTINGS)
    server = Server(root, log=tmp_path / "server.log").wait_ready()
    publish(stamped(tmp_path / "second.onnx", 2), root / SWAPPED, 2)
    wait(lambda: rollout(server)["state"] == "running", "the rollout runs")
    for _ in range(REQUESTS):
        assert server.infer(SWAPPED, [1.0]).status_code == 200
    yield server
    assert server.stop() == 0, server.log_text()


def choose(browser, server, words: str) -> None:
    """Presses a button of the rollout, and agrees."""
    open_model(browser, server.url, SWAPPED)
    button = "document.querySelector(`.rollout button[aria-label='${arguments[0]}']`)"
    wait(lambda: js(browser, button, words), f"the button {words}")
    js(browser, f"{button}.click()", words)
    wait(lambda: js(browser, "document.getElementById('question').open"), "it asks first")
    assert rollout(server)["state"] == "running", "nothing happens before the answer"
    js(browser, "document.getElementById('question-yes').click()")


def answers(server) -> set[float]:
    return {server.infer(SWAPPED, [1.0]).json()["outputs"][0]["data"][0] for _ in range(8)}


def test_a_rollout_shows_its_figures(browser, rolling):
    open_model(browser, rolling.url, SWAPPED)
    wait(lambda: "running" in in_model(browser, SWAPPED, ".rollout .chip"), "the state")
    assert "50 % of requests" in " ".join(in_model(browser, SWAPPED, ".rollout .chip")).replace("\u00a0", " ")
    heads = in_model(browser, SWAPPED, ".rollout thead th")
    assert heads == ["", "stable v1", "candidate v2"]
    counts = in_model(browser, SWAPPED, ".rollout tbody tr:first-child td")
    assert sum(int(count) for count in counts) == REQUESTS
    assert answers(rolling) == {2.0, 3.0}


def test_a_version_is_promoted(browser, rolling):
    choose(browser, rolling, "Promote version 2")
    wait(lambda: rollout(rolling)["state"] == "promoted", "the promotion")
    wait(lambda: "promoted" in in_model(browser, SWAPPED, ".rollout .chip"), "the page shows it")
    assert answers(rolling) == {3.0}
    assert js(browser, "document.querySelectorAll('.rollout button').length") == 0


def test_a_version_is_rolled_back(browser, rolling):
    choose(browser, rolling, "Roll back version 2")
    wait(lambda: rollout(rolling)["state"] == "rolled_back", "the rollback")
    wait(lambda: "rolled back" in in_model(browser, SWAPPED, ".rollout .chip"), "the page shows it")
    assert "an administrator withdrew it" in " ".join(in_model(browser, SWAPPED, ".rollout .problem"))
    assert answers(rolling) == {2.0}
