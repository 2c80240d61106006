#!/usr/bin/env bash
# torch_python.sh PYTHON ARGUMENT...: runs a Python whose `import torch` works without CUDA.
#
# The Python part of the official wheel needs a dozen CUDA libraries, gigabytes that a machine without a GPU never
# calls. This script puts empty libraries of the same names in their place. Only tools that write or check models need
# it: the server opens the wheel's C++ part, which does not need CUDA.
#
# torch comes from .venv (`make torch`), everything else from PYTHON.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
site=$(echo "$root"/.venv/lib/python3.*/site-packages)
stubs=$root/.cache/torch-stubs

[ -f "$site/torch/lib/libtorch_python.so" ] || { echo "no torch in .venv; run \`make torch\`" >&2; exit 1; }

libraries="libcublas.so.13 libcublasLt.so.13 libcuda.so.1 libcudnn.so.9 libcufft.so.12 libcufile.so.0 libcusolver.so.12
libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2 libnvrtc.so.13"
# The symbols of this library have a version, and some are variables, which are resolved at load time.
versioned=libnvshmem_host.so.3 version=NVSHMEM
# Targets of make run in parallel, and the libraries are made once.
mkdir -p "$stubs"
exec 9>"$stubs/lock"
flock 9
# Another version of torch may need other libraries and symbols.
if ! [ "$stubs/ready" -nt "$root/.venv/torch-packages" ] || ! [ "$stubs/ready" -nt "$root/scripts/torch_python.sh" ]; then
    echo 'void millpond_stub(void) {}' >"$stubs/stub.c"
    for name in $libraries; do
        cc -shared -fPIC -o "$stubs/$name" "$stubs/stub.c" "-Wl,-soname,$name"
    done
    nm -D --undefined-only --with-symbol-versions "$site/torch/lib/libtorch_nvshmem.so" |
        sed -n "s/^ *U \\([A-Za-z0-9_]*\\)@$version\$/char \\1[64];/p" >"$stubs/versioned.c"
    echo "$version { global: *; };" >"$stubs/versioned.map"
    cc -shared -fPIC -o "$stubs/$versioned" "$stubs/versioned.c" "-Wl,-soname,$versioned" \
        "-Wl,--version-script=$stubs/versioned.map"
    mkdir -p "$stubs/python"
    # Functions of the empty libraries stay unresolved until a call, which never happens.
    printf 'import os, sys\n\nsys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)\n' >"$stubs/python/sitecustomize.py"
    touch "$stubs/ready"
fi
for package in torch torchgen functorch nvidia; do
    [ -e "$stubs/python/$package" ] || ln -sfn "$site/$package" "$stubs/python/$package"
done

exec 9>&-

export LD_LIBRARY_PATH="$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$stubs/python${PYTHONPATH:+:$PYTHONPATH}"
exec "$@"
