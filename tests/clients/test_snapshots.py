"""Backups and snapshots of collections: qdrant-client without changes, and `millpond collections`."""

import io
import json
import re
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from collections_server import start
from millpond import run, wait_for
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from qdrant_points import DIMS, everything, points, vectors

TIMEOUT_S = 60
COUNT = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("snapshots")
    server = start(scratch, "--backup-dir", str(scratch / "backups"))
    yield server
    assert server.stop() == 0, server.log_text()


@pytest.fixture(scope="module")
def client(server):
    client = QdrantClient(url=server.url, timeout=TIMEOUT_S)
    yield client
    client.close()


@pytest.fixture
def filled(client, request):
    """A collection with points, deleted after the test."""
    name = request.node.name
    client.create_collection(name, vectors_config=models.VectorParams(size=DIMS, distance=models.Distance.COSINE))
    client.upsert(name, points(1, COUNT))
    yield name
    client.delete_collection(name)


def collections(server, *arguments: str, check: bool = True):
    return run("collections", *arguments, "--url", server.url, check=check)


def test_a_snapshot_is_made_listed_recovered_and_deleted(server, client, filled):
    made = client.create_snapshot(filled)
    assert made.size > 0
    assert client.list_snapshots(filled) == [made]
    before = everything(client, filled)
    client.delete(filled, points_selector=models.Filter())
    assert client.count(filled).count == 0
    path = f"{server.url}/collections/{filled}/snapshots/{made.name}"
    file = requests.get(path, timeout=TIMEOUT_S)
    assert file.status_code == 200
    assert len(file.content) == made.size == int(file.headers["content-length"])
    names = tarfile.open(fileobj=io.BytesIO(file.content)).getnames()
    assert names[0] == "millpond-backup.json"
    # The file can be sent to any server, under any name.
    upload = f"{server.url}/collections/{filled}/snapshots/upload?priority=snapshot"
    answer = requests.post(upload, files={"snapshot": ("x.snapshot", file.content)}, timeout=TIMEOUT_S)
    assert answer.json()["result"] is True, answer.text
    assert everything(client, filled) == before
    client.delete(filled, points_selector=models.Filter())
    assert client.delete_snapshot(filled, made.name)
    assert client.list_snapshots(filled) == []
    for call in (requests.get, requests.delete):
        missing = call(path, timeout=TIMEOUT_S)
        assert missing.status_code == 404
        assert "there is no snapshot" in missing.text


def test_a_snapshot_is_recovered_from_a_location(server, client, filled, tmp_path):
    made = client.create_snapshot(filled)
    before = everything(client, filled)
    file = tmp_path / "copy.snapshot"
    path = f"{server.url}/collections/{filled}/snapshots/{made.name}"
    file.write_bytes(requests.get(path, timeout=TIMEOUT_S).content)
    assert client.recover_snapshot("recovered", location=f"file://{file}")
    assert everything(client, "recovered") == before
    # The clients' points replace earlier ones of the collection.
    client.upsert("recovered", points(2, 10))
    assert client.recover_snapshot("recovered", location=f"file://{file}", priority=models.SnapshotPriority.SNAPSHOT)
    assert everything(client, "recovered") == before
    client.delete_collection("recovered")


def test_a_failed_recovery_is_logged_as_failed(server):
    recover = f"{server.url}/collections/wrong/snapshots/recover"
    names = ["missing", "n" * 5000, "a\0b"]
    answers = [requests.put(recover, json={"location": f"file:///{name}"}, timeout=TIMEOUT_S) for name in names]
    assert [answer.status_code for answer in answers] == [404, 400, 400], [answer.text for answer in answers]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", server.log_text())
    lines = [line for line in plain.splitlines() if 'subject="wrong"' in line]
    outcomes = [re.search(r'outcome="(\w+)"', line)[1] for line in lines]
    assert outcomes == ["not_found", "invalid_argument", "invalid_argument"], lines


def test_downloads_do_not_wait_for_recoveries(server, client, filled):
    """A recovery may download the snapshot from this server, so it must not wait for permits of recoveries."""
    made = client.create_snapshot(filled)
    url = f"{server.url}/collections/{filled}/snapshots"
    stop = threading.Event()

    def slowly():
        while not stop.wait(0.2):
            yield b"x"

    def upload(content) -> int:
        return requests.post(f"{url}/upload", data=content, timeout=TIMEOUT_S).status_code

    with ThreadPoolExecutor(2) as pool:
        uploads = [pool.submit(upload, slowly()) for _ in range(2)]
        try:
            wait_for(lambda: upload(b"x"), lambda status: status == 429)
            file = requests.get(f"{url}/{made.name}", timeout=TIMEOUT_S)
        finally:
            stop.set()
    assert file.status_code == 200, file.text
    assert len(file.content) == made.size
    assert [status.result() for status in uploads] == [400, 400]


def test_other_snapshots_are_refused_and_change_nothing(server, client, filled, tmp_path):
    before = everything(client, filled)
    file = tmp_path / "qdrant.snapshot"
    with tarfile.open(file, "w") as archive:
        for name in ("config.json", "version.info"):
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = 2
            archive.addfile(entry, io.BytesIO(b"{}"))
    text = tmp_path / "text.snapshot"
    text.write_text("no archive" * 1000)
    for path, word in ((file, "Qdrant made"), (text, "tar archive"), (tmp_path / "missing", "missing")):
        with pytest.raises(UnexpectedResponse) as caught:
            client.recover_snapshot(filled, location=f"file://{path}")
        assert caught.value.status_code in (400, 404)
        assert word in caught.value.content.decode()
        # The file may be any file of the server.
        assert "no archive" not in caught.value.content.decode()
    with pytest.raises(UnexpectedResponse) as caught:
        client.recover_snapshot(filled, location=f"file://{file}", checksum="00")
    assert caught.value.status_code == 501
    assert everything(client, filled) == before


def test_a_damaged_upload_is_the_clients_error(server, client, filled):
    made = client.create_snapshot(filled)
    before = everything(client, filled)
    url = f"{server.url}/collections/{filled}/snapshots"
    content = requests.get(f"{url}/{made.name}", timeout=TIMEOUT_S).content
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    for wrong in (bytes(changed), content[: len(content) // 2]):
        answer = requests.post(f"{url}/upload", files={"snapshot": ("x.snapshot", wrong)}, timeout=TIMEOUT_S)
        assert answer.status_code == 400, answer.text
        assert "download it again" in answer.text
    assert everything(client, filled) == before


def test_commands_back_up_and_restore(server, client, filled):
    first = json.loads(collections(server, "backup", filled, "--json").stdout)
    assert first["points"] == COUNT
    assert first["uploaded_bytes"] == first["bytes"] > 0
    rng = np.random.default_rng(7)
    client.upsert(filled, [models.PointStruct(id=10**6, vector=vectors(rng, 1)[0])])
    collections(server, "backup", filled)
    listed = collections(server, "backups", filled).stdout
    assert first["backup"] in listed
    assert filled in collections(server, "backups").stdout
    collections(server, "restore", filled, "--to", "old", "--backup", first["backup"])
    assert client.count("old").count == COUNT
    taken = collections(server, "restore", filled, "--to", "old", check=False)
    assert taken.returncode == 1
    assert "already" in taken.stderr
    collections(server, "restore", filled, "--to", "old", "--replace")
    assert client.count("old").count == COUNT + 1
    collections(server, "clone", "old", "copy")
    assert everything(client, "copy") == everything(client, filled)
    assert "0 problems" in collections(server, "verify", filled).stdout
    none = collections(server, "verify", "copy", check=False)
    assert none.returncode == 1 and 'no backup of "copy"' in none.stderr
    assert "removed 1 backups" in collections(server, "prune", filled, "--keep", "1").stdout
    # A collection without a backup is no error for a policy that runs each day; a wrong name is one.
    assert "removed 0 backups" in collections(server, "prune", "copy", "--keep", "1").stdout
    none = collections(server, "prune", "cpoy", "--keep", "1", check=False)
    assert none.returncode == 1 and "cpoy" in none.stderr
    client.delete_collection("old")
    client.delete_collection("copy")


def test_damage_in_the_store_is_named(server, client, filled):
    collections(server, "backup", filled)
    objects = server.root.parent / "backups" / filled / "objects"
    damaged = max(objects.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    found = collections(server, "verify", filled, check=False)
    assert found.returncode == 4
    assert damaged.name in found.stdout
    refused = collections(server, "restore", filled, "--to", "broken", check=False)
    assert damaged.name in refused.stderr
    assert not client.collection_exists("broken")
    collections(server, "backup", filled, "--full")
    collections(server, "restore", filled, "--to", "sound")
    assert everything(client, "sound") == everything(client, filled)
    client.delete_collection("sound")


def test_unknown_collections_and_backups_are_404(server):
    for method, path in (
        ("GET", "/v1/collections/none/backups"),
        ("POST", "/v1/collections/none/backups"),
        ("GET", "/collections/none/snapshots"),
        ("POST", "/collections/none/snapshots"),
        ("GET", "/collections/none/snapshots/none-20260131T235959123Z-0123abcd.snapshot"),
        ("DELETE", "/collections/none/snapshots/none-20260131T235959123Z-0123abcd.snapshot"),
        ("GET", "/v1/backups/jobs/123456"),
    ):
        answer = requests.request(method, server.url + path, timeout=TIMEOUT_S)
        assert answer.status_code == 404, (path, answer.text)
    job = requests.post(f"{server.url}/v1/collections/none/restore", json={}, timeout=TIMEOUT_S).json()["job"]
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        state = requests.get(f"{server.url}/v1/backups/jobs/{job}", timeout=TIMEOUT_S).json()
        if state["state"] == "failed":
            break
        time.sleep(0.05)
    assert "no backup" in state["error"]
    wrong = requests.post(f"{server.url}/v1/collections/none/backups/prune", json={"kep": 1}, timeout=TIMEOUT_S)
    assert wrong.status_code == 400
    assert "kep" in wrong.text


def test_a_schedule_needs_its_interval(server):
    refused = run("serve", str(server.root), "--backup-keep", "3", check=False)
    assert refused.returncode == 2
    assert "--backup-every" in refused.stderr
