"""Commands of operators against three nodes that require a key: status, plans, draining a node; and the start of nodes."""

import json
import subprocess

import pytest
from deployment import Cluster
from processes import BINARY, NodePlan, free_ports, http_call, wait_until

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


@pytest.fixture
def pair(tmp_path):
    """Two nodes with an admin port, not started; and their etcd, which runs."""
    cluster = Cluster([NodePlan(name, "root,search,ingest") for name in ("a", "b")], tmp_path, tmp_path / "logs", s3=False)
    for node in cluster.nodes.values():
        node.admin_port, _ = free_ports()
        node.command += ["--admin-port", str(node.admin_port)]
    yield cluster
    for process in [*cluster.nodes.values(), cluster.etcd]:
        process.kill()


def test_a_node_with_an_admin_port_is_drained_from_that_of_another(pair):
    pair.start()

    def known() -> set[str]:
        view = json.loads(http_call(pair.nodes["a"].address, "GET", "/cluster/v1/view")[1])
        return {node["name"] for node in view["result"]["nodes"]}

    wait_until("a knows b", lambda: "b" in known())
    command = [str(BINARY), "cluster", "drain", "b", "--no-wait", "--url"]
    public = subprocess.run([*command, pair.nodes["a"].url], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert public.returncode != 0 and f"the admin port, {pair.nodes['a'].admin_port}" in public.stderr, public
    admin = f"http://127.0.0.1:{pair.nodes['a'].admin_port}"
    drained = subprocess.run([*command, admin], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert drained.returncode == 0, drained
    wait_until("b drains", lambda: pair.members().nodes["b"]["weight"] == 0)
    assert pair.members().nodes["a"]["weight"] == 1


def readiness(node) -> tuple[int, str]:
    """Returns the status of `/readyz` and the reason; 0 while the node does not listen."""
    assert node.running(), node.log_tail()
    try:
        status, body = http_call(node.address, "GET", "/readyz")
    except OSError:
        return 0, ""
    return status, json.loads(body).get("error", "")


def test_nodes_start_without_etcd_and_join_when_it_answers(pair):
    pair.etcd.kill()
    node = pair.nodes["a"]
    node.start()
    status, reason = wait_until("a listens", lambda: (found := readiness(node))[0] and found)
    assert status == 503, reason
    named = ("has not joined the cluster", pair.etcd.address)
    wait_until("the reason names etcd", lambda: all(part in readiness(node)[1] for part in named))
    wait_until("status fails", lambda: "has not joined the cluster" in millpond(pair, "status").stderr)
    shown = millpond(pair, "status", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["nodes"]) == (1, []), shown
    pair.etcd.start()
    wait_until("a is ready", lambda: readiness(node)[0] == 200)
    assert set(pair.members().nodes) == {"a"}
    assert "the node has not joined the cluster yet" in node.log.read_text()


def test_a_node_with_another_store_is_refused(pair):
    pair.start()
    registered = pair.members().nodes
    stray = pair.node(NodePlan("stray", "root,search,ingest"))
    other = pair.scratch / "other"
    stray.command[stray.command.index("--cluster-store") + 1] = str(other)
    stray.start()
    assert stray.child.wait(TIMEOUT_S) != 0, stray.log_tail()
    key = "millpond/millpond/store"
    own, _ = pair.etcd.range(key)[""]
    assert own["id"] == (pair.scratch / "store/identity").read_text()
    error = stray.log.read_text()
    assert key in error and own["id"] in error and (other / "identity").read_text() in error, error
    assert pair.members().nodes == registered


def test_a_node_is_ready_once_it_has_caught_up_with_its_shards(pair):
    pair.start()
    body = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": SHARDS}
    created = http_call(pair.nodes["a"].address, "PUT", "/collections/docs", json.dumps(body).encode())
    assert created[0] == 200, created
    pair.shards, pair.copies = SHARDS, 2
    pair.wait_settled()
    node = pair.nodes["b"]
    node.terminate()
    wait_until("a writes all logs", lambda: list(pair.members().owners.values()) == ["a"] * SHARDS)
    store = pair.scratch / "store"
    # A log that cannot be read keeps the node from the end of it.
    logs = [path for path in store.glob("data/*/wal") if path.is_dir()]
    assert logs, list(store.rglob("*"))[:20]
    for path in logs:
        path.rename(path.with_name("moved"))
        path.write_text("no directory")
    node.start()
    # The node takes its shards one after another.
    named = (f"{SHARDS} shards", "the end of their logs")
    wait_until("b is behind", lambda: all(part in readiness(node)[1] for part in named))
    assert readiness(node)[0] == 503
    for path in logs:
        path.unlink()
        path.with_name("moved").rename(path)
    wait_until("b is ready", lambda: readiness(node)[0] == 200)
