"""Uploads of the same images through different nodes at the same moment: each image is added once, as on one server."""

import collections
import concurrent.futures
import hashlib
import json
import threading

import pytest
import requests
from deployment import Cluster
from embedding import serve_patches
from processes import NodePlan, wait_until

# Modules of tests/clients, which `processes` makes importable.
from test_image_features import FeatureClient
from test_images import picture

PLANS = [NodePlan(name, "root,search,ingest,extract") for name in ("a", "b")]
IMAGES, UPLOADS = 12, 4
BARRIER_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("races")
    cluster = Cluster(PLANS, scratch, scratch / "logs", s3=False)
    serve_patches(cluster.nodes.values())
    cluster.start()
    yield cluster
    cluster.close()


def stored(cluster: Cluster) -> collections.Counter:
    """Returns how many originals the store has, by the hash of their bytes."""
    objects = (cluster.scratch / "store/data").glob("*/originals/**/*")
    return collections.Counter(hashlib.sha256(path.read_bytes()).digest() for path in objects if path.is_file())


def race(cluster: Cluster, collection: str, seeds: list[int], **query) -> dict[int, list[dict]]:
    """Uploads each image at both nodes at the same moment, each time with another payload. Returns the answers."""
    clients = [FeatureClient(node) for node in cluster.nodes.values()]
    barrier = threading.Barrier(UPLOADS)

    def uploaded(number: int, seed: int) -> dict:
        own = {"name": f"{number}.jpg", "payload": json.dumps({"upload": number})}

        def answered() -> list[requests.Response]:
            answer = clients[number % len(clients)].send("PUT", collection, picture(seed), **own, **query)
            # A node may not know the holders of a new collection yet.
            return [] if answer.status_code == 503 and query else [answer]

        [answer] = wait_until(f"image {seed} is uploaded", answered)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def client(number: int) -> list[dict]:
        answers = []
        for seed in seeds:
            barrier.wait(BARRIER_TIMEOUT_S)
            answers.append(uploaded(number, seed))
        return answers

    with concurrent.futures.ThreadPoolExecutor(UPLOADS) as pool:
        by_client = list(pool.map(client, range(UPLOADS)))
    return {seed: [answers[at] for answers in by_client] for at, seed in enumerate(seeds)}


def check_added_once(cluster: Cluster, collection: str, answers: dict[int, list[dict]]) -> None:
    """Checks that one upload of each image added it, with its payload and its original alone."""
    page = FeatureClient(next(iter(cluster.nodes.values()))).good(
        "GET", collection, consistency="strong", min_coverage=1, limit=2 * IMAGES
    )
    kept = {image["id"]: image for image in page["images"]}
    originals = stored(cluster)
    for seed, uploads in answers.items():
        statuses = [answer["status"] for answer in uploads]
        assert sorted(statuses) == ["added"] + ["present"] * (UPLOADS - 1), (seed, uploads)
        winner = statuses.index("added")
        # The others name the image that was added.
        assert {(answer["id"], answer["name"]) for answer in uploads} == {(uploads[winner]["id"], f"{winner}.jpg")}
        image = kept[uploads[winner]["id"]]
        assert (image["name"], image["payload"]) == (f"{winner}.jpg", {"upload": winner}), uploads
        assert originals[hashlib.sha256(picture(seed)).digest()] == 1, seed
        for node in cluster.nodes.values():
            assert FeatureClient(node).send("GET", f"{collection}/{image['id']}").content == picture(seed)


def test_one_upload_of_each_image_adds_it(cluster):
    clients = [FeatureClient(node) for node in cluster.nodes.values()]
    clients[0].good("PUT", "photos", picture(0), shard_number=2, replication_factor=2)

    def seen() -> bool:
        return all(client.send("GET", "photos", min_coverage=1).status_code == 200 for client in clients)

    wait_until("both nodes read all shards", seen)
    answers = race(cluster, "photos", list(range(1, IMAGES + 1)))
    check_added_once(cluster, "photos", answers)
    assert clients[1].good("GET", "photos", consistency="strong", min_coverage=1)["count"] == IMAGES + 1


def test_the_image_that_creates_a_collection_is_added_once(cluster):
    answers = race(cluster, "created", [100], shard_number=2, replication_factor=2)
    check_added_once(cluster, "created", answers)
