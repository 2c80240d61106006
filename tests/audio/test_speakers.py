"""Enrolled voices survive any end of the server."""

import pathlib
import sys

import pytest
import requests

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients"))

from millpond import Server  # noqa: E402

from listening import RECOGNISERS  # noqa: E402
from recordings import CLIPS, FIRST_SPEAKER, MEETING, SECOND_SPEAKER, cut, read, wave_bytes  # noqa: E402


@pytest.fixture
def start(tmp_path):
    started = []

    def start() -> Server:
        log = tmp_path / f"server-{len(started)}.log"
        started.append(Server(RECOGNISERS, "--speakers-dir", str(tmp_path / "speakers"), log=log).wait_ready())
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


def voices() -> dict[str, list[bytes]]:
    meeting = read(MEETING)
    announcer = sorted(CLIPS.glob("voice-*.wav"))[:3]
    return {
        "first speaker": [wave_bytes(cut(meeting, *part)) for part in FIRST_SPEAKER],
        "zweite Sprecherin": [wave_bytes(cut(meeting, *part)) for part in SECOND_SPEAKER],
        "announcer": [path.read_bytes() for path in announcer],
    }


def call(method: str, server: Server, path: str, body: bytes = b"") -> requests.Response:
    return requests.request(method, f"{server.url}/v1/audio/voiceprint/{path}", data=body, timeout=60)


def test_enrolled_voices_survive_a_kill(start):
    server = start()
    for name, recordings in voices().items():
        for recording in recordings[:2]:
            answer = call("PUT", server, f"speakers/{name}", recording)
            assert answer.status_code == 200, answer.text
    # The answer promises durability, so the server is killed right after it.
    server.process.kill()
    server.process.wait()

    server = start()
    assert sorted(call("GET", server, "speakers").json()["speakers"]) == sorted(voices())
    for name, recordings in voices().items():
        found = call("POST", server, "identify", recordings[2])
        assert found.status_code == 200 and found.json()["speaker"] == name, found.text
        same = call("POST", server, f"verify/{name}", recordings[2]).json()
        assert same["similarity"] == pytest.approx(found.json()["similarity"])
    other = call("POST", server, "verify/announcer", voices()["first speaker"][2]).json()
    assert other["accepted"] is False, other

    assert call("DELETE", server, "speakers/announcer").status_code == 200
    assert call("DELETE", server, "speakers/announcer").status_code == 404
    server.process.kill()
    server.process.wait()
    assert "announcer" not in call("GET", start(), "speakers").json()["speakers"]


def test_speakers_of_a_recording_are_named(start):
    server = start()
    for name, recordings in voices().items():
        assert call("PUT", server, f"speakers/{name}", recordings[0]).status_code == 200
    answer = requests.post(f"{server.url}/v1/audio/voiceprint?format=rttm", data=MEETING.read_bytes(), timeout=60)
    assert answer.status_code == 200, answer.text
    named = " ".join(line.split()[7] for line in answer.text.splitlines())
    assert "first" in named and "zweite" in named and "announcer" not in named, answer.text


def test_a_damaged_recording_is_reported(start):
    server = start()
    whole = voices()["announcer"][0]
    cut_short = whole[: len(whole) * 3 // 4]
    for recording, partial in ((whole, False), (cut_short, True)):
        for method, path in (("PUT", "speakers/announcer"), ("POST", "identify"), ("POST", "verify/announcer")):
            answer = call(method, server, path, recording)
            assert answer.status_code == 200 and answer.json()["partial"] is partial, answer.text


def test_other_recognisers_have_no_speakers(start):
    answer = requests.get(f"{start().url}/v1/audio/vad/speakers", timeout=60)
    assert answer.status_code in (400, 409, 412) and "vad" in answer.text
