"""Duplicates of a collection of a cluster: found as on one server, cancelled and continued by any root."""

import concurrent.futures
import json
import subprocess

import pytest
import requests
from deployment import Cluster
from embedding import serve_patches
from PIL import Image
from processes import BINARY, Node, NodePlan, wait_until

# Modules of tests/clients, which `processes` makes importable.
from test_fingerprints import again, impression, png
from test_image_features import FeatureClient
from test_images import encoded, picture, pixels

PLANS = [NodePlan(name, "root,search,ingest,extract") for name in ("a", "b", "c")]
PHOTOS, SHARDS = 48, 4
# Copies of these have other bytes, so their ids and shards differ: of 12, some lie in another shard.
COPIED = range(0, PHOTOS, 4)
CLOSE = 1e-3


def copy_of(seed: int) -> bytes:
    return encoded(Image.fromarray(pixels(seed)), "JPEG", quality=70)


class Setting:
    """A cluster, an ordinary server, and the same images in both."""

    def __init__(self, cluster: Cluster, ordinary: Node):
        self.cluster = cluster
        self.nodes = {name: FeatureClient(node) for name, node in cluster.nodes.items()}
        self.a, self.b, self.c = self.nodes.values()
        self.ordinary = FeatureClient(ordinary)

    def put(self, collection: str, number: int, image: bytes, **query) -> str:
        """Adds an image to the cluster, at any node, and to the ordinary server. Returns its id."""
        client = list(self.nodes.values())[number % 3]
        mine = client.good("PUT", collection, image, **query, shard_number=SHARDS, replication_factor=2)
        assert mine == self.ordinary.good("PUT", collection, image, **query)
        return mine["id"]

    def put_photos(self, collection: str) -> None:
        images = [(f"{seed}.jpg", picture(seed)) for seed in range(PHOTOS)]
        images += [(f"copy of {seed}.jpg", copy_of(seed)) for seed in COPIED]
        self.put(collection, 0, images[0][1], name=images[0][0])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            put = [pool.submit(self.put, collection, at, body, name=name) for at, (name, body) in enumerate(images[1:])]
            for done in put:
                done.result()

    def same_groups(self, collection: str, *clients: FeatureClient) -> list[dict]:
        """Compares the groups at roots with those of the ordinary server. Returns them."""
        wanted = groups(self.ordinary, collection)
        for client in clients or self.nodes.values():
            assert shape(groups(client, collection)) == shape(wanted)
            similarities, expected = (pair_values(client, collection), pair_values(self.ordinary, collection))
            assert similarities.keys() == expected.keys()
            assert all(abs(similarities[pair] - expected[pair]) < CLOSE for pair in expected)
        return wanted


def start(client: FeatureClient, collection: str, **options) -> requests.Response:
    return client.send("POST", f"{collection}/duplicates", options)


def progress(client: FeatureClient, collection: str) -> dict:
    return client.good("GET", f"{collection}/duplicates")


def ended(client: FeatureClient, collection: str) -> dict:
    """Waits until the job is not running. Returns its progress."""

    def at_end() -> dict | None:
        now = progress(client, collection)
        return now if now["state"] != "running" else None

    return wait_until(f"the search for duplicates of {collection} ends", at_end)


def run(client: FeatureClient, collection: str, **options) -> dict:
    begun = start(client, collection, **options)
    assert begun.status_code == 202, begun.text
    found = ended(client, collection)
    assert (found["state"], found["error"]) == ("done", None), found
    return found


def groups(client: FeatureClient, collection: str) -> list[dict]:
    answer = client.send("GET", f"{collection}/duplicates/groups")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    assert answer.headers["x-accel-buffering"] == "no"
    *lines, last = [json.loads(line) for line in answer.text.splitlines()]
    images = sum(len(line["images"]) for line in lines)
    assert last == {"summary": {"groups": len(lines), "images": images}}
    return lines


def shape(lines: list[dict]) -> list[list[dict]]:
    """Returns the images of each group, in an order that does not depend on the server."""
    return sorted((sorted(line["images"], key=json.dumps) for line in lines), key=json.dumps)


def pair_values(client: FeatureClient, collection: str) -> dict[tuple, float]:
    pairs = [pair for line in groups(client, collection) for pair in line["pairs"]]
    return {tuple(sorted((str(pair["a"]), str(pair["b"])))): pair["similarity"] for pair in pairs}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("duplicates")
    cluster = Cluster(PLANS, scratch, scratch / "logs", s3=False)
    ordinary = cluster.ordinary()
    serve_patches((*cluster.nodes.values(), ordinary))
    ordinary.start()
    cluster.start()
    ordinary.wait_ready()
    setting = Setting(cluster, ordinary)
    setting.put_photos("photos")
    yield setting
    for process in [*cluster.nodes.values(), ordinary, cluster.etcd]:
        process.kill()


def test_a_collection_without_a_job(setting):
    for client in (setting.ordinary, setting.a):
        client.refused(404, "there was no search", "GET", "photos/duplicates")
        client.refused(404, "there was no search", "GET", "photos/duplicates/groups")
        client.refused(404, "there was no search", "DELETE", "photos/duplicates")
        client.refused(404, "nothing", "POST", "nothing/duplicates", {})
        client.refused(404, "nothing", "GET", "nothing/duplicates/groups")
        client.refused(400, "no effect", "POST", "photos/duplicates", {"verify": False, "score": 3})
        client.refused(400, "threshold", "POST", "photos/duplicates", {"threshold": 2})
        assert start(client, "photos", nonsense=1).status_code == 400


def test_groups_are_those_of_one_server(setting):
    wanted = run(setting.ordinary, "photos")
    found = run(setting.b, "photos")
    for field in ("done", "total", "pairs", "unreadable", "options", "state"):
        assert found[field] == wanted[field], field
    assert (found["done"], found["pairs"]) == (PHOTOS + len(COPIED), len(COPIED))
    assert found.keys() == wanted.keys()
    shown = setting.same_groups("photos")
    assert len(shown) == len(COPIED)
    for line in shown:
        one, other = sorted(image["name"] for image in line["images"])
        assert other == f"copy of {one}", line
    # Each root shows the same state of the job.
    assert progress(setting.a, "photos") == progress(setting.c, "photos") == found


def test_the_command_shows_the_groups(setting):
    command = [str(BINARY), "images", "duplicates", "photos", "--restart", "--json", "--url", setting.a.server.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    *lines, last = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (len(lines), last["summary"]["images"]) == (len(COPIED), 2 * len(COPIED))
    assert shape(lines) == shape(setting.same_groups("photos", setting.c))


def test_similarity_alone_decides_without_verification(setting):
    for threshold in (0.98, 0.995):
        run(setting.ordinary, "photos", verify=False, threshold=threshold)
        run(setting.c, "photos", verify=False, threshold=threshold)
        shown = setting.same_groups("photos")
        assert all(pair["score"] is None for line in shown for pair in line["pairs"])


def test_vectors_are_compared(setting):
    points = [{"id": number, "vector": [1.0, number // 2, (number // 2) ** 2 % 7, number % 2 * 0.01]} for number in range(40)]
    for client in (setting.ordinary, setting.a):
        url = f"{client.server.url}/collections/vectors"
        create = {"vectors": {"size": 4, "distance": "Cosine"}, "shard_number": SHARDS}
        assert requests.put(url, json=create, timeout=60).status_code == 200
        assert requests.put(f"{url}/points?wait=true", json={"points": points}, timeout=60).status_code == 200
        client.refused(400, "only vectors", "POST", "vectors/duplicates", {"verify": True})
    run(setting.ordinary, "vectors", threshold=0.9999)
    assert run(setting.b, "vectors", threshold=0.9999)["pairs"] >= 19
    setting.same_groups("vectors")


def test_fingerprints_are_compared(setting):
    for finger in range(6):
        query = {"kind": "fingerprint", "model": "patches"}
        setting.put("fingers", finger, png(impression(finger)), **query, name=f"{finger}.png")
        if finger % 2:
            setting.put("fingers", finger, png(again(finger)), **query, name=f"{finger} again.png")
    run(setting.ordinary, "fingers")
    run(setting.a, "fingers")
    assert len(setting.same_groups("fingers")) == 3


def test_any_root_cancels_and_continues_a_job(setting):
    options = {"points_per_second": 4, "restart": True}
    assert start(setting.a, "photos", **options).status_code == 202
    wait_until("the job at a has kept points", lambda: progress(setting.b, "photos")["done"] > 0)
    assert progress(setting.b, "photos")["state"] == "running"
    setting.b.refused(409, "is running", "POST", "photos/duplicates", {})
    setting.a.refused(409, "is running", "POST", "photos/duplicates", {})
    groups(setting.c, "photos")
    assert setting.b.good("DELETE", "photos/duplicates") == {"cancelled": "photos"}
    cancelled = ended(setting.a, "photos")
    assert cancelled["state"] == "cancelled"
    assert 0 < cancelled["done"] < cancelled["total"]
    found = run(setting.c, "photos", points_per_second=0)
    # The job has continued: a new one would have visited each point once.
    assert (found["pairs"], found["done"]) == (len(COPIED), found["total"])
    assert found["seconds"] >= cancelled["seconds"] > 0
    run(setting.ordinary, "photos")
    setting.same_groups("photos")


def test_a_cancelled_job_at_its_own_root(setting):
    assert start(setting.a, "photos", points_per_second=4, restart=True).status_code == 202
    assert setting.a.good("DELETE", "photos/duplicates") == {"cancelled": "photos"}
    assert ended(setting.a, "photos")["state"] == "cancelled"
    assert setting.c.good("DELETE", "photos/duplicates") == {"deleted": "photos"}
    for client in setting.nodes.values():
        client.refused(404, "there was no search", "GET", "photos/duplicates")
    store = setting.cluster.scratch / "store/data"
    assert not [path for path in store.glob("*/duplicates/pairs/*") if path.is_file()]


def test_removed_images_and_collections(setting):
    ids = [setting.put("few", number, picture(number) if number < 2 else copy_of(number - 2)) for number in range(4)]
    assert run(setting.a, "few")["pairs"] == 2
    setting.b.good("DELETE", f"few/{ids[0]}")
    found = groups(setting.c, "few")
    assert [sorted(image["id"] for image in line["images"]) for line in found] == [sorted([ids[1], ids[3]])]
    assert start(setting.a, "few", points_per_second=1, restart=True).status_code == 202
    setting.a.good("DELETE", "few")
    setting.a.refused(404, "there is no collection", "GET", "few/duplicates")
    setting.ordinary.good("DELETE", "few")
    setting.put("few", 0, picture(7))

    def has_the_image(client) -> bool:
        # A root may see the removed collection for a moment, which no node serves.
        answer = client.send("GET", "few")
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200 and answer.json()["count"] == 1

    for client in setting.nodes.values():
        wait_until("the root has the new collection", lambda client=client: has_the_image(client))
        client.refused(404, "there was no search", "GET", "few/duplicates")


def test_another_root_continues_after_a_kill(setting):
    """The last test of this file: the cluster has two nodes after it."""

    def two_holders() -> bool:
        view = requests.get(f"{setting.a.server.url}/cluster/v1/view", timeout=60).json()["result"]
        photos = next(one for one in view["collections"] if one["name"] == "photos")
        return all(len(shard["serving"]) == 2 for shard in photos["shards"])

    wait_until("both copies of each shard are served", two_holders)
    assert start(setting.c, "photos", points_per_second=4, restart=True).status_code == 202
    wait_until("the job at c has kept points", lambda: progress(setting.a, "photos")["done"] > 0)
    setting.cluster.nodes["c"].kill()
    interrupted = ended(setting.a, "photos")
    assert (interrupted["state"], interrupted["error"]) == ("interrupted", None)
    # The other root reads etcd at another moment.
    assert ended(setting.b, "photos") == interrupted
    assert 0 < interrupted["done"] < interrupted["total"]
    found = run(setting.b, "photos", points_per_second=0)
    assert (found["pairs"], found["done"]) == (len(COPIED), found["total"])
    setting.same_groups("photos", setting.a, setting.b)
