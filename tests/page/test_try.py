"""The page that tries a model: inputs from its metadata, a run, outputs, and code that runs as it is shown."""

import json
import os
import pathlib
import subprocess
import sys

import millpond
import ml_dtypes
import numpy as np
import pytest
import requests
from keys import new_key
from models import constant, half_plus_two, half_precision, save, strings, value
from onnx import TensorProto, helper
from PIL import Image
from screen import CONTRASTS, DESKTOP, PHONE, PICTURES, TEXT_CONTRAST_MIN, js, look, picture, text, wait
from selenium.webdriver import ActionChains, Keys
from tritonclient.utils import triton_to_np_dtype

CLIP = pathlib.Path(__file__).resolve().parents[2] / ".cache/audio/clips/meeting.wav"
TABS_MAX = 40
SIDE = 64


def mixed(path: pathlib.Path) -> pathlib.Path:
    """Inputs of several types, one of them a scalar, one with a name that is a word of Python."""
    nodes = [
        helper.make_node("Cast", ["class"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Add", ["wide", "big"], ["sum"]),
        helper.make_node("Not", ["it's"], ["not"]),
    ]
    inputs = [value("class", TensorProto.UINT8, ["n", 2]), value("big", TensorProto.INT64, []), value("it's", TensorProto.BOOL, [3])]
    return save(path, nodes, inputs, [value("sum", TensorProto.INT64, ["n", 2]), value("not", TensorProto.BOOL, [3])])


def means(path: pathlib.Path) -> pathlib.Path:
    """The mean of each channel of an image, and the image in a smaller shape."""
    nodes = [helper.make_node("ReduceMean", ["image", "sides"], ["mean"], keepdims=0)]
    inputs = [value("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])]
    return save(path, nodes, inputs, [value("mean", TensorProto.FLOAT, ["n", 3])], [constant("sides", np.array([2, 3], np.int64))])


def loudness(path: pathlib.Path) -> pathlib.Path:
    """The largest absolute value of a waveform, and the number of its samples."""
    nodes = [
        helper.make_node("Abs", ["waveform"], ["size"]),
        helper.make_node("ReduceMax", ["size"], ["peak"], keepdims=0),
        helper.make_node("Shape", ["waveform"], ["shape"]),
    ]
    outputs = [value("peak", TensorProto.FLOAT, []), value("shape", TensorProto.INT64, [2])]
    return save(path, nodes, [value("waveform", TensorProto.FLOAT, [1, "samples"])], outputs)


MODELS = {"mixed": mixed, "means": means, "loudness": loudness, "half_plus_two": half_plus_two, "strings": strings, "half_precision": half_precision}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root, scratch = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("sources")
    for name, make in MODELS.items():
        millpond.drop_in(make(scratch / f"{name}.onnx"), root / name, 1)
    millpond.drop_in(half_plus_two(scratch / "half_plus_two.onnx"), root / "half_plus_two", 2)
    server = millpond.Server(root, "--versions", "all", log=tmp_path_factory.mktemp("log") / "server.log").wait_ready()
    yield server
    assert server.stop() == 0, server.log_text()


def open_try(browser, server, model: str, state: str = "ready") -> None:
    browser.get(f"{server.url}/try?model={model}")
    wait(lambda: js(browser, "document.getElementById('state').dataset.state") == state, f"the page is {state}")


def write(browser, name: str, words: str) -> None:
    """Replaces the JSON of an input as typing does."""
    browser.execute_script(
        "const e = document.querySelector(`[data-input=\"${arguments[0]}\"] textarea`);"
        "e.value = arguments[1]; e.dispatchEvent(new Event('input', { bubbles: true }))",
        name,
        words,
    )


def change(browser, selector: str, chosen: str) -> None:
    """Chooses an option as a user does."""
    script = "const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change', { bubbles: true }))"
    browser.execute_script(script, selector, chosen)


def problem(browser, name: str) -> str:
    return text(browser, f'[data-input="{name}"] .problem')


def run(browser) -> dict[str, list]:
    """Runs the model. Returns the values of each output as the page copies them."""
    js(browser, "document.getElementById('took').textContent = ''")
    js(browser, "document.getElementById('run').click()")
    wait(lambda: "round trip" in text(browser, "#took"), "an answer")
    shown = "Object.fromEntries([...document.querySelectorAll('.output')].map((e) => [e.dataset.output, e.querySelector('.values').textContent]))"
    return {name: json.loads(values) for name, values in js(browser, shown).items()}


def code(browser, language: str) -> str:
    js(browser, "document.getElementById(`tab-${arguments[0]}`).click()", language)
    return text(browser, "#snippet")


def run_code(browser, language: str, directory: pathlib.Path, environment: dict | None = None) -> str:
    """Runs the code that the page shows, as it is shown. Returns what it prints."""
    command = ["bash", "-c"] if language == "curl" else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, code(browser, language)], cwd=directory, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def save_file(browser, name: str, directory: pathlib.Path) -> bytes:
    """Saves the bytes of an input with the button of the page."""
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(directory)})
    js(browser, "document.querySelector(`[data-input=\"${arguments[0]}\"] .large button`).click()", name)
    path = directory / f"{name}.bin"
    # The browser makes an empty file of the name before it writes the bytes.
    wait(lambda: path.exists() and path.stat().st_size > 0, "the file is saved")
    return path.read_bytes()


def test_inputs_are_filled_from_the_metadata(browser, server):
    open_try(browser, server, "mixed")
    assert "MILLPOND_API_KEY" not in code(browser, "curl"), "the server has no keys"
    values = "Object.fromEntries([...document.querySelectorAll('.input')].map((e) => [e.dataset.input, e.querySelector('textarea').value]))"
    assert js(browser, values) == {"class": "[[0, 0]]", "big": "0", "it's": "[false, false, false]"}
    assert "UINT8 [any, 2]" in text(browser, ".input label")
    assert run(browser) == {"sum": [[0, 0]], "not": [True, True, True]}
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_a_fill_has_the_sizes_of_the_fields(browser, server):
    open_try(browser, server, "mixed")
    browser.execute_script(
        "const input = document.querySelector('[data-input=class]'); input.querySelector('select').value = 'ones';"
        "const size = input.querySelector('.dimensions input'); size.value = '2'; size.dispatchEvent(new Event('change'))"
    )
    assert js(browser, "document.querySelector('[data-input=class] textarea').value") == "[[1, 1],\n [1, 1]]"
    assert run(browser)["sum"] == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("class", "[[1, 2], [3]]", "Line 1, column 10"),
        ("class", "[[1, 300]]", "not within 0 and 255"),
        ("class", "[[1, 1.5]]", "not a whole number"),
        ("class", "[1, 2]", "2 nested lists, not 1"),
        ("class", "[[1, 2, 3]]", "dimension 2 must be 2"),
        ("class", "[[1, 2]", "] is missing"),
        ("big", "9223372036854775808", "the limits of INT64"),
        ("it's", "[1, 0, 1]", "neither true nor false"),
        ("it's", "", "A value is missing"),
    ],
)
def test_errors_are_shown_at_the_input(browser, server, name, value, words):
    open_try(browser, server, "mixed")
    run(browser)
    write(browser, name, value)
    assert words in problem(browser, name)
    assert "Correct the inputs" in code(browser, "curl")
    js(browser, "document.getElementById('run').click()")
    assert name in text(browser, "#run-problem")
    assert js(browser, "document.activeElement.closest('.input').dataset.input") == name
    assert js(browser, "document.querySelectorAll('.output').length") == 0, "the old result is gone"


def call(browser, expression: str, *arguments):
    """Evaluates an expression with the module of values as `values`."""
    script = (
        "const done = arguments[arguments.length - 1];"
        f"import('/page-try-values.js').then((values) => done({{ ok: {expression} }})).catch((error) => done({{ error: String(error) }}))"
    )
    found = browser.execute_async_script(script, *arguments)
    assert "error" not in found, found
    return found["ok"]


def test_16_bit_floats_are_those_of_numpy(browser, server):
    open_try(browser, server, "half_precision")
    random = np.random.default_rng(5)
    spread = random.normal(size=2000) * 10.0 ** random.uniform(-9, 6, size=2000)
    # Ties, limits, subnormal numbers and both zeros.
    edges = [0.0, -0.0, 1.0, 65504, 65519.996, 65520, -1e9, 2**-24, 2**-25, 3 * 2**-25, 2**-14, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8]
    numbers = np.concatenate([spread, edges]).astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = {"half": numbers.astype(np.float16), "brain": numbers.astype(ml_dtypes.bfloat16)}
    for name, array in wanted.items():
        bits = call(browser, f"arguments[0].map((value) => values.{name}(value))", numbers.tolist())
        assert bits == array.view(np.uint16).tolist(), name


def reference(words: str) -> tuple[list, list] | None:
    """Reads nested lists of whole numbers as Python does. Returns shape and values; None if they are not a tensor."""
    try:
        parsed = json.loads(words)
        array = np.array(parsed, np.int64)
    except (ValueError, TypeError):
        return None
    return (list(array.shape), array.ravel().tolist()) if array.size else None


def test_large_floats_of_an_answer_are_numbers(browser, server):
    open_try(browser, server, "mixed")
    words = '{"data": [3.4028235e38, -1e+20, 1e20, 12345678901234567000.0, 0.12345678901234568, 9007199254740993]}'
    data = call(browser, "values.parseResponse(arguments[0]).data.map((value) => [typeof value, values.valueWords(value)])", words)
    assert [kind for kind, _ in data] == ["number"] * 5 + ["string"]
    assert [shown for _, shown in data[2:]] == ["100000000000000000000", "12345678901234567000", "0.123457", "9007199254740993"]


def test_text_is_read_as_python_reads_it(browser, server):
    open_try(browser, server, "mixed")
    random = np.random.default_rng(11)
    texts, results = [], []
    for _ in range(300):
        shape = random.integers(1, 4, size=random.integers(0, 4))
        words = list(json.dumps(random.integers(-99, 99, size=shape).tolist()))
        # About half of them are damaged by one character.
        if random.random() < 0.6:
            at = random.integers(len(words))
            words[at] = random.choice(["", "[", "]", ",", " ", "1", "x", "-"])
        texts.append("".join(words))
    for words in texts:
        rank = len((reference(words) or ([],))[0])
        results.append({"words": words, "rank": rank})
    read = (
        "arguments[0].map(({ words, rank }) => { try {"
        " const { shape, tokens } = values.read(words, { datatype: 'INT64', shape: Array(rank).fill(-1) });"
        " return [shape, tokens.map(Number)]; } catch { return null; } })"
    )
    found = call(browser, read, results)
    wanted = [reference(words) for words in texts]
    assert 50 < sum(entry is None for entry in wanted) < 250
    for words, mine, naive in zip(texts, found, wanted, strict=True):
        assert (tuple(mine) if mine and mine[1] else None) == naive, words


def test_an_error_of_the_server_is_shown_at_the_input_that_it_names(browser, server):
    open_try(browser, server, "half_plus_two")
    # The request changes on its way, as if the model had been swapped meanwhile.
    browser.execute_script(
        "const send = fetch; window.fetch = (path, options) => send(path, options.body ? { ...options,"
        " body: new TextDecoder().decode(options.body).replace('FP32', 'INT32') } : options)"
    )
    js(browser, "document.getElementById('run').click()")
    wait(lambda: problem(browser, "x"), "an error at the input")
    assert "int32" in problem(browser, "x").lower()


def test_64_bit_integers_keep_their_digits(browser, server):
    open_try(browser, server, "mixed")
    write(browser, "big", "9007199254740993")
    js(browser, "document.getElementById('run').click()")
    wait(lambda: "round trip" in text(browser, "#took"), "an answer")
    assert "9007199254740993" in text(browser, "[data-output=sum] .values")


@pytest.mark.parametrize("language", ["curl", "requests", "tritonclient"])
@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("half_plus_two", {"x": "[1, 2.5,\n -3e2]"}),
        ("mixed", {"class": "[[1, 2], [3, 255]]", "big": "9007199254740993", "it's": "[true, false, true]"}),
        ("strings", {"text": '[["it\'s $HOME", "\\u00e9 \\ud83d\\ude00 \\\\ \\" \\n"]]'}),
        ("half_precision", {"x": "[[1, 2, 3, 4]]"}),
    ],
)
def test_code_runs_as_it_is_shown(browser, server, tmp_path, model, values, language):
    open_try(browser, server, model)
    for name, words in values.items():
        write(browser, name, words)
    shapes = dict(zip(values, js(browser, "[...document.querySelectorAll('.input .input-head > .note')].map((e) => e.textContent)"), strict=True))
    inputs = [
        {"name": name, "datatype": spec["datatype"], "shape": json.loads(shapes[name]), "data": json.loads(values[name])}
        for spec in requests.get(f"{server.url}/v2/models/{model}", timeout=60).json()["inputs"]
        if (name := spec["name"]) in values
    ]
    wanted = requests.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": inputs}, timeout=60).json()["outputs"]
    printed = run_code(browser, language, tmp_path)
    if language == "curl":
        assert json.loads(printed)["outputs"] == wanted
    elif language == "requests":
        assert printed.splitlines() == [f"{output['name']} {output['shape']} {output['data']}" for output in wanted]
    else:
        for output in wanted:
            data = [text.encode() for text in output["data"]] if output["datatype"] == "BYTES" else output["data"]
            array = np.array(data, triton_to_np_dtype(output["datatype"])).reshape(output["shape"])
            assert f"{output['name']} {output['shape']}\n{array}\n" in printed


@pytest.mark.parametrize("language", ["curl", "requests", "tritonclient"])
def test_code_with_numbers_that_are_not_finite_runs(browser, server, tmp_path, language):
    open_try(browser, server, "half_plus_two")
    write(browser, "x", "[NaN, Infinity, -Infinity]")
    printed = run_code(browser, language, tmp_path).lower()
    assert "nan" in printed and "-inf" in printed


@pytest.fixture
def half_red(tmp_path) -> pathlib.Path:
    """An image of twice the input's size: full red, half green, no blue."""
    path = tmp_path / "red.png"
    Image.new("RGB", (2 * SIDE, 2 * SIDE), (255, 128, 0)).save(path)
    return path


def choose_image(browser, path: pathlib.Path) -> None:
    browser.find_element("css selector", "[data-input=image] input[type=file]").send_keys(str(path))
    wait(lambda: path.name in text(browser, "[data-input=image] .large"), "the image is read")


def means_of(printed: str) -> list[float]:
    return json.loads(printed)["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("scale", "order", "wanted"),
    [
        ("unit", "RGB", [1.0, 128 / 255, 0.0]),
        ("byte", "BGR", [0.0, 128.0, 255.0]),
        ("signed", "RGB", [1.0, 2 * 128 / 255 - 1, -1.0]),
        ("imagenet", "RGB", [(1 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, -0.406 / 0.225]),
    ],
)
def test_an_image_is_decoded_and_scaled(browser, server, half_red, tmp_path, scale, order, wanted):
    open_try(browser, server, "means")
    choose_image(browser, half_red)
    for what, chosen in [("Range", scale), ("Colour order", order)]:
        change(browser, f"[aria-label^='{what}']", chosen)
    wait(lambda: js(browser, "document.querySelector('[data-input=image] canvas').width") == SIDE, "it is drawn")
    assert np.allclose(run(browser)["mean"], [wanted], atol=1e-4)
    raw = save_file(browser, "image", tmp_path)
    assert len(raw) == 4 * 3 * SIDE * SIDE
    assert np.allclose(means_of(run_code(browser, "curl", tmp_path)), wanted, atol=1e-4)


@pytest.mark.parametrize("language", ["curl", "requests", "tritonclient"])
def test_code_of_large_inputs_runs(browser, server, half_red, tmp_path, language):
    open_try(browser, server, "means")
    # Zeros need no file.
    assert run_code(browser, language, tmp_path)
    choose_image(browser, half_red)
    assert "image.bin" in text(browser, "#code-note")
    save_file(browser, "image", tmp_path)
    printed = run_code(browser, language, tmp_path)
    assert "0.50196" in printed and "mean" in printed


def test_the_image_chosen_last_is_taken(browser, server, half_red, tmp_path):
    open_try(browser, server, "means")
    browser.execute_script(
        "const decode = createImageBitmap; let calls = 0;"
        "window.createImageBitmap = async (file) => {"
        "  const isFirst = calls++ === 0, image = await decode(file);"
        "  if (isFirst) await new Promise((resume) => { window.resume = resume; });"
        "  return image;"
        "}"
    )
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "slow.png")
    browser.find_element("css selector", "[data-input=image] input[type=file]").send_keys(str(tmp_path / "slow.png"))
    wait(lambda: js(browser, "typeof window.resume") == "function", "the first image is decoded")
    choose_image(browser, half_red)
    browser.execute_script("window.resume()")
    assert np.allclose(run(browser)["mean"], [[1.0, 128 / 255, 0.0]], atol=1e-4)
    assert half_red.name in text(browser, "[data-input=image] .large")


def test_what_is_no_image_is_refused_at_the_input(browser, server, tmp_path):
    (tmp_path / "notes.png").write_text("no image")
    open_try(browser, server, "means")
    browser.find_element("css selector", "[data-input=image] input[type=file]").send_keys(str(tmp_path / "notes.png"))
    wait(lambda: "notes.png is not an image" in problem(browser, "image"), "an error at the input")
    assert text(browser, "#snippet").startswith("Correct the inputs"), "the code of the value before it is gone"


def test_audio_is_decoded(browser, server, tmp_path):
    assert CLIP.exists(), f"no {CLIP}: run `make recognisers`"
    open_try(browser, server, "loudness")
    browser.find_element("css selector", "[data-input=waveform] input[type=file]").send_keys(str(CLIP))
    wait(lambda: CLIP.name in text(browser, "[data-input=waveform] .large"), "the audio is read")
    found = run(browser)
    assert found["shape"] == [1, 30 * 16000], "the clip has 30 s"
    assert 0 < found["peak"] <= 1


def test_with_keys_the_session_runs_the_model_and_the_code_names_a_key(browser, tmp_path):
    millpond.drop_in(half_plus_two(tmp_path / "half_plus_two.onnx"), tmp_path / "models/half_plus_two", 1)
    key = new_key(tmp_path / "keys.toml", "--role", "read", "--name", "reader")
    server = millpond.Server(tmp_path / "models", "--keys", str(tmp_path / "keys.toml"), log=tmp_path / "server.log").wait_ready()
    try:
        browser.get(f"{server.url}/try?model=half_plus_two")
        browser.find_element("id", "key").send_keys(key, Keys.ENTER)
        wait(lambda: js(browser, "document.getElementById('state')?.dataset.state") == "ready", "the page is ready")
        write(browser, "x", "[4]")
        assert run(browser) == {"y": [4]}
        assert "Bearer $MILLPOND_API_KEY" in code(browser, "curl")
        for language in ("curl", "requests", "tritonclient"):
            printed = run_code(browser, language, tmp_path, {**os.environ, "MILLPOND_API_KEY": key})
            assert "4" in printed and "y" in printed
        # A session that has ended leads to the login, and back.
        browser.delete_all_cookies()
        js(browser, "document.getElementById('run').click()")
        wait(lambda: "/login?next=%2Ftry%3Fmodel%3Dhalf_plus_two" in browser.current_url, "the login")
    finally:
        browser.delete_all_cookies()
        assert server.stop() == 0, server.log_text()


def test_without_a_model_the_page_waits_for_one(browser, tmp_path):
    root = tmp_path / "models"
    root.mkdir()
    server = millpond.Server(root, log=tmp_path / "server.log").wait_ready()
    try:
        browser.get(f"{server.url}/try")
        wait(lambda: text(browser, "#state") == "no model", "the page says so")
        millpond.drop_in(half_plus_two(tmp_path / "half_plus_two.onnx"), root / "half_plus_two", 1)
        wait(lambda: text(browser, "#state") == "ready", "the model is shown")
        assert js(browser, "document.getElementById('empty').hidden && !document.getElementById('try').hidden")
    finally:
        assert server.stop() == 0


def test_versions_and_unknown_models(browser, server):
    open_try(browser, server, "half_plus_two")
    assert js(browser, "[...document.getElementById('version').options].map((o) => o.textContent)") == ["latest (2)", "2", "1"]
    change(browser, "#version", "1")
    wait(lambda: "versions/1/infer" in code(browser, "curl"), "the code names the version")
    run(browser)
    assert text(browser, "#took").startswith("version 1 ")
    assert "version=1" in js(browser, "location.search")
    open_try(browser, server, "nope", "failed")
    assert 'No model "nope"' in text(browser, "#problem")
    assert js(browser, "document.getElementById('try').hidden")


def test_a_model_chosen_during_a_run_can_be_run(browser, server):
    open_try(browser, server, "half_plus_two")
    # The first run has no answer.
    browser.execute_script(
        "const send = fetch; let isFirst = true;"
        "window.fetch = (path, options) => {"
        "  if (!isFirst || !String(path).endsWith('/infer')) return send(path, options);"
        "  isFirst = false;"
        "  const stopped = new DOMException('stopped', 'AbortError');"
        "  return new Promise((_, fail) => options.signal.addEventListener('abort', () => fail(stopped)));"
        "}"
    )
    js(browser, "document.getElementById('run').click()")
    wait(lambda: js(browser, "document.getElementById('state').dataset.state") == "busy", "the run has begun")
    change(browser, "#model", "mixed")
    wait(lambda: js(browser, "document.querySelector('[data-input=class]') !== null"), "the inputs of the other model")
    assert js(browser, "document.getElementById('halt').hidden")
    assert run(browser) == {"sum": [[0, 0]], "not": [True, True, True]}


def test_the_model_chosen_last_is_shown(browser, server):
    open_try(browser, server, "half_plus_two")
    # The check for keys of the first choice ends after the second choice.
    browser.execute_script(
        "const send = fetch;"
        "window.fetch = async (path, options) => {"
        "  const answer = await send(path, options);"
        "  const isHeld = options?.credentials === 'omit' && String(path).includes('/means');"
        "  if (isHeld) await new Promise((resume) => { window.resume = resume; });"
        "  return answer;"
        "}"
    )
    change(browser, "#model", "means")
    wait(lambda: js(browser, "typeof window.resume") == "function", "the check for keys")
    change(browser, "#model", "mixed")
    wait(lambda: js(browser, "document.querySelector('[data-input=class]') !== null"), "the inputs of the last choice")
    browser.execute_async_script("window.resume(); setTimeout(arguments[0], 0)")
    names = js(browser, "[...document.querySelectorAll('.input')].map((e) => e.dataset.input)")
    assert names == ["class", "big", "it's"]


def test_a_long_name_does_not_widen_the_page(browser, server):
    open_try(browser, server, "half_plus_two")
    browser.execute_script("const o = document.getElementById('model').selectedOptions[0]; o.textContent = o.value.repeat(20)")
    assert js(browser, "document.documentElement.scrollWidth") <= DESKTOP[0]
    tops = js(browser, "['model', 'version'].map((id) => document.getElementById(id).getBoundingClientRect().top)")
    assert tops[0] == tops[1], "one line"


def test_by_keyboard_alone(browser, server):
    open_try(browser, server, "half_plus_two")
    browser.execute_script("document.querySelector('.skip').focus()")
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    names = []
    for _ in range(TABS_MAX):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        names.append(js(browser, "document.activeElement.id"))
        if names[-1] == "input-x":
            break
    assert names[-1] == "input-x"
    ActionChains(browser).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).send_keys("[4]").perform()
    ActionChains(browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    wait(lambda: "round trip" in text(browser, "#took"), "Ctrl+Enter runs")
    assert text(browser, "[data-output=y] .values") == "[4]"
    js(browser, "document.getElementById('tab-curl').focus()")
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert js(browser, "document.activeElement.id") == "tab-tritonclient"
    assert text(browser, "#snippet").startswith("# pip install")
    assert js(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"


def test_a_phone_needs_no_sideways_scrolling(browser, server):
    look(browser, PHONE)
    for model in ("mixed", "means"):
        open_try(browser, server, model)
        run(browser)
        assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
        small = "[...document.querySelectorAll('main button, main select')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40).length"
        assert js(browser, small) == 0, "large enough for a finger"


def test_many_sizes_fit_on_a_phone(browser, server):
    look(browser, PHONE)
    open_try(browser, server, "mixed")
    script = """
        const spec = { name: 'video', datatype: 'FP32', shape: [-1, -1, -1, -1, -1] }, done = arguments[0];
        import('/page-try-input.js').then(({ InputEditor }) => {
          document.getElementById('inputs').replaceChildren(new InputEditor(spec, () => {}).root);
          done([document.querySelectorAll('.dimensions input').length, document.documentElement.scrollWidth]);
        });
    """
    fields, width = browser.execute_async_script(script)
    assert fields == 5 and width <= PHONE[0], (fields, width)


def test_versions_of_another_model_do_not_stay(browser, server):
    open_try(browser, server, "half_plus_two")
    options = "[...document.querySelectorAll('#version option')].map((e) => e.textContent)"
    assert js(browser, options) == ["latest (2)", "2", "1"]
    browser.execute_script(
        "const send = fetch; window.fetch = (where, options) =>"
        " String(where).endsWith('/mixed') ? Promise.reject(new TypeError('offline')) : send(where, options);"
        "const e = document.getElementById('model'); e.value = 'mixed'; e.dispatchEvent(new Event('change'))"
    )
    wait(lambda: "did not answer" in text(browser, "#problem"), "the metadata are not read")
    assert js(browser, options) == ["latest"]


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("try-light", DESKTOP, "light"), ("try-dark", DESKTOP, "dark"), ("try-phone", PHONE, "light")]
)
def test_screenshots_are_legible(browser, server, half_red, name, size, scheme):
    look(browser, size, scheme)
    open_try(browser, server, "means")
    choose_image(browser, half_red)
    run(browser)
    seen = browser.execute_script(CONTRASTS)
    assert len(seen["texts"]) > 20
    assert [entry for entry in seen["texts"] if entry[1] < TEXT_CONTRAST_MIN] == []
    path = PICTURES / f"{name}.png"
    picture(browser, path)
    assert path.stat().st_size > 20_000
