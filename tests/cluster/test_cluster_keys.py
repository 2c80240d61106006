"""Keys of a cluster: the rights for an uploaded snapshot, and a node whose key differs from that of the others."""

import pathlib
import sys

import graphs
import pytest
import requests
from deployment import Cluster
from processes import NodePlan, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))
from collections_server import start
from keys import new_key
from test_image_features import FeatureClient

NODE_KEY = "key-of-the-nodes"
TIMEOUT_S = 60
# So many that each of two nodes owns some.
SHARDS = 16


class KeyedCluster(Cluster):
    """A cluster whose nodes have a file of keys and `--api-key`."""

    def __init__(self, scratch: pathlib.Path):
        super().__init__([], scratch, scratch / "logs", s3=False)
        self.keys = scratch / "keys.toml"
        self.limited = new_key(self.keys, "--role", "write", "--models", "own*", "--collections", "team*")
        self.nodes["a"] = self.keyed("a", NODE_KEY)

    def keyed(self, name: str, key: str):
        node = self.node(NodePlan(name, "root,search,ingest"))
        node.command += ["--keys", str(self.keys), "--api-key", key]
        return node

    def send(self, method: str, path: str, key: str, **content) -> requests.Response:
        url = f"{self.nodes['a'].url}{path}"
        return requests.request(method, url, headers={"api-key": key}, timeout=TIMEOUT_S, **content)


@pytest.fixture
def cluster(tmp_path):
    cluster = KeyedCluster(tmp_path)
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture
def archive(tmp_path) -> bytes:
    """A snapshot of photographs that the model `graphs.MODEL` embeds, of one server."""
    (tmp_path / "server").mkdir()
    server = start(tmp_path / "server", "--backup-dir", str(tmp_path / "server/backups"))
    FeatureClient(server).put("photos", graphs.points(3), model=graphs.MODEL)
    snapshots = f"{server.url}/collections/photos/snapshots"
    name = requests.post(snapshots, timeout=TIMEOUT_S).json()["result"]["name"]
    content = requests.get(f"{snapshots}/{name}", timeout=TIMEOUT_S).content
    assert server.stop() == 0, server.log_text()
    return content


def test_a_snapshot_names_no_model_beyond_the_key(cluster, archive):
    def upload(name: str) -> requests.Response:
        return cluster.send("POST", f"/collections/{name}/snapshots/upload", cluster.limited, data=archive)

    refused = upload("team-1")
    assert refused.status_code == 403 and graphs.MODEL in refused.text, refused.text
    assert cluster.send("GET", "/collections/team-1", NODE_KEY).status_code == 404
    points = {"points": graphs.points(1)}
    made = cluster.send("PUT", f"/v1/images/team-2/features?model={graphs.MODEL}", NODE_KEY, json=points)
    assert made.status_code == 200, made.text
    taken = upload("team-1")
    assert taken.status_code == 200, f"a collection of the key has this model: {taken.text}"


def test_a_node_with_another_key_is_named(cluster):
    settings = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": SHARDS, "replication_factor": 2}
    assert cluster.send("PUT", "/collections/docs", NODE_KEY, json=settings).status_code == 200
    cluster.nodes["stranger"] = cluster.keyed("stranger", "another-key")
    cluster.nodes["stranger"].start()
    cluster.nodes["stranger"].wait_ready()
    answers = []

    def are_named() -> bool:
        for number in range(2 * SHARDS):
            point = {"id": number, "vector": [number, 1]}
            path = "/collections/docs/points?wait=true&timeout=2"
            answers.append(cluster.send("PUT", path, NODE_KEY, json={"points": [point]}))
        refused = [answer for answer in answers if "the same --api-key" in answer.text]
        assert all(answer.status_code == 503 for answer in refused), refused
        return bool(refused) and "a node refuses the requests of this node" in cluster.nodes["a"].log.read_text()

    wait_until("the refused key is named", are_named)
