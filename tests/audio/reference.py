"""The Python packages' own answers, each asked once."""

import functools
import json
import pathlib
import subprocess

from recordings import REPOSITORY

PYTHON = REPOSITORY / ".venv-audio/bin/python"
TIMEOUT_S = 150


@functools.cache
def ask(recogniser: str, path: pathlib.Path, prepared: pathlib.Path | None = None) -> dict:
    command = [REPOSITORY / "scripts/torch_python.sh", PYTHON, REPOSITORY / "scripts/audio_reference.py"]
    extra = ["--prepared", prepared] if prepared else []
    done = subprocess.run(
        [*map(str, [*command, "--recogniser", recogniser, *extra, path])],
        cwd=REPOSITORY, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def segments(path: pathlib.Path, recogniser: str = "vad") -> list[tuple[float, float]]:
    return [(start, end) for start, end in ask(recogniser, path)["segments"]]
