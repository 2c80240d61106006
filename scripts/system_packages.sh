#!/usr/bin/env bash
# Installs missing Debian packages and checks the versions of Python and Rust. Without the right to install, prints the
# command. Does nothing if nothing is missing.
set -euo pipefail
PYTHON=${PYTHON:-python3}
# The oldest version that all packages of requirements/ support.
PYTHON_MIN=3.11

system=$(uname -s)
if [ "$system" != Linux ]; then
    echo "Millpond builds and runs on Linux, and this system is $system" >&2
    echo "hint: use a Linux machine, a virtual machine or a container" >&2
    exit 1
fi

# Debian's package of this Python.
name=$(basename "$PYTHON")
[[ $name =~ ^python3(\.[0-9]+)?$ ]] || name=python3

missing=()
command -v cc >/dev/null && command -v g++ >/dev/null && command -v make >/dev/null || missing+=(build-essential)
command -v "$PYTHON" >/dev/null || missing+=("$name")
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=("$name-venv")
command -v curl >/dev/null || missing+=(curl)
command -v openssl >/dev/null || missing+=(openssl)
[ -f /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "installing: ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "missing Debian packages: ${missing[*]}" >&2
        echo "hint: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
fi

# True if version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

found=$("$PYTHON" -c 'import platform; print(platform.python_version())')
if ! at_least "$found" "$PYTHON_MIN"; then
    echo "Python $PYTHON_MIN or newer is needed, $PYTHON is $found" >&2
    echo "hint: install a newer one and name it in the command, for example: make demo PYTHON=python3.12" >&2
    exit 1
fi

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
if ! command -v cargo >/dev/null; then
    echo "Rust $wanted or newer is needed, but cargo is not on the PATH" >&2
    if [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo" ]; then
        echo "hint: run . \"${CARGO_HOME:-$HOME/.cargo}/env\" or open a new terminal, then run make again" >&2
    else
        echo "hint: install it with rustup, then run make again" >&2
    fi
    exit 1
fi
# The first call lets rustup install the toolchain of rust-toolchain.toml. Its progress and its errors go to stderr.
if ! found=$(cargo --version | cut -d' ' -f2); then
    echo "hint: cargo does not start, the lines above say why; rust-toolchain.toml names the toolchain" >&2
    exit 1
fi
if ! at_least "$found" "$wanted"; then
    echo "Rust $wanted or newer is needed, found $found" >&2
    echo "hint: install it with rustup, then run make again" >&2
    exit 1
fi
