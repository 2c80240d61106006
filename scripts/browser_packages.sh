#!/usr/bin/env bash
# Installs the Debian packages of Chromium and its driver, for the test of the live page. Without the right to install,
# prints the command.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "missing Debian packages: ${missing[*]}" >&2
    echo "hint: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
