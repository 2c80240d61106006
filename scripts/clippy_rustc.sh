#!/usr/bin/env bash
# clippy_rustc.sh RUSTC ARGUMENTS...: compiles a crate of the workspace and then lints it, as RUSTC_WORKSPACE_WRAPPER of
# CI. `cargo clippy` would read all dependencies a second time. Clippy's driver alone could compile too, but it leaves out
# the optimisations of rustc's intermediate code (MIR): the build takes longer, and so do the tests.
# A library is compiled twice, with and without its tests. Clippy reads it once, with its tests; rustc's own lints check both.
set -euo pipefail
rustc=$1
shift

# Cargo asks for the version and for settings of the target; these calls compile nothing.
case " $* " in
*" --crate-name ___ "* | *" -vV "* | *" --print"*) exec "$rustc" "$@" ;;
*" --crate-name "*) "$rustc" "$@" -D warnings ;;
*) exec "$rustc" "$@" ;;
esac
[[ " $* " != *" --crate-type lib "* ]] || exit 0

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
arguments=()
while (($#)); do
    case $1 in
    --emit=*) arguments+=(--emit=metadata) ;;
    --out-dir) arguments+=(--out-dir "$out") && shift ;;
    # A file that cargo does not expect.
    --json=*) arguments+=("${1/,artifacts/}") ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
clippy-driver "$rustc" "${arguments[@]}" -D warnings
