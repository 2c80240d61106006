"""Features without images: extracted by one server, added to another, found there with the same scores."""

import base64
import concurrent.futures
import json
import pathlib
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest
import requests
from collections_server import start
from millpond import Server, drop_in, run
from PIL import Image
from test_fingerprints import again, impression, png
from test_images import CELLS, encoded, patches, picture, pixels

DIMS = 3 * CELLS * CELLS
POINTS_MAX = 1000
FEATURES_BYTES_MAX = 64 << 20
TIMEOUT_S = 60
UNKNOWN = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26"


class FeatureClient:
    """`/v1/images` of a server."""

    def __init__(self, server: Server):
        self.server = server
        self.url = f"{server.url}/v1/images"

    def send(self, method: str, path: str, body: bytes | dict | None = None, **query) -> requests.Response:
        content = {"json": body} if isinstance(body, dict) else {"data": body}
        if isinstance(body, bytes):
            content["headers"] = {"content-type": "application/octet-stream"}
        return requests.request(method, f"{self.url}/{path}", params=query, timeout=TIMEOUT_S, **content)

    def good(self, method: str, path: str, body: bytes | dict | None = None, **query) -> dict:
        answer = self.send(method, path, body, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, status: int, words: str, method: str, path: str, body=None, **query) -> None:
        answer = self.send(method, path, body, **query)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"], answer.text

    def extract(self, collection: str, image: bytes, **query) -> dict:
        return self.good("POST", f"{collection}/features", image, **query)

    def put(self, collection: str, points: list[dict], **query) -> dict:
        return self.good("PUT", f"{collection}/features", {"points": points}, **query)

    def features(self, collection: str, identity: str | int) -> dict:
        return self.good("GET", f"{collection}/{identity}/features")

    def search(self, collection: str, image: bytes | dict, **query) -> list[dict]:
        return self.good("POST", f"{collection}/search", image, **query)["results"]

    def count(self, collection: str) -> int:
        return self.good("GET", collection)["count"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("models")
    drop_in(patches(root / "source/patches.onnx"), root / "served/patches", 1)
    return root / "served"


def client(models: pathlib.Path, scratch: pathlib.Path, *flags: str) -> FeatureClient:
    return FeatureClient(Server(models, *flags, log=scratch / "server.log").wait_ready())


@pytest.fixture(scope="module")
def extractor(models, tmp_path_factory):
    """A server with the model and without a directory of collections."""
    client_ = client(models, tmp_path_factory.mktemp("extractor"), "--collections-dir", "none")
    yield client_
    assert client_.server.stop() == 0, client_.server.log_text()[-4000:]


@pytest.fixture(scope="module")
def images(models, tmp_path_factory):
    """A server with the model and collections."""
    scratch = tmp_path_factory.mktemp("images")
    client_ = client(models, scratch, "--collections-dir", str(scratch / "collections"))
    yield client_
    assert client_.server.stop() == 0, client_.server.log_text()[-4000:]


@pytest.fixture(scope="module")
def searcher(models, tmp_path_factory):
    """Another such server."""
    scratch = tmp_path_factory.mktemp("searcher")
    client_ = client(models, scratch, "--collections-dir", str(scratch / "collections"))
    yield client_
    assert client_.server.stop() == 0, client_.server.log_text()[-4000:]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A server with collections and without models."""
    server = start(tmp_path_factory.mktemp("store"))
    yield FeatureClient(server)
    assert server.stop() == 0, server.log_text()[-4000:]


@pytest.fixture(scope="module")
def originals(images) -> dict[int, str]:
    """Ids of the images of the collection "photos" by seed."""
    ids = {}
    for seed in range(12):
        query = {"name": f"{seed}.jpg", "payload": json.dumps({"seed": seed})}
        ids[seed] = images.good("PUT", "photos", picture(seed), **query)["id"]
    return ids


def extracted(extractor: FeatureClient, seed: int) -> dict:
    point = extractor.extract("photos", picture(seed), name=f"{seed}.jpg", model="patches")
    return point | {"payload": {"seed": seed}}


def changed_copy(seed: int) -> bytes:
    scene = Image.fromarray(pixels(seed)).rotate(5, expand=False).crop((20, 15, 300, 220))
    return encoded(scene, "JPEG", quality=60)


def test_extraction_stores_nothing(extractor, images, originals):
    for seed, identity in originals.items():
        stored = images.features("photos", identity)
        point = extracted(extractor, seed)
        assert np.allclose(point.pop("embedding"), stored.pop("embedding"), rtol=0, atol=1e-5)
        assert point == stored
        assert (point["id"], point["kind"], point["model"]) == (identity, "photo", "patches")
        record = base64.b64decode(point["record"])
        version, described, keypoints, width, height = struct.unpack("<BBHHH", record[:8])
        assert (version, described, keypoints, width, height) == (1, 1, point["keypoints"], 320, 240)
        assert len(record) == 8 + 38 * keypoints
    before = images.count("photos")
    assert images.extract("photos", picture(900))["model"] == "patches"
    assert images.count("photos") == before


@pytest.mark.parametrize("origin", ["extracted", "stored"])
def test_another_server_finds_the_same_with_the_same_scores(extractor, images, searcher, originals, origin):
    if origin == "extracted":
        points = [extracted(extractor, seed) for seed in originals]
    else:
        points = [images.features("photos", identity) for identity in originals.values()]
    assert searcher.put(origin, points) == {"added": len(points), "replaced": 0}
    assert searcher.put(origin, points) == {"added": 0, "replaced": len(points)}
    assert searcher.count(origin) == len(points)
    for query in ({"id": originals[3]}, changed_copy(7), picture(500)):
        wanted = images.search("photos", query, k=12, explain=1)
        found = searcher.search(origin, query, k=12, explain=1)
        for hit, same in zip(found, wanted, strict=True):
            assert hit.pop("coarse") == pytest.approx(same.pop("coarse"), abs=1e-5)
            assert hit == same
    best = searcher.search(origin, changed_copy(7))[0]
    assert (best["id"], best["accepted"], best["payload"]) == (originals[7], True, {"seed": 7})
    if origin == "stored":
        assert [searcher.features(origin, point["id"]) for point in points] == points
    clause = json.dumps({"must": [{"key": "seed", "match": {"value": 4}}]})
    assert [hit["id"] for hit in searcher.search(origin, picture(4), filter=clause)] == [originals[4]]


def test_points_without_an_original(extractor, searcher):
    collection, identity = "bare", extracted(extractor, 20)["id"]
    searcher.put(collection, [extracted(extractor, seed) for seed in (20, 21)] + [extracted(extractor, 22) | {"id": 7}])
    listed = {entry["id"]: entry for entry in searcher.good("GET", collection)["images"]}
    entry = listed[identity]
    assert (entry["name"], entry["width"], entry["height"], entry["payload"]) == ("20.jpg", 320, 240, {"seed": 20})
    assert (entry["format"], entry["bytes"]) == (None, None)
    assert 7 in listed
    for path in (identity, f"{identity}/thumbnail", "7"):
        searcher.refused(404, "no original", "GET", f"{collection}/{path}")
    keypoints = searcher.good("GET", f"{collection}/{identity}/keypoints")
    assert len(keypoints["keypoints"]) == entry["keypoints"]
    assert searcher.features(collection, 7)["id"] == 7
    assert searcher.search(collection, {"id": 7})[0]["id"] == 7
    missing = searcher.good("POST", f"{collection}/missing", {"ids": [identity, 7, UNKNOWN]})
    assert missing == {"missing": [UNKNOWN]}
    searcher.refused(404, "there is no image", "GET", f"{collection}/{UNKNOWN}/features")
    for path in (identity, "7"):
        searcher.good("DELETE", f"{collection}/{path}")
        searcher.refused(404, "there is no image", "GET", f"{collection}/{path}/features")
    assert searcher.count(collection) == 1


def test_an_image_adds_the_original_and_features_keep_it(extractor, searcher):
    collection, point = "adding", extracted(extractor, 30)
    path = f"{collection}/{point['id']}"
    searcher.put(collection, [point])
    assert searcher.good("PUT", collection, picture(30), name="whole.jpg")["status"] == "added"
    assert searcher.send("GET", path).content == picture(30)
    assert searcher.good("PUT", collection, picture(30))["status"] == "present"
    other = extracted(extractor, 31) | {"id": point["id"], "name": None, "width": None, "height": None}
    assert searcher.put(collection, [other]) == {"added": 0, "replaced": 1}
    assert searcher.send("GET", path).content == picture(30)
    assert searcher.send("GET", f"{path}/thumbnail").status_code == 200
    now = searcher.features(collection, point["id"])
    assert (now["record"], now["payload"], now["name"]) == (other["record"], {"seed": 31}, "whole.jpg")
    searcher.good("DELETE", path)
    searcher.refused(404, "there is no image", "GET", path)


def test_an_image_and_its_features_at_once(extractor, searcher):
    points = {seed: extracted(extractor, seed) for seed in range(100, 120)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(searcher.put, "race", [point], model="patches") for point in points.values()] + [
            pool.submit(searcher.good, "PUT", "race", picture(seed), background=seed % 2) for seed in points
        ]
        for future in sent + [pool.submit(searcher.put, "race", list(points.values())) for _ in range(4)]:
            future.result()
    # In each order of the writes, no acknowledged original is lost.
    for seed, point in points.items():
        original = searcher.send("GET", f"race/{point['id']}")
        assert original.status_code == 200 and original.content == picture(seed), original.text
    assert searcher.count("race") == len(points)


def test_acknowledged_features_survive_kill_9(extractor, models, tmp_path):
    flags = ("--collections-dir", str(tmp_path / "collections"))
    points = [extracted(extractor, seed) for seed in range(40, 46)]
    first = client(models, tmp_path, *flags)
    for at in range(0, len(points), 2):
        assert first.put("kept", points[at : at + 2])["added"] == 2
    first.server.process.kill()
    first.server.process.wait()
    second = client(models, tmp_path, *flags)
    deadline = time.monotonic() + TIMEOUT_S
    while second.send("GET", "kept").status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [second.features("kept", point["id"]) for point in points] == points
    assert second.search("kept", picture(43), k=1)[0]["id"] == points[3]["id"]
    assert second.server.stop() == 0, second.server.log_text()[-4000:]


def test_a_snapshot_has_the_features(extractor, searcher, models, tmp_path):
    flags = ("--collections-dir", str(tmp_path / "collections"), "--backup-dir", str(tmp_path / "backups"))
    images = client(models, tmp_path, *flags)
    points = [extracted(extractor, seed) for seed in range(50, 53)]
    images.put("saved", points)
    snapshots = f"{images.server.url}/collections/saved.v1/snapshots"
    made = requests.post(snapshots, timeout=TIMEOUT_S).json()["result"]
    file = requests.get(f"{snapshots}/{made['name']}", timeout=TIMEOUT_S).content
    upload = f"{searcher.server.url}/collections/again/snapshots/upload"
    answer = requests.post(upload, files={"snapshot": ("x.snapshot", file)}, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    assert [searcher.features("again", point["id"]) for point in points] == points
    assert searcher.search("again", picture(51), k=1)[0]["id"] == points[1]["id"]
    assert images.server.stop() == 0, images.server.log_text()[-4000:]


def encode(version: int = 1, flags: int = 1, keypoints: int = 2, body: int | None = None) -> str:
    body = keypoints * 38 if body is None else body
    return base64.b64encode(struct.pack("<BBHHH", version, flags, keypoints, 320, 240) + bytes(body)).decode()


WRONG_POINTS = {
    "no id": (lambda point: point.pop("id"), "points[1]: missing field `id`"),
    "id": (lambda point: point.update(id="x"), "points[1].id"),
    "negative id": (lambda point: point.update(id=-1), "points[1].id"),
    "same id": (lambda point: point.update(id=1), "points[1]: points[0] has the same id 1"),
    "no embedding": (lambda point: point.pop("embedding"), "points[1]: the embedding has 0 values"),
    "short embedding": (lambda point: point["embedding"].pop(), f"points[1]: the embedding has {DIMS - 1} values"),
    "long embedding": (lambda point: point["embedding"].append(0.5), f"points[1]: the embedding has {DIMS + 1} values"),
    "text in embedding": (lambda point: point["embedding"].append("1"), f"points[1].embedding[{DIMS}]"),
    "NaN": (lambda point: point["embedding"].__setitem__(2, float("nan")), "points[1].embedding"),
    "above float32": (lambda point: point["embedding"].__setitem__(2, 1e39), "points[1].embedding[2]: number out of range"),
    "too long a vector": (lambda point: point.update(embedding=[1e18] * DIMS), "points[1]: the embedding has the leng"),
    "no record": (lambda point: point.pop("record"), "points[1]: missing field `record`"),
    "no base64": (lambda point: point.update(record="?"), "points[1].record: not base64"),
    "empty record": (lambda point: point.update(record=""), "points[1]: record: "),
    "version": (lambda point: point.update(record=encode(version=2)), "points[1]: record: "),
    "flags": (lambda point: point.update(record=encode(flags=3)), "points[1]: record: "),
    "short record": (lambda point: point.update(record=encode(body=75)), "points[1]: record: "),
    "long record": (lambda point: point.update(record=encode(body=77)), "points[1]: record: "),
    "many keypoints": (lambda point: point.update(record=encode(keypoints=257)), "points[1]: record: "),
    "no descriptors": (lambda point: point.update(record=encode(flags=0, body=12)), "points[1]: record: its keypoints"),
    "keypoints": (lambda point: point.update(keypoints=3), 'points[1]: "keypoints" is 3, and the record has'),
    "payload": (lambda point: point.update(payload=[]), "points[1].payload"),
    "image in payload": (lambda point: point.update(payload={"image": {}}), 'points[1]: the payload\'s key "image"'),
    "id in payload": (lambda point: point.update(payload={"__millpond_id": 1}), "points[1]: the payload's key"),
    "name": (lambda point: point.update(name="x" * 513), "points[1]: an image's name has at most 512 bytes"),
    "quality": (lambda point: point.update(quality=50), 'points[1]: "quality" is for fingerprints'),
    "kind": (lambda point: point.update(kind="fingerprint"), "points[1]: features of kind fingerprint"),
    "unknown kind": (lambda point: point.update(kind="riddle"), "points[1].kind"),
    "model": (lambda point: point.update(model="other"), 'points[1]: the embedding is of model "other"'),
    "unknown field": (lambda point: point.update(colour=1), "points[1].colour"),
}


@pytest.fixture(scope="module")
def point(extractor) -> dict:
    return extracted(extractor, 60)


@pytest.mark.parametrize("change,words", WRONG_POINTS.values(), ids=WRONG_POINTS.keys())
def test_a_wrong_point_is_named_and_refuses_the_request(searcher, point, change: Callable[[dict], object], words):
    searcher.put("strict", [point])
    wrong = json.loads(json.dumps(point))
    change(wrong)
    # Python writes NaN, which JSON does not have.
    body = json.dumps({"points": [point | {"id": 1}, wrong]}).encode()
    searcher.refused(400, words, "PUT", "strict/features", body)
    searcher.refused(404, "there is no image", "GET", "strict/1/features")
    # A refused request creates no collection, either.
    searcher.refused(400, "points[1]", "PUT", "refused/features", body)
    searcher.refused(404, "there is no collection", "GET", "refused")


def test_a_request_is_limited(searcher, point):
    searcher.put("limits", [point])
    for body in (b"", b"{}", b"[]", b'{"points": []}', b'{"points": [], "x": 1}', b'{"points": [{}]} x'):
        assert searcher.send("PUT", "limits/features", body).status_code == 400, body
    many = [point | {"id": number} for number in range(POINTS_MAX + 1)]
    searcher.refused(400, f"{POINTS_MAX + 1} points", "PUT", "limits/features", {"points": many})
    assert searcher.put("limits", many[:POINTS_MAX]) == {"added": POINTS_MAX, "replaced": 0}
    assert searcher.count("limits") == POINTS_MAX + 1
    large = point | {"payload": {"text": "x" * (64 << 10)}}
    searcher.refused(413, "points[0]: the payload has", "PUT", "limits/features", {"points": [large]})
    assert searcher.send("PUT", "limits/features", b" " * (FEATURES_BYTES_MAX + 1)).status_code == 413
    searcher.refused(400, "nonsense", "PUT", "limits/features", {"points": [point]}, nonsense=1)


def test_collections_are_created_by_features(searcher, store, point):
    plain = {key: point[key] for key in ("id", "embedding", "record")}
    store.refused(404, "name the model", "PUT", "made/features", {"points": [plain]})
    store.refused(400, "riddle", "PUT", "made/features", {"points": [plain]}, kind="riddle")
    query = {"kind": "fingerprint", "model": "patches"}
    store.refused(400, "points[0]: record: its keypoints have", "PUT", "made/features", {"points": [plain]}, **query)
    store.refused(404, "there is no collection", "GET", "made")
    assert store.put("made", [plain], model="elsewhere") == {"added": 1, "replaced": 0}
    listed = requests.get(store.url, timeout=TIMEOUT_S).json()["collections"]
    entry = next(entry for entry in listed if entry["name"] == "made")
    assert (entry["collection"], entry["kind"], entry["dims"]) == ("made.v1", "photo", DIMS)
    assert (entry["model"], entry["count"]) == ("elsewhere", 1)
    store.refused(409, 'was made with model "elsewhere"', "PUT", "made/features", {"points": [plain]}, model="patches")
    store.refused(409, "is of kind photo", "PUT", "made/features", {"points": [plain]}, kind="fingerprint")
    # The model is needed for files only.
    assert store.search("made", {"id": plain["id"]})[0]["id"] == plain["id"]
    store.refused(409, '"elsewhere" is not served', "POST", "made/search", picture(60))
    vectors = {"vectors": {"size": DIMS, "distance": "Cosine"}}
    assert requests.put(f"{store.server.url}/collections/vectors", json=vectors, timeout=TIMEOUT_S).status_code == 200
    store.refused(409, "has no images", "PUT", "vectors/features", {"points": [plain]})
    store.refused(409, "has no images", "GET", f"vectors/{plain['id']}/features")


def test_wrong_extractions(extractor, images, originals):
    whole = picture(3)
    extractor.refused(404, "name a model with model=", "POST", "photos/features", whole)
    extractor.refused(409, '"nobody" is not served', "POST", "photos/features", whole, model="nobody")
    half = whole[: len(whole) // 2]
    extractor.refused(400, "half.jpg", "POST", "photos/features", half, model="patches", name="half.jpg")
    extractor.refused(400, "the body is an image", "POST", "photos/features", {"id": UNKNOWN}, model="patches")
    extractor.refused(400, "quality_min", "POST", "photos/features", whole, model="patches", quality_min=10)
    extractor.refused(409, "no collections", "PUT", "photos/features", {"points": [{}]})
    extractor.refused(409, "no collections", "GET", f"photos/{UNKNOWN}/features")
    images.refused(409, "is of kind photo", "POST", "photos/features", whole, kind="fingerprint")
    images.refused(409, 'was made with model "patches"', "POST", "photos/features", whole, model="other")
    images.refused(400, "x", "GET", "photos/x/features")
    assert extractor.send("GET", "photos/features").status_code == 405


def test_fingerprints(extractor, store):
    fingers = {}
    points = []
    for finger in range(4):
        query = {"kind": "fingerprint", "model": "patches", "name": f"{finger}.png"}
        point = extractor.extract("fingers", png(impression(finger)), **query)
        assert point["kind"] == "fingerprint" and 0 <= point["quality"] <= 100
        assert len(base64.b64decode(point["record"])) == 8 + 6 * point["keypoints"]
        fingers[finger] = point["id"]
        points.append(point | {"payload": {"person": f"person-{finger}"}})
    assert store.put("fingers", points) == {"added": 4, "replaced": 0}
    assert [store.features("fingers", point["id"]) for point in points] == points
    # No model is served here, and none is needed.
    best = store.good("POST", "fingers/identify", png(again(2)))["results"][0]
    assert (best["person"], best["accepted"], best["prints"]) == ("person-2", True, [fingers[2]])
    assert store.search("fingers", png(again(1)))[0]["id"] == fingers[1]
    assert store.good("POST", "fingers/verify", png(again(3)), id=fingers[3])["accepted"]
    template = store.send("GET", f"fingers/{fingers[0]}/template")
    assert template.status_code == 200, template.text
    assert "max-age" not in template.headers["cache-control"], "features can replace it"
    best = store.good("POST", "fingers/identify", template.content)["results"][0]
    assert best["prints"] == [fingers[0]]
    store.refused(404, "no original", "GET", f"fingers/{fingers[0]}")
    query = {"kind": "fingerprint", "model": "patches"}
    extractor.refused(400, "a template has minutiae", "POST", "fingers/features", template.content, **query)
    poor = png(impression(1, noise=250))
    extractor.refused(400, "quality_min=100", "POST", "fingers/features", poor, quality_min=100, **query)
    photo = extracted(extractor, 70) | {"kind": None}
    store.refused(400, "points[0]: record: its keypoints have", "PUT", "fingers/features", {"points": [photo]})


def test_a_rebuild_names_points_without_an_original(models, extractor, tmp_path):
    root = tmp_path / "models"
    for name in ("patches", "other"):
        drop_in(patches(tmp_path / f"{name}.onnx"), root / name, 1)
    flags = ("--collections-dir", str(tmp_path / "collections"), "--embedding-model", "patches")
    images = client(root, tmp_path, *flags)
    images.good("PUT", "mixed", picture(80))
    point = extracted(extractor, 81)
    images.put("mixed", [point])
    assert images.send("POST", "mixed/rebuild", {"model": "other", "switch": True}).status_code == 202
    deadline = time.monotonic() + TIMEOUT_S
    while (progress := images.good("GET", "mixed/rebuild"))["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert progress["state"] == "failed" and list(progress["failures"]) == [point["id"]], progress
    assert "another model needs its image" in progress["failures"][point["id"]]
    images.good("PUT", "mixed", picture(81))
    assert images.send("POST", "mixed/rebuild", {"model": "other", "switch": True}).status_code == 202
    while (progress := images.good("GET", "mixed/rebuild"))["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert progress["state"] == "switched", progress
    assert images.features("mixed", point["id"])["model"] == "other"
    assert images.server.stop() == 0, images.server.log_text()[-4000:]


def rebuilt(images: FeatureClient, name: str, model: str) -> dict:
    """Rebuilds a collection and switches to it. Returns the progress at the end."""
    assert images.send("POST", f"{name}/rebuild", {"model": model, "switch": True}).status_code == 202
    deadline = time.monotonic() + TIMEOUT_S
    while (progress := images.good("GET", f"{name}/rebuild"))["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    return progress


def test_a_rebuild_checks_and_removes_originals(tmp_path):
    root = tmp_path / "models"
    for name in ("patches", "other"):
        drop_in(patches(tmp_path / f"{name}.onnx"), root / name, 1)
    flags = ("--collections-dir", str(tmp_path / "collections"), "--embedding-model", "patches")
    images = client(root, tmp_path, *flags)

    def files(name: str) -> dict[str, pathlib.Path]:
        """The originals of a collection by the ids of their images."""
        found = (tmp_path / "collections/.originals" / name).rglob("*")
        return {path.stem: path for path in found if path.is_file()}

    kept, deleted = (images.good("PUT", "p", picture(seed))["id"] for seed in (82, 83))
    assert rebuilt(images, "p", "other")["state"] == "switched"
    images.good("DELETE", f"p/{deleted}")
    assert set(files("p")) == {kept, deleted}, "the old version has the image"
    assert rebuilt(images, "p", "patches")["state"] == "switched"
    assert set(files("p")) == {kept}
    damaged = images.good("PUT", "q", picture(84))["id"]
    files("q")[damaged].write_bytes(picture(85))
    progress = rebuilt(images, "q", "other")
    assert progress["state"] == "failed" and list(progress["failures"]) == [damaged], progress
    assert "the original is damaged" in progress["failures"][damaged]
    assert images.server.stop() == 0, images.server.log_text()[-4000:]


def test_a_collection_is_listed_by_its_own_name(store):
    store.good("PUT", "named.views", png(impression(8)), kind="fingerprint")
    names = ("first", "named")
    changes = [{"create_alias": {"alias_name": name, "collection_name": "named.views.v1"}} for name in names]
    url = f"{store.server.url}/collections/aliases"
    assert requests.post(url, json={"actions": changes}, timeout=TIMEOUT_S).status_code == 200
    listed = requests.get(store.url, timeout=TIMEOUT_S).json()["collections"]
    assert "named.views" in [entry["name"] for entry in listed if entry["collection"] == "named.views.v1"]


def test_a_rebuilt_version_is_restored(tmp_path):
    root = tmp_path / "models"
    for name in ("patches", "other"):
        drop_in(patches(tmp_path / f"{name}.onnx"), root / name, 1)
    flags = ("--collections-dir", str(tmp_path / "collections"), "--embedding-model", "patches")
    images = client(root, tmp_path, *flags)
    kept, deleted = (images.good("PUT", "p", picture(seed))["id"] for seed in (86, 87))
    assert rebuilt(images, "p", "other")["state"] == "switched"
    run("collections", "backup", "p", "--url", images.server.url)
    images.good("DELETE", f"p/{deleted}")
    # The old version, which has the same originals, is still there.
    run("collections", "restore", "p", "--replace", "--url", images.server.url)
    assert images.count("p") == images.count("p.v1") == 2
    images.good("DELETE", "p.v1")
    for identity, seed in ((kept, 86), (deleted, 87)):
        assert images.send("GET", f"p/{identity}").content == picture(seed)
    images.good("DELETE", "p")
    lost = run("collections", "restore", "p", "--url", images.server.url, check=False)
    assert lost.returncode != 0 and 'restore "p.v2"' in lost.stderr, lost.stderr
    assert images.server.stop() == 0, images.server.log_text()[-4000:]
