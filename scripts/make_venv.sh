#!/usr/bin/env bash
# make_venv.sh DIR PYTHON REQUIREMENTS: makes a new virtual environment with exactly the listed packages.
#
# Python compiles a module when it is first imported. Compiling all of TensorFlow's at once takes three minutes of a core,
# and the tests import a small part of them.
set -euo pipefail
dir=$1 python=$2 requirements=$3

rm -rf "$dir"
"$python" -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    --requirement "$requirements"
echo "$("$dir/bin/python" --version), $(grep -vc '^#' "$requirements") packages"
