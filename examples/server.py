"""Starts and ends Millpond for the examples. In production, start `millpond serve MODELS` yourself."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import requests

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 120


def program() -> str:
    """Returns MILLPOND, else `millpond` of the PATH, else the release build of this checkout."""
    named = os.environ.get("MILLPOND")
    found = shutil.which(named) if named else shutil.which("millpond") or shutil.which(ROOT / "target/release/millpond")
    if found is None and named:
        raise SystemExit(f"MILLPOND is {named}, which is not a program in {os.getcwd()} or on the PATH")
    if found is None:
        raise SystemExit("millpond is not on the PATH: run `pip install millpond`, or set MILLPOND to the program")
    # The server starts in the directory of the checkout.
    return os.path.abspath(found)


def made(path: str, target: str) -> pathlib.Path:
    """Returns `path` of this checkout, which `make TARGET` makes."""
    file = ROOT / path
    if not file.exists():
        raise SystemExit(f"{file} does not exist: run `make {target}` in {ROOT}")
    return file


def publish(file: pathlib.Path, model: pathlib.Path) -> None:
    """Makes `file` (ONNX or a SavedModel) the next version of the model in the directory `model`."""
    subprocess.run([program(), "publish", file, "--to", model], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def serving(models: pathlib.Path, *flags: str):
    """Serves a directory of models on a free port. Yields the server's URL as soon as every model is ready."""
    with tempfile.TemporaryDirectory(prefix="millpond-example-") as scratch:
        log = pathlib.Path(scratch, "log")
        command = [program(), "serve", models, "--http-port", "0", "--grpc-port", "0"]
        command += ["--collections-dir", f"{scratch}/collections", *flags]
        with log.open("w") as output:
            server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=output, text=True)
        try:
            # The server prints one line with its address once it listens.
            found = re.search(r"http://\S+", server.stdout.readline())
            if found is None:
                raise SystemExit(f"millpond did not start:\n{log.read_text()}")
            wait_ready(found[0], server, log)
            yield found[0]
        finally:
            server.terminate()
            server.wait()


def wait_ready(url: str, server: subprocess.Popen, log: pathlib.Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        answer = requests.get(f"{url}/v2/health/ready", timeout=10)
        if answer.ok:
            return
        if "does not serve" in answer.text:
            raise SystemExit(answer.text)
        time.sleep(0.05)
    raise SystemExit(f"millpond is not ready:\n{log.read_text()}")
