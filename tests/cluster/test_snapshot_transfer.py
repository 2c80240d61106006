"""Snapshots that move collections from one server to a cluster and back. Points, payloads and features stay equal."""

import io
import json
import pathlib
import sys
import tarfile
import uuid

import graphs
import pytest
import requests
from deployment import Cluster
from processes import NodePlan, http_call, wait_until
from qdrant_client import QdrantClient, models

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))
from collections_server import start
from qdrant_points import DIMS, everything, points
from test_image_features import FeatureClient

COUNT = 300
PHOTOS = 60
TIMEOUT_S = 120
VECTOR = "text"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("transfer")
    plans = [NodePlan("a", "root,search,ingest"), NodePlan("b", "root,search,ingest")]
    cluster = Cluster(plans, scratch, scratch / "logs", s3=False, snapshot_entries=4)
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Two servers that know nothing of each other."""
    made = []
    for name in ("first", "second"):
        scratch = tmp_path_factory.mktemp(name)
        made.append(start(scratch, "--backup-dir", str(scratch / "backups")))
    yield made
    for server in made:
        assert server.stop() == 0, server.log_text()


def path(url: str, collection: str, rest: str = "") -> str:
    return f"{url}/collections/{collection}/snapshots{rest}"


def snapshot(url: str, collection: str) -> bytes:
    """Makes a snapshot and downloads it."""
    made = requests.post(path(url, collection), timeout=TIMEOUT_S)
    assert made.status_code == 200, made.text
    name = made.json()["result"]["name"]
    answer = requests.get(path(url, collection, f"/{name}"), timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text[:500]
    assert len(answer.content) == int(answer.headers["content-length"])
    assert tarfile.open(fileobj=io.BytesIO(answer.content)).getnames()[0] == "millpond-backup.json"
    return answer.content


def upload(url: str, collection: str, content: bytes, **query) -> requests.Response:
    return requests.post(path(url, collection, "/upload"), data=content, params=query, timeout=TIMEOUT_S)


def rows(client: QdrantClient, collection: str) -> list[tuple]:
    return sorted((str(row[0]), str(row[2]), str(row[3])) for row in everything(client, collection))


def fill(client: QdrantClient, collection: str) -> None:
    vectors = {VECTOR: models.VectorParams(size=DIMS, distance=models.Distance.DOT)}
    client.create_collection(collection, vectors_config=vectors)
    client.create_payload_index(collection, "city", models.PayloadSchemaType.KEYWORD)
    made = points(11, COUNT, VECTOR)
    for point in made[::3]:
        point.id = str(uuid.UUID(int=point.id))
    client.upsert(collection, made)
    # Replaced and deleted points are not in the archive's points.
    client.upsert(collection, points(12, 20, VECTOR))
    client.delete(collection, models.PointIdsList(points=[2, 3]))


def test_a_collection_moves_to_a_cluster_and_back(cluster, servers):
    first, second = servers
    root = cluster.nodes["a"].url
    one, many, other = (QdrantClient(url=url, timeout=TIMEOUT_S) for url in (first.url, root, second.url))
    fill(one, "docs")
    before = rows(one, "docs")
    content = snapshot(first.url, "docs")
    answer = upload(root, "docs", content, shard_number=4, replication_factor=1)
    assert answer.json().get("result") is True, answer.text
    assert rows(many, "docs") == before
    described = many.get_collection("docs")
    assert list(described.payload_schema) == ["city"]
    assert described.config.params.shard_number == 4

    # The collection of the cluster takes writes, and its snapshots have their moment.
    for begin in range(0, 60, 3):
        many.upsert("docs", points(13, 60, VECTOR)[begin : begin + 3])
    view = json.loads(http_call(cluster.nodes["a"].address, "GET", "/cluster/v1/view")[1])
    (known,) = (it for it in view["result"]["collections"] if it["name"] == "docs")
    data = cluster.scratch / "store" / "data" / known["id"]
    wait_until("a snapshot of a shard", lambda: list(data.glob("snapshots/*/backups/*")))
    many.delete("docs", models.PointIdsList(points=[40, 41]))
    changed = rows(many, "docs")
    assert changed != before
    back = snapshot(root, "docs")
    many.delete("docs", models.PointIdsList(points=[50]))
    answer = upload(second.url, "docs", back)
    assert answer.json().get("result") is True, answer.text
    assert rows(other, "docs") == changed
    assert list(other.get_collection("docs").payload_schema) == ["city"]
    # The archive of a cluster becomes a collection of a cluster too.
    answer = upload(root, "copy", back, shard_number=3)
    assert answer.json().get("result") is True, answer.text
    assert rows(many, "copy") == changed
    for client in (one, many, other):
        client.close()


def test_images_move_to_a_cluster_and_back(cluster, servers):
    first, second = (FeatureClient(server) for server in servers)
    root = FeatureClient(cluster.nodes["b"])
    first.put("photos", graphs.points(PHOTOS), model=graphs.MODEL)
    features = [first.features("photos", number) for number in range(PHOTOS)]
    answer = upload(root.server.url, "photos", snapshot(first.server.url, "photos"), shard_number=3)
    assert answer.status_code == 200, answer.text
    assert root.count("photos") == PHOTOS
    assert [root.features("photos", number) for number in range(PHOTOS)] == features
    assert root.send("GET", "photos/0").status_code == 404, "archives have no originals"
    back = snapshot(root.server.url, "photos")
    answer = upload(second.server.url, "photos.v1", back)
    assert answer.status_code == 200, answer.text
    assert [second.features("photos.v1", number) for number in range(PHOTOS)] == features


def test_a_failed_upload_changes_nothing(cluster, servers, tmp_path):
    first, _ = servers
    root = cluster.nodes["a"].url
    one, many = (QdrantClient(url=url, timeout=TIMEOUT_S) for url in (first.url, root))
    fill(one, "kept")
    content = snapshot(first.url, "kept")
    assert upload(root, "kept", content).status_code == 200
    before = rows(many, "kept")
    taken = upload(root, "kept", content)
    assert taken.status_code == 409 and "alias" in taken.text, taken.text
    assert rows(many, "kept") == before
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    for wrong in (bytes(damaged), content[: len(content) // 2], b"no archive" * 1000):
        refused = upload(root, "other", wrong)
        assert refused.status_code == 400, refused.text
        assert not many.collection_exists("other")
    assert upload(root, "other", content, shard_number=0).status_code == 400
    # No local collection of an upload stays.
    for node in cluster.nodes.values():
        assert not list(node.directory.rglob("millpond-staged-*"))

    file = tmp_path / "kept.snapshot"
    file.write_bytes(content)
    assert many.recover_snapshot("recovered", location=f"file://{file}")
    assert rows(many, "recovered") == before
    missing = requests.put(
        path(root, "missing", "/recover"), json={"location": f"file://{tmp_path}/missing"}, timeout=TIMEOUT_S
    )
    assert missing.status_code == 404, missing.text
    one.close()
    many.close()
