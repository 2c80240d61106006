"""The page's files, its events, and access to them."""

import contextlib
import json
import socket
import time

import pytest
import requests
from models import half_plus_two
from screen import BROKEN, SWAPPED, UNLOADED

from millpond import Server, drop_in

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
VIEWERS_MAX = 32


@pytest.fixture
def serve(tmp_path):
    """Starts a server of half_plus_two only: `serve(*flags)`."""
    started = []

    def start(*flags: str) -> Server:
        drop_in(half_plus_two(tmp_path / "source.onnx"), tmp_path / "root" / UNLOADED, 1)
        server = Server(tmp_path / "root", *flags, log=tmp_path / "server.log")
        started.append(server)
        return server.wait_ready()

    yield start
    assert [server.stop() for server in started] == [0] * len(started)


def events(answer: requests.Response):
    """Yields names and contents of events as they arrive."""
    name = None
    for line in answer.iter_lines(chunk_size=1, decode_unicode=True):
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def watch(server: Server, **headers: str) -> requests.Response:
    return requests.get(f"{server.url}/events", stream=True, timeout=60, headers=headers)


def test_programs_get_text_and_browsers_the_page(server):
    # Libraries get Qdrant's title and version, which tools read.
    assert requests.get(f"{server.url}/", timeout=60).json()["version"]
    text = requests.get(f"{server.url}/", headers={"User-Agent": "curl/8.5.0"}, timeout=60)
    assert text.headers["Content-Type"].startswith("text/plain")
    assert text.text.startswith("millpond ")
    page = requests.get(f"{server.url}/", headers=BROWSER, timeout=60)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    assert page.headers["Cache-Control"] == "no-cache"
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    kinds = {"page.css": "text/css", "page.js": "text/javascript", "page-chart.js": "text/javascript", "page-icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        found = requests.get(f"{server.url}/{name}", timeout=60)
        assert found.status_code == 200
        assert found.headers["Content-Type"].startswith(kind)
        assert found.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.usefixtures("traffic")
def test_the_history_precedes_a_tick_a_second(server):
    time.sleep(3)
    with watch(server) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["X-Accel-Buffering"] == "no", "nginx would hold events back"
        stream = events(answer)
        (first, past), (second, tick), (third, later) = next(stream), next(stream), next(stream)
        assert (first, second, third) == ("history", "tick", "tick")
        # A busy machine may leave a second without a request.
        for _ in range(60):
            if any(model["name"] == SWAPPED and model["requests"] > 0 for model in later["models"]):
                break
            third, later = next(stream)
            assert third == "tick"
    assert past["server"]["name"] == "millpond"
    assert past["server"]["root"] == str(server.root)
    assert tick["at"] < later["at"]
    assert later["machine"]["workers"] >= 1
    models = {model["name"]: model for model in later["models"]}
    assert models[SWAPPED]["requests"] > 0
    assert 0 < models[SWAPPED]["p50"] <= models[SWAPPED]["p99"]
    assert (models[BROKEN]["state"], models[BROKEN]["level"]) == ("failed", "failing")
    memory = {use["kind"]: use for use in later["machine"]["memory"]}
    assert memory["parameters of models"]["used"] > 0
    assert memory["process in total"]["used"] > memory["heap"]["used"]
    assert {disk["name"] for disk in later["machine"]["disks"]} >= {"models"}
    settings = {entry["key"]: entry["value"] for section in past["server"]["settings"] for entry in section["settings"]}
    assert settings["http-port"] == str(server.http_port)


def history(server: Server, model: str, seconds: int) -> requests.Response:
    return requests.get(f"{server.url}/page/model", params={"name": model, "seconds": seconds}, timeout=60)


@pytest.mark.usefixtures("traffic")
def test_the_history_of_a_model_has_its_ranges(server):
    def points() -> list[list[int]]:
        return history(server, SWAPPED, 120).json()["history"]["all"]["points"]

    deadline = time.monotonic() + 60
    while len(points()) < 4:
        assert time.monotonic() < deadline, "no history"
        time.sleep(0.2)
    ends = [point[0] for point in points()]
    assert ends == sorted(set(ends)), "no second is told twice"
    assert all(p50 <= p90 <= p99 <= p999 for _, _, _, p50, p90, p99, p999, _, _ in points())
    for seconds, step in ((120, 1), (900, 10), (3600, 10), (21600, 60), (86400, 240)):
        assert history(server, SWAPPED, seconds).json()["history"]["step"] == step
    assert history(server, "nowhere", 120).status_code == 404
    assert history(server, SWAPPED, 0).status_code == 400
    assert history(server, SWAPPED, 86401).status_code == 400


def test_events_are_listed(server):
    def events(**params) -> list[dict]:
        answer = requests.get(f"{server.url}/v2/events", params=params, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["events"]

    failed = [event for event in events(model=BROKEN) if event["kind"] == "failed"]
    assert failed
    assert failed[0]["level"] == "error"
    assert failed[0]["version"] == 1
    assert abs(failed[0]["time_ms"] / 1000 - time.time()) < 3600
    loaded = [event for event in events(model=SWAPPED) if event["kind"] == "loaded"]
    assert loaded[0]["version"] == 1
    ids = [event["id"] for event in events()]
    assert ids == sorted(set(ids))
    # An event may arrive between two calls.
    newest = [event["id"] for event in events(limit=1)]
    assert len(newest) == 1 and newest[0] >= ids[-1]
    assert newest[0] == ids[-1] or newest[0] in [event["id"] for event in events(after=ids[-1])]
    assert all(event["id"] > ids[-1] for event in events(after=ids[-1]))
    for wrong in ({"limit": 0}, {"limit": "x"}, {"since": 3}):
        answer = requests.get(f"{server.url}/v2/events", params=wrong, timeout=60)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]


def test_viewers_are_bounded_and_leave_room(serve):
    server = serve()
    with contextlib.ExitStack() as open_pages:
        for _ in range(VIEWERS_MAX):
            assert open_pages.enter_context(watch(server)).status_code == 200
        refused = requests.get(f"{server.url}/events", timeout=60)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        assert "pages are open" in refused.json()["error"]
        metrics = requests.get(f"{server.url}/metrics", timeout=60).text
        assert 'millpond_refused_total{kind="pages_max"} 1\n' in metrics
    deadline = time.monotonic() + 60
    while requests.get(f"{server.url}/events", timeout=60, stream=True).status_code != 200:
        assert time.monotonic() < deadline, "closed pages gave no place back"
        time.sleep(0.2)


def test_open_pages_take_no_room_from_requests(serve):
    server = serve("--max-requests", "1")
    with watch(server) as one, watch(server) as two:
        assert next(events(one))[0] == next(events(two))[0] == "history"
        server.assert_serving()


def test_open_pages_end_with_the_server(serve):
    server = serve("--shutdown-grace", "120s")
    with watch(server) as answer:
        stream = events(answer)
        assert next(stream)[0] == "history"
        server.terminate()
        assert all(name == "tick" for name, _ in stream), "the stream ends, whole"
        # It must not use up the grace time.
        assert server.process.wait(60) == 0


def test_a_page_that_reads_nothing_does_not_delay_shutdown(serve):
    server = serve("--shutdown-grace", "120s")
    with socket.create_connection(("127.0.0.1", server.http_port)) as asleep:
        asleep.sendall(f"GET /events HTTP/1.1\r\nHost: {server.http}\r\n\r\n".encode())
        time.sleep(3)
        server.terminate()
        # It must not use up the grace time.
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "http://{host}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        # A host name of another site that points at this machine: to the browser, page and server have the same origin.
        ({"Origin": "http://evil.example:80", "Host": "evil.example:80", "Sec-Fetch-Site": "same-origin"}, 403),
    ],
)  # fmt: skip
def test_pages_of_other_sites_change_nothing(server, verb, headers, status):
    sent = {name: value.format(host=server.http) for name, value in headers.items()}
    answer = requests.post(f"{server.url}/v2/repository/models/{UNLOADED}/{verb}", headers=sent, timeout=30)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert server.versions(UNLOADED)[1]["state"] == "AVAILABLE"
        assert "page" in answer.json()["error"]
    elif verb == "unload":
        back = requests.post(f"{server.url}/v2/repository/models/{UNLOADED}/load", timeout=30)
        assert back.status_code == 200, back.text


def test_events_are_not_for_other_sites(server):
    assert watch(server, Origin="http://evil.example").status_code == 403
