"""The parts that the recipes of bulk extraction share, against servers of these tests."""

import concurrent.futures
import dataclasses
import email.utils
import http.server
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/bulk"))

import extract_plain  # noqa: E402
import features  # noqa: E402
from features import Batch, BulkJob, Extraction, FeatureStore, ImageError, JobError, Progress, Summary  # noqa: E402

# Answers a request's body with a status, headers and JSON.
Answer = tuple[int, dict[str, str], dict]


class ScriptedServer:
    """A server whose answers a test chooses. Keeps the bodies of all requests."""

    def __init__(self, answer: Callable[[bytes], Answer]):
        self.bodies: list[bytes] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_request(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                owner.bodies.append(body)
                status, headers, content = answer(body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                text = json.dumps(content).encode()
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_PUT = handle_request

            def log_message(self, *_) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # The interval of its checks for its end.
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable]:
    servers = []

    def start(answer: Callable[[bytes], Answer]) -> ScriptedServer:
        servers.append(ScriptedServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def job(*servers: ScriptedServer) -> BulkJob:
    urls = [server.url for server in servers]
    return BulkJob(urls, urls, "photos", "embedder")


def in_turn(*answers: Answer) -> Callable[[bytes], Answer]:
    """Returns the answers in turn, and then always the last one."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


BUSY = (503, {"retry-after": "0"}, {"error": "busy"})
POINT = (200, {}, {"id": "x", "embedding": [1.0], "record": ""})


def batch(*numbers: int) -> Batch:
    made = Batch()
    for number in numbers:
        assert made.add(f"/{number}.jpg", {"id": number})
    return made


def test_busy_answers_are_tried_again(serve):
    server = serve(in_turn(BUSY, (429, {"retry-after": "0"}, {}), POINT))
    assert Extraction(job(server)).point("/a/b.jpg", b"image")["payload"] == {"source": "/a/b.jpg"}
    assert server.bodies == [b"image"] * 3


def test_another_server_takes_over(serve):
    busy = serve(in_turn((503, {"retry-after": "3600"}, {})))
    free = serve(in_turn(POINT))
    extraction = Extraction(job(busy, free))
    for _ in range(5):
        extraction.point("/a.jpg", b"image")
    assert (len(busy.bodies), len(free.bodies)) == (1, 5)


def test_tries_end(serve):
    server = serve(in_turn(BUSY))
    with pytest.raises(JobError, match="given up after 8 tries for each server; the last answer: .* 503 busy"):
        Extraction(job(server)).point("/a.jpg", b"image")
    assert len(server.bodies) == features.TRIES_MAX


def test_servers_that_do_not_answer_end_all_requests(serve, capsys):
    server = serve(in_turn(*[BUSY] * (features.TRIES_MAX + 1), POINT))
    extraction = Extraction(job(server))
    for tries in (features.TRIES_MAX, features.TRIES_MAX + 1):
        with pytest.raises(JobError, match="given up"):
            extraction.point("/a.jpg", b"image")
        assert len(server.bodies) == tries
    assert "503 busy\n  failure 2 in a row; the next try is in 0.0 s\n" in capsys.readouterr().err
    # An answer counts more than the failures before it.
    extraction.point("/a.jpg", b"image")
    assert extraction.servers.failures[server.url] == 0


def test_message_of_an_error_of_ray():
    text = "ray::MapWorker()\n  raise JobError\nfeatures.JobError: given up: 503 busy\n\nThe above exception\n"
    assert features.message_of(RuntimeError(text)) == "given up: 503 busy"
    assert features.message_of(RuntimeError("the node is gone")) == "the node is gone"


@pytest.mark.parametrize(
    "arguments,message",
    [(["127.0.0.1:8501", "."], "127.0.0.1:8501 is not a URL such as"), (["http://host", "/no/such"], "no such folder")],
)
def test_wrong_arguments_are_named(arguments, message, monkeypatch, capsys):
    url, images = arguments
    rest = ["--write", "http://host", "--collection", "photos", "--model", "m"]
    monkeypatch.setattr(sys, "argv", ["extract_plain.py", "--extract", url, *rest, images])
    with pytest.raises(SystemExit):
        features.job_of_arguments("Extraction.")
    assert message in capsys.readouterr().err


def test_written_points_are_recorded_while_others_are_extracted(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "POINTS_MAX", 2)
    folder, progress = tmp_path / "images", tmp_path / "progress.jsonl"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.png").write_text(str(number))
    recorded = []

    def answer(body: bytes) -> Answer:
        if body.startswith(b"{"):
            return 200, {}, {"added": len(json.loads(body)["points"]), "replaced": 0}
        deadline = time.monotonic() + 20
        while body == b"3" and not recorded and time.monotonic() < deadline:
            time.sleep(0.01)
            recorded.extend(progress.read_text().splitlines())
        return 200, {}, {"id": body.decode()}

    made = dataclasses.replace(job(serve(answer)), concurrency=1, progress=progress)
    summary = extract_plain.run(made, str(folder))
    assert (len(recorded), summary.added, len(progress.read_text().splitlines())) == (2, 4, 4)


def test_a_batch_that_waits_queues_no_more_images(tmp_path, monkeypatch):
    made = BulkJob(["http://host"], ["http://host"], "photos", "m", concurrency=1, progress=tmp_path / "progress.jsonl")
    run = extract_plain.Run(made)
    later = concurrent.futures.Future()
    later.set_result(features.WrittenBatch())
    run.writes = [concurrent.futures.Future(), later]
    queued = []
    wait = concurrent.futures.wait

    def finish_one(futures: list[concurrent.futures.Future], return_when: str):
        if not any(future.done() for future in futures):
            next(future for future in queued if not future.done()).set_result({"id": len(queued)})
        return wait(futures, return_when=return_when)

    class Extractors:
        def submit(self, *_) -> concurrent.futures.Future:
            queued.append(concurrent.futures.Future())
            assert sum(not future.done() for future in queued) <= extract_plain.QUEUED_MAX
            return queued[-1]

    monkeypatch.setattr(concurrent.futures, "wait", finish_one)
    run.extractors = Extractors()
    assert len(list(run.extracted(map(str, range(20))))) == 20
    run.progress.close()


@pytest.mark.parametrize("status,error", [(400, ImageError), (413, ImageError), (401, JobError), (409, JobError)])
def test_other_answers_are_not_tried_again(serve, status, error):
    server = serve(in_turn((status, {}, {"error": "wrong"})))
    with pytest.raises(error, match=f"{status} wrong"):
        Extraction(job(server)).point("/a.jpg", b"image")
    assert len(server.bodies) == 1


@pytest.mark.parametrize("form", ["seconds", "date", "none", "nonsense"])
def test_forms_of_retry_after(form):
    answer = features.requests.Response()
    texts = {"seconds": "7", "date": email.utils.formatdate(time.time() + 3600, usegmt=True), "nonsense": "soon"}
    if form in texts:
        answer.headers["retry-after"] = texts[form]
    pause = features.retry_after(answer)
    if form == "date":
        assert 3500 < pause <= 3600
    else:
        assert pause == (7 if form == "seconds" else None)


@pytest.mark.parametrize("status,tries", [(507, 1), (503, features.TRIES_MAX)])
def test_a_shard_that_refuses_its_points_costs_no_other(serve, status, tries):
    full = [{"id": 2, "error": "all disks are full"}, {"id": 5, "error": "all disks are full"}]
    content = {"error": "2 of 6 points failed: all disks are full", "added": 3, "replaced": 1, "failed": full}
    server = serve(in_turn((status, {"retry-after": "0"}, content)))
    written = FeatureStore(job(server)).write(batch(*range(6)))
    assert (written.added, written.replaced) == (3, 1)
    assert written.sources == [f"/{number}.jpg" for number in (0, 1, 3, 4)]
    assert written.errors == {f"/{number}.jpg": "all disks are full" for number in (2, 5)}
    assert len(server.bodies) == tries


def test_a_wrong_point_costs_no_other(serve):
    def answer(body: bytes) -> Answer:
        ids = [point["id"] for point in json.loads(body)["points"]]
        return (400, {}, {"error": "wrong"}) if 3 in ids else (200, {}, {"added": len(ids), "replaced": 0})

    server = serve(answer)
    written = FeatureStore(job(server)).write(batch(*range(8)))
    assert sorted(written.sources) == [f"/{number}.jpg" for number in range(8) if number != 3]
    assert (written.added, list(written.errors)) == (7, ["/3.jpg"])
    # All, its halves, and two more pairs of halves.
    assert len(server.bodies) == 7


def test_equal_images_are_one_point(serve):
    server = serve(lambda body: (200, {}, {"added": len(json.loads(body)["points"]), "replaced": 0}))
    made = batch(1, 2)
    assert made.add("/copy.jpg", {"id": 1})
    summary = Summary()
    written = FeatureStore(job(server)).write(made)
    summary.wrote(written)
    assert (summary.added, summary.equal) == (2, 1)
    assert sorted(written.sources) == ["/1.jpg", "/2.jpg", "/copy.jpg"]


def test_a_batch_keeps_to_the_limits_of_a_request(serve):
    many = batch(*range(features.POINTS_MAX))
    assert not many.add("/more.jpg", {"id": -1})
    large = Batch()
    text = "x" * (20 << 20)
    added = [large.add(f"/{number}", {"id": number, "text": text}) for number in range(4)]
    assert added == [True, True, True, False]
    server = serve(lambda _: (200, {}, {"added": 0, "replaced": 3}))
    FeatureStore(job(server)).write(large)
    assert [len(body) for body in server.bodies] == [large.bytes - 1]
    assert len(server.bodies[0]) <= features.BODY_BYTES_MAX


def test_progress_survives_a_killed_job(tmp_path):
    path = tmp_path / "progress.jsonl"
    first = Progress(path)
    first.add(["/a", "/b"], {"/c": "no image"})
    first.close()
    with path.open("ab") as file:
        file.write(b'{"source": "/d')
    second = Progress(path)
    assert second.finished == {"/a", "/b"}
    second.add(["/c"], {})
    second.close()
    third = Progress(path)
    assert third.finished == {"/a", "/b", "/c"}
    third.close()


def test_many_failures_in_a_row_end_the_job():
    summary = Summary()
    with pytest.raises(JobError, match="100 images in a row have failed; the last: /99: wrong"):
        for number in range(1000):
            summary.failed(f"/{number}", "wrong")


def test_a_name_that_is_not_utf8_costs_no_other_image(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"one")
    (tmp_path / "tea.jpg").write_bytes(b"two")
    wrong, right = features.sources(str(tmp_path))
    reader = features.ImageReader()
    with pytest.raises(ImageError, match="the name is not UTF-8") as raised:
        reader.read(wrong)
    assert reader.read(right) == b"two"
    path = tmp_path / "progress.jsonl"
    progress = Progress(path)
    progress.add([], {wrong: str(raised.value)})
    progress.close()
    assert json.loads(path.read_text())["source"] == wrong


def test_images_of_folders_and_lists(tmp_path):
    for name in ("b/2.JPG", "b/notes.txt", "a/3.png", "1.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [source.removeprefix(str(tmp_path)) for source in features.sources(str(tmp_path))]
    assert found == ["/1.webp", "/a/3.png", "/b/2.JPG"]
    (tmp_path / "list.txt").write_text("/x.jpg\n\n  https://host/y%20z.jpg?size=9 \ns3://bucket/z.png\n")
    listed = list(features.sources(str(tmp_path / "list.txt")))
    assert listed == ["/x.jpg", "https://host/y%20z.jpg?size=9", "s3://bucket/z.png"]
    assert [features.image_name(source) for source in listed] == ["x.jpg", "y z.jpg", "z.png"]
    assert len(features.image_name("/" + "ü" * 300).encode()) == features.NAME_BYTES_MAX
