"""Recordings for the tests: real speech from public packages, cut, joined, encoded, and damaged in known places."""

import io
import pathlib
import struct

import librosa
import numpy as np
import soundfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CLIPS = REPOSITORY / ".cache/audio/clips"
MEETING = CLIPS / "meeting.wav"
RATE_HZ = 16_000
# Parts of the meeting with one speaker, in seconds.
FIRST_SPEAKER = [(10.8, 14.4), (8.4, 9.9), (18.7, 21.4)]
SECOND_SPEAKER = [(14.75, 17.9), (21.8, 24.8), (24.8, 27.8)]


def read(path: pathlib.Path, rate: int | None = None) -> np.ndarray:
    """Returns the mean of the channels, at the file's rate or another."""
    samples, own = soundfile.read(path, dtype="float32", always_2d=True)
    samples = samples.mean(axis=1)
    return samples if rate in (None, own) else librosa.resample(samples, orig_sr=own, target_sr=rate)


def cut(samples: np.ndarray, start: float, end: float) -> np.ndarray:
    return samples[int(start * RATE_HZ) : int(end * RATE_HZ)]


def speech(seconds: float) -> np.ndarray:
    """Repeats all clips, with pauses between them, for the given time."""
    pause = np.zeros(RATE_HZ // 2, np.float32)
    parts, length = [], 0
    clips = [read(path) for path in sorted(CLIPS.glob("*.wav"))]
    while length < seconds * RATE_HZ:
        for clip in clips:
            parts += [clip, pause]
            length += clip.size + pause.size
    return np.concatenate(parts)[: int(seconds * RATE_HZ)]


def wave(path: pathlib.Path, samples: np.ndarray, rate: int = RATE_HZ, subtype: str = "PCM_16") -> pathlib.Path:
    soundfile.write(path, samples, rate, subtype=subtype)
    return path


def encoded(path: pathlib.Path, samples: np.ndarray, rate: int = RATE_HZ) -> pathlib.Path:
    """Writes a recording in the format of the file name."""
    form = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".ogg": ("OGG", "VORBIS"), ".mp3": ("MP3", None)}
    kind, subtype = form[path.suffix]
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    with soundfile.SoundFile(path, "w", rate, channels, subtype, format=kind) as file:
        # The Vorbis encoder's stack overflows if it gets minutes in one call.
        for start in range(0, len(samples), rate):
            file.write(samples[start : start + rate])
    return path


def wave_bytes(samples: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def with_data_length(recording: bytes, length: int) -> bytes:
    """Writes a wav file whose header announces `length` bytes of samples."""
    at = recording.index(b"data") + 4
    return recording[:at] + struct.pack("<I", length) + recording[at + 4 :]


def tones(notes: list[tuple[int, float, float]], seconds: float, rate: int) -> np.ndarray:
    """Synthesises plucked strings: (MIDI key, start, end)."""
    samples = np.zeros(int(seconds * rate), np.float32)
    for key, start, end in notes:
        time = np.arange(int((end - start) * rate)) / rate
        frequency = 440.0 * 2 ** ((key - 69) / 12)
        sound = sum(np.sin(2 * np.pi * n * frequency * time) / n**1.5 for n in range(1, 7))
        fade = np.minimum(1, np.minimum(time / 0.005, (end - start - time) / 0.03))
        at = int(start * rate)
        samples[at : at + time.size] += (0.2 * sound * np.exp(-time) * fade).astype(np.float32)
    return samples
