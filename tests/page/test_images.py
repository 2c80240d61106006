"""The images page as people see it: images are added by drop, found by changed copies, filtered, deleted."""

import io
import json
import pathlib

import millpond
import numpy as np
import pytest
import requests
from PIL import Image
from screen import CONTRASTS, DESKTOP, PHONE, PICTURES, TEXT_CONTRAST_MIN, js, look, picture, state, wait
from selenium.webdriver import ActionChains, Keys

MADE = pathlib.Path(__file__).resolve().parents[2] / ".cache/images"
MODEL = "mobilenet-v2"
KEY = "a key for the test"
# More than one page of results.
MANY = 55
LINES_MIN = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    assert (MADE / "ready").exists(), f"no {MADE}: run `make images-model`"
    scratch = tmp_path_factory.mktemp("images")
    server = millpond.Server(MADE / "models", "--collections-dir", str(scratch / "collections"), log=scratch / "server.log")
    server.wait_ready()
    for path in sorted((MADE / "pictures").iterdir()):
        put(server, "photos", path.name, path.read_bytes(), {"ending": path.suffix[1:]})
    yield server
    assert server.stop() == 0, server.log_text()


def put(server, collection: str, name: str, data: bytes, payload: dict | None = None) -> dict:
    parameters = {"name": name, "payload": json.dumps(payload or {})}
    answer = requests.put(f"{server.url}/v1/images/{collection}", params=parameters, data=data, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def noise(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((64, 48)).save(file, "PNG")
    return file.getvalue()


def open_images(browser, server, collection: str | None = "photos") -> None:
    browser.get(f"{server.url}/images" + (f"?collection={collection}" if collection else ""))
    wait(lambda: state(browser) in ("ready", "none", "failed"), "the page is ready")
    if collection:
        wait(lambda: names(browser, "#pictures"), "its pictures are listed")


def text(browser, name: str) -> str:
    return js(browser, "document.getElementById(arguments[0]).textContent", name)


def names(browser, where: str) -> list[str]:
    return js(browser, "[...document.querySelectorAll(`${arguments[0]} .name`)].map((e) => e.textContent)", where)


def drop(browser, target: str, *paths: pathlib.Path) -> None:
    """Drops files on an element by the browser's events."""
    browser.execute_script(
        "const input = Object.assign(document.createElement('input'), { type: 'file', multiple: true, id: 'hand' });"
        "input.className = 'hidden'; document.body.append(input);"
    )
    hand = browser.find_element("id", "hand")
    hand.send_keys("\n".join(map(str, paths)))
    browser.execute_script(
        "const transfer = new DataTransfer(); for (const file of arguments[0].files) transfer.items.add(file);"
        "arguments[0].remove();"
        "for (const type of ['dragover', 'drop']) document.querySelector(arguments[1])"
        ".dispatchEvent(new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));",
        hand,
        target,
    )


def found(browser) -> list[str]:
    """Waits for the end of a search. Returns the names of its results."""
    wait(lambda: state(browser) == "ready" and names(browser, "#results"), "results")
    return names(browser, "#results")


def drawn(browser) -> bool:
    """Checks that both images and lines between them are shown."""
    return js(browser, "document.querySelectorAll('#match image[data-loaded]').length === 2 && document.querySelectorAll('#match line').length > 0")


def search(browser, copy: str) -> list[str]:
    drop(browser, "#find", MADE / "changed" / copy)
    results = found(browser)
    wait(lambda: drawn(browser), "lines are drawn")
    return results


def press(browser, selector: str) -> None:
    # Scroll it away from the fixed header, which may cover it.
    js(browser, "document.querySelector(arguments[0]).scrollIntoView({ block: 'center' })", selector)
    browser.find_element("css selector", selector).click()


def choose(browser, menu: str, words: str) -> None:
    """Opens a menu and chooses an action."""
    js(browser, "document.querySelector(`${arguments[0]} .menu-button`).click()", menu)
    entry = "[...document.querySelectorAll(`${arguments[0]} .menu-list button`)].find((e) => e.textContent === arguments[1]).click()"
    js(browser, entry, menu, words)


def options(browser) -> None:
    if js(browser, "document.getElementById('options').hidden"):
        press(browser, "#options-open")


def test_the_address_of_an_unknown_collection(browser, server):
    browser.get(f"{server.url}/images?collection=nope")
    wait(lambda: "nope" in text(browser, "problem"), "the page says what is missing")
    assert state(browser) == "failed" and names(browser, "#pictures") == []
    assert js(browser, "document.getElementById('find').hidden"), "nothing can be searched"
    assert js(browser, "location.search") == "?collection=nope"


def test_a_collection_of_vectors_is_no_collection_of_images(browser, server):
    vectors = {"vectors": {"size": 3, "distance": "Dot"}}
    assert requests.put(f"{server.url}/collections/notes", json=vectors, timeout=60).status_code == 200
    browser.get(f"{server.url}/images?collection=notes")
    wait(lambda: "collection of vectors" in text(browser, "problem"), "the page says what it is")
    assert names(browser, "#pictures") == []
    browser.find_element("link text", "Open it in Vectors").click()
    wait(lambda: "/vectors?collection=notes" in browser.current_url, "the page for vectors")


def test_an_image_without_a_name_is_shown_by_its_id(browser, server):
    image = put(server, "unnamed", "", noise(77))["id"]
    open_images(browser, server, "unnamed")
    assert names(browser, "#pictures") == [image]
    assert js(browser, "document.querySelector('#pictures .search').ariaLabel").endswith(image)
    requests.delete(f"{server.url}/v1/images/unnamed", timeout=60).raise_for_status()


def test_without_an_embedding_model_the_page_says_so_first(browser, tmp_path):
    (tmp_path / "models").mkdir()
    server = millpond.Server(tmp_path / "models", "--collections-dir", str(tmp_path / "collections"), log=tmp_path / "server.log").wait_ready()
    try:
        open_images(browser, server, None)
        wait(lambda: not js(browser, "document.getElementById('model-none').hidden"), "the page says what is missing")
        assert "no served model embeds images" in text(browser, "model-why").lower()
        assert "millpond serve" in text(browser, "model-code")
        assert js(browser, "document.getElementById('find').hidden && document.getElementById('none').hidden")
        press(browser, "#add-open")
        assert js(browser, "document.getElementById('add').hidden"), "nothing can be added"
        # Fingerprints need no model.
        assert "Fingerprints need none" in text(browser, "model-none")
        choose(browser, "#menu", "New collection…")
        js(browser, "document.getElementById('kind').value = 'fingerprint'")
        browser.find_element("id", "name").send_keys("-of-fingers", Keys.ENTER)
        wait(lambda: not js(browser, "document.getElementById('add').hidden"), "fingerprints can be added")
        assert js(browser, "document.getElementById('model-none').hidden")
    finally:
        assert server.stop() == 0


def test_images_are_added_by_drop(browser, server, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_text("This is no picture.")
    chosen = [MADE / "pictures" / name for name in ("coffee.png", "chelsea.png", "rocket.jpg")]
    open_images(browser, server)
    choose(browser, "#menu", "New collection…")
    browser.find_element("id", "name").send_keys("dropped", Keys.ENTER)
    wait(lambda: "first image" in text(browser, "about"), "the collection is waited for")
    drop(browser, "#add", *chosen, broken)
    rows = "Object.fromEntries([...document.querySelectorAll('#sent li')].map((e) => [e.querySelector('.name').textContent, e.dataset.state]))"
    wait(lambda: len(js(browser, rows)) == 4 and "sending" not in js(browser, rows).values(), "all were sent")
    assert js(browser, rows) == {path.name: "added" for path in chosen} | {"broken.png": "failed"}
    assert len(js(browser, "document.querySelector('#sent [data-state=failed] .what').textContent")) > 10
    wait(lambda: sorted(names(browser, "#pictures")) == sorted(path.name for path in chosen), "they are listed")
    wait(lambda: "3 images" in text(browser, "about"), "they are counted")
    drop(browser, "#add", chosen[0])
    wait(lambda: js(browser, rows) == {"coffee.png": "present"}, "what is there is not added twice")
    # Delete it by the page's own button.
    choose(browser, "#menu", "Delete collection…")
    press(browser, "#question-yes")
    gone = lambda: [entry["name"] for entry in requests.get(f"{server.url}/v1/images", timeout=60).json()["collections"]]
    wait(lambda: "dropped" not in gone(), "the collection is deleted")


def test_open_menus_stay_while_images_are_added(browser, server):
    for seed in (1, 2):
        put(server, "growing", f"noise {seed}", noise(seed))
    open_images(browser, server, "growing")
    js(browser, "document.querySelector('#menu .menu-button').click()")
    for seed in (3, 4):
        put(server, "growing", f"noise {seed}", noise(seed))
        # Reads the collection again, as each added image does, without a click that closes menus.
        browser.execute_script("document.getElementById('model-again').dispatchEvent(new Event('click'))")
        wait(lambda: f"noise {seed}" in names(browser, "#pictures"), "the list is newer")  # noqa: B023
        assert js(browser, "document.activeElement.closest('.menu-list') !== null"), "the focus stays in the menu"
        if seed == 3:
            js(browser, "document.querySelector('#pictures .menu-button').click()")
    requests.delete(f"{server.url}/v1/images/growing", timeout=30)


def test_adding_stops_while_the_server_is_busy(browser, server):
    open_images(browser, server)
    # The server would accept an upload after an hour.
    browser.execute_script(
        "const send = fetch; window.refused = 0;"
        "window.fetch = (where, options) => {"
        "  if (options?.method !== 'PUT') return send(where, options);"
        "  window.refused += 1;"
        "  return Promise.resolve(new Response('{\"error\": \"busy\"}', { status: 503, headers: { 'retry-after': '3600' } }));"
        "}"
    )
    press(browser, "#add-open")
    drop(browser, "#add", MADE / "pictures" / "coffee.png")
    wait(lambda: js(browser, "window.refused") == 1, "the upload waits")
    js(browser, "document.getElementById('halt').click()")
    wait(lambda: js(browser, "document.getElementById('halt').hidden"), "the upload has ended")
    assert js(browser, "document.querySelector('#sent .what').textContent") == "stopped"
    assert js(browser, "window.refused") == 1


def test_an_upload_without_an_answer_is_sent_again(browser, server):
    open_images(browser, server)
    browser.execute_script(
        "const send = fetch; window.lost = 0;"
        "window.fetch = (where, options) => {"
        "  if (options?.method !== 'PUT' || window.lost === 1) return send(where, options);"
        "  window.lost = 1;"
        "  return Promise.reject(new TypeError('the server is started again'));"
        "}"
    )
    press(browser, "#add-open")
    drop(browser, "#add", MADE / "pictures" / "coffee.png")
    wait(lambda: js(browser, "document.querySelector('#sent li')?.dataset.state") == "present", "it arrives")
    assert js(browser, "window.lost") == 1


def test_adding_stops_if_the_session_ends(browser, server):
    open_images(browser, server)
    browser.execute_script(
        "const send = fetch; window.isOld = true; sessionStorage.refused = 0;"
        "window.fetch = (where, options) => {"
        "  if (options?.method !== 'PUT') return send(where, options);"
        "  sessionStorage.refused = Number(sessionStorage.refused) + 1;"
        "  return Promise.resolve(new Response('{\"error\": \"no session\"}', { status: 401 }));"
        "}"
    )
    press(browser, "#add-open")
    drop(browser, "#add", *sorted((MADE / "pictures").iterdir())[:6])
    # This server has no keys, so its login leads back to the page.
    wait(lambda: js(browser, "window.isOld") is None, "the page is loaded again")
    assert js(browser, "sessionStorage.refused") == "1"


def test_a_zip_is_added_by_drop(browser, server, tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for name in ("coins.png", "moon.png"):
            archive.write(MADE / "pictures" / name, f"inside/{name}")
    open_images(browser, server)
    choose(browser, "#menu", "New collection…")
    browser.find_element("id", "name").send_keys("zipped", Keys.ENTER)
    wait(lambda: "first image" in text(browser, "about"), "the collection is waited for")
    drop(browser, "#add", tmp_path / "some.zip")
    wait(lambda: len(names(browser, "#pictures")) == 2, "both are listed")
    sent = names(browser, "#sent")
    assert any("coins.png" in name for name in sent) and any("moon.png" in name for name in sent), sent


@pytest.mark.parametrize(("copy", "original"), [("coffee.jpg", "coffee.png"), ("chelsea.jpg", "chelsea.png"), ("china.jpg", "china.jpg")])
def test_a_dropped_copy_finds_its_original(browser, server, copy, original):
    open_images(browser, server)
    assert search(browser, copy)[0] == original
    assert js(browser, "document.querySelector('#results .verdict').dataset.accepted") == "true"
    assert text(browser, "match-words").startswith(f"{copy} and {original}: ")
    ends = js(browser, "[...document.querySelectorAll('#match line')].map((l) => ['x1', 'y1', 'x2', 'y2'].map((a) => l[a].baseVal.value))")
    frames = js(browser, "[...document.querySelectorAll('#match rect')].map((r) => [r.x, r.y, r.width, r.height].map((v) => v.baseVal.value))")
    assert len(ends) >= LINES_MIN
    # Each line leads from the query to the result.
    for x1, y1, x2, y2 in ends:
        for (x, y), (left, top, width, height) in zip([(x1, y1), (x2, y2)], frames, strict=True):
            assert left <= x <= left + width and top <= y <= top + height
    # The thumbnails are loaded.
    wait(lambda: js(browser, "[...document.querySelectorAll('#results img')].slice(0, 4).every((i) => i.naturalWidth > 0)"), "thumbnails")


def test_similar_images_are_folded_away(browser, server):
    open_images(browser, server)
    results = search(browser, "coffee.jpg")
    assert text(browser, "same-title") == "Same image (1)" and names(browser, "#same") == ["coffee.png"]
    assert text(browser, "similar-title") == f"Similar ({len(results) - 1})"
    assert js(browser, "document.getElementById('similar-place').open") is False
    # If no image is the same, the similar ones are shown at once.
    options(browser)
    browser.find_element("id", "value").send_keys("moon.png", Keys.ENTER)
    wait(lambda: names(browser, "#pictures") == ["moon.png"], "the filter applies")
    press(browser, "#again")
    wait(lambda: text(browser, "same-title") == "No image is the same.", "the page says so")
    assert js(browser, "document.getElementById('similar-place').open") and names(browser, "#results") == ["moon.png"]


def test_arrows_go_through_the_results(browser, server):
    open_images(browser, server)
    search(browser, "coffee.jpg")
    js(browser, "document.querySelector('#results button').focus()")
    first = text(browser, "match-words")
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    second = names(browser, "#results")[1]
    wait(lambda: second in text(browser, "match-words") and text(browser, "match-words") != first, "the second result is shown")
    assert js(browser, "document.activeElement.getAttribute('aria-current')") == "true"
    assert js(browser, "document.getElementById('similar-place').open"), "the fold opens"
    assert js(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"


def test_a_pasted_image_and_one_of_the_collection(browser, server):
    open_images(browser, server)
    browser.execute_async_script(
        "const done = arguments[1]; fetch(arguments[0]).then((a) => a.blob()).then((blob) => {"
        " const transfer = new DataTransfer(); transfer.items.add(new File([blob], 'pasted.jpg', { type: 'image/jpeg' }));"
        " document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true })); done(); });",
        js(browser, "document.querySelector('#pictures img').src"),
    )
    shown = names(browser, "#pictures")[0]
    assert found(browser)[0] == shown
    other = names(browser, "#pictures")[3]
    browser.execute_script("document.querySelectorAll('#pictures .search')[3].click()")
    wait(lambda: text(browser, "found-title") == f"Results for {other}", "a picture of the collection is searched with")
    assert found(browser)[0] == other


def test_filters_apply_to_images_and_searches(browser, server):
    open_images(browser, server)
    options(browser)
    browser.find_element("id", "value").send_keys("coffee.png", Keys.ENTER)
    wait(lambda: names(browser, "#pictures") == ["coffee.png"], "the names are filtered")
    assert search(browser, "coffee.jpg") == ["coffee.png"]
    press(browser, "#unfilter")
    wait(lambda: len(names(browser, "#pictures")) > 10, "all are back")
    browser.execute_script("document.getElementById('where').value = 'field'; document.getElementById('where').dispatchEvent(new Event('change'))")
    browser.find_element("id", "field").send_keys("ending")
    browser.find_element("id", "value").send_keys("jpg", Keys.ENTER)
    wait(lambda: names(browser, "#pictures") and all(name.endswith(".jpg") for name in names(browser, "#pictures")), "a field is filtered")
    browser.execute_script("document.getElementById('where').value = 'json'; document.getElementById('where').dispatchEvent(new Event('change'))")
    browser.find_element("id", "value").send_keys("{", Keys.ENTER)
    wait(lambda: "not JSON" in text(browser, "filter-problem"), "a wrong filter is said to be wrong")


def test_pages_and_deleting(browser, server):
    for seed in range(MANY):
        put(server, "many", f"noise-{seed}.png", noise(seed))
    open_images(browser, server, "many")
    first = names(browser, "#pictures")
    assert len(first) == 48
    press(browser, "#next")
    wait(lambda: len(names(browser, "#pictures")) == MANY - 48, "the second page")
    second = names(browser, "#pictures")
    assert len({*first, *second}) == MANY
    choose(browser, "#pictures", "Delete image…")
    assert second[0] in text(browser, "question-title")
    press(browser, "#question-yes")
    wait(lambda: f"{MANY - 1} images" in text(browser, "about"), "one is gone")
    wait(lambda: second[0] not in names(browser, "#pictures"), "it is not listed")
    assert js(browser, "document.activeElement.closest('#pictures li') !== null"), "the focus stays in the list"
    press(browser, "#back")
    wait(lambda: names(browser, "#pictures") == first, "the first page")
    press(browser, "#next")
    wait(lambda: len(names(browser, "#pictures")) == MANY - 49, "the second page again")
    left = js(browser, "[...document.querySelectorAll('#pictures li')].map((e) => e.dataset.id)")
    for image in left[1:]:
        requests.delete(f"{server.url}/v1/images/many/{image}", timeout=60).raise_for_status()
    choose(browser, "#pictures", "Delete image…")
    press(browser, "#question-yes")
    wait(lambda: names(browser, "#pictures") == first, "the page before an empty one")


def test_duplicates_are_found_and_deleted(browser, server):
    pictures = sorted((MADE / "pictures").iterdir())[:3]
    for path in pictures:
        put(server, "twice", path.name, path.read_bytes())
    file = io.BytesIO()
    Image.open(pictures[0]).convert("RGB").save(file, "PNG")
    put(server, "twice", "the same", file.getvalue())
    open_images(browser, server, "twice")
    choose(browser, "#menu", "Find duplicates…")
    js(browser, "document.getElementById('duplicates-start').click()")
    groups = "document.querySelectorAll('#duplicates-groups > li').length"
    wait(lambda: js(browser, groups) == 1, "the group is shown")
    assert set(names(browser, "#duplicates-groups")) == {pictures[0].name, "the same"}
    assert text(browser, "duplicates-count") == "1 group with 2 images"
    assert text(browser, "duplicates-state").split(", ")[:2] == ["Done: 4 of 4 images compared", "1 pair"]
    js(browser, "document.querySelector('#duplicates-groups button.bad').click()")
    press(browser, "#question-yes")
    wait(lambda: len(names(browser, "#duplicates-groups")) == 1, "the image is deleted")
    requests.delete(f"{server.url}/v1/images/twice", timeout=30)


def test_progress_of_duplicates_is_read_again_after_an_error(browser, server):
    open_images(browser, server)
    fail = (
        "window.working = fetch; window.fetch = (where, options) =>"
        " String(where).endsWith('/duplicates') ? Promise.reject(new TypeError('offline')) : working(where, options)"
    )
    browser.execute_script(fail)
    choose(browser, "#menu", "Find duplicates…")
    wait(lambda: "did not answer" in text(browser, "duplicates-problem"), "the error is shown")
    browser.execute_script("window.fetch = window.working")
    wait(lambda: text(browser, "duplicates-state").startswith("Compares every image"), "the state is read again")
    assert js(browser, "document.getElementById('duplicates-problem').hidden"), "the error has ended"


def test_a_file_that_is_not_an_image_is_reported(browser, server, tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    open_images(browser, server)
    search(browser, "coffee.jpg")
    drop(browser, "#find", tmp_path / "notes.png")
    wait(lambda: state(browser) == "failed", "it is refused")
    assert len(text(browser, "find-problem")) > 10, "the error is beside the search"
    assert js(browser, "document.getElementById('found').hidden"), "the old result is gone"
    # The next one works.
    assert search(browser, "coffee.jpg")[0] == "coffee.png"


def test_a_dropped_folder_is_no_search(browser, server):
    open_images(browser, server)
    browser.execute_script(
        "const items = [{ webkitGetAsEntry: () => ({ isDirectory: true }) }], files = [new File([], 'folder')];"
        "const event = new Event('drop', { bubbles: true, cancelable: true });"
        "document.getElementById('find').dispatchEvent(Object.assign(event, { dataTransfer: { items, files } }))"
    )
    assert 'open "Add images"' in text(browser, "messages")
    assert state(browser) == "ready"


def test_a_login_opens_the_page(browser, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("locked")
    places = ("--collections-dir", str(scratch / "collections"), "--api-key", KEY)
    server = millpond.Server(MADE / "models", *places, log=scratch / "server.log").wait_ready()
    try:
        head = {"api-key": KEY}
        data = (MADE / "pictures/coffee.png").read_bytes()
        answer = requests.put(f"{server.url}/v1/images/photos?name=coffee.png", data=data, headers=head, timeout=60)
        assert answer.status_code == 200, answer.text
        browser.get(f"{server.url}/images")
        browser.find_element("id", "key").send_keys(KEY, Keys.ENTER)
        wait(lambda: names(browser, "#pictures") == ["coffee.png"], "the key opens it")
        wait(lambda: js(browser, "document.querySelector('#pictures img').naturalWidth > 0"), "thumbnails need it too")
        browser.refresh()
        wait(lambda: names(browser, "#pictures") == ["coffee.png"], "it is kept")
        assert search(browser, "coffee.jpg") == ["coffee.png"]
    finally:
        browser.delete_all_cookies()
        assert server.stop() == 0, server.log_text()


def test_no_other_host_and_no_error(browser, server):
    open_images(browser, server)
    search(browser, "coffee.jpg")
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= 10
    assert [url for url in asked if not url.removeprefix("blob:").startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_the_pages_link_to_each_other(browser, server):
    for page, title in (("/", "Millpond"), ("/audio", "Audio · Millpond")):
        browser.get(f"{server.url}{page}")
        browser.find_element("link text", "Images").click()
        wait(lambda: browser.title == "Images · Millpond", "the page for images")
        browser.find_element("link text", "Models" if page == "/" else "Audio").click()
        wait(lambda title=title: browser.title == title, "and back")


def test_a_long_name_does_not_widen_the_page(browser, server):
    open_images(browser, server)
    browser.execute_script("document.getElementById('collection').selectedOptions[0].textContent = 'a-name-'.repeat(36)")
    assert js(browser, "document.documentElement.scrollWidth") <= DESKTOP[0]


def test_a_phone_needs_no_sideways_scrolling(browser, server):
    look(browser, PHONE)
    open_images(browser, server)
    search(browser, "coffee.jpg")
    assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
    assert js(browser, "document.querySelector('#match svg').dataset.across") == "false", "one above the other"
    small = "[...document.querySelectorAll('main button, main select')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40).length"
    assert js(browser, small) == 0, "large enough for a finger"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_legible(browser, server, scheme):
    look(browser, DESKTOP, scheme)
    open_images(browser, server)
    search(browser, "coffee.jpg")
    seen = browser.execute_script(CONTRASTS)
    assert len(seen["texts"]) > 40
    assert [entry for entry in seen["texts"] if entry[1] < TEXT_CONTRAST_MIN] == []


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("images-light", DESKTOP, "light"), ("images-dark", DESKTOP, "dark"), ("images-phone", PHONE, "light")],
)
def test_screenshots(browser, server, name, size, scheme):
    look(browser, size, scheme)
    open_images(browser, server)
    search(browser, "chelsea.jpg" if scheme == "dark" else "coffee.jpg")
    js(browser, "window.scrollTo(0, 0)")
    wait(lambda: js(browser, "[...document.images].filter((i) => i.checkVisibility()).slice(0, 8).every((i) => i.complete)"), "everything is loaded")
    path = PICTURES / f"{name}.png"
    picture(browser, path)
    assert path.stat().st_size > 50_000
