#!/usr/bin/env bash
# bench_smoke.sh MILLPOND DIR: runs each benchmark so briefly that its figures mean nothing, and checks that it ends
# well, answers nothing wrongly and writes the JSON it promises.
set -euo pipefail
millpond=$1 dir=$2
mkdir -p "$dir"

check() { # FILE EXPRESSION: the expression about `report` holds
    .venv/bin/python -c "
import json, sys
report = json.load(open('$1'))
if not ($2):
    sys.exit('$1: not so: $2\n' + json.dumps(report, indent=1))"
    echo "ok: $1"
}

"$millpond" bench swap --json "$dir/swap.json" \
    --bytes 64MiB --swaps 1 --period 3 --window 2 --rounds 1 --arms heap,pool,control
check "$dir/swap.json" "all(report['arms'][arm][key] == 0 for arm in ('heap', 'pool', 'control') for key in ('failed', 'wrong'))"
check "$dir/swap.json" "report['arms']['pool']['swaps'] >= 1 and report['arms']['pool']['swap']['n'] > 0"
# The one claim that holds on any machine: the pool's loader touches almost no fresh memory.
check "$dir/swap.json" "report['arms']['pool']['loader_minor_faults'] < report['arms']['heap']['loader_minor_faults']"

"$millpond" bench overhead --json "$dir/overhead.json" --seconds 2 --rounds 1
check "$dir/overhead.json" "all(report[key] > 0 for key in ('bare_rps', 'server_rps', 'ratio', 'added_p50_us', 'added_p99_us'))"
