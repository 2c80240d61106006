"""The wheel, in an empty directory and an empty virtual environment that is never activated."""

import subprocess
import sys
import time

from conftest import PACKAGING, PROGRAM, ROOT, Installed


def test_wheel_answers_and_runs_the_demo(tmp_path, home):
    dist = tmp_path / "dist"
    subprocess.run([ROOT / "packaging/python/pack.sh", PROGRAM, dist, PACKAGING], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = dist.glob("millpond-*.whl")

    started = time.monotonic()
    environment = home / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    subprocess.run(pip, check=True)
    installed_s = time.monotonic() - started

    started = time.monotonic()
    program = Installed([str(environment / "bin/millpond")], home)
    program.run("demo", "--export", ".")
    program.run("publish", "digits.onnx", "--to", "models/digits")
    server = program.serve("models")
    assert server.digit(home / "digit.json") == 7
    ours_s = time.monotonic() - started
    server.stop()
    print(f"\nwheel {wheel.stat().st_size / 1e6:.1f} MB; pip {installed_s:.1f} s; to the first right answer {ours_s:.2f} s")
    assert ours_s <= 5

    module = Installed([str(environment / "bin/python"), "-m", "millpond"], home)
    assert module.run("--version").startswith("millpond ")

    text = program.run("demo", "--seconds", "20", "--bytes", "8MiB", "--http-port", "0", "--grpc-port", "0")
    assert "of 360 held-out handwritten digits read rightly" in text and "failed 0, wrong 0" in text, text
