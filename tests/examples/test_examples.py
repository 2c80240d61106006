"""Runs each example as its section of examples/README.md says, and compares its output with the one there."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / os.environ.get("MILLPOND_PROGRAM", "target/release/millpond")
README = (REPOSITORY / "examples/README.md").read_text()
# Modules of examples, and the recipe that needs Ray.
NOT_RUN = {"server.py", "bulk/features.py", "bulk/check.py", "bulk/extract_ray.py"}

EXAMPLES = (REPOSITORY / ".cache/examples/venv/bin/python",)
TESTS = (REPOSITORY / ".venv-test/bin/python",)
TORCH = (REPOSITORY / "scripts/torch_python.sh", *EXAMPLES)
PADDLE = (REPOSITORY / ".cache/examples/paddle/bin/python",)
PYTHONS = {
    "sklearn_iris": EXAMPLES,
    "pytorch_digits": TORCH,
    "tensorflow_prices": TESTS,
    "huggingface_encoder": TORCH,
    "langchain_search": TORCH,
    "bulk_upload": EXAMPLES,
    "bulk/extract_plain": EXAMPLES,
    "audio_speech": EXAMPLES,
    "image_search": EXAMPLES,
    "paddle_digits": PADDLE,
}
LARGE = {"paddle_digits"}
# Targets of make whose files an example reads.
SAMPLES = {"image_search": "images-model", "audio_speech": "recognisers", "bulk/extract_plain": "images-model"}


def output_in_readme(name: str) -> str:
    """Returns the block after the command of an example."""
    found = re.search(rf"^python examples/{name}\.py\n```\n+```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, f"examples/README.md has no command of {name}.py that is followed by its output"
    return found[1]


def without_times(text: str) -> str:
    return re.sub(r"in \d+\.\d s", "in T s", text)


def test_every_example_is_run():
    examples = REPOSITORY / "examples"
    scripts = {str(path.relative_to(examples)) for path in examples.rglob("*.py")}
    assert scripts == {*NOT_RUN, *(f"{name}.py" for name in PYTHONS)}


def run_copy(directory: pathlib.Path, name: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Runs an example of a checkout that has no build and no sample data."""
    shutil.copytree(REPOSITORY / "examples", directory / "examples")
    command = [*map(str, EXAMPLES), f"examples/{name}.py"]
    return subprocess.run(command, cwd=directory, env=environment, text=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(("name", "target"), SAMPLES.items())
def test_missing_samples_are_named_with_their_target(name, target, tmp_path):
    done = run_copy(tmp_path, name, {**os.environ, "MILLPOND": str(PROGRAM)})
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"/\S+ does not exist: run `make {target}` in \S+\n", done.stderr), done.stderr


def test_a_missing_program_is_named_with_the_remedy(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "MILLPOND"}
    done = run_copy(tmp_path, "sklearn_iris", {**environment, "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.endswith("run `pip install millpond`, or set MILLPOND to the program\n"), done.stderr


def program_of_examples(directory: pathlib.Path, millpond: str) -> tuple[str, str]:
    """Returns the program that examples start from `directory`, and their message if there is none."""
    command = [*map(str, EXAMPLES), "-c", "import server; print(server.program())"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "examples"), "MILLPOND": millpond}
    done = subprocess.run(command, cwd=directory, env=environment, text=True, capture_output=True, timeout=60)
    return done.stdout.strip(), done.stderr


def test_a_relative_program_is_that_of_the_current_directory(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build/millpond").touch(0o755)
    assert program_of_examples(tmp_path, "build/millpond")[0] == f"{tmp_path}/build/millpond"
    assert program_of_examples(tmp_path, "no/millpond")[1].startswith("MILLPOND is no/millpond, which is not a program")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.large] if name in LARGE else []) for name in PYTHONS]
)
def test_the_output_is_that_of_the_readme(name):
    environment = {**os.environ, "MILLPOND": str(PROGRAM)}
    command = [*map(str, PYTHONS[name]), f"examples/{name}.py"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, text=True, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr
    # paddle2onnx prints lines of its own first.
    assert without_times(done.stdout).endswith(without_times(output_in_readme(name))), done.stdout + done.stderr
