#!/usr/bin/env bash
# disk_check.sh GB: fails if the disk has too little space for the checkout to grow to GB billion bytes. Without this
# check, a full disk shows late, as a bus error of the linker.
set -euo pipefail
needed=$(($1 * 1000))
free=$(df --output=avail --block-size=1MB . | tail -n 1)
used=$({ du --summarize --total --block-size=1MB target .cache .venv* 2>/dev/null || true; } | tail -n 1 | cut -f 1)
if ((free + used < needed)); then
    echo "the disk has $((free / 1000)) GB of free space, less than the $(((needed - used) / 1000)) GB that are needed" >&2
    echo "hint: remove files, or use a checkout on another disk" >&2
    exit 1
fi
