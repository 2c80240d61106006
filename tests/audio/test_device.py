"""Recognisers with their models on a GPU, pretended by `engines/torch/pretend`, so that no real GPU is needed."""

import pathlib
import shutil

import numpy as np
import pytest
from listening import RECOGNISERS, lines, listen, post
from millpond import REPOSITORY, Server
from recordings import MEETING

PRETENDED = REPOSITORY / ".cache/pretend-gpu"
# Floats may be summed in another order.
TOLERANCE = 1e-5


@pytest.fixture
def gpu(tmp_path, monkeypatch) -> pathlib.Path:
    """Lets programs that start from now on find the pretended GPU. Returns its log of copies."""
    assert (PRETENDED / "libtorch_cuda.so").exists(), "no pretended GPU: run `make test-audio`"
    log = tmp_path / "transfers"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(PRETENDED))
    monkeypatch.setenv("PRETEND_GPU_LOG", str(log))
    return log


def moved(recogniser: str, root: pathlib.Path) -> pathlib.Path:
    """Copies the recogniser to `root`, with its model set to run on a GPU."""
    place = shutil.copytree(RECOGNISERS / recogniser, root / recogniser)
    settings = (place / "millpond.toml").read_text()
    (place / "millpond.toml").write_text(f'device = "cuda:0"\n{settings}')
    return place


def test_voice_activity(gpu, tmp_path):
    root = tmp_path / "models"
    moved("vad", root)
    there, here = listen("vad", MEETING, "--recognisers", root), listen("vad", MEETING)
    assert there.code == 0 and there.spans() == here.spans() != [], there.errors
    for ours, theirs in zip(there.labels, here.labels, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=TOLERANCE)
    transfers = gpu.read_text()
    assert "copy pinned to device" in transfers and "copy device to pinned" in transfers


def test_voiceprint(gpu, tmp_path):
    root = tmp_path / "models"
    moved("voiceprint", root)
    there = listen("voiceprint", MEETING, "--embeddings", "--recognisers", root)
    here = listen("voiceprint", MEETING, "--embeddings")
    assert there.code == 0 and len(there.labels) == len(here.labels) > 0, there.errors
    for ours, theirs in zip(there.labels, here.labels, strict=True):
        assert np.allclose(ours["embedding"], theirs["embedding"], atol=TOLERANCE)
    assert "copy pinned to device" in gpu.read_text()


def test_a_server_swaps_a_model_on_a_gpu(gpu, tmp_path):
    root = tmp_path / "models"
    place = moved("vad", root)
    server = Server(root, log=tmp_path / "server.log").wait_ready()
    try:
        before = lines(post(server.url, "vad", MEETING.read_bytes()))
        shutil.copytree(place / "1", place / "2")
        server.wait_version("vad", 2)
        server.wait_version("vad", 1, "END")
        after = lines(post(server.url, "vad", MEETING.read_bytes()))
        assert before.code == 200 and before.labels, before.errors
        assert after.labels == before.labels
    finally:
        assert server.stop() == 0, server.log_text()
    assert gpu.read_text().splitlines()[-1] == "empty", "the GPU's memory is given back"
