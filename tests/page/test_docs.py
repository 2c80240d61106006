"""The page of the API in headless Chromium: it lists the calls, sends one and shows the answer."""

import json

import pytest
import requests
from screen import CONTRASTS, DESKTOP, PHONE, PICTURES, TEXT_CONTRAST_MIN, UNLOADED, js, look, picture, wait

pytestmark = pytest.mark.usefixtures("traffic")

TABLET = (660, 900)
INFER = "document.getElementById('infer')"


def open_docs(browser, url: str, call: str = "") -> None:
    browser.get(f"{url}/docs{call}")
    wait(lambda: js(browser, "document.querySelectorAll('.call').length") > 80, "the calls are listed")


def test_a_call_is_sent_and_its_answer_shown(browser, server):
    open_docs(browser, server.url, "#infer")
    wait(lambda: js(browser, f"{INFER}.open && {INFER}.querySelector('textarea').value.includes('FP32')"), "it is open")
    assert UNLOADED in js(browser, f"{INFER}.querySelector('.curl').textContent")
    js(browser, f"{INFER}.querySelector('.send').click()")
    status = wait(lambda: js(browser, f"{INFER}.querySelector('.result .status')?.textContent"), "an answer is shown")
    assert status.startswith("200 OK")
    answer = json.loads(js(browser, f"{INFER}.querySelector('.result pre').textContent"))
    assert answer["outputs"][0]["data"] == [2.5, 3.0, 4.5]
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_a_key_with_an_invisible_character_is_refused(browser, server):
    open_docs(browser, server.url, "#infer")
    wait(lambda: js(browser, f"{INFER}.querySelector('.send')"), "it is open")
    enter = "const key = document.getElementById('key'); key.value = arguments[0]; key.dispatchEvent(new Event('input'))"
    browser.execute_script(enter, "key\u200b")
    assert "api-key: KEY" in js(browser, f"{INFER}.querySelector('.curl').textContent")
    browser.execute_script(f"const send = {INFER}.querySelector('.send'); send.focus(); send.click()")
    problem = wait(lambda: js(browser, f"{INFER}.querySelector('.result .problem')?.textContent"), "the error")
    assert problem.startswith("The value of api-key has a character")
    browser.execute_script(enter, "")
    js(browser, f"{INFER}.querySelector('.send').click()")
    wait(lambda: js(browser, f"{INFER}.querySelector('.result .status')"), "an answer")
    assert js(browser, "document.activeElement.className") == "send", "the button keeps the focus"


def test_an_answer_keeps_the_digits_of_numbers(browser, server):
    """A double cannot hold 2^53 + 1, and JavaScript writes 1.0 as 1."""
    collection = f"{server.url}/collections/digits"
    vectors = {"vectors": {"size": 1, "distance": "Dot"}}
    assert requests.put(collection, json=vectors, timeout=60).status_code == 200
    points = {"points": [{"id": 9007199254740993, "vector": [1], "payload": {"price": 1.0}}]}
    assert requests.put(f"{collection}/points", json=points, timeout=60).status_code == 200
    open_docs(browser, server.url, "#fetchPoint")
    fields = "document.querySelectorAll('#fetchPoint .parameters input')"
    wait(lambda: js(browser, f"{fields}.length") >= 2, "it is open")
    browser.execute_script(f"const [name, id] = {fields}; name.value = 'digits'; id.value = '9007199254740993'")
    js(browser, "document.querySelector('#fetchPoint .send').click()")
    shown = "document.querySelector('#fetchPoint .result pre')?.textContent"
    answer = wait(lambda: js(browser, shown), "an answer is shown")
    assert '"id": 9007199254740993' in answer, answer
    assert '"price": 1.0' in answer, answer
    assert requests.delete(collection, timeout=60).status_code == 200


def test_every_call_is_drawn(browser, server):
    open_docs(browser, server.url)
    browser.execute_script("for (const call of document.querySelectorAll('.call')) call.open = true")
    drawn = "document.querySelectorAll('.call .statuses').length"
    wait(lambda: js(browser, f"{drawn} === document.querySelectorAll('.call').length"), "all calls are drawn")
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    calls = sum(method != "parameters" for item in document["paths"].values() for method in item)
    assert js(browser, drawn) == calls
    assert browser.get_log("browser") == []


def test_the_search_leaves_matching_calls(browser, server):
    open_docs(browser, server.url)
    find = "const s = document.getElementById('search'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
    browser.execute_script(find, "speaker verify")
    assert js(browser, "[...document.querySelectorAll('.call:not([hidden])')].map((e) => e.id)") == ["verifySpeaker"]
    browser.execute_script(find, "nothing like this")
    assert js(browser, "document.getElementById('none').hidden") is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser, server, scheme):
    look(browser, DESKTOP, scheme)
    open_docs(browser, server.url, "#infer")
    low = [found for found in browser.execute_script(CONTRASTS)["texts"] if found[1] < TEXT_CONTRAST_MIN]
    assert low == []
    picture(browser, PICTURES / f"docs-{scheme}.png")


@pytest.mark.parametrize("size", [PHONE, TABLET])
def test_a_narrow_screen_needs_no_sideways_scrolling(browser, server, size):
    look(browser, size)
    open_docs(browser, server.url, "#infer")
    wait(lambda: js(browser, f"{INFER}.querySelector('.parameters')"), "the parameters of a call are shown")
    # `innerWidth` grows with a page that is too wide.
    assert js(browser, "document.documentElement.scrollWidth") <= size[0]
    if size == PHONE:
        picture(browser, PICTURES / "docs-phone.png")
