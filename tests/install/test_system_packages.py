"""The check of a machine before a build from a checkout (scripts/system_packages.sh)."""

import pathlib
import shutil
import subprocess

import pytest
from conftest import ROOT

# Commands of a machine that is ready, besides `cargo` and Python. There is no apt-get, so nothing is installed.
COMMANDS = ["bash", "basename", "cut", "curl", "dirname", "head", "id", "openssl", "sed", "sort"]
SILENT = "exit 0"


@pytest.fixture
def machine(tmp_path: pathlib.Path):
    """Runs the script with stand-ins of commands, by their shell code. Returns the status and stderr."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/system_packages.sh", tmp_path / "scripts")
    shutil.copy(ROOT / "Cargo.toml", tmp_path)
    path = tmp_path / "bin"
    path.mkdir()
    for command in COMMANDS:
        (path / command).symlink_to(shutil.which(command))

    def run(python: str = "python3", **stand_ins: str) -> tuple[int, str]:
        ready = {"cc": SILENT, "g++": SILENT, "make": SILENT, "uname": "echo Linux"}
        ready |= {"cargo": "echo cargo 9.1.0", "python3": "echo 3.11.2"}
        for command, code in (ready | stand_ins).items():
            if code:
                (path / command).write_text(f"#!{path}/bash\n{code}\n")
                (path / command).chmod(0o755)
        environment = {"PATH": str(path), "HOME": str(tmp_path), "PYTHON": python}
        ended = subprocess.run(
            [tmp_path / "scripts/system_packages.sh"], env=environment, text=True, capture_output=True, timeout=60
        )
        return ended.returncode, ended.stderr.replace(str(tmp_path), "~")

    return run


def test_another_system_is_named(machine):
    status, text = machine(uname="echo Darwin")
    assert (status, text.splitlines()[0]) == (1, "Millpond builds and runs on Linux, and this system is Darwin")


def test_old_python_is_named_with_the_remedy(machine):
    status, text = machine(python3="echo 3.10.12")
    assert status == 1
    assert text.startswith("Python 3.11 or newer is needed, python3 is 3.10.12\n")
    assert "make demo PYTHON=python3.12" in text


def test_venv_package_is_that_of_the_named_python(machine):
    named = {"python3.12": '[ "$2" = "import ensurepip, venv" ] && exit 1; echo 3.12.1'}
    status, text = machine(python="python3.12", **named)
    assert status == 1
    assert "python3.12-venv" in text.splitlines()[-1]


def test_reason_of_a_cargo_that_does_not_start(machine):
    status, text = machine(cargo="echo \"error: toolchain '1.95.0' is not installed\" >&2; exit 1")
    assert status == 1
    assert text.startswith("error: toolchain '1.95.0' is not installed\nhint: cargo does not start")


def test_rust_outside_the_path(machine, tmp_path):
    assert machine(cargo="")[1].endswith("hint: install it with rustup, then run make again\n")
    installed = tmp_path / ".cargo/bin/cargo"
    installed.parent.mkdir(parents=True)
    installed.touch(0o755)
    status, text = machine(cargo="")
    assert (status, text.splitlines()[-1]) == (
        1,
        'hint: run . "~/.cargo/env" or open a new terminal, then run make again',
    )


def test_ready_machine_has_no_message(machine):
    assert machine() == (0, "")
    assert machine(cargo="echo cargo 1.70.0") == (
        1,
        "Rust 1.92 or newer is needed, found 1.70.0\nhint: install it with rustup, then run make again\n",
    )
