"""The program under test, started as a user starts it: MILLPOND_PROGRAM, else the release build."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import requests

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BINARY = REPOSITORY / os.environ.get("MILLPOND_PROGRAM", "target/release/millpond")
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 120
WAIT_S = 60
# The default on the small disks of tests, which have 16 MiB.
DISK_RESERVE = "2MiB"


class Server:
    """`millpond serve ROOT` on free ports of the loopback."""

    def __init__(
        self, root: pathlib.Path, *flags: str, log: pathlib.Path, host: str = "127.0.0.1", prefix: tuple[str, ...] = ()
    ):
        self.root = root
        self.log = log
        self.http_port, self.grpc_port = free_ports()
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.http = f"127.0.0.1:{self.http_port}"
        self.grpc = f"127.0.0.1:{self.grpc_port}"
        command = [
            *prefix, str(BINARY), "serve", str(root),
            "--host", host,
            "--http-port", str(self.http_port),
            "--grpc-port", str(self.grpc_port),
            "--poll", "200ms",
            # A test must not depend on the free space of the disk of its machine.
            "--search-disk-reserve", DISK_RESERVE,
            "--cache-dir", str(log.parent / "cache"),
            *flags,
        ]  # fmt: skip
        with log.open("wb") as output:
            # Without a flag, collections go to the test's directory and not to the user's.
            environment = {**os.environ, "XDG_DATA_HOME": str(log.parent / "data")}
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    def wait_ready(self) -> "Server":
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log_text()}")
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                answer = requests.get(f"{self.url}/v2/health/ready", timeout=60)
                # If one model fails, the server serves the others and is not ready.
                if answer.status_code == 200 or "does not serve" in answer.text:
                    return self
            time.sleep(0.05)
        # No caller owns the process yet, so it is ended here.
        self.process.kill()
        raise AssertionError(f"not ready after {START_TIMEOUT_S} s:\n{self.log_text()}")

    def infer(self, model: str, values: list[float]) -> requests.Response:
        """Sends one vector `x` of float32 to a model, written by hand."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}
        return requests.post(f"{self.url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=60)

    def assert_serving(self) -> None:
        """Checks that the process lives and answers a plain request correctly."""
        assert self.process.poll() is None, self.log_text()
        answer = self.infer("half_plus_two", [1.0, 2.0, 5.0])
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [2.5, 3.0, 4.5]

    def versions(self, model: str) -> dict[int, dict]:
        """Returns TensorFlow Serving's status of each version of a model."""
        answer = requests.get(f"{self.url}/v1/models/{model}", timeout=60)
        if answer.status_code == 404:
            return {}
        assert answer.status_code == 200, answer.text
        return {int(entry["version"]): entry for entry in answer.json()["model_version_status"]}

    def index(self, model: str) -> list[dict]:
        """Returns the entries of a model in the repository index."""
        answer = requests.post(f"{self.url}/v2/repository/index", json={}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [entry for entry in answer.json() if entry["name"] == model]

    def wait_version(self, model: str, version: int, state: str = "AVAILABLE", timeout_s: float = 60) -> dict:
        """Waits until a version is in a state. Returns its status."""
        entry = None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            entry = self.versions(model).get(version)
            if entry is not None and entry["state"] == state:
                return entry
            time.sleep(0.05)
        raise AssertionError(f"{model} version {version} is not {state}: {entry}\n{self.log_text()[-4000:]}")

    def wait_refused(self, model: str, version: int, timeout_s: float = 60) -> str:
        """Waits until a version is listed as not serving. Returns the reason."""
        entry = None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            entry = self.versions(model).get(version)
            if entry is not None and entry["state"] != "AVAILABLE" and entry["status"].get("error_message"):
                return entry["status"]["error_message"]
            time.sleep(0.05)
        raise AssertionError(f"{model} version {version} has no reason: {entry}\n{self.log_text()[-4000:]}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Stops the server as an operator would. Returns its exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running {STOP_TIMEOUT_S} s after SIGTERM:\n{self.log_text()}") from None

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


# Sockets of the ports that `free_ports` has returned.
RESERVED: list[socket.socket] = []


def free_ports() -> tuple[int, int]:
    """Returns two free ports, which no other suite gets while this one runs."""
    one, other = socket.socket(), socket.socket()
    for held in (one, other):
        # A server with SO_REUSEADDR may bind a port that another socket has bound and does not listen on.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
    RESERVED.extend((one, other))
    return one.getsockname()[1], other.getsockname()[1]


def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Runs one command of the binary. Its output is text."""
    done = subprocess.run(
        [str(BINARY), *arguments], cwd=REPOSITORY, text=True, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if check and done.returncode != 0:
        raise AssertionError(f"millpond {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def wait_for(what, wanted, timeout_s: float = WAIT_S, why=lambda: ""):
    """Waits until `what()` has the wanted value. Returns it. `why()` is part of the message of a failure."""
    deadline = time.monotonic() + timeout_s
    while not wanted(found := what()):
        assert time.monotonic() < deadline, (found, why())
        time.sleep(0.02)
    return found


def publish(source: pathlib.Path, model_dir: pathlib.Path, version: int) -> pathlib.Path:
    """Writes a version in the layout of `millpond publish`."""
    run("publish", str(source), "--to", str(model_dir), "--version", str(version))
    return model_dir / str(version)


def drop_in(source: pathlib.Path, model_dir: pathlib.Path, version: int) -> pathlib.Path:
    """Writes a version as other tools do: an ONNX file, copied beside its place and renamed."""
    model_dir.mkdir(parents=True, exist_ok=True)
    aside = model_dir / f".{version}.partial"
    if source.is_dir():
        shutil.copytree(source, aside)
    else:
        aside.mkdir()
        shutil.copyfile(source, aside / "model.onnx")
    target = model_dir / str(version)
    os.rename(aside, target)
    return target
