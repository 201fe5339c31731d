#!/usr/bin/env bash
# Builds the core with AddressSanitizer and UBSan beside the normal one and runs the tests on it. `sanitize.sh <jobs>`
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/sanitize
package=$PWD/$folder/package/magneto

mkdir -p "$package"
for file in magneto/*.py; do ln -sf "$PWD/$file" "$package/"; done
tools/build.sh "$folder" "${1:-2}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMAGNETO_SANITIZE=ON -DMAGNETO_PACKAGE_DIR="$package"

# Leaks: CPython and PyTorch keep much on purpose; tests/test_leaks.py counts ours. The libraries come first in the
# process, and Python uses plain malloc so that ASan sees each object.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:detect_odr_violation=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export PYTHONMALLOC=malloc PYTHONPATH=$PWD/$folder/package
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)" \
  .venv/bin/python -P -m pytest ${ARGS:-tests -k "not isolation and not setup"}
