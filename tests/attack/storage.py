"""Attacks on a server's files: kill -9 while it writes, damaged files, a full disk."""

import contextlib
import dataclasses
import pathlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import points
from millpond import Server
from points import Ledger, Writers

ROUNDS_WAIT_S = 60
TMPFS_MB = 64
BALLAST = "ballast"
MIB = 1 << 20


@dataclasses.dataclass
class Outcome:
    """Findings of the attacks on storage."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    aborts: int = 0
    damaged: int = 0
    silent_damage: int = 0
    leftover_files: int = 0
    # Attacks on servers that acknowledged no write: these attacks checked nothing.
    idle: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


Start = Callable[[pathlib.Path, str], Server]


def starter(models: pathlib.Path, logs: pathlib.Path) -> Start:
    """Starts servers that keep their collections in a given directory."""

    def start(directory: pathlib.Path, name: str) -> Server:
        flags = ("--collections-dir", str(directory), "--search-memory", "256MiB", "--search-cache", "16MiB")
        return Server(models, *flags, log=logs / f"{name}.log").wait_ready()

    return start


def found(server: Server, wait_s: float = ROUNDS_WAIT_S) -> tuple[dict[int, int], bool]:
    """Returns all points once the collection has opened."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return points.scroll(server.url)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def kills(start: Start, directory: pathlib.Path, count: int, rng: random.Random) -> Outcome:
    """Kills the server at random moments under writes, and checks every acknowledged point after each start."""
    ledger, outcome = Ledger(), Outcome(kills=count)
    for number in range(count):
        server = start(directory, "kills")
        points.create(server.url)
        rows, _ = found(server)
        missing = ledger.missing(rows)
        outcome.lost += len(missing)
        if missing:
            outcome.notes.append(f"kill {number}: lost {missing[:5]}")
            for point in missing:
                del ledger.acknowledged[point]
        writers = Writers(server.url, ledger, first=1 + number * 10_000_000)
        time.sleep(rng.uniform(0.05, 0.6))
        if server.process.poll() is not None:
            outcome.aborts += 1
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        writers.stop()
    server = start(directory, "kills")
    missing = ledger.missing(found(server)[0])
    outcome.lost += len(missing)
    outcome.acknowledged = len(ledger.acknowledged)
    outcome.idle = int(not ledger.acknowledged)
    server.stop()
    return outcome


# ---- damaged files


def remove(file: pathlib.Path, _: random.Random) -> None:
    file.unlink()


def cut(file: pathlib.Path, rng: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) // 8, len(data) // 2)])


def empty(file: pathlib.Path, _: random.Random) -> None:
    file.write_bytes(b"")


def flip(file: pathlib.Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data) // 4, len(data) // 2)
    data[at] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def damage(start: Start, directory: pathlib.Path, rounds: int, rng: random.Random) -> Outcome:
    """Damages one file of a cleanly closed collection. A point may be missing only if the server reports it."""
    outcome, ledger = Outcome(), Ledger()
    server = start(directory, "damage")
    points.create(server.url)
    for number in range(15):
        ledger.write(server.url, list(range(1 + 20 * number, 21 + 20 * number)), number)
    ledger.write(server.url, list(range(1, 100)), 99)
    outcome.idle = int(not ledger.acknowledged)
    server.stop()
    kept = directory.with_name(directory.name + "-kept")
    shutil.copytree(directory, kept)
    for _ in range(rounds):
        files = sorted(file for file in kept.rglob("*") if file.is_file() and file.stat().st_size > 64)
        logs = [file for file in files if file.name.startswith("log-")]
        for file, harm in [(rng.choice(logs), rng.choice([remove, cut, empty, flip])), (rng.choice(files), rng.choice([remove, cut, flip]))]:
            shutil.rmtree(directory)
            shutil.copytree(kept, directory)
            harm(directory / file.relative_to(kept), rng)
            outcome.add(damaged(start, directory, ledger, f"{harm.__name__} {file.relative_to(kept)}"))
    return outcome


def damaged(start: Start, directory: pathlib.Path, ledger: Ledger, what: str) -> Outcome:
    outcome = Outcome(damaged=1)
    server = start(directory, "damage")
    try:
        rows, partial = found(server, 3)
    except Exception:
        # A collection that refuses to answer hides nothing.
        rows, partial = None, True
    if rows is not None and ledger.missing(rows) and not points.told(server.url, partial):
        outcome.silent_damage = 1
        outcome.notes.append(f"{what}: {len(ledger.missing(rows))} points missing or old, nothing said")
    if server.process.poll() is not None:
        outcome.aborts = 1
        outcome.notes.append(f"{what}: the server ended with {server.process.returncode}")
    server.stop()
    return outcome


# ---- a full disk


@contextlib.contextmanager
def tmpfs(place: pathlib.Path, megabytes: int) -> Iterator[pathlib.Path]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes=5000", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: pathlib.Path) -> None:
    """Fills the disk."""
    with (place / BALLAST).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def count_files(directory: pathlib.Path) -> int:
    return sum(1 for file in directory.rglob("*") if file.is_file())


def full_disk(start: Start, place: pathlib.Path, seconds: float) -> Outcome:
    """Fills the collections' disk under writes, starts again while it is full, then makes room."""
    outcome, ledger = Outcome(), Ledger()
    with tmpfs(place, TMPFS_MB):
        directory = place / "collections"
        server = start(directory, "disk")
        points.create(server.url)
        for number in range(50):
            ledger.write(server.url, list(range(20 * number, 20 * number + 20)), number)
        fill(place)
        before, writers = count_files(directory), Writers(server.url, ledger, first=100_000)
        time.sleep(seconds)
        # A busy machine may need longer until a write meets the full disk.
        deadline = time.monotonic() + ROUNDS_WAIT_S
        while ledger.refused == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        writers.stop()
        outcome.leftover_files = max(0, count_files(directory) - before - 3)
        if ledger.refused == 0:
            outcome.notes.append("full disk: no write was refused")
        if not points.told(server.url, False):
            outcome.silent_damage += 1
            outcome.notes.append("full disk: the status says nothing of it")
        check(outcome, ledger, server, "full disk")
        server.process.kill()
        server.process.wait()
        server = start(directory, "disk-full")
        check(outcome, ledger, server, "after a restart on a full disk")
        (place / BALLAST).unlink()
        room(outcome, ledger, server)
        check(outcome, ledger, server, "after room was made")
        server.stop()
    outcome.acknowledged = len(ledger.acknowledged)
    outcome.idle = int(not ledger.acknowledged)
    return outcome


def room(outcome: Outcome, ledger: Ledger, server: Server) -> None:
    """Writes work again without a restart."""
    deadline = time.monotonic() + ROUNDS_WAIT_S
    while (status := ledger.write(server.url, [1, 2, 3], 7)) != 200:
        if time.monotonic() > deadline:
            outcome.aborts += 1
            outcome.notes.append(f"full disk: writes are still refused with {status} although there is room")
            return
        time.sleep(0.1)


def check(outcome: Outcome, ledger: Ledger, server: Server, when: str) -> None:
    try:
        missing = ledger.missing(found(server)[0])
    except Exception as error:
        missing = list(ledger.acknowledged)
        outcome.notes.append(f"{when}: {error}")
    outcome.lost += len(missing)
    if missing:
        outcome.notes.append(f"{when}: {len(missing)} acknowledged points cannot be read")
