"""Installed programs: started in an empty directory, with nothing of this checkout in their environment."""

import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MILLPOND_PROGRAM", ROOT / "target/debug/millpond")).resolve()
PACKAGING = ROOT / ".cache/packaging/bin"
# The uv that makes the environments of the tests (scripts/make_venv.sh).
UV = ROOT / ".cache/tools/uv/bin/uv"
START_S = 60
# Regular expressions of lines in the file of licences. jemalloc is C code, with a licence of its own.
LICENCES = [
    r"^tokio \d.*: MIT$",
    r"^ring \d.*: Apache-2.0 AND ISC$",
    r"^symphonia-core \d.*: MPL-2.0; source: https://.+$",
    r"^Mozilla Public License Version 2.0$",
    r"^tikv-jemalloc-sys \d",
    r"^Copyright \(C\) .* Jason Evans",
]


def missing_licences(text: str) -> list[str]:
    """Returns the expressions of `LICENCES` that match no line."""
    return [line for line in LICENCES if not re.search(line, text, re.MULTILINE)]


class Installed:
    """A program in an installation, and the empty directory that is its home and current directory."""

    def __init__(self, command: list[str], home: pathlib.Path):
        self.command = command
        self.home = home
        self.environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}

    def run(self, *arguments: str) -> str:
        """Runs the program to its end, which must be a success; returns what it printed."""
        ended = subprocess.run(
            [*self.command, *arguments], cwd=self.home, env=self.environment, text=True, capture_output=True, timeout=200
        )
        assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr)
        return ended.stdout

    def serve(self, *arguments: str, **variables: str) -> "Serving":
        """Starts `serve` on free ports and waits for its address."""
        return Serving(
            subprocess.Popen(
                [*self.command, "serve", *arguments, "--http-port", "0", "--grpc-port", "0"],
                cwd=self.home,
                env=self.environment | variables,
                text=True,
                stdout=subprocess.PIPE,
            )
        )


class Serving:
    """A running server. It ends with its test, also if the test fails before `stop`."""

    running: list[subprocess.Popen] = []

    def __init__(self, process: subprocess.Popen):
        self.process = process
        self.running.append(process)
        kill = threading.Timer(START_S, process.kill)
        kill.start()
        line = process.stdout.readline()
        kill.cancel()
        assert line.startswith("serving http://"), line
        self.url = line.split()[1]

    def digit(self, request: pathlib.Path) -> int:
        """Sends the exported request until the model serves; returns the digit of the answer."""
        url = f"{self.url}/v1/models/digits:predict"
        for _ in range(START_S * 100):
            try:
                with urllib.request.urlopen(url, data=request.read_bytes(), timeout=START_S) as response:
                    return json.load(response)["predictions"][0]["digit"]
            except urllib.error.HTTPError as error:
                if error.code not in (404, 503):
                    raise
                time.sleep(0.01)
        raise AssertionError(f"no answer within {START_S} s")

    def wait_for(self, model: str) -> None:
        """Waits until the model serves."""
        for _ in range(START_S * 100):
            try:
                urllib.request.urlopen(f"{self.url}/v2/models/{model}/ready", timeout=START_S).close()
                return
            except urllib.error.HTTPError:
                time.sleep(0.01)
        self.process.kill()
        raise AssertionError(f"{model} is not ready within {START_S} s")

    def stop(self) -> None:
        """Sends SIGTERM; the server must end with status 0."""
        self.process.terminate()
        assert self.process.wait(START_S) == 0


@pytest.fixture(autouse=True)
def ended_servers():
    """Kills the servers that a test left running."""
    yield
    while Serving.running:
        process = Serving.running.pop()
        if process.poll() is None:
            process.kill()
            process.wait(START_S)


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """An empty directory."""
    home = tmp_path / "home"
    home.mkdir()
    return home
