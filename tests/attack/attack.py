"""Attacks the program as strangers could, and records its memory and answers.

    python tests/attack/attack.py --json OUT [--smoke] [--only NAME ...]

Bombs of every format and encoding, floods, slow clients, damaged files, a full tmpfs and kills by signal 9. The server runs
at normal priority and the attackers at the lowest, so that a probe on a small machine measures the server and not the
attackers. The exit status is 1 if a requirement fails.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

from target import REPOSITORY_CACHE, Server, descriptors_at_rest, rss_mb, status_kb, target_of

import attackers
import storage
from models import half_plus_two
from millpond import drop_in
from test_images import patches
from watch import Watch

SEED = 20261124
REQUEST_MEMORY_MB = 512
SEARCH_MEMORY_MB = 256
RSS_SLACK = 1.2
PROBE_MS_MAX = 250
LATE_PROBES_S = 60


def models(root: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
    drop_in(half_plus_two(scratch / "half_plus_two.onnx"), root / "half_plus_two", 1)
    drop_in(patches(scratch / "patches.onnx"), root / "patches", 1)
    detector = REPOSITORY_CACHE / "recognisers/vad-onnx"
    if detector.is_dir():
        shutil.copytree(detector, root / "vad-onnx")
    return root


def warm(server: Server) -> None:
    """Uses every part once, so that the first measurement includes memory that is kept for good."""
    import points

    points.create(server.url, "attacked")
    import bodies

    target = target_of(server)
    attackers.post(target, "/v1/images/attacked-images", b"", "PUT", **{"content-type": "application/json"})
    for _ in range(3):
        attackers.post(target, "/v1/images/attacked-images?name=w", bodies.png(64, 64), "PUT", **{"content-type": "image/png"})
        server.infer("half_plus_two", [1.0])


def attacked(root: pathlib.Path, scratch: pathlib.Path, names: list[str], seconds: float) -> dict:
    """Runs the attacks on a running server, one after another, each in its own process."""
    flags = (
        "--request-memory", f"{REQUEST_MEMORY_MB}MiB", "--search-memory", f"{SEARCH_MEMORY_MB}MiB", "--search-cache", "32MiB",
        "--collections-dir", str(scratch / "attacked"), "--embedding-model", "patches", "--client-timeout", "5s",
    )  # fmt: skip
    server = Server(root, *flags, log=scratch / "attacked.log").wait_ready()
    warm(server)
    pid, target = server.process.pid, target_of(server)
    idle_mb, idle_descriptors = rss_mb(pid), descriptors_at_rest(pid, 0, wait_s=2)
    phases, context = {}, multiprocessing.get_context("spawn")
    with Watch(pid, target, "half_plus_two") as watch:
        watch.wait_probes(10, LATE_PROBES_S)
        phases["calm"] = {"seen": vars(watch.take())}
        for name in names:
            print(f"attack {name} ...", flush=True)
            with concurrent.futures.ProcessPoolExecutor(1, context, attackers.lowest_priority) as pool:
                answers = pool.submit(attackers.ATTACKS[name], target, seconds).result()
            watch.wait_probes(4, LATE_PROBES_S)
            seen = watch.take()
            phases[name] = {"answers": answers, "seen": vars(seen)}
            print(f"  {seen.rss_mb:.0f} MiB, health {seen.health_ms:.0f} ms, infer {seen.infer_ms:.0f} ms; {answers}", flush=True)
            if server.process.poll() is not None:
                break
    ended = server.process.poll()
    left = 0 if ended is not None else max(0, descriptors_at_rest(pid, idle_descriptors) - idle_descriptors)
    peak_mb = status_kb(pid, "VmHWM") / 1024
    seen = [phase["seen"] for phase in phases.values()]
    report = {
        "idle_rss_mb": round(idle_mb, 1),
        "budget_mb": round(idle_mb + REQUEST_MEMORY_MB + SEARCH_MEMORY_MB, 1),
        "worst_rss_mb": round(max([peak_mb, *(one["rss_mb"] for one in seen)]), 1),
        "worst_health_ms": round(max(one["health_ms"] for one in seen), 1),
        "worst_infer_ms": round(max(one["infer_ms"] for one in seen), 1),
        "failed_probes": sum(one["failed_probes"] for one in seen),
        "aborts": int(ended is not None),
        "leaked_fds": left,
        "phases": phases,
    }
    if ended is None and server.stop() != 0:
        report["aborts"] += 1
    if report["aborts"]:
        print(server.log_text()[-4000:], flush=True)
    return report


def stored(root: pathlib.Path, scratch: pathlib.Path, smoke: bool) -> storage.Outcome:
    start, rng, outcome = storage.starter(root, scratch), random.Random(SEED), storage.Outcome()
    print("kill -9 under writes ...", flush=True)
    outcome.add(storage.kills(start, scratch / "kills", 5 if smoke else 100, rng))
    print("damaged files ...", flush=True)
    outcome.add(storage.damage(start, scratch / "damage", 4 if smoke else 40, rng))
    if os.geteuid() == 0:
        print("a full disk ...", flush=True)
        outcome.add(storage.full_disk(start, scratch / "tmpfs", 2 if smoke else 10))
    else:
        outcome.notes.append("skipped: a full disk, as mounting a tmpfs needs root")
    return outcome


def wrong(report: dict) -> list[str]:
    """Returns the requirements that do not hold."""
    zero = ("aborts", "lost", "silent_damage", "leaked_fds", "leftover_files", "failed_probes", "idle")
    found = [f"{key} is {report[key]}" for key in zero if report.get(key)]
    if report.get("worst_rss_mb", 0) > report.get("budget_mb", 0) * RSS_SLACK:
        found.append(f"RSS {report['worst_rss_mb']} MiB is above the budget of {report['budget_mb']} MiB plus 20 %")
    found += [f"{key} is {report[key]}" for key in ("worst_health_ms", "worst_infer_ms") if report.get(key, 0) > PROBE_MS_MAX]
    phases = report.get("phases", {}).items()
    found += [f"no probe was answered during {name}" for name, phase in phases if not phase["seen"]["probes"]]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="where the report goes")
    parser.add_argument("--smoke", action="store_true", help="about two minutes; times of answers are reported and not judged")
    parser.add_argument("--only", nargs="*", choices=[*attackers.ATTACKS, "storage"], help="these attacks only")
    options = parser.parse_args()
    chosen = options.only or [*attackers.ATTACKS, "storage"]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millpond-attack-") as directory:
        scratch = pathlib.Path(directory)
        root = models(scratch / "models", scratch)
        report = {"lost": 0, "silent_damage": 0, "aborts": 0}
        if names := [name for name in chosen if name != "storage"]:
            report |= attacked(root, scratch, names, 6 if options.smoke else 30)
        if "storage" in chosen:
            outcome = stored(root, scratch, options.smoke)
            report["aborts"] += outcome.aborts
            report |= {key: value for key, value in vars(outcome).items() if key != "aborts"}
    report["seconds"] = round(time.monotonic() - begun, 1)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1))
    print(json.dumps({key: value for key, value in report.items() if key != "phases"}, indent=1))
    found = wrong(report)
    if options.smoke:
        # In a short run other work on the machine decides these.
        found = [what for what in found if "_ms is" not in what]
    for what in found:
        print(f"WRONG: {what}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
