"""A rollout in the view of a model: its start by a form, its figures, and the buttons that end it."""

import pathlib

import pytest
import requests
from keys import new_key
from millpond import Server, publish
from models import stamped
from screen import SWAPPED, connection, in_model, js, log_in, open_model, open_page, wait

SETTINGS = '[rollout]\ntraffic = 0.5\npromote = "hand"\n'
# Version 2 is on disk and does not serve: an administrator starts its rollout.
BY_HAND = 'policy = "1"\n[rollout]\ntraffic = 0.25\npromote = "hand"\n'
REQUESTS = 20
# A time in nanoseconds, which a number of JavaScript would round.
LONG_VERSION = 1_764_000_000_123_456_789


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


def stage(tmp_path: pathlib.Path, newer: int = 2) -> pathlib.Path:
    """Writes version 1 of a model, which serves, and a newer one. Returns the root."""
    root = tmp_path / "root"
    for version in (1, newer):
        publish(stamped(tmp_path / f"{version}.onnx", min(version, 2)), root / SWAPPED, version)
    (root / SWAPPED / "millpond.toml").write_text(BY_HAND)
    return root


@pytest.fixture
def staged(tmp_path):
    server = Server(stage(tmp_path), log=tmp_path / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


def open_form(browser, server) -> None:
    """Opens the form of the rollout and waits until it has the settings of the model."""
    open_model(browser, server.url, SWAPPED)
    wait(lambda: js(browser, "document.querySelector('#rollout-share').value"), "the form is filled")
    browser.execute_script("document.querySelector('.rollout details').open = true")


def fill(browser, **values: str) -> None:
    """Sets fields of the form as a user does."""
    change = "const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input', { bubbles: true }))"
    for name, value in values.items():
        browser.execute_script(change, f"#rollout-{name}", value)


def send(browser, agree: bool = True) -> None:
    """Sends the form, and agrees to its question."""
    browser.execute_script("document.querySelector('.rollout fieldset button').click()")
    if agree:
        wait(lambda: js(browser, "document.getElementById('question').open"), "it asks first")
        browser.execute_script("document.getElementById('question-yes').click()")


def problem(browser) -> str:
    return js(browser, "document.querySelector('#rollout-problem').textContent")


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
    # The times of versions are those of whole requests.
    assert in_model(browser, SWAPPED, ".rollout tbody th") == ["requests", "errors", "p99 of runs, ms"]
    counts = in_model(browser, SWAPPED, ".rollout tbody tr:first-child td")
    assert sum(int(count) for count in counts) == REQUESTS
    assert answers(rolling) == {2.0, 3.0}


def test_the_stable_version_is_the_one_that_serves(browser, rolling):
    open_page(browser, rolling.url)
    wait(lambda: in_model(browser, SWAPPED, ".name .chip"), "the model is shown")
    assert in_model(browser, SWAPPED, ".name .chip") == ["v1"]
    browser.get(f"{rolling.url}/try?model={SWAPPED}")
    options = "[...document.getElementById('version').options].map((option) => option.textContent)"
    wait(lambda: len(js(browser, options)) == 3, "the versions")
    assert js(browser, options) == ["rollout (1 or 2)", "2", "1"]


def test_a_button_keeps_the_focus_while_figures_change(browser, rolling):
    open_model(browser, rolling.url, SWAPPED)
    button = "document.querySelector(`.rollout button[aria-label='Promote version 2']`)"
    wait(lambda: js(browser, button), "the button")
    browser.execute_script(f"{button}.focus()")
    counts = lambda: in_model(browser, SWAPPED, ".rollout tbody tr:first-child td")  # noqa: E731
    before = counts()
    answers(rolling)
    wait(lambda: counts() not in ([], before), "newer figures")
    assert js(browser, "document.activeElement.ariaLabel") == "Promote version 2"


def test_a_version_is_promoted(browser, rolling):
    choose(browser, rolling, "Promote version 2")
    wait(lambda: rollout(rolling)["state"] == "promoted", "the promotion")
    wait(lambda: "promoted" in in_model(browser, SWAPPED, ".rollout .chip"), "the page shows it")
    assert "v1 → v2" in in_model(browser, SWAPPED, ".rollout .chip")
    assert in_model(browser, SWAPPED, ".rollout thead th") == ["", "stable v1", "candidate v2"]
    assert answers(rolling) == {3.0}
    assert js(browser, "document.querySelectorAll('.rollout-state button').length") == 0


def test_a_version_withdrawn_without_a_rollout(browser, rolling):
    for action, state in (("promote", "promoted"), ("rollback", "rolled_back")):
        url = f"{rolling.url}/v2/models/{SWAPPED}/rollout"
        requests.post(url, json={"action": action}, timeout=60).raise_for_status()
        wait(lambda: rollout(rolling)["state"] == state, state)  # noqa: B023
    wait(lambda: rollout(rolling)["stable"] == 1, "version 1 serves again")
    open_model(browser, rolling.url, SWAPPED)
    wait(lambda: in_model(browser, SWAPPED, ".rollout thead th") == ["", "stable v1", "candidate v2"], "the versions")


def test_a_version_is_rolled_back(browser, rolling):
    choose(browser, rolling, "Roll back version 2")
    wait(lambda: rollout(rolling)["state"] == "rolled_back", "the rollback")
    wait(lambda: "rolled back" in in_model(browser, SWAPPED, ".rollout .chip"), "the page shows it")
    assert "an administrator withdrew it" in " ".join(in_model(browser, SWAPPED, ".rollout .problem"))
    assert answers(rolling) == {2.0}


def test_a_rollout_is_started_and_changed(browser, staged):
    open_form(browser, staged)
    assert in_model(browser, SWAPPED, ".rollout summary") == ["Start a rollout"]
    assert js(browser, "document.querySelector('#rollout-share').value") == "0.25", "the share of the settings"
    [ending] = in_model(browser, SWAPPED, ".rollout .ending")
    assert "promoted when an administrator requests it" in ending and "p99 is 1.2 times" in ending
    fill(browser, version="2", share="0.5")
    send(browser, agree=False)
    wait(lambda: js(browser, "document.getElementById('question').open"), "it asks first")
    assert "50 %" in js(browser, "document.getElementById('question-text').textContent")
    assert rollout(staged)["state"] == "none", "nothing happens before the answer"
    browser.execute_script("document.getElementById('question-yes').click()")
    wait(lambda: rollout(staged)["state"] == "running", "the rollout runs")
    found = rollout(staged)
    assert (found["stable"], found["candidate"], found["traffic"]) == (1, 2, 0.5)
    wait(lambda: "running" in in_model(browser, SWAPPED, ".rollout .chip"), "the page shows it")
    assert answers(staged) == {2.0, 3.0}

    assert in_model(browser, SWAPPED, ".rollout summary") == ["Change the share"]
    assert not js(browser, "document.querySelector('#rollout-version').checkVisibility()"), "the version stays"
    fill(browser, share="0.75")
    wait(lambda: in_model(browser, SWAPPED, ".rollout fieldset button") == ["Change…"], "the start has ended")
    send(browser)
    wait(lambda: rollout(staged)["traffic"] == 0.75, "the larger share")

    choose(browser, staged, "Roll back version 2")
    wait(lambda: rollout(staged)["state"] == "rolled_back", "the rollback")
    wait(lambda: in_model(browser, SWAPPED, ".rollout summary") == ["Start a rollout"], "another can be started")
    assert answers(staged) == {2.0}


def test_a_long_version_keeps_all_digits(browser, tmp_path):
    server = Server(stage(tmp_path, LONG_VERSION), log=tmp_path / "server.log").wait_ready()
    open_form(browser, server)
    fill(browser, version=str(LONG_VERSION), share="0.5")
    send(browser)
    wait(lambda: rollout(server)["state"] == "running", "the rollout runs")
    assert rollout(server)["candidate"] == LONG_VERSION
    heads = ["", "stable v1", f"candidate v{LONG_VERSION}"]
    wait(lambda: in_model(browser, SWAPPED, ".rollout thead th") == heads, "the versions")
    choose(browser, server, f"Promote version {LONG_VERSION}")
    wait(lambda: f"v{LONG_VERSION}" in in_model(browser, SWAPPED, ".chips .chip"), "it serves")
    assert server.stop() == 0, server.log_text()


def test_refusals_of_the_server_are_shown_at_the_form(browser, staged):
    open_form(browser, staged)
    refused = {
        "has no version 9 on disk": {"version": "9", "kind": "traffic", "share": "0.5"},
        "a rollout takes a higher version": {"version": "1", "kind": "traffic", "share": "0.5"},
    }
    for words, values in refused.items():
        fill(browser, **values)
        send(browser)
        wait(lambda: words in problem(browser), words)  # noqa: B023
        wait(lambda: in_model(browser, SWAPPED, ".rollout fieldset button") == ["Start…"], "it can be sent again")
    unsent = {
        "Enter the version": {"version": "", "share": "0.5"},
        "Enter a share": {"version": "2", "share": "0"},
        "For 5 % of the requests": {"version": "2", "share": "5"},
    }
    for words, values in unsent.items():
        fill(browser, **values)
        send(browser, agree=False)
        assert words in problem(browser)
        assert not js(browser, "document.getElementById('question').open"), "there is nothing to agree to"
    assert rollout(staged)["state"] == "none"


def test_a_key_without_the_right_changes_nothing(browser, tmp_path):
    keys = tmp_path / "keys.toml"
    admin = new_key(keys, "--role", "admin", "--name", "operator")
    reader = new_key(keys, "--role", "read", "--name", "viewer")
    server = Server(stage(tmp_path), "--keys", str(keys), log=tmp_path / "server.log").wait_ready()
    started = requests.post(
        f"{server.url}/v2/models/{SWAPPED}/rollout",
        json={"action": "start", "version": 2, "traffic": 0.5},
        headers={"authorization": f"Bearer {admin}"},
        timeout=60,
    )
    assert started.status_code == 200, started.text
    browser.get(server.url)
    log_in(browser, reader)
    wait(lambda: connection(browser) == "live", "the overview")
    open_model(browser, server.url, SWAPPED)
    wait(lambda: "running" in in_model(browser, SWAPPED, ".rollout .chip"), "the state is shown")
    assert "The key viewer has the role read" in in_model(browser, SWAPPED, "#rollout-locked")[0]
    disabled = "[...document.querySelectorAll('.rollout button, .rollout input, .rollout select')].map((e) => e.matches(':disabled'))"
    assert js(browser, disabled) == [True] * 6
    browser.delete_all_cookies()
    assert server.stop() == 0, server.log_text()
