"""The server under attack, its address, and its figures in /proc."""

import dataclasses
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from millpond import REPOSITORY, Server  # noqa: E402

REPOSITORY_CACHE = REPOSITORY / ".cache"

IDLE_DESCRIPTORS_S = 100


@dataclasses.dataclass(frozen=True)
class Target:
    """Address for the attackers. It can be sent to another process."""

    http_port: int
    grpc_port: int
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"


def target_of(server: Server) -> Target:
    return Target(server.http_port, server.grpc_port)


def status_kb(pid: int, field: str) -> int:
    """Reads a field of /proc/PID/status in KiB, 0 if the process has ended."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def rss_mb(pid: int) -> float:
    """Returns the resident memory of the process in MiB."""
    return status_kb(pid, "VmRSS") / 1024


def descriptors(pid: int) -> int:
    """Counts the open file descriptors of the process without the one of each thread whose times it follows: threads
    that start during an attack stay, and at most 256 are followed."""

    def follows(number: str) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/fd/{number}").endswith("/schedstat")
        except OSError:
            return True

    try:
        return sum(not follows(number) for number in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def descriptors_at_rest(pid: int, wanted: int, wait_s: float = IDLE_DESCRIPTORS_S) -> int:
    """Waits until the process has at most `wanted` descriptors. Returns their number then or at the end of the wait."""
    deadline = time.monotonic() + wait_s
    while (now := descriptors(pid)) > wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    return now
