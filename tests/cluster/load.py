"""Clients in threads: queries and writes at a fixed rate, each answer checked, and clients that write and read points."""

import dataclasses
import http.client
import itertools
import json
import random
import select
import threading
import time

import numpy as np
from history import ABSENT, READ, UNKNOWN, WRITE, History
from points import COLLECTION, OK, WRITTEN_FROM, Answer, Points
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException

# Longer than the deadline of a request at a root, so that its own answer arrives.
REQUEST_TIMEOUT_S = 15
HEADERS = {"content-type": "application/json"}
# A request that was due this shortly before the end may have no client yet, also on an idle machine.
LAST_MOMENT_S = 0.01
QUERY_PATH = f"/collections/{COLLECTION}/points/query"
POINTS_PATH = f"/collections/{COLLECTION}/points"


class Unreachable(Exception):
    """No answer: the connection failed after the request was sent, or no root accepts a connection."""


class Client:
    """A client of several roots with one connection. It uses the next root if one refuses the connection."""

    def __init__(self, roots: list[str], first: int = 0, timeout_s: float = REQUEST_TIMEOUT_S):
        self.roots, self.at, self.timeout_s = roots, first % len(roots), timeout_s
        self.connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Sends a request and returns the status and the body."""
        if self.connection is not None and self.closed_by_server():
            self.close()
        for _ in range(len(self.roots) + 1):
            reused = self.connection is not None
            if not reused and not self.connected():
                continue
            try:
                self.connection.request(method, path, body, HEADERS)
                answer = self.connection.getresponse()
                content = answer.read()
                if answer.will_close:
                    self.close()
                return answer.status, content
            except (ConnectionError, http.client.RemoteDisconnected) as error:
                self.close()
                # A server may close an idle connection at any time, as HTTP/1.1 says. Clients send a read again
                # then. A write that is sent twice could have an effect after its acknowledgement.
                if not reused or method != "POST":
                    raise Unreachable(f"{self.roots[self.at]}: {error!r}") from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise Unreachable(f"{self.roots[self.at]}: {error!r}") from error
        raise Unreachable("no root accepts a connection")

    def closed_by_server(self) -> bool:
        """Returns true if the server has ended the idle connection: it can be read, and no answer is due."""
        return bool(select.select([self.connection.sock], [], [], 0)[0])

    def connected(self) -> bool:
        """Connects to the current root, or else makes the next root the current one."""
        connection = http.client.HTTPConnection(self.roots[self.at], timeout=self.timeout_s)
        try:
            connection.connect()
        except OSError:
            connection.close()
            self.at = (self.at + 1) % len(self.roots)
            return False
        self.connection = connection
        return True

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@dataclasses.dataclass(frozen=True)
class Sent:
    """One request of a load. Times in seconds of the monotonic clock."""

    intended: float
    latency: float
    answer: Answer


@dataclasses.dataclass(frozen=True)
class Window:
    """Figures of the requests that were intended in some span of time."""

    requests: int
    failed: int
    partial: int
    wrong: int
    p50_ms: float
    p99_ms: float
    reasons: list[str]

    def counts(self) -> dict:
        """Returns the counts for a report; wrong answers are failed ones."""
        return {"requests": self.requests, "failed": self.failed + self.wrong, "partial": self.partial}


class OpenLoad:
    """Sends requests at random times of a fixed mean rate, whether or not earlier ones have been answered.

    Latency is measured from the intended time, so a stop of the server counts for each request that waits.
    """

    def __init__(self, rate: float, threads: int, seed: int = 35):
        self.begun = time.monotonic()
        self.gaps = np.random.default_rng(seed)
        self.rate, self.due, self.ended = rate, self.begun, float("inf")
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.sent: list[Sent] = []
        self.number = 0
        self.threads = [threading.Thread(target=self.run, args=(at,), daemon=True) for at in range(threads)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def arrival(self) -> tuple[int, float]:
        """Returns the number and the time of the next request."""
        with self.lock:
            self.number += 1
            self.due += self.gaps.exponential(1 / self.rate)
            return self.number, self.due

    def run(self, thread: int) -> None:
        while not self.stopped.is_set():
            number, due = self.arrival()
            if self.stopped.wait(max(0.0, due - time.monotonic())):
                self.unsent(due)
                return
            try:
                answer = self.send(thread, number)
            except Exception as error:  # noqa: BLE001  # an answer that cannot be read is a wrong one
                answer = Answer("wrong", f"request {number}: {type(error).__name__}: {error}"[:300])
            sent = Sent(due, time.monotonic() - due, answer)
            with self.lock:
                self.sent.append(sent)

    def send(self, thread: int, number: int) -> Answer:
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the load and waits for the answers that are due. Requests that no client could send in time have failed."""
        self.ended = time.monotonic()
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        while (due := self.arrival()[1]) < self.ended:
            self.unsent(due)

    def unsent(self, due: float) -> None:
        """Records a request that was not sent. It has failed if it was due before the last moment."""
        if due < self.ended - LAST_MOMENT_S:
            with self.lock:
                self.sent.append(Sent(due, self.ended - due, Answer("failed", "not sent: all clients wait for answers")))

    def window(self, begin: float = 0, end: float = float("inf")) -> Window:
        """Returns the figures of the requests intended from `begin` to `end`."""
        with self.lock:
            chosen = [sent for sent in self.sent if begin <= sent.intended < end]
        verdicts = [sent.answer.verdict for sent in chosen]
        latencies = [sent.latency * 1000 for sent in chosen] or [0.0]
        bad = [sent for sent in chosen if sent.answer is not OK]
        return Window(
            requests=len(chosen),
            failed=verdicts.count("failed"),
            partial=verdicts.count("partial"),
            wrong=verdicts.count("wrong"),
            p50_ms=round(float(np.percentile(latencies, 50)), 2),
            p99_ms=round(float(np.percentile(latencies, 99)), 2),
            reasons=[f"at {sent.intended - self.begun:.2f} s after {sent.latency:.2f} s: {sent.answer.why}" for sent in bad[:5]],
        )


class QueryLoad(OpenLoad):
    """Exact queries of the fixed points, compared with the expected answers."""

    def __init__(self, points: Points, roots: list[str], rate: float, threads: int = 64):
        super().__init__(rate, threads)
        self.points = points
        self.clients = [Client(roots, at) for at in range(threads)]

    def send(self, thread: int, number: int) -> Answer:
        at = number % len(self.points.bodies)
        try:
            status, body = self.clients[thread].call("POST", QUERY_PATH, self.points.bodies[at])
        except Unreachable as error:
            return Answer("failed", str(error))
        return self.points.checked(at, status, body)


def kept(failures: list[str], work, *arguments) -> None:
    """Does the work of a client. Adds its failure to `failures`: without this client, fewer answers would be checked."""
    try:
        work(*arguments)
    except Exception as error:  # noqa: BLE001  # any failure of a client is one of the scenario
        failures.append(f"{type(error).__name__}: {error}"[:300])


class Values:
    """Numbers that are issued once."""

    def __init__(self):
        self.numbers, self.lock = itertools.count(1), threading.Lock()

    def next(self) -> int:
        with self.lock:
            return next(self.numbers)


ID_RANGES = itertools.count(1)


def new_ids() -> int:
    """Returns the first of `WRITTEN_FROM` ids that no other load uses, as several may use one collection in turn."""
    return WRITTEN_FROM * next(ID_RANGES)


class Registers:
    """Clients that write points, each its own, and clients that read any of them. All operations go to a history."""

    def __init__(self, points: Points, history: History, writers: int = 8, readers: int = 4, own: int = 6, pause_s: float = 0.05):
        self.points, self.history, self.values = points, history, Values()
        self.writers, self.readers, self.own, self.pause_s = writers, readers, own, pause_s
        self.refused: list[str] = []
        # Failures of clients that ended early.
        self.broken: list[str] = []
        self.stopped = threading.Event()
        self.threads: list[threading.Thread] = []
        first = new_ids()
        self.ids = list(range(first, first + writers * own))

    def start(self, roots: list[str], timeout_s: float = REQUEST_TIMEOUT_S, lone_root: str | None = None) -> None:
        """Starts the clients. With `lone_root`, every second writer uses only this root."""
        for at in range(self.writers):
            used = [lone_root] if lone_root and at % 2 else roots
            self.spawn(self.write, at, Client(used, at, timeout_s))
        for at in range(self.readers):
            self.spawn(self.read, at, Client(roots, at, timeout_s))

    def spawn(self, target, *arguments) -> None:
        thread = threading.Thread(target=kept, args=(self.broken, target, *arguments), daemon=True)
        self.threads.append(thread)
        thread.start()

    def write(self, at: int, client: Client) -> None:
        """Writes its own points in turn."""
        own = self.ids[at * self.own : (at + 1) * self.own]
        for point in itertools.cycle(own):
            if self.stopped.wait(self.pause_s):
                return
            self.write_once(client, point)

    def write_once(self, client: Client, point: int) -> bool:
        """Writes a new value. Returns true if it was acknowledged."""
        value = self.values.next()
        body = json.dumps({"points": [self.points.written(point, value)]}).encode()
        begun = time.monotonic_ns()
        try:
            status, answer = client.call("PUT", f"{POINTS_PATH}?wait=true", body)
        except Unreachable as error:
            status, answer = 0, str(error).encode()
        acknowledged = status == 200
        if not acknowledged:
            self.refused.append(f"point {point}: status {status}: {answer[:500]!r}")
        self.history.add(point, WRITE, value, begun, time.monotonic_ns() if acknowledged else UNKNOWN)
        return acknowledged

    def read(self, at: int, client: Client) -> None:
        """Reads points in random order."""
        rng = random.Random(at)
        while not self.stopped.wait(self.pause_s):
            self.read_once(client, rng.choice(self.ids))

    def read_once(self, client: Client, point: int) -> tuple[bool, int | None]:
        """Reads a point with strong consistency. Returns true and its value if there was an answer."""
        body = json.dumps({"ids": [point], "with_payload": True}).encode()
        begun = time.monotonic_ns()
        try:
            status, answer = client.call("POST", f"{POINTS_PATH}?consistency=strong", body)
        except Unreachable:
            return False, ABSENT
        if status != 200:
            return False, ABSENT
        decoded = json.loads(answer)
        # An answer without the shard of the point says nothing about it.
        if "coverage" in decoded and decoded["coverage"]["shards"] < decoded["coverage"]["of"]:
            return False, ABSENT
        value = decoded["result"][0]["payload"]["value"] if decoded["result"] else ABSENT
        self.history.add(point, READ, value, begun, time.monotonic_ns())
        return True, value

    def stop(self) -> None:
        """Ends the clients and waits for their last answers."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def last_values(self, roots: list[str]) -> dict[int, int | None]:
        """Reads every point. Fails if one cannot be read."""
        client, last = Client(roots), {}
        for point in self.ids:
            for _ in range(3):
                answered, value = self.read_once(client, point)
                if answered:
                    break
            assert answered, f"point {point} cannot be read"
            last[point] = value
        return last

    def back_s(self, since_ns: int) -> float:
        """Returns the seconds from `since_ns` until each point had an acknowledged write that was begun later."""
        first: dict[int, float] = {}
        for one in self.history.taken():
            if one.acknowledged and one.begun > since_ns:
                first[one.point] = min(one.ended, first.get(one.point, UNKNOWN))
        missing = set(self.ids) - set(first)
        return UNKNOWN if missing else (max(first.values()) - since_ns) / 1e9


class Batches:
    """Writers that upsert batches of new points with qdrant-client and record the acknowledged ones."""

    SIZE = 20

    def __init__(self, points: Points, threads: int = 2, pause_s: float = 0.2):
        self.points, self.count, self.pause_s = points, threads, pause_s
        self.acknowledged: dict[int, int] = {}
        self.refused = 0
        # Failures of writers that ended early.
        self.broken: list[str] = []
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, roots: list[str]) -> None:
        for at in range(self.count):
            work = (self.broken, self.run, new_ids(), roots[at % len(roots)])
            thread = threading.Thread(target=kept, args=work, daemon=True)
            self.threads.append(thread)
            thread.start()

    def run(self, ids: int, root: str) -> None:
        client = QdrantClient(url=f"http://{root}", timeout=REQUEST_TIMEOUT_S, check_compatibility=False)
        for number in itertools.count():
            if self.stopped.wait(self.pause_s):
                break
            first = ids + number * self.SIZE
            batch = {point: point % 1013 for point in range(first, first + self.SIZE)}
            structs = [models.PointStruct(**self.points.written(point, value)) for point, value in batch.items()]
            try:
                client.upsert(COLLECTION, structs, wait=True)
            # Status 429 is a `QdrantException`, and all others are an `ApiException`.
            except (ApiException, QdrantException, OSError):
                self.refused += 1
                continue
            with self.lock:
                self.acknowledged.update(batch)
        client.close()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def missing(self, roots: list[str]) -> list[int]:
        """Returns the acknowledged points that the cluster does not have, or has with another value."""
        client, found = Client(roots), {}
        wanted = sorted(self.acknowledged)
        for begin in range(0, len(wanted), 500):
            body = {"ids": wanted[begin : begin + 500], "with_payload": True}
            status, answer = client.call("POST", f"{POINTS_PATH}?consistency=strong", json.dumps(body).encode())
            assert status == 200, f"points cannot be read: status {status}: {answer[:500]!r}"
            found |= {point["id"]: point["payload"]["value"] for point in json.loads(answer)["result"]}
        return [point for point, value in self.acknowledged.items() if found.get(point) != value]
