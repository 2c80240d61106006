"""Runs a page's blocks as a reader does: in one directory, with `millpond` and `python` on the path.

Ports 8500 and 8501 of the page become free ports. A line that begins with `millpond serve` or `millpond tfs` starts a
server, which runs until the page ends or starts another one.
"""

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from pages import Block, check

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))
from millpond import BINARY, REPOSITORY, free_ports  # noqa: E402

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
BLOCK_TIMEOUT_S = 300
# Longest time that a block with `sleep` may be late.
LATE_MAX_S = 60
SLEEP = re.compile(r"^sleep [0-9.]+$", re.MULTILINE)
SERVER = re.compile(r"^millpond (serve|tfs)\b")


class Reader:
    def __init__(self, directory: pathlib.Path):
        self.http_port, self.grpc_port = free_ports()
        self.directory = directory / "page"
        self.directory.mkdir()
        self.home = directory / "home"
        self.home.mkdir()
        self.log = directory / "server.log"
        self.server: subprocess.Popen | None = None
        programs = directory / "bin"
        programs.mkdir()
        (programs / "millpond").symlink_to(BINARY)
        for name in ("python", "python3"):
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
            script.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "MILLPOND_CACHE_DIR": str(self.home / "cache"),
            "MILLPOND_URL": f"http://127.0.0.1:{self.http_port}",
            "MILLPOND_RECOGNISERS": str(REPOSITORY / ".cache/recognisers"),
            "VIRTUAL_ENV": str(REPOSITORY / ".venv"),
            "REPOSITORY": str(REPOSITORY),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self.environment.pop("MILLPOND_CONFIG", None)

    def read(self, block: Block) -> None:
        """Runs a block and checks what it prints."""
        if "skip" in block.marks:
            return
        text = self._with_ports(block.text)
        if "file" in block.marks:
            path = self.directory / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block.language == "python":
            self._finish(block, [sys.executable, "-c", text])
        elif block.language == "bash":
            self._shell(block, text)

    def _shell(self, block: Block, text: str) -> None:
        joined = text.replace("\\\n", " ")
        servers = [line for line in joined.splitlines() if SERVER.match(line)]
        rest = "\n".join(line for line in joined.splitlines() if not SERVER.match(line)) if servers else text
        if rest.strip():
            self._finish(block, ["bash", "-ec", rest], compare=not servers)
        for line in servers:
            self._serve(line)
        if servers and block.output:
            check(block.output, self._with_page_ports(self.log.read_text()))

    def _finish(self, block: Block, command: list[str], compare: bool = True) -> None:
        # A terminal shows both. Python's packages write notes of their own to standard error.
        errors = subprocess.PIPE if block.language == "python" else subprocess.STDOUT
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, timeout=BLOCK_TIMEOUT_S,
            stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
        )  # fmt: skip
        wanted = int(block.marks.get("exit", "0"))
        printed = f"{done.stdout}\n{done.stderr or ''}\n{self._log()}"
        assert done.returncode == wanted, f"exit code {done.returncode}, not {wanted}:\n{printed}"
        if compare and block.output:
            self._compare(block, command, done.stdout)

    def _compare(self, block: Block, command: list[str], printed: str) -> None:
        """Checks what a block printed. If it waits with `sleep`, its lines behind that run again: a busy machine is late."""
        deadline = time.monotonic() + LATE_MAX_S
        *_, text = command
        after = SLEEP.split(text)[1:]
        while True:
            try:
                return check(block.output, self._with_page_ports(printed))
            except AssertionError:
                if not after or time.monotonic() > deadline:
                    raise
            time.sleep(1)
            printed = subprocess.run(
                ["bash", "-ec", after[-1]], cwd=self.directory, env=self.environment, timeout=BLOCK_TIMEOUT_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            ).stdout  # fmt: skip

    def _serve(self, line: str) -> None:
        self.stop()
        words = shlex.split(line.replace("$PWD", str(self.directory)), comments=True)
        if words[1] == "tfs":
            words.append("--")
            flags = {}
        else:
            flags = {"--http-port": str(self.http_port), "--grpc-port": str(self.grpc_port)}
        # Polls often, so that a page's new versions are soon seen.
        flags["--poll"] = "200ms"
        added = [word for flag, value in flags.items() if flag not in words for word in (flag, value)]
        command = [str(BINARY), *words[1:], *added]
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                command, cwd=self.directory, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.server.poll() is None, f"the server ended with {self.server.returncode}:\n{self._log()}"
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=60) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.05)
        raise AssertionError(f"not ready after {START_TIMEOUT_S} s:\n{self._log()}")

    def stop(self) -> None:
        """Ends the server as Ctrl-C does. It must exit with 0."""
        if self.server is None:
            return
        server, self.server = self.server, None
        server.send_signal(signal.SIGINT)
        try:
            code = server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise AssertionError(f"still running {STOP_TIMEOUT_S} s after Ctrl-C:\n{self._log()}") from None
        assert code == 0, f"the server ended with {code}:\n{self._log()}"

    def _with_ports(self, text: str) -> str:
        return re.sub(r"\b8501\b", str(self.http_port), re.sub(r"\b8500\b", str(self.grpc_port), text))

    def _with_page_ports(self, text: str) -> str:
        return re.sub(rf"\b{self.http_port}\b", "8501", re.sub(rf"\b{self.grpc_port}\b", "8500", text))

    def _log(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""
