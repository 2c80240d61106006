"""Downloads Debian packages at pinned versions and reads their files. No package is installed."""

import hashlib
import io
import pathlib
import re
import subprocess
import tarfile

from oci import Layer

# Files of the image. The rest (manual pages, locales, character sets, programs) is not needed to run Millpond.
KEPT = re.compile(
    r"usr/lib/[^/]+/[^/]+\.so(\.[^/]*)?|usr/lib64/[^/]+|usr/share/doc/[^/]+/copyright|usr/share/doc/[^/]+"
    r"|usr/share/common-licenses/[^/]+|usr/lib/os-release|etc/os-release|etc/debian_version"
)
CERTIFICATE = re.compile(r"usr/share/ca-certificates/mozilla/[^/]+\.crt")


class PackageError(Exception):
    """A package that cannot be downloaded, or is not the pinned one."""


def read_lock(lock: pathlib.Path) -> list[tuple[str, str, str]]:
    """Reads name, version and SHA-256 sum of each package."""
    lines = [line.split() for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    return [(name, version, digest) for name, version, digest in lines]


def fetch(lock: pathlib.Path, folder: pathlib.Path, any_version: bool) -> list[pathlib.Path]:
    """Returns the files of the packages in `lock`, from `folder` or downloaded.

    A mirror drops a version when a newer one appears. If `any_version` is true, the newer one is taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, version, digest in read_lock(lock):
        cached = folder / digest
        if not is_pinned(cached, digest):
            try:
                data = download(name, version, folder)
                if hashlib.sha256(data).hexdigest() != digest:
                    raise PackageError(f"{name} {version} has another SHA-256 sum than in {lock}")
                # In one step: the file of an interrupted write would have the name of a whole one.
                partial = folder / f"{digest}.partial"
                partial.write_bytes(data)
                partial.replace(cached)
            except PackageError as error:
                if not any_version:
                    raise PackageError(f"{error}; `make image-lock` pins the versions of today") from error
                print(f"{error}: taking the version of today")
                cached = folder / f"{name}.deb"
                cached.write_bytes(download(name, None, folder))
        found.append(cached)
    return found


def is_pinned(package: pathlib.Path, digest: str) -> bool:
    """Returns true if a file exists and has this SHA-256 sum."""
    return package.exists() and hashlib.sha256(package.read_bytes()).hexdigest() == digest


def download(name: str, version: str | None, folder: pathlib.Path) -> bytes:
    """Downloads a package with apt, which checks its signature."""
    wanted = f"{name}={version}" if version else name
    command = ["apt-get", "--quiet", "--quiet", "download", wanted]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    files = sorted(folder.glob(f"{name}_*.deb"))
    if result.returncode != 0 or not files:
        raise PackageError(f"apt-get cannot download {wanted} (is `apt-get update` needed?): {result.stderr.strip()}")
    data = files[-1].read_bytes()
    for file in files:
        file.unlink()
    return data


def field(package: pathlib.Path, name: str) -> str:
    return subprocess.check_output(["dpkg-deb", "--field", package, name], text=True).strip()


def unpack(package: pathlib.Path, layer: Layer) -> bytes:
    """Adds the files of a package that the image needs to `layer`. Returns the certificates in it, in PEM."""
    name = field(package, "Package")
    # Scanners for vulnerabilities read the packages of an image without dpkg's database from this folder.
    control = subprocess.check_output(["dpkg-deb", "--field", package])
    layer.file(f"var/lib/dpkg/status.d/{name}", control)
    data = subprocess.check_output(["dpkg-deb", "--fsys-tarfile", package])
    certificates = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = re.sub(r"^(lib|lib64)/", r"usr/\1/", member.name.removeprefix("./"))
            if member.isfile() and CERTIFICATE.fullmatch(path):
                certificates[path] = archive.extractfile(member).read()
            elif not KEPT.fullmatch(path):
                continue
            elif member.issym():
                layer.link(path, member.linkname)
            elif member.isfile():
                layer.file(path, archive.extractfile(member).read(), member.mode & 0o755)
    return b"".join(data for _, data in sorted(certificates.items()))


def update_lists() -> None:
    """Updates apt's lists of packages, since old lists name old versions. Prints a warning if that fails."""
    command = ["apt-get", "--quiet", "--quiet", "--option", "APT::Update::Error-Mode=any", "update"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        print("warning: the lists of packages were not updated, so the versions may be old; run `apt-get update` as root: "
              + result.stderr.strip())  # fmt: skip


def write_lock(lock: pathlib.Path, folder: pathlib.Path) -> None:
    """Pins today's versions of the packages in `lock`."""
    folder.mkdir(parents=True, exist_ok=True)
    update_lists()
    head = [line for line in lock.read_text().splitlines() if line.startswith("#")]
    lines = []
    for name, *_ in [line.split() for line in lock.read_text().splitlines() if line and line[0] != "#"]:
        data = download(name, None, folder)
        digest = hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        lines.append(f"{name} {field(folder / digest, 'Version')} {digest}")
    lock.write_text("\n".join([*head, *lines]) + "\n")
