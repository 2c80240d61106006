"""A version directory that cannot serve is refused with a reason, seen in both status APIs, and the old one serves."""

import json
import os
import pathlib
import shutil
import time

import pytest
import requests

from millpond import Server, drop_in, publish
from models import stamped


def answer_of(server: Server) -> float:
    """Returns the answer of the serving version of `stamped`, which is its number."""
    answer = server.infer("stamped", [0.0])
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"][0]["data"][0]


@pytest.fixture
def place(tmp_path):
    """A repository in which version 1 of `stamped` serves."""
    root = tmp_path / "root"
    publish(stamped(tmp_path / "one.onnx", 1), root / "stamped", 1)
    return root / "stamped"


@pytest.fixture
def second(tmp_path) -> pathlib.Path:
    """Publishes version 2 elsewhere, to be damaged before it is copied in."""
    return publish(stamped(tmp_path / "two.onnx", 2), tmp_path / "elsewhere" / "stamped", 2)


def empty(place, second, tmp_path):
    (place / "2").mkdir()


def truncated_weights(place, second, tmp_path):
    weights = second / "weights.bin"
    os.truncate(weights, weights.stat().st_size // 2)
    os.rename(second, place / "2")


def damaged_weights(place, second, tmp_path):
    """Right length, wrong bytes: only the hash shows it."""
    with (second / "weights.bin").open("r+b") as file:
        file.seek(100_000)
        file.write(b"not what was published")
    os.rename(second, place / "2")


def half_copied(place, second, tmp_path):
    (second / "weights.bin").unlink()
    os.rename(second, place / "2")


def damaged_manifest(place, second, tmp_path):
    (second / "millpond.json").write_text('{"format": 1, ')
    os.rename(second, place / "2")


def manifest_that_points_outside(place, second, tmp_path):
    path = second / "millpond.json"
    manifest = json.loads(path.read_text())
    manifest["weights"]["name"] = "../../../../etc/passwd"
    path.write_text(json.dumps(manifest))
    os.rename(second, place / "2")


def truncated_onnx(place, second, tmp_path):
    whole = stamped(tmp_path / "whole.onnx", 2).read_bytes()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(whole[: len(whole) // 2])
    drop_in(cut, place, 2)


def no_onnx_at_all(place, second, tmp_path):
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"<html>404 Not Found</html>\n" * 100)
    drop_in(wrong, place, 2)


def empty_onnx(place, second, tmp_path):
    nothing = tmp_path / "nothing.onnx"
    nothing.write_bytes(b"")
    drop_in(nothing, place, 2)


def unreadable(place, second, tmp_path):
    """A link to itself, which even root cannot read."""
    (place / "2").mkdir()
    (place / "2" / "model.onnx").symlink_to("model.onnx")


def unreadable_directory(place, second, tmp_path):
    (place / "2").symlink_to("2")


def bigger_than_memory(place, second, tmp_path):
    """A sparse weights file of one terabyte."""
    path = second / "millpond.json"
    manifest = json.loads(path.read_text())
    rows = 1 << 32
    (tensor,) = [tensor for tensor in manifest["tensors"] if len(tensor["dims"]) == 2]
    tensor["dims"], tensor["bytes"] = [rows, 64], rows * 64 * 4
    manifest["tensors"] = [tensor]
    tensor["offset"] = 0
    manifest["weights"]["bytes"] = rows * 64 * 4
    os.truncate(second / "weights.bin", rows * 64 * 4)
    path.write_text(json.dumps(manifest))
    os.rename(second, place / "2")


@pytest.mark.parametrize(
    "spoil",
    [
        empty, truncated_weights, damaged_weights, half_copied, damaged_manifest, manifest_that_points_outside,
        truncated_onnx, no_onnx_at_all, empty_onnx, unreadable, unreadable_directory, bigger_than_memory,
    ],
    ids=lambda spoil: spoil.__name__,
)  # fmt: skip
def test_a_version_that_cannot_serve(serve, place, second, tmp_path, spoil):
    server = serve(place.parent, "--load-retries", "0")
    assert answer_of(server) == 1
    spoil(place, second, tmp_path)
    reason = server.wait_refused("stamped", 2)
    assert "panick" not in reason
    assert answer_of(server) == 1
    states = {entry["version"]: entry for entry in server.index("stamped")}
    assert states["1"]["state"] == "READY"
    assert states["2"]["state"] != "READY"
    assert states["2"]["reason"]
    assert server.versions("stamped")[1]["state"] == "AVAILABLE"
    server.assert_serving()

    # The next good version takes over.
    publish(stamped(tmp_path / "three.onnx", 3), place, 3)
    server.wait_version("stamped", 3)
    assert answer_of(server) == 3


def test_a_version_that_the_pool_cannot_hold(serve, place, tmp_path):
    server = serve(place.parent, "--pool", "64MiB", "--load-retries", "0")
    publish(stamped(tmp_path / "large.onnx", 2, megabytes=96), place, 2)
    reason = server.wait_refused("stamped", 2)
    assert "memory" in reason or "pool" in reason, reason
    assert answer_of(server) == 1
    publish(stamped(tmp_path / "three.onnx", 3), place, 3)
    server.wait_version("stamped", 3)
    assert answer_of(server) == 3


def test_a_copy_in_progress_waits_until_it_is_complete(serve, place, tmp_path):
    """An ONNX file that another program writes piece by piece into its final place."""
    server = serve(place.parent)
    data = stamped(tmp_path / "two.onnx", 2, megabytes=2).read_bytes()
    (place / "2").mkdir()
    with (place / "2" / "model.onnx").open("wb") as file:
        pieces = 12
        for number in range(pieces):
            file.write(data[len(data) * number // pieces : len(data) * (number + 1) // pieces])
            file.flush()
            time.sleep(0.15)
            # The whole version may serve at once.
            assert number == pieces - 1 or answer_of(server) == 1
    server.wait_version("stamped", 2)
    assert answer_of(server) == 2


def test_a_refused_version_serves_once_it_is_repaired(serve, place, second, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(second, whole)
    server = serve(place.parent, "--load-retries", "0")
    half_copied(place, second, tmp_path)
    server.wait_refused("stamped", 2)
    shutil.copyfile(whole / "weights.bin", place / "2" / "weights.bin")
    server.wait_version("stamped", 2)
    assert answer_of(server) == 2


def test_a_repository_without_a_good_version_still_answers(serve, tmp_path):
    """A model without a version that can serve does not prevent the start of the server or of other models."""
    (tmp_path / "root" / "hopeless" / "1").mkdir(parents=True)
    (tmp_path / "root" / "hopeless" / "1" / "model.onnx").write_bytes(b"no model")
    server = serve(tmp_path / "root", "--load-retries", "0", ready=False)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            server.assert_serving()
            break
        except (requests.ConnectionError, AssertionError):
            time.sleep(0.1)
    server.assert_serving()
    assert server.wait_refused("hopeless", 1)
    answer = server.infer("hopeless", [1.0])
    assert answer.status_code in (404, 503)
    assert "hopeless" in answer.json()["error"]
