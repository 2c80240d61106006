#!/usr/bin/env bash
# dist.sh BUILT DIST: copies the programs in BUILT to DIST/millpond-VERSION-TARGET without debug sections, writes the
# sections to DIST/debug, and prints the sizes. A debugger finds them by the link in the program.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$1 dist=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
target=$(rustc -vV | sed -n 's/^host: //p')
package="$dist/millpond-$version-$target" debug="$dist/debug"
rm -rf "$package" "$debug"
mkdir -p "$package" "$debug"
for program in millpond millpond-bench; do
    objcopy --only-keep-debug "$built/$program" "$debug/$program.debug"
    strip --strip-unneeded -o "$package/$program" "$built/$program"
    (cd "$debug" && objcopy --add-gnu-debuglink="$program.debug" "$OLDPWD/$package/$program")
done
cp README.md LICENSE CHANGELOG.md "$package"
(cd "$dist" && tar --sort=name --owner=0 --group=0 --numeric-owner -czf "$(basename "$package").tar.gz" "$(basename "$package")" &&
    sha256sum "$(basename "$package").tar.gz" >"$(basename "$package").tar.gz.sha256")
du -h --apparent-size "$package"/millpond* "$debug"/* "$package.tar.gz"
