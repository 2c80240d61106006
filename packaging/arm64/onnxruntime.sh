#!/usr/bin/env bash
# onnxruntime.sh DIR PROGRAMS: installs ONNX Runtime for arm64 in DIR, and copies its library into PROGRAMS and PROGRAMS/deps.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$1 programs=$2
package=$(grep '^onnxruntime==' requirements/runtime.txt)
if ! [ -e "$dir/ready" ] || [ "$(<"$dir/ready")" != "$package" ]; then
    rm -rf "$dir"
    .venv-test/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform manylinux_2_28_aarch64 --python-version 3.11 --target "$dir" "$package"
    echo "$package" > "$dir/ready"
fi
mkdir -p "$programs/deps"
for place in "$programs" "$programs/deps"; do
    cp "$dir"/onnxruntime/capi/libonnxruntime.so.* "$place/libonnxruntime.so"
done
