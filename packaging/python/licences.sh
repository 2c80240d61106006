#!/usr/bin/env bash
# licences.sh [TARGET]: puts the files of `license-files` (pyproject.toml) beside it, since maturin takes no file of a
# parent directory. TARGET is the target of the program, by default this machine's.
set -euo pipefail
cd "$(dirname "$0")"
cp ../../LICENSE LICENSE
python3 ../licences/collect.py ${1:+--target "$1"} --to THIRD-PARTY-LICENSES.txt
