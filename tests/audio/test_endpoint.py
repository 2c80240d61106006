"""`POST /v1/audio/{recogniser}`: uploads of every kind, and results while they still run."""

import json
import time

import pytest
import requests
from listening import Upload, command, lines, post
from recordings import MEETING, RATE_HZ, read, speech, wave_bytes
from reference import segments
from test_truth import assert_same

LEAVING_MAX_S = 60
# Less than the server's --client-timeout, see conftest.py. The last windows wait 1 s for a full batch.
SILENCE_MAX_S = 60


def test_recognisers_are_listed(server):
    answer = requests.get(f"{server.url}/v1/audio", timeout=60)
    assert answer.status_code == 200, answer.text
    listed = {entry["name"]: entry for entry in answer.json()["recognisers"]}
    assert set(listed) == {"vad", "vad-onnx", "vad-sequence", "voiceprint", "sounds", "notes"}
    assert not [entry for entry in listed.values() if "error" in entry], listed


@pytest.mark.parametrize("recogniser", ["vad", "vad-onnx", "vad-sequence", "voiceprint", "sounds", "notes"])
def test_ready_recognisers_are_warmed_up(server, recogniser):
    [entry] = server.index(recogniser)
    assert entry["state"] == "READY" and "not warmed up" not in entry.get("reason", ""), entry


@pytest.mark.parametrize("recogniser", ["vad", "vad-onnx", "vad-sequence"])
def test_a_raw_body(server, recogniser):
    answer = post(server.url, recogniser, MEETING.read_bytes(), **{"Content-Type": "audio/wav"})
    assert answer.status_code == 200, answer.text
    assert_same(lines(answer).spans(), segments(MEETING, recogniser))


def test_a_chunked_body_without_a_type(server):
    recording = MEETING.read_bytes()
    pieces = (recording[start : start + 9_999] for start in range(0, len(recording), 9_999))
    assert_same(lines(post(server.url, "vad", pieces)).spans(), segments(MEETING))


def test_a_form(server):
    with MEETING.open("rb") as file:
        answer = requests.post(f"{server.url}/v1/audio/vad", files={"file": ("meeting.wav", file)}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert_same(lines(answer).spans(), segments(MEETING))


@pytest.mark.parametrize("recogniser", ["vad", "vad-onnx", "sounds"])
def test_results_arrive_during_the_upload(server, recogniser):
    """An upload as from a microphone, but faster: the first label arrives long before the recording ends."""
    recording = wave_bytes(speech(90))
    upload = Upload(server.http, f"/v1/audio/{recogniser}")
    half = len(recording) // 2
    step = RATE_HZ  # half a second of 16-bit samples
    sent = 0
    while sent < half:
        upload.send(recording[sent : sent + step])
        sent += step
        upload.read_now()
    deadline = time.monotonic() + SILENCE_MAX_S
    while b'"type":"label"' not in upload.read_now(0.1):
        assert time.monotonic() < deadline, upload.received[-2000:]
    upload.send(recording[sent:])
    upload.end()
    assert b'"error"' not in upload.read_until(b'"type":"summary"')
    upload.close()


@pytest.mark.parametrize("recogniser", ["vad", "vad-onnx", "sounds", "notes"])
def test_an_interrupted_upload_gets_its_labels(server, recogniser):
    recording = wave_bytes(speech(60))
    half = recording[: len(recording) // 2]
    # Only events that certainly have ended; a later one may continue in the other half.
    whole = lines(post(server.url, recogniser, recording))
    sent_s = (len(half) - 44) / 2 / RATE_HZ
    wanted = [span for span in whole.spans() if span[1] < sent_s - 3]
    assert len(wanted) >= 3, whole.spans()
    upload = Upload(server.http, f"/v1/audio/{recogniser}")
    upload.send(half)
    deadline = time.monotonic() + SILENCE_MAX_S
    while upload.received.count(b'"type":"label"') < len(wanted) and time.monotonic() < deadline:
        upload.read_now(0.1)
    got = upload.received.count(b'"type":"label"')
    assert got >= len(wanted), f"{got} of {len(wanted)} labels: {upload.received[-2000:]}"
    upload.send(recording[len(half) :])
    upload.end()
    assert b'"error"' not in upload.read_until(b'"type":"summary"')
    assert upload.received.count(b'"type":"label"') == len(whole.labels)
    upload.close()


def test_a_client_that_disconnects_frees_its_permit(server):
    recording = wave_bytes(speech(60))
    for _ in range(8):
        upload = Upload(server.http, "/v1/audio/vad-onnx")
        upload.send(recording[: len(recording) // 2])
        upload.close()
    # Permits become free once the server has noticed that the clients disconnected.
    deadline = time.monotonic() + LEAVING_MAX_S
    while (answer := post(server.url, "vad-onnx", recording)).status_code == 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer.status_code == 200, answer.text
    assert not lines(answer).errors


@pytest.mark.parametrize("form", ["json", "csv", "srt", "rttm", "audacity"])
def test_formats_are_those_of_the_command(server, form):
    answer = post(server.url, f"vad-onnx?format={form}", MEETING.read_bytes(), **{"Content-Type": "audio/wav"})
    assert answer.status_code == 200, answer.text
    done = command("audio", MEETING, "--recogniser", "vad-onnx", "--format", form)
    assert done.returncode == 0, done.stderr
    if form == "json":
        assert json.loads(answer.text)["labels"] == json.loads(done.stdout)["labels"]
    elif form == "rttm":
        # The first column names the file.
        spans = [[line.split()[3:5] for line in text.splitlines()] for text in (answer.text, done.stdout)]
        assert spans[0] == spans[1] and len(spans[0]) == len(segments(MEETING))
    else:
        assert len(answer.text.splitlines()) == len(done.stdout.splitlines())


def test_the_command_with_a_server(server):
    done = command("audio", MEETING, "--recogniser", "vad", "--format", "json", "--url", server.url)
    assert done.returncode == 0, done.stderr
    assert_same([(label["start"], label["end"]) for label in json.loads(done.stdout)["labels"]], segments(MEETING))


def test_mistakes_are_refused(server):
    assert post(server.url, "nobody", b"x").status_code == 404
    assert post(server.url, "vad?format=wax", b"x").status_code == 400
    assert post(server.url, "vad", b"").status_code == 400


def test_each_request_starts_from_the_state_as_loaded(server):
    """Plain requests have no streams, so each starts from the state as loaded."""
    frame = read(MEETING)[160_000:160_512].tolist()
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [1, 512], "data": frame},
        {"name": "sr", "datatype": "INT64", "shape": [], "data": [16_000]},
    ]
    url = f"{server.url}/v2/models/vad/infer"
    answers = [requests.post(url, json={"inputs": tensors}, timeout=60) for _ in range(5)]
    assert all(answer.status_code == 200 for answer in answers), answers[0].text
    assert len({answer.json()["outputs"][0]["data"][0] for answer in answers}) == 1
