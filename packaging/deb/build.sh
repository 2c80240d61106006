#!/usr/bin/env bash
# build.sh PROGRAM RUNTIME DIST: packs DIST/millpond_VERSION_ARCHITECTURE.deb without compiling. PROGRAM is stripped; RUNTIME
# is the directory of the onnxruntime Python package, whose library and licences go into /usr/lib/millpond. The package is
# the same for the same inputs and SOURCE_DATE_EPOCH. COMPRESSION is xz unless set.
set -euo pipefail
program=$(realpath "$1") runtime=$(realpath "$2") dist=$(realpath --canonicalize-missing "$3")
cd "$(dirname "$0")"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' ../../Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"
umask 022

install -D -m 0755 "$program" "$root/usr/bin/millpond"
install -D -m 0644 -t "$root/usr/lib/millpond" "$runtime"/capi/libonnxruntime.so.*
strip --strip-unneeded "$root/usr/bin/millpond"
install -D -m 0644 millpond.toml "$root/etc/millpond/millpond.toml"
install -D -m 0640 default "$root/etc/default/millpond"
install -D -m 0644 millpond.service "$root/usr/lib/systemd/system/millpond.service"
install -d "$root/var/lib/millpond/models" "$root/usr/share/man/man1"
"$root/usr/bin/millpond" man --to "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
completions() { # SHELL FILE
    install -d "$(dirname "$root/usr/share/$2")"
    "$root/usr/bin/millpond" completion "$1" >"$root/usr/share/$2"
}
completions bash bash-completion/completions/millpond
completions zsh zsh/vendor-completions/_millpond
completions fish fish/vendor_completions.d/millpond.fish
documents="$root/usr/share/doc/millpond"
install -d "$documents"
cat - ../../LICENSE >"$documents/copyright" <<COPYRIGHT
Millpond is under the Apache License 2.0, see below. Files in /usr/share/doc/millpond have the other licences:
/usr/bin/millpond is linked from Rust crates, see THIRD-PARTY-LICENSES.txt.gz. ONNX Runtime is in /usr/lib/millpond, see
onnxruntime-LICENSE and onnxruntime-ThirdPartyNotices.txt.gz.

COPYRIGHT
python3 ../licences/collect.py --to "$documents/THIRD-PARTY-LICENSES.txt"
gzip -9n "$documents/THIRD-PARTY-LICENSES.txt"
install -D -m 0644 "$runtime/LICENSE" "$documents/onnxruntime-LICENSE"
gzip -9nc "$runtime/ThirdPartyNotices.txt" >"$documents/onnxruntime-ThirdPartyNotices.txt.gz"
gzip -9nc ../../CHANGELOG.md >"$documents/changelog.gz"

# The newest symbols of GLIBC that the program and the library ask for.
glibc=$(objdump -T "$root/usr/bin/millpond" "$root"/usr/lib/millpond/* | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
install -d "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: millpond
Version: $version
Architecture: $architecture
Maintainer: The Millpond authors <millpond@localhost>
Section: net
Priority: optional
Depends: libc6 (>= $glibc), libgcc-s1, libstdc++6, passwd, procps
Recommends: ca-certificates
Installed-Size: $(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f1)
Description: Model server whose tail latency stays flat while models change
 Serves ONNX models, TorchScript modules and TensorFlow SavedModels over
 TensorFlow Serving's API and the Open Inference Protocol, and searches images.
 ONNX Runtime is included; LibTorch and TensorFlow are found if installed.
CONTROL
printf '%s\n' /etc/millpond/millpond.toml /etc/default/millpond >"$root/DEBIAN/conffiles"
install -m 0755 postinst prerm postrm "$root/DEBIAN"
mkdir -p "$dist"
# Times of files in the package, so that the same inputs give the same package. A program that is compiled again has another
# time and the same bytes, so the default is the time of the last commit, as for the image.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y "$program")}
export SOURCE_DATE_EPOCH
dpkg-deb --root-owner-group "-Z${COMPRESSION:-xz}" --build "$root" "$dist" >/dev/null
du -h --apparent-size "$root/usr/bin/millpond" "$root"/usr/lib/millpond/* "$dist/millpond_${version}_$architecture.deb" | sed "s|$root||"
