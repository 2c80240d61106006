"""Full disks, and files that are missing or cut off: reported, survived, and no older state is served."""

import contextlib
import os
import pathlib
import stat

import disks
import numpy as np
import pytest
import requests
from collections_server import start
from disks import fill
from onnx import TensorProto, helper

from millpond import Server, drop_in, wait_for
from models import save, value
from test_images import Images, patches, picture

DIMS = 64


@pytest.fixture
def small_disk():
    """Mounts file systems of a few MiB: `small_disk(path, size)`."""
    with contextlib.ExitStack() as mounted:
        yield lambda path, size: mounted.enter_context(disks.small_disk(path, size))


def points(first: int, count: int, seed: int = 0) -> dict:
    random = np.random.default_rng((first, seed))
    vectors = random.standard_normal((count, DIMS)).tolist()
    return {"points": [{"id": first + at, "vector": vector, "payload": {"seed": seed}} for at, vector in enumerate(vectors)]}


def create(server: Server) -> None:
    body = {"vectors": {"size": DIMS, "distance": "Cosine"}}
    assert requests.put(f"{server.url}/collections/c", json=body, timeout=60).status_code == 200


def upsert(server: Server, first: int, count: int = 1, seed: int = 0) -> requests.Response:
    url = f"{server.url}/collections/c/points?wait=true"
    return requests.put(url, json=points(first, count, seed), timeout=60)


def info(server: Server) -> dict:
    answer = wait_for(
        lambda: requests.get(f"{server.url}/collections/c", timeout=60),
        # Wait until the collection is open.
        lambda answer: answer.status_code != 503,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def get(server: Server, point: int) -> requests.Response:
    return requests.get(f"{server.url}/collections/c/points/{point}", timeout=60)


def logs(scratch: pathlib.Path) -> list[pathlib.Path]:
    return sorted((scratch / "collections/c").glob("points-*/log-*"))


def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path, small_disk):
    small_disk(tmp_path / "collections", "16m")
    ballast = tmp_path / "collections/.ballast"
    server = start(tmp_path)
    try:
        create(server)
        assert upsert(server, 0, 200).status_code == 200
        assert info(server)["status"] == "green"
        fill(ballast)
        refused = wait_for(lambda: upsert(server, 1000), lambda answer: answer.status_code != 200)
        assert refused.status_code == 507, refused.text
        assert "--search-disk-reserve" in refused.text
        found = info(server)
        assert found["status"] == "yellow" and "kept free" in str(found["warnings"]), found
        assert found["optimizer_status"] != "ok"
        before = sorted(path.name for path in (tmp_path / "collections").rglob("*"))
        for at in range(100):
            assert upsert(server, 2000 + at).status_code == 507
        assert sorted(path.name for path in (tmp_path / "collections").rglob("*")) == before
        assert get(server, 7).status_code == 200
    finally:
        assert server.stop() == 0, server.log_text()
    # Earlier versions left such files and needed room for each of them.
    place = logs(tmp_path)[0].parent
    for number in range(900_000, 901_000):
        (place / f"log-{number:012}").touch()
    server = start(tmp_path, name="again")
    try:
        found = wait_for(lambda: info(server), lambda found: found["points_count"] >= 200)
        assert found["status"] == "yellow", found
        assert [get(server, at).status_code for at in range(0, 200, 20)] == [200] * 10
        assert upsert(server, 1000).status_code == 507
        assert len(logs(tmp_path)) < 10, "empty logs of before are removed"
        ballast.unlink()
        wait_for(lambda: upsert(server, 1000).status_code, lambda code: code == 200)
        found = info(server)
        assert found["status"] == "green" and not found["warnings"], found
        assert get(server, 1000).status_code == 200
    finally:
        assert server.stop() == 0, server.log_text()


def test_a_snapshot_is_deleted_on_a_full_disk(tmp_path, small_disk):
    small_disk(tmp_path / "collections", "16m")
    server = start(tmp_path)
    try:
        create(server)
        assert upsert(server, 0, 200).status_code == 200
        snapshots = f"{server.url}/collections/c/snapshots"
        name = requests.post(snapshots, timeout=60).json()["result"]["name"]
        fill(tmp_path / "collections/.ballast")
        deleted = requests.delete(f"{snapshots}/{name}", timeout=60)
        assert deleted.status_code == 200, deleted.text
        assert requests.get(snapshots, timeout=60).json()["result"] == []
    finally:
        assert server.stop() == 0, server.log_text()


@pytest.mark.parametrize("harm", ["gone", "cut", "end"])
def test_a_log_that_lost_acknowledged_points_is_named(tmp_path, harm):
    server = start(tmp_path)
    create(server)
    assert upsert(server, 0, 300).status_code == 200
    assert server.stop() == 0, server.log_text()
    log = logs(tmp_path)[-1]
    length = log.stat().st_size
    if harm == "gone":
        log.unlink()
    elif harm == "cut":
        os.truncate(log, 2172)
    else:
        with log.open("r+b") as file:
            # Inside the last change: the keys of the flush are behind it.
            file.seek(length - 300 * 8 - 200)
            file.write(b"\xa5")
    server = start(tmp_path, name="again")
    try:
        found = info(server)
        assert found["status"] == "red", found
        assert log.name in str(found["warnings"]) and "lost" in str(found["warnings"]), found
        answers = [get(server, at).status_code for at in range(300)]
        assert 404 not in answers, "nobody knows that they are not there"
        if harm == "end":
            assert answers.count(200) == 299, "the point is known by its key"
        else:
            assert answers.count(200) < 100
        # Until it is dropped.
        given_up = requests.delete(f"{server.url}/collections/c/segments/{log.name}", timeout=60)
        assert given_up.status_code == 200, given_up.text
        found = info(server)
        assert found["status"] == "green" and not found["warnings"], found
        assert 404 in [get(server, at).status_code for at in range(300)]
    finally:
        assert server.stop() == 0, server.log_text()


def test_a_converter_without_room_names_the_remedy(tmp_path, small_disk):
    cache = small_disk(tmp_path / "cache", "1m")
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1 << 20], np.ones(1 << 20, np.float32).tobytes(), raw=True)
    large = save(
        tmp_path / "large.onnx",
        [helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])],
        [value("x", TensorProto.FLOAT, ["batch"])],
        [value("y", TensorProto.FLOAT, ["batch"])],
        [weights],
    )
    drop_in(large, tmp_path / "models/large", 1)
    for full in (False, True):
        server = Server(tmp_path / "models", log=tmp_path / "server.log")
        try:
            # It is refused while it is retried, with or without room at the start.
            if full:
                wait_for(lambda: list(cache.rglob("lock")), bool)
                fill(cache / "ballast")
            reason = wait_for(lambda: server.log_text(), lambda text: "no space left" in text)
            assert "--cache-dir" in reason and str(cache) in reason
            assert "panicked" not in reason and "status: 101" not in reason
        finally:
            server.stop()


def test_originals_on_a_full_disk_are_refused(tmp_path, small_disk):
    drop_in(patches(tmp_path / "patches.onnx"), tmp_path / "models/patches", 1)
    place = small_disk(tmp_path / "originals", "1m")
    flags = ["--collections-dir", str(tmp_path / "collections"), "--originals", str(place)]
    server = Server(tmp_path / "models", *flags, log=tmp_path / "server.log").wait_ready()
    try:
        images = Images(server)
        assert images.put("p", picture(1)).status_code == 200
        fill(place / "ballast")
        before = sorted(path.name for path in place.rglob("*") if path.is_file())
        for seed in range(2, 6):
            refused = images.put("p", picture(seed))
            assert refused.status_code == 507 and "free space" in refused.text, (refused.status_code, refused.text)
        assert sorted(path.name for path in place.rglob("*") if path.is_file()) == before
        assert images.count("p") == 1
        (place / "ballast").unlink()
        assert images.put("p", picture(2)).status_code == 200
        assert images.count("p") == 2
    finally:
        assert server.stop() == 0, server.log_text()


def test_an_archive_leaves_the_disk_reserve_free(tmp_path, small_disk):
    drop_in(patches(tmp_path / "patches.onnx"), tmp_path / "models/patches", 1)
    small_disk(tmp_path / "collections", "16m")
    flags = ["--collections-dir", str(tmp_path / "collections")]
    server = Server(tmp_path / "models", *flags, log=tmp_path / "server.log").wait_ready()
    try:
        images = Images(server)
        assert images.put("p", picture(1)).status_code == 200
        refused = images.put("p", bytes(20 << 20), "application/zip")
        assert refused.status_code == 507 and "--search-disk-reserve" in refused.text, refused.text
        assert images.put("p", picture(2)).status_code == 200
    finally:
        assert server.stop() == 0, server.log_text()


def test_files_are_private_to_the_user(tmp_path):
    drop_in(patches(tmp_path / "patches.onnx"), tmp_path / "models/patches", 1)
    place = tmp_path / "data"
    flags = ["--collections-dir", str(place / "collections"), "--originals", str(place / "originals")]
    server = Server(tmp_path / "models", *flags, log=tmp_path / "server.log").wait_ready()
    try:
        assert Images(server).put("p", picture(1)).status_code == 200
        seen = [path for root in (place, tmp_path / "cache") for path in [root, *root.rglob("*")]]
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in seen}
    finally:
        assert server.stop() == 0, server.log_text()
    assert [path for path in seen if path.is_relative_to(place / "originals") and path.suffix != ""] or len(seen) > 10
    open_to_others = {str(path): oct(mode) for path, mode in modes.items() if mode & 0o027}
    assert not open_to_others
