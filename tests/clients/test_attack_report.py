"""Requirements of `tests/attack`: an attack that reaches nothing does not pass."""

import pathlib
import random
import sys
import types

# Behind the modules of this directory.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "attack"))

import attack  # noqa: E402
import storage  # noqa: E402


def test_an_attack_without_probes_is_wrong():
    phases = {"calm": {"seen": {"probes": 10}}, "floods": {"seen": {"probes": 0}}}
    assert attack.wrong({"phases": phases}) == ["no probe was answered during floods"]


def test_kills_without_an_acknowledged_write_are_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(storage.points, "scroll", lambda url: ({}, False))
    server = types.SimpleNamespace(url="", stop=lambda: 0)
    outcome = storage.kills(lambda directory, name: server, tmp_path, 0, random.Random(1))
    assert attack.wrong(vars(outcome)) == ["idle is 1"]
