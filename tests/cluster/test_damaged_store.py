"""A store that lost objects or is not mounted, and requests between nodes that no node would send."""

import base64
import json
import struct

import pytest
from deployment import Cluster
from processes import NodePlan, http_call, wait_until

DIMS = 4
PLANS = [NodePlan(name, "root,search,ingest") for name in ("a", "b")]
CRC32C = 0x82F63B78
KIND_WRITES, FORMAT = 1, 1


@pytest.fixture
def cluster(tmp_path):
    """Two nodes, and the collection `docs` with one shard, 5 points and as many entries behind the fence."""
    cluster = Cluster(PLANS, tmp_path, tmp_path / "logs", s3=False)
    try:
        cluster.start()
        settings = {"vectors": {"size": DIMS, "distance": "Dot"}, "shard_number": 1, "replication_factor": 2}
        good(cluster, "PUT", "/collections/docs", settings)
        for number in range(5):
            upsert_at_last(cluster, number)
        cluster.shards, cluster.copies = 1, 2
        cluster.wait_settled()
        yield cluster
    finally:
        cluster.close()


def call(cluster: Cluster, method: str, path: str, body: dict | None = None, node: str = "a") -> tuple[int, dict]:
    sent = None if body is None else json.dumps(body).encode()
    status, answer = http_call(cluster.nodes[node].address, method, path, sent)
    return status, json.loads(answer)


def good(cluster: Cluster, method: str, path: str, body: dict | None = None, node: str = "a") -> dict:
    status, answer = call(cluster, method, path, body, node)
    assert status == 200, answer
    return answer


def upsert(cluster: Cluster, number: int, node: str = "a") -> tuple[int, dict]:
    points = {"points": [{"id": number, "vector": [1.0] * DIMS}]}
    return call(cluster, "PUT", "/collections/docs/points?wait=true&timeout=2", points, node)


def upsert_at_last(cluster: Cluster, number: int, node: str = "a") -> None:
    """Writes a point, again until an owner takes the write."""
    wait_until(f"point {number} is written", lambda: upsert(cluster, number, node)[0] == 200)


def strong_count(cluster: Cluster, node: str) -> tuple[int, dict]:
    path = "/collections/docs/points/count?consistency=strong&timeout=2"
    return call(cluster, "POST", path, {"exact": True}, node)


def count(cluster: Cluster, node: str = "a") -> int:
    """Returns the number of points that a strong read finds, once a copy answers it."""

    def answered() -> dict | None:
        status, answer = strong_count(cluster, node)
        return answer if status == 200 else None

    return wait_until("a strong read is answered", answered)["result"]["count"]


def collection_id(cluster: Cluster) -> str:
    return good(cluster, "GET", "/cluster/v1/view")["result"]["collections"][0]["id"]


def entries(cluster: Cluster) -> list:
    """Returns the files of the log."""
    return sorted((cluster.scratch / "store/data" / collection_id(cluster) / "wal/0000").iterdir())


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ CRC32C * (value & 1)
    return value ^ 0xFFFFFFFF


def forged_entry(epoch: int) -> bytes:
    """Returns an entry of a log, as no writer has made it."""
    operation = json.dumps({"upsert": {"points": [{"id": 666, "vector": [1.0] * DIMS}]}}).encode()
    writer = bytes(16)
    head = b"MILLPLOG" + struct.pack("<HBBQ", FORMAT, KIND_WRITES, 0, epoch) + writer + struct.pack("<I", 1)
    entry = head + struct.pack("<I", len(operation)) + operation
    return entry + struct.pack("<I", crc32c(entry))


def test_a_forged_entry_is_not_applied(cluster):
    own, number = collection_id(cluster), len(entries(cluster))
    passed = {str(number): base64.b64encode(forged_entry(2**64 - 1)).decode()}
    body = {"entries": {own: {"0": number}}, "passed": {own: {"0": passed}}}
    for node in ("a", "b"):
        good(cluster, "POST", "/cluster/v1/appended", body, node)
    for later in (10, 11):
        upsert_at_last(cluster, later)
    assert [count(cluster, node) for node in ("a", "b")] == [7, 7]
    assert call(cluster, "GET", "/collections/docs/points/666")[0] == 404


def test_an_operation_that_stops_holders_is_refused(cluster):
    owner = cluster.owner_with_most()
    body = {"collection": collection_id(cluster), "shard": 0, "timeout_ms": 60_000, "operations": [{"merge_points": {}}]}
    status, answer = call(cluster, "POST", "/cluster/v1/write", body, owner)
    assert (status, "merge_points" in answer["error"]) == (501, True), answer
    upsert_at_last(cluster, 10)
    assert count(cluster) == 6


def test_a_directory_that_is_not_mounted_takes_no_writes(cluster):
    store, mounted = cluster.scratch / "store", cluster.scratch / "mounted"
    store.rename(mounted)
    store.mkdir()
    statuses = [upsert(cluster, 10)[0] for _ in range(2)]
    assert set(statuses) == {503}, statuses
    body = {"exact": True}
    assert good(cluster, "POST", "/collections/docs/points/count", body)["result"]["count"] == 5
    store.rename(cluster.scratch / "unmounted")
    mounted.rename(store)
    upsert_at_last(cluster, 10)
    assert count(cluster) == 6


def test_a_lost_entry_is_not_overwritten(cluster):
    for number in range(10, 15):
        upsert_at_last(cluster, number)
    owner = cluster.owner_with_most()
    other = next(name for name in cluster.nodes if name != owner)
    lost = entries(cluster)[2]
    content = lost.read_bytes()
    # Before the end of the owner, since the other node reads the log at once.
    lost.unlink()
    cluster.nodes[owner].terminate()
    # The other node becomes the owner, and does not take the number of the lost entry.
    refusal = "is missing, and there are later entries"
    wait_until("a refusal names the entry", lambda: refusal in json.dumps(upsert(cluster, 20, other)[1]))
    assert not lost.exists()
    lost.write_bytes(content)
    upsert_at_last(cluster, 20, other)
    assert count(cluster, other) == 11
