"""Backups of collections in S3: incremental, restored by another server, verified."""

import json

import numpy as np
import requests
from millpond import run, wait_for
from store import BUCKET

PLACE = f"s3://{BUCKET}/backups"
DIMS = 256
COUNT = 12_000
TIMEOUT_S = 120


def put(server, name: str, ids: range, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for start in range(ids.start, ids.stop, 1000):
        block = range(start, min(start + 1000, ids.stop))
        embeddings = rng.normal(size=(len(block), DIMS)).round(3).tolist()
        points = [{"id": i, "vector": v, "payload": {"seed": seed}} for i, v in zip(block, embeddings, strict=True)]
        answer = requests.put(
            f"{server.url}/collections/{name}/points?wait=true", json={"points": points}, timeout=TIMEOUT_S
        )
        assert answer.status_code == 200, answer.text


def small(backup: dict) -> bool:
    """Tells if the store had most of a backup. The first one may be of points that were not flushed yet."""
    return backup["uploaded_bytes"] * 10 < backup["bytes"]


def count(server, name: str) -> int:
    answer = requests.post(f"{server.url}/collections/{name}/points/count", json={}, timeout=TIMEOUT_S)
    return answer.json()["result"]["count"]


def test_a_backup_in_s3_is_incremental_and_restored_elsewhere(s3, serve, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    place = ("--backup-dir", PLACE)
    server = serve(str(models), "--collections-dir", str(tmp_path / "one"), *place)
    space = {"vectors": {"size": DIMS, "distance": "Cosine"}}
    assert requests.put(f"{server.url}/collections/docs", json=space, timeout=TIMEOUT_S).status_code == 200
    put(server, "docs", range(COUNT), 1)
    command = ("collections", "backup", "docs", "--json", "--url", server.url)
    first = json.loads(run(*command).stdout)
    # More than one part of a multipart upload.
    assert first["uploaded_bytes"] == first["bytes"] > 8 << 20
    wait_for(lambda: json.loads(run(*command).stdout), small, timeout_s=120)

    def changed() -> dict:
        put(server, "docs", range(100), 2)
        s3.reset()
        return json.loads(run(*command).stdout)

    # A merge of segments may have made new files meanwhile.
    second = wait_for(changed, small, timeout_s=120)
    keys = list(s3.counts.keys)
    lists = [key for key in keys if key.endswith(f"docs/backups/{second['backup']}")]
    objects = [at for at, key in enumerate(keys) if "/docs/objects/" in key]
    assert keys.index(lists[0]) > max(objects), "the list is written last"
    other = serve(str(models), "--collections-dir", str(tmp_path / "two"), *place)
    run("collections", "restore", "docs", "--url", other.url)
    assert count(other, "docs") == COUNT
    assert "0 problems" in run("collections", "verify", "docs", "--url", other.url).stdout
    largest = max((key for key in s3.objects() if "/objects/" in key), key=lambda key: len(s3.get(key)))
    s3.delete(largest)
    damaged = run("collections", "verify", "docs", "--url", other.url, check=False)
    assert damaged.returncode == 4
    assert largest.rsplit("/", 1)[1] in damaged.stdout


def test_refused_credentials_are_named(s3, serve, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    models = tmp_path / "models"
    models.mkdir()
    place = ("--collections-dir", str(tmp_path / "one"), "--backup-dir", PLACE)
    server = serve(str(models), *place)
    refused = run("collections", "backups", "--url", server.url, check=False)
    assert refused.returncode == 1
    assert "SignatureDoesNotMatch" in refused.stderr and "check AWS_ACCESS_KEY_ID" in refused.stderr
