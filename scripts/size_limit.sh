#!/usr/bin/env bash
# size_limit.sh MB FILE...: fails if a file has more than MB million bytes.
set -euo pipefail
max_mb=$1
shift
for file in "$@"; do
    bytes=$(stat --format %s -- "$file")
    if [ "$bytes" -gt $((max_mb * 1000000)) ]; then
        echo "$file has $bytes bytes, more than $max_mb MB" >&2
        echo "hint: compare the sizes in docs/measurements/build-and-tests.md, or set a new limit in packaging/packaging.mk" >&2
        exit 1
    fi
done
