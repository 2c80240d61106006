"""The page for vector collections: lists, creates, reads, filters, searches, changes and deletes."""

import json

import millpond
import numpy as np
import pytest
import requests
from keys import new_key
from screen import CONTRASTS, DESKTOP, PHONE, PICTURES, TEXT_CONTRAST_MIN, js, look, picture, text, texts, wait
from selenium.webdriver import ActionChains, Keys

DIMS, POINTS = 4, 45
CITIES = ("Berlin", "Lima", "Oslo")
UUID = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26"
TABS_MAX = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("vectors")
    (scratch / "models").mkdir()
    server = millpond.Server(scratch / "models", "--collections-dir", str(scratch / "collections"), log=scratch / "server.log").wait_ready()
    random = np.random.default_rng(7)
    call(server, "PUT", "notes", {"vectors": {"size": DIMS, "distance": "Cosine"}})
    points = [
        {"id": at, "vector": random.normal(size=DIMS).tolist(), "payload": {"city": CITIES[at % 3], "year": 2000 + at, "draft": at % 5 == 0}}
        for at in range(POINTS)
    ]
    call(server, "PUT", "notes/points", {"points": [*points, {"id": UUID, "vector": [1, 0, 0, 0]}]})
    call(server, "PUT", "named", {"vectors": {"text": {"size": 2, "distance": "Euclid"}}})
    call(server, "PUT", "named/points", {"points": [{"id": at, "vector": {"text": [at, 0]}} for at in range(3)]})
    yield server
    assert server.stop() == 0, server.log_text()


def call(server, method: str, path: str, body: dict | None = None):
    answer = requests.request(method, f"{server.url}/collections/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def open_vectors(browser, server, collection: str | None = "notes", state: str = "ready") -> None:
    browser.get(f"{server.url}/vectors" + (f"?collection={collection}" if collection else ""))
    wait(lambda: js(browser, "document.getElementById('state').dataset.state") == state, f"the page is {state}")


def ids(browser) -> list[str]:
    return js(browser, "[...document.querySelectorAll('[data-point]')].map((e) => e.dataset.point)")


def change(browser, selector: str, chosen: str) -> None:
    """Sets a field as a user does."""
    script = (
        "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        "for (const type of ['input', 'change']) e.dispatchEvent(new Event(type, { bubbles: true }))"
    )
    browser.execute_script(script, selector, chosen)


def click(browser, selector: str) -> None:
    js(browser, "document.querySelector(arguments[0]).click()", selector)


def choose(browser, menu: str, words: str) -> None:
    """Opens a menu and chooses an action."""
    click(browser, f"{menu} .menu-button")
    entry = "[...document.querySelectorAll(`${arguments[0]} .menu-list button`)].find((e) => e.textContent === arguments[1]).click()"
    js(browser, entry, menu, words)


def answer(browser, button: str) -> None:
    """Answers the question before an action."""
    wait(lambda: js(browser, "document.getElementById('question').open"), "the question")
    click(browser, f"#question-{button}")


def add_condition(browser, clause: str, key: str, operator: str, value: str) -> None:
    click(browser, "#filter > button")
    row = f".condition:nth-child({js(browser, 'document.querySelectorAll(`.condition`).length')})"
    for place, chosen in [("select:nth-of-type(1)", clause), ("input:nth-of-type(1)", key), ("select:nth-of-type(2)", operator), ("input:nth-of-type(2)", value)]:
        change(browser, f"{row} {place}", chosen)


def shown(browser) -> dict:
    return json.loads(text(browser, "#filter-json"))


def test_collections_are_listed_with_size_and_health(browser, server):
    open_vectors(browser, server, None)
    row = "[...document.querySelectorAll(`[data-collection='${arguments[0]}'] td`)].map((e) => e.textContent).slice(0, 4)"
    wait(lambda: js(browser, row, "notes") == [str(POINTS + 1), str(DIMS), "Cosine", "healthy"], "sizes are shown")
    assert js(browser, row, "named") == ["3", "2", "Euclid", "healthy"]
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert browser.get_log("browser") == []


def test_a_long_name_leaves_the_health_on_one_line(browser, server):
    name = "a-long-name-" * 17
    call(server, "PUT", name, {"vectors": {"size": 2, "distance": "Dot"}})
    look(browser, DESKTOP)
    open_vectors(browser, server, None)
    health = "[...document.querySelectorAll('#rows .state')].map((e) => [e.textContent, e.getBoundingClientRect().height < 30])"
    wait(lambda: len(js(browser, health)) == 3, "the health is shown")
    assert js(browser, health) == [["healthy", True]] * 3
    call(server, "DELETE", name)


def test_an_unknown_collection_is_an_error(browser, server):
    open_vectors(browser, server, "nope", "failed")
    assert 'There is no collection "nope"' in text(browser, "#problem")
    assert js(browser, "document.getElementById('one').hidden && document.getElementById('list').hidden")


def test_a_collection_is_created_and_deleted(browser, server):
    open_vectors(browser, server, None)
    click(browser, "#create")
    change(browser, "#new-name", "not a name")
    assert js(browser, "document.getElementById('new-name').validity.patternMismatch")
    change(browser, "#new-name", "notes")
    change(browser, "#new-size", "3")
    js(browser, "document.getElementById('make-form').requestSubmit()")
    wait(lambda: "already" in text(browser, "#make-problem"), "an error in the dialog")
    change(browser, "#new-name", "made.here")
    change(browser, "#new-distance", "Dot")
    js(browser, "document.getElementById('make-form').requestSubmit()")
    wait(lambda: "collection=made.here" in browser.current_url, "the new collection is shown")
    wait(lambda: "3 dimensions · Dot" in text(browser, "#facts"), "with its settings")
    choose(browser, "#one", "Delete collection…")
    answer(browser, "no")
    assert "made.here" in text(browser, "#question-title")
    assert call(server, "GET", "made.here/exists") == {"exists": True}
    choose(browser, "#one", "Delete collection…")
    answer(browser, "yes")
    wait(lambda: browser.current_url.endswith("/vectors"), "the list is shown")
    assert call(server, "GET", "made.here/exists") == {"exists": False}


def test_only_the_collection_in_the_question_is_deleted(browser, server):
    for name in ("slow", "other"):
        call(server, "PUT", name, {"vectors": {"size": 2, "distance": "Dot"}})
    open_vectors(browser, server, None)
    wait(lambda: len(texts(browser, "#rows .state")) == len(texts(browser, "#rows tr")), "all sizes are read")
    # The number of points of the first one comes late.
    browser.execute_script(
        "const send = fetch;"
        "window.fetch = async (path, options) => {"
        "  const answer = await send(path, options);"
        "  if (options?.method === 'GET' && String(path).endsWith('/slow')) await new Promise((resume) => { window.resume = resume; });"
        "  return answer;"
        "}"
    )
    choose(browser, "[data-collection='slow']", "Delete collection…")
    wait(lambda: js(browser, "typeof window.resume") == "function", "the first question waits")
    choose(browser, "[data-collection='other']", "Delete collection…")
    wait(lambda: js(browser, "document.getElementById('question').open"), "the second question")
    browser.execute_async_script("window.resume(); setTimeout(arguments[0], 100)")
    assert text(browser, "#question-title") == "Delete the collection other?"
    answer(browser, "yes")
    wait(lambda: not call(server, "GET", "other/exists")["exists"], "it is deleted")
    assert call(server, "GET", "slow/exists") == {"exists": True}
    wait(lambda: not js(browser, "document.querySelector(`[data-collection='other']`)"), "the list is newer")
    assert js(browser, "document.activeElement.closest('[data-collection]') !== null"), "the focus stays in the list"
    call(server, "DELETE", "slow")


def test_points_are_read_by_page(browser, server):
    open_vectors(browser, server)
    first = ids(browser)
    assert len(first) == 20
    assert f"1–20 of {POINTS + 1}" in text(browser, "#shown")
    assert "city Berlin" in text(browser, "[data-point='0'] .payload")
    vector = call(server, "GET", "notes/points/0")["vector"]
    assert text(browser, "[data-point='0'] .vector") == f"[{', '.join(f'{value:.3f}' for value in vector)}]"
    click(browser, "#next")
    wait(lambda: "21–40" in text(browser, "#shown"), "the second page")
    click(browser, "#next")
    wait(lambda: f"41–{POINTS + 1}" in text(browser, "#shown"), "the last page")
    assert UUID in ids(browser)
    assert js(browser, "document.getElementById('next').getAttribute('aria-disabled')") == "true"
    click(browser, "#back")
    wait(lambda: "21–40" in text(browser, "#shown"), "the second page again")
    click(browser, "#back")
    wait(lambda: ids(browser) == first, "the first page again")
    # In one step of the page, before it can have an answer.
    js(browser, "[1, 2].forEach(() => document.getElementById('next').click())")
    wait(lambda: "21–40" in text(browser, "#shown"), "two clicks before the answer turn one page")


def test_a_filter_is_made_with_the_form(browser, server):
    open_vectors(browser, server)
    add_condition(browser, "must", "city", "any", "Berlin, Oslo")
    add_condition(browser, "must", "year", "gte", "2020")
    add_condition(browser, "must_not", "draft", "equals", "true")
    wanted = {
        "must": [{"key": "city", "match": {"any": ["Berlin", "Oslo"]}}, {"key": "year", "range": {"gte": 2020}}],
        "must_not": [{"key": "draft", "match": {"value": True}}],
    }
    assert shown(browser) == wanted
    click(browser, "#go")
    found = {str(point["id"]) for point in call(server, "POST", "notes/points/scroll", {"filter": wanted, "limit": 100})["points"]}
    assert 0 < len(found) < POINTS
    wait(lambda: set(ids(browser)) == found, "the points that match")
    assert f"of {len(found)} that match" in text(browser, "#shown")
    click(browser, "#reset")
    wait(lambda: f"of {POINTS + 1}" in text(browser, "#shown"), "all points again")


def test_the_fields_of_conditions_have_unique_names(browser, server):
    open_vectors(browser, server)
    for key in ("city", "year"):
        add_condition(browser, "must", key, "filled", "")
    click(browser, ".condition:nth-child(1) > button")
    add_condition(browser, "must", "draft", "filled", "")
    names = js(browser, "[...document.querySelectorAll('.condition [aria-label]')].map((e) => e.ariaLabel)")
    assert len(names) == 10 and len(set(names)) == 10, names


def test_the_way_back_hides_no_chosen_field(browser, server):
    open_vectors(browser, server)
    # The browser then loads the page again, and restores fields, instead of keeping the whole page.
    browser.execute_script("addEventListener('unload', () => {})")
    change(browser, "#mode", "id")
    open_vectors(browser, server, None)
    browser.back()
    wait(lambda: ids(browser), "the points are shown")
    assert js(browser, "(document.getElementById('mode').value === 'id') !== document.getElementById('id-place').hidden")


@pytest.mark.parametrize(
    ("key", "operator", "value", "wanted"),
    [
        ("city", "equals", '"42"', {"must": [{"key": "city", "match": {"value": "42"}}]}),
        ("year", "equals", "2003", {"must": [{"key": "year", "match": {"value": 2003}}]}),
        ("city", "except", "Lima", {"must": [{"key": "city", "match": {"except": ["Lima"]}}]}),
        ("city", "empty", "", {"must": [{"is_empty": {"key": "city"}}]}),
        ("city", "filled", "", {"must": [{"must_not": [{"is_empty": {"key": "city"}}]}]}),
        ("", "ids", f"3, {UUID}", {"must": [{"has_id": [3, UUID]}]}),
    ],
)
def test_every_operator_is_a_filter_of_the_server(browser, server, key, operator, value, wanted):
    open_vectors(browser, server)
    add_condition(browser, "must", key, operator, value)
    assert shown(browser) == wanted
    click(browser, "#go")
    count = call(server, "POST", "notes/points/count", {"filter": wanted})["count"]
    wait(lambda: f"{count} that match" in text(browser, "#shown"), "the count of the server")


def matches(row: dict, point: dict) -> bool:
    """Evaluates a condition as the form's words say it."""
    value, words = point["payload"].get(row["key"]), [json.loads(part) for part in row["value"].split(",") if part]
    return {
        "equals": lambda: value == words[0],
        "any": lambda: value in words,
        "except": lambda: value is not None and value not in words,
        "gt": lambda: value is not None and value > words[0],
        "lte": lambda: value is not None and value <= words[0],
        "empty": lambda: value is None,
        "filled": lambda: value is not None,
        "ids": lambda: point["id"] in words,
    }[row["operator"]]()


def test_random_filters_count_what_their_words_say(browser, server):
    open_vectors(browser, server)
    points = call(server, "POST", "notes/points/scroll", {"limit": 1000})["points"]
    for point in points:
        point["payload"] = point["payload"] or {}
    random = np.random.default_rng(13)
    year = lambda: str(random.integers(1998, 2048))
    rows = {
        "equals": lambda: ("city", json.dumps(str(random.choice(CITIES)))), "any": lambda: ("year", f"{year()},{year()},{year()}"),
        "except": lambda: ("city", '"Lima","Quito"'), "gt": lambda: ("year", year()), "lte": lambda: ("year", year()),
        "empty": lambda: ("draft", ""), "filled": lambda: ("city", ""), "ids": lambda: ("", f"{random.integers(50)},{random.integers(50)}"),
    }  # fmt: skip
    filters = []
    for _ in range(80):
        operators = random.choice(list(rows), size=random.integers(1, 5))
        made = [(operator, *rows[operator](), random.choice(["must", "should", "must_not"])) for operator in operators]
        filters.append([{"operator": str(operator), "key": key, "value": value, "clause": str(clause)} for operator, key, value, clause in made])
    script = (
        "const done = arguments[1]; import('/page-vectors-filter.js').then(({ filterOf }) => done(arguments[0].map(filterOf)))"
        ".catch((error) => done(String(error)))"
    )
    written = browser.execute_async_script(script, filters)
    assert isinstance(written, list), written
    for conditions, filter_ in zip(filters, written, strict=True):
        by_clause = {clause: [row for row in conditions if row["clause"] == clause] for clause in ("must", "should", "must_not")}
        wanted = sum(
            all(matches(row, point) for row in by_clause["must"])
            and not any(matches(row, point) for row in by_clause["must_not"])
            and (not by_clause["should"] or any(matches(row, point) for row in by_clause["should"]))
            for point in points
        )
        assert call(server, "POST", "notes/points/count", {"filter": filter_})["count"] == wanted, filter_


@pytest.mark.parametrize(
    ("key", "operator", "value", "words"),
    [("", "equals", "x", "Name the field"), ("year", "gt", "late", "not a number"), ("city", "equals", "", "Give a value"), ("", "ids", "x y", "not an id")],
)
def test_a_wrong_condition_is_shown_at_its_row(browser, server, key, operator, value, words):
    open_vectors(browser, server)
    add_condition(browser, "must", key, operator, value)
    click(browser, "#go")
    assert words in text(browser, ".condition .problem")
    assert ids(browser) == [], "the old result is gone"


def test_a_late_answer_does_not_replace_an_error(browser, server):
    open_vectors(browser, server)
    browser.execute_script(
        "const send = fetch;"
        "window.fetch = async (path, options) => {"
        "  const answer = await send(path, options);"
        "  if (String(path).endsWith('/scroll')) await new Promise((resume) => { window.resume = resume; });"
        "  return answer;"
        "}"
    )
    click(browser, "#go")
    wait(lambda: js(browser, "typeof window.resume") == "function", "the first search")
    change(browser, "#mode", "vector")
    change(browser, "#vector", "[1]")
    click(browser, "#go")
    assert "has 1 values" in text(browser, "#search-problem")
    browser.execute_async_script("window.resume(); setTimeout(arguments[0], 100)")
    assert ids(browser) == []
    assert js(browser, "document.getElementById('state').dataset.state") == "ready"


def test_similar_points(browser, server):
    open_vectors(browser, server)
    click(browser, "[data-point='3'] .similar")
    wanted = call(server, "POST", "notes/points/query", {"query": 3, "limit": 20})["points"]
    wait(lambda: ids(browser) == [str(point["id"]) for point in wanted], "the most similar points")
    assert texts(browser, ".score") == [f"{point['score']:.4f}" for point in wanted]
    assert "highest cosine similarity first" in text(browser, "#shown")
    click(browser, "#next")
    more = call(server, "POST", "notes/points/query", {"query": 3, "limit": 20, "offset": 20})["points"]
    wait(lambda: ids(browser) == [str(point["id"]) for point in more], "the next ones")
    change(browser, "#id", "99999")
    click(browser, "#go")
    wait(lambda: "99999" in text(browser, "#search-problem"), "an unknown point is an error")
    assert ids(browser) == []


def test_a_search_by_vector_with_a_filter(browser, server):
    open_vectors(browser, server)
    change(browser, "#mode", "vector")
    change(browser, "#vector", "[1, 0, 0]")
    click(browser, "#go")
    assert f"has 3 values, and the collection takes {DIMS}" in text(browser, "#search-problem")
    change(browser, "#vector", "[1, 0, 0, 0]")
    add_condition(browser, "must", "city", "equals", "Lima")
    click(browser, "#go")
    query = {"query": [1, 0, 0, 0], "limit": 20, "filter": {"must": [{"key": "city", "match": {"value": "Lima"}}]}}
    wanted = [str(point["id"]) for point in call(server, "POST", "notes/points/query", query)["points"]]
    wait(lambda: ids(browser) == wanted, "the server's hits")


def test_a_named_vector_is_searched(browser, server):
    open_vectors(browser, server, "named")
    assert 'vector "text"' in text(browser, "#facts")
    assert text(browser, "[data-point='2'] .vector") == "[2.000, 0.000]"
    click(browser, "[data-point='2'] .similar")
    wait(lambda: ids(browser) == ["1", "0"], "by distance")
    assert "smallest distance first" in text(browser, "#shown")


def test_a_payload_is_edited(browser, server):
    open_vectors(browser, server)
    click(browser, "[data-point='1'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point is shown")
    assert json.loads(text(browser, "#payload")) == {"city": "Lima", "year": 2001, "draft": False}
    click(browser, "#edit-start")
    for words, problem in [("{", "not JSON"), ("[1]", "an object")]:
        change(browser, "#edit-text", words)
        js(browser, "document.getElementById('edit').requestSubmit()")
        assert problem in text(browser, "#edit-problem")
    change(browser, "#edit-text", '{"city": "Quito", "year": 2001}')
    js(browser, "document.getElementById('edit').requestSubmit()")
    wait(lambda: "Quito" in text(browser, "#payload"), "the new payload is shown")
    assert call(server, "GET", "notes/points/1")["payload"] == {"city": "Quito", "year": 2001}
    wait(lambda: "Quito" in text(browser, "[data-point='1'] .payload"), "in the list, too")
    call(server, "PUT", "notes/points/payload", {"points": [1], "payload": {"city": "Lima", "year": 2001, "draft": False}})


def test_late_answers_leave_the_point_that_is_open(browser, server):
    open_vectors(browser, server)
    # The first read and each save come late.
    browser.execute_script(
        "const send = fetch; window.late = [];"
        "window.fetch = async (path, options) => {"
        "  const answer = await send(path, options), isLate = String(path).endsWith('/points/1') || options?.method === 'PUT';"
        "  if (isLate) await new Promise((resume) => { window.late.push(resume); });"
        "  return answer;"
        "}"
    )
    resume = "for (const resume of window.late.splice(0)) resume(); setTimeout(arguments[0], 100)"
    click(browser, "[data-point='1'] .open")
    wait(lambda: js(browser, "window.late.length") == 1, "the read of the first point")
    click(browser, "[data-point='2'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the second point is shown")
    click(browser, "#edit-start")
    browser.execute_async_script(resume)
    assert text(browser, "#details-title") == "Point 2"
    assert not js(browser, "document.getElementById('edit').hidden"), "it is still edited"
    js(browser, "document.getElementById('edit').requestSubmit()")
    wait(lambda: js(browser, "window.late.length") == 1, "the save")
    click(browser, "#details-close")
    browser.execute_async_script(resume)
    wait(lambda: "point 2 is saved" in text(browser, "#messages"), "the message")
    assert not js(browser, "document.getElementById('details').open"), "it stays closed"


def test_an_edited_payload_keeps_the_numbers_that_were_not_edited(browser, server):
    payload = {"price": 1.0, "parts": [-0.0, 1e22, 2.5, 3], "inner": {"rate": 100.0}, "note": "old"}
    call(server, "PUT", "notes/points", {"points": [{"id": 2000, "vector": [0, 0, 0, 1], "payload": payload}]})
    open_vectors(browser, server)
    add_condition(browser, "must", "", "ids", "2000")
    click(browser, "#go")
    wait(lambda: ids(browser) == ["2000"], "the point")
    listed = text(browser, "[data-point='2000'] .payload")
    assert "price 1.0" in listed and "inner.rate 100.0" in listed, listed
    click(browser, "[data-point='2000'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point is shown")
    assert '"price": 1.0' in text(browser, "#payload")
    click(browser, "#edit-start")
    edited = js(browser, "document.getElementById('edit-text').value").replace("old", "new")
    change(browser, "#edit-text", edited)
    js(browser, "document.getElementById('edit').requestSubmit()")
    wait(lambda: "new" in text(browser, "#payload"), "the new payload is shown")
    kept = call(server, "GET", "notes/points/2000")["payload"]
    # The text tells 1.0 from 1, which are equal in Python.
    assert json.dumps(kept, sort_keys=True) == json.dumps(payload | {"note": "new"}, sort_keys=True)
    call(server, "POST", "notes/points/delete", {"points": [2000]})


def test_numbers_of_64_bits_keep_their_digits(browser, server):
    near, far = 2**53, 2**53 + 1
    points = [{"id": at, "vector": [0, 0, 0, 1], "payload": {"big": at, "note": "old"}} for at in (near, far)]
    call(server, "PUT", "notes/points", {"points": points})
    open_vectors(browser, server)
    add_condition(browser, "must", "", "ids", str(far))
    click(browser, "#go")
    wait(lambda: ids(browser) == [str(far)], "the point with the odd id")
    assert f"big {far}" in text(browser, f"[data-point='{far}'] .payload")
    click(browser, f"[data-point='{far}'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point is shown")
    click(browser, "#edit-start")
    edited = js(browser, "document.getElementById('edit-text').value").replace("old", "new")
    change(browser, "#edit-text", edited)
    js(browser, "document.getElementById('edit').requestSubmit()")
    wait(lambda: "new" in text(browser, "#payload"), "the new payload is shown")
    assert call(server, "GET", f"notes/points/{far}")["payload"] == {"big": far, "note": "new"}
    assert call(server, "GET", f"notes/points/{near}")["payload"] == {"big": near, "note": "old"}
    choose(browser, "#details-actions", "Delete point…")
    answer(browser, "yes")
    wait(lambda: ids(browser) == [], "it is gone")
    assert requests.get(f"{server.url}/collections/notes/points/{far}", timeout=60).status_code == 404
    call(server, "POST", "notes/points/delete", {"points": [near]})


def test_a_point_is_deleted_after_a_question(browser, server):
    call(server, "PUT", "notes/points", {"points": [{"id": 1000, "vector": [0, 0, 0, 1]}]})
    open_vectors(browser, server)
    add_condition(browser, "must", "", "ids", "1000")
    click(browser, "#go")
    wait(lambda: ids(browser) == ["1000"], "the point")
    click(browser, "[data-point='1000'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point is shown")
    choose(browser, "#details-actions", "Delete point…")
    answer(browser, "yes")
    wait(lambda: ids(browser) == [], "it is gone")
    assert requests.get(f"{server.url}/collections/notes/points/1000", timeout=60).status_code == 404


def test_a_page_without_points_is_left(browser, server):
    call(server, "PUT", "paged", {"vectors": {"size": 1, "distance": "Dot"}})
    call(server, "PUT", "paged/points", {"points": [{"id": at, "vector": [1]} for at in range(1, 22)]})
    open_vectors(browser, server, "paged")
    click(browser, "#next")
    wait(lambda: ids(browser) == ["21"], "the last page")
    click(browser, "[data-point='21'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point is shown")
    choose(browser, "#details-actions", "Delete point…")
    answer(browser, "yes")
    wait(lambda: ids(browser) == [str(at) for at in range(1, 21)], "the page before")
    assert text(browser, "#shown") == "1–20 of 20"
    call(server, "DELETE", "paged")


def test_values_of_a_field_are_counted_and_chosen(browser, server):
    open_vectors(browser, server)
    change(browser, "#facet-key", "city")
    click(browser, "#facet button")
    wait(lambda: sorted(texts(browser, "#facet-hits .name")) == sorted(CITIES), "the values")
    assert set(texts(browser, "#facet-hits .note")) == {"15"}
    click(browser, "#facet-hits button")
    chosen = texts(browser, "#facet-hits .name")[0]
    wait(lambda: "of 15 that match" in text(browser, "#shown"), "the points of a value")
    assert shown(browser) == {"must": [{"key": "city", "match": {"value": chosen}}]}
    change(browser, "#facet-key", "nothing")
    click(browser, "#facet button")
    wait(lambda: "No point has" in text(browser, "#facet-problem"), "an unknown field")


def test_a_counted_value_keeps_its_field(browser, server):
    open_vectors(browser, server)
    change(browser, "#facet-key", "city")
    click(browser, "#facet button")
    wait(lambda: texts(browser, "#facet-hits .name"), "the values")
    chosen = texts(browser, "#facet-hits .name")[0]
    change(browser, "#facet-key", "draft")
    click(browser, "#facet-hits button")
    assert shown(browser) == {"must": [{"key": "city", "match": {"value": chosen}}]}


def test_health_and_segments(browser, server):
    open_vectors(browser, server)
    state = call(server, "GET", "notes/segments")
    assert state["points"] == POINTS + 1 and state["damaged"] == [] and set(state["errors"].values()) == {None}
    assert state["memory"]["used_bytes"] <= state["memory"]["limit_bytes"]
    wait(lambda: texts(browser, ".health-facts dd"), "the figures")
    assert texts(browser, ".health-facts dd")[:2] == [str(POINTS + 1), str(state["unflushed_points"])]
    assert "of 2.0 GiB" in text(browser, ".memory") or "GiB" in text(browser, ".memory")
    assert text(browser, "#health") == "healthy"


def test_declared_fields_are_listed(browser, server):
    call(server, "PUT", "declared", {"vectors": {"size": 2, "distance": "Dot"}})
    call(server, "PUT", "declared/points", {"points": [{"id": 1, "vector": [1, 0], "payload": {"city": "Oslo"}}, {"id": 2, "vector": [0, 1]}]})
    call(server, "PUT", "declared/index", {"field_name": "city", "field_schema": "keyword"})
    open_vectors(browser, server, "declared")
    wait(lambda: texts(browser, ".indexes tbody tr > *") == ["city", "keyword", "1"], "the field, its type and its points")
    call(server, "DELETE", "declared")


def test_a_menu_by_keyboard(browser, server):
    open_vectors(browser, server)
    js(browser, "document.querySelector('#menu .menu-button').focus()")
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert js(browser, "document.activeElement.textContent") == "Delete collection…"
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert js(browser, "document.activeElement.className").endswith("menu-button"), "the focus is back"
    assert js(browser, "document.activeElement.getAttribute('aria-expanded')") == "false"


def test_a_point_by_keyboard(browser, server):
    open_vectors(browser, server)
    js(browser, "document.getElementById('next').focus()")
    for _ in range(TABS_MAX):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if js(browser, "document.activeElement.classList.contains('open')"):
            break
    assert js(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    wait(lambda: js(browser, "document.getElementById('details').open"), "Enter opens the point")
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    wait(lambda: not js(browser, "document.getElementById('details').open"), "Escape closes it")
    wait(lambda: js(browser, "document.activeElement.classList.contains('open')"), "the focus is back")


def test_a_vector_is_copied_without_a_clipboard(browser, server):
    open_vectors(browser, server)
    # As at an address without HTTPS.
    browser.execute_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    click(browser, "[data-point='3'] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point")
    browser.find_element("css selector", "#vector-copy button").click()
    wait(lambda: text(browser, "#messages"), "an answer")
    assert "Copied the vector" in text(browser, "#messages")
    assert js(browser, "document.activeElement.closest('#vector-copy') !== null"), "the focus is back"


def test_without_a_collection_an_example_runs(browser, tmp_path):
    (tmp_path / "models").mkdir()
    server = millpond.Server(tmp_path / "models", "--collections-dir", str(tmp_path / "collections"), log=tmp_path / "server.log").wait_ready()
    try:
        open_vectors(browser, server, None, "none")
        exec(text(browser, "#none-code"), {})  # noqa: S102
        browser.refresh()
        wait(lambda: js(browser, "document.querySelector('[data-collection=notes] td')?.textContent") == "1", "the example's collection")
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(("name", "vectors"), [("plain", {"size": 3, "distance": "Dot"}), ("with-name", {"text": {"size": 3, "distance": "Dot"}})])
def test_an_empty_collection_shows_how_points_are_added(browser, server, name, vectors):
    call(server, "PUT", name, {"vectors": vectors})
    open_vectors(browser, server, name)
    exec(text(browser, "#points-code"), {})  # noqa: S102
    click(browser, "#go")
    wait(lambda: ids(browser) == ["1"], "the example's point")
    call(server, "DELETE", name)


def test_examples_have_the_port_and_a_key(browser, server):
    open_vectors(browser, server)
    script = (
        "const done = arguments[arguments.length - 1];"
        "import('/page-vectors-api.js').then((api) => done([api.clientCode('https://host', true), api.clientCode('http://host:8501', false)]))"
    )
    locked, plain = browser.execute_async_script(script)
    assert 'QdrantClient("https://host", port=443, api_key=os.environ["MILLPOND_API_KEY"])' in locked
    assert "import os\n" in locked and "import os\n" not in plain
    assert 'QdrantClient("http://host:8501")' in plain


def test_with_keys_a_session_reads_and_writes_by_its_role(browser, tmp_path):
    (tmp_path / "models").mkdir()
    file = tmp_path / "keys.toml"
    writer, reader = (new_key(file, "--role", role, "--name", role) for role in ("write", "read"))
    places = ("--collections-dir", str(tmp_path / "collections"), "--keys", str(file))
    server = millpond.Server(tmp_path / "models", *places, log=tmp_path / "server.log").wait_ready()
    try:
        browser.get(f"{server.url}/vectors")
        browser.find_element("id", "key").send_keys(writer, Keys.ENTER)
        wait(lambda: js(browser, "document.getElementById('state')?.dataset.state") == "none", "the list")
        assert "api_key=" in text(browser, "#none-code")
        click(browser, "#create")
        change(browser, "#new-name", "guarded")
        js(browser, "document.getElementById('make-form').requestSubmit()")
        wait(lambda: "collection=guarded" in browser.current_url, "a writer creates a collection")
        browser.delete_all_cookies()
        browser.get(f"{server.url}/vectors?collection=guarded")
        browser.find_element("id", "key").send_keys(reader, Keys.ENTER)
        wait(lambda: js(browser, "document.getElementById('state')?.dataset.state") == "ready", "a reader reads it")
        assert "api_key=" in text(browser, "#points-code")
        choose(browser, "#one", "Delete collection…")
        answer(browser, "yes")
        wait(lambda: "guarded was not deleted" in text(browser, "#messages"), "a reader deletes nothing")
    finally:
        browser.delete_all_cookies()
        assert server.stop() == 0, server.log_text()


def test_messages_are_above_an_open_dialog(browser, server):
    open_vectors(browser, server)
    click(browser, "[data-point] .open")
    wait(lambda: js(browser, "document.getElementById('details').open"), "the point is shown")
    click(browser, "#details .copy")
    wait(lambda: js(browser, "document.querySelector('#messages .message')"), "a message")
    at_middle = (
        "(() => { const { left, right, top, bottom } = document.querySelector('.message').getBoundingClientRect();"
        " return Boolean(document.elementFromPoint((left + right) / 2, (top + bottom) / 2).closest('.message')); })()"
    )
    assert js(browser, at_middle), "the dialog does not dim it"
    click(browser, "#details-close")
    at_body = "document.getElementById('messages').parentElement === document.body"
    wait(lambda: js(browser, at_body), "a dialog tells its end in an event")
    assert js(browser, at_middle)


def test_a_long_name_scrolls_the_table_only(browser, server):
    name = "n" * 200
    call(server, "PUT", name, {"vectors": {"size": 3, "distance": "Cosine"}})
    look(browser, PHONE)
    open_vectors(browser, server, None)
    wait(lambda: name in text(browser, "#rows"), "the collection is listed")
    assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
    assert js(browser, "document.getElementById('table').scrollWidth > document.getElementById('table').clientWidth")
    call(server, "DELETE", name)


def test_a_phone_needs_no_sideways_scrolling(browser, server):
    look(browser, PHONE)
    for collection in (None, "notes"):
        open_vectors(browser, server, collection)
        if collection:
            add_condition(browser, "must", "city", "equals", "Lima")
        assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
        small = "[...document.querySelectorAll('main button, main select')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40 && !e.closest('.bars-list')).length"
        assert js(browser, small) == 0, "large enough for a finger"


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("vectors-light", DESKTOP, "light"), ("vectors-dark", DESKTOP, "dark"), ("vectors-phone", PHONE, "light")]
)
def test_screenshots_are_legible(browser, server, name, size, scheme):
    look(browser, size, scheme)
    open_vectors(browser, server)
    add_condition(browser, "must", "city", "any", "Berlin, Lima")
    change(browser, "#facet-key", "city")
    click(browser, "#facet button")
    click(browser, "[data-point='3'] .similar")
    wait(lambda: texts(browser, "#facet-hits .name") and texts(browser, ".score"), "everything is shown")
    seen = browser.execute_script(CONTRASTS)
    assert len(seen["texts"]) > 60
    assert [entry for entry in seen["texts"] if entry[1] < TEXT_CONTRAST_MIN] == []
    path = PICTURES / f"{name}.png"
    picture(browser, path)
    assert path.stat().st_size > 30_000
