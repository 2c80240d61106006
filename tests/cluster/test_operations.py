"""Commands of operators against three nodes that require a key: status, plans, draining a node."""

import json
import subprocess

import pytest
from deployment import Cluster
from processes import BINARY, NodePlan, http_call, wait_until

KEY = "a key of this test that is long enough"
SHARDS, POINTS = 8, 40
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("operations")
    plans = [NodePlan(name, "root,search,ingest") for name in ("a", "b", "c")]
    cluster = Cluster(plans, scratch, scratch / "logs", s3=False)
    for node in cluster.nodes.values():
        node.environment["MILLPOND_API_KEY"] = KEY
    cluster.start()
    yield cluster
    for process in [*cluster.nodes.values(), cluster.etcd]:
        process.kill()


def call(cluster: Cluster, method: str, path: str, body: dict) -> dict:
    answer = subprocess.run(
        ["curl", "-sS", "-X", method, "-H", f"api-key: {KEY}", "-d", json.dumps(body), f"{cluster.nodes['a'].url}{path}"],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    return json.loads(answer.stdout)


def millpond(cluster: Cluster, *words: str, key: str = KEY) -> subprocess.CompletedProcess:
    command = [str(BINARY), "cluster", *words, "--url", cluster.nodes["a"].url, "--api-key", key]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_a_drained_node_leaves_its_shards(cluster):
    created = call(cluster, "PUT", "/collections/docs", {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": SHARDS})
    assert created["result"] is True, created
    points = [{"id": at, "vector": [at, 1]} for at in range(POINTS)]
    assert call(cluster, "PUT", "/collections/docs/points?wait=true", {"points": points})["status"] == "ok"

    def all_copies() -> dict | None:
        shown = json.loads(millpond(cluster, "status", "--json").stdout)
        return shown if sum(node["serving"] for node in shown["nodes"]) == 2 * SHARDS else None

    status = wait_until("both copies of each shard are served", all_copies)
    assert [node["name"] for node in status["nodes"]] == ["a", "b", "c"]
    assert status["collections"][0]["coverage"] == {"shards": SHARDS, "of": SHARDS}
    served = {node["name"]: node["serving"] for node in status["nodes"]}

    plan = json.loads(millpond(cluster, "rebalance", "--dry-run", "--without", "c", "--json").stdout)
    assert (plan["moved"], plan["copies_of_shards"]) == (served["c"], 2 * SHARDS)
    assert {node["name"]: node["holds"] for node in plan["nodes"]} == {"a": SHARDS, "b": SHARDS, "c": 0}
    refused = millpond(cluster, "rebalance", "--without", "c")
    assert refused.returncode == 2 and "--dry-run" in refused.stderr, refused

    drained = millpond(cluster, "drain", "c")
    assert drained.returncode == 0 and "it can be stopped" in drained.stdout, drained
    cluster.nodes["c"].kill()
    found = call(cluster, "POST", "/collections/docs/points/query?min_coverage=1", {"query": [1, 0], "limit": 3})
    assert [point["id"] for point in found["result"]["points"]] == [39, 38, 37], found
    wait_until("c is gone", lambda: "\nc " not in millpond(cluster, "status").stdout)
    unknown = millpond(cluster, "drain", "c")
    assert unknown.returncode == 2 and 'no node "c"' in unknown.stderr, unknown


def test_nodes_refuse_requests_without_a_key(cluster):
    for path in ("/cluster/v1/read", "/cluster/v1/write", "/cluster/v1/appended", "/cluster/v1/drain", "/cluster/v1/plan"):
        assert http_call(cluster.nodes["a"].address, "POST", path, b"{}")[0] == 401, path
    for path in ("/cluster/v1/view", "/cluster/v1/node", "/collections"):
        assert http_call(cluster.nodes["a"].address, "GET", path)[0] == 401, path
    wrong = millpond(cluster, "status", key="another key, which no node has")
    assert wrong.returncode != 0 and "key" in wrong.stderr, wrong
