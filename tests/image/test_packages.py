"""The Debian packages of the image: pinned versions in a cache."""

import hashlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging/image"))

import debian  # noqa: E402


def test_a_damaged_package_in_the_cache_is_downloaded_again(tmp_path, monkeypatch):
    data = b"a whole package"
    digest = hashlib.sha256(data).hexdigest()
    lock, cache = tmp_path / "lock.txt", tmp_path / "cache"
    lock.write_text(f"# name, version, sum\ntool 1.0 {digest}\n")
    cache.mkdir()
    # A build that ended while it wrote the package.
    (cache / digest).write_bytes(data[:5])
    downloads = []

    def download(name, version, folder):
        downloads.append((name, version))
        return data

    monkeypatch.setattr(debian, "download", download)
    for _ in range(2):
        assert debian.fetch(lock, cache, any_version=False) == [cache / digest]
        assert (cache / digest).read_bytes() == data
    assert downloads == [("tool", "1.0")]
    assert [file.name for file in cache.iterdir()] == [digest]
