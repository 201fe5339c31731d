#!/usr/bin/env bash
# Builds the core with sanitizers beside the normal one and runs the tests on it: all of them under AddressSanitizer and
# UBSan, then those that use threads under ThreadSanitizer. `sanitize.sh <jobs> [address] [thread]`; ARGS: other tests.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
jobs=${1:-2}
shift || true
kinds=("${@:-address}")
[[ $# != 0 ]] || kinds=(address thread)

library() { g++ -print-file-name="$1"; }

# Leaks: CPython and PyTorch keep much on purpose; tests/test_leaks.py counts ours (and can't here: freed memory is kept
# aside, so that no object lies where another one lay, either). Python uses plain malloc so that ASan sees each object.
# What no memory can hold is the program's error. Faults of snapshots of guards can't be noticed: ASan's memory is too far
# apart for one (`Words::add`).
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:detect_odr_violation=0:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# CPython, PyTorch and OpenMP are not instrumented: what happens inside them is not judged.
export TSAN_OPTIONS="halt_on_error=1 abort_on_error=1 suppressions=$PWD/tools/thread-sanitizer.txt"
export OMP_NUM_THREADS=1
# Instrumented functions take several times the stack, which CPython 3.12 measures in calls, not in bytes.
ulimit -s 65536

run() {
  local kind=$1 sanitizers=$2 libraries=$3 tests=$4
  local folder=build/sanitize-$kind package=$PWD/build/sanitize-$kind/package/magneto
  mkdir -p "$package"
  # The package's Python; the libraries are this build's own.
  local file
  for file in magneto/*; do [[ $file == *.so || $file == *__pycache__ ]] || ln -sfn "$PWD/$file" "$package/"; done
  tools/build.sh "$folder" "$jobs" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMAGNETO_SANITIZE="$sanitizers" \
    -DMAGNETO_PACKAGE_DIR="$package"
  # The sanitizers' libraries come first in the process.
  PYTHONMALLOC=malloc PYTHONPATH=$PWD/$folder/package LD_PRELOAD=$libraries \
    bash -c "$venv/bin/python -P -m pytest ${ARGS:-$tests}"
}

for kind in "${kinds[@]}"; do
  case $kind in
    address)
      run address address,undefined "$(library libasan.so) $(library libubsan.so) $(library libstdc++.so)" \
        "tests -k 'not isolation and not setup and not leak_nothing and not another_one_lay and not snapshot.'"
      ;;
    thread) run thread thread "$(library libtsan.so) $(library libstdc++.so)" "tests -m threads" ;;
    *) echo "sanitize.sh: $kind is neither address nor thread" >&2 && exit 2 ;;
  esac
done
