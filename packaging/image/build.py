"""Builds the OCI image of Millpond without a container engine.

The image holds the program, the engines' libraries and what they need of Debian. It has no shell. Everything of
Millpond is under /opt/millpond, which looks like a virtual environment: the program finds its libraries there.
"""

import argparse
import datetime
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import debian
import sbom
from oci import Image, Layer, pack

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
# The number that "distroless" images use; it belongs to no user of a usual host.
USER = 65532
PREFIX = "opt/millpond"
PROGRAM = f"{PREFIX}/bin/millpond"
# In the folder that has the licences of Debian's packages.
LICENCES = "usr/share/doc/millpond/THIRD-PARTY-LICENSES.txt"
ARCHITECTURES = {62: "amd64"}
ENVIRONMENT = [
    f"PATH=/{PREFIX}/bin:/usr/bin",
    "HOME=/var/lib/millpond",
    "XDG_DATA_HOME=/var/lib/millpond",
    "MILLPOND_CACHE_DIR=/var/cache/millpond",
]
PACKAGES = "lib/python3*/site-packages"
# Files of each engine in the Python environment: those that the program opens and those that these need to load.
ENGINES = {
    "onnxruntime": [
        f"{PACKAGES}/onnxruntime/capi/libonnxruntime.so.*",
        f"{PACKAGES}/onnxruntime/LICENSE",
        f"{PACKAGES}/onnxruntime/ThirdPartyNotices.txt",
        f"{PACKAGES}/onnxruntime-*.dist-info/METADATA",
    ],
    "torch": [
        "millpond/*.so",
        f"{PACKAGES}/torch/lib/lib{{torch_cpu,c10}}.so",
        f"{PACKAGES}/torch/lib/libgomp.so.1",
        f"{PACKAGES}/nvidia/cu13/lib/lib{{cudart,cupti}}.so.13",
        f"{PACKAGES}/torch-*.dist-info/METADATA",
        f"{PACKAGES}/torch-*.dist-info/licenses/{{LICENSE,NOTICE}}",
        f"{PACKAGES}/torch-*.dist-info/licenses/third_party/**/LICENSE*",
        f"{PACKAGES}/nvidia_cuda_{{runtime,cupti}}-*.dist-info/METADATA",
        f"{PACKAGES}/nvidia_cuda_{{runtime,cupti}}-*.dist-info/licenses/License.txt",
    ],
    "tensorflow": [
        f"{PACKAGES}/tensorflow/libtensorflow_{{cc,framework}}.so.2",
        f"{PACKAGES}/tensorflow_cpu-*.dist-info/METADATA",
        f"{PACKAGES}/tensorflow_cpu-*.dist-info/LICENSE",
        f"{PACKAGES}/tensorflow/THIRD_PARTY_NOTICES.txt",
    ],
}
OPTIONAL = re.compile(r"LICENSE|License|NOTICE|ThirdPartyNotices")


class BuildError(Exception):
    """A missing input. The text says how to make it."""


def engine_files(environment: pathlib.Path, engine: str) -> list[pathlib.Path]:
    """Lists the files of an engine in a Python environment."""
    found = []
    for pattern in ENGINES[engine]:
        alternatives = re.search(r"\{(.*)\}", pattern)
        names = alternatives[1].split(",") if alternatives else [""]
        for name in names:
            glob = pattern.replace(alternatives[0], name) if alternatives else pattern
            files = [path for path in sorted(environment.glob(glob)) if path.is_file()]
            if not files and not OPTIONAL.search(glob):
                remedy = "make .venv/ready" if engine == "onnxruntime" else f"make {engine}"
                raise BuildError(f"{environment}/{glob} does not exist: run `{remedy}`")
            found += files
    return found


def base_layer(packages: list[pathlib.Path]) -> Layer:
    """Makes the layer of Debian's files, users and directories to mount over."""
    layer = Layer("Debian packages: " + " ".join(debian.field(package, "Package") for package in packages))
    for name in ("lib", "lib64", "bin"):
        layer.directory(f"usr/{name}")
        layer.link(name, f"usr/{name}")
    certificates = b"".join(debian.unpack(package, layer) for package in packages)
    layer.file("etc/ssl/certs/ca-certificates.crt", certificates)
    layer.file("etc/passwd", f"root:x:0:0:root:/:/none\nmillpond:x:{USER}:{USER}::/var/lib/millpond:/none\n".encode())
    layer.file("etc/group", f"root:x:0:\nmillpond:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"hosts: files dns\n")
    for path in ("dev", "models", "proc", "sys"):
        layer.directory(path)
    # A memory file system that an engine mounts here gets this mode but not the owner. OpenShift picks its own user.
    for path in ("tmp", "var/lib/millpond", "var/cache/millpond"):
        layer.directory(path, 0o1777)
    return layer


def engine_layer(environment: pathlib.Path, engine: str) -> Layer:
    layer = Layer(f"engine: {engine}")
    for file in engine_files(environment, engine):
        layer.file(f"{PREFIX}/{file.relative_to(environment)}", file)
    return layer


def program_layer(program: pathlib.Path, bill: bytes, licences: pathlib.Path) -> Layer:
    layer = Layer("program: millpond")
    layer.file(PROGRAM, program, 0o755)
    layer.file(f"{PREFIX}/share/doc/LICENSE", REPOSITORY / "LICENSE")
    layer.file(f"{PREFIX}/share/doc/sbom.cdx.json", bill)
    layer.file(LICENCES, licences)
    return layer


def collect_licences(to: pathlib.Path, target: str) -> None:
    """Writes the licences of the crates that the program is linked from."""
    collect = [sys.executable, REPOSITORY / "packaging/licences/collect.py", "--target", target, "--to", to]
    if subprocess.run(collect).returncode != 0:
        raise BuildError("the licences of the crates were not collected, see above")


def architecture(program: pathlib.Path) -> str:
    """Reads the machine that a program is for from its ELF header."""
    if not program.is_file():
        raise BuildError(f"{program} does not exist: run `make dist-programs`")
    with program.open("rb") as file:
        header = file.read(20)
    machine = struct.unpack_from("<H", header, 18)[0] if header[:4] == b"\x7fELF" else None
    if machine not in ARCHITECTURES:
        raise BuildError(f"{program} is not a program for {' or '.join(ARCHITECTURES.values())}")
    return ARCHITECTURES[machine]


def image_config(version: str, created: str, platform: str) -> dict:
    revision = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, text=True).strip()
    labels = {
        "title": "Millpond",
        "description": "Server for machine-learning models and image search over HTTP and gRPC",
        "version": version,
        "revision": revision,
        "created": created,
        "licenses": "Apache-2.0",
    }
    return {
        "created": created,
        "architecture": platform,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ENVIRONMENT,
            "Entrypoint": [f"/{PROGRAM}"],
            "Cmd": ["serve", "/models", "--host", "::"],
            "ExposedPorts": {"8500/tcp": {}, "8501/tcp": {}},
            "Volumes": {"/var/cache/millpond": {}, "/var/lib/millpond": {}},
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": {f"org.opencontainers.image.{name}": value for name, value in labels.items()},
        },
    }


def source_date() -> int:
    """Returns SOURCE_DATE_EPOCH, or the time of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=REPOSITORY, text=True))


def distribution(layer: Layer) -> str:
    text = layer.entries["usr/lib/os-release"].content.decode()
    return re.search(r"^ID=(.*)$", text, re.MULTILINE)[1]


def build(options: argparse.Namespace) -> str:
    """Builds the image. Returns its digest."""
    version = re.search(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
    platform = architecture(options.program)
    epoch = source_date()
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    packages = debian.fetch(HERE / f"debian-{platform}.txt", options.cache, options.any_version)
    base = base_layer(packages)
    layers = [base] + [engine_layer(options.environment, engine) for engine in options.engines]
    infos = sorted({file.parent for engine in options.engines for file in engine_files(options.environment, engine)
                    if file.name == "METADATA"})  # fmt: skip
    target = f"{os.uname().machine}-unknown-linux-gnu"
    components = sbom.debian_packages(packages, distribution(base)) + sbom.wheels(infos)
    bill = sbom.document(version, created, components + sbom.crates(target))

    image = Image(options.to, epoch)
    with tempfile.TemporaryDirectory() as scratch:
        program = pathlib.Path(scratch) / "millpond"
        subprocess.run(["strip", "--strip-unneeded", "-o", program, options.program], check=True)
        licences = pathlib.Path(scratch) / "licences.txt"
        collect_licences(licences, target)
        total = 0
        for layer in [*layers, program_layer(program, bill, licences)]:
            size = image.add_layer(layer, created)
            total += size
            print(f"{size / 1e6:7.1f} MB  {layer.comment}")
    digest = image.finish(image_config(version, created, platform), options.tag or version)
    options.to.with_name(f"{options.to.name}.cdx.json").write_bytes(bill)
    if options.archive:
        pack(options.to, options.archive, epoch)
    print(f"{total / 1e6:7.1f} MB  {options.to}, {digest}")
    if options.max_mb and total > options.max_mb * 1e6:
        raise BuildError(f"the image has {total / 1e6:.1f} MB compressed, more than {options.max_mb}")
    return digest


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=pathlib.Path, help="the program; its debug sections are left out")
    parser.add_argument("--environment", type=pathlib.Path, help="Python environment that has the engines")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["onnxruntime"])
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="folder of downloaded Debian packages")
    parser.add_argument("--to", type=pathlib.Path, help="image layout to write; TO.cdx.json lists its components")
    parser.add_argument("--archive", type=pathlib.Path, help="also write the layout as one file, for `docker load`")
    parser.add_argument("--tag", help="tag of the image [default: the version]")
    parser.add_argument("--max-mb", type=int, help="maximum compressed size in MB")
    parser.add_argument("--any-version", action="store_true", help="if a mirror has no pinned package, take its newest")
    parser.add_argument("--lock", action="store_true", help="only pin the versions of today, in debian-amd64.txt")
    return parser


def main() -> int:
    options = arguments().parse_args()
    options.cache = options.cache.resolve()
    try:
        if options.lock:
            for lock in HERE.glob("debian-*.txt"):
                debian.write_lock(lock, options.cache)
        else:
            build(options)
    except (BuildError, debian.PackageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
