"""Images against the real server: added, found, fetched; and the other things that clients send."""

import concurrent.futures
import io
import json
import os
import pathlib
import socket
import struct
import threading
import time
import zipfile
import zlib

import numpy as np
import pytest
import requests
from onnx import TensorProto, helper
from PIL import Image

from millpond import Server, drop_in
from models import save, value

SIDE = 32
CELLS = 4
BULK_TIMEOUT_S = 500


def patches(path: pathlib.Path) -> pathlib.Path:
    """Saves a model that returns the mean colours of an image in 4 x 4 cells. They differ for generated images."""
    cell = SIDE // CELLS
    return save(
        path,
        [
            helper.make_node("AveragePool", ["image"], ["cells"], kernel_shape=[cell, cell], strides=[cell, cell]),
            helper.make_node("Flatten", ["cells"], ["embedding"]),
        ],
        [value("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [value("embedding", TensorProto.FLOAT, ["n", 3 * CELLS * CELLS])],
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("models")
    drop_in(patches(root / "source/patches.onnx"), root / "served/patches", 1)
    return root / "served"


class Images:
    """`/v1/images` of a server."""

    def __init__(self, server: Server):
        self.server = server
        self.url = f"{server.url}/v1/images"

    def put(self, collection: str, body: bytes, media: str = "image/jpeg", **query) -> requests.Response:
        url = f"{self.url}/{collection}"
        return requests.put(url, data=body, headers={"content-type": media}, params=query, timeout=BULK_TIMEOUT_S)

    def zip(self, collection: str, body: bytes) -> tuple[list[dict], dict]:
        answer = self.put(collection, body, "application/zip")
        assert answer.status_code == 200, answer.text
        *lines, last = [json.loads(line) for line in answer.text.splitlines()]
        return lines, last["summary"]

    def search(self, collection: str, body: bytes, **query) -> dict:
        url = f"{self.url}/{collection}/search"
        answer = requests.post(url, data=body, headers={"content-type": "image/png"}, params=query, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def count(self, collection: str) -> int:
        answer = requests.get(f"{self.url}/{collection}", timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["count"]


@pytest.fixture(scope="module")
def images(models, tmp_path_factory):
    place = tmp_path_factory.mktemp("images")
    server = Server(models, "--collections-dir", str(place / "collections"), log=place / "server.log").wait_ready()
    yield Images(server)
    assert server.stop() == 0, server.log_text()[-4000:]


def pixels(seed: int, width: int = 320, height: int = 240) -> np.ndarray:
    """Draws a scene of rectangles by seed."""
    random = np.random.default_rng(seed)
    scene = np.empty((height, width, 3), np.uint8)
    scene[:] = random.integers(0, 256, 3)
    for _ in range(60):
        x, y = random.integers(0, width), random.integers(0, height)
        w, h = random.integers(8, width // 4, 2)
        scene[y : y + h, x : x + w] = random.integers(0, 256, 3)
    return scene


def encoded(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def picture(seed: int, form: str = "JPEG", **options) -> bytes:
    return encoded(Image.fromarray(pixels(seed)), form, **options)


def tiny(seed: int) -> bytes:
    """Returns an image of a few hundred bytes."""
    random = np.random.default_rng(seed)
    return encoded(Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)), "PNG")


def archive(entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, body in entries.items():
            writer.writestr(name, body)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Returns a complete, small PNG file of that many white pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    row = b"\0" + b"\xff" * (width // 8 + 1)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def resident(server: Server) -> int:
    """Returns the server's peak of resident bytes."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_changed_copy_finds_its_original(images):
    ids = []
    for seed in range(20):
        answer = images.put("finding", picture(seed), name=f"{seed}.jpg", payload=json.dumps({"seed": seed}))
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["id"])
    scene = Image.fromarray(pixels(7)).rotate(5, expand=False).crop((20, 15, 300, 220))
    found = images.search("finding", encoded(scene, "JPEG", quality=60), explain=1)
    best = found["results"][0]
    assert (best["id"], best["accepted"], best["payload"]) == (ids[7], True, {"seed": 7})
    assert len(best["pairs"]) >= 8
    for x, y, found_x, found_y in best["pairs"]:
        assert 0 <= x <= 280 and 0 <= y <= 205 and 0 <= found_x <= 320 and 0 <= found_y <= 240
    assert (found["compared"], found["of"], found["partial"]) == (20, 20, False)
    some = images.search("finding", picture(7), k=1, candidates=3)
    assert (some["compared"], some["of"], some["partial"]) == (3, 20, False)
    stranger = images.search("finding", picture(500), k=5)
    assert not any(result["accepted"] for result in stranger["results"])
    assert len(stranger["results"]) == 5


def test_one_of_several_uploads_at_once_adds_the_image(images):
    images.put("once", picture(60))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        payloads = [json.dumps({"n": number}) for number in range(4)]
        answers = list(pool.map(lambda payload: images.put("once", picture(61), payload=payload), payloads))
    assert [answer.status_code for answer in answers] == [200] * 4, answers[0].text
    assert sorted(answer.json()["status"] for answer in answers) == ["added"] + ["present"] * 3


def test_every_image_format_is_read(images):
    scene = Image.fromarray(pixels(100))
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {
        "jpeg": encoded(scene, "JPEG", quality=90),
        "grey-jpeg": encoded(scene.convert("L"), "JPEG"),
        "cmyk-jpeg": encoded(scene.convert("CMYK"), "JPEG", quality=95),
        "progressive": encoded(scene, "JPEG", progressive=True),
        "turned": encoded(scene.rotate(90, expand=True), "JPEG", exif=turned, quality=90),
        "png": encoded(scene, "PNG"),
        "palette-png": encoded(scene.quantize(64), "PNG"),
        "alpha-png": encoded(scene.convert("RGBA"), "PNG"),
        "16-bit-png": encoded(Image.fromarray(pixels(100)[..., 0].astype(np.uint16) * 257), "PNG"),
        "webp": encoded(scene, "WEBP", quality=90),
        "lossless-webp": encoded(scene, "WEBP", lossless=True),
        "animated-webp": encoded(
            scene, "WEBP", save_all=True, append_images=[Image.fromarray(pixels(101))], duration=100, lossless=True
        ),
        "tiff": encoded(scene, "TIFF"),
        "cmyk-tiff": encoded(scene.convert("CMYK"), "TIFF"),
        "lzw-tiff": encoded(scene, "TIFF", compression="tiff_lzw"),
        "palette-tiff": encoded(scene.quantize(64), "TIFF"),
        "bilevel-tiff": encoded(scene.convert("1"), "TIFF", compression="group4"),
        "bmp": encoded(scene, "BMP"),
        "palette-bmp": encoded(scene.quantize(64), "BMP"),
    }
    ids = {}
    for name, file in files.items():
        answer = images.put("kinds", file, name=name)
        assert answer.status_code == 200, f"{name}: {answer.text}"
        entry = answer.json()
        assert (entry["status"], entry["width"], entry["height"]) == ("added", 320, 240), name
        ids[name] = entry["id"]
    found = images.search("kinds", files["png"], k=len(files))
    accepted = {result["name"] for result in found["results"] if result["accepted"]}
    # One channel alone and black and white have different keypoints, too.
    assert accepted >= set(files) - {"16-bit-png", "bilevel-tiff"}, set(files) - accepted
    for name, identity in ids.items():
        original = requests.get(f"{images.url}/kinds/{identity}", timeout=60)
        assert original.content == files[name], name
        small = requests.get(f"{images.url}/kinds/{identity}/thumbnail?size=64", timeout=60)
        assert Image.open(io.BytesIO(small.content)).size == (64, 48), name


def test_bombs_are_refused_before_they_are_unpacked(images):
    images.put("bombs", picture(0))
    before = resident(images.server)
    for width, height in [(10_000, 10_000), (60_000, 60_000)]:
        file = bomb(width, min(height, 10_000)) if width == 10_000 else bomb(width, 2_000)
        answer = images.put("bombs", file, "image/png", name="bomb.png")
        assert answer.status_code == 413, answer.text
        assert "bomb.png" in answer.json()["error"] and "pixels" in answer.json()["error"]
    assert resident(images.server) - before < 64 << 20
    zeroes = archive({"zeroes.png": b"\x89PNG\r\n\x1a\n" + bytes(1 << 30)})
    lines, summary = images.zip("bombs", zeroes)
    assert summary["failed"] == 1 and "at most" in lines[0]["error"], lines
    assert resident(images.server) - before < 400 << 20
    assert images.count("bombs") == 1


@pytest.mark.parametrize("kind", ["iCCP", "zTXt", "iTXt"])
def test_png_metadata_is_not_unpacked(images, kind):
    deflate = zlib.compressobj(1, wbits=-15)
    block = deflate.compress(bytes(16 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    stream = b"\x78\x01" + block * 64 + b"\x03\x00"
    data = {"iCCP": b"profile\0\0", "zTXt": b"Raw profile type iptc\0\0", "iTXt": b"XML:com.adobe.xmp\0\1\0\0\0"}[kind] + stream
    body = kind.encode() + data
    chunk = struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    whole = picture(60, "PNG")
    before = resident(images.server)
    answer = images.put("chunks", whole[:33] + chunk + whole[33:], "image/png", name=kind)
    assert answer.status_code == 200, answer.text
    assert resident(images.server) - before < 128 << 20


def test_a_truncated_image_is_refused_by_name(images):
    for form in ["JPEG", "PNG", "WEBP", "TIFF", "BMP"]:
        whole = picture(3, form)
        answer = images.put("truncated", whole[: len(whole) // 2], name=f"half.{form}")
        assert answer.status_code == 400, f"{form}: {answer.text}"
        assert f"half.{form}" in answer.json()["error"], answer.text
    whole = encoded(Image.fromarray(pixels(3)), "JPEG", progressive=True)
    assert images.put("truncated", whole[:-100], name="late.jpg").status_code == 400
    assert requests.get(f"{images.url}/truncated", timeout=60).status_code == 404, "a refused picture makes no collection"


def test_hostile_entries_of_an_archive(images, tmp_path):
    inside, names = picture(1), ["../../climb.jpg", "/tmp/millpond-absolute.jpg", "..\\..\\windows.jpg", "plain/ok.jpg"]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as writer:
        for number, name in enumerate(names):
            writer.writestr(name, picture(200 + number))
        link = zipfile.ZipInfo("link.jpg")
        link.external_attr = 0o120777 << 16
        writer.writestr(link, "/etc/passwd")
        writer.writestr("inner.zip", archive({"deep.jpg": inside}))
        writer.writestr("readme.txt", "no picture")
        writer.writestr("broken.jpg", b"\xff\xd8\xff\xe0 and nothing more")
        secret = zipfile.ZipInfo("secret.jpg")
        writer.writestr(secret, picture(210))
    # Mark the last entry as encrypted, in its own header and in the directory.
    body = bytearray(file.getvalue())
    for signature, flags in [(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)]:
        at = body.rfind(signature)
        body[at + flags] |= 1
    lines, summary = images.zip("climbing", bytes(body))
    status = {line["name"]: line["status"] for line in lines}
    assert summary == {"added": 4, "present": 0, "failed": 4, "ignored": 1}, lines
    assert all(status[name] == "added" for name in ["climb.jpg", "millpond-absolute.jpg", "windows.jpg", "ok.jpg"])
    assert status["link.jpg"] == status["inner.zip"] == status["broken.jpg"] == "failed"
    assert any("encrypted" in line.get("error", "") for line in lines)
    assert not pathlib.Path("/tmp/millpond-absolute.jpg").exists()
    place = images.server.log.parent
    assert not [path for path in place.parent.rglob("climb*") if path.is_file()]


def test_thousands_of_tiny_files(images):
    entries = {f"{number // 100}/{number}.png": tiny(number) for number in range(2000)}
    body = archive(entries, zipfile.ZIP_STORED)
    started = time.monotonic()
    lines, summary = images.zip("tiny", body)
    took = time.monotonic() - started
    assert summary == {"added": 2000, "present": 0, "failed": 0, "ignored": 0}
    assert len(lines) == 2000
    assert images.count("tiny") == 2000
    print(f"2,000 tiny pictures in {took:.0f} s")
    lines, summary = images.zip("tiny", archive(dict(list(entries.items())[:500])))
    assert summary["present"] == 500, "the same again is passed over"


def raw(server: Server, head: str, body: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=60)
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


def test_an_interrupted_upload(images):
    whole = picture(900)
    head = f"PUT /v1/images/halves HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: {len(whole)}"
    raw(images.server, head, whole[: len(whole) // 2]).close()
    many = archive({f"{number}.jpg": picture(number) for number in range(5)})
    head = f"PUT /v1/images/halves HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/zip\r\nContent-Length: {len(many)}"
    with raw(images.server, head, many[: len(many) // 2]) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536).decode()
    # Nothing was stored, and a client that still listens gets the reason.
    assert not answer or "broke off" in answer or "ended early" in answer, answer
    time.sleep(0.5)
    assert requests.get(f"{images.url}/halves", timeout=60).status_code == 404
    assert images.put("halves", whole).json()["status"] == "added"
    _, summary = images.zip("halves", many)
    assert summary["added"] == 5
    # The permits of ended uploads are free again; there are only a few.
    for _ in range(6):
        raw(images.server, head, many[:100]).close()
    deadline = time.monotonic() + 60
    while images.put("halves", many, "application/zip").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_folder_is_read_without_following_links(images, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/one.jpg").write_bytes(picture(300))
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "loop").symlink_to(tmp_path)
    answer = images.put("folder", json.dumps({"folder": str(tmp_path)}).encode(), "application/json")
    *lines, last = [json.loads(line) for line in answer.text.splitlines()]
    assert last["summary"] == {"added": 1, "present": 0, "failed": 0, "ignored": 1}
    assert lines[0]["name"] == "deep/one.jpg"
    foreign = requests.put(
        f"{images.url}/folder",
        json={"folder": str(tmp_path)},
        headers={"origin": "http://evil.example", "host": "evil.example"},
        timeout=60,
    )
    assert foreign.status_code == 403, foreign.text


def test_acknowledged_writes_survive_kill_9(models, tmp_path):
    flags = ("--collections-dir", str(tmp_path / "collections"))
    acknowledged: list[tuple[str, bytes]] = []
    for round_ in range(3):
        server = Server(models, *flags, log=tmp_path / f"server-{round_}.log").wait_ready()
        client = Images(server)
        stop = threading.Event()

        def put(first: int, client: Images = client, stop: threading.Event = stop) -> None:
            for seed in range(first, first + 10_000):
                if stop.is_set():
                    return
                file = encoded(Image.fromarray(pixels(seed, 96, 72)), "JPEG")
                try:
                    answer = client.put("kept", file, background=seed % 2)
                except requests.RequestException:
                    return
                if answer.status_code == 200:
                    acknowledged.append((answer.json()["id"], file))

        threads = [threading.Thread(target=put, args=((round_ * 4 + worker) * 10_000,)) for worker in range(3)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(acknowledged) < 10 * (round_ + 1) and time.monotonic() < deadline:
            time.sleep(0.005)
        server.process.kill()
        stop.set()
        server.process.wait()
        for thread in threads:
            thread.join()
    assert len(acknowledged) >= 30
    server = Server(models, *flags, log=tmp_path / "last.log").wait_ready()
    client = Images(server)
    deadline = time.monotonic() + 60
    while requests.get(f"{client.url}/kept", timeout=60).status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.1)
    for identity, file in acknowledged:
        original = requests.get(f"{client.url}/kept/{identity}", timeout=60)
        assert original.status_code == 200 and original.content == file, identity
    ids = [identity for identity, _ in acknowledged]
    missing = requests.post(f"{client.url}/kept/missing", json={"ids": ids[:1000]}, timeout=60).json()
    assert missing == {"missing": []}
    found = client.search("kept", acknowledged[-1][1], k=1)["results"][0]
    assert (found["id"], found["accepted"]) == (acknowledged[-1][0], True)
    assert server.stop() == 0, server.log_text()[-4000:]


def test_a_removal_of_originals_continues_after_kill_9(models, tmp_path):
    collections = tmp_path / "collections"

    def originals() -> list[str]:
        return [name for _, _, names in os.walk(collections / ".originals") for name in names]

    # A collection that cannot be opened may need the originals of the removed one, so they wait.
    (collections / "broken").mkdir(parents=True)
    flags = ("--collections-dir", str(collections))
    server = Server(models, *flags, log=tmp_path / "first.log").wait_ready()
    client = Images(server)
    for seed in range(3):
        answer = client.put("p", picture(seed))
        assert answer.status_code == 200, answer.text
    answer = requests.delete(f"{client.url}/p", timeout=60)
    assert answer.status_code == 200, answer.text
    server.process.kill()
    server.process.wait()
    assert len(originals()) == 3
    (collections / "broken").rmdir()
    server = Server(models, *flags, log=tmp_path / "last.log").wait_ready()
    deadline = time.monotonic() + 60
    while originals() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert originals() == []
    assert requests.get(f"{server.url}/v1/images/p", timeout=60).status_code == 404
    assert server.stop() == 0, server.log_text()[-4000:]


def test_a_server_with_a_key_requires_it(models, tmp_path):
    flags = ("--collections-dir", str(tmp_path / "collections"), "--api-key", "s3cret")
    server = Server(models, *flags, log=tmp_path / "server.log").wait_ready()
    try:
        for path in ["/v1/images", "/collections"]:
            assert requests.get(server.url + path, timeout=60).status_code == 401
            assert requests.get(server.url + path, headers={"api-key": "s3cre"}, timeout=60).status_code == 401
            assert requests.get(server.url + path, headers={"api-key": "s3cret"}, timeout=60).status_code == 200
            bearer = {"authorization": "Bearer s3cret"}
            assert requests.get(server.url + path, headers=bearer, timeout=60).status_code == 200
        assert "s3cret" not in server.log_text()
    finally:
        assert server.stop() == 0


def test_the_same_collection_by_qdrants_interface(images):
    answer = images.put("both", picture(400), name="four.jpg", payload=json.dumps({"year": 1999}))
    identity = answer.json()["id"]
    url = f"{images.server.url}/collections/both/points/scroll"
    query = {"filter": {"must": [{"key": "image.name", "match": {"value": "four.jpg"}}]}, "with_payload": True}
    points = requests.post(url, json=query, timeout=60).json()["result"]["points"]
    assert [point["id"] for point in points] == [identity]
    assert points[0]["payload"]["year"] == 1999 and points[0]["payload"]["image"]["width"] == 320
