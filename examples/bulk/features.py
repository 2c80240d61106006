"""Parts of both recipes: requests with retries, batches of points, the list of images and the file of progress."""

import argparse
import collections
import contextlib
import dataclasses
import email.utils
import json
import os
import pathlib
import random
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

# Limits of `PUT /v1/images/NAME/features`.
POINTS_MAX = 1000
BODY_BYTES_MAX = 64 << 20
# Default of `serve --max-body`.
IMAGE_BYTES_MAX = 64 << 20
NAME_BYTES_MAX = 512
NAME_ERROR = "the name is not UTF-8, as JSON and URLs need; rename the file"
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".wsq"}
# Tries of a request for each server. Without Retry-After the pauses grow from half a second to PAUSE_MAX_S.
TRIES_MAX = 8
PAUSE_S = 0.25
PAUSE_MAX_S = 30.0
RETRY_AFTER_MAX_S = 600.0
# A longer pause is printed.
PAUSE_NAMED_S = 5.0
TIMEOUT_S = (10, 120)
# The same request may succeed later, or at another server.
BUSY = {408, 429, 502, 503, 504}
# This image or this point is wrong; the next one may be right.
WRONG = {400, 413, 415, 422, 500}
# So many wrong images in a row have one reason, such as a wrong setting.
FAILURES_IN_A_ROW_MAX = 100
READ_BYTES = 1 << 20
# End of the message of a job that ended early.
CONTINUES = "The job continues from here if you start it again."


class ImageError(Exception):
    """An image that cannot be read or extracted, or a point that cannot be written."""


class JobError(Exception):
    """A failure that every other image would meet too."""


def message_of(error: Exception) -> str:
    """Returns the message of the JobError in the traceback that an error of Ray has as its text, or all of the text."""
    found = re.search(r"^(?:\w+\.)?JobError: (.+)$", str(error), re.MULTILINE)
    return found[1] if found else str(error)


@dataclasses.dataclass(frozen=True)
class BulkJob:
    """Servers and settings of a job."""

    # Base URLs of servers that extract features, and of servers (roots of a cluster) that take points.
    extract: list[str]
    write: list[str]
    collection: str
    model: str
    kind: str = "photo"
    # Images on their way to each extraction server.
    concurrency: int = 8
    progress: pathlib.Path = pathlib.Path("progress.jsonl")
    key: str | None = None

    @property
    def images_at_once(self) -> int:
        return self.concurrency * len(self.extract)


def server_url(text: str) -> str:
    """Returns the base URL of a server, for argparse."""
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text} is not a URL such as http://127.0.0.1:8501")
    return text


def job_of_arguments(description: str) -> tuple[BulkJob, str]:
    """Reads the arguments of a recipe. Returns the job, and the folder or the list of images."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("images", help="folder of images, or a text file with a path or URL in each line")
    urls = {"action": "append", "required": True, "metavar": "URL", "type": server_url}
    parser.add_argument("--extract", **urls, help="extraction server; once for each")
    parser.add_argument("--write", **urls, help="server that takes the points, or root")
    parser.add_argument("--collection", required=True)
    parser.add_argument("--model", required=True, help="embedding model of the collection")
    parser.add_argument("--kind", choices=["photo", "fingerprint"], default="photo")
    parser.add_argument("--concurrency", type=int, default=8, help="images on their way to each extraction server")
    parser.add_argument("--progress", type=pathlib.Path, default=pathlib.Path("progress.jsonl"))
    options = vars(parser.parse_args())
    if options["concurrency"] < 1:
        parser.error("--concurrency is at least 1")
    images = options.pop("images")
    if not os.path.exists(images):
        parser.error(f"{images}: no such folder or list")
    return BulkJob(**options, key=os.environ.get("MILLPOND_API_KEY")), images


# ---- images


def sources(place: str) -> Iterator[str]:
    """Yields the images below a folder in the order of their names, or the lines of a text file."""
    if not os.path.isdir(place):
        with open(place, encoding="utf-8") as lines:
            for line in map(str.strip, lines):
                if line:
                    yield line if "://" in line else os.path.abspath(line)
        return
    for folder, subfolders, files in os.walk(os.path.abspath(place)):
        subfolders.sort()
        yield from (os.path.join(folder, file) for file in sorted(files) if pathlib.Path(file).suffix.lower() in SUFFIXES)


def image_name(source: str) -> str:
    """Returns the last part of a path or URL, within the limit of an image's name."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(source).path) if "://" in source else source
    name = pathlib.PurePath(path).name
    return name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")


def is_utf8(source: str) -> bool:
    """Returns false for the path of a file whose name has bytes that are not UTF-8. Python keeps them as surrogates."""
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


class ImageReader:
    """Reads files and URLs. Each thread has its own connections."""

    def __init__(self):
        self.threads = threading.local()

    def read(self, source: str) -> bytes:
        """Returns the bytes of an image. Raises ImageError if there are none, or too many, or if its name is not UTF-8."""
        if not is_utf8(source):
            raise ImageError(NAME_ERROR)
        try:
            if source.startswith(("http://", "https://")):
                return self._fetch(source)
            size = os.path.getsize(source)
            if size <= IMAGE_BYTES_MAX:
                return pathlib.Path(source).read_bytes()
        except (OSError, requests.RequestException) as error:
            raise ImageError(str(error)) from None
        raise ImageError(f"{size} bytes, {IMAGE_BYTES_MAX} at most")

    def _fetch(self, url: str) -> bytes:
        if not hasattr(self.threads, "session"):
            retries = Retry(TRIES_MAX, backoff_factor=PAUSE_S, backoff_max=PAUSE_MAX_S, status_forcelist=BUSY)
            self.threads.session = requests.Session()
            for scheme in ("http://", "https://"):
                self.threads.session.mount(scheme, HTTPAdapter(max_retries=retries))
        with self.threads.session.get(url, timeout=TIMEOUT_S, stream=True) as answer:
            answer.raise_for_status()
            body = bytearray()
            for part in answer.iter_content(READ_BYTES):
                body += part
                if len(body) > IMAGE_BYTES_MAX:
                    raise ImageError(f"more than {IMAGE_BYTES_MAX} bytes")
            return bytes(body)


class Progress:
    """File of finished images, a line of JSON for each, so that a job can be continued after any end.

    An image that failed is in the file with its reason, and the next run tries it again.
    """

    def __init__(self, path: pathlib.Path):
        self.finished: set[str] = set()
        self.file = path.open("a+b")
        self.file.seek(0)
        line = b"\n"
        for line in self.file:
            # The last line is a part of one if the job was killed.
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if "error" not in entry:
                    self.finished.add(entry["source"])
        if not line.endswith(b"\n"):
            self.file.write(b"\n")

    def add(self, written: Iterable[str], errors: dict[str, str]) -> None:
        """Records images whose points are durable, and images that failed, by their reason."""
        entries = [{"source": source} for source in written]
        entries += [{"source": source, "error": error} for source, error in errors.items()]
        self.file.write(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        self.file.flush()
        self.finished.update(written)

    def close(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()


@dataclasses.dataclass
class Summary:
    """Numbers of a run."""

    added: int = 0
    replaced: int = 0
    # Files whose image was in the same batch already.
    equal: int = 0
    errors: dict[str, str] = dataclasses.field(default_factory=dict)
    failures_in_a_row: int = 0

    def text(self) -> str:
        equal = f", {self.equal} equal images" if self.equal else ""
        return f"{self.added} points added, {self.replaced} replaced{equal}, {len(self.errors)} images failed"

    def wrote(self, written: "WrittenBatch") -> None:
        """Adds the outcome of a batch."""
        self.added += written.added
        self.replaced += written.replaced
        self.equal += len(written.sources) - written.added - written.replaced
        for source, reason in written.errors.items():
            self.failed(source, reason)

    def failed(self, source: str, reason: str) -> None:
        """Adds a failed image. Raises JobError if there were only such images lately."""
        self.errors[source] = reason
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= FAILURES_IN_A_ROW_MAX:
            raise JobError(f"{self.failures_in_a_row} images in a row have failed; the last: {source}: {reason}")


# ---- servers


class Servers:
    """Servers with the same work. A request goes to the one with the fewest requests on their way.

    A server that is busy or does not answer rests: for the time of its Retry-After, else for a pause that grows. If all
    servers have failed TRIES_MAX times since their last answer, no request is tried any more.
    """

    def __init__(self, urls: list[str], key: str | None):
        self.lock = threading.Lock()
        self.running = dict.fromkeys((url.rstrip("/") for url in urls), 0)
        self.rests_until = dict.fromkeys(self.running, 0.0)
        self.failures = dict.fromkeys(self.running, 0)
        # Time of the last failure that was counted.
        self.failed_at = dict.fromkeys(self.running, 0.0)
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.threads = threading.local()
        self.ended = threading.Event()

    def request(self, method: str, path: str, body: bytes, media: str, **query: str) -> dict:
        """Returns the JSON of the answer. Raises ImageError if the body is wrong, JobError if no server takes it.

        The error of a cluster that has written some of the points counts as an answer. If the cluster is busy, the last
        such error does.
        """
        reason = ""
        partly = None
        for _ in range(TRIES_MAX * len(self.running)):
            url = self._take()
            started = time.monotonic()
            asked = None
            done = False
            try:
                answer = self._session().request(
                    method, f"{url}{path}", params=query, data=body, headers={"content-type": media}, timeout=TIMEOUT_S
                )
                done = answer.status_code not in BUSY
                asked = retry_after(answer)
                reason = f"{url}: {answer.status_code} {error_of(answer)}"
                partly = written_in_part(answer)
            except requests.RequestException as error:
                reason = f"{url}: {cause_of(error)}"
            finally:
                self._release(url, done, asked, started, reason)
            if done and answer.ok:
                return answer.json()
            if done and partly:
                return partly
            if done:
                raise (ImageError if answer.status_code in WRONG else JobError)(reason)
            if min(self.failures.values()) >= TRIES_MAX:
                break
        if partly:
            return partly
        raise JobError(f"given up after {TRIES_MAX} tries for each server; the last answer: {reason}")

    def _session(self) -> requests.Session:
        if not hasattr(self.threads, "session"):
            self.threads.session = requests.Session()
            self.threads.session.headers.update(self.headers)
        return self.threads.session

    def _take(self) -> str:
        """Waits until a server does not rest. Returns its URL."""
        while True:
            with self.lock:
                now = time.monotonic()
                awake = [url for url, until in self.rests_until.items() if until <= now]
                if awake:
                    url = min(awake, key=self.running.__getitem__)
                    self.running[url] += 1
                    return url
                pause = min(self.rests_until.values()) - now
            if self.ended.wait(pause):
                raise JobError("the job ends")

    def _release(self, url: str, done: bool, asked: float | None, started: float, reason: str) -> None:
        with self.lock:
            self.running[url] -= 1
            now = time.monotonic()
            if done:
                self.failures[url] = 0
                return
            # Requests that were on their way together fail together, and count once.
            counts = started >= self.failed_at[url]
            if counts:
                self.failures[url] += 1
                self.failed_at[url] = now
            grown = min(PAUSE_S * 2 ** self.failures[url], PAUSE_MAX_S) * random.uniform(0.5, 1)
            pause = grown if asked is None else min(asked, RETRY_AFTER_MAX_S)
            self.rests_until[url] = max(self.rests_until[url], now + pause)
            failures = self.failures[url]
            ended = min(self.failures.values()) >= TRIES_MAX
        # A short pause of a server that is busy is usual.
        if counts and not ended and (failures > 1 or pause > PAUSE_NAMED_S):
            text = f"{reason}\n  failure {failures} in a row; the next try is in {pause:.1f} s"
            print(text, file=sys.stderr, flush=True)


def retry_after(answer: requests.Response) -> float | None:
    """Returns the pause in seconds that a server asks for, which it writes as a number or as a date."""
    text = answer.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def cause_of(error: requests.RequestException) -> object:
    """Returns the cause of a failed request, without the names of the libraries around it."""
    return getattr(error.args[0] if error.args else None, "reason", error)


def error_of(answer: requests.Response) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        return str(answer.json().get("error"))
    return answer.text[:500]


def written_in_part(answer: requests.Response) -> dict | None:
    """Returns the JSON of an error that names the failed points of a request, else None."""
    with contextlib.suppress(ValueError):
        content = answer.json()
        if not answer.ok and isinstance(content, dict) and content.get("failed"):
            return content
    return None


class Extraction:
    """Extraction servers of a job."""

    def __init__(self, job: BulkJob):
        self.servers = Servers(job.extract, job.key)
        self.path = f"/v1/images/{urllib.parse.quote(job.collection, safe='')}/features"
        self.query = {"kind": job.kind, "model": job.model}

    def point(self, source: str, image: bytes) -> dict:
        """Returns the point of an image. Its payload names the image's source, to filter by."""
        point = self.servers.request(
            "POST", self.path, image, "application/octet-stream", name=image_name(source), **self.query
        )
        point["payload"] = {"source": source}
        return point


class Batch:
    """Points of one request, within its limits."""

    def __init__(self):
        # JSON of the points and the sources of their images, by the points' ids. Equal images have one point.
        self.points: dict[str, bytes] = {}
        self.sources: dict[str, list[str]] = {}
        self.bytes = len(b'{"points":[]}')

    def add(self, source: str, point: dict) -> bool:
        """Adds a point. Returns false if the batch is full."""
        identity = str(point["id"])
        if identity not in self.points:
            encoded = json.dumps(point, separators=(",", ":")).encode()
            size = self.bytes + len(encoded) + 1
            if self.points and (len(self.points) >= POINTS_MAX or size > BODY_BYTES_MAX):
                return False
            self.points[identity] = encoded
            self.bytes = size
        self.sources.setdefault(identity, []).append(source)
        return True


@dataclasses.dataclass
class WrittenBatch:
    """Outcome of a batch."""

    added: int = 0
    replaced: int = 0
    # Sources whose points are durable.
    sources: list[str] = dataclasses.field(default_factory=list)
    errors: dict[str, str] = dataclasses.field(default_factory=dict)


class FeatureStore:
    """Servers that take the points of a job."""

    def __init__(self, job: BulkJob):
        self.servers = Servers(job.write, job.key)
        self.path = f"/v1/images/{urllib.parse.quote(job.collection, safe='')}/features"
        self.query = {"kind": job.kind, "model": job.model}

    def write(self, batch: Batch) -> WrittenBatch:
        """Writes a batch. A point that is there is replaced, so a batch can be written again."""
        outcome = WrittenBatch()
        if batch.points:
            self._write(batch, list(batch.points), outcome)
        return outcome

    def _write(self, batch: Batch, identities: list[str], outcome: WrittenBatch) -> None:
        body = b'{"points":[' + b",".join(batch.points[identity] for identity in identities) + b"]}"
        try:
            answer = self.servers.request("PUT", self.path, body, "application/json", **self.query)
        except ImageError as error:
            if len(identities) == 1:
                outcome.errors.update(dict.fromkeys(batch.sources[identities[0]], str(error)))
                return
            # One wrong point refuses the whole request. The halves find it.
            middle = len(identities) // 2
            for half in (identities[:middle], identities[middle:]):
                self._write(batch, half, outcome)
            return
        outcome.added += answer["added"]
        outcome.replaced += answer["replaced"]
        failed = {str(point["id"]): point["error"] for point in answer.get("failed", ())}
        for identity in identities:
            if identity in failed:
                outcome.errors.update(dict.fromkeys(batch.sources[identity], failed[identity]))
            else:
                outcome.sources += batch.sources[identity]
