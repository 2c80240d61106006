"""Watches a server under attack: its memory, and its answers to a probe."""

import dataclasses
import pathlib
import subprocess
import sys
import threading
import time

from target import Target, rss_mb

SAMPLE_S = 0.02
PROBE = pathlib.Path(__file__).with_name("probe.py")


@dataclasses.dataclass
class Seen:
    """The worst figures during one attack."""

    rss_mb: float = 0.0
    health_ms: float = 0.0
    infer_ms: float = 0.0
    probes: int = 0
    failed_probes: int = 0


class Watch:
    """Used as a context around the attacks. `during` returns the figures of one of them."""

    def __init__(self, pid: int, target: Target, model: str):
        self.pid = pid
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.seen = Seen()
        command = [sys.executable, str(PROBE), str(target.http_port), model]
        self.probe = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.sample, self.read)]

    def __enter__(self) -> "Watch":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopped.set()
        self.probe.kill()
        self.probe.wait()
        for thread in self.threads:
            thread.join()

    def sample(self) -> None:
        while not self.stopped.wait(SAMPLE_S):
            now = rss_mb(self.pid)
            with self.lock:
                self.seen.rss_mb = max(self.seen.rss_mb, now)

    def read(self) -> None:
        for line in self.probe.stdout:
            kind, _, took, good = line.split()
            with self.lock:
                seen = self.seen
                seen.probes += 1
                seen.failed_probes += good == "0"
                if kind == "health":
                    seen.health_ms = max(seen.health_ms, float(took))
                else:
                    seen.infer_ms = max(seen.infer_ms, float(took))

    def take(self) -> Seen:
        """Returns the figures since the last call."""
        with self.lock:
            seen, self.seen = self.seen, Seen()
        return seen

    def wait_probes(self, count: int, wait_s: float) -> None:
        """Waits for `count` more answers, so that a late answer counts for the attack that delayed it."""
        deadline = time.monotonic() + wait_s
        with self.lock:
            wanted = self.seen.probes + count
        while time.monotonic() < deadline:
            with self.lock:
                if self.seen.probes >= wanted:
                    return
            time.sleep(SAMPLE_S)
