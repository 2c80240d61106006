#!/usr/bin/env bash
# torch_python.sh PYTHON ARGUMENT...: runs a Python whose `import torch` works without CUDA.
#
# The official wheel's Python half insists on a dozen CUDA libraries that a machine without a graphics card never
# calls, gigabytes of them. Empty libraries of the same names stand in for them here. Only tools that write or check
# models need this: the server opens the wheel's C++ half, which wants none of it.
#
# torch itself is the one in .venv (`make torch`); PYTHON brings everything else.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
site=$(echo "$root"/.venv/lib/python3.*/site-packages)
stubs=$root/.cache/torch-stubs

[ -f "$site/torch/lib/libtorch_python.so" ] || { echo "no torch in .venv; run \`make torch\`" >&2; exit 1; }

libraries="libcublas.so.13 libcublasLt.so.13 libcuda.so.1 libcudnn.so.9 libcufft.so.12 libcufile.so.0 libcusolver.so.12
libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2 libnvrtc.so.13"
# This one's symbols carry a version, and some of them are variables, which are looked up before anything is called.
versioned=libnvshmem_host.so.3 version=NVSHMEM
if [ ! -f "$stubs/ready" ]; then
    mkdir -p "$stubs"
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
    # Function symbols of the stand-ins stay unresolved until they are called, which is never.
    printf 'import os, sys\n\nsys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)\n' >"$stubs/python/sitecustomize.py"
    touch "$stubs/ready"
fi
for package in torch torchgen functorch nvidia; do
    [ -e "$stubs/python/$package" ] || ln -sfn "$site/$package" "$stubs/python/$package"
done

export LD_LIBRARY_PATH="$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$stubs/python${PYTHONPATH:+:$PYTHONPATH}"
exec "$@"
