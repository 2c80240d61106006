#!/usr/bin/env bash
# torch.sh SHIM_DIR REQUIREMENTS DIST MATURIN_BIN: packs the wheel millpond-torch, the LibTorch engine, from the objects
# that `make torch` compiled in SHIM_DIR. The shim is linked anew, since the wheel has LibTorch beside it, in ../torch/lib.
set -euo pipefail
shim=$(realpath "$1") requirements=$(realpath "$2") dist=$(realpath --canonicalize-missing "$3") tools=$(realpath "$4")
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
torch=$(grep '^torch==' "$requirements")
lib=$(echo "$shim"/../lib/python3*/site-packages/torch/lib)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
package="$scratch/millpond_torch" info="$scratch/millpond_torch-$version.dist-info"
mkdir -p "$package" "$info/licenses" "$dist"

g++ -shared -o "$package/libmillpond_torch.so" "$shim/shim.o" -L"$lib" -ltorch_cpu -lc10 \
    -Wl,--no-undefined,--allow-shlib-undefined -Wl,-rpath,'$ORIGIN:$ORIGIN/../torch/lib'
cp "$shim/libtorch.so" "$package"
strip --strip-unneeded "$package"/*.so
echo '"""The LibTorch engine of Millpond: libraries that the program finds here."""' >"$package/__init__.py"

# The libraries contain templates of LibTorch's headers.
cp LICENSE "$info/licenses/LICENSE"
cp "$lib"/../../torch-*.dist-info/licenses/LICENSE "$info/licenses/LICENSE.torch"

# The tag names the GLIBC that the libraries ask for.
glibc=$(objdump -T "$package"/*.so | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
cat >"$info/WHEEL" <<WHEEL
Wheel-Version: 1.0
Generator: millpond
Root-Is-Purelib: false
Tag: py3-none-manylinux_${glibc/./_}_$(uname -m)
WHEEL
cat >"$info/METADATA" <<METADATA
Metadata-Version: 2.4
Name: millpond-torch
Version: $version
Summary: The LibTorch engine of Millpond
License-Expression: Apache-2.0 AND BSD-3-Clause
License-File: LICENSE
License-File: LICENSE.torch
Requires-Python: >=3.9
Requires-Dist: $torch
METADATA
"$tools/python" -m wheel pack "$scratch" --dest-dir "$dist"
