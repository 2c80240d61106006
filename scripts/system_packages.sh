#!/usr/bin/env bash
# Installs missing Debian packages and checks the Rust toolchain. Without the right to install, prints the command. Does
# nothing if nothing is missing.
set -euo pipefail
PYTHON=${PYTHON:-python3}

missing=()
command -v cc >/dev/null && command -v g++ >/dev/null && command -v make >/dev/null || missing+=(build-essential)
command -v "$PYTHON" >/dev/null || missing+=(python3)
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
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

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
found=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
if [ -z "$found" ] || [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
    echo "Rust $wanted or newer is needed, found ${found:-none}" >&2
    echo "hint: install it with rustup, then run make again" >&2
    exit 1
fi
