#!/usr/bin/env bash
# All linters; goes on after the first that complains, and fails if any did. `lint.sh <jobs>`
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-2}
PATH=$PWD/.venv/bin:$PATH
failed=()
check() {
  local name=$1
  shift
  printf '%-14s' "$name"
  local output
  if output=$("$@" 2>&1); then echo ok; else
    echo FAILED
    printf '%s\n' "$output"
    failed+=("$name")
  fi
}

mapfile -t sources < <(find src -name '*.cpp' -o -name '*.h')
check clang-format clang-format --dry-run -Werror "${sources[@]}"
check ruff .venv/bin/python -m ruff check magneto tests demo bench
check ruff-format .venv/bin/python -m ruff format --check magneto tests demo bench
check mypy .venv/bin/python -m mypy

# clang-tidy wants compile commands without GCC's precompiled header; configuring is enough for that.
tidy() {
  local other
  other=$(.venv/bin/python -c 'import sys; print("312" if sys.version_info[:2] == (3, 11) else "311")')
  cmake -S . -B build/lint -G Ninja -DPython_EXECUTABLE="$PWD/.venv/bin/python" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON > /dev/null &&
    find src -name '*.cpp' ! -name "cpython_$other.cpp" -print0 |
    xargs -0 -P "$jobs" -n 1 clang-tidy -p build/lint --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-fno-openmp
}
check clang-tidy tidy
[[ ${#failed[@]} == 0 ]] || { echo "lint failed: ${failed[*]}"; exit 1; }
