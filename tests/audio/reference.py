"""Answers of the Python packages. Each package is loaded once, each recording processed once."""

import functools
import json
import pathlib
import subprocess

from recordings import REPOSITORY

PYTHON = REPOSITORY / ".venv-audio/bin/python"
TIMEOUT_S = 400


def command(recogniser: str, *arguments) -> list[str]:
    script = [REPOSITORY / "scripts/torch_python.sh", PYTHON, REPOSITORY / "scripts/audio_reference.py"]
    return [*map(str, [*script, "--recogniser", recogniser, *arguments])]


@functools.cache
def started(recogniser: str) -> subprocess.Popen:
    """Starts a process that answers each line with one line. It ends with its standard input, and so with the tests."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command(recogniser, "-"), cwd=REPOSITORY, text=True, bufsize=1, stdin=pipe, stdout=pipe)


@functools.cache
def segments(path: pathlib.Path, recogniser: str = "vad") -> list[tuple[float, float]]:
    process = started(recogniser)
    process.stdin.write(f"{path}\n")
    line = process.stdout.readline()
    assert line, f"the reference of {recogniser} ended with {process.wait()}"
    return [(start, end) for start, end in json.loads(line)["segments"]]


def embedding(path: pathlib.Path, prepared: pathlib.Path) -> list[float]:
    """Returns the package's embedding. Writes the package's prepared wave to `prepared`."""
    done = subprocess.run(
        command("voiceprint", "--prepared", prepared, path),
        cwd=REPOSITORY, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["embedding"]
