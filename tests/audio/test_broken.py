"""Damaged, wrong and unusual recordings: a clear message for each, and labels of the sound parts are kept."""

import numpy as np
import pytest
import soundfile
from listening import Heard, lines, listen, post
from recordings import MEETING, RATE_HZ, encoded, read, speech, wave, wave_bytes, with_data_length
from reference import segments
from test_truth import assert_same

HEADER_LIES_HOURS = 2


@pytest.fixture(params=["file", "upload"])
def hear(request):
    """Sends the same recording as a file and as an upload."""
    if request.param == "file":
        return lambda path: listen("vad", path)
    server = request.getfixturevalue("server")
    media = {".wav": "audio/wav", ".flac": "audio/flac", ".mp3": "audio/mpeg"}

    def upload(path):
        answer = post(server.url, "vad", path.read_bytes(), **{"Content-Type": media[path.suffix]})
        return lines_or_error(answer)

    return upload


def lines_or_error(answer) -> Heard:
    """Parses the endpoint's answer. A refusal before any label is one document."""
    if answer.status_code == 200:
        heard = lines(answer)
        heard.code = int(bool(heard.errors) or heard.summary.get("partial", False))
        return heard
    assert answer.status_code == 400, (answer.status_code, answer.text)
    return Heard([], [], 1, answer.json()["error"], {})


def test_an_empty_file(hear, tmp_path):
    path = tmp_path / "empty.wav"
    path.write_bytes(b"")
    heard = hear(path)
    assert heard.code == 1 and not heard.labels
    assert "empty" in heard.errors, heard.errors


def test_a_text_file_named_wav(hear, tmp_path):
    path = tmp_path / "text.wav"
    path.write_text("This is no recording, whatever its name says.\n" * 40)
    heard = hear(path)
    assert heard.code == 1 and not heard.labels
    assert "text" in heard.errors, heard.errors


def test_a_truncated_flac(hear, tmp_path):
    """Two thirds of the file are labelled, and the missing rest is reported."""
    path = encoded(tmp_path / "cut.flac", read(MEETING))
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * len(whole) // 3])
    heard = hear(path)
    assert heard.code == 1
    assert heard.faults or heard.errors
    end = heard.spans()[-1][1]
    assert 15 < end < 22, heard.spans()
    kept = [span for span in segments(MEETING) if span[1] < end - 1]
    assert_same(heard.spans()[: len(kept)], kept)


def test_a_damaged_part_of_an_mp3(hear, tmp_path):
    """Labels before and after it are those of the whole file, and the fault has its time."""
    path = encoded(tmp_path / "broken.mp3", speech(90))
    wanted = segments(path)
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 3000] = np.random.default_rng(3).integers(0, 256, 3000, dtype=np.uint8).tobytes()
    broken = tmp_path / "broken-inside.mp3"
    broken.write_bytes(whole)
    heard = hear(broken)
    assert heard.faults, heard
    assert any(40 < fault["at"] < 50 for fault in heard.faults), heard.faults
    before = [span for span in wanted if span[1] < 40]
    assert len(before) > 2
    assert_same(heard.spans()[: len(before)], before)
    behind = [span for span in heard.spans() if span[0] > 52]
    expected = [span for span in wanted if span[0] > 52]
    # Later times are right to within the lost frames.
    assert abs(len(behind) - len(expected)) <= 1 and behind
    assert min(abs(behind[-1][0] - span[0]) for span in expected) < 0.5


def test_a_header_that_promises_two_hours(hear, tmp_path):
    path = tmp_path / "lies.wav"
    promised = HEADER_LIES_HOURS * 3600 * RATE_HZ * 2
    path.write_bytes(with_data_length(wave_bytes(read(MEETING)), promised))
    heard = hear(path)
    assert heard.faults, heard
    assert "7200" in " ".join(fault["what"] for fault in heard.faults), heard.faults
    assert_same(heard.spans(), segments(MEETING))


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF])
def test_a_header_without_a_known_length(hear, length, tmp_path):
    """Programs that record into a pipe write such a header: all later bytes are sound."""
    path = tmp_path / "stream.wav"
    path.write_bytes(with_data_length(wave_bytes(read(MEETING)), length))
    assert_same(hear(path).spans(), segments(MEETING))


def test_seven_channels_at_192_khz(hear, tmp_path):
    samples = np.repeat(read(MEETING)[: 12 * RATE_HZ], 12)
    kernel = np.hanning(25) / np.hanning(25).sum()
    samples = np.convolve(samples, kernel, mode="same").astype(np.float32)
    path = tmp_path / "seven.wav"
    soundfile.write(path, np.repeat(samples[:, None], 7, axis=1), 192_000, subtype="PCM_24")
    heard = hear(path)
    assert heard.code == 0 and not heard.faults, heard
    assert_same(heard.spans(), segments(path))


def test_a_second_of_silence_has_no_speech(hear, tmp_path):
    heard = hear(wave(tmp_path / "silence.wav", np.zeros(RATE_HZ, np.float32)))
    assert (heard.code, heard.labels, heard.faults) == (0, [], [])


def test_an_absent_file_is_named_once(tmp_path):
    heard = listen("vad-onnx", tmp_path / "absent.wav")
    assert heard.code == 1 and not heard.labels
    assert heard.errors.count("absent.wav") == 1 and "No such file" in heard.errors, heard.errors
