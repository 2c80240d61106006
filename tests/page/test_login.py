"""The login of the pages, in a real browser with the keyboard only."""

import millpond
import pytest
import requests
from keys import new_key
from models import half_plus_two
from screen import PICTURES, connection, log_in, picture, wait
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("login")
    millpond.drop_in(half_plus_two(scratch / "half_plus_two.onnx"), scratch / "models/half_plus_two", 1)
    file = scratch / "keys.toml"
    key = new_key(file, "--role", "admin", "--name", "operator")
    server = millpond.Server(
        scratch / "models", "--keys", str(file), "--collections-dir", str(scratch / "collections"),
        log=scratch / "server.log",
    ).wait_ready()  # fmt: skip
    yield server, key
    assert server.stop() == 0, server.log_text()


def path(browser) -> str:
    return browser.execute_script("return location.pathname + location.search")


def end_sessions(browser, server) -> None:
    """Deletes the cookies of earlier tests, which a blank page does not have."""
    browser.get(f"{server.url}/page.css")
    browser.delete_all_cookies()


def test_a_browser_logs_in_and_out(browser, locked):
    server, key = locked
    browser.get(f"{server.url}/images?a=b")
    assert path(browser) == "/login?next=%2Fimages%3Fa%3Db"
    assert browser.find_element(By.CSS_SELECTOR, "label[for=key]").text == "Key"
    log_in(browser, "wrong")
    alert = "return document.querySelector('[role=alert]')?.textContent ?? ''"
    wait(lambda: "not a key of this server" in browser.execute_script(alert), "the refusal")
    field = browser.find_element(By.ID, "key")
    assert field.get_attribute("aria-invalid") == "true" and "error" in field.get_attribute("aria-describedby")
    picture(browser, PICTURES / "login-refused.png")
    log_in(browser, key)
    wait(lambda: path(browser) == "/images?a=b", "the page that was asked for")
    [cookie] = browser.get_cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and key not in cookie["value"]
    assert browser.execute_script("return document.cookie") == ""

    browser.get(server.url)
    wait(lambda: connection(browser) == "live", "live events arrive")
    load = "return fetch('/v2/repository/models/half_plus_two/load', {method: 'POST'}).then(a => a.status)"
    assert browser.execute_script(load) == 200, "a change of the own page"
    # The cookie alone is not enough: another page's request has another origin, or none.
    jar = {cookie["name"]: cookie["value"]}
    url = f"{server.url}/v2/repository/models/half_plus_two/load"
    for headers in ({}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert requests.post(url, cookies=jar, headers=headers, timeout=60).status_code == 401, headers

    wait(lambda: browser.find_elements(By.ID, "log-out"), "a button to log out")
    button = browser.find_element(By.ID, "log-out")
    assert "operator" in button.get_attribute("title")
    button.send_keys(Keys.ENTER)
    wait(lambda: path(browser) == "/login", "the form")
    assert requests.get(f"{server.url}/metrics", cookies=jar, timeout=60).status_code == 401, "the session has ended"
    browser.get(server.url)
    assert path(browser) == "/login?next=%2F"


def test_a_login_leads_to_the_view_of_a_model(browser, locked):
    server, key = locked
    end_sessions(browser, server)
    browser.get(f"{server.url}/#model=half_plus_two")
    log_in(browser, "wrong")
    wait(lambda: browser.find_elements(By.CSS_SELECTOR, "[role=alert]"), "the refusal")
    log_in(browser, key)
    wait(lambda: connection(browser) == "live", "the page is live")
    assert browser.execute_script("return location.pathname + location.hash") == "/#model=half_plus_two"


def test_an_action_after_the_end_of_the_session_leads_to_the_login(browser, locked):
    server, key = locked
    end_sessions(browser, server)
    browser.get(f"{server.url}/#model=half_plus_two")
    log_in(browser, key)
    wait(lambda: connection(browser) == "live", "the page is live")
    # Reads of the page, as of the rollout, lead to the login too.
    browser.execute_script(
        "const send = fetch;"
        "window.fetch = (where, options) => options?.method === 'POST' ? send(where, options) : new Promise(() => {})"
    )
    browser.delete_all_cookies()
    entry = (
        "document.querySelector('.menu .menu-button')?.click();"
        "const e = [...document.querySelectorAll('.menu-list button')].find((b) => b.textContent === 'Reload');"
        "e?.click(); return Boolean(e)"
    )
    wait(lambda: browser.execute_script(entry), "the action")
    browser.execute_script("document.getElementById('question-yes').click()")
    wait(lambda: path(browser) == "/login?next=%2F", "the form")


def test_the_form_refuses_a_key_that_cannot_read_pages(browser, locked):
    server, _ = locked
    key = new_key(server.log.parent / "keys.toml", "--role", "infer", "--name", "program")
    metadata = f"{server.url}/v2/models/half_plus_two"
    wait(lambda: requests.get(metadata, headers={"api-key": key}, timeout=60).ok, "the server knows the key")
    end_sessions(browser, server)
    browser.get(server.url)
    log_in(browser, key)
    alert = "return document.querySelector('[role=alert]')?.textContent ?? ''"
    wait(lambda: "pages need the role read" in browser.execute_script(alert), "the reason")
    assert browser.get_cookies() == []


def test_a_failed_logout_is_shown(browser, locked):
    server, key = locked
    end_sessions(browser, server)
    browser.get(server.url)
    log_in(browser, key)
    wait(lambda: browser.find_elements(By.ID, "log-out"), "a button to log out")
    browser.execute_script("window.fetch = () => Promise.reject(new TypeError('offline'))")
    browser.execute_script("document.getElementById('log-out').click()")
    said = "return document.getElementById('messages').textContent"
    wait(lambda: "You are not logged out" in browser.execute_script(said), "the message")


def test_a_server_without_keys_has_no_login(browser, server):
    browser.get(f"{server.url}/login")
    assert path(browser) == "/"
    assert browser.find_elements(By.ID, "log-out") == []
