"""Fingerprints over HTTP: enrolment, one to many, one to one, templates, and files as forensic systems exchange them."""

import base64
import io
import pathlib
import sys

import numpy as np
import pytest
import requests
from collections_server import start
from millpond import drop_in
from PIL import Image
from test_images import patches

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))

from wsq_files import card, encode  # noqa: E402

WIDTH, HEIGHT = 320, 400
TIMEOUT_S = 60


def impression(finger: int, shift: tuple[int, int] = (0, 0), noise: float = 0, seed: int = 0) -> np.ndarray:
    """Ridges of a made-up finger, nine pixels apart. Each of 40 vortices of the phase is a minutia."""
    rng = np.random.default_rng(finger)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(float)
    x, y = x + shift[0], y + shift[1]
    phase = 2 * np.pi / 9 * np.hypot(x - 160 - rng.uniform(-30, 30), 1.2 * (y + 200))
    for _ in range(40):
        phase += rng.choice([-1, 1]) * np.arctan2(y - rng.uniform(30, HEIGHT - 30), x - rng.uniform(30, WIDTH - 30))
    pixels = 128 + 90 * np.cos(phase) + np.random.default_rng(seed).normal(0, noise, phase.shape)
    return pixels.clip(0, 255).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", dpi=(500, 500))
    return file.getvalue()


def again(finger: int) -> np.ndarray:
    """Another impression of the same finger."""
    return impression(finger, shift=(9, -6), noise=12, seed=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("fingerprints")
    drop_in(patches(scratch / "source/patches.onnx"), scratch / "models/patches", 1)
    server = start(scratch)
    yield server
    assert server.stop() == 0, server.log_text()


def call(server, method: str, path: str, body=None, **query) -> requests.Response:
    keywords = {"json": body} if isinstance(body, dict) else {"data": body}
    if isinstance(body, bytes):
        keywords["headers"] = {"content-type": "application/octet-stream"}
    return requests.request(method, f"{server.url}/v1/images/{path}", params=query, timeout=TIMEOUT_S, **keywords)


def good(response: requests.Response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def enrolled(server) -> dict[int, str]:
    """Ids of twelve fingers: fingers 2n and 2n + 1 belong to person n."""
    ids = {}
    for finger in range(12):
        payload = f'{{"person": "person-{finger // 2}"}}'
        query = {"kind": "fingerprint", "name": f"{finger}.png", "payload": payload}
        ids[finger] = good(call(server, "PUT", "fingers", png(impression(finger)), **query))["id"]
    return ids


def test_a_person_is_identified_by_one_finger_or_two(server, enrolled):
    for finger in (0, 5, 11):
        found = good(call(server, "POST", "fingers/identify", png(again(finger)), k=3))
        best = found["results"][0]
        assert (best["person"], best["accepted"], best["prints"][0]) == (f"person-{finger // 2}", True, enrolled[finger])
        assert not any(other["accepted"] for other in found["results"][1:]), found
        assert (found["compared"], found["of"], found["partial"]) == (12, 12, False)
    prints = [base64.b64encode(png(again(finger))).decode() for finger in (6, 7)]
    found = good(call(server, "POST", "fingers/identify", {"prints": prints}))
    best = found["results"][0]
    assert (best["person"], best["accepted"], len(best["fingers"])) == ("person-3", True, 2)
    assert set(best["prints"]) >= {enrolled[6], enrolled[7]}
    stranger = good(call(server, "POST", "fingers/identify", png(impression(99))))
    assert not any(result["accepted"] for result in stranger["results"]), stranger


def test_two_prints_are_compared(server, enrolled):
    same = good(call(server, "POST", "fingers/verify", png(again(4)), id=enrolled[4]))
    other = good(call(server, "POST", "fingers/verify", png(again(4)), id=enrolled[8]))
    assert same["accepted"] and same["pairs"] > 8 and same["score"] >= same["threshold"], same
    assert not other["accepted"] and other["score"] < same["score"], other
    both = {"first": {"id": enrolled[4]}, "second": {"file": base64.b64encode(png(again(4))).decode()}}
    assert good(call(server, "POST", "fingers/verify", both))["accepted"]


@pytest.mark.parametrize("format", ["iso-2005", "iso-2011", "ansi-2004", "ansi-2009", "sourceafis"])
def test_a_template_finds_its_print(server, enrolled, format):
    template = call(server, "GET", f"fingers/{enrolled[3]}/template", format=format)
    assert template.status_code == 200, template.text
    found = good(call(server, "POST", "fingers/identify", template.content))
    assert (found["results"][0]["prints"][0], found["results"][0]["accepted"]) == (enrolled[3], True)


def test_wsq_and_nist_files_are_prints(server, enrolled):
    wsq = encode(again(9).astype(float), 6.0)
    assert wsq[:2] == b"\xff\xa0" and len(wsq) < WIDTH * HEIGHT / 4
    for file in (wsq, card(wsq, (WIDTH, HEIGHT))):
        best = good(call(server, "POST", "fingers/identify", file))["results"][0]
        assert (best["person"], best["accepted"], best["prints"][0]) == ("person-4", True, enrolled[9])
    added = good(call(server, "PUT", "forensic", wsq, kind="fingerprint", name="9.wsq"))
    found = good(call(server, "POST", "forensic/identify", png(impression(9))))
    assert (found["results"][0]["prints"], found["results"][0]["accepted"]) == ([added["id"]], True)
    cut = call(server, "PUT", "forensic", wsq[: len(wsq) // 2], kind="fingerprint", name="cut.wsq")
    assert cut.status_code == 400 and "cut.wsq" in cut.text, cut.text


def test_a_smudge_is_refused_at_enrolment(server, enrolled):
    smudge = np.random.default_rng(3).normal(128, 40, (HEIGHT, WIDTH)).clip(0, 255).astype(np.uint8)
    refused = call(server, "PUT", "fingers", png(smudge), quality_min=40)
    assert refused.status_code == 400 and "quality" in refused.text, refused.text
    good(call(server, "PUT", "fingers", png(impression(0)), quality_min=40))
