"""Collects the licence texts of the Rust crates that a program is linked from, in one text file.

    collect.py --to THIRD-PARTY-LICENSES.txt [--package millpond-cli ...] [--target TRIPLE]

Licences such as MIT, BSD, ISC and Apache-2.0 ask for their text or notice beside the program. Equal inputs give equal
bytes. A crate without a licence file gets the text of its licence from another crate, or from SPDX-ID.txt in this folder.
"""

import argparse
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
WIDTH = 100
LEGAL = re.compile(r"(un)?licen[cs]e|copying|copyright|notice|patents", re.IGNORECASE)
# Folders of a crate from which nothing is linked.
UNLINKED = {"benches", "examples", "fuzz", "test", "tests"}
SOURCE_SUFFIXES = {".c", ".h", ".html", ".json", ".py", ".rs", ".sh", ".toml", ".yml"}
# The beginnings of licence texts that crates without a licence file get from another crate.
STANDARD = {
    "Apache-2.0": "Apache License Version 2.0, January 2004",
    "MIT": "Permission is hereby granted, free of charge, to any person obtaining a copy",
}
# Parts of the standard library that programs for Linux do not have.
OTHER_SYSTEMS = re.compile(r"cc$|dlmalloc|fortanix|hermit|moto-rt|r-efi|vex|wasi|windows|wit-bindgen")
HEAD = """\
Licences of the software in {programs}

The crates below, besides Millpond's own, are linked into {programs}. This file has their licences, and
the texts and notices that their authors ask for. If OR joins the licences of a crate, each of them is enough. Each text
names its crates. Texts that differ only in white space are printed once. "std/NAME" is a part of Rust's standard library.
`millpond demo` contains images of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, a data set of
the UCI Machine Learning Repository.
"""


class LicenceError(Exception):
    """A licence text that cannot be found. The text says what to do."""


class LinkedCrate(NamedTuple):
    """A crate and its licence texts."""

    name: str
    version: str
    licence: str
    texts: tuple[str, ...]
    repository: str = ""
    authors: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"


def cargo(*arguments: str) -> str:
    return subprocess.check_output(["cargo", "--color", "never", *arguments], cwd=REPOSITORY, text=True)


def linked_packages(packages: list[str], target: str) -> list[dict]:
    """Lists the crates that programs are linked from, as Cargo describes them, with the features of a default build.

    The metadata of Cargo alone has the features of the whole workspace, and with them crates of its tests and benchmarks.
    """
    selected = [word for package in packages for word in ("--package", package)]
    tree = cargo("tree", "--locked", "--edges", "normal", "--target", target, "--prefix", "none", "--format", "{p}", *selected)
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    return [package for package in metadata["packages"] if (package["name"], f"v{package['version']}") in linked]


def linked_crates(packages: list[str], target: str) -> list[LinkedCrate]:
    """Lists the crates of others that programs are linked from."""
    crates = []
    for package in linked_packages(packages, target):
        # A package without a source is of this repository, whose licence is LICENSE.
        if package["source"] is None:
            continue
        folder = pathlib.Path(package["manifest_path"]).parent
        texts = tuple(read_text(file.read_bytes()) for file in legal_files(folder, package["license_file"]))
        # Old manifests write "MIT/Apache-2.0" for "MIT OR Apache-2.0".
        licence = (package["license"] or "see its text").replace(" / ", "/").replace("/", " OR ")
        authors = tuple(package["authors"])
        source = package["repository"] or ""
        crates.append(LinkedCrate(package["name"], package["version"], licence, texts, source, authors))
    return crates


def legal_files(folder: pathlib.Path, named: str | None) -> list[pathlib.Path]:
    """Lists the licences and notices in the source of a crate, also those of C code and of copied code."""
    found = {folder / named} if named else set()
    for file in folder.rglob("*"):
        parts = [part.lower() for part in file.relative_to(folder).parts]
        inside = any(part in ("licenses", "licences") for part in parts[:-1])
        if (inside or LEGAL.match(file.name)) and UNLINKED.isdisjoint(parts[:-1]) and file.is_file():
            if file.suffix not in SOURCE_SUFFIXES:
                found.add(file)
    return sorted(found)


def read_text(data: bytes) -> str:
    """Decodes a text. The result has no white space at the ends of lines and no empty lines around it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def standard_library() -> list[LinkedCrate]:
    """Lists the parts of Rust's standard library from the copyright notices of the toolchain."""
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], cwd=REPOSITORY, text=True).strip()
    documents = pathlib.Path(sysroot) / "share/doc/rust"
    page = documents / "COPYRIGHT-library.html"
    if not page.is_file():
        raise LicenceError(f"{page} does not exist: install the toolchain of rust-toolchain.toml with rustup")
    version = subprocess.check_output(["rustc", "--version"], cwd=REPOSITORY, text=True).split()[1]
    own = [documents / f"licenses/{name}.txt" for name in ("Apache-2.0", "MIT", "Unicode-3.0")]
    return library_crates(page.read_text("utf-8"), version, tuple(read_text(file.read_bytes()) for file in own))


def library_crates(page: str, version: str, own: tuple[str, ...]) -> list[LinkedCrate]:
    """Reads the notices of the standard library. `own` has the licences of its own files."""
    own_files, _, others = page[page.index('<h2 id="in-tree-files">') :].partition('<h2 id="out-of-tree-dependencies">')
    # The notices are "File/Directory", "License" and "Copyright", a paragraph each.
    lines = [" ".join(line.split()) for line in plain(own_files).splitlines()]
    notices = "\n".join(line for line in lines if line)
    crates = [LinkedCrate("Rust's standard library", version, "MIT OR Apache-2.0", (notices, *own))]
    for section in re.split(r"<h3>\W*", others)[1:]:
        name, crate_version = re.match(r"(.+?)-(\d.*?)</h3>", section).groups()
        if OTHER_SYSTEMS.match(name):
            continue
        licence = re.search(r"<b>License:</b>(.*?)</p>", section)[1].strip().replace("/", " OR ")
        texts = tuple(read_text(plain(text).encode()) for text in re.findall(r"<pre>(.*?)</pre>", section, re.DOTALL))
        crates.append(LinkedCrate(f"std/{name}", crate_version, licence, texts))
    return crates


def plain(page: str) -> str:
    """Returns the text of a piece of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def standard_texts(crates: list[LinkedCrate], folder: pathlib.Path) -> dict[str, str]:
    """Returns licence texts that fit every crate, by their SPDX identifier."""
    found = {file.stem: read_text(file.read_bytes()) for file in sorted(folder.glob("*.txt"))}
    for crate in sorted(crates):
        for text in crate.texts:
            for name, start in STANDARD.items():
                # A text that names a copyright holder begins later.
                words = re.search(r"\s+".join(map(re.escape, start.split())), text)
                if words and name not in found:
                    found[name] = text[words.start() :]
    return found


def complete(crates: list[LinkedCrate], folder: pathlib.Path) -> list[LinkedCrate]:
    """Gives crates without a licence file the text of one of their licences; sorts all.

    Raises LicenceError if a text, or the source of a crate under MPL-2.0, is not known.
    """
    known = standard_texts(crates, folder)
    finished = []
    for crate in sorted(crates):
        names = [word for word in re.findall(r"[\w.+-]+", crate.licence) if word not in ("AND", "OR", "WITH")]
        fitting = [name for name in names if name in known]
        if "MPL-2.0" in names and not crate.repository:
            raise LicenceError(f"{crate.label} is under MPL-2.0 and its manifest has no repository: replace the crate")
        if not crate.texts:
            if not fitting or (" AND " in crate.licence and len(fitting) < len(names)):
                raise LicenceError(f"{crate.label} has no licence file, and the text of {crate.licence} is not known: put the "
                                   f"standard text into packaging/licences/SPDX-ID.txt")  # fmt: skip
            chosen = fitting if " AND " in crate.licence else fitting[:1]
            crate = crate._replace(texts=tuple(standard_text(name, known[name], crate) for name in chosen))
        finished.append(crate)
    return finished


def standard_text(name: str, text: str, crate: LinkedCrate) -> str:
    """Returns the text of a licence for a crate that has none. The MIT licence names the copyright holders."""
    holders = ", ".join(crate.authors) or f"the authors of {crate.name}"
    return f"Copyright (c) {holders}\n\n{text}" if name == "MIT" else text


def group(crates: list[LinkedCrate]) -> list[tuple[str, list[LinkedCrate]]]:
    """Returns each text once, with its crates. White space makes no difference; similar texts are neighbours."""
    groups: dict[str, tuple[str, list[LinkedCrate]]] = {}
    for crate in crates:
        for text in crate.texts:
            members = groups.setdefault(" ".join(text.split()), (text, []))[1]
            if crate not in members:
                members.append(crate)
    return [groups[key] for key in sorted(groups, key=lambda key: (without_holders(groups[key][0]), key))]


def without_holders(text: str) -> str:
    """Returns a text without its title and the lines of copyright holders. The wheel is smaller if like texts are together."""
    start = re.search(r"Permission is hereby|Permission to use|Redistribution and use", text)
    return " ".join(text[start.start() if start else 0 :].split())


def render(programs: list[str], crates: list[LinkedCrate]) -> str:
    """Returns the file."""
    lines = [HEAD.format(programs=" and ".join(programs))]
    for crate in crates:
        source = f"; source: {crate.repository}" if "MPL-2.0" in crate.licence and crate.repository else ""
        lines.append(f"{crate.label}: {crate.licence}{source}")
    for text, members in group(crates):
        # A version stays on the line of its name.
        labels = ", ".join(crate.label.replace(" ", "\0") for crate in members)
        names = textwrap.fill(labels, WIDTH, break_on_hyphens=False, break_long_words=False).replace("\0", " ")
        lines += ["", "=" * WIDTH, names, "-" * WIDTH, text]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, required=True, help="file to write")
    parser.add_argument("--package", action="append", help="package of a program [default: millpond-cli]")
    parser.add_argument("--target", default=f"{os.uname().machine}-unknown-linux-gnu", help="target of the program")
    options = parser.parse_args()
    packages = options.package or ["millpond-cli"]
    try:
        crates = complete(linked_crates(packages, options.target) + standard_library(), HERE)
    except LicenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    programs = [package.replace("millpond-cli", "millpond") for package in packages]
    # In one step: a reader never sees half of the file.
    partial = options.to.with_name(f"{options.to.name}.{os.getpid()}.tmp")
    partial.write_text(render(programs, crates), "utf-8")
    partial.replace(options.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
