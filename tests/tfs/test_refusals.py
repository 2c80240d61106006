"""Damaged and foreign SavedModels: refused with TensorFlow's reason while the old version serves."""

import pathlib
import shutil
import time

import numpy as np
import pytest
from saved_models import half_plus, recommender

X = {"x": np.array([[2.0]], np.float32)}


@pytest.fixture
def base(tmp_path) -> pathlib.Path:
    half_plus(tmp_path / "m" / "1")
    return tmp_path / "m"


def refused_version(start, base: pathlib.Path, damage, *words: str) -> None:
    """Adds version 2, damaged, beside the serving version 1."""
    server = start("--model_name=m", f"--model_base_path={base}", "--max_num_load_retries=0").wait_available("m", 1)
    aside = base.parent / "aside"
    damage(aside)
    aside.rename(base / "2")
    deadline = time.monotonic() + 60
    while server.states("m").get(2) != "END":
        assert time.monotonic() < deadline, (server.states("m"), server.log_text()[-3000:])
        assert server.process.poll() is None, server.log_text()[-3000:]
        time.sleep(0.1)
    entry = next(one for one in server.get("m").json()["model_version_status"] if one["version"] == "2")
    assert entry["status"]["error_code"] != "OK"
    for word in words:
        assert word in entry["status"]["error_message"], entry
    assert float(server.predict("m", X)["y"][0, 0]) == 3.0


def test_a_truncated_saved_model(start, base):
    def damage(path):
        half_plus(path)
        whole = (path / "saved_model.pb").read_bytes()
        (path / "saved_model.pb").write_bytes(whole[: len(whole) // 2])

    refused_version(start, base, damage, "saved_model.pb")


def test_an_unknown_operation(start, base):
    def damage(path):
        half_plus(path)
        whole = (path / "saved_model.pb").read_bytes()
        assert b"VariableV2" in whole
        (path / "saved_model.pb").write_bytes(whole.replace(b"VariableV2", b"VariableZ2"))

    refused_version(start, base, damage, "VariableZ2", "custom operators are not loaded")


def test_a_missing_shard(start, base):
    def damage(path):
        half_plus(path)
        next((path / "variables").glob("variables.data-*")).unlink()

    refused_version(start, base, damage, "variables")


def test_a_variables_file_that_is_cut(start, base):
    def damage(path):
        recommender(path)
        data = next((path / "variables").glob("variables.data-*"))
        data.write_bytes(data.read_bytes()[:1000])

    refused_version(start, base, damage)


def test_an_index_that_lies(start, base):
    def damage(path):
        recommender(path)
        index = path / "variables" / "variables.index"
        whole = bytearray(index.read_bytes())
        for at in range(40, 200, 7):
            whole[at] ^= 0x55
        index.write_bytes(bytes(whole))

    refused_version(start, base, damage)


def test_an_empty_directory_of_variables(start, base):
    def damage(path):
        half_plus(path)
        shutil.rmtree(path / "variables")

    refused_version(start, base, damage)
