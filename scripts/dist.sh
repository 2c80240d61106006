#!/usr/bin/env bash
# dist.sh BUILT DIST: copies the programs in BUILT to DIST/millpond-VERSION-TARGET without debug sections, writes the
# sections to DIST/debug, and prints the sizes. A debugger finds them by the link in the program.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$(realpath "$1")
dist=$(realpath --canonicalize-missing "$2")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name="millpond-$version-$(rustc -vV | sed -n 's/^host: //p')"
rm -rf "${dist:?}/$name" "$dist/debug"
mkdir -p "$dist/$name" "$dist/debug"
# The link in a program holds the bare name of its debug file.
cd "$dist/debug"
for program in millpond millpond-bench; do
    objcopy --only-keep-debug "$built/$program" "$program.debug"
    strip --strip-unneeded -o "$dist/$name/$program" "$built/$program"
    objcopy --add-gnu-debuglink="$program.debug" "$dist/$name/$program"
done
cp "$OLDPWD"/{README.md,LICENSE,CHANGELOG.md} "$dist/$name"
python3 "$OLDPWD/packaging/licences/collect.py" --package millpond-cli --package millpond-bench \
    --to "$dist/$name/THIRD-PARTY-LICENSES.txt"
cd "$dist"
tar --sort=name --owner=0 --group=0 --numeric-owner -czf "$name.tar.gz" "$name"
du -h --apparent-size "$name"/millpond* debug/* "$name.tar.gz"
