"""Every ready recogniser on real recordings, against the Python package of its model."""

import json

import librosa
import numpy as np
import onnxruntime
import pytest
from listening import RECOGNISERS, command, listen
from recordings import CLIPS, FIRST_SPEAKER, MEETING, RATE_HZ, SECOND_SPEAKER, cut, encoded, read, tones, wave
from reference import embedding, segments

# One window of the detector.
TOLERANCE_S = 0.032


def assert_same(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> None:
    assert len(found) == len(wanted), (found, wanted)
    times = zip(sum(found, ()), sum(wanted, ()), strict=True)
    worst = max((abs(ours - theirs) for ours, theirs in times), default=0.0)
    # Times are written with three digits.
    assert worst <= TOLERANCE_S + 1e-3, (worst, found, wanted)


@pytest.mark.parametrize("recogniser", ["vad", "vad-onnx", "vad-sequence"])
def test_voice_activity_is_the_packages(recogniser):
    heard = listen(recogniser, MEETING)
    assert heard.code == 0, heard.errors
    assert set(heard.texts()) == {"speech"} and not heard.faults
    assert_same(heard.spans(), segments(MEETING, recogniser))


@pytest.mark.parametrize("recogniser", ["vad", "vad-onnx", "vad-sequence"])
def test_pieces_of_a_long_recording_join_without_a_seam(recogniser, long):
    """Each piece starts with a new state, and the result still equals that of a single state."""
    assert_same(listen(recogniser, long).spans(), segments(long))


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_the_answer(threads, long):
    assert listen("vad-onnx", long, "--threads", threads).labels == listen("vad-onnx", long).labels


def test_short_clips(tmp_path):
    """Clips of a second or two: the last window is mostly padding."""
    for clip in sorted(CLIPS.glob("voice-*.wav"))[:3]:
        assert_same(listen("vad-onnx", clip).spans(), segments(clip, "vad-onnx"))


@pytest.mark.parametrize("suffix", [".flac", ".ogg", ".mp3"])
def test_every_file_format(suffix, tmp_path):
    """The package reads the same file through libsndfile."""
    path = encoded(tmp_path / f"meeting{suffix}", read(MEETING))
    heard = listen("vad-sequence", path)
    assert heard.code == 0 and not heard.faults, heard.errors
    assert_same(heard.spans(), segments(path, "vad-sequence"))


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_rates_and_two_channels(rate, tmp_path):
    """The package gets librosa's result: the mean of the channels, resampled."""
    samples = librosa.resample(read(MEETING), orig_sr=RATE_HZ, target_sr=rate)
    path = wave(tmp_path / f"{rate}.wav", np.stack([samples, 0.8 * samples], axis=1), rate)
    heard = listen("vad-sequence", path)
    assert heard.code == 0 and not heard.faults, heard.errors
    assert_same(heard.spans(), segments(path, "vad-sequence"))


def test_the_voiceprint_is_the_packages(tmp_path):
    """Compares embeddings of the package's prepared wave."""
    prepared, store = tmp_path / "prepared.wav", tmp_path / "speakers.json"
    wanted = np.array(embedding(MEETING, prepared))
    enrolled = command("speakers", "--speakers", store, "enrol", "both", prepared)
    assert enrolled.returncode == 0, enrolled.stderr
    (found,) = vectors(json.loads(store.read_text()))
    assert np.dot(found, wanted) / np.linalg.norm(found) >= 0.999


def vectors(document) -> list[np.ndarray]:
    """Yields every list of 256 numbers in a document."""
    if isinstance(document, list) and len(document) == 256:
        return [np.array(document)]
    parts = document.values() if isinstance(document, dict) else document if isinstance(document, list) else []
    return [vector for part in parts for vector in vectors(part)]


def test_three_speakers_are_distinguished(tmp_path):
    meeting, store = read(MEETING), tmp_path / "speakers.json"
    voices = {
        "first": [wave(tmp_path / f"first-{n}.wav", cut(meeting, *part)) for n, part in enumerate(FIRST_SPEAKER)],
        "second": [wave(tmp_path / f"second-{n}.wav", cut(meeting, *part)) for n, part in enumerate(SECOND_SPEAKER)],
        "announcer": sorted(CLIPS.glob("voice-*.wav")),
    }
    for name, paths in voices.items():
        done = command("speakers", "--speakers", store, "enrol", name, *paths[:2])
        assert done.returncode == 0, done.stderr
    unseen = {path: name for name, paths in voices.items() for path in paths[2:]}
    done = command("speakers", "--speakers", store, "identify", *unseen)
    assert done.returncode == 0, done.stderr
    rows = {row.split()[0]: row for row in done.stdout.splitlines() if row.split()[0].endswith(".wav")}
    wrong = [rows[str(path)] for path, name in unseen.items() if name not in rows[str(path)]]
    assert len(rows) == len(unseen) and not wrong, done.stdout


def test_sounds_distinguishes_voices_from_noise(tmp_path):
    noise = np.random.default_rng(5).normal(0, 0.1, 6 * RATE_HZ).astype(np.float32)
    joined = np.concatenate([cut(read(MEETING), 8, 14), noise])
    heard = listen("sounds", wave(tmp_path / "both.wav", joined))
    assert heard.code == 0, heard.errors
    for name, start, end in (("voice", 0, 6), ("noise", 6, 12)):
        spans = [(label["start"], label["end"]) for label in heard.labels if label["text"] == name]
        covered = sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)
        assert covered >= 0.7 * (end - start), (name, heard.labels)


def test_sounds_equals_the_models_answer(tmp_path):
    """Compares with the classes of windows from the graph alone."""
    session = onnxruntime.InferenceSession(RECOGNISERS / "sounds/1/model.onnx")
    samples = read(MEETING)
    windows = np.lib.stride_tricks.sliding_window_view(samples, 12_640)[::6_320]
    (odds,) = session.run(["probabilities"], {"samples": np.ascontiguousarray(windows)})
    names = ["noise", "silence", "tone", "voice"]
    wanted = [names[row.argmax()] if row.max() >= 0.5 else None for row in odds]
    runs = [name for index, name in enumerate(wanted) if name and (index == 0 or wanted[index - 1] != name)]
    found = listen("sounds", MEETING).texts()
    # The window after the last complete one is padded and may add a label.
    assert found[: len(runs)] == runs and len(found) <= len(runs) + 1


def test_notes_are_the_played_ones(tmp_path):
    """A melody across the border of two windows (1.64 s apart), a chord, and one key struck twice."""
    melody = [(60, 0.5, 1.2), (64, 1.3, 2.1), (69, 2.3, 3.0)]
    played = [*melody, (72, 3.2, 4.2), (48, 3.2, 4.2), (65, 4.6, 5.1), (65, 5.15, 5.8)]
    path = wave(tmp_path / "melody.wav", tones(played, 6.5, 22_050), 22_050)
    heard = listen("notes", path)
    assert heard.code == 0, heard.errors
    found = [(key_of(label["text"]), label["start"], label["end"]) for label in heard.labels]
    for key, start, end in played:
        near = [note for note in found if note[0] == key and abs(note[1] - start) < 0.08]
        assert near and abs(near[0][2] - end) < 0.4, (key, start, end, found)
    # Overtones may be labelled as notes too, but most labels are notes that were played.
    assert len(found) <= 2 * len(played), found


def key_of(text: str) -> int:
    """Returns the MIDI key of a name like C#4."""
    names = ["C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"]
    name = text.rstrip("-0123456789")
    return 12 * (int(text[len(name) :]) + 1) + names.index(name)
