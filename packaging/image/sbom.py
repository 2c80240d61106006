"""Lists the components of the image as CycloneDX 1.5: Debian packages, Python wheels and Rust crates."""

import email
import json
import pathlib
import sys
import urllib.parse
import uuid

import debian

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "licences"))

import collect  # noqa: E402

NAMESPACE = uuid.UUID("6f2c3f0e-52a5-5a4c-8f0b-6d1f3f9a4b11")


def crates(target: str) -> list[dict]:
    """Lists the crates that the program is linked from. Crates that only build or test it are left out."""
    components = []
    packages = collect.linked_packages(["millpond-cli"], target)
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        purl = f"pkg:cargo/{package['name']}@{package['version']}"
        # Old manifests write "MIT/Apache-2.0" for "MIT OR Apache-2.0".
        licence = (package["license"] or "").replace("/", " OR ")
        components.append(component(package["name"], package["version"], purl, licence))
    return components


def debian_packages(files: list[pathlib.Path], distribution: str) -> list[dict]:
    components = []
    for file in files:
        name, version, architecture = (debian.field(file, key) for key in ("Package", "Version", "Architecture"))
        purl = f"pkg:deb/{distribution}/{quote(name)}@{quote(version)}?arch={architecture}"
        components.append(component(name, version, purl, ""))
    return components


def wheels(dist_infos: list[pathlib.Path]) -> list[dict]:
    components = []
    for info in dist_infos:
        metadata = email.message_from_string((info / "METADATA").read_text())
        name, version = metadata["Name"], metadata["Version"]
        licence = metadata["License-Expression"] or ""
        components.append(component(name, version, f"pkg:pypi/{name.lower()}@{version}", licence))
    return components


def component(name: str, version: str, purl: str, licence: str) -> dict:
    entry = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        entry["licenses"] = [{"expression": licence}]
    return entry


def document(version: str, created: str, components: list[dict]) -> bytes:
    """Returns the list as JSON. Equal components give equal bytes."""
    program = {"type": "container", "bom-ref": "millpond", "name": "millpond", "version": version}
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": created, "component": program},
        "components": components,
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(body, sort_keys=True))
    return json.dumps({**body, "serialNumber": f"urn:uuid:{serial}"}, indent=1, sort_keys=True).encode()


def quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")
