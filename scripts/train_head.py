"""Trains a recogniser of sounds: a logistic regression on Google's speech embedding, written as one ONNX model.

    .venv-audio/bin/python scripts/train_head.py --clips my-sounds --to models/my-sounds

`my-sounds/CLASS/*.wav` (or flac, ogg, mp3) are recordings of each class, which are cut into windows of 0.79 s. Without
--clips it trains on --speech, a folder of voices, and on generated sounds. The printed accuracy is measured on one
recording in four of each class, which is not trained on. A class needs two recordings for it.
"""

import argparse
import pathlib
import sys

import librosa
import numpy as np
import onnxruntime

import sound_graph

RATE_HZ = 16_000
HOP_SAMPLES = sound_graph.WINDOW_SAMPLES // 2
# Windows that are quieter than this belong to the class "silence" and are not used for others.
LEVEL_MIN_DB = -45.0
SILENCE = "silence"
SUFFIXES = {".wav", ".flac", ".ogg", ".mp3"}
MADE_UP_CLIPS = 24
MADE_UP_SECONDS = 3
STEPS = 600
RATE_OF_LEARNING = 0.5
WEIGHT_DECAY = 1e-3
HELD_OUT = 4

# Class to its recordings, each f32[samples] at 16 kHz.
Clips = dict[str, list[np.ndarray]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--clips", type=pathlib.Path, help="folder with a folder of recordings for each class")
    source.add_argument("--speech", type=pathlib.Path, help="folder of voices; the other classes are made up")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="the model's directory")
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path(".cache/audio/parts"))
    parser.add_argument("--template", type=pathlib.Path, default=pathlib.Path("recognisers/sounds/millpond.toml"))
    arguments = parser.parse_args()

    clips = read(arguments.clips) if arguments.clips else made_up(arguments.speech)
    classes = sorted(clips)
    if len(classes) < 2:
        sys.exit(f"{arguments.clips}: {len(classes)} folders of recordings, at least 2 wanted")
    graph = sound_graph.embedding_graph(arguments.models)
    vectors = {name: embed(graph, name, recordings) for name, recordings in clips.items()}
    report(classes, vectors)
    weight, bias = fit(classes, {name: np.concatenate(parts) for name, parts in vectors.items()})
    write(sound_graph.with_head(graph, weight, bias), classes, arguments)


def read(folder: pathlib.Path) -> Clips:
    """Reads the user's recordings."""
    paths = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in SUFFIXES)
    clips: Clips = {}
    for path in paths:
        clips.setdefault(path.parent.name, []).append(librosa.load(path, sr=RATE_HZ, mono=True)[0])
    return clips


def made_up(speech: pathlib.Path) -> Clips:
    """Returns real voices, and generated noise, tones and silence."""
    random = np.random.default_rng(2026)
    count = MADE_UP_SECONDS * RATE_HZ
    time = np.arange(count) / RATE_HZ
    clips: Clips = {"voice": [], "noise": [], "tone": [], SILENCE: []}
    for path in sorted(speech.glob("*.wav")):
        samples = librosa.load(path, sr=RATE_HZ, mono=True)[0]
        clips["voice"] += [samples[start : start + count] for start in range(0, samples.size, count)]
    for _ in range(MADE_UP_CLIPS):
        loudness = 10 ** random.uniform(-2, -0.5)
        clips["noise"].append(loudness * coloured(random, count))
        steps = random.uniform(100, 3000, size=6).repeat(count // 6 + 1)[:count]
        phase = 2 * np.pi * np.cumsum(steps) / RATE_HZ
        overtone = random.uniform(0, 0.5)
        clips["tone"].append(loudness * (np.sin(phase) + overtone * np.sin(2 * phase + time)))
        clips[SILENCE].append(10 ** random.uniform(-6, -3) * random.normal(size=count))
    return clips


def coloured(random: np.random.Generator, count: int) -> np.ndarray:
    """Generates noise between white and brown."""
    spectrum = np.fft.rfft(random.normal(size=count))
    frequency = np.maximum(np.fft.rfftfreq(count, 1 / RATE_HZ), 20.0)
    noise = np.fft.irfft(spectrum * frequency ** -random.uniform(0, 1), count)
    return noise / np.abs(noise).max()


def embed(graph, name: str, recordings: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the vectors f32[windows, 96] of each recording."""
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found = []
    for samples in recordings:
        samples = np.clip(samples, -1, 1).astype(np.float32)
        samples = np.pad(samples, (0, max(0, sound_graph.WINDOW_SAMPLES - samples.size)))
        windows = np.lib.stride_tricks.sliding_window_view(samples, sound_graph.WINDOW_SAMPLES)[::HOP_SAMPLES]
        level = 20 * np.log10(np.sqrt((windows**2).mean(axis=1)) + 1e-9)
        windows = windows if name == SILENCE else windows[level > LEVEL_MIN_DB]
        if len(windows):
            found.append(session.run(["embedding"], {"samples": np.ascontiguousarray(windows)})[0])
    if not found:
        sys.exit(f"{name}: no recording is louder than {LEVEL_MIN_DB} dB")
    return found


def report(classes: list[str], vectors: dict[str, list[np.ndarray]]) -> None:
    """Prints the accuracy of a head on recordings that it was not trained on.

    A class with one recording has no other to train on, so its accuracy is unknown.
    """
    train, test = {}, {}
    for name, parts in vectors.items():
        held = parts[::HELD_OUT] if len(parts) > 1 else []
        rest = [part for index, part in enumerate(parts) if index % HELD_OUT != 0 or not held]
        train[name] = np.concatenate(rest)
        if held:
            test[name] = np.concatenate(held)
    weight, bias = fit(classes, train)
    for index, name in enumerate(classes):
        if name not in test:
            print(f"  {name}: unknown accuracy, since its only recording is trained on ({len(train[name])} windows)")
            continue
        right = (np.argmax(test[name] @ weight + bias, axis=1) == index).mean()
        print(f"  {name}: {right:.0%} of {len(test[name])} windows of unseen recordings ({len(train[name])} seen)")


def fit(classes: list[str], vectors: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Fits a logistic regression by gradient descent, all classes of equal weight: f32[96, classes], f32[classes]."""
    inputs = np.concatenate([vectors[name] for name in classes]).astype(np.float64)
    answers = np.concatenate([np.full(len(vectors[name]), index) for index, name in enumerate(classes)])
    shares = np.bincount(answers, minlength=len(classes))
    importance = (1 / (shares[answers] * len(classes)))[:, None]
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0) + 1e-3
    inputs = (inputs - mean) / deviation
    wanted = np.eye(len(classes))[answers]
    weight, bias = np.zeros((inputs.shape[1], len(classes))), np.zeros(len(classes))
    for _ in range(STEPS):
        logits = inputs @ weight + bias
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - wanted) * importance
        weight -= RATE_OF_LEARNING * (inputs.T @ error + WEIGHT_DECAY * weight)
        bias -= RATE_OF_LEARNING * error.sum(axis=0)
    # The head takes raw vectors, so their normalisation becomes part of it.
    weight /= deviation[:, None]
    return weight, bias - mean @ weight


def write(model, classes: list[str], arguments: argparse.Namespace) -> None:
    """Writes the version and the settings beside it, each completely or not at all.

    Settings that are there keep all values but the classes.
    """
    version, path = arguments.to / str(arguments.version), arguments.to / "millpond.toml"
    names = ", ".join(f'"{name}"' for name in classes)
    template = path if path.exists() else arguments.template
    settings = template.read_text()
    start = settings.find("classes = [")
    if start < 0:
        sys.exit(f"{template} has no line `classes = [...]`, which this script fills in")
    settings = settings[:start] + f"classes = [{names}]" + settings[settings.index("]", start) + 1 :]
    version.mkdir(parents=True, exist_ok=True)
    replace(version / "model.onnx", model.SerializeToString())
    replace(path, settings.encode())
    print(f"{version / 'model.onnx'}: {names}")


def replace(path: pathlib.Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_bytes(content)
    partial.rename(path)


if __name__ == "__main__":
    main()
