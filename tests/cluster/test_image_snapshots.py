"""Snapshots of collections of images: the copy has its own points, features and originals."""

import pytest
import requests
from deployment import Cluster
from embedding import serve_patches
from PIL import Image
from processes import NodePlan, wait_until

# Modules of tests/clients, which `processes` makes importable.
from test_image_features import FeatureClient
from test_images import encoded, picture, pixels

PLANS = [NodePlan("a", "root,search,ingest,extract"), NodePlan("b", "root,search,ingest,extract")]
PHOTOS = 24


@pytest.fixture(scope="module", params=["directory", "s3"])
def cluster(request, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("image-snapshots")
    cluster = Cluster(PLANS, scratch, scratch / "logs", s3=request.param == "s3", snapshot_entries=4)
    serve_patches(cluster.nodes.values())
    cluster.start()
    yield cluster
    cluster.close()


def wait_count(client: FeatureClient, collection: str, count: int) -> None:
    """Waits until a root knows the collection and all of its images."""

    def has_all() -> bool:
        answer = client.send("GET", collection)
        return answer.status_code == 200 and answer.json()["count"] == count

    wait_until(f"{count} images in {collection}", has_all)


def snapshots(client: FeatureClient, collection: str) -> str:
    return f"{client.server.url}/collections/{collection}/snapshots"


def recover(client: FeatureClient, name: str, snapshot: str) -> requests.Response:
    return requests.put(f"{snapshots(client, name)}/recover", json={"location": snapshot}, timeout=120)


def found(client: FeatureClient, collection: str, number: int) -> list[str]:
    """Returns the ids of the accepted hits of a distorted image."""
    distorted = encoded(Image.fromarray(pixels(number)[8:, 8:]), "JPEG", quality=80)
    return [hit["id"] for hit in client.search(collection, distorted, k=3) if hit["accepted"]]


def test_a_copy_outlives_its_source(cluster):
    first, second = (FeatureClient(node) for node in cluster.nodes.values())
    images = {number: picture(number) for number in range(PHOTOS)}
    ids = {}
    for number, image in images.items():
        client = (first, second)[number % 2]
        ids[number] = client.good("PUT", "photos", image, name=f"{number}.png", shard_number=4)["id"]
    first.good("DELETE", f"photos/{ids[0]}")
    wait_count(first, "photos", PHOTOS - 1)
    made = requests.post(snapshots(first, "photos"), timeout=120)
    assert made.status_code == 200, made.text
    made = made.json()["result"]
    assert made["size"] > sum(len(image) for image in list(images.values())[1:])
    first.good("DELETE", f"photos/{ids[1]}")

    recovered = recover(second, "copy", made["name"])
    assert recovered.status_code == 200, recovered.text
    # Changes of the source do not affect the copy.
    first.good("DELETE", "photos")
    for client in (first, second):
        wait_count(client, "copy", PHOTOS - 1)
        for number in (1, 2, PHOTOS - 1):
            original = client.send("GET", f"copy/{ids[number]}")
            assert (original.status_code, original.content) == (200, images[number])
            assert client.send("GET", f"copy/{ids[number]}/thumbnail").status_code == 200
        client.refused(404, "no image", "GET", f"copy/{ids[0]}")
    assert found(first, "copy", 5) == [ids[5]]

    # The copy is a collection like any other.
    ids[0] = second.good("PUT", "copy", images[0], name="0.png")["id"]
    assert second.send("GET", f"copy/{ids[0]}").content == images[0]
    second.good("DELETE", f"copy/{ids[2]}")
    again = requests.post(snapshots(second, "copy"), timeout=120).json()["result"]
    second.good("DELETE", "copy")
    assert recover(first, "third", again["name"]).status_code == 200
    wait_count(first, "third", PHOTOS - 1)
    for number in (0, 1, 3):
        assert first.send("GET", f"third/{ids[number]}").content == images[number]
    first.refused(404, "no image", "GET", f"third/{ids[2]}")
    assert requests.delete(f"{snapshots(first, 'photos')}/{made['name']}", timeout=60).status_code == 200
    assert recover(first, "fourth", made["name"]).status_code == 404
