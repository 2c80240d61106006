#!/usr/bin/env bash
# emulate.sh COMMAND [ARGUMENT...]: runs a command that may start programs for arm64; qemu runs these.
#
# The kernel passes programs for arm64 to qemu in the namespaces of the command only, so nothing else changes on the
# machine. This needs Linux 6.7, the first in which a user namespace has a binfmt_misc of its own, and no root.
set -euo pipefail
export MILLPOND_ARM64_CPUINFO=${BASH_SOURCE%/*}/cpuinfo
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu QEMU_CPU=neoverse-n1

# ONNX Runtime reads /proc/cpuinfo, and a description of another kind of processor makes it end by a segmentation fault.
inside='
set -eu
mount --bind "$MILLPOND_ARM64_CPUINFO" /proc/cpuinfo
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
magic="\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00"
mask="\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff"
printf "%s" ":arm64:M::$magic:$mask:$(command -v qemu-aarch64-static):F" > /proc/sys/fs/binfmt_misc/register
exec "$@"
'
exec unshare --user --map-root-user --mount sh -c "$inside" sh "$@"
