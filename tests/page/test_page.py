"""The live page in headless Chromium: desktop, dark scheme, phone, keyboard."""

import json

import millpond
import pytest
from models import stamped
from screen import (
    CONTRASTS,
    DESKTOP,
    GRAPHIC_CONTRAST_MIN,
    PHONE,
    PICTURES,
    SWAPPED,
    TEXT_CONTRAST_MIN,
    UNLOADED,
    connection,
    in_card,
    js,
    look,
    open_page,
    picture,
    wait,
)
from selenium.webdriver import ActionChains, Keys

pytestmark = pytest.mark.usefixtures("traffic")

TABS_MAX = 80

def test_no_other_host_and_no_error(browser, server):
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, ".percentiles td"), "a model is shown")
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= 5
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_percentiles_numbers_and_threads_appear(browser, server):
    open_page(browser, server.url)

    def percentiles() -> list[float]:
        found = in_card(browser, SWAPPED, ".percentiles tbody tr:first-child td")
        return [float(value) for value in found] if found and "–" not in found else []

    found = wait(percentiles, "every percentile has a number")
    assert len(found) == 6
    assert all(value > 0 for value in found)
    assert found == sorted(found), "percentiles rise"
    wait(lambda: in_card(browser, SWAPPED, ".series-label"), "the lines are labelled")
    assert len(in_card(browser, SWAPPED, ".series")) == 5
    numbers = dict(zip(in_card(browser, SWAPPED, ".numbers dt"), in_card(browser, SWAPPED, ".numbers dd"), strict=True))
    assert float(numbers["requests/s"]) > 0
    threads = js(browser, "[...document.querySelectorAll('#threads th')].map((e) => e.textContent)")
    assert {"connection", "worker", "lifecycle"} <= set(threads)
    assert js(browser, "document.querySelectorAll('#homes tr').length") >= 4
    described = js(browser, "document.querySelector(`[data-model='${arguments[0]}'] .chart`).ariaLabel", SWAPPED)
    assert "p999" in described


def test_a_page_opened_later_shows_the_history(browser, server):
    open_page(browser, server.url)
    joined = "[...document.querySelectorAll(`[data-model='${arguments[0]}'] .series`)].map((e) => e.getAttribute('d'))"
    assert all("L" in path for path in wait(lambda: js(browser, joined, SWAPPED), "lines")), "more than one second at once"


def test_a_swap_is_marked(browser, server, tmp_path):
    open_page(browser, server.url)
    version = max(server.versions(SWAPPED)) + 1
    millpond.publish(stamped(tmp_path / "stamped.onnx", version), server.root / SWAPPED, version)
    words = f"v{version - 1}→v{version}"
    wait(lambda: words in in_card(browser, SWAPPED, ".mark-label"), f"a mark {words}")
    assert js(browser, "document.querySelectorAll(`[data-model='${arguments[0]}'] .mark`).length", SWAPPED) >= 2
    wait(lambda: f"v{version} ready" in in_card(browser, SWAPPED, ".chip"), "the new version is ready")


def focused(browser) -> str:
    return js(browser, "document.activeElement.ariaLabel || document.activeElement.textContent.trim()")


def press(browser, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def test_by_keyboard_alone(browser, server):
    open_page(browser, server.url)
    wait(lambda: "v1 ready" in in_card(browser, UNLOADED, ".chip"), "the model serves")
    for _ in range(TABS_MAX):
        press(browser, Keys.TAB)
        if focused(browser) == f"Unload {UNLOADED}":
            break
    assert focused(browser) == f"Unload {UNLOADED}"
    assert js(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"

    press(browser, Keys.ENTER)
    wait(lambda: js(browser, "document.getElementById('confirm').open"), "it asks first")
    assert focused(browser) == "Keep it", "the harmless answer comes first"
    press(browser, Keys.ESCAPE)
    wait(lambda: not js(browser, "document.getElementById('confirm').open"), "Escape means no")
    assert focused(browser) == f"Unload {UNLOADED}", "the focus is back where it was"
    assert server.versions(UNLOADED)[1]["state"] == "AVAILABLE"

    press(browser, Keys.ENTER)
    wait(lambda: js(browser, "document.getElementById('confirm').open"), "it asks again")
    press(browser, Keys.TAB, Keys.ENTER)
    wait(lambda: "unloaded" in in_card(browser, UNLOADED, ".chip"), "the page says unloaded")
    told = "document.querySelector('#messages[aria-live] .message')?.textContent"
    assert f"{UNLOADED} is unloaded" in wait(lambda: js(browser, told), "a message")
    assert server.infer(UNLOADED, [1.0]).status_code != 200

    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    assert focused(browser) == f"Load {UNLOADED}"
    press(browser, Keys.ENTER)
    wait(lambda: "v1 ready" in in_card(browser, UNLOADED, ".chip"), "the page says ready")
    server.assert_serving()


def test_a_second_is_chosen_with_the_arrows(browser, server):
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, ".series-label"), "there are values")
    js(browser, "document.querySelector(`[data-model='${arguments[0]}'] .chart`).focus()", SWAPPED)
    press(browser, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    name = ".percentiles tbody tr:first-child th"
    assert "ago" in in_card(browser, SWAPPED, name)[0]
    press(browser, Keys.ESCAPE)
    assert in_card(browser, SWAPPED, name) == ["last second"]


def test_refusals_of_the_server_are_shown(browser, server):
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, "button"), "buttons")
    # The call names an unknown model, as if it had been removed since the page was drawn.
    browser.execute_script("const post = fetch; window.fetch = (path, options) => post(path.replace('stamped', 'nowhere'), options)")
    js(browser, "document.querySelector(`[data-model='${arguments[0]}'] .load`).click()", SWAPPED)
    told = wait(lambda: js(browser, "document.querySelector('.message.bad')?.textContent"), "a message")
    assert "was not loaded" in told
    assert "nowhere" in told, "the server's own reason"


def test_a_phone_needs_no_sideways_scrolling(browser, server):
    look(browser, PHONE)
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, ".series-label"), "there are values")
    assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
    beyond = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')).length"
    assert js(browser, beyond) == 0
    small = "[...document.querySelectorAll('main button')].filter((e) => e.getBoundingClientRect().height < 40).length"
    assert js(browser, small) == 0, "buttons are large enough for a finger"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_legible(browser, server, scheme):
    look(browser, DESKTOP, scheme)
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, ".series-label"), "there are values")
    found = browser.execute_script(CONTRASTS)
    assert len(found["texts"]) > 50
    assert [entry for entry in found["texts"] if entry[1] < TEXT_CONTRAST_MIN] == []
    assert {line for line, _ in found["lines"]} >= {"series p50", "series p999", "mark"}
    assert [entry for entry in found["lines"] if entry[1] < GRAPHIC_CONTRAST_MIN] == []


def test_dark_is_dark(browser, server):
    def back(scheme: str) -> list[str]:
        look(browser, DESKTOP, scheme)
        return js(browser, "['body', '.panel'].map((s) => getComputedStyle(document.querySelector(s)).backgroundColor)")

    open_page(browser, server.url)
    light, dark = back("light"), back("dark")
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert sum(int(part) for part in dark[0][4:-1].split(",")) < 150


def test_button_names_are_unique(browser, server):
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, "button"), "buttons")
    names = [button.accessible_name for button in browser.find_elements("css selector", "main button")]
    assert all(names)
    assert len(names) == len(set(names))


def test_reduced_motion_is_respected(browser, server):
    look(browser, DESKTOP, motion="reduce")
    open_page(browser, server.url)
    moving = "[...document.querySelectorAll('*')].map((e) => getComputedStyle(e)).filter((s) => s.animationName !== 'none' || s.transitionDuration !== '0s').length"
    assert js(browser, moving) == 0


def test_it_reconnects(browser, tmp_path, monkeypatch):
    # Both servers get the same two models.
    ports = millpond.free_ports()
    monkeypatch.setattr(millpond, "free_ports", lambda: ports)
    (tmp_path / "root").mkdir()
    server = millpond.Server(tmp_path / "root", log=tmp_path / "first.log").wait_ready()
    open_page(browser, server.url)
    assert js(browser, "document.getElementById('empty').checkVisibility()")
    assert "millpond serve NAME=DIR" in js(browser, "document.getElementById('empty').textContent")
    assert server.stop() == 0
    wait(lambda: connection(browser) == "reconnecting", "the page knows that nobody answers")
    server = millpond.Server(tmp_path / "root", log=tmp_path / "second.log").wait_ready()
    wait(lambda: connection(browser) == "live", "the page found the new server")
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("desktop-light", DESKTOP, "light"), ("desktop-dark", DESKTOP, "dark"), ("phone", PHONE, "light")]
)
def test_screenshots(browser, server, name, size, scheme):
    look(browser, size, scheme)
    open_page(browser, server.url)
    wait(lambda: in_card(browser, SWAPPED, ".series-label"), "there are values")
    path = PICTURES / f"{name}.png"
    picture(browser, path)
    assert path.stat().st_size > 20_000
