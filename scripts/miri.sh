#!/usr/bin/env bash
# miri.sh: runs the tests of pure code under Miri, which finds undefined behaviour: reads outside an object, uninitialised
# bytes, wrong aliasing. Files, sockets, threads of other programs and vector instructions are out of its reach.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "Miri is missing" >&2
    echo "hint: rustup toolchain install nightly --component miri --component rust-src" >&2
    exit 1
fi
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" PROPTEST_CASES=4
miri() { cargo +nightly miri test --locked --target-dir target/miri "$@"; }
miri -p millpond-kernels --lib
miri -p millpond-memory --lib -- plan:: slots::
# Miri runs the flip of every bit of a page for hours; the plain test covers it.
miri -p millpond-storage --test it -- format:: --skip every_flipped
