#!/usr/bin/env bash
# make_venv.sh DIR PYTHON REQUIREMENTS: makes a new virtual environment with exactly the listed packages.
#
# uv installs them, or pip if uv cannot: pip needs over two minutes of a core for the environment of the tests, uv 12 s.
# Neither compiles modules: Python does that when it first imports one.
set -euo pipefail
dir=$1 python=$2 requirements=$3
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/.cache/tools/uv

# Environments are made in parallel, uv is installed once.
install_uv() {
    mkdir -p "$(dirname "$tools")"
    exec 9>"$tools.lock"
    flock 9
    if ! [ "$tools/ready" -nt "$root/requirements/uv.txt" ]; then
        rm -rf "$tools"
        "$python" -m venv "$tools"
        "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
            --requirement "$root/requirements/uv.txt" || return 1
        touch "$tools/ready"
    fi
    exec 9>&-
}

rm -rf "$dir"
"$python" -m venv "$dir"
# Environments share the files of the cache by hard links.
if ! { install_uv && UV_CACHE_DIR=$root/.cache/uv "$tools/bin/uv" pip install --quiet \
    --python "$dir/bin/python" --no-deps --requirement "$requirements"; }; then
    echo "uv did not install $requirements; pip does" >&2
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
        --requirement "$requirements"
fi
echo "$("$dir/bin/python" --version), $(grep -vc '^#' "$requirements") packages"
