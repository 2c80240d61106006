"""The Debian package, unpacked into an empty root and started as its unit starts it, under a service manager of the test.

`test_systemd.py` installs it and runs it under systemd.
"""

import gzip
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile

import pytest
from conftest import PROGRAM, ROOT, Installed, missing_licences
from machine import Machine

RUNTIME = next((ROOT / ".venv").glob("lib/python3*/site-packages/onnxruntime"))
# The time of all files in the package, as programs that make reproducible packages state it.
BUILD_TIME = 1_700_000_000


class Manager:
    """A service manager: the socket that the server notifies."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(60)

    def message(self) -> str:
        """Waits for a notification."""
        return self.socket.recv(4096).decode()

    def next(self) -> str:
        """Waits for a notification; returns its first line."""
        return self.message().splitlines()[0]


def test_package_serves_reloads_and_stops(tmp_path, home):
    dist, root = tmp_path / "dist", tmp_path / "root"
    build = subprocess.run(
        [ROOT / "packaging/deb/build.sh", PROGRAM, RUNTIME, dist],
        env=os.environ | {"COMPRESSION": "none", "SOURCE_DATE_EPOCH": str(BUILD_TIME)}, text=True, capture_output=True,
    )
    assert build.returncode == 0, build.stderr
    print("\n" + build.stdout)
    (package,) = dist.glob("millpond_*.deb")
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        assert {member.mtime for member in archive} == {BUILD_TIME}
    subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    for script in ["postinst", "prerm", "postrm"]:
        subprocess.run(["sh", "-n", tmp_path / "control" / script], check=True)
    pages = {page.name for page in (root / "usr/share/man/man1").iterdir()}
    assert {"millpond.1.gz", "millpond-serve.1.gz"} <= pages
    for completion in ["bash-completion/completions/millpond", "zsh/vendor-completions/_millpond",
                       "fish/vendor_completions.d/millpond.fish"]:
        assert "publish" in (root / "usr/share" / completion).read_text()

    documents = root / "usr/share/doc/millpond"
    licences = gzip.decompress((documents / "THIRD-PARTY-LICENSES.txt.gz").read_bytes()).decode()
    assert missing_licences(licences) == []
    own = (documents / "copyright").read_text()
    assert "Apache License" in own
    named = {"THIRD-PARTY-LICENSES.txt.gz", "onnxruntime-LICENSE", "onnxruntime-ThirdPartyNotices.txt.gz"}
    assert all(name in own and (documents / name).exists() for name in named)

    # The same configuration, with the root's paths.
    settings = root / "etc/millpond/millpond.toml"
    settings.write_text(settings.read_text().replace('"/var/lib', f'"{root}/var/lib'))
    unit = (root / "usr/lib/systemd/system/millpond.service").read_text()
    start = re.search("^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
    assert start == ["/usr/bin/millpond", "serve", "--config", "/etc/millpond/millpond.toml"]
    program = Installed([f"{root}/usr/bin/millpond"], home)
    program.run("demo", "--export", ".")
    models = root / "var/lib/millpond/models"
    program.run("publish", "digits.onnx", "--to", f"{models}/digits")

    manager = Manager(home / "notify")
    grace = ["--shutdown-grace", "2m"]
    server = program.serve("--config", str(settings), *grace, NOTIFY_SOCKET=str(manager.path))
    assert manager.next() == "READY=1"
    assert server.digit(home / "digit.json") == 7

    shutil.copytree(models / "digits", home / "other")
    settings.write_text(settings.read_text() + f'\n[models.second]\npath = "{home}/other"\n')
    server.process.send_signal(signal.SIGHUP)
    assert [manager.next(), manager.next()] == ["RELOADING=1", "READY=1"]
    assert "second" in program.run("models", "ls", "--url", server.url)
    server.stop()
    # systemd would kill the server after the 45 s of the unit.
    assert manager.message() == "STOPPING=1\nEXTEND_TIMEOUT_USEC=135000000"


def test_systemd_accepts_the_unit(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        print("no systemd-analyze here: the unit is not verified")
        return
    unit = (ROOT / "packaging/deb/millpond.service").read_text().replace("/usr/bin/millpond", "/bin/true")
    # Keys of sandboxing and types are checked; the program and its manual pages are not installed.
    path = tmp_path / "millpond.service"
    path.write_text(unit)
    ended = subprocess.run([verify, "verify", "--man=no", path], text=True, capture_output=True)
    assert (ended.returncode, "millpond.service" in ended.stderr) == (0, False), ended.stderr


def test_failed_starts_are_repeated_without_end():
    """systemd gives up after five starts within 10 s, unless the unit changes these limits."""
    unit = (ROOT / "packaging/deb/millpond.service").read_text()
    pause_s = int(re.search(r"^RestartSec=(\d+)$", unit, re.MULTILINE)[1])
    assert re.search("^Restart=on-failure$", unit, re.MULTILINE) and 5 * pause_s > 10


def test_a_long_load_is_not_ended():
    """systemd ends a service that is not ready in time, and this one is ready once its models are loaded."""
    unit = (ROOT / "packaging/deb/millpond.service").read_text()
    assert re.search("^TimeoutStartSec=infinity$", unit, re.MULTILINE)


def test_a_killed_worker_process_does_not_end_the_server():
    """systemd stops a service if the kernel kills one of its processes for lack of memory, unless the unit says otherwise."""
    unit = (ROOT / "packaging/deb/millpond.service").read_text()
    assert re.search("^OOMPolicy=continue$", unit, re.MULTILINE)


def test_the_documented_path_of_unix_sockets_exists():
    unit = (ROOT / "packaging/deb/millpond.service").read_text()
    assert re.search("^RuntimeDirectory=millpond$", unit, re.MULTILINE)
    assert "--http-socket /run/millpond/" in (ROOT / "docs/security.md").read_text()


def test_an_override_of_private_devices_is_enough_for_a_gpu():
    """With a list of permitted devices, systemd denies the others. `ProtectClock` makes such a list before version 253."""
    unit = (ROOT / "packaging/deb/millpond.service").read_text()
    assert re.search("^PrivateDevices=yes$", unit, re.MULTILINE)
    assert not re.search("^(ProtectClock|DeviceAllow|DevicePolicy)=", unit, re.MULTILINE)
    # These deny changes of the clock.
    assert re.search("^SystemCallFilter=@system-service$", unit, re.MULTILINE)
    assert re.search("^CapabilityBoundingSet=$", unit, re.MULTILINE)


class MaintainerScripts:
    """The scripts of the package, with directories and commands of the test in place of the system's."""

    def __init__(self, scratch, commands):
        self.system, self.state, self.etc, self.bin = (scratch / name for name in ("system", "state", "etc", "bin"))
        for directory in (self.system, self.state, self.etc, self.bin):
            directory.mkdir()
        self.policy = scratch / "policy-rc.d"
        self.log = scratch / "log"
        for name in [*commands, "chown", "useradd", "getent"]:
            record = f'echo "{name} $*" >>{self.log}' if name in commands else ":"
            stub = self.bin / name
            stub.write_text(f'#!/bin/sh\n{record}\n[ ! -e {scratch}/"$1"-fails ]\n')
            stub.chmod(0o755)
        for name in ["chmod", "rm", "touch"]:
            (self.bin / name).symlink_to(shutil.which(name))

    def run(self, script, *arguments) -> list[str]:
        """Runs a script. Returns the calls that it made of the logged commands."""
        text = (ROOT / "packaging/deb" / script).read_text()
        own = [("/run/systemd/system", self.system), ("/var/lib/millpond", self.state), ("/etc/millpond", self.etc)]
        for path, replacement in [*own, ("/usr/sbin/policy-rc.d", self.policy)]:
            text = text.replace(path, str(replacement))
        self.log.write_text("")
        # The commands of this computer are not in the path: its own helpers would change its own units.
        subprocess.run(["/bin/sh", "-c", text, script, *arguments], check=True, env={"PATH": str(self.bin)})
        return self.log.read_text().splitlines()


def test_a_removed_package_is_enabled_again(tmp_path):
    """dpkg remembers the version of a removed package, so its next installation looks like an upgrade."""
    scripts = MaintainerScripts(tmp_path, ["systemctl"])
    run = scripts.run
    start, restart = "systemctl start --no-block millpond.service", "systemctl try-restart --no-block millpond.service"
    enable, disable = "systemctl enable millpond.service", "systemctl disable millpond.service"

    calls = run("postinst", "configure", "")
    assert (calls[0], calls[-1]) == (enable, start)
    assert run("postinst", "configure", "0.1.0")[-1] == restart
    # A link that the server's user put there.
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (scripts.state / ".enable-again").symlink_to(victim)
    assert run("prerm", "remove")[-2:] == ["systemctl stop millpond.service", disable]
    assert victim.read_text() == "kept"
    calls = run("postinst", "configure", "0.1.0")
    assert (calls[0], calls[-1]) == (enable, start)
    assert run("postinst", "configure", "0.1.0")[-1] == restart

    # systemd does not answer, for example since only its directory is there.
    (tmp_path / "daemon-reload-fails").touch()
    assert run("postinst", "configure", "")[-1] == start

    # A system that does not run.
    scripts.system.rmdir()
    assert run("postinst", "configure", "0.1.0") == []
    assert run("prerm", "remove")[-1] == disable
    assert run("postinst", "configure", "0.1.0") == [enable]
    assert run("postinst", "configure", "") == [enable]


def test_the_helpers_of_debian_are_used_if_they_exist(tmp_path):
    scripts = MaintainerScripts(tmp_path, ["systemctl", "deb-systemd-helper", "deb-systemd-invoke"])
    run = scripts.run
    reload, enabled = "systemctl daemon-reload", "systemctl is-enabled --quiet millpond.service"
    start, restart = "systemctl start --no-block millpond.service", "systemctl try-restart --no-block millpond.service"
    enable, record = "deb-systemd-helper enable millpond.service", "deb-systemd-helper update-state millpond.service"
    stop, forget = "deb-systemd-invoke stop millpond.service", "deb-systemd-helper purge millpond.service"

    assert run("postinst", "configure", "") == [enable, reload, enabled, start]
    assert run("postinst", "configure", "0.1.0") == [record, reload, restart]
    assert run("prerm", "upgrade", "0.2.0") == []
    assert run("prerm", "remove") == [enabled, stop, forget]
    assert run("postinst", "configure", "0.1.0") == [enable, reload, enabled, start]

    # The presets of the machine keep the unit disabled.
    (tmp_path / "is-enabled-fails").touch()
    assert run("postinst", "configure", "") == [enable, reload, enabled]
    run("prerm", "remove")
    assert run("postinst", "configure", "0.1.0") == [record, reload, restart]

    # A system that does not run.
    scripts.system.rmdir()
    assert run("postinst", "configure", "") == [enable]
    assert run("prerm", "remove") == [enabled, forget]


@pytest.mark.parametrize("known, group", [((), "--user-group"), (("group",), "--gid=millpond"), (("group", "passwd"), None)])
def test_the_user_joins_a_group_that_exists(tmp_path, known, group):
    scripts = MaintainerScripts(tmp_path, ["systemctl", "useradd", "getent"])
    for database in {"passwd", "group"} - set(known):
        (tmp_path / f"{database}-fails").touch()
    made = [call for call in scripts.run("postinst", "configure", "") if call.startswith("useradd ")]
    assert [call.split()[2] for call in made] == ([] if group is None else [group])


@pytest.mark.parametrize("status, starts", [(0, True), (101, False), (104, True)])
def test_the_policy_of_the_machine_decides_on_starts(tmp_path, status, starts):
    scripts = MaintainerScripts(tmp_path, ["systemctl"])
    scripts.policy.write_text(f'#!/bin/sh\necho "policy $*" >>{scripts.log}\nexit {status}\n')
    scripts.policy.chmod(0o755)
    for version, asked, action in [("", "start", "start"), ("0.1.0", "restart", "try-restart")]:
        calls = scripts.run("postinst", "configure", version)
        assert f"policy millpond.service {asked}" in calls
        assert (calls[-1] == f"systemctl {action} --no-block millpond.service") == starts


def test_a_system_that_cannot_be_unpacked_leaves_no_file(tmp_path, monkeypatch):
    archive, scratch = tmp_path / "system.tar", tmp_path / "scratch"
    archive.write_text("not an archive")
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(subprocess.CalledProcessError):
        Machine(archive)
    assert list(scratch.iterdir()) == []


def test_packages_ask_cargo_for_the_program():
    rules = subprocess.run(["make", "-pnq", "help"], cwd=ROOT, text=True, capture_output=True).stdout
    assert re.search(r"^target/dist/millpond:.*\bdist-programs\b", rules, re.MULTILINE)
