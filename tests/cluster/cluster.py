"""Runs a cluster on the loopback with failures, and checks every answer.

    python tests/cluster/cluster.py --json OUT [--store s3] [--smoke] [--only NAME ...] [--before PROGRAM]

One etcd, a store (a directory, or moto for the semantics of S3) and Millpond processes. The full form has six of them
and a new cluster for each scenario. `--smoke` has three with all roles, and one cluster for all scenarios; it judges
answers and no times. Scenarios with images have nodes of their own in both forms, and a directory as their store; run
`scaled_out` as root on a machine without other work. `rolling_upgrade` runs only with `--before PROGRAM`, an earlier
build of `millpond`; without it, the report names it in `skipped`. The exit status is 1 if a wanted value is not met.
Logs stay in .cache/cluster/logs.
"""

import argparse
import dataclasses
import json
import operator
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import deployment
import image_scenarios
import scenarios
from deployment import Cluster
from embedding import serve_patches
from history import save
from points import Points
from processes import BINARY, REPOSITORY, NodePlan, end_all

CACHE = REPOSITORY / ".cache/cluster"
LOGS = CACHE / "logs"
CHECKER = CACHE / "porcupine"
CHECKER_TIMEOUT_S = 600
SMOKE_SECONDS_MAX = 90


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A requirement on one figure. Those that depend on the machine's speed are judged in the full form only."""

    figure: str
    relation: str
    value: float
    timed: bool = False

    def met(self, figures: dict) -> bool:
        compare = {"=": operator.eq, "<=": operator.le, ">=": operator.ge}[self.relation]
        return self.figure in figures and compare(figures[self.figure], self.value)


SAFE = [Wanted("lost", "=", 0), Wanted("linearizable", "=", True)]
ANSWERED = [Wanted("failed", "=", 0), Wanted("partial", "=", 0)]
WANTED = {
    "equal_answers": [Wanted("different", "=", 0)],
    "searcher_killed": [*ANSWERED, Wanted("p99_ratio", "<=", 2, timed=True)],
    "writer_killed": [*SAFE, Wanted("acknowledged", ">=", 1), Wanted("back_s", "<=", 15, timed=True)],
    "node_killed": [*ANSWERED, *SAFE, Wanted("acknowledged", ">=", 1), Wanted("back_s", "<=", 30)],
    "writer_paused": [*SAFE, Wanted("acknowledged", ">=", 1), Wanted("owner_while_paused", "=", False)],
    "node_added": [
        *ANSWERED, Wanted("moved_share", "<=", 1.3), Wanted("moved_between_others", "=", 0),
        Wanted("p99_ratio", "<=", 1.25, timed=True),
    ],
    "etcd_down": [*ANSWERED, *SAFE],
    "store_slow": [*SAFE, Wanted("acknowledged_while_slow", ">=", 1), Wanted("growth_mb", "<=", 256)],
    "rolling_restart": [*ANSWERED, *SAFE, Wanted("failed_writes", "=", 0)],
    "rolling_upgrade": [*ANSWERED, *SAFE, Wanted("failed_writes", "=", 0)],
    "slow_node": [
        *ANSWERED, Wanted("hedged_percent", "<=", 5), Wanted("p99_ratio", "<=", 2, timed=True),
    ],
    "scaled_out": [
        Wanted("failed", "=", 0), Wanted("ratio_2", ">=", 0.9, timed=True), Wanted("ratio_3", ">=", 0.9, timed=True),
    ],
    "images_extracted": [
        Wanted("failed", "=", 0), Wanted("originals_missing", "=", 0), Wanted("searchable_max_s", "<=", 5, timed=True),
    ],
    "simulated": [
        Wanted("seeds", ">=", 10_000), Wanted("violations", "=", 0), Wanted("idle_worlds", "=", 0),
        Wanted("planted_missed", "=", 0), Wanted("planted_found_within", "<=", 1_000),
    ],
}  # fmt: skip
# Scenarios that run no cluster.
WITHOUT_CLUSTER = {"simulated"}
# Scenarios of `image_scenarios`, each with nodes of its own and no points at its begin.
IMAGE_PLANS = {"scaled_out": deployment.SCALED, "images_extracted": deployment.EXTRACTING}
SMOKE = ["equal_answers", "node_killed", "writer_paused", "etcd_down"]
# Needs an earlier program.
UPGRADE = "rolling_upgrade"
FULL = [name for name in WANTED if name not in ("node_killed", UPGRADE)]


@dataclasses.dataclass
class Form:
    """The full form or the short one."""

    smoke: bool
    s3: bool
    # Program that the nodes of `rolling_upgrade` run first.
    before: pathlib.Path | None

    def plans(self, name: str) -> list[NodePlan]:
        if name in IMAGE_PLANS:
            return IMAGE_PLANS[name]
        plans = deployment.SMALL if self.smoke else deployment.FULL
        if name == "equal_answers" and not self.smoke:
            return deployment.SMALL
        if name == UPGRADE:
            return [dataclasses.replace(plan, program=self.before) for plan in plans]
        if name == "slow_node":
            last_search = [plan.name for plan in plans if plan.has("search")][-1]
            return [dataclasses.replace(plan, behind_proxy=plan.name == last_search) for plan in plans]
        return plans

    def shards(self, name: str) -> int:
        # Many shards, so that chance moves the new node's share little.
        return 64 if name == "node_added" else 8

    def points(self) -> Points:
        return Points(count=600, dims=16, queries=50) if self.smoke else Points(count=20_000, dims=64, queries=200)

    @property
    def lengths(self) -> scenarios.Lengths:
        return scenarios.SMOKE if self.smoke else scenarios.FULL


class Run:
    """Scenarios in turn, with their figures."""

    def __init__(self, form: Form, scratch: pathlib.Path):
        self.form, self.scratch = form, scratch
        self.points = form.points()
        self.figures: dict[str, dict] = {}
        self.histories: dict = {}
        self.cluster: Cluster | None = None

    def run(self, name: str) -> None:
        """Runs one scenario. A failure of the scenario itself is kept as its figure `error`."""
        print(f"scenario {name} ...", flush=True)
        begun = time.monotonic()
        try:
            scenario = getattr(image_scenarios if name in IMAGE_PLANS else scenarios, name)
            self.figures[name] = scenario() if name in WITHOUT_CLUSTER else scenario(self.setting(name))
        except Exception as error:  # noqa: BLE001  # any failure of a scenario is one of its figures
            traceback.print_exc()
            self.figures[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            if self.cluster:
                print(f"view: {self.cluster.view()}\n{self.cluster.logs_text()}", flush=True)
        figures = self.figures[name]
        figures["seconds"] = round(time.monotonic() - begun, 1)
        print(f"  {json.dumps(figures)}", flush=True)
        if "error" in figures or not self.form.smoke or name in IMAGE_PLANS:
            self.drop()

    def setting(self, name: str) -> scenarios.Setting:
        return scenarios.Setting(self.prepared(name), self.points, self.form.lengths, self.histories)

    def prepared(self, name: str) -> Cluster:
        """Returns a settled cluster with all fixed points. The short form keeps one for all scenarios.

        Scenarios with images get a new one without points.
        """
        if name in IMAGE_PLANS:
            self.drop()
        if self.cluster is not None:
            return self.cluster
        logs = LOGS / name
        shutil.rmtree(logs, ignore_errors=True)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))
        # The check of the originals reads a directory.
        s3 = self.form.s3 and name not in IMAGE_PLANS or name == "store_slow"
        self.cluster = Cluster(self.form.plans(name), scratch, logs, s3)
        if name in IMAGE_PLANS:
            serve_patches(self.cluster.nodes[name] for name in self.cluster.of_role("extract"))
            self.cluster.start()
            return self.cluster
        self.cluster.start()
        self.cluster.shards, self.cluster.copies = self.form.shards(name), 2
        first = self.cluster.nodes[self.cluster.of_role("root")[0]]
        scenarios.fill(first, self.points, self.cluster.shards, self.cluster.copies).close()
        self.cluster.wait_settled()
        return self.cluster

    def drop(self) -> None:
        """Ends the cluster's processes and removes its files, but for the logs."""
        end_all()
        if self.cluster:
            shutil.rmtree(self.cluster.scratch, ignore_errors=True)
        self.cluster = None


def check_with_porcupine(histories: dict, figures: dict) -> None:
    """Checks every history with the kept checker, and adds its verdict to the scenario's figures."""
    for name, operations in histories.items():
        path = CACHE / f"{name}.history"
        save(operations, path)
        done = subprocess.run(
            [str(CHECKER), str(path)], capture_output=True, text=True, timeout=CHECKER_TIMEOUT_S, check=True
        )
        verdict = json.loads(done.stdout)
        figures[name]["porcupine"] = verdict
        agrees = not verdict["violations"] and not verdict["undecided"]
        figures[name]["linearizable"] = figures[name].get("linearizable", False) and agrees


def wrong(figures: dict, smoke: bool) -> list[str]:
    """Returns the requirements that are not met."""
    found = []
    for name, own in figures.items():
        if "error" in own:
            found.append(f"{name}: {own['error'].splitlines()[0]}")
            continue
        for wanted in WANTED[name]:
            if not (smoke and wanted.timed) and not wanted.met(own):
                found.append(f"{name}: {wanted.figure} is {own.get(wanted.figure)}, wanted {wanted.relation} {wanted.value}")
    return found


def skipped(options: argparse.Namespace) -> dict[str, str]:
    """Returns the scenarios of the full form that are left out, each with its reason."""
    if options.only or options.smoke or options.before:
        return {}
    return {UPGRADE: "needs --before PROGRAM (make cluster-test BEFORE=PROGRAM)"}


def report_of(figures: dict, left_out: dict[str, str], seconds: float) -> dict:
    return {
        "scenarios": figures,
        "skipped": left_out,
        "lost": sum(own.get("lost", 0) for own in figures.values()),
        "linearizable": all(own.get("linearizable", True) for own in figures.values()),
        "seconds": round(seconds, 1),
    }


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="where the report goes")
    parser.add_argument("--smoke", action="store_true", help=f"some scenarios in at most {SMOKE_SECONDS_MAX} s")
    parser.add_argument("--store", choices=["dir", "s3"], default="dir", help="a directory, or moto")
    parser.add_argument("--only", nargs="*", choices=list(WANTED), help="these scenarios only")
    parser.add_argument("--before", type=pathlib.Path, help=f"an earlier build, for {UPGRADE}")
    return parser


def main() -> int:
    parser = parser_of_arguments()
    options = parser.parse_args()
    names = options.only or (SMOKE if options.smoke else FULL + [UPGRADE] * bool(options.before))
    if UPGRADE in names and not (options.before and options.before.is_file()):
        parser.error(f"{UPGRADE} needs --before with the path of an earlier program")
    # The handlers of `atexit` end all processes then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not BINARY.exists():
        print(f"no {BINARY}: run `make build`")
        return 1
    CACHE.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millpond-cluster-") as scratch:
        form = Form(options.smoke, options.store == "s3", options.before and options.before.resolve())
        run = Run(form, pathlib.Path(scratch))
        for name in names:
            run.run(name)
        run.drop()
    if not options.smoke:
        check_with_porcupine(run.histories, run.figures)
    left_out = skipped(options)
    report = report_of(run.figures, left_out, time.monotonic() - begun)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    for name, reason in left_out.items():
        print(f"SKIPPED: {name} {reason}")
    found = wrong(run.figures, options.smoke)
    for what in found:
        print(f"WRONG: {what}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
