"""A search node whose disk is full: its copies lack changes, the other holder answers, and they catch up once there is room."""

import json
import pathlib
import re
import sys

import pytest
from deployment import Cluster
from processes import NodePlan, http_call, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))
from disks import fill, small_disk

DIMS, SHARDS, READS = 8, 2, 20
FULL = "the local disk is full"


@pytest.fixture
def cluster(tmp_path):
    """A node with all roles, and a search node whose collections are on a small disk."""
    plans = [NodePlan("full", "search"), NodePlan("other", "root,search,ingest")]
    cluster = Cluster(plans, tmp_path, tmp_path / "logs", s3=False)
    try:
        with small_disk(collections(cluster), "64m"):
            try:
                cluster.start()
                yield cluster
            finally:
                # The disk is in use until then.
                cluster.nodes["full"].kill()
    finally:
        cluster.close()


def collections(cluster: Cluster) -> pathlib.Path:
    return cluster.nodes["full"].directory / "collections"


def call(cluster: Cluster, method: str, path: str, body: dict | None = None, node: str = "other") -> dict:
    sent = None if body is None else json.dumps(body).encode()
    status, answer = http_call(cluster.nodes[node].address, method, path, sent)
    assert status == 200, answer[:1000]
    return json.loads(answer)


def upsert(cluster: Cluster, first: int, count: int) -> None:
    points = [{"id": first + at, "vector": [1.0 + at] * DIMS} for at in range(count)]
    call(cluster, "PUT", "/collections/docs/points?wait=true", {"points": points})


def shards(cluster: Cluster) -> list[dict]:
    """Returns the shards of the node with the small disk."""
    return call(cluster, "GET", "/cluster/v1/node", node="full")["shards"]


def stalled(cluster: Cluster) -> float:
    """Returns the metric of the node with the small disk."""
    _, body = http_call(cluster.nodes["full"].address, "GET", "/metrics")
    return float(re.search(r"^millpond_cluster_stalled_shards (\S+)$", body.decode(), re.MULTILINE)[1])


def docs(cluster: Cluster) -> dict:
    return call(cluster, "GET", "/cluster/v1/view")["result"]["collections"][0]


def test_a_full_disk_stalls_a_holder_until_there_is_room(cluster):
    settings = {"vectors": {"size": DIMS, "distance": "Dot"}, "shard_number": SHARDS, "replication_factor": 2}
    call(cluster, "PUT", "/collections/docs", settings)
    upsert(cluster, 0, 20)
    cluster.shards, cluster.copies = SHARDS, 2
    cluster.wait_settled()
    assert all(shard["stalled"] is None for shard in shards(cluster))

    ballast = collections(cluster) / ".ballast"
    fill(ballast)
    upsert(cluster, 100, 40)
    wait_until("all shards are stalled", lambda: all(shard["stalled"] for shard in shards(cluster)))
    assert all("--search-disk-reserve" in shard["stalled"] for shard in shards(cluster))
    wait_until("the metric shows it", lambda: stalled(cluster) == SHARDS)
    wait_until("other nodes see it", lambda: all(shard.get("damaged") == ["full"] for shard in docs(cluster)["shards"]))
    assert docs(cluster)["status"] == "yellow"
    for _ in range(READS):
        counted = call(cluster, "POST", "/collections/docs/points/count", {"exact": True})["result"]
        assert counted["count"] == 60 and not counted.get("partial"), counted

    ballast.unlink()
    wait_until("the log is applied", lambda: all(not shard["stalled"] and shard["caught_up"] for shard in shards(cluster)))
    wait_until("the metric shows it", lambda: stalled(cluster) == 0)
    wait_until("other nodes see it", lambda: docs(cluster)["status"] == "green")
    log = cluster.nodes["full"].log.read_text()
    assert log.count(FULL) == SHARDS, "it is logged once for each shard"
