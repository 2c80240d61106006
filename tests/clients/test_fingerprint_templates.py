"""Databases of templates on a server without any model: enrolled, identified, compared, downloaded, backed up."""

import base64
import json
import pathlib
import subprocess

import pytest
import requests
from collections_server import start
from millpond import BINARY, Server, run
from test_fingerprints import again, call, good, impression, png
from test_images import archive, picture

# Formats of templates, with the media type of a download.
FORMATS = {
    "iso-2005": "application/octet-stream",
    "iso-2011": "application/octet-stream",
    "ansi-2004": "application/octet-stream",
    "ansi-2009": "application/octet-stream",
    "sourceafis": "application/cbor",
}
# Byte of the quality in a template of ISO/IEC 19794-2:2005.
QUALITY_AT = 26
# Bytes of the header of such a template, and the bytes of its length and of its number of views.
HEADER_BYTES = 24
LENGTH_AT = slice(8, 12)
VIEWS_AT = 22
TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture(scope="module")
def server(scratch):
    """A server with collections and backups, and without models."""
    server = start(scratch, "--backup-dir", str(scratch / "backups"))
    yield server
    assert server.stop() == 0, server.log_text()[-4000:]


@pytest.fixture(scope="module")
def pictures(server) -> dict[int, str]:
    """Ids of pictures of fingers, which are enrolled without a model."""
    ids = {}
    for finger in range(8):
        ids[finger] = good(call(server, "PUT", "pictures", png(impression(finger)), kind="fingerprint"))["id"]
    return ids


@pytest.fixture(scope="module")
def templates(server, pictures) -> dict[int, bytes]:
    """A template of each finger. Each format occurs."""
    made = {}
    for finger, identity in pictures.items():
        answer = call(server, "GET", f"pictures/{identity}/template", format=list(FORMATS)[finger % len(FORMATS)])
        assert answer.status_code == 200, answer.text
        made[finger] = answer.content
    return made


@pytest.fixture(scope="module")
def enrolled(server, templates) -> dict[int, str]:
    """Ids of the templates of fingers 0 to 4, one of each format. Each finger is of another person."""
    ids = {}
    for finger in range(len(FORMATS)):
        query = {"name": f"{finger}.fmr", "payload": json.dumps({"person": f"person-{finger}"})}
        added = good(call(server, "PUT", "fingers", templates[finger], kind="fingerprint", **query))
        assert (added["status"], added["name"]) == ("added", f"{finger}.fmr")
        ids[finger] = added["id"]
    return ids


def identified(server: Server, collection: str, finger: int) -> dict:
    """The best person of another impression of a finger."""
    return good(call(server, "POST", f"{collection}/identify", png(again(finger)), k=3))["results"][0]


def test_no_model_is_served_and_none_is_needed(server, pictures, enrolled):
    listed = requests.get(f"{server.url}/v1/images", timeout=TIMEOUT_S).json()
    assert "error" in listed["embedding"]
    shown = {entry["name"]: (entry["kind"], entry["model"], entry["count"]) for entry in listed["collections"]}
    assert shown["pictures"] == ("fingerprint", "none", len(pictures))
    assert shown["fingers"] == ("fingerprint", "none", len(enrolled))
    assert call(server, "PUT", "photos", picture(1)).status_code == 409, "photographs need a model"


@pytest.mark.parametrize("finger", range(len(FORMATS)), ids=list(FORMATS))
def test_an_enrolled_template_is_identified(server, enrolled, finger):
    best = identified(server, "fingers", finger)
    assert (best["person"], best["accepted"], best["prints"]) == (f"person-{finger}", True, [enrolled[finger]])
    found = good(call(server, "POST", "fingers/search", png(again(finger)), k=1))
    assert (found["results"][0]["id"], found["compared"], found["of"]) == (enrolled[finger], 5, 5)


def test_strangers_are_not_accepted(server, enrolled, templates):
    for query in (png(impression(99)), templates[7]):
        found = good(call(server, "POST", "fingers/identify", query))
        assert not any(result["accepted"] for result in found["results"]), found


def test_templates_are_compared_one_to_one(server, enrolled, templates):
    for first, accepted in ((png(again(3)), True), (templates[3], True), (png(again(0)), False)):
        compared = good(call(server, "POST", "fingers/verify", first, id=enrolled[3]))
        assert compared["accepted"] is accepted, compared
    both = {"first": {"id": enrolled[2]}, "second": {"file": base64.b64encode(templates[2]).decode()}}
    assert good(call(server, "POST", "fingers/verify", both))["accepted"]


@pytest.mark.parametrize("finger", range(len(FORMATS)), ids=list(FORMATS))
def test_the_template_is_downloaded_as_it_was_sent(server, enrolled, templates, finger):
    identity = enrolled[finger]
    original = call(server, "GET", f"fingers/{identity}")
    assert (original.status_code, original.content) == (200, templates[finger])
    name = list(FORMATS)[finger]
    assert original.headers["content-type"] == FORMATS[name]
    entries = {entry["id"]: entry for entry in good(call(server, "GET", "fingers"))["images"]}
    assert (entries[identity]["format"], entries[identity]["bytes"]) == (name, len(templates[finger]))
    keypoints = good(call(server, "GET", f"fingers/{identity}/keypoints"))["keypoints"]
    assert len(keypoints) == entries[identity]["keypoints"]
    # It can be written in any format.
    for other in FORMATS:
        assert call(server, "GET", f"fingers/{identity}/template", format=other).status_code == 200
    thumbnail = call(server, "GET", f"fingers/{identity}/thumbnail")
    assert thumbnail.status_code == 404 and "no pixels" in thumbnail.text, thumbnail.text


def test_a_template_is_there_once(server, enrolled, templates):
    assert good(call(server, "PUT", "fingers", templates[0]))["status"] == "present"
    missing = good(call(server, "POST", "fingers/missing", {"ids": list(enrolled.values())}))
    assert missing == {"missing": []}


def test_damaged_templates_are_refused_and_not_stored(server, templates):
    for finger in range(len(FORMATS)):
        for background in ({}, {"background": 1}):
            cut = templates[finger][:-5]
            refused = call(server, "PUT", "damaged", cut, kind="fingerprint", name="cut.fmr", **background)
            assert refused.status_code == 400 and "cut.fmr: " in refused.text, refused.text
    long = call(server, "PUT", "damaged", templates[0] + b"x", kind="fingerprint")
    assert long.status_code == 400 and "truncated or extended" in long.text, long.text
    photo = call(server, "PUT", "damaged", templates[0])
    assert photo.status_code == 400 and "kind=fingerprint" in photo.text, photo.text
    assert call(server, "GET", "damaged").status_code == 404


def test_the_quality_that_a_template_states_counts(server, templates):
    poor = bytearray(templates[5])
    poor[QUALITY_AT] = 20
    refused = call(server, "PUT", "rated", bytes(poor), kind="fingerprint", quality_min=40)
    assert refused.status_code == 400 and "quality is 20" in refused.text, refused.text
    good(call(server, "PUT", "rated", bytes(poor), kind="fingerprint", quality_min=20))
    # SourceAFIS states none.
    good(call(server, "PUT", "rated", templates[4], quality_min=100))
    body = {"filter": {"must": [{"key": "image.quality", "match": {"value": 20}}]}}
    counted = requests.post(f"{server.url}/collections/rated/points/count", json=body, timeout=TIMEOUT_S)
    assert counted.json()["result"]["count"] == 1, counted.text


def test_vectors_and_duplicates_are_refused_with_a_reason(server, enrolled):
    points = f"{server.url}/collections/fingers/points"
    for path, body in (("query", {"query": [1, 0, 0, 0]}), ("search", {"vector": [1, 0, 0, 0], "limit": 3})):
        refused = requests.post(f"{points}/{path}", json=body, timeout=TIMEOUT_S)
        assert refused.status_code == 400 and "without embeddings" in refused.text, refused.text
    scrolled = requests.post(f"{points}/scroll", json={"limit": 10}, timeout=TIMEOUT_S)
    assert len(scrolled.json()["result"]["points"]) == len(enrolled)
    refused = call(server, "POST", "fingers/duplicates", {})
    assert refused.status_code == 409 and "without embeddings" in refused.text, refused.text
    command = run("images", "duplicates", "fingers", "--no-wait", "--url", server.url, check=False)
    assert command.returncode != 0 and "without embeddings" in command.stderr, command.stderr


def test_archives_and_folders_of_templates(server, templates, tmp_path):
    files = {f"hand/{finger}.tpl": template for finger, template in templates.items()}
    whole = archive({**files, "notes.txt": b"no template", "cut.fmr": templates[0][:30]})
    headers = {"content-type": "application/zip"}
    url = f"{server.url}/v1/images/zipped?kind=fingerprint"
    sent = requests.put(url, data=whole, headers=headers, timeout=TIMEOUT_S)
    *lines, last = [json.loads(line) for line in sent.text.splitlines()]
    assert last["summary"] == {"added": 8, "present": 0, "failed": 1, "ignored": 1}, sent.text
    assert [line["name"] for line in lines if line["status"] == "failed"] == ["cut.fmr"]
    for name, body in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
    url = f"{server.url}/v1/images/folder?kind=fingerprint"
    sent = requests.put(url, json={"folder": str(tmp_path)}, timeout=TIMEOUT_S)
    assert json.loads(sent.text.splitlines()[-1])["summary"]["added"] == 8, sent.text
    found = good(call(server, "POST", "folder/search", png(again(6)), k=1))["results"][0]
    assert (found["name"], found["accepted"]) == ("hand/6.tpl", True)


def test_the_command_line_adds_a_folder_of_templates(server, templates, tmp_path):
    for finger, template in templates.items():
        (tmp_path / f"{finger}.iso").write_bytes(template)
    (tmp_path / "disk.iso").write_bytes(b"CD001")
    command = [str(BINARY), "images", "index", str(tmp_path), "--collection", "walked", "--kind", "fingerprint"]
    done = subprocess.run(
        [*command, "--url", server.url], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert done.returncode == 0 and "walked: 8 added" in done.stdout, done.stdout + done.stderr
    assert "1 other files ignored" in done.stdout, done.stdout


def hand(server: Server, pictures: dict[int, str], fingers: list[int]) -> bytes:
    """A template of ISO/IEC 19794-2:2005 with a view of each finger, at the positions 1, 2 and so on."""
    whole = bytearray()
    for position, finger in enumerate(fingers, start=1):
        one = bytearray(call(server, "GET", f"pictures/{pictures[finger]}/template", format="iso-2005").content)
        one[HEADER_BYTES] = position
        whole += one[HEADER_BYTES if whole else 0 :]
    whole[LENGTH_AT] = len(whole).to_bytes(4, "big")
    whole[VIEWS_AT] = len(fingers)
    return bytes(whole)


def test_a_template_states_finger_and_quality(server, pictures):
    file = bytearray(hand(server, pictures, [4]))
    file[QUALITY_AT] = 70
    stored = good(call(server, "PUT", "stated", bytes(file), kind="fingerprint"))
    for format in list(FORMATS)[:4]:
        template = call(server, "GET", f"stated/{stored['id']}/template", format=format).content
        assert good(call(server, "POST", "stated/features", template))["quality"] == 70, format
        good(call(server, "PUT", f"again-{format}", template, kind="fingerprint"))
        assert good(call(server, "GET", f"again-{format}"))["images"][0]["payload"] == {"finger": 1}, format


@pytest.mark.parametrize("background", [{}, {"background": 1}], ids=["ordinary", "background"])
def test_views_of_a_template_are_fingers_of_one_person(server, pictures, background):
    name = f"hands-{len(background)}"
    file = hand(server, pictures, [0, 1, 2])
    added = good(call(server, "PUT", name, file, kind="fingerprint", name="hand.fmr", **background))
    assert [(entry["status"], entry["finger"]) for entry in added["prints"]] == [("added", n) for n in (1, 2, 3)]
    assert added["id"] == added["prints"][0]["id"] == added["person"], added
    for position, finger in enumerate((0, 1, 2)):
        best = identified(server, name, finger)
        assert (best["person"], best["accepted"]) == (added["person"], True)
        assert best["prints"][0] == added["prints"][position]["id"]
    both = good(call(server, "POST", f"{name}/identify", hand(server, pictures, [1, 2])))
    assert (both["results"][0]["person"], len(both["results"][0]["fingers"])) == (added["person"], 2)
    repeated = good(call(server, "PUT", name, file))
    assert [entry["status"] for entry in repeated["prints"]] == ["present"] * 3
    one = call(server, "GET", f"{name}/{added['prints'][1]['id']}").content
    assert good(call(server, "PUT", name, one))["status"] == "present"
    assert good(call(server, "GET", name))["count"] == 3


def test_an_archive_counts_the_views_of_templates(server, pictures):
    whole = archive({"a.fmr": hand(server, pictures, [3, 4]), "b.fmr": hand(server, pictures, [5])})
    url = f"{server.url}/v1/images/zipped-hands?kind=fingerprint"
    sent = requests.put(url, data=whole, headers={"content-type": "application/zip"}, timeout=TIMEOUT_S)
    *lines, last = [json.loads(line) for line in sent.text.splitlines()]
    assert last["summary"] == {"added": 3, "present": 0, "failed": 0, "ignored": 0, "files": 2}, sent.text
    assert sorted((line["name"], line.get("finger")) for line in lines if line["name"] == "a.fmr") == [
        ("a.fmr", 1),
        ("a.fmr", 2),
    ]


def test_features_of_a_template_move_to_another_collection(server, enrolled, templates):
    stored = good(call(server, "GET", f"fingers/{enrolled[1]}/features"))
    assert (stored["embedding"], stored["model"], stored["payload"]) == ([], "none", {"person": "person-1"})
    extracted = good(call(server, "POST", "nothing/features", templates[1], kind="fingerprint", name="1.fmr"))
    assert extracted == stored | {"payload": {}}
    assert call(server, "GET", "nothing").status_code == 404
    bare = {key: stored[key] for key in ("id", "record", "payload")}
    query = {"kind": "fingerprint"}
    assert good(call(server, "PUT", "moved/features", {"points": [bare]}, **query)) == {"added": 1, "replaced": 0}
    assert identified(server, "moved", 1)["person"] == "person-1"


def test_a_deleted_template_is_not_found(server, scratch, templates):
    ids = [good(call(server, "PUT", "fewer", templates[finger], kind="fingerprint"))["id"] for finger in (2, 3)]
    originals = scratch / "collections/.originals/fewer"
    assert sorted(path.stem for path in originals.rglob("*") if path.is_file()) == sorted(ids)
    good(call(server, "DELETE", f"fewer/{ids[0]}"))
    assert [path.stem for path in originals.rglob("*") if path.is_file()] == [ids[1]]
    assert call(server, "GET", f"fewer/{ids[0]}").status_code == 404
    found = good(call(server, "POST", "fewer/identify", png(again(2))))
    assert not any(result["accepted"] for result in found["results"]), found
    assert identified(server, "fewer", 3)["accepted"]


def test_the_command_line_deletes_the_images_that_are_there(server, templates):
    kept, first, second = (
        good(call(server, "PUT", "listed", templates[finger], kind="fingerprint"))["id"] for finger in (0, 1, 2)
    )
    command = ("images", "delete", "listed", first, "7", second, "--url", server.url)
    done = run(*command, check=False)
    assert done.returncode == 1 and "there is no image 7" in done.stderr, done.stdout + done.stderr
    assert [entry["id"] for entry in good(call(server, "GET", "listed"))["images"]] == [kept]
    assert "3 of 3 images were not found" in run(*command, check=False).stderr


def test_a_backup_is_restored(server, enrolled):
    def collections(*arguments: str) -> None:
        run("collections", *arguments, "--url", server.url)

    collections("backup", "fingers.v1")
    good(call(server, "DELETE", f"fingers/{enrolled[3]}"))
    assert not identified(server, "fingers", 3)["accepted"]
    collections("restore", "fingers.v1", "--replace")
    for finger in enrolled:
        assert identified(server, "fingers", finger)["prints"] == [enrolled[finger]]
    added = good(call(server, "PUT", "fingers", png(impression(9))))
    assert added["status"] == "added"
    assert identified(server, "fingers", 9)["prints"] == [added["id"]]


def test_templates_survive_a_restart(templates, tmp_path):
    first = start(tmp_path)
    good(call(first, "PUT", "kept", templates[4], kind="fingerprint", payload='{"person": "x"}'))
    assert first.stop() == 0, first.log_text()[-4000:]
    second = start(tmp_path, name="second")
    best = identified(second, "kept", 4)
    assert (best["person"], best["accepted"]) == ("x", True)
    good(call(second, "PUT", "kept", templates[1], payload='{"person": "y"}'))
    assert identified(second, "kept", 1)["person"] == "y"
    assert second.stop() == 0, second.log_text()[-4000:]
