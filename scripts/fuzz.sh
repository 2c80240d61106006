#!/usr/bin/env bash
# fuzz.sh DIR SECONDS [TARGET...]: builds the fuzz targets with coverage on the stable toolchain and runs each for SECONDS,
# or all targets if none is named. The corpus stays in DIR/corpus/TARGET, findings in DIR/findings/TARGET. Exits with 1 if
# there is a finding, and prints the command that reproduces it.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 seconds=$2
shift 2
for target; do
    if ! [ -f "fuzz/fuzz_targets/$target.rs" ]; then
        echo "no target $target; fuzz/fuzz_targets has them" >&2
        exit 2
    fi
done

# The flags of cargo-fuzz without the sanitizers, which need a nightly compiler. Because of --target, build scripts do not
# get them.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
for kind in inline-8bit-counters pc-table trace-compares; do
    coverage+=" -Cllvm-args=-sanitizer-coverage-$kind"
done
machine=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="$coverage -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing" \
    cargo build --package millpond-fuzz --features libfuzzer --locked --profile fuzz --target "$machine" \
    --target-dir target/fuzz --bins

[ $# -gt 0 ] || set -- $(cd fuzz/fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
failed=0
for target; do
    mkdir -p "$dir/corpus/$target" "$dir/findings/$target"
    log="$dir/$target.log"
    echo "$target: $seconds s, log in $log"
    if "target/fuzz/$machine/fuzz/$target" "$dir/corpus/$target" "fuzz/seeds/$target" \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3072 -print_final_stats=1 \
        -artifact_prefix="$dir/findings/$target/" >"$log" 2>&1; then
        grep -E 'Done |cov:' "$log" | tail -2
    else
        failed=1
        grep -vE '^#[0-9]+' "$log" | tail -25
        echo "FINDING in $target; reproduce it with"
        echo "    target/fuzz/$machine/fuzz/$target $dir/findings/$target/FILE"
    fi
done
exit $failed
