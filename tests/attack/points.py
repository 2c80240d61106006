"""A writer that records acknowledged points, and a check that all of them are found."""

import contextlib
import dataclasses
import random
import threading

import requests

COLLECTION = "kept"
DIMS = 8
BATCH = 20
REQUEST_S = 60
PAGE = 1000


def create(url: str, name: str = COLLECTION) -> None:
    answer = requests.put(f"{url}/collections/{name}", json={"vectors": {"size": DIMS, "distance": "Euclid"}}, timeout=REQUEST_S)
    assert answer.status_code in (200, 409), answer.text


@dataclasses.dataclass
class Ledger:
    """For each id the permitted values: the last acknowledged one, and one that was sent without an answer."""

    acknowledged: dict[int, int] = dataclasses.field(default_factory=dict)
    in_doubt: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    refused: int = 0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def write(self, url: str, ids: list[int], value: int, name: str = COLLECTION) -> int:
        """Sends one upsert and waits. Returns the status, 0 without an answer."""
        with self.lock:
            for point in ids:
                self.in_doubt.setdefault(point, set()).add(value)
        points = [{"id": point, "vector": [float(point % 97)] * DIMS, "payload": {"value": value}} for point in ids]
        try:
            answer = requests.put(f"{url}/collections/{name}/points?wait=true", json={"points": points}, timeout=REQUEST_S)
        except requests.RequestException:
            return 0
        with self.lock:
            if answer.status_code == 200:
                for point in ids:
                    self.acknowledged[point] = value
                    self.in_doubt[point].clear()
            else:
                self.refused += 1
        return answer.status_code

    def missing(self, found: dict[int, int]) -> list[int]:
        """Returns the acknowledged ids that are missing or have a wrong value."""
        with self.lock:
            return [
                point
                for point, value in self.acknowledged.items()
                if found.get(point) != value and found.get(point) not in self.in_doubt.get(point, ())
            ]


def scroll(url: str, name: str = COLLECTION) -> tuple[dict[int, int], bool]:
    """Returns all points with their values, and true if an answer was partial."""
    found, partial, offset = {}, False, None
    while True:
        body = {"limit": PAGE, "with_payload": True, "offset": offset}
        answer = requests.post(f"{url}/collections/{name}/points/scroll", json=body, timeout=REQUEST_S)
        answer.raise_for_status()
        partial = partial or '"partial":true' in answer.text.replace(" ", "")
        result = answer.json()["result"]
        found |= {point["id"]: point["payload"]["value"] for point in result["points"]}
        offset = result["next_page_offset"]
        if offset is None:
            return found, partial


def info(url: str, name: str = COLLECTION) -> dict:
    answer = requests.get(f"{url}/collections/{name}", timeout=REQUEST_S)
    return answer.json().get("result") or {} if answer.status_code == 200 else {"status": f"HTTP {answer.status_code}"}


def told(url: str, partial: bool, name: str = COLLECTION) -> bool:
    """Returns true if the server reports damage of the collection."""
    about = info(url, name)
    works = about.get("status") == "yellow" and about.get("optimizing") and about.get("optimizer_status") == "ok"
    return partial or not (works or about.get("status") == "green") or bool(about.get("warnings"))


class Writers:
    """Threads that upsert until they are stopped, half of the time new ids, half existing ones."""

    def __init__(self, url: str, ledger: Ledger, first: int, count: int = 2):
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(url, ledger, first + number, count), daemon=True) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, url: str, ledger: Ledger, first: int, step: int) -> None:
        """Runs one writer. Each writer has its own ids, so that the order of values is known."""
        rng, point = random.Random(first), first
        while not self.stopped.is_set():
            new = [point + step * number for number in range(BATCH)]
            with contextlib.suppress(OSError):
                if ledger.write(url, new, rng.randrange(1 << 30)) == 200:
                    point += step * BATCH
                    ledger.write(url, rng.sample(new, BATCH // 2), rng.randrange(1 << 30))

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()
