"""The overview of models in headless Chromium: trouble first, one model, desktop, dark scheme, phone, keyboard."""

import json
import time

import millpond
import pytest
import requests
from models import stamped
from screen import (
    BROKEN,
    CONTRASTS,
    DESKTOP,
    GRAPHIC_CONTRAST_MIN,
    PHONE,
    PICTURES,
    SWAPPED,
    TEXT_CONTRAST_MIN,
    UNLOADED,
    connection,
    in_model,
    js,
    look,
    open_model,
    open_page,
    picture,
    wait,
)
from selenium.webdriver import ActionChains, Keys

pytestmark = pytest.mark.usefixtures("traffic")

TABS_MAX = 80


def rows(browser) -> list[str]:
    """Returns the names of the models in the order of the page."""
    return js(browser, "[...document.querySelectorAll('tr[data-model]')].filter((e) => e.checkVisibility()).map((e) => e.dataset.model)")


def test_no_other_host_and_no_error(browser, server):
    open_page(browser, server.url)
    wait(lambda: in_model(browser, SWAPPED, ".p99"), "a model is shown")
    open_model(browser, server.url, SWAPPED)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= 5
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_metrics_are_shown_and_not_downloaded(browser, server):
    open_page(browser, server.url)
    browser.find_element("link text", "Metrics").click()
    wait(lambda: browser.current_url == f"{server.url}/metrics", "the metrics")
    assert js(browser, "document.contentType") == "text/plain"
    assert "millpond_requests_total" in js(browser, "document.body.textContent")


def test_a_row_has_the_figures_of_its_model(browser, server):
    open_page(browser, server.url)

    def figures() -> list[float]:
        # One read: the page changes every second.
        found = in_model(browser, SWAPPED, ":is(.rate, .p50, .p99)")
        return [float(value) for value in found] if len(found) == 3 and "–" not in found else []

    rate, p50, p99 = wait(figures, "figures")
    assert rate > 0
    assert 0 < p50 <= p99
    assert in_model(browser, SWAPPED, ".chip")[0].startswith("v")
    memory = js(browser, "[...document.querySelectorAll('#memory th')].map((e) => e.textContent)")
    assert {"parameters of models", "requests in flight", "process in total"} <= set(memory)
    threads = js(browser, "[...document.querySelectorAll('#threads th')].map((e) => e.textContent)")
    assert {"connection", "worker", "lifecycle"} <= set(threads)
    assert "http-port" in js(browser, "document.getElementById('settings').textContent")
    assert "failed" in js(browser, "document.getElementById('events').textContent")


def test_trouble_comes_first(browser, server):
    open_page(browser, server.url)
    wait(lambda: BROKEN in rows(browser), "the models are listed")
    assert rows(browser)[0] == BROKEN
    assert in_model(browser, BROKEN, ".chip") == ["failed"]
    assert "version 1 failed" in in_model(browser, BROKEN, ".trouble")[0]
    assert browser.title == "(1 failed) Millpond"
    assert js(browser, "document.getElementById('state').textContent") == "1 failing"


def test_failed_requests_are_red_with_their_status(browser, server):
    wrong = {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    open_page(browser, server.url)

    def errors() -> str:
        for _ in range(5):
            assert requests.post(f"{server.url}/v2/models/text_direction/infer", json=wrong, timeout=60).status_code == 400
        found = in_model(browser, "text_direction", ".errors.bad")
        return found[0] if found else ""

    wait(errors, "an error rate")
    told = lambda: "invalid_argument" in "".join(in_model(browser, "text_direction", ".trouble"))  # noqa: E731
    wait(lambda: errors() and told(), "the status of the errors")
    colour = "getComputedStyle(document.querySelector('[data-model=\"text_direction\"] .errors')).color"
    bad = "getComputedStyle(document.querySelector('.trouble')).color"
    wait(lambda: errors() and js(browser, f"{colour} === {bad}"), "errors have the colour of trouble")
    listed = requests.get(f"{server.url}/v2/events", params={"model": "text_direction"}, timeout=60).json()["events"]
    deadline = time.monotonic() + 60
    while not any(event["kind"] == "request_errors" for event in listed):
        assert time.monotonic() < deadline, listed
        time.sleep(0.5)
        listed = requests.get(f"{server.url}/v2/events", params={"model": "text_direction"}, timeout=60).json()["events"]


def test_search_and_sort(browser, server):
    open_page(browser, server.url)
    wait(lambda: SWAPPED in rows(browser), "the models are listed")
    change = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input'))"
    browser.execute_script(change, "search", "stam")
    assert rows(browser) == [SWAPPED]
    browser.execute_script(change, "search", "")
    browser.execute_script(change, "sort", "name")
    assert rows(browser) == sorted(rows(browser))
    assert len(rows(browser)) == 5


def test_a_row_that_moves_keeps_the_focus(browser, server):
    open_page(browser, server.url)
    wait(lambda: SWAPPED in rows(browser), "the models are listed")
    browser.execute_script("document.querySelector(`#models [data-model='${arguments[0]}'] a`).focus()", SWAPPED)
    for order in ("name", "trouble"):
        script = "const e = document.getElementById('sort'); e.value = arguments[0]; e.dispatchEvent(new Event('input'))"
        browser.execute_script(script, order)
        assert js(browser, "document.activeElement.textContent") == SWAPPED


def test_a_model_has_its_own_address(browser, server):
    open_page(browser, server.url)
    wait(lambda: SWAPPED in rows(browser), "the models are listed")
    browser.find_element("link text", SWAPPED).click()
    wait(lambda: in_model(browser, SWAPPED, ".versions tbody tr"), "its view")
    assert browser.current_url.endswith(f"#model={SWAPPED}")
    assert js(browser, "document.getElementById('overview').hidden") is True
    browser.back()
    wait(lambda: rows(browser), "the overview is back")
    browser.get(f"{server.url}/#model=nowhere")
    wait(lambda: "No model" in js(browser, "document.querySelector('#model .problem')?.textContent ?? ''"), "an error")


def test_a_model_beyond_the_shown_ones_is_not_said_to_be_missing(browser, server):
    open_page(browser, server.url)
    # The page gets figures as of a server with 2000 models.
    script = """
        const done = arguments[0], real = new EventSource('/events'), feed = {};
        real.addEventListener('history', (event) => {
          real.close();
          window.EventSource = class { addEventListener(type, act) { feed[type] = act; } close() {} };
          document.dispatchEvent(new Event('visibilitychange'));
          const past = JSON.parse(event.data), more = 2000 - past.models.length;
          feed.history({ data: JSON.stringify({ ...past, more }) });
          addEventListener('hashchange', () => done(document.querySelector('#model .problem').textContent), { once: true });
          location.hash = 'model=far';
        }, { once: true });
    """
    words = browser.execute_async_script(script)
    assert words.startswith('"far" is not one of the ') and "of 2000. If it is served" in words


def test_lines_begin_before_the_page_was_opened(browser, server):
    def seconds() -> int:
        query = {"name": SWAPPED, "seconds": 120}
        return len(requests.get(f"{server.url}/page/model", params=query, timeout=60).json()["history"]["all"]["points"])

    wait(lambda: seconds() > 2, "the server has a history")
    open_model(browser, server.url, SWAPPED)
    paths = "[...document.querySelectorAll('#model .series')].map((e) => e.getAttribute('d'))"
    found = wait(lambda: js(browser, paths), "lines")
    assert len(found) == 4
    assert all("L" in path for path in found), "more than one second at once"
    wait(lambda: in_model(browser, SWAPPED, ".series-label"), "the lines are labelled")
    assert "p99" in js(browser, "document.querySelector('#model .chart').ariaLabel")


def test_ranges_are_chosen(browser, server):
    open_model(browser, server.url, SWAPPED)
    for words in ("15 min", "1 h", "6 h", "24 h", "2 min"):
        browser.find_element("xpath", f"//button[text()='{words}']").click()
        pressed = "document.querySelector('.ranges [aria-pressed=\"true\"]').textContent"
        assert js(browser, pressed) == words
        wait(lambda: "restart" in js(browser, "document.querySelector('.kept').textContent"), "it says what is kept")
    numbers = dict(zip(in_model(browser, SWAPPED, ".numbers dt"), in_model(browser, SWAPPED, ".numbers dd"), strict=True))
    assert float(numbers["requests/s"]) > 0


def test_a_swap_is_marked_and_versions_are_compared(browser, server, tmp_path):
    version = max(server.versions(SWAPPED)) + 1
    millpond.publish(stamped(tmp_path / "stamped.onnx", version), server.root / SWAPPED, version)
    open_model(browser, server.url, SWAPPED)
    words = f"v{version - 1}→v{version}"
    wait(lambda: words in in_model(browser, SWAPPED, ".mark-label"), f"a mark {words}")
    wait(lambda: f"v{version}" in in_model(browser, SWAPPED, ".chip"), "the chip shows it")
    lines = "[...document.querySelectorAll('.lines option')].map((e) => e.value)"
    wait(lambda: {"compare", str(version), str(version - 1)} <= set(js(browser, lines)), "both versions have traffic")
    choose = "const e = document.querySelector('.lines'); e.value = 'compare'; e.dispatchEvent(new Event('input'))"
    browser.execute_script(choose)
    heads = ["", f"v{version - 1}", f"v{version}", "change"]
    wait(lambda: in_model(browser, SWAPPED, ".compare thead th") == heads, "both versions")
    assert len(in_model(browser, SWAPPED, ".compare tbody tr")) == 6
    picture(browser, PICTURES / "compare.png")

    act(browser, f"Serve v{version - 1} too…")
    wait(lambda: js(browser, "document.getElementById('question').open"), "it asks first")
    js(browser, "document.getElementById('question-yes').click()")
    server.wait_version(SWAPPED, version - 1)
    assert server.versions(SWAPPED)[version]["state"] == "AVAILABLE"


def test_a_comparison_keeps_its_long_version(browser, tmp_path):
    # Times in nanoseconds, which numbers of JavaScript would round.
    first, second, third, fourth = range(1_764_000_000_123_456_789, 1_764_000_000_123_456_793)

    def publish(version: int) -> None:
        millpond.publish(stamped(tmp_path / f"{version}.onnx", version - first), tmp_path / "root" / SWAPPED, version)

    def serve(version: int) -> None:
        server.wait_version(SWAPPED, version)
        assert server.infer(SWAPPED, [1.0]).status_code == 200
        # The server reads the counts of a version once a second, while it is loaded.
        wait(lambda: version in recorded(), f"version {version} has traffic")

    def recorded() -> list[int]:
        answer = requests.get(f"{server.url}/page/model?name={SWAPPED}&seconds=120", timeout=60)
        return [entry["version"] for entry in answer.json()["history"]["versions"]]

    publish(first)
    server = millpond.Server(tmp_path / "root", log=tmp_path / "server.log").wait_ready()
    serve(first)
    for version in (second, third):
        publish(version)
        serve(version)
    open_model(browser, server.url, SWAPPED)
    browser.find_element("xpath", "//button[text()='15 min']").click()
    others = "[...document.querySelectorAll('.with option')].map((e) => e.value)"
    wait(lambda: js(browser, others) == [str(second), str(first)], "all versions have traffic")
    choose = "const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input'))"
    browser.execute_script(choose, ".lines", "compare")
    browser.execute_script(choose, ".with", str(first))
    publish(fourth)
    serve(fourth)
    heads = ["", f"v{first}", f"v{fourth}", "change"]
    wait(lambda: in_model(browser, SWAPPED, ".compare thead th") == heads, "the newest version and the chosen one")
    assert server.stop() == 0, server.log_text()


def act(browser, words: str) -> None:
    """Opens the menu of the model's view and chooses an action."""
    js(browser, "document.querySelector('.menu .menu-button').click()")
    # The page replaces the entries if the state of the model changes.
    entry = "(() => { const e = [...document.querySelectorAll('button')].find((b) => b.textContent === arguments[0]); e?.click(); return Boolean(e); })()"
    wait(lambda: js(browser, entry.replace("arguments[0]", json.dumps(words))), f"the action {words}")


def focused(browser) -> str:
    return js(browser, "document.activeElement.ariaLabel || document.activeElement.textContent.trim()")


def press(browser, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser, name: str) -> None:
    for _ in range(TABS_MAX):
        press(browser, Keys.TAB)
        if focused(browser) == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_by_keyboard_alone(browser, server):
    open_page(browser, server.url)
    wait(lambda: in_model(browser, UNLOADED, ".chip") == ["v1"], "the model is shown")
    wait(lambda: server.versions(UNLOADED)[1]["state"] == "AVAILABLE", "the model serves")
    tab_to(browser, UNLOADED)
    assert js(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"
    press(browser, Keys.ENTER)
    wait(lambda: in_model(browser, UNLOADED, ".versions tbody tr"), "its view")
    tab_to(browser, "Actions")
    press(browser, Keys.ENTER, Keys.ARROW_UP)
    wait(lambda: focused(browser) == "Unload…", "the last action")

    press(browser, Keys.ENTER)
    wait(lambda: js(browser, "document.getElementById('question').open"), "it asks first")
    wait(lambda: focused(browser) == "Cancel", "the harmless answer comes first")
    press(browser, Keys.ESCAPE)
    wait(lambda: not js(browser, "document.getElementById('question').open"), "Escape means no")
    wait(lambda: focused(browser) == "Actions", "the focus is back at the menu")
    assert server.versions(UNLOADED)[1]["state"] == "AVAILABLE"

    press(browser, Keys.ENTER, Keys.ARROW_UP, Keys.ENTER)
    wait(lambda: js(browser, "document.getElementById('question').open"), "it asks again")
    press(browser, Keys.TAB, Keys.ENTER)
    wait(lambda: "unloaded" in in_model(browser, UNLOADED, ".chip"), "the page says unloaded")
    told = "document.querySelector('#messages[aria-live] .message')?.textContent"
    assert f"{UNLOADED} is unloaded" in wait(lambda: js(browser, told), "a message")
    assert server.infer(UNLOADED, [1.0]).status_code != 200

    # The menu says "Reload" until the version has drained.
    labels = "[...document.querySelectorAll('.menu-list button')].map((item) => item.textContent)"
    wait(lambda: "Load" in js(browser, labels), "it can be loaded")
    js(browser, "document.querySelector('.menu .menu-button').focus()")
    press(browser, Keys.ENTER)
    wait(lambda: focused(browser) == "Load", "the first action")
    press(browser, Keys.ENTER)
    wait(lambda: js(browser, "document.getElementById('question').open"), "it asks")
    press(browser, Keys.TAB, Keys.ENTER)
    wait(lambda: "v1" in in_model(browser, UNLOADED, ".chip"), "the page says that it loads")
    wait(lambda: server.versions(UNLOADED)[1]["state"] == "AVAILABLE", "the model serves again")
    server.assert_serving()


def test_a_time_is_chosen_with_the_arrows(browser, server):
    open_model(browser, server.url, SWAPPED)
    wait(lambda: in_model(browser, SWAPPED, ".series-label"), "there are values")
    js(browser, "document.querySelector('#model .chart').focus()")
    press(browser, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert "requests/s" in in_model(browser, SWAPPED, ".reading")[0]
    press(browser, Keys.ESCAPE)
    assert in_model(browser, SWAPPED, ".reading") == [""]


def test_refusals_of_the_server_are_shown(browser, server):
    open_model(browser, server.url, SWAPPED)
    # The call names an unknown model, as if it had been removed since the page was drawn.
    browser.execute_script(
        "const post = fetch; window.fetch = (path, options) => post(options ? path.replace('stamped', 'nowhere') : path, options)"
    )
    act(browser, "Reload")
    js(browser, "document.getElementById('question-yes').click()")
    told = wait(lambda: js(browser, "document.querySelector('.message.bad')?.textContent"), "a message")
    assert "was not loaded" in told
    assert "nowhere" in told, "the server's own reason"


@pytest.mark.parametrize("model", ["", SWAPPED])
def test_a_phone_needs_no_sideways_scrolling(browser, server, model):
    look(browser, PHONE)
    open_model(browser, server.url, model) if model else open_page(browser, server.url)
    wait(lambda: in_model(browser, SWAPPED, ".series-label" if model else ".p99"), "there are values")
    assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
    beyond = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest('.scroll')).length"
    assert js(browser, beyond) == 0
    small = "[...document.querySelectorAll('main button, main select')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40).length"
    assert js(browser, small) == 0, "buttons are large enough for a finger"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("model", ["", SWAPPED, BROKEN])
def test_everything_is_legible(browser, server, scheme, model):
    look(browser, DESKTOP, scheme)
    open_model(browser, server.url, model) if model else open_page(browser, server.url)
    ready = {"": ".p99", SWAPPED: ".series-label", BROKEN: ".reason"}[model]
    wait(lambda: in_model(browser, model or SWAPPED, ready), "there are values")
    browser.execute_script("for (const details of document.querySelectorAll('details')) details.open = true")
    found = browser.execute_script(CONTRASTS)
    assert len(found["texts"]) > 30
    assert [entry for entry in found["texts"] if entry[1] < TEXT_CONTRAST_MIN] == []
    if model == SWAPPED:
        assert {line for line, _ in found["lines"]} >= {"series p50", "series max", "mark"}
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
    open_model(browser, server.url, SWAPPED)
    js(browser, "document.querySelector('.menu .menu-button').click()")
    buttons = browser.find_elements("css selector", "main button")
    names = [button.accessible_name for button in buttons if button.is_displayed()]
    assert len(names) >= 7
    assert all(names)
    assert len(names) == len(set(names))


def test_reduced_motion_is_respected(browser, server):
    look(browser, DESKTOP, motion="reduce")
    open_page(browser, server.url)
    moving = "[...document.querySelectorAll('*')].map((e) => getComputedStyle(e)).filter((s) => s.animationName !== 'none' || s.transitionDuration !== '0s').length"
    assert js(browser, moving) == 0


def test_it_reconnects(browser, tmp_path, monkeypatch):
    # Both servers get the same ports.
    ports = millpond.free_ports()
    monkeypatch.setattr(millpond, "free_ports", lambda: ports)
    (tmp_path / "root").mkdir()
    server = millpond.Server(tmp_path / "root", log=tmp_path / "first.log").wait_ready()
    open_page(browser, server.url)
    assert js(browser, "document.getElementById('empty').checkVisibility()")
    command = js(browser, "document.querySelector('#empty code').textContent")
    assert command == f"millpond publish model.onnx --to {tmp_path / 'root'}/NAME", "the directory of this server"
    assert js(browser, "document.querySelector('#empty .copy').ariaLabel") == "Copy the command"
    picture(browser, PICTURES / "empty.png")
    assert server.stop() == 0
    wait(lambda: connection(browser) == "reconnecting", "the page knows that no server answers")
    server = millpond.Server(tmp_path / "root", log=tmp_path / "second.log").wait_ready()
    wait(lambda: connection(browser) == "live", "the page found the new server")
    assert server.stop() == 0


def test_events_that_a_tick_leaves_out_are_read(browser, server):
    open_page(browser, server.url)
    script = """
        const done = arguments[arguments.length - 1], asked = [], send = window.fetch;
        const event = (id) => ({ id, time_ms: 0, at: 0, kind: 'loaded', level: 'info', model: `m${id}`, version: 1, text: 'ready', count: 1 });
        window.fetch = (where, options) => {
          if (!String(where).startsWith('/v2/events')) return send(where, options);
          asked.push(where);
          return Promise.resolve(new Response(JSON.stringify({ events: [3, 4, 5, 6].map(event), dropped: 0 })));
        };
        import('/page-events.js').then(async ({ Events }) => {
          const events = new Events();
          events.reset({ started: 0 }, [event(1), event(2)], 0);
          await events.add([event(5), event(6)]);
          await events.add([event(6), event(7)]);
          const ids = () => events.all.map(({ id }) => id), read = ids();
          // A server without an answer, and one that was started again during the request.
          window.fetch = () => Promise.reject(new TypeError());
          await events.add([event(9)]);
          const failed = ids();
          const late = events.add([event(11)]);
          events.reset({ started: 1 }, [event(1)], 0);
          await late;
          window.fetch = send;
          done([asked, read, failed, ids()]);
        });
    """
    read = [1, 2, 3, 4, 5, 6, 7]
    assert browser.execute_async_script(script) == [["/v2/events?after=2"], read, [*read, 9], [1]]


def test_the_list_has_the_requests_of_the_time_in_a_view(browser, server):
    open_page(browser, server.url)
    # The page gets its figures from the test: three intervals with requests while one model is shown.
    script = """
        const [name, done] = arguments, real = new EventSource('/events'), feed = {};
        real.addEventListener('history', (event) => {
          real.close();
          const past = JSON.parse(event.data), model = past.models.find((one) => one.name === name);
          const send = (type, at) => feed[type]({ data: JSON.stringify({ ...past, at, events: [], sparks: [],
            models: [{ ...model, level: 'none', state: 'ready', rate: 3, requests: 60, errors: 0 }] }) });
          window.EventSource = class { addEventListener(type, act) { feed[type] = act; } close() {} };
          document.dispatchEvent(new Event('visibilitychange'));
          const step = past.server.spark_step;
          send('history', 100 * step);
          addEventListener('hashchange', () => {
            for (const more of [1, 2, 3]) send('tick', (100 + more) * step);
            addEventListener('hashchange', () => {
              const bars = document.querySelector(`#models [data-model="${name}"] .strip`).getAttribute('d');
              done(bars.split('M').length - 1);
            }, { once: true });
            location.hash = '';
          }, { once: true });
          location.hash = `model=${name}`;
        }, { once: true });
    """
    assert browser.execute_async_script(script, SWAPPED) == 3


def test_rates_are_over_the_time_with_records(browser, server):
    open_page(browser, server.url)
    script = """
        const done = arguments[arguments.length - 1];
        import('/page-chart.js').then(({ covered, recorded }) => done([
          [[240, 60, 250], [240, 60, 200], [240, 60, 181], [20, 10, 12]].map(([end, step, now]) => covered([end], step, now)),
          [[0, 90000], [80000, 90000], [0, 600]].map(([from, now]) => recorded({ span: 86400, complete_from: from }, now)),
        ]));
    """
    # An interval that has not ended; a history that was cut, and one that began later than the range.
    assert browser.execute_async_script(script) == [[60, 20, 10, 10], [86400, 10000, 600]]


def test_large_and_tiny_numbers_are_readable(browser, server):
    open_page(browser, server.url)
    script = """
        const done = arguments[arguments.length - 1];
        import('/page-dom.js').then(({ count, bytes, cores }) => done([
          [0, 0.004, 9.5, 12.4, 99999, 123456, 999999, 4320000, 1.5e12].map(count),
          [1023, 1024 * 1023.7, 1e9, 1e12, 5e15].map(bytes),
          // A processor limit of a container.
          [0.25, 2.25, 16].map(cores),
        ]));
    """
    numbers = ["0", "0.004", "9.5", "12", "99999", "123 k", "1.0 M", "4.3 M", "1.5 T"]
    sizes = ["1023 B", "1.0 MiB", "954 MiB", "931 GiB", "4.4 PiB"]
    assert browser.execute_async_script(script) == [numbers, sizes, ["0.25 cores", "2.25 cores", "16 cores"]]


def test_old_figures_are_not_live(browser, server):
    open_page(browser, server.url)
    wait(lambda: connection(browser) == "live", "the page is live")
    # The page was hidden, and the server does not answer when it is shown again.
    browser.execute_script(
        "window.EventSource = class { addEventListener() {} close() {} }; document.dispatchEvent(new Event('visibilitychange'))"
    )
    assert connection(browser) == "reconnecting"


def test_ages_are_those_of_the_servers_clock(browser, server):
    open_model(browser, server.url, SWAPPED)
    since = lambda: in_model(browser, SWAPPED, ".since")  # noqa: E731
    before = wait(since, "the versions have ages")
    browser.execute_script("const late = Date.now() + 7 * 86400e3; Date.now = () => late")
    wait(lambda: since() not in ([], before), "later ages")
    assert not any("d" in words for words in since())


def test_times_have_a_zone(browser, server):
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    try:
        open_page(browser, server.url)
        note = "document.getElementById('events-note').textContent"
        wait(lambda: js(browser, note).endswith(", times in UTC+5:30"), "the zone of the events")
        open_model(browser, server.url, SWAPPED)
        kept = "document.querySelector('.kept').textContent"
        wait(lambda: js(browser, kept).endswith("Times are in UTC+5:30."), "the zone of the chart")
    finally:
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_events_are_those_of_the_new_server(browser, tmp_path, monkeypatch):
    # Both servers get the same ports, and their events the same ids.
    ports = millpond.free_ports()
    monkeypatch.setattr(millpond, "free_ports", lambda: ports)
    millpond.publish(stamped(tmp_path / "stamped.onnx", 1), tmp_path / "root" / SWAPPED, 1)
    server = millpond.Server(tmp_path / "root", log=tmp_path / "first.log").wait_ready()
    times = "[...document.querySelectorAll('#events time')].map((e) => e.dateTime)"
    open_page(browser, server.url)
    old = wait(lambda: js(browser, times), "the load is listed")
    assert server.stop() == 0
    wait(lambda: connection(browser) == "reconnecting", "the page knows that no server answers")
    server = millpond.Server(tmp_path / "root", log=tmp_path / "second.log").wait_ready()
    wait(lambda: connection(browser) == "live", "the page found the new server")
    wait(lambda: (new := js(browser, times)) and min(new) > max(old), "only events of the new server are listed")
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("desktop-light", DESKTOP, "light"), ("desktop-dark", DESKTOP, "dark"), ("phone", PHONE, "light")]
)
def test_screenshots(browser, server, name, size, scheme):
    look(browser, size, scheme)
    for view, model in (("", None), ("-model", SWAPPED), ("-failed", BROKEN)):
        open_model(browser, server.url, model) if model else open_page(browser, server.url)
        ready = {None: ".p99", SWAPPED: ".series-label", BROKEN: ".reason"}[model]
        wait(lambda: in_model(browser, model or SWAPPED, ready), "there are values")  # noqa: B023
        path = PICTURES / f"{name}{view}.png"
        picture(browser, path)
        assert path.stat().st_size > 20_000
