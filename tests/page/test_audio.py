"""The audio page as people see it: a recording is chosen, drawn, labelled and played."""

import json
import pathlib
import shutil
import wave

import millpond
import pytest
import requests
from screen import CONTRASTS, DESKTOP, PHONE, PICTURES, TEXT_CONTRAST_MIN, js, look, picture, state, texts, wait
from selenium.webdriver import ActionChains, Keys

CACHE = pathlib.Path(__file__).resolve().parents[2] / ".cache"
RECOGNISER = "vad-onnx"
CLIP = CACHE / "audio/clips/meeting.wav"
TABS_MAX = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = CACHE / "recognisers" / RECOGNISER
    assert made.exists() and CLIP.exists(), f"no {made}: run `make recognisers`"
    root = tmp_path_factory.mktemp("recognisers")
    shutil.copytree(made, root / RECOGNISER)
    server = millpond.Server(root, log=tmp_path_factory.mktemp("log") / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


def open_audio(browser, server) -> None:
    browser.get(f"{server.url}/audio")
    wait(lambda: js(browser, "document.querySelectorAll('#recogniser option').length"), "a recogniser is listed")


def listen(browser, path: pathlib.Path, until: tuple[str, ...] = ("done",)) -> None:
    browser.find_element("id", "file").send_keys(str(path))
    browser.find_element("id", "start").click()
    wait(lambda: state(browser) in until, f"the page says {until}")


def drawn(browser) -> bool:
    """Returns true if the image has more than one colour."""
    return js(
        browser,
        "new Set(new Uint32Array(document.getElementById('wave').getContext('2d')"
        ".getImageData(0, 0, 600, 150).data.buffer)).size > 20",
    )


def position(browser) -> float:
    return float(js(browser, "document.getElementById('wave').getAttribute('aria-valuenow') ?? '0'"))


def clock(seconds: float) -> str:
    """Formats a time as the page does."""
    seconds = round(seconds, 1)
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02}" + f"{seconds - whole:.1f}"[1:]


def lengthened(path: pathlib.Path, times: int) -> pathlib.Path:
    with wave.open(str(CLIP)) as clip:
        frames, parameters = clip.readframes(clip.getnframes()), clip.getparams()
    with wave.open(str(path), "wb") as long:
        long.setparams(parameters)
        for _ in range(times):
            long.writeframes(frames)
    return path


def test_no_other_host_and_no_error(browser, server):
    open_audio(browser, server)
    listen(browser, CLIP)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= 5
    # The browser's buttons for playing have data: addresses.
    asked = [url.removeprefix("blob:") for url in asked if not url.startswith("data:")]
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_without_a_recogniser_the_form_is_disabled(browser, tmp_path):
    (tmp_path / "models").mkdir()
    server = millpond.Server(tmp_path / "models", log=tmp_path / "server.log").wait_ready()
    try:
        browser.get(f"{server.url}/audio")
        wait(lambda: not js(browser, "document.getElementById('none').hidden"), "the page says what is missing")
        commands = js(browser, "document.getElementById('none-code').textContent").splitlines()
        assert commands == ["pip install 'millpond[recognisers]'", "millpond serve --recogniser vad-onnx"]
        assert js(browser, "['file', 'recogniser'].every((id) => document.getElementById(id).disabled)")
        assert js(browser, "document.getElementById('start').getAttribute('aria-disabled')") == "true"
        assert js(browser, "document.getElementById('drop').hidden")
        picture(browser, PICTURES / "audio-empty.png")
    finally:
        assert server.stop() == 0


def test_an_unknown_recogniser_is_an_error(browser, server):
    browser.get(f"{server.url}/audio?recogniser=nope")
    wait(lambda: 'No recogniser "nope"' in js(browser, "document.getElementById('problem').textContent"), "the page says so")


def test_labels_are_those_of_the_server(browser, server):
    open_audio(browser, server)
    listen(browser, CLIP)
    answer = requests.post(f"{server.url}/v1/audio/{RECOGNISER}", data=CLIP.read_bytes(), timeout=60)
    labels = [entry for entry in map(json.loads, answer.text.splitlines()) if entry["type"] == "label"]
    assert labels
    assert texts(browser, "#labels .when")[0] == f"{clock(labels[0]['start'])}–{clock(labels[0]['end'])}"
    assert texts(browser, "#labels .text") == [label["text"] for label in labels]
    assert texts(browser, "#legend li") == ["speech"]
    assert f"{len(labels)} label" in js(browser, "document.getElementById('state').textContent")
    wait(lambda: drawn(browser), "the recording is drawn")


def test_a_time_is_rounded_before_it_is_split(browser, server):
    open_audio(browser, server)
    script = "import('/page-audio-wave.js').then(({ clock }) => arguments[1](arguments[0].map((time) => clock(time, 1))))"
    found = browser.execute_async_script(script, [59.96, 3599.97, 9.94, 0.9999999])
    assert found == ["1:00.0", "1:00:00.0", "0:09.9", "0:01.0"]


def test_labels_arrive_during_the_upload(browser, server, tmp_path):
    open_audio(browser, server)
    listen(browser, lengthened(tmp_path / "long.wav", 60), until=("listening",))
    wait(lambda: texts(browser, "#labels .text") and state(browser) == "listening", "labels before the end")
    assert js(browser, "document.querySelector('#progress progress').value") < 1
    browser.find_element("id", "stop").click()
    wait(lambda: js(browser, "document.getElementById('state').textContent") == "stopped", "it stopped")

    def idle() -> bool:
        return "millpond_recordings_active 0\n" in requests.get(f"{server.url}/metrics", timeout=60).text

    wait(idle, "the server stopped too")


def test_labels_of_another_recording_are_dropped(browser, server, tmp_path):
    open_audio(browser, server)
    # An answer that does not end, and ignores that it is stopped.
    browser.execute_script(
        "const send = fetch, line = (text) => new TextEncoder().encode(JSON.stringify({ type: 'label', start: 0, end: 1, text, score: 1 }) + '\\n');"
        "window.fetch = (where, options) => options?.method === 'POST' ? Promise.resolve(new Response(new ReadableStream({"
        "  start(answer) { answer.enqueue(line('first')); window.late = () => answer.enqueue(line('late')); } }))) : send(where, options)"
    )
    browser.find_element("id", "file").send_keys(str(CLIP))
    browser.find_element("id", "start").click()
    wait(lambda: "first" in "".join(texts(browser, "#labels li")), "a label")
    browser.find_element("id", "file").send_keys(str(lengthened(tmp_path / "other.wav", 1)))
    wait(lambda: "other.wav" in js(browser, "document.getElementById('player-title').textContent"), "the other recording")
    browser.execute_async_script("window.late(); setTimeout(arguments[0], 100)")
    assert texts(browser, "#labels li") == []
    assert js(browser, "document.getElementById('state').textContent") == "not labelled yet"
    buttons = "['start', 'stop'].map((id) => document.getElementById(id).getAttribute('aria-disabled'))"
    assert js(browser, buttons) == ["false", "true"]


def focused(browser) -> str:
    return js(browser, "document.activeElement.closest('#labels') ? 'label' : document.activeElement.id")


def test_by_keyboard_alone(browser, server):
    open_audio(browser, server)
    browser.find_element("id", "file").send_keys(str(CLIP))
    browser.execute_script("document.getElementById('recording').focus()")

    def tab_to(name: str) -> None:
        for _ in range(TABS_MAX):
            ActionChains(browser).send_keys(Keys.TAB).perform()
            if focused(browser) == name:
                return
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("start")
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    wait(lambda: state(browser) == "done", "done")
    tab_to("wave")
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    wait(lambda: abs(position(browser) - 2) < 0.1, "arrows move the position")
    tab_to("label")
    ActionChains(browser).send_keys(Keys.ARROW_DOWN).perform()
    second = js(browser, "document.querySelectorAll('#labels .when')[1].textContent.split('–')[0]")
    wait(lambda: clock(position(browser)) == second, "arrows go to the next label")
    wait(lambda: texts(browser, "#labels [aria-current] .when") != [], "the label at the position is marked")
    assert js(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"


def test_a_click_seeks_and_playing_moves(browser, server):
    open_audio(browser, server)
    assert js(browser, "document.getElementById('wave').getAttribute('aria-valuenow')") == "0"
    listen(browser, CLIP)
    canvas = browser.find_element("id", "wave")
    ActionChains(browser).move_to_element(canvas).click().perform()
    wait(lambda: abs(position(browser) - 15) < 0.2, "the middle of 30 s")
    js(browser, "document.getElementById('audio').play()")
    wait(lambda: position(browser) > 15.3, "the position moves")
    js(browser, "document.getElementById('audio').pause()")


def test_damaged_and_wrong_files_are_reported(browser, server, tmp_path):
    open_audio(browser, server)
    text = tmp_path / "notes.wav"
    text.write_text("This is no recording.\n" * 100)
    listen(browser, text, until=("failed",))
    assert "not a recording" in js(browser, "document.getElementById('problem').textContent")
    cut = tmp_path / "cut.wav"
    cut.write_bytes(CLIP.read_bytes()[:400_000])
    listen(browser, cut, until=("damaged",))
    faults = wait(lambda: texts(browser, "#faults li"), "the fault is listed")
    assert "12." in faults[0] or "early" in faults[0], faults
    assert texts(browser, "#labels .text"), "what is there is labelled"


def test_a_file_that_is_gone_is_named_and_can_be_chosen_again(browser, server, tmp_path):
    open_audio(browser, server)
    recording = tmp_path / "gone.wav"
    shutil.copy(CLIP, recording)
    browser.find_element("id", "file").send_keys(str(recording))
    wait(lambda: "gone.wav" in texts(browser, "#player-title")[0], "it is chosen")
    recording.unlink()
    browser.find_element("id", "start").click()
    wait(lambda: state(browser) == "failed", "it cannot be sent")
    assert "cannot read gone.wav" in texts(browser, "#problem")[0]
    # This event opens no dialog for files.
    browser.execute_script("document.getElementById('file').dispatchEvent(new Event('click'))")
    assert js(browser, "document.getElementById('file').files.length") == 0, "the same file is a change"
    shutil.copy(CLIP, recording)
    listen(browser, recording)


def test_a_dropped_folder_is_refused(browser, server):
    open_audio(browser, server)
    browser.execute_script(
        "const items = [{ webkitGetAsEntry: () => ({ isDirectory: true }) }], files = [new File([], 'folder')];"
        "const event = new Event('drop', { bubbles: true, cancelable: true });"
        "document.body.dispatchEvent(Object.assign(event, { dataTransfer: { items, files } }))"
    )
    assert "A folder cannot be labelled" in texts(browser, "#problem")[0]
    assert js(browser, "document.getElementById('player').hidden")


def test_the_pages_link_to_each_other(browser, server):
    browser.get(f"{server.url}/")
    browser.find_element("link text", "Audio").click()
    wait(lambda: browser.title == "Audio · Millpond", "the page for recordings")
    browser.find_element("link text", "Models").click()
    wait(lambda: browser.title == "Millpond", "the live page")


def test_a_phone_needs_no_sideways_scrolling(browser, server):
    look(browser, PHONE)
    open_audio(browser, server)
    listen(browser, CLIP)
    assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
    small = "[...document.querySelectorAll('main button, main select')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40).length"
    assert js(browser, small) == 0, "large enough for a finger"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_legible(browser, server, scheme):
    look(browser, DESKTOP, scheme)
    open_audio(browser, server)
    listen(browser, CLIP)
    found = browser.execute_script(CONTRASTS)
    assert len(found["texts"]) > 20
    assert [entry for entry in found["texts"] if entry[1] < TEXT_CONTRAST_MIN] == []


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("audio-light", DESKTOP, "light"), ("audio-dark", DESKTOP, "dark"), ("audio-phone", PHONE, "light")]
)
def test_screenshots(browser, server, name, size, scheme):
    look(browser, size, scheme)
    open_audio(browser, server)
    listen(browser, CLIP)
    wait(lambda: drawn(browser), "the recording is drawn")
    path = PICTURES / f"{name}.png"
    picture(browser, path)
    assert path.stat().st_size > 20_000
