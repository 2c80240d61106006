"""The OCI image: built from the program under test, unpacked by umoci, run by runc."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from container import Container  # noqa: E402
from millpond import BINARY, REPOSITORY, publish  # noqa: E402
from models import half_plus_two  # noqa: E402

TAG = "test"
USER = "65532"
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1.0, 2.0, 5.0]}]})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="runc maps the image's user only if root runs the test")


def build(to: pathlib.Path) -> str:
    """Builds the image. Returns its digest."""
    command = [
        sys.executable, REPOSITORY / "packaging/image/build.py", "--program", BINARY, "--environment", REPOSITORY / ".venv",
        "--cache", REPOSITORY / ".cache/image/debian", "--to", to, "--tag", TAG, "--any-version",
    ]  # fmt: skip
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    print(text)
    return re.search(r"sha256:\w+", text)[0]


@pytest.fixture(scope="session")
def layout(tmp_path_factory) -> pathlib.Path:
    """Returns an image layout. Its path with `.digest` appended holds the digest that the build printed."""
    to = tmp_path_factory.mktemp("image") / "first"
    to.with_suffix(".digest").write_text(build(to))
    return to


@pytest.fixture(scope="session")
def config(layout) -> dict:
    return blob(layout, manifest(layout)["config"]["digest"])


@pytest.fixture
def models(tmp_path) -> pathlib.Path:
    # A published version is loaded at the first scan, another one at the second.
    publish(half_plus_two(tmp_path / "model.onnx"), tmp_path / "models/half", 1)
    return tmp_path / "models"


def blob(layout: pathlib.Path, digest: str) -> dict:
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())


def manifest(layout: pathlib.Path) -> dict:
    index = json.loads((layout / "index.json").read_text())
    return blob(layout, index["manifests"][0]["digest"])


def components(layout: pathlib.Path) -> list[str]:
    bill = json.loads(layout.with_name(f"{layout.name}.cdx.json").read_text())
    return [entry["purl"] for entry in bill["components"]]


def test_equal_inputs_have_equal_digests(layout, tmp_path):
    assert build(tmp_path / "second") == layout.with_suffix(".digest").read_text()


def test_image_without_root_and_with_labels(config):
    assert config["config"]["User"] == f"{USER}:{USER}"
    assert config["config"]["Cmd"] == ["serve", "/models", "--host", "::"]
    assert set(config["config"]["ExposedPorts"]) == {"8500/tcp", "8501/tcp"}
    labels = config["config"]["Labels"]
    assert labels["org.opencontainers.image.created"] == "2023-11-14T22:13:20Z"
    version = subprocess.check_output([BINARY, "--version"], text=True).splitlines()[0]
    assert version == f"millpond {labels['org.opencontainers.image.version']}"


def test_compressed_size_fits_the_limit(layout):
    total = sum(layer["size"] for layer in manifest(layout)["layers"])
    assert total <= 120e6, f"{total / 1e6:.1f} MB"


def test_components_name_packages_wheels_and_crates(layout):
    listed = components(layout)
    for wanted in ("pkg:deb/debian/libc6@", "pkg:pypi/onnxruntime@", "pkg:cargo/axum@", "pkg:cargo/millpond-server@"):
        wanted = wanted.replace("debian", distribution())
        assert any(purl.startswith(wanted) for purl in listed), wanted
    # Crates of benchmarks and of tests.
    for unlinked in ("pkg:cargo/divan@", "pkg:cargo/rcgen@"):
        assert not any(purl.startswith(unlinked) for purl in listed), unlinked
    assert len(listed) == len(set(listed))


def test_image_has_the_licences_of_its_crates_and_engine(layout):
    _, engine, program = [layout / "blobs" / layer["digest"].replace(":", "/") for layer in manifest(layout)["layers"]]
    with tarfile.open(program) as archive:
        text = archive.extractfile("usr/share/doc/millpond/THIRD-PARTY-LICENSES.txt").read().decode()
    for crate in ("tokio", "ring", "symphonia-core", "tikv-jemalloc-sys"):
        assert re.search(rf"^{crate} \d", text, re.MULTILINE), crate
    with tarfile.open(engine) as archive:
        names = {pathlib.PurePath(name).name for name in archive.getnames() if "/onnxruntime/" in name}
    assert {"LICENSE", "ThirdPartyNotices.txt"} <= names


def distribution() -> str:
    return re.search(r"^ID=(.*)$", pathlib.Path("/etc/os-release").read_text(), re.MULTILINE)[1]


@pytest.fixture
def container(layout, tmp_path):
    """Starts containers for one test: `container(mounts, environment)`."""
    started = []

    def start(mounts: dict[str, pathlib.Path], environment: dict[str, str] | None = None) -> Container:
        started.append(Container(layout, TAG, tmp_path, mounts, environment))
        return started[-1]

    yield start
    for one in started:
        one.stop()
        shutil.rmtree(one.bundle)


@needs_root
def test_container_answers_and_ends_with_0(container, layout, models):
    running = container({"/models": models})
    running.wait("/v2/health/ready")
    answer = running.curl("/v2/models/half/infer", "--data", BODY)
    assert json.loads(answer.stdout)["outputs"][0]["data"] == [2.5, 3.0, 4.5], answer
    status = pathlib.Path(f"/proc/{running.pid()}/status").read_text()
    assert re.search(rf"^Uid:\t{USER}\t{USER}", status, re.MULTILINE), status
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE), status
    assert "half" in running.execute("millpond", "models", "ls").stdout
    inside = running.root / "opt/millpond/share/doc/sbom.cdx.json"
    assert inside.read_bytes() == layout.with_name(f"{layout.name}.cdx.json").read_bytes()
    assert running.execute("sh", "-c", "true").returncode != 0, "the image has a shell"
    assert running.stop() == 0, running.log_text()


# Without SIGHUP the server would read the file after an hour.
@needs_root
def test_sighup_adds_a_model(container, models, tmp_path):
    settings = tmp_path / "settings"
    settings.mkdir()
    file = settings / "millpond.toml"
    file.write_text('[lifecycle]\npoll = "1h"\n')
    extra = tmp_path / "extra/second"
    shutil.copytree(models / "half", extra)
    mounts = {"/models": models, "/extra": tmp_path / "extra", "/etc/millpond": settings}
    running = container(mounts, {"MILLPOND_CONFIG": "/etc/millpond/millpond.toml"})
    running.wait("/v2/models/half/ready")
    assert running.curl("/v2/models/second/ready").returncode != 0
    file.write_text(file.read_text() + '[models.second]\npath = "/extra/second"\n')
    running.signal(signal.SIGHUP)
    running.wait("/v2/models/second/ready")
    assert running.stop() == 0, running.log_text()
