"""A node that loses the store while another one reaches it: its logs move, and no acknowledged point is lost."""

import json
import subprocess

import pytest
from deployment import Cluster
from processes import BINARY, Node, NodePlan, Proxy, http_call, wait_until

# With so many shards, each node owns some of them.
DIMS, SHARDS, POINTS = 4, 16, 16
ROLES = "root,search,ingest"
# The logs move 30 s after the node announces the failure. A pause of etcd's answers adds 20 s.
MOVE_TIMEOUT_S = 120


@pytest.fixture
def cluster(tmp_path):
    """Two nodes with moto. The node `lost` reaches it through a proxy of its own."""
    logs = tmp_path / "logs"
    cluster = Cluster([NodePlan("whole", ROLES)], tmp_path, logs, s3=True)
    try:
        moto = cluster.environment["AWS_ENDPOINT_URL"].removeprefix("http://")
        cluster.own_proxy = Proxy("delay", "own-store-proxy", moto, logs)
        cluster.own_proxy.start()
        environment = {**cluster.environment, "AWS_ENDPOINT_URL": f"http://{cluster.own_proxy.address}"}
        flags = cluster.flags + cluster.search_flags
        cluster.nodes["lost"] = Node(NodePlan("lost", ROLES), flags, tmp_path, logs, environment)
        cluster.start()
        settings = {"vectors": {"size": DIMS, "distance": "Dot"}, "shard_number": SHARDS, "replication_factor": 2}
        assert call(cluster, "PUT", "/collections/docs", settings)[0] == 200
        cluster.shards, cluster.copies = SHARDS, 2
        cluster.wait_settled()
        yield cluster
    finally:
        cluster.close()


def call(cluster: Cluster, method: str, path: str, body: dict | None = None, node: str = "whole") -> tuple[int, dict]:
    sent = None if body is None else json.dumps(body).encode()
    status, answer = http_call(cluster.nodes[node].address, method, path, sent)
    return status, json.loads(answer)


def upsert(cluster: Cluster, number: int) -> bool:
    points = {"points": [{"id": number, "vector": [1.0] * DIMS}]}
    return call(cluster, "PUT", "/collections/docs/points?wait=true&timeout=2", points)[0] == 200


def count(cluster: Cluster, node: str, query: str = "") -> tuple[int, int | None]:
    status, answer = call(cluster, "POST", f"/collections/docs/points/count{query}", {"exact": True}, node)
    return status, answer["result"]["count"] if status == 200 else None


def lost_access(cluster: Cluster) -> str | None:
    nodes = call(cluster, "GET", "/cluster/v1/view")[1]["result"]["nodes"]
    return next(node.get("store") for node in nodes if node["name"] == "lost")


def test_the_logs_of_a_node_without_the_store_move(cluster):
    for number in range(POINTS):
        wait_until(f"point {number} is written", lambda number=number: upsert(cluster, number))
    assert set(cluster.members().owners.values()) == {"lost", "whole"}
    for node in cluster.nodes:
        wait_until(f"{node} has all points", lambda node=node: count(cluster, node) == (200, POINTS))
    cluster.own_proxy.kill()
    assert count(cluster, "lost") == (200, POINTS), "reads need no store"
    wait_until("the node announces it", lambda: lost_access(cluster) in ("failing", "lost"))
    wait_until("the logs move", lambda: set(cluster.members().owners.values()) == {"whole"}, MOVE_TIMEOUT_S)
    # The view of this root can be older than the owners in etcd.
    wait_until("the view shows it", lambda: lost_access(cluster) == "lost")
    for number in range(POINTS, 2 * POINTS):
        wait_until(f"point {number} is written", lambda number=number: upsert(cluster, number))
    strong = "?consistency=strong&timeout=10"
    wait_until("all points are there", lambda: count(cluster, "whole", strong) == (200, 2 * POINTS))
    command = [str(BINARY), "cluster", "status", "--url", cluster.nodes["whole"].url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "the store fails for lost" in shown and "MERGES" in shown, shown
