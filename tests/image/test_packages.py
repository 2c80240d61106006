"""Parts of the image: Debian packages of pinned versions in a cache, files of the engines."""

import hashlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging/image"))

import build  # noqa: E402
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


def test_engines_bring_their_licences(tmp_path):
    site = tmp_path / "lib/python3.11/site-packages"
    torch = "torch-2.0.dist-info"
    libraries = ["tensorflow/libtensorflow_cc.so.2", "tensorflow/libtensorflow_framework.so.2", "torch/lib/libtorch_cpu.so",
                 "torch/lib/libc10.so", "torch/lib/libgomp.so.1", "nvidia/cu13/lib/libcudart.so.13",
                 "nvidia/cu13/lib/libcupti.so.13"]  # fmt: skip
    packages = ["tensorflow_cpu-2.0", "torch-2.0", "nvidia_cuda_runtime-13.0", "nvidia_cuda_cupti-13.0"]
    licences = ["tensorflow/THIRD_PARTY_NOTICES.txt", f"{torch}/licenses/LICENSE", f"{torch}/licenses/third_party/a/LICENSE.txt",
                *(f"{package}.dist-info/licenses/License.txt" for package in packages[2:])]  # fmt: skip
    metadata = [f"{package}.dist-info/METADATA" for package in packages]
    for name in ["../../../millpond/shim.so", *libraries, *metadata, *licences]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    found = [file for engine in ("torch", "tensorflow") for file in build.engine_files(tmp_path, engine)]
    assert {site / name for name in licences} <= set(found)
