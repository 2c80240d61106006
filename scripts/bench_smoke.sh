#!/usr/bin/env bash
# bench_smoke.sh MILLPOND DIR: runs each benchmark and the demo so briefly that their figures mean nothing, and checks
# that they end well, answer nothing wrongly and write the JSON they promise.
set -euo pipefail
millpond=$1 dir=$2
mkdir -p "$dir"

check() { # FILE EXPRESSION: the expression holds, in which `report` is what the file says
    .venv/bin/python - "$1" "$2" <<'PYTHON'
import json, sys

path, expression = sys.argv[1:]
with open(path) as file:
    report = json.load(file)
if not eval(expression, {"report": report}):
    sys.exit(f"{path}: not so: {expression}\n{json.dumps(report, indent=1)}")
print(f"ok: {path}: {expression}")
PYTHON
}

"$millpond" bench swap --quick --json "$dir/swap.json"
check "$dir/swap.json" "all(arm['failed'] == arm['wrong'] == 0 for arm in report['arms'].values())"
check "$dir/swap.json" "report['arms']['pool']['swaps'] >= 1 and report['arms']['pool']['swap']['n'] > 0"
# The one claim that holds on any machine: the pool's loader touches almost no fresh memory.
check "$dir/swap.json" "report['arms']['pool']['loader_minor_faults'] < report['arms']['heap']['loader_minor_faults']"

"$millpond" bench overhead --quick --json "$dir/overhead.json"
check "$dir/overhead.json" "all(report[key] > 0 for key in ('bare_rps', 'server_rps', 'ratio'))"

MILLPOND_DEMO_SECONDS=5 "$millpond" demo --assets .cache/demo --models .cache/models --bytes 32MiB --http-port 0 --grpc-port 0
echo "ok: demo"
