"""Runs a recipe on the sample images with a server of its own, and checks the points that it has written."""

import contextlib
import functools
import http.server
import io
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import requests
from features import BulkJob, Summary
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from server import made, serving  # noqa: E402

SAMPLES = made(".cache/images/pictures", "images-model")
MODEL = "mobilenet-v2"
CONCURRENCY = 2
INTERRUPTED_AFTER = 5
QUERIES = 3
TIMEOUT_S = 60


class BusyServer(http.server.BaseHTTPRequestHandler):
    """An extraction server that is always busy, and asks for half an hour."""

    requests = 0

    def do_POST(self) -> None:
        BusyServer.requests += 1
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503)
        self.send_header("retry-after", "1800")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    """A web server with images."""

    def log_message(self, *_) -> None:
        pass


@contextlib.contextmanager
def listening(handler):
    """Runs an HTTP server on a free port. Yields its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def sample_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    """Links the sample images, one of them twice, and adds a file that is not an image. Returns the images."""
    samples = sorted(SAMPLES.glob("*.*"))
    for sample in samples:
        (folder / sample.name).symlink_to(sample)
    (folder / "again.png").symlink_to(samples[0])
    (folder / "broken.jpg").write_bytes(b"no image")
    return samples


def changed_copy(file: pathlib.Path) -> bytes:
    """Returns an image rotated by 5 degrees, as a JPEG of low quality."""
    body = io.BytesIO()
    Image.open(file).convert("RGB").rotate(5).save(body, "JPEG", quality=60)
    return body.getvalue()


def found(photos: str, file: pathlib.Path) -> bool:
    """Returns true if a search for a changed copy finds the image, and names its source."""
    answer = requests.post(f"{photos}/search", data=changed_copy(file), params={"k": 1}, timeout=TIMEOUT_S)
    answer.raise_for_status()
    (best,) = answer.json()["results"]
    names = {pathlib.PurePath(best["payload"]["source"]).name, best["name"]}
    return best["accepted"] and names <= {file.name, "again.png"}


def check(run: Callable[[BulkJob, str], Summary], urls: bool) -> None:
    """Runs a recipe until it is interrupted, then to its end, then once more. `urls`: it can read URLs too."""
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = scratch / "images"
        folder.mkdir()
        samples = sample_folder(folder)
        server = stack.enter_context(serving(made(".cache/images/models", "images-model")))
        busy = stack.enter_context(listening(BusyServer))
        job = BulkJob([busy, server], [server], "photos", MODEL, concurrency=CONCURRENCY, progress=scratch / "progress.jsonl")

        # A list of a few images, and the part of a line that a killed job leaves.
        first = [str(folder / sample.name) for sample in samples[:INTERRUPTED_AFTER]]
        if urls:
            web = stack.enter_context(listening(functools.partial(QuietFiles, directory=folder)))
            first[0] = f"{web}/{samples[0].name}"
        (scratch / "list.txt").write_text("\n".join(first))
        print(f"a list: {run(job, str(scratch / 'list.txt')).text()}")
        with job.progress.open("a") as file:
            file.write('{"source": "/tmp/ima')

        started = time.monotonic()
        summary = run(job, str(folder))
        print(f"the folder: {summary.text()}, in {time.monotonic() - started:.1f} s")
        for source, reason in summary.errors.items():
            print(f"failed: {pathlib.Path(source).name}: {reason.split(': ', 1)[1].partition(' (')[0]}")
        print(f"the folder again: {run(job, str(folder)).text()}")

        photos = f"{server}/v1/images/photos"
        print(f"points: {requests.get(photos, timeout=TIMEOUT_S).json()['count']} of {len(samples)}")
        print(f"found by changed copies: {all(found(photos, sample) for sample in samples[:: len(samples) // QUERIES])}")
        # Until its first answer arrives, it gets as many images as the other server, in each of three runs.
        print(f"the busy server got few requests: {BusyServer.requests <= 3 * CONCURRENCY}")
