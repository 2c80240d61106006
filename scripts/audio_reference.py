"""Prints the answer of a recogniser's Python package for a recording, and its time, as one line of JSON.

    scripts/torch_python.sh .venv-audio/bin/python scripts/audio_reference.py --recogniser vad FILE

vad, vad-onnx, vad-sequence   {"seconds", "segments": [[start, end], ...]}, silero-vad with its defaults
voiceprint                    {"seconds", "embedding": [256 numbers]}, resemblyzer; --prepared also writes the wave that
                              the package embeds (louder, without pauses)

"seconds" includes reading the file, not importing packages or loading the model. If FILE is -, every line of
standard input names a recording and gets one line of output.
"""

import argparse
import json
import pathlib
import sys
import time
import warnings

import numpy as np
import soundfile

RATE_HZ = 16_000
# Length of the untimed first run: TorchScript compiles while it runs.
WARM_UP_SECONDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recogniser", choices=("vad", "vad-onnx", "vad-sequence", "voiceprint"), required=True)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads inside an operation")
    parser.add_argument("--prepared", type=pathlib.Path, help="where to write the wave that was embedded")
    parser.add_argument("file", metavar="FILE")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    run = voiceprint(arguments) if arguments.recogniser == "voiceprint" else voice_activity(arguments)
    for path in [arguments.file] if arguments.file != "-" else map(str.strip, sys.stdin):
        began = time.perf_counter()
        answer = run(pathlib.Path(path))
        print(json.dumps({"seconds": round(time.perf_counter() - began, 6), **answer}), flush=True)


def voice_activity(arguments: argparse.Namespace):
    """Runs the detector over a file."""
    import silero_vad
    import torch

    form = {"vad": {}, "vad-onnx": {"onnx": True}, "vad-sequence": {"sequence": True}}[arguments.recogniser]
    model = silero_vad.load_silero_vad(**form)
    # After loading: the package sets one thread when it is imported.
    torch.set_num_threads(arguments.threads)
    sequence = arguments.recogniser == "vad-sequence"
    detect = silero_vad.get_speech_timestamps_sequence if sequence else silero_vad.get_speech_timestamps
    silence = np.zeros(WARM_UP_SECONDS * RATE_HZ, np.float32)
    detect(silence if sequence else torch.from_numpy(silence), model)

    def run(path: pathlib.Path) -> dict:
        samples = read(path)
        found = detect(samples if sequence else torch.from_numpy(samples), model)
        return {"segments": [[part["start"] / RATE_HZ, part["end"] / RATE_HZ] for part in found]}

    return run


def voiceprint(arguments: argparse.Namespace):
    """Embeds a file."""
    import resemblyzer
    import torch

    encoder = resemblyzer.VoiceEncoder("cpu", verbose=False)
    torch.set_num_threads(arguments.threads)
    encoder.embed_utterance(np.zeros(WARM_UP_SECONDS * RATE_HZ, np.float32) + 1e-3)

    def run(path: pathlib.Path) -> dict:
        samples = resemblyzer.preprocess_wav(read(path))
        embedding = encoder.embed_utterance(samples)
        if arguments.prepared:
            soundfile.write(arguments.prepared, samples, RATE_HZ, subtype="FLOAT")
        return {"embedding": [float(value) for value in embedding]}

    return run


def read(path: pathlib.Path) -> np.ndarray:
    """Returns the mean of the channels at 16 kHz."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    samples = samples.mean(axis=1)
    if rate != RATE_HZ:
        import librosa

        samples = librosa.resample(samples, orig_sr=rate, target_sr=RATE_HZ)
    return np.ascontiguousarray(samples, dtype=np.float32)


if __name__ == "__main__":
    main()
