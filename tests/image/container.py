"""The image's root file system in a container of runc: no shared network, read-only root, no capabilities."""

import json
import pathlib
import signal
import subprocess
import time
import uuid

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
HTTP = "http://127.0.0.1:8501"
WRITABLE = ("/tmp", "/var/cache/millpond", "/var/lib/millpond")


class Container:
    """A container made from an image layout, as umoci unpacks it. `mounts` are read-only: target to source."""

    def __init__(
        self, layout: pathlib.Path, tag: str, scratch: pathlib.Path, mounts: dict[str, pathlib.Path],
        environment: dict[str, str] | None = None,
    ):  # fmt: skip
        self.name = f"millpond-{uuid.uuid4().hex[:12]}"
        self.bundle = scratch / self.name
        self.log = scratch / f"{self.name}.log"
        subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", self.bundle], check=True, capture_output=True)
        self.root = self.bundle / "rootfs"
        self._configure(mounts, environment or {})
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                ["runc", "run", "--bundle", self.bundle, self.name],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _configure(self, mounts: dict[str, pathlib.Path], environment: dict[str, str]) -> None:
        """Changes what an engine's flags would: --read-only, --cap-drop ALL, --volume, --tmpfs and --env."""
        path = self.bundle / "config.json"
        config = json.loads(path.read_text())
        process = config["process"]
        process["terminal"] = False
        process["capabilities"] = {}
        process["env"] += [f"{name}={value}" for name, value in environment.items()]
        config["root"]["readonly"] = True
        kept = [mount for mount in config["mounts"] if mount["destination"] not in (*WRITABLE, "/sys/fs/cgroup")]
        memory = [
            {"destination": target, "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777", "nosuid", "nodev"]}
            for target in WRITABLE
        ]
        bound = [
            {"destination": target, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
            for target, source in mounts.items()
        ]
        config["mounts"] = kept + memory + bound
        path.write_text(json.dumps(config))

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def pid(self) -> int:
        """Returns the server's process on the host."""
        return json.loads(subprocess.check_output(["runc", "state", self.name], stderr=subprocess.DEVNULL))["pid"]

    def curl(self, path: str, *options: str) -> subprocess.CompletedProcess:
        """Requests a path from inside the container's network."""
        command = ["nsenter", "--target", str(self.pid()), "--net", "curl", "--silent", "--fail-with-body", "--max-time", "60"]
        return subprocess.run([*command, *options, f"{HTTP}{path}"], capture_output=True, text=True)

    def wait(self, path: str) -> None:
        """Waits until a GET of `path` succeeds."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log_text()
            try:
                if self.curl(path).returncode == 0:
                    return
            except subprocess.CalledProcessError:
                pass  # The container is not created yet.
            time.sleep(0.1)
        raise AssertionError(f"{path} does not succeed after {START_TIMEOUT_S} s:\n{self.log_text()}")

    def execute(self, *command: str) -> subprocess.CompletedProcess:
        """Runs a program inside, as `docker exec` does."""
        return subprocess.run(["runc", "exec", self.name, *command], capture_output=True, text=True)

    def signal(self, number: signal.Signals) -> None:
        subprocess.run(["runc", "kill", self.name, number.name], check=True)

    def stop(self) -> int:
        """Stops the server as an engine does. Returns its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            subprocess.run(["runc", "delete", "--force", self.name], check=False)
            raise
