"""Processes of a cluster on the loopback: etcd, an S3 server, proxies and Millpond nodes.

Every process is ended by its id when this program ends. The kernel ends it too if this program is killed.
"""

import atexit
import base64
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

from millpond import BINARY, DISK_RESERVE, REPOSITORY, free_ports  # noqa: E402

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 45
# The creation of a collection waits for its holders, and a busy machine may pause any process for seconds.
REQUEST_TIMEOUT_S = 60
LOG_TAIL = 3000

STARTED: list["Process"] = []


class Process:
    """A child process with a log file. It can be started again with the same command after it has ended."""

    def __init__(self, name: str, command: list[str], log: pathlib.Path, environment: dict[str, str] | None = None):
        self.name = name
        # The kernel kills the child if this program is killed and cannot end it.
        self.command = ["setpriv", "--pdeathsig", "KILL", *command]
        self.log = log
        self.environment = {**os.environ, **(environment or {})}
        self.child: subprocess.Popen | None = None
        STARTED.append(self)

    def start(self, **pipes) -> None:
        """Starts the process. Call it from the main thread: the child ends with the thread that started it."""
        with self.log.open("ab") as output:
            settings = {"stdout": output, "stderr": subprocess.STDOUT} | pipes
            self.child = subprocess.Popen(self.command, cwd=REPOSITORY, env=self.environment, **settings)

    @property
    def pid(self) -> int:
        assert self.child is not None, f"{self.name} was not started"
        return self.child.pid

    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.running():
            self.child.send_signal(number)

    def kill(self) -> None:
        """Ends the process by signal 9, also while it is paused."""
        if self.child is not None:
            self.send(signal.SIGKILL)
            self.child.wait()

    def pause(self) -> None:
        """Pauses the process, and waits until all threads have stopped. A running one could still answer a request."""
        self.send(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.running() and not self.stands_still():
            assert time.monotonic() < deadline, f"{self.name} does not stop"
            time.sleep(0.001)

    def stands_still(self) -> bool:
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended
                if not (task / "stat").read_text().rpartition(") ")[2].startswith("T"):
                    return False
        return True

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ends the process as an operator would. Returns its exit status."""
        self.send(signal.SIGTERM)
        try:
            return self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} runs {timeout_s} s after SIGTERM\n{self.log_tail()}") from None

    def log_tail(self) -> str:
        if not self.log.exists():
            return f"--- {self.name}: no log"
        return f"--- {self.name}: {self.log}\n{self.log.read_text(errors='replace')[-LOG_TAIL:]}"

    def rss_mb(self) -> float:
        """Returns the resident memory in MiB, 0 if the process has ended."""
        with contextlib.suppress(OSError, AssertionError):
            for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return 0.0

    def cpu_s(self) -> float:
        """Returns the processor time that all threads have used, in seconds."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        user, system = fields[11], fields[12]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def end_all() -> None:
    """Ends every process that was started."""
    for process in STARTED:
        process.kill()
    STARTED.clear()


atexit.register(end_all)


def wait_until(what: str, is_true, timeout_s: float = START_TIMEOUT_S, pause_s: float = 0.1):
    """Waits until `is_true()` is true. Returns its value."""
    deadline = time.monotonic() + timeout_s
    while not (found := is_true()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(pause_s)
    return found


def http_call(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Sends one request on a connection of its own. Returns the status and the body."""
    connection = http.client.HTTPConnection(address, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Etcd(Process):
    """One etcd server, asked through its JSON gateway."""

    def __init__(self, scratch: pathlib.Path, logs: pathlib.Path):
        program = shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert program, "no etcd: run `make system`, or install Debian's etcd-server"
        clients, peers = (f"http://127.0.0.1:{port}" for port in free_ports())
        command = [
            program, "--name", "only", "--data-dir", str(scratch / "etcd"),
            "--listen-client-urls", clients, "--advertise-client-urls", clients,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"only={peers}",
        ]  # fmt: skip
        super().__init__("etcd", command, logs / "etcd.log")
        self.url = clients
        self.address = clients.removeprefix("http://")

    def wait_ready(self) -> None:
        def healthy() -> bool:
            assert self.running(), self.log_tail()
            with contextlib.suppress(OSError, http.client.HTTPException):
                return http_call(self.address, "GET", "/health")[0] == 200
            return False

        wait_until("etcd answers", healthy)

    def range(self, prefix: str) -> dict[str, tuple[dict, str]]:
        """Returns the JSON values and the leases of all keys with a prefix, by the rest of the key."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        query = {"key": base64.b64encode(prefix.encode()).decode(), "range_end": base64.b64encode(end.encode()).decode()}
        status, body = http_call(self.address, "POST", "/v3/kv/range", json.dumps(query).encode())
        assert status == 200, f"etcd answered {status}: {body[:500]!r}"
        entries = json.loads(body).get("kvs", [])
        found = {}
        for entry in entries:
            key = base64.b64decode(entry["key"]).decode().removeprefix(prefix)
            found[key] = (json.loads(base64.b64decode(entry["value"])), entry.get("lease", "0"))
        return found


class Controlled(Process):
    """A Python program of this directory that reports one line when it is ready, and takes settings as JSON lines."""

    def __init__(self, name: str, script: str, arguments: list[str], logs: pathlib.Path):
        super().__init__(name, [sys.executable, str(HERE / script), *arguments], logs / f"{name}.log")
        self.ready: dict = {}

    def start(self) -> None:
        # The program ends when its standard input does.
        with self.log.open("ab") as errors:
            super().start(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.ready = self.answered()

    def set(self, **settings) -> None:
        """Changes settings and waits until they apply."""
        self.child.stdin.write(json.dumps(settings).encode() + b"\n")
        self.child.stdin.flush()
        self.answered()

    def answered(self) -> dict:
        line = self.child.stdout.readline()
        assert line, f"{self.name} has ended\n{self.log_tail()}"
        return json.loads(line)


class Proxy(Controlled):
    """A proxy of `proxies.py` on a port of its own."""

    def __init__(self, kind: str, name: str, target: str, logs: pathlib.Path):
        port, _ = free_ports()
        super().__init__(name, "proxies.py", [kind, str(port), target], logs)
        self.address = f"127.0.0.1:{port}"


@dataclasses.dataclass(frozen=True)
class NodePlan:
    """A node as a scenario wants it."""

    name: str
    roles: str
    # True: other nodes reach it through a proxy that can delay.
    behind_proxy: bool = False
    program: pathlib.Path = BINARY

    def has(self, role: str) -> bool:
        return role in self.roles.split(",")


class Node(Process):
    """`millpond serve` with the flags of a cluster, or without them for an ordinary server."""

    def __init__(self, plan: NodePlan, flags: list[str], scratch: pathlib.Path, logs: pathlib.Path, environment: dict[str, str]):
        self.plan = plan
        http_port, grpc_port = free_ports()
        self.address = f"127.0.0.1:{http_port}"
        self.url = f"http://{self.address}"
        self.http_port, self.grpc_port = http_port, grpc_port
        self.proxy = Proxy("delay", f"{plan.name}-proxy", self.address, logs) if plan.behind_proxy else None
        self.directory = scratch / plan.name
        models = self.directory / "models"
        models.mkdir(parents=True)
        command = [
            str(plan.program), "serve", str(models),
            "--host", "127.0.0.1", "--http-port", str(http_port), "--grpc-port", str(grpc_port),
            "--cache-dir", str(self.directory / "cache"), "--collections-dir", str(self.directory / "collections"),
            "--search-memory", "512MiB", "--request-memory", "256MiB", "--search-disk-reserve", DISK_RESERVE,
        ]  # fmt: skip
        if flags:
            cluster_address = self.proxy.address if self.proxy else self.address
            own = ["--cluster-node", plan.name, "--cluster-roles", plan.roles, "--cluster-address", cluster_address]
            command += [*flags, *own]
        home = {"XDG_DATA_HOME": str(self.directory / "data")}
        super().__init__(plan.name, command, logs / f"{plan.name}.log", {**environment, **home})

    def upgrade(self) -> None:
        """Lets the next start run the program under test, with the same flags."""
        self.command[self.command.index(str(self.plan.program))] = str(BINARY)
        self.plan = dataclasses.replace(self.plan, program=BINARY)

    def start(self) -> None:
        if self.proxy and not self.proxy.running():
            self.proxy.start()
        super().start()

    def answers(self) -> bool:
        """Returns true if the node says that it is ready. Fails if it has ended."""
        assert self.running(), f"{self.name} ended with {self.child.poll()}\n{self.log_tail()}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            return http_call(self.address, "GET", "/v2/health/ready")[0] == 200
        return False

    def wait_ready(self) -> None:
        wait_until(f"{self.name} is ready", self.answers)

    def requests(self) -> dict[str, float]:
        """Returns the requests that this root has sent to nodes, by their kind: `first`, `hedged`, `retried` and others."""
        status, body = http_call(self.address, "GET", "/metrics")
        assert status == 200, f"{self.name} answered {status} for /metrics"
        counted = re.findall(r'^millpond_cluster_requests_total\{kind="(\w+)"\} (\S+)$', body.decode(), re.MULTILINE)
        return {kind: float(count) for kind, count in counted}
