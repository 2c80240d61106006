"""Limits of processor time for processes, by control groups of the kernel: version 1, or version 2. Needs root."""

import os
import pathlib

ROOT = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 100_000


class CpuShares:
    """Groups of one process each. The end of `with` lifts the limits."""

    def __init__(self):
        self.first_version = (ROOT / "cpu/cpu.cfs_quota_us").exists()
        self.parent = ROOT / "cpu" if self.first_version else ROOT
        controllers = ROOT / "cgroup.controllers"
        known = self.first_version or (controllers.exists() and "cpu" in controllers.read_text().split())
        assert known, f"no control groups with processor time below {ROOT}"
        if not self.first_version:
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        self.made: list[pathlib.Path] = []

    def limit(self, name: str, pid: int, share: float) -> None:
        """Limits a process to `share` of one processor. Threads that it starts later are limited with it."""
        group = self.parent / f"millpond-test-{os.getpid()}-{name}"
        group.mkdir()
        self.made.append(group)
        quota_us = round(share * PERIOD_US)
        if self.first_version:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))

    def lift(self) -> None:
        """Ends all limits. The processes continue in the group of their parent."""
        for group in self.made:
            for pid in (group / "cgroup.procs").read_text().split():
                (self.parent / "cgroup.procs").write_text(pid)
            group.rmdir()
        self.made.clear()

    def __enter__(self) -> "CpuShares":
        return self

    def __exit__(self, *_failure) -> None:
        self.lift()
