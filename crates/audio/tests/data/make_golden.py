"""Makes features.json: what the librosa package computes for the signal that tests/it/signal.rs makes too.

    pip install librosa && python make_golden.py

All in 64-bit numbers, because those are the definitions; rounding in 32 bits is what the tests' tolerances allow.
A chosen few rows of each case keep the file small.
"""

import json
import math
import pathlib

import librosa
import numpy as np

RATE = 16000
COUNT = 6000


def signal():
    """A chirp from 100 Hz to 7 kHz, and noise from a linear congruential generator."""
    state, samples = 12345, []
    for index in range(COUNT):
        state = (state * 1103515245 + 12345) % (1 << 31)
        noise = state / (1 << 30) - 1.0
        time = index / RATE
        phase = 2.0 * math.pi * (100.0 * time + 0.5 * 6900.0 * time * time / (COUNT / RATE))
        samples.append(np.float32(0.5 * math.sin(phase) + 0.1 * noise))
    return np.array(samples, dtype=np.float32)


def bands(samples, case):
    return librosa.feature.melspectrogram(
        y=samples, sr=RATE, n_fft=case["fft"], win_length=case["window"], hop_length=case["hop"],
        n_mels=case["mels"], fmin=case["fmin"], fmax=case.get("fmax"), htk=case["htk"],
        norm=None if case["norm"] == "none" else case["norm"], power=case["power"], center=case["center"],
        pad_mode=case["pad"], dtype=np.float64)


def features(samples, case):
    mels = bands(samples, case)
    if case["kind"] == "mel":
        return mels
    if case.get("log") == "natural":
        return np.log(np.maximum(case["floor"], mels + case.get("offset", 0.0)))
    logs = librosa.power_to_db(mels, ref=1.0, amin=1e-10, top_db=None)
    if case["kind"] == "log-mel":
        return logs
    return librosa.feature.mfcc(S=logs, n_mfcc=case["count"], dct_type=2, norm="ortho", lifter=case["lifter"])


def main():
    samples = signal()
    base = dict(fft=512, window=400, hop=160, mels=40, fmin=0.0, htk=False, norm="slaney", power=2.0, center=True,
                pad="constant")
    cases = [
        dict(base, kind="mel"),
        dict(base, kind="mel", pad="reflect", htk=True, norm="none", fmin=60.0, fmax=7800.0),
        dict(base, kind="mel", power=1.0, center=False, window=512, hop=700, mels=23),
        dict(base, kind="log-mel", mels=64, fft=1024, window=1024, hop=320, fmin=50.0),
        dict(base, kind="log-mel", log="natural", floor=1e-6, offset=0.001, pad="reflect"),
        dict(base, kind="mfcc", count=13, lifter=0.0),
        dict(base, kind="mfcc", count=20, lifter=22.0, pad="reflect", htk=True, fft=2048, window=2048, hop=512),
    ]
    golden = []
    for case in cases:
        rows = features(samples.astype(np.float64), case).T
        count = len(rows)
        chosen = sorted({0, 1, 2, count // 2, count - 3, count - 2, count - 1} & set(range(count)))
        golden.append(dict(settings=case, count=count, rows=[
            dict(row=row, values=[float(f"{value:.9g}") for value in rows[row]]) for row in chosen]))
    text = json.dumps(dict(librosa=librosa.__version__, rate=RATE, count=COUNT, cases=golden))
    pathlib.Path(__file__).with_name("features.json").write_text(text.replace('{"settings"', '\n{"settings"') + "\n")


if __name__ == "__main__":
    main()
