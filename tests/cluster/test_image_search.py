"""Images in a cluster: added, found and fetched as on one server with the same images.

Node "a" has no embedding model, so images that it gets are extracted by "c". Node "b" takes no requests of clients.
"""

import base64
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess

import pytest
import requests
from deployment import Cluster
from embedding import serve_patches
from PIL import Image, ImageOps
from processes import Node, NodePlan, http_call, wait_until
from qdrant_client import QdrantClient, models

# Modules of tests/clients, which `processes` makes importable.
from millpond import BINARY
from test_fingerprints import again, impression, png
from test_image_features import UNKNOWN, FeatureClient, changed_copy
from test_images import archive, encoded, picture, pixels

PLANS = [
    NodePlan("a", "root,search,ingest"),
    NodePlan("b", "search,ingest"),
    NodePlan("c", "search,extract"),
]
PHOTOS, FINGERS, SHARDS = 24, 4, 4
# Fields of an answer that differ from run to run.
TIMES = "stages"
# Time for an archive, while all tests share two cores.
MANY_TIMEOUT_S = 500


class Setting:
    """A cluster, an ordinary server, and the images in both."""

    def __init__(self, cluster: Cluster, ordinary: Node):
        self.cluster = cluster
        self.nodes = {name: FeatureClient(node) for name, node in cluster.nodes.items()}
        self.a, self.c, self.ordinary = self.nodes["a"], self.nodes["c"], FeatureClient(ordinary)
        self.photos: dict[int, str] = {}
        self.fingers: dict[int, str] = {}

    def put_everywhere(self, number: int, collection: str, image: bytes, **query) -> str:
        """Adds an image to the cluster, at "a" or "c", and to the ordinary server. Returns its id."""
        mine = [self.a, self.c][number % 2].good("PUT", collection, image, **query)
        settings = ("shard_number", "replication_factor")
        theirs = self.ordinary.good("PUT", collection, image, **{key: query[key] for key in query if key not in settings})
        assert mine == theirs
        return mine["id"]

    def put_photo(self, seed: int) -> None:
        payload = {"seed": seed, "side": "left" if seed % 3 else "right"}
        query = {"name": f"{seed}.jpg", "payload": json.dumps(payload)}
        new = {"shard_number": SHARDS, "replication_factor": 2} if seed == 0 else {}
        self.photos[seed] = self.put_everywhere(seed, "photos", picture(seed), **query, **new)

    def put_finger(self, finger: int) -> None:
        query = {"kind": "fingerprint", "name": f"{finger}.png", "payload": json.dumps({"person": f"person-{finger}"})}
        self.fingers[finger] = self.put_everywhere(finger, "fingers", png(impression(finger)), **query)

    def same(self, method: str, path: str, body: bytes | dict | None = None, **query) -> dict:
        """Compares the JSON of "a" and "c" with the ordinary server's. Returns it without the times."""
        wanted = self.ordinary.good(method, path, body, **query)
        wanted.pop(TIMES, None)
        for client in (self.a, self.c):
            found = client.good(method, path, body, **query, consistency="strong", min_coverage=1)
            found.pop(TIMES, None)
            assert found == wanted
        return wanted

    def wait_seen(self, collection: str) -> None:
        """Waits until both nodes read all shards of a new collection."""

        def seen() -> bool:
            return all(client.send("GET", collection, min_coverage=1).status_code == 200 for client in (self.a, self.c))

        wait_until(f"all shards of {collection} are read", seen)

    def same_bytes(self, path: str, **query) -> None:
        wanted = self.ordinary.send("GET", path, **query)
        assert wanted.status_code == 200, wanted.text
        for client in (self.a, self.c):
            found = client.send("GET", path, **query)
            assert (found.status_code, found.content) == (200, wanted.content), found.text[:500]
            assert found.headers["content-type"] == wanted.headers["content-type"]
            assert found.headers["cache-control"] == wanted.headers["cache-control"]

    def stored_originals(self, image: bytes) -> list[pathlib.Path]:
        """Returns the objects in the cluster's store that are originals and have these bytes."""
        wanted = hashlib.sha256(image).digest()
        objects = (self.cluster.scratch / "store/data").glob("*/originals/**/*")
        return [path for path in objects if path.is_file() and hashlib.sha256(path.read_bytes()).digest() == wanted]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("images")
    cluster = Cluster(PLANS, scratch, scratch / "logs", s3=False)
    ordinary = cluster.ordinary()
    serve_patches((cluster.nodes["c"], ordinary))
    ordinary.start()
    cluster.start()
    ordinary.wait_ready()
    setting = Setting(cluster, ordinary)
    setting.put_photo(0)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(setting.put_photo, seed) for seed in range(1, PHOTOS)]
        setting.put_finger(0)
        waiting += [pool.submit(setting.put_finger, finger) for finger in range(1, FINGERS)]
        for done in waiting:
            done.result()
    yield setting
    for process in [*cluster.nodes.values(), ordinary, cluster.etcd]:
        process.kill()


QUERIES = [
    {},
    {"candidates": 1000, "explain": 1},
    {"candidates": 5, "k": 10},
    {"candidates": 7, "k": 3, "explain": 1},
    {"k": PHOTOS, "threshold": 1},
    {"filter": json.dumps({"must": [{"key": "side", "match": {"value": "left"}}, {"key": "seed", "range": {"lt": 20}}]})},
    {"filter": json.dumps({"must": [{"key": "seed", "match": {"value": 1000}}]})},
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: "-".join(query) or "default")
def test_a_search_finds_what_one_server_finds(setting, query):
    for image in ({"id": setting.photos[3]}, changed_copy(7)):
        found = setting.same("POST", "photos/search", image, **query)
        assert found["partial"] is False
    stranger = setting.same("POST", "photos/search", picture(500), **query)
    assert not any(hit["accepted"] for hit in stranger["results"]) or "threshold" in query


def test_a_changed_copy_finds_its_original(setting):
    found = setting.a.good("POST", "photos/search", changed_copy(7), explain=1)
    best = found["results"][0]
    assert (best["id"], best["accepted"], best["payload"]["seed"]) == (setting.photos[7], True, 7)
    assert len(best["pairs"]) >= 8
    assert (found["compared"], found["of"], found["partial"], found["views"]) == (PHOTOS, PHOTOS, False, 0)
    assert "coverage" not in found
    assert {"decode_ms", "embed_ms", "keypoints_ms", "search_ms"} <= set(found["stages"])


def mirrored(seed: int) -> bytes:
    return encoded(ImageOps.mirror(Image.fromarray(pixels(seed))), "PNG")


def collage(first: int, second: int) -> bytes:
    whole = Image.new("RGB", (640, 240))
    for at, seed in enumerate((first, second)):
        whole.paste(Image.fromarray(pixels(seed)), (320 * at, 0))
    return encoded(whole, "PNG")


def test_views_find_what_one_server_finds(setting):
    for query in ({}, {"explain": 1, "k": 3}):
        found = setting.same("POST", "photos/search", mirrored(5), **query)
        best = found["results"][0]
        assert (best["payload"]["seed"], best["accepted"], best["view"]["kind"]) == (5, True, "mirrored")
    both = setting.same("POST", "photos/search", collage(2, 9), views=1)
    assert {hit["payload"]["seed"] for hit in both["results"] if hit["accepted"]} == {2, 9}
    assert setting.same("POST", "photos/search", mirrored(5), views=0)["views"] == 0
    assert setting.same("POST", "photos/search", picture(500))["views"] == 10


def test_an_image_is_present_at_its_second_upload(setting):
    for client, seed in ((setting.a, 0), (setting.a, 1), (setting.c, 1), (setting.c, 2)):
        again_ = client.good("PUT", "photos", picture(seed), name="another name", consistency="strong")
        assert (again_["status"], again_["id"]) == ("present", setting.photos[seed])
    assert setting.same("GET", "photos")["count"] == PHOTOS


def test_pages_and_missing_ids(setting):
    seen, offset = [], {}
    while True:
        page = setting.same("GET", "photos", limit=7, **offset)
        seen += [entry["id"] for entry in page["images"]]
        if page["next"] is None:
            break
        offset = {"offset": page["next"]}
    assert sorted(seen) == sorted(setting.photos.values())
    right = json.dumps({"must": [{"key": "side", "match": {"value": "right"}}]})
    assert setting.same("GET", "photos", filter=right)["count"] == PHOTOS // 3
    ids = [setting.photos[2], UNKNOWN, 7, setting.photos[5]]
    assert setting.same("POST", "photos/missing", {"ids": ids}) == {"missing": [UNKNOWN, 7]}
    assert setting.same("POST", "nothing/missing", {"ids": ids[:2]}) == {"missing": ids[:2]}


def test_the_list_of_collections(setting):
    fields = ("name", "kind", "model", "count", "dims", "state")
    wanted = [("fingers", "fingerprint", "none", FINGERS, 4, "ready"), ("photos", "photo", "patches", PHOTOS, 48, "ready")]
    for client in (setting.a, setting.c):
        listed = requests.get(client.url, params={"consistency": "strong"}, timeout=60).json()["collections"]
        shown = [tuple(entry[field] for field in fields) for entry in listed]
        assert sorted(entry for entry in shown if entry[0] in ("fingers", "photos")) == wanted
        described = requests.get(f"{client.url}/openapi.json", timeout=60)
        assert described.json()["openapi"].startswith("3."), described.text[:200]


def test_a_stored_image_is_fetched_from_its_shard(setting):
    for seed in (0, 1, 9):
        path = f"photos/{setting.photos[seed]}"
        setting.same_bytes(path)
        assert setting.a.send("GET", path).content == picture(seed)
        setting.same_bytes(f"{path}/thumbnail", size=64)
        for part in ("keypoints", "features"):
            assert setting.a.good("GET", f"{path}/{part}") == setting.ordinary.good("GET", f"{path}/{part}")
    setting.same_bytes(f"fingers/{setting.fingers[1]}/template")


def test_an_extraction_stores_nothing(setting):
    for client in (setting.a, setting.c):
        for query in ({"name": "1.jpg"}, {"name": "1.jpg", "kind": "photo", "model": "patches"}):
            point = client.extract("photos", picture(1), **query)
            assert point | {"payload": {"seed": 1, "side": "left"}} == client.features("photos", setting.photos[1])
        assert client.extract("nothing", picture(900), model="patches")["model"] == "patches"
        assert client.send("GET", "nothing").status_code == 404
    assert setting.same("GET", "photos")["count"] == PHOTOS


def test_fingerprints(setting):
    for query in ({}, {"k": 2, "explain": 1}, {"candidates": 1000}):
        found = setting.same("POST", "fingers/search", png(again(2)), **query)
        best = found["results"][0]
        assert (best["id"], best["accepted"], best["payload"]) == (setting.fingers[2], True, {"person": "person-2"})
        assert (found["compared"], found["of"]) == (FINGERS, FINGERS)
    assert setting.same("POST", "fingers/search", {"id": setting.fingers[1]})["results"][0]["id"] == setting.fingers[1]
    filtered = json.dumps({"must_not": [{"key": "person", "match": {"value": "person-2"}}]})
    assert setting.same("POST", "fingers/search", png(again(2)), filter=filtered)["of"] == FINGERS - 1
    for finger, accepted in ((3, True), (0, False)):
        compared = setting.same("POST", "fingers/verify", png(again(3)), id=setting.fingers[finger])
        assert compared["accepted"] is accepted


def test_two_prints_are_compared(setting):
    """A node may have neither print, one of them, or both."""
    stored = [{"id": setting.fingers[finger]} for finger in range(FINGERS)]
    sent = {"file": base64.b64encode(png(again(3))).decode()}
    features = setting.ordinary.good("GET", f"fingers/{setting.fingers[3]}/features")
    record = {"record": features["record"]}
    pairs = [(stored[0], second, False) for second in stored[1:]]
    pairs += [(stored[2], stored[2], True), (sent, stored[3], True), (stored[1], sent, False), (sent, sent, True)]
    pairs += [(record, stored[3], True), (record, sent, True)]
    for first, second, accepted in pairs:
        compared = setting.same("POST", "fingers/verify", {"first": first, "second": second})
        assert compared["accepted"] is accepted
    strict = setting.same("POST", "fingers/verify", {"first": sent, "second": stored[3]}, threshold=1e9)
    assert (strict["accepted"], strict["threshold"]) == (False, 1e9)


def test_persons_are_identified(setting):
    setting.put_everywhere(
        7, "fingers", png(again(3)), kind="fingerprint", name="again.png", payload=json.dumps({"person": "person-3"})
    )
    best = setting.same("POST", "fingers/identify", png(again(3)), k=2)["results"][0]
    assert (best["person"], best["accepted"], len(best["prints"])) == ("person-3", True, 2)
    both = {"prints": [base64.b64encode(png(again(finger))).decode() for finger in (1, 2)]}
    persons = setting.same("POST", "fingers/identify", both)["results"]
    assert {person["person"] for person in persons[:2]} == {"person-1", "person-2"}
    others = json.dumps({"must_not": [{"key": "person", "match": {"value": "person-3"}}]})
    found = setting.same("POST", "fingers/identify", png(again(3)), filter=others)
    assert all(person["person"] != "person-3" for person in found["results"])


def test_features_move_to_another_collection(setting):
    ids = [setting.photos[seed] for seed in range(6)]
    points = [setting.a.features("photos", identity) for identity in ids]
    new = {"shard_number": 2, "replication_factor": 1}
    assert setting.a.put("moved", points, **new) == {"added": len(points), "replaced": 0}
    assert setting.a.put("moved", points) == {"added": 0, "replaced": len(points)}
    setting.ordinary.put("moved", points)
    # Another node sees the new collection and its holders a little later.
    wait_until("c reads all shards", lambda: setting.c.send("GET", "moved", min_coverage=1).status_code == 200)
    assert [setting.a.features("moved", identity) for identity in ids] == points
    setting.same("POST", "moved/search", {"id": ids[2]}, explain=1)
    for path in (ids[0], f"{ids[0]}/thumbnail"):
        setting.a.refused(404, "no original", "GET", f"moved/{path}")
    # The image adds its original, which features do not remove.
    for client in (setting.a, setting.ordinary):
        assert client.good("PUT", "moved", picture(0), name="whole.jpg")["status"] == "added"
        assert client.put("moved", [points[0] | {"payload": {"now": 1}}]) == {"added": 0, "replaced": 1}
    assert setting.a.send("GET", f"moved/{ids[0]}").content == picture(0)
    assert setting.a.features("moved", ids[0])["payload"] == {"now": 1}
    assert len(setting.stored_originals(picture(0))) == 2
    assert setting.same("GET", "moved")["count"] == len(points)


def test_a_deleted_image_leaves_no_original(setting):
    for client, seed in ((setting.a, 40), (setting.c, 41)):
        path = f"short/{client.good('PUT', 'short', picture(seed))['id']}"
        assert len(setting.stored_originals(picture(seed))) == 1
        assert client.good("DELETE", path) == {"deleted": path.removeprefix("short/")}
        client.refused(404, "there is no image", "GET", path)
        client.refused(404, "there is no image", "DELETE", path)
        assert setting.stored_originals(picture(seed)) == []
        assert client.count("short") == 0


def test_uploads_of_one_image_leave_one_original(setting):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: setting.c.good("PUT", "short", picture(45)), range(4)))
    assert sorted(answer["status"] for answer in answers) == ["added"] + ["present"] * 3
    assert len(setting.stored_originals(picture(45))) == 1
    assert setting.c.good("DELETE", f"short/{answers[0]['id']}")
    assert setting.stored_originals(picture(45)) == []


def test_a_deleted_collection_is_gone(setting):
    setting.a.good("PUT", "gone", picture(50))
    assert setting.a.good("DELETE", "gone") == {"deleted": "gone"}
    setting.a.refused(404, "there is no collection", "GET", "gone")
    setting.a.refused(404, "there is no collection", "POST", "gone/search", picture(50))
    setting.a.refused(404, "there is no collection", "DELETE", "gone")
    assert "gone" not in requests.get(setting.a.url, timeout=60).text
    assert setting.a.good("PUT", "gone", picture(51))["status"] == "added"
    assert [entry["height"] for entry in setting.a.good("GET", "gone")["images"]] == [240]


def many(client: FeatureClient, collection: str, body: bytes | dict, **query) -> tuple[list[dict], dict]:
    """Adds the images of an archive or a folder. Returns the lines by name, and the summary."""
    content = {"json": body} if isinstance(body, dict) else {"data": body, "headers": {"content-type": "application/zip"}}
    answer = requests.put(f"{client.url}/{collection}", params=query, timeout=MANY_TIMEOUT_S, **content)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["x-accel-buffering"] == "no"
    *lines, last = [json.loads(line) for line in answer.text.splitlines()]
    return sorted(lines, key=lambda line: line["name"]), last["summary"]


def without(lines: list[dict], *names: str) -> list[dict]:
    return [line for line in lines if line["name"] not in names]


def added_by(node: Node) -> float:
    """Returns the number of images that a node has added."""
    _, body = http_call(node.address, "GET", "/metrics")
    found = re.search(r'^millpond_images_total\{kind="added"\} (\S+)$', body.decode(), re.MULTILINE)
    return float(found[1]) if found else 0


def test_an_archive_is_put_in_as_on_one_server(setting):
    entries = {f"album/{seed}.jpg": picture(seed) for seed in range(200, 206)}
    entries |= {"again.jpg": picture(203), "half.jpg": picture(207)[:2000], "notes.txt": b"no image"}
    entries["inner.zip"] = archive({"1.jpg": picture(1)})
    whole = archive(entries)
    for name, client in (("zipped-a", setting.a), ("zipped-c", setting.c)):
        query = {"payload": json.dumps({"album": name})}
        wanted = many(setting.ordinary, name, whole, **query)
        assert wanted[1] == {"added": 6, "present": 1, "failed": 2, "ignored": 1}
        found = many(client, name, whole, **query, shard_number=3)
        # Of two files of one image, the first to end is the added one.
        assert (found[1], without(found[0], "203.jpg", "again.jpg")) == (wanted[1], without(wanted[0], "203.jpg", "again.jpg"))
        # The node that took the archive reads its own writes.
        assert client.count(name) == 6
        setting.wait_seen(name)
        setting.same("GET", name, limit=20)
        one = wanted[0][0]["id"]
        setting.same("POST", f"{name}/search", {"id": one}, explain=1)
        setting.same_bytes(f"{name}/{one}")
        assert many(client, name, whole)[1] == {"added": 0, "present": 7, "failed": 2, "ignored": 1}


def test_a_folder_is_put_in_as_on_one_server(setting, tmp_path):
    (tmp_path / "deep").mkdir()
    for seed in range(220, 223):
        (tmp_path / "deep" / f"{seed}.jpg").write_bytes(picture(seed))
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "link.jpg").symlink_to("/etc/passwd")
    for name, client in (("folder-a", setting.a), ("folder-c", setting.c)):
        wanted = many(setting.ordinary, name, {"folder": str(tmp_path)})
        assert wanted[1] == {"added": 3, "present": 0, "failed": 0, "ignored": 1}
        assert many(client, name, {"folder": str(tmp_path)}) == wanted
        setting.wait_seen(name)
        setting.same("GET", name)
    proxied = {"x-forwarded-for": "10.0.0.1"}
    for client in (setting.a, setting.ordinary):
        refused = requests.put(f"{client.url}/folder-a", json={"folder": str(tmp_path)}, headers=proxied, timeout=60)
        assert refused.status_code == 403, refused.text


def test_an_archive_of_fingerprints(setting):
    whole = archive({f"{finger}.png": png(impression(finger)) for finger in range(30, 34)})
    wanted = many(setting.ordinary, "scans", whole, kind="fingerprint", quality_min=1)
    assert wanted[1]["added"] == 4
    assert many(setting.a, "scans", whole, kind="fingerprint", quality_min=1) == wanted
    setting.wait_seen("scans")
    assert setting.same("POST", "scans/search", png(again(32)))["results"][0]["name"] == "32.png"
    assert many(setting.a, "scans", archive({"poor.png": png(impression(1, noise=250))}), quality_min=100)[1]["failed"] == 1


def test_templates_are_enrolled_without_a_model(setting):
    formats = ["iso-2005", "iso-2011", "ansi-2004", "ansi-2009", "sourceafis"]
    for number, form in enumerate(formats):
        # Another collection has the print of a picture, whose template is enrolled.
        identity = setting.ordinary.good("PUT", "made", png(impression(number)), kind="fingerprint")["id"]
        template = setting.ordinary.send("GET", f"made/{identity}/template", format=form).content
        new = {"shard_number": 2, "replication_factor": 1} if number == 0 else {}
        query = {"kind": "fingerprint", "name": f"{form}.fmr", "payload": json.dumps({"person": form})}
        stored = setting.put_everywhere(number, "enrolled", template, **query, **new)
        setting.wait_seen("enrolled")
        setting.same_bytes(f"enrolled/{stored}")
        assert setting.a.send("GET", f"enrolled/{stored}").content == template
        setting.a.refused(404, "no pixels", "GET", f"enrolled/{stored}/thumbnail")
        best = setting.same("POST", "enrolled/identify", png(again(number)), k=2)["results"][0]
        assert (best["person"], best["accepted"], best["prints"]) == (form, True, [stored])
        extracted = setting.same("POST", "nothing/features", template, kind="fingerprint")
        assert (extracted["id"], extracted["embedding"], extracted["model"]) == (stored, [], "none")
    for client in (setting.a, setting.ordinary):
        refused = requests.post(
            f"{client.server.url}/collections/enrolled/points/query", json={"query": [1, 0, 0, 0]}, timeout=60
        )
        assert refused.status_code == 400 and "without embeddings" in refused.text, refused.text
        client.refused(409, "without embeddings", "POST", "enrolled/duplicates", {})
    whole = archive({"0.fmr": template, "cut.fmr": template[:-9]})
    wanted = many(setting.ordinary, "packed", whole, kind="fingerprint")
    assert (wanted[1]["added"], wanted[1]["failed"]) == (1, 1)
    assert many(setting.a, "packed", whole, kind="fingerprint") == wanted


def test_background_images_are_put_in_as_any_other(setting):
    def put(seed: int) -> None:
        setting.put_everywhere(seed, "slowly", picture(seed), name=f"{seed}.jpg", background=1)

    put(230)
    setting.wait_seen("slowly")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(231, 238)))
    assert setting.same("GET", "slowly", limit=20)["count"] == 8


def test_the_command_line_fills_a_cluster(setting, tmp_path):
    for seed in range(250, 266):
        (tmp_path / f"{seed}.jpg").write_bytes(picture(seed))
    for added in (16, 0):
        command = [str(BINARY), "images", "index", str(tmp_path), "--collection", "walked", "--url", setting.a.server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MANY_TIMEOUT_S)
        assert done.returncode == 0 and f"walked: {added} added" in done.stdout, done.stdout + done.stderr


def test_a_killed_extraction_node_costs_no_image(setting):
    second = setting.cluster.node(NodePlan("d", "extract"))
    serve_patches([second])
    second.start()
    second.wait_ready()
    wait_until("d takes part", lambda: "d" in setting.cluster.members().nodes)
    seeds = range(300, 330)
    whole = archive({f"{seed}.jpg": picture(seed) for seed in seeds})
    with requests.put(
        f"{setting.a.url}/shared", data=whole, headers={"content-type": "application/zip"}, stream=True, timeout=MANY_TIMEOUT_S
    ) as answer:
        assert answer.status_code == 200, answer.text
        lines = answer.iter_lines()
        first = [json.loads(next(lines)) for _ in range(5)]
        wait_until("d extracts images too", lambda: added_by(second) > 0)
        second.kill()
        *rest, last = [json.loads(line) for line in lines]
    assert {line["name"] for line in first + rest} == {f"{seed}.jpg" for seed in seeds}
    assert all(line["status"] in ("added", "present") for line in first + rest), rest
    assert last["summary"]["failed"] == 0
    assert setting.a.count("shared") == len(seeds)


WRONG = {
    "unknown parameter of a search": ("POST", "photos/search", picture(1), {"nonsense": 1}),
    "unknown parameter of a page": ("GET", "photos", None, {"nonsense": 1}),
    "unknown parameter of an upload": ("PUT", "photos", picture(60), {"nonsense": 1}),
    "unknown parameter of features": ("PUT", "photos/features", {"points": []}, {"nonsense": 1}),
    "unknown parameter of a thumbnail": ("GET", f"photos/{UNKNOWN}/thumbnail", None, {"nonsense": 1}),
    "another kind": ("PUT", "photos", picture(61), {"kind": "fingerprint"}),
    "unknown kind": ("PUT", "photos", picture(61), {"kind": "riddle"}),
    "another model": ("PUT", "photos", picture(61), {"model": "other"}),
    "another kind of features": ("POST", "photos/features", picture(61), {"kind": "fingerprint"}),
    "half an image": ("PUT", "photos", picture(61)[:2000], {"name": "half.jpg"}),
    "half an image, to no collection": ("PUT", "halves", picture(61)[:2000], {}),
    "half an image, searched": ("POST", "photos/search", picture(61)[:2000], {}),
    "no payload": ("PUT", "photos", picture(61), {"payload": "[]"}),
    "quality of a photograph": ("PUT", "photos", picture(61), {"quality_min": 101}),
    "poor fingerprint": ("PUT", "fingers", png(impression(1, noise=250)), {"quality_min": 100}),
    "no fingerprint": ("PUT", "fingers", b"no image", {}),
    "damaged template": ("PUT", "fingers", b"FMR\0 20\0 too short", {"name": "short.fmr"}),
    "template among photographs": ("PUT", "photos", b"FMR\0 20\0 too short", {}),
    "no hits": ("POST", "photos/search", picture(1), {"k": 0}),
    "many hits": ("POST", "photos/search", picture(1), {"k": 1001}),
    "no candidates": ("POST", "photos/search", picture(1), {"candidates": 0}),
    "many candidates": ("POST", "photos/search", picture(1), {"candidates": 16_385}),
    "many candidates of fingerprints": ("POST", "fingers/search", png(again(1)), {"candidates": (1 << 16) + 1}),
    "wrong filter": ("POST", "photos/search", picture(1), {"filter": '{"must": [{"key": 1}]}'}),
    "wrong flag of an upload": ("PUT", "photos", picture(61), {"background": "maybe"}),
    "wrong flag": ("POST", "photos/search", picture(1), {"explain": "maybe"}),
    "search of an unknown image": ("POST", "photos/search", {"id": UNKNOWN}, {}),
    "search of an unknown collection": ("POST", "nothing/search", picture(1), {}),
    "search of a wrong id": ("POST", "photos/search", {"id": "x"}, {}),
    "unknown field of a search": ("POST", "photos/search", {"id": UNKNOWN, "x": 1}, {}),
    "unknown image": ("GET", f"photos/{UNKNOWN}", None, {}),
    "features of an unknown image": ("GET", f"photos/{UNKNOWN}/features", None, {}),
    "image of an unknown collection": ("GET", f"nothing/{UNKNOWN}", None, {}),
    "wrong id": ("GET", "photos/x", None, {}),
    "unknown image, deleted": ("DELETE", f"photos/{UNKNOWN}", None, {}),
    "unknown collection": ("GET", "nothing", None, {}),
    "unknown collection, deleted": ("DELETE", "nothing", None, {}),
    "empty page": ("GET", "photos", None, {"limit": 0}),
    "many ids": ("POST", "photos/missing", {"ids": [1] * 1001}, {}),
    "wrong ids": ("POST", "photos/missing", {"ids": ["x"]}, {}),
    "no points": ("PUT", "photos/features", {"points": []}, {}),
    "point without an embedding": ("PUT", "photos/features", {"points": [{"id": 1, "record": ""}]}, {}),
    "identification among photographs": ("POST", "photos/identify", png(again(1)), {}),
    "identification with views": ("POST", "fingers/identify", png(again(1)), {"views": 1}),
    "identification of no finger": ("POST", "fingers/identify", {"prints": []}, {}),
    "verification without an id": ("POST", "fingers/verify", png(again(1)), {}),
    "verification of an unknown print": ("POST", "fingers/verify", png(again(1)), {"id": UNKNOWN}),
    "two unknown prints": ("POST", "fingers/verify", {"first": {"id": UNKNOWN}, "second": {"id": UNKNOWN}}, {}),
    "two prints and an id": ("POST", "fingers/verify", {"first": {"id": UNKNOWN}, "second": {"id": UNKNOWN}}, {"id": 1}),
    "a print of two kinds": ("POST", "fingers/verify", {"first": {"id": 1, "file": ""}, "second": {"id": 1}}, {}),
    "a record of no print": ("POST", "fingers/verify", {"first": {"record": "AQ=="}, "second": {"record": "AQ=="}}, {}),
    "two photographs": ("POST", "photos/verify", {"first": {"id": 1}, "second": {"id": 1}}, {}),
}


@pytest.mark.parametrize("request_", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_gets_the_status_of_one_server(setting, request_):
    method, path, body, query = request_
    wanted = setting.ordinary.send(method, path, body, **query)
    assert 400 <= wanted.status_code < 500, wanted.text
    for client in (setting.a, setting.c):
        found = client.send(method, path, body, **query)
        assert found.status_code == wanted.status_code, f"{found.text}, and one server: {wanted.text}"
        assert found.json()["error"], found.text


def test_limits_of_parameters(setting):
    for size in (15, 1025):
        path = f"photos/{setting.photos[1]}/thumbnail"
        assert {client.send("GET", path, size=size).status_code for client in (setting.a, setting.c)} == {400}
    setting.a.refused(400, "timeout", "GET", "photos", timeout="soon")
    setting.a.refused(400, "shard_number", "PUT", "photos", picture(1), shard_number=0)
    assert setting.a.good("GET", "photos", timeout=30, min_coverage=1)["count"] == PHOTOS
    assert setting.a.good("POST", "photos/search", picture(500), views=0)["views"] == 0


def test_requests_that_a_cluster_does_not_carry_out(setting):
    unsupported = [
        ("POST", "photos/rebuild", {"model": "patches"}, {}),
        ("GET", "photos/rebuild", None, {}),
    ]
    for client in (setting.a, setting.c):
        for method, path, body, query in unsupported:
            client.refused(501, "cluster", method, path, body, **query)
    # A node that has no role for clients names the roles.
    for method, path in (("GET", "photos"), ("PUT", "photos"), ("POST", "photos/search")):
        setting.nodes["b"].refused(409, "root", method, path, picture(1) if method != "GET" else None)


def test_clients_of_qdrant_see_the_collection(setting):
    client = QdrantClient(url=setting.a.server.url, check_compatibility=False, timeout=60)
    assert client.count("photos").count == PHOTOS
    named = models.FieldCondition(key="image.name", match=models.MatchValue(value="4.jpg"))
    points, _ = client.scroll("photos", scroll_filter=models.Filter(must=[named]), with_payload=True)
    assert [point.id for point in points] == [setting.photos[4]]
    assert (points[0].payload["seed"], points[0].payload["image"]["width"]) == (4, 320)
    vectors = client.get_collection("photos").config.params.vectors
    assert (vectors.size, vectors.distance) == (48, models.Distance.COSINE)
    client.close()
    # A point of vectors alone is not an image.
    point = {"points": [{"id": 1, "vector": [0.5] * 48}]}
    urls = (setting.a.server.url, setting.ordinary.server.url)
    refused = [requests.put(f"{url}/collections/photos/points", json=point, timeout=60).status_code for url in urls]
    assert refused[0] == refused[1] and 400 <= refused[0] < 500, refused


def test_a_killed_holder_costs_no_result(setting):
    """The last test of this file: the cluster has two nodes after it."""

    def two_holders() -> bool:
        view = requests.get(f"{setting.a.server.url}/cluster/v1/view", timeout=60).json()["result"]
        photos = next(one for one in view["collections"] if one["name"] == "photos")
        return all(len(shard["serving"]) == 2 for shard in photos["shards"])

    wait_until("both copies of each shard are served", two_holders)
    setting.cluster.nodes["b"].kill()
    for seed in (2, 5, 8):
        found = setting.same("POST", "photos/search", changed_copy(seed))
        assert (found["results"][0]["id"], found["partial"], found["of"]) == (setting.photos[seed], False, PHOTOS)
        setting.same_bytes(f"photos/{setting.photos[seed]}")
    assert setting.same("GET", "photos", limit=PHOTOS)["count"] == PHOTOS
