"""One collection on several engines, the coarse part: seconds to build, queries a second at a recall, memory.

    collection.py --data DIR --json OUT [--engine NAME ...] [--recall R ...] [--core N] [--seconds S] [--threads T]

DIR holds base.fvecs, query.fvecs and truth.ivecs, as for vectors.py, which measures each engine in its own process.
Memory is the growth of the process from before the build to after the searches (the largest of the variants): anonymous
memory, and pages of mapped files, which the system may reclaim. It does not include the input vectors. The rate at a
recall is interpolated between neighbouring settings of one variant, and the best variant counts; null if none reaches
the recall. An engine that is not installed is named and left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ENGINES = ("qdrant-edge", "faiss-ivfpq", "faiss-hnsw", "lancedb")
RECALLS = (0.9, 0.95, 0.99)
# Exit status of vectors.py if an engine is not installed.
MISSING = 3


def measured(engine, arguments):
    """Returns the result of vectors.py, or its exit status."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.py")
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, script, "--data", arguments.data, "--engine", engine, "--json", out.name]
        command += ["--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]
        command += ["--core", str(arguments.core)] if arguments.core is not None else []
        code = subprocess.run(command, check=False).returncode
        return code or json.load(out)


def rate_at(recall, points):
    """Returns queries a second at a recall: the best variant, interpolated linearly between its settings."""
    best, variants = None, {}
    for point in points:
        variants.setdefault(point["setting"].rsplit(", ", 1)[0], []).append(point)
    for line in variants.values():
        line.sort(key=lambda point: point["recall"])
        rates = [line[0]["qps"]] if line[0]["recall"] >= recall else []
        for low, high in zip(line, line[1:]):
            if low["recall"] < recall <= high["recall"]:
                share = (recall - low["recall"]) / (high["recall"] - low["recall"])
                rates.append(low["qps"] + share * (high["qps"] - low["qps"]))
        best = max([*rates, *([best] if best else [])], default=best)
    return best


def table(results, recalls):
    heads = "".join(f"{f'q/s at {recall}':>14}" for recall in recalls)
    print(f"{'engine':14} {'version':>9} {'build s':>8} {'own MiB':>8} {'file MiB':>9}{heads}")
    for result in results:
        own, files = (result["memory_bytes"][kind] / 2**20 for kind in ("own", "file"))
        rates = "".join(f"{'-' if rate is None else format(rate, '.0f'):>14}" for rate in result["qps_at"].values())
        print(f"{result['engine']:14} {result['version']:>9} {result['build_s']:8.1f} {own:8.0f} {files:9.0f}{rates}")


def arguments_given():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder with base.fvecs, query.fvecs and truth.ivecs")
    parser.add_argument("--json", required=True, help="file for the result")
    parser.add_argument("--engine", action="append", help=f"may be given several times [{', '.join(ENGINES)}]")
    parser.add_argument("--recall", type=float, action="append", help="recall@10 to give the rate at")
    parser.add_argument("--core", type=int, help="the core that searches run on")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each setting")
    parser.add_argument("--threads", type=int, default=2, help="for building")
    return parser.parse_args()


def main():
    arguments = arguments_given()
    recalls, results, missing, failed = arguments.recall or RECALLS, [], [], []
    for engine in arguments.engine or ENGINES:
        result = measured(engine, arguments)
        if isinstance(result, int):
            (missing if result == MISSING else failed).append(engine)
            continue
        result["qps_at"] = {str(recall): rate_at(recall, result["points"]) for recall in recalls}
        results.append(result)
    table(results, recalls)
    with open(arguments.json, "w") as file:
        json.dump({"engines": results, "not_installed": missing, "failed": failed}, file, indent=1)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
