"""The Debian package, installed by dpkg and run by systemd.

The tests share one system and run in this order. In each of them, a system call that the unit does not permit kills the
server, so a test also shows that the server makes no such call.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import time

import pytest
from conftest import PROGRAM, ROOT
from machine import Machine, NotRunnable, check_computer

ARCHIVE = ROOT / ".cache/systemd/debian.tar"
RUNTIME = next((ROOT / ".venv").glob("lib/python3*/site-packages/onnxruntime"), None)
HTTP = "http://127.0.0.1:8501"
SETTINGS = "etc/millpond/millpond.toml"
DATA = "var/lib/millpond"
UNIT = "millpond.service"
WAIT_S = 60
DIMS = 64
POINTS = 15_000
BATCH = 500
# systemd rates a unit from 0 (most protected) to 10.
EXPOSURE_MAX = 2.0


@contextlib.contextmanager
def skipped_if_not_runnable():
    """Skips the tests, with the reason, if this computer cannot run the container."""
    try:
        yield
    except NotRunnable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> pathlib.Path:
    """The package of the tested program, if this computer can test it."""
    with skipped_if_not_runnable():
        check_computer()
    dist = tmp_path_factory.mktemp("dist")
    command = [ROOT / "packaging/deb/build.sh", PROGRAM, RUNTIME, dist]
    subprocess.run(command, env=os.environ | {"COMPRESSION": "none"}, stdout=subprocess.DEVNULL, check=True)
    (package,) = dist.glob("millpond_*.deb")
    return package


@pytest.fixture(scope="module")
def machine(package):
    """A system that had the package installed before its first boot."""
    with skipped_if_not_runnable():
        machine = Machine(ARCHIVE)
    try:
        with skipped_if_not_runnable():
            machine.probe()
        (machine.root / "root/millpond.deb").write_bytes(package.read_bytes())
        overrides = machine.root / f"etc/systemd/system/{UNIT}.d"
        overrides.mkdir(parents=True)
        (overrides / "test.conf").write_text("[Service]\nSystemCallErrorNumber=kill\n")
        machine.execute_offline("apt-get", "install", "--yes", "/root/millpond.deb")
        with skipped_if_not_runnable():
            machine.boot()
        yield machine
    finally:
        machine.remove()


def request(machine: Machine, method: str, path: str, body: dict | None = None) -> dict:
    """Sends a request from inside. A server that has no room yet states when to try again."""
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60", "--retry", "20", "--request", method]
    if body is not None:
        command += ["--header", "content-type: application/json", "--data-binary", "@-"]
    return json.loads(machine.execute(*command, HTTP + path, text=None if body is None else json.dumps(body)))


def show(machine: Machine, name: str) -> str:
    """Returns a property of the unit."""
    return machine.execute("systemctl", "show", UNIT, "--value", f"--property={name}").strip()


def wait_until(condition, claim: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {claim}"
        time.sleep(0.2)


def serves(machine: Machine, previous: str = "") -> bool:
    """Returns true if a server is ready whose process is not the previous one."""
    return show(machine, "ActiveState") == "active" and show(machine, "MainPID") not in ("0", previous)


def is_ready(machine: Machine, model: str) -> bool:
    return machine.run("curl", "--silent", "--fail", f"{HTTP}/v2/models/{model}/ready").returncode == 0


def digit(machine: Machine) -> int:
    sent = (machine.root / "root/digit.json").read_text()
    return request(machine, "POST", "/v1/models/digits:predict", json.loads(sent))["predictions"][0]["digit"]


def nearest(machine: Machine, collection: str, vector: list[float]) -> int:
    """Returns the point whose vector is the most similar."""
    found = request(machine, "POST", f"/collections/{collection}/points/query", {"query": vector, "limit": 1})
    return found["result"]["points"][0]["id"]


def vectors(seed: int, count: int) -> list[list[float]]:
    source = random.Random(seed)
    return [[round(source.gauss(0, 1), 4) for _ in range(DIMS)] for _ in range(count)]


def rings(machine: Machine) -> int:
    """Returns the number of rings of io_uring that the server has."""
    return machine.execute("find", f"/proc/{show(machine, 'MainPID')}/fd", "-lname", "anon_inode:*io_uring*").count("\n")


def test_installation_offline_enables_the_unit(machine):
    wait_until(lambda: serves(machine), "the server runs after the first boot")
    assert machine.execute("systemctl", "is-enabled", UNIT).strip() == "enabled"
    assert machine.execute("systemctl", "is-system-running").strip() == "running"
    assert "test.conf" in show(machine, "DropInPaths")
    assert request(machine, "GET", "/v2/health/ready") is not None


def test_unit_is_valid_and_protected(machine):
    verified = machine.run("systemd-analyze", "verify", "--man=no", f"/lib/systemd/system/{UNIT}")
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    rating = machine.execute("systemd-analyze", "--no-pager", "security", UNIT)
    exposure = float(re.search(r"Overall exposure level for \S+ ([\d.]+)", rating)[1])
    assert exposure <= EXPOSURE_MAX, rating
    process = show(machine, "MainPID")
    status = machine.execute("cat", f"/proc/{process}/status")
    for line in [r"NoNewPrivs:\t1", r"Seccomp:\t2", r"CapEff:\t0+", r"CapBnd:\t0+"]:
        assert re.search(f"^{line}$", status, re.MULTILINE), (line, status)
    user = machine.execute("id", "--user", "millpond").strip()
    assert re.search(rf"^Uid:\t{user}\t", status, re.MULTILINE)
    mounted = machine.execute("cat", f"/proc/{process}/mounts")
    assert re.search(r"^\S+ / \S+ ro,", mounted, re.MULTILINE), mounted
    # systemd lowers limits that this computer does not permit, so these are the requested ones.
    assert (show(machine, "LimitNOFILE"), show(machine, "LimitMEMLOCK")) == ("65536", "infinity")


def test_start_waits_for_the_models(machine):
    machine.execute("millpond", "demo", "--export", "/root")
    machine.execute("millpond", "publish", "/root/digits.onnx", "--to", f"/{DATA}/models/digits")
    machine.execute("systemctl", "restart", UNIT)
    # No wait: systemctl returns once the server has notified systemd.
    assert digit(machine) == 7
    assert show(machine, "StatusText").startswith("serving http://127.0.0.1:8501")


def test_reload_adds_a_model(machine):
    process = show(machine, "MainPID")
    machine.execute("millpond", "publish", "/root/digits.onnx", "--to", "/srv/second")
    assert not is_ready(machine, "second")
    settings = machine.root / SETTINGS
    settings.write_text(settings.read_text() + '\n[models.second]\npath = "/srv/second"\n')
    machine.execute("systemctl", "reload", UNIT)
    wait_until(lambda: is_ready(machine, "second"), "the model of the changed settings serves")
    wait_until(lambda: "Reloaded" in log(machine, "systemd"), "systemd is notified of the reload")
    assert show(machine, "MainPID") == process


def test_search_reads_through_io_uring(machine):
    settings = machine.root / SETTINGS
    # Little memory, so that points are flushed into segments.
    settings.write_text(settings.read_text() + '\n[search]\nsearch-memory = "40MiB"\nsearch-cache = "4MiB"\n')
    machine.execute("systemctl", "restart", UNIT)
    request(machine, "PUT", "/collections/points", {"vectors": {"size": DIMS, "distance": "Cosine"}})
    sent = vectors(1, POINTS)
    for first in range(0, POINTS, BATCH):
        points = [{"id": number, "vector": sent[number]} for number in range(first, first + BATCH)]
        request(machine, "PUT", "/collections/points/points?wait=true", {"points": points})
    metrics = machine.execute("curl", "--silent", "--fail", f"{HTTP}/metrics")
    assert re.search(r'^millpond_collection\{model="points",kind="segments"\} [1-9]', metrics, re.MULTILINE), metrics
    assert re.search(r'^millpond_collections_by_medium\{kind="nvme"\} 1$', metrics, re.MULTILINE)
    for number in range(0, POINTS, POINTS // 10):
        assert nearest(machine, "points", sent[number]) == number
    assert rings(machine) > 0


def test_a_killed_server_starts_again_with_its_data(machine):
    process = show(machine, "MainPID")
    machine.execute("systemctl", "kill", "--kill-who=main", "--signal=KILL", UNIT)
    wait_until(lambda: serves(machine, process), "a new process serves")
    assert show(machine, "NRestarts") == "1"
    assert digit(machine) == 7
    # Until the collections are open, the answer is 503, and curl tries again.
    request(machine, "GET", "/readyz")
    assert nearest(machine, "points", vectors(1, 1)[0]) == 0


def test_the_server_writes_into_its_directories_only(machine):
    """ONNX Runtime made a file with a number for the machine in the server's home."""
    assert {path.name for path in (machine.root / DATA).iterdir()} == {"models", "collections"}
    owned = machine.execute("find", "/", "-xdev", "-user", "millpond", "-not", "-path", f"/{DATA}*", "-not", "-path", "/proc/*")
    assert all(path.startswith("/var/cache/millpond") for path in owned.split()), owned


def test_the_log_has_no_unexpected_warning(machine):
    expected = ["has no models yet"]
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 65_536:
        expected.append("the limit of open files")
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY:
        expected.append("raise the limit of locked memory")
    unexpected = [
        line for line in log(machine, "millpond").splitlines()
        if re.search(r" (WARN|ERROR) ", line) and not any(text in line for text in expected)
    ]  # fmt: skip
    assert unexpected == []


def log(machine: Machine, program: str) -> str:
    """Returns the messages about the unit, those of the server or those of systemd."""
    return machine.execute("journalctl", "--no-pager", "--output=cat", f"--unit={UNIT}", f"--identifier={program}")


def test_upgrade_keeps_settings_and_data(machine, package, tmp_path):
    before = (machine.root / SETTINGS).read_text()
    process = show(machine, "MainPID")
    newer = repack(package, tmp_path)
    (machine.root / "root/newer.deb").write_bytes(newer.read_bytes())
    machine.execute("apt-get", "install", "--yes", "--option=Dpkg::Options::=--force-confold", "/root/newer.deb")
    assert machine.execute("dpkg-query", "--show", "--showformat=${Version}", "millpond").endswith("+newer")
    assert (machine.root / SETTINGS).read_text() == before
    assert "# Changed." in (machine.root / f"{SETTINGS}.dpkg-dist").read_text()
    wait_until(lambda: serves(machine, process), "the new version serves")
    assert digit(machine) == 7
    assert nearest(machine, "points", vectors(1, 1)[0]) == 0


def repack(package: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
    """Makes a package of a later version, with other default settings."""
    content, newer = scratch / "content", scratch / "newer.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", package, content], check=True)
    control = content / "DEBIAN/control"
    control.write_text(re.sub("^(Version: .*)$", r"\1+newer", control.read_text(), flags=re.MULTILINE))
    with (content / SETTINGS).open("a") as settings:
        settings.write("# Changed.\n")
    build = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", content, newer]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return newer


def test_an_upgrade_follows_the_policy_of_the_machine(machine):
    process = show(machine, "MainPID")
    policy = machine.root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        machine.execute("apt-get", "install", "--reinstall", "--yes", "/root/newer.deb")
    finally:
        policy.unlink()
    assert serves(machine) and show(machine, "MainPID") == process


def test_removal_keeps_settings_and_data(machine):
    machine.execute("apt-get", "remove", "--yes", "millpond")
    assert machine.run("systemctl", "is-active", UNIT).stdout.strip() == "inactive"
    assert not (machine.root / f"etc/systemd/system/multi-user.target.wants/{UNIT}").is_symlink()
    assert "second" in (machine.root / SETTINGS).read_text()
    machine.execute("apt-get", "install", "--yes", "/root/newer.deb")
    wait_until(lambda: serves(machine), "the server of the new installation runs")
    assert machine.execute("systemctl", "is-enabled", UNIT).strip() == "enabled"
    assert nearest(machine, "points", vectors(1, 1)[0]) == 0


def test_purge_keeps_models_and_collections_only(machine):
    assert show(machine, "NRestarts") == "0"
    machine.execute("apt-get", "purge", "--yes", "millpond")
    for path in ["etc/millpond", "etc/default/millpond", "var/cache/millpond", "usr/lib/millpond"]:
        assert not (machine.root / path).exists(), path
    assert (machine.root / DATA / "models/digits/1").is_dir()
    assert (machine.root / DATA / "collections/points").is_dir()
    assert machine.execute("systemctl", "--failed", "--plain", "--no-legend") == ""
    machine.execute("apt-get", "install", "--yes", "/root/millpond.deb")
    wait_until(lambda: serves(machine), "the server of the new installation runs")
    assert digit(machine) == 7
    # The signal of a system call that the unit does not permit.
    assert "31/SYS" not in log(machine, "systemd")
