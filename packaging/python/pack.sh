#!/usr/bin/env bash
# pack.sh PROGRAM DIST MATURIN_BIN: packs the wheel of pyproject.toml around PROGRAM, which is stripped, without compiling.
# The wheel carries the tag of this machine, so it is for tests; `make wheel` builds the one for other machines.
set -euo pipefail
program=$(realpath "$1") dist=$(realpath --canonicalize-missing "$2") tools=$(realpath "$3")
cd "$(dirname "$0")"
./licences.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
info=$("$tools/maturin" pep517 write-dist-info --metadata-directory "$scratch" 2>"$scratch/maturin.log") || {
	cat "$scratch/maturin.log" >&2
	exit 1
}
rm "$scratch/maturin.log"
cp -r millpond "$scratch/millpond"
rm -rf "$scratch/millpond/__pycache__"
scripts="$scratch/${info%.dist-info}.data/scripts"
mkdir -p "$scripts" "$dist"
strip --strip-unneeded -o "$scripts/millpond" "$program"
"$tools/python" -m wheel pack "$scratch" --dest-dir "$dist"
