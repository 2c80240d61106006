#!/usr/bin/env bash
# bench_smoke.sh MILLPOND DIR PART: runs the benchmarks of a part for a few seconds each: swaps, serving, search, or
# programs (audio, comparison with other servers, demo). Checks that they succeed, get no wrong answer and write their
# JSON. The figures mean nothing, so parts may run side by side.
set -euo pipefail
millpond=$1 dir=$2 part=$3
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

# These two end the script if they fail. A command that fails before `&&` does not end it.
written() { # FILE PATTERN: a line of the file has the pattern
    if ! grep -q "$2" "$1"; then
        echo "$1: no $2" >&2
        exit 1
    fi
    echo "ok: $1 has $2"
}

drawn() { # FILE: the chart is there
    if ! [ -s "$1" ]; then
        echo "$1: missing or empty" >&2
        exit 1
    fi
    echo "ok: $1"
}

swaps() {
    # --load 0.1: at the usual rate a pause of a busy machine fills the queue, and refused requests are failures.
    # The program with the other allocator takes minutes to build, so this one replaces it.
    arms=heap,glibc,pool,two,minute,cold,delta10,control
    "$millpond" bench swap --quick --load 0.1 --arms "$arms" --system-binary "$millpond" --json "$dir/swap.json" --report "$dir/swap.html" --png "$dir/swap.png"
    check "$dir/swap.json" "all(arm['failed'] == arm['wrong'] == 0 for arm in report['arms'].values())"
    check "$dir/swap.json" "set(report['arms']) == set('$arms'.split(',')) and all(arm['swap']['n'] > 0 for arm in report['arms'].values())"
    check "$dir/swap.json" "all(report['arms'][arm]['swaps'] >= 1 for arm in ('heap', 'glibc', 'pool', 'two', 'minute', 'cold', 'delta10'))"
    # True on any machine: the pool's loader touches almost no fresh memory, and a small change reads little.
    check "$dir/swap.json" "report['arms']['pool']['loader_minor_faults'] < report['arms']['heap']['loader_minor_faults']"
    check "$dir/swap.json" "report['arms']['delta10']['bytes_read'] < 0.3 * report['arms']['pool']['bytes_read'] < report['arms']['delta10']['bytes_shared']"
    written "$dir/swap.html" "<svg"
    drawn "$dir/swap.png"

    "$millpond" bench swap --quick --load 0.1 --store s3 --json "$dir/swap-store.json"
    check "$dir/swap-store.json" "all(arm['failed'] == arm['wrong'] == 0 for arm in report['arms'].values())"
    check "$dir/swap-store.json" "report['arms']['store']['swaps'] >= 1 and report['arms']['store']['p999_ratio'] > 0"

    for engine in torch tensorflow; do
        "$millpond" bench swap --quick --load 0.1 --engine "$engine" --json "$dir/swap-$engine.json"
        check "$dir/swap-$engine.json" "all(arm['failed'] == arm['wrong'] == 0 for arm in report['arms'].values())"
        check "$dir/swap-$engine.json" "report['arms']['pool']['swaps'] >= 1 and report['arms']['pool']['swap']['n'] > 0"
    done

    "$millpond" bench soak --engine onnx,torch,tensorflow --swaps 30 --bytes 8MiB --rate 100 --json "$dir/soak.json"
    check "$dir/soak.json" "report['swaps'] == 30 and report['failed'] == report['wrong'] == 0"
    check "$dir/soak.json" "report['fd_growth'] <= 2 and report['cache_growth_mb'] == 0 and 'rss_growth_pct' in report"
}

serving() {
    "$millpond" bench overhead --quick --json "$dir/overhead.json"
    check "$dir/overhead.json" "all(report[key] > 0 for key in ('bare_rps', 'server_rps', 'ratio'))"
    "$millpond" bench overhead --tls --quick --json "$dir/overhead-tls.json"
    check "$dir/overhead-tls.json" "report['tls_throughput_ratio'] > 0 and report['failed'] == report['wrong'] == 0"
    check "$dir/overhead-tls.json" "8192 <= report['request_bytes'] < 16384 and all(report[key]['tls_rps'] > 0 for key in ('http', 'grpc'))"

    "$millpond" bench overhead --tracing --quick --json "$dir/overhead-tracing.json"
    check "$dir/overhead-tracing.json" "report['off_cpu_ratio'] > 0 and report['sampled_cpu_ratio'] > 0 and report['exported_bytes'] > 0"

    # Always merge, so that batches and padding are checked.
    "$millpond" bench batch --quick --always-merge --json "$dir/batch.json"
    check "$dir/batch.json" "report['wrong'] == report['failed'] == 0 and set(report['models']) == {'small', 'ocr', 'conv'}"
    check "$dir/batch.json" "all(set(model['arms']) == {'sync', 'async', 'padding'} for model in report['models'].values())"
    check "$dir/batch.json" "all(sum(point[key] for arm in model['arms'].values() for point in arm) > 0 for model in report['models'].values() for key in ('clients', 'qps', 'p50_ms', 'p99_ms'))"
    check "$dir/batch.json" "all(report['models'][model]['arms']['padding'][-1]['mean_batch'] > 1 for model in ('small', 'ocr', 'conv'))"
    check "$dir/batch.json" "all(report['models'][model]['arms']['padding'][-1]['padding_share'] > 0 for model in ('ocr', 'conv'))"

    "$millpond" bench overload --quick --json "$dir/overload.json"
    check "$dir/overload.json" "report['wrong'] == 0 and report['capacity_rps'] > 0 and report['ratio_p99'] > 0"
    check "$dir/overload.json" "all(report[load][key] >= 0 for load in ('at_capacity', 'overload') for key in ('p50_ms', 'p99_ms', 'served', 'refused', 'failed'))"
    # Three times the capacity: some requests are refused, with the right status.
    check "$dir/overload.json" "report['overload']['refused'] > 0 and report['overload']['failed'] == 0 and 'refusal_p99_ms' in report['overload']"
    check "$dir/overload.json" "all(report[key] > 0 for key in ('rss_start_mb', 'rss_end_mb', 'rss_peak_mb'))"

    "$millpond" bench rollout --quick --load 0.1 --json "$dir/rollout.json"
    check "$dir/rollout.json" "all(report[key]['requests_to_rollback'] > 0 and report[key]['wrong'] == 0 for key in ('slow', 'errors', 'drift'))"
    check "$dir/rollout.json" "report['slow']['client_failures'] == report['drift']['client_failures'] == 0 and report['shadow_p99_ratio'] > 0"
    check "$dir/rollout.json" "all(round['copies'] > 0 for round in report['shadow_rounds'])"
    "$millpond" bench slow --quick --rate 50 --json "$dir/slow.json"
    check "$dir/slow.json" "{'cpu_hog', 'swap', 'behind_batch', 'slow_client', 'throttled'} == set(report['causes'])"
    check "$dir/slow.json" "all(cause['failed'] == cause['wrong'] == 0 for cause in report['causes'].values())"
    check "$dir/slow.json" "all('skipped' in cause or cause['pulses'] > 0 for cause in report['causes'].values())"
    # A body with a pause of 150 ms is slow because of its client, if pauses of the machine have not raised the limit above that
    # time. tests/clients/test_slow.py checks a long pause.
    check "$dir/slow.json" "(lambda of: of['named'].get('client_slow_send', 0) > 0 or of['slow'] < of['pulses'])(report['causes']['slow_client'])"

    rm -rf "$dir/turned" && "$millpond" publish .cache/models/ch_ppocr_mobile_v2.0_cls_infer.onnx --to "$dir/turned"
    "$millpond" tune "$dir/turned" --target-p99 50ms --time 30s --dims x=1x3x48x192 --fresh --json "$dir/tune.json" --report "$dir/tune.html"
    check "$dir/tune.json" "report['found_qps'] > 0 and report['found']['mode'] in ('sync', 'async') and len(report['points']) > 3"
    written "$dir/turned/millpond.toml" '^\[schedule\]'
    written "$dir/tune.html" "<svg"
}

search() {
    "$millpond" bench tiers --records 20000 --queries 20 --rounds 1 --json "$dir/tiers.json"
    check "$dir/tiers.json" "report['us_per_candidate'] > 0 and {'nvme', 'mmap', 'pmem'} <= set(report['arms'])"
    check "$dir/tiers.json" "'dax' not in report['arms'] and any('--dax' in note for note in report['notes'])"
    check "$dir/tiers.json" "all(cell[key] > 0 for cell in report['arms']['nvme']['cache'].values() for key in ('throughput_ratio', 'p50_ratio', 'p99_ratio', 'rss_mb'))"

    "$millpond" bench match --json "$dir/match.json"
    check "$dir/match.json" "0 <= report['pooled']['fnmr_pct'] <= 100 and report['us_per_match'] > 0 and report['databases']"

    "$millpond" bench vectors --json "$dir/vectors.json"
    "$millpond" bench filter --queries 50 --json "$dir/filter.json"
    check "$dir/filter.json" "report['count_exact'] and report['half_clusters']['recall'] >= 0.97 and len(report['filters']) == 5"
    check "$dir/vectors.json" "report['complete'] and report['dims'] > 0 and report['at95']['millpond_qps'] > 0 and report['curves']"

    "$millpond" bench crash --kills 5 --json "$dir/crash.json"
    check "$dir/crash.json" "report['kills'] == 5 and report['acknowledged'] > 0 and report['lost'] == report['corrupt'] == 0"

    "$millpond" bench images --json "$dir/images.json"
    check "$dir/images.json" "report['false_accepts'] == 0 and report['final_recall1_min'] > 0 and report['query_p50_ms'] > 0 and 'crop50' in report['attacks']"

    check "$dir/images.json" "all('accepted_recall1' in report['attacks'][name] and report['attacks'][name]['false_accepts'] == 0 for name in ('mirror', 'collage', 'crop16', 'screen'))"

    "$millpond" bench duplicates --rows 3000 --dims 32 --planted 200 --json "$dir/duplicates.json"
    check "$dir/duplicates.json" "report['recall'] > 0.5 and report['precision'] > 0.9 and report['seconds'] > 0 and report['rss_mb'] > 0"

    "$millpond" bench ingest --images 40 --rounds 1 --seconds 1 --kills 1 --life-ms 500 --json "$dir/ingest.json"
    check "$dir/ingest.json" "report['lost'] == 0 and all(report[arm]['p99_ms'] > 0 for arm in ('control', 'ingest'))"
}

programs() {
    "$millpond" bench audio --quick --minutes 1 --system-binary "$millpond" --json "$dir/audio.json" --report "$dir/audio.html" --png "$dir"
    check "$dir/audio.json" "len(report['sweep']) == 4 and all(cell[key] > 0 for cell in report['sweep'] for key in ('threads', 'intra', 'seconds', 'cpu_pct'))"
    check "$dir/audio.json" "all(report['memory'][arm][key] > 0 for arm in ('jemalloc', 'system') for key in ('peak_mb', 'mean_mb'))"
    check "$dir/audio.json" "report['speedup_vs_python'] > 0"
    written "$dir/audio.html" "<svg"
    ls "$dir"/*.png

    .cache/serving-peers/tools/bin/python bench/peers/serving.py --program "$millpond" --smoke --json "$dir/serving.json" --chart "$dir/serving.svg"
    check "$dir/serving.json" "report['model'] == 'light' and report['peers']['millpond']['cpu_us'] > 0 and report['peers']['millpond']['swap']['swap_p999_ms'] > 0"
    check "$dir/serving.json" "all(report['peers']['millpond'][key]['failed'] == 0 for key in ('clients_1', 'clients_64'))"
    written "$dir/serving.svg" "<svg"

    MILLPOND_DEMO_SECONDS=5 "$millpond" demo --assets .cache/demo --models .cache/models --images .cache/images --bytes 32MiB --http-port 0 --grpc-port 0
    echo "ok: demo"
}

case $part in
swaps | serving | search | programs) "$part" ;;
*)
    echo "no part $part: swaps, serving, search or programs" >&2
    exit 2
    ;;
esac
