"""Writes OCI images: layers with sorted entries, one time stamp and no names of users, so that equal content has equal
digests.

Format: the OCI Image Format Specification 1.1.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import shutil
import tarfile

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
# Level 9 makes layers 1 % smaller and takes three times as long.
GZIP_LEVEL = 6


@dataclasses.dataclass
class Entry:
    """A file, directory or symbolic link of a layer."""

    kind: bytes
    mode: int
    owner: int = 0
    content: bytes | pathlib.Path = b""
    target: str = ""


class Layer:
    """Entries by path, without a slash in front. Missing parent directories are added."""

    def __init__(self, comment: str):
        self.comment = comment
        self.entries: dict[str, Entry] = {}

    def add(self, path: str, entry: Entry) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self.entries:
            self.directory(parent)
        self.entries[path] = entry

    def file(self, path: str, content: bytes | pathlib.Path, mode: int = 0o644) -> None:
        self.add(path, Entry(tarfile.REGTYPE, mode, content=content))

    def link(self, path: str, target: str) -> None:
        self.add(path, Entry(tarfile.SYMTYPE, 0o777, target=target))

    def directory(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        self.add(path, Entry(tarfile.DIRTYPE, mode, owner=owner))

    def write_tar(self, output, epoch: int) -> None:
        """Writes an uncompressed archive. `epoch` is the time of every entry, in seconds since 1970."""
        with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path, entry in sorted(self.entries.items()):
                info = tarfile.TarInfo(path)
                info.type, info.mode, info.mtime, info.linkname = entry.kind, entry.mode, epoch, entry.target
                info.uid = info.gid = entry.owner
                if isinstance(entry.content, pathlib.Path):
                    with entry.content.open("rb") as source:
                        info.size = entry.content.stat().st_size
                        archive.addfile(info, source)
                else:
                    info.size = len(entry.content)
                    archive.addfile(info, io.BytesIO(entry.content))


class _Hashing:
    """A binary output that computes the SHA-256 digest of the bytes that pass."""

    def __init__(self, output):
        self.output = output
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.output.write(data)

    def flush(self) -> None:
        self.output.flush()


class Image:
    """An image layout in a directory, which is replaced."""

    def __init__(self, directory: pathlib.Path, epoch: int):
        self.directory = directory
        self.epoch = epoch
        self.blobs = directory / "blobs/sha256"
        shutil.rmtree(directory, ignore_errors=True)
        self.blobs.mkdir(parents=True)
        self.layers: list[dict] = []
        self.diff_ids: list[str] = []
        self.history: list[dict] = []

    def add_layer(self, layer: Layer, created: str) -> int:
        """Writes a layer. Returns its compressed size in bytes."""
        scratch = self.blobs / "layer"
        with scratch.open("wb") as file:
            compressed = _Hashing(file)
            with gzip.GzipFile("", "wb", GZIP_LEVEL, compressed, mtime=0) as packer:
                plain = _Hashing(packer)
                layer.write_tar(plain, self.epoch)
        digest = compressed.digest.hexdigest()
        scratch.rename(self.blobs / digest)
        self.layers.append({"mediaType": LAYER_TYPE, "digest": f"sha256:{digest}", "size": compressed.size})
        self.diff_ids.append(f"sha256:{plain.digest.hexdigest()}")
        self.history.append({"created": created, "created_by": layer.comment})
        return compressed.size

    def finish(self, config: dict, tag: str) -> str:
        """Writes configuration, manifest and index. Returns the manifest's digest."""
        config["rootfs"] = {"type": "layers", "diff_ids": self.diff_ids}
        config["history"] = self.history
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self._json(config, CONFIG_TYPE),
            "layers": self.layers,
        }
        named = self._json(manifest, MANIFEST_TYPE)
        named["platform"] = {"architecture": config["architecture"], "os": config["os"]}
        named["annotations"] = {"org.opencontainers.image.ref.name": tag}
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [named]}
        (self.directory / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True))
        (self.directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        # `docker load` before Docker 25 reads this file instead of the index.
        blobs = [f"blobs/sha256/{layer['digest'].removeprefix('sha256:')}" for layer in self.layers]
        image_config = f"blobs/sha256/{manifest['config']['digest'].removeprefix('sha256:')}"
        archive = [{"Config": image_config, "RepoTags": [f"millpond:{tag}"], "Layers": blobs}]
        (self.directory / "manifest.json").write_text(json.dumps(archive))
        return named["digest"]

    def _json(self, document: dict, media_type: str) -> dict:
        data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def pack(directory: pathlib.Path, archive: pathlib.Path, epoch: int) -> None:
    """Writes an image layout as one file, which `docker load`, `podman load` and `skopeo` read."""
    layer = Layer("")
    for path in directory.rglob("*"):
        if path.is_file():
            layer.file(str(path.relative_to(directory)), path)
    with archive.open("wb") as output:
        layer.write_tar(output, epoch)
