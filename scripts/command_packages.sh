#!/usr/bin/env bash
# command_packages.sh COMMAND=PACKAGE...: installs the Debian package of each command that is missing. Without the right
# to install, prints the command to run.
set -euo pipefail
# Targets of make run in parallel; apt does not.
exec 9<"$0"
flock 9

missing=()
for pair in "$@"; do
    # Some commands are in directories that only the PATH of root has.
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
done
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
