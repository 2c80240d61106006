"""A Debian system with systemd as its first process, in a container of systemd-nspawn without a network."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import uuid

COMMANDS = ("systemd-nspawn", "mmdebstrap", "nsenter")
# The packages that millpond depends on, since the container cannot download them, and curl for requests.
PACKAGES = ("systemd-sysv", "dbus", "procps", "curl")
SUITE = "bookworm"
# Time to download packages and make the system.
MAKE_S = 900
BOOT_S = 60
STOP_S = 60
COMMAND_S = 120
# Environment of commands inside.
ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
# Mount points of hierarchies that systemd-nspawn makes groups in.
HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")


class NotRunnable(Exception):
    """The reason why this computer cannot run the container."""


def check_computer() -> None:
    """Raises `NotRunnable` if containers cannot run here."""
    if os.geteuid() != 0:
        raise NotRunnable("systemd-nspawn needs root")
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        raise NotRunnable(f"missing commands: {', '.join(missing)}")


class Machine:
    """A root file system, and the container while it runs."""

    def __init__(self, archive: pathlib.Path):
        """Unpacks the system of `archive`, which is made if it is missing."""
        if not archive.exists():
            make_system(archive)
        self.name = f"millpond-{uuid.uuid4().hex[:12]}"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.root = self.directory / "root"
        self.root.mkdir(mode=0o755)
        self.log = self.directory / "log"
        self.process: subprocess.Popen | None = None
        self.groups: set[pathlib.Path] = set()
        unpack = ["tar", "--extract", "--preserve-permissions", "--file", archive, "--directory", self.root]
        try:
            subprocess.run(unpack, check=True, timeout=COMMAND_S)
        except BaseException:
            self.remove()
            raise

    def _command(self, *options: str) -> list[str]:
        """Returns the command of a container that no service manager of this computer knows."""
        own = ["--register=no", "--keep-unit", "--private-network", "--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        return ["systemd-nspawn", "--quiet", *own, f"--machine={self.name}", f"--directory={self.root}", *options]

    def run_offline(self, *command: str) -> subprocess.CompletedProcess:
        """Runs a command in the system while it is not booted, as programs that make images do."""
        inside = self._command("--pipe", "--setenv=DEBIAN_FRONTEND=noninteractive")
        return subprocess.run([*inside, *command], stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=COMMAND_S)

    def execute_offline(self, *command: str) -> str:
        """As `run_offline`, for a command that must succeed. Returns its output."""
        return checked(self.run_offline(*command))

    def probe(self) -> None:
        """Raises `NotRunnable` if systemd-nspawn starts no program here."""
        ended = self.run_offline("true")
        if ended.returncode != 0:
            raise NotRunnable(f"systemd-nspawn does not work here: {ended.stderr[-500:]}")

    def boot(self) -> None:
        """Boots the system and waits until systemd has started all units."""
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self._command("--boot", "--console=pipe"), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.first_process() is not None:
                self.groups |= set(control_groups(self.process.pid))
                # The states of a system whose start has ended.
                if self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"):
                    return
            time.sleep(0.2)
        raise NotRunnable(f"systemd does not start in a container here: {self.log.read_text(errors='replace')[-500:]}")

    def first_process(self) -> int | None:
        """Returns systemd's process on this computer, or None if it does not run yet."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                if pathlib.Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return int(child)
        return None

    def run(self, *command: str, text: str | None = None) -> subprocess.CompletedProcess:
        """Runs a command inside as root, with `text` as its input."""
        inside = ["nsenter", "--target", str(self.first_process()), "--all"]
        inside += ["env", "--ignore-environment", "--chdir=/root", *ENVIRONMENT, *command]
        return subprocess.run(inside, input=text or "", text=True, capture_output=True, timeout=COMMAND_S)

    def execute(self, *command: str, text: str | None = None) -> str:
        """Runs a command inside, which must succeed. Returns its output."""
        return checked(self.run(*command, text=text))

    def stop(self) -> None:
        """Stops the container."""
        if self.process is None:
            return
        # systemd-nspawn then stops the system, and ends after the system.
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # The system's processes end with systemd-nspawn.
            self.process.kill()
            self.process.wait(STOP_S)
        self.process = None

    def remove(self) -> None:
        """Stops the container and removes all files and control groups that it leaves."""
        # If one step fails, the others are done too.
        with contextlib.ExitStack() as steps:
            steps.callback(self._remove_groups)
            # systemd-nspawn leaves this directory, unless it is on a tmpfs.
            steps.callback(shutil.rmtree, f"/run/systemd/nspawn/propagate/{self.name}", ignore_errors=True)
            steps.callback(shutil.rmtree, self.directory)
            self.stop()

    def _remove_groups(self) -> None:
        for group in self.groups:
            for directory, _, _ in os.walk(group, topdown=False):
                # Another container may use the group.
                with contextlib.suppress(OSError):
                    os.rmdir(directory)


def checked(ended: subprocess.CompletedProcess) -> str:
    """Returns the output of a command that succeeded."""
    assert ended.returncode == 0, (ended.args[-6:], ended.stdout, ended.stderr)
    return ended.stdout


def make_system(archive: pathlib.Path) -> None:
    """Makes a small Debian system of packages from the mirror."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_suffix(".new.tar")
    include = f"--include={','.join(PACKAGES)}"
    # SIGTERM, after which mmdebstrap removes its files. `timeout` then ends with 124.
    command = ["timeout", "--kill-after=30", str(MAKE_S), "mmdebstrap", "--variant=minbase", include, SUITE, fresh]
    try:
        ended = subprocess.run(command, text=True, capture_output=True)
        if ended.returncode != 0:
            raise NotRunnable(f"mmdebstrap made no system, status {ended.returncode}: {ended.stderr[-500:]}")
        fresh.rename(archive)
    finally:
        fresh.unlink(missing_ok=True)


def control_groups(process: int) -> list[pathlib.Path]:
    """Returns the groups that systemd-nspawn made for itself and for the system."""
    found = []
    for line in pathlib.Path(f"/proc/{process}/cgroup").read_text().splitlines():
        group = pathlib.PurePath(line.split(":", 2)[2])
        if group.name == "supervisor":
            names = [group.relative_to("/"), group.with_name("payload").relative_to("/")]
            found += [pathlib.Path(mount) / name for mount in HIERARCHIES for name in names]
    return found
