#!/usr/bin/env bash
# All linters; goes on after the first that complains, and fails if any did. `lint.sh <jobs> [fast]`; fast: those that take
# seconds and need no headers, which are all but clang-tidy.
set -uo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
jobs=${1:-2}
PATH=$PWD/$venv/bin:$PATH
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

folders=(magneto tests demo bench tools)
mapfile -t sources < <(find src -name '*.cpp' -o -name '*.h')
check structure $venv/bin/python tools/structure.py
check clang-format clang-format --dry-run -Werror "${sources[@]}"
check ruff $venv/bin/python -m ruff check "${folders[@]}"
check ruff-format $venv/bin/python -m ruff format --check "${folders[@]}"
check mypy $venv/bin/python -m mypy
NO_MKDOCS_2_WARNING=1 check docs $venv/bin/python -P -m mkdocs --quiet build --strict

# clang-tidy wants compile commands without GCC's precompiled header; configuring is enough for that.
tidy() {
  local own
  own=$($venv/bin/python -c 'import sys; print("*_%d%d.cpp" % sys.version_info[:2])')
  cmake -S . -B build/lint -G Ninja -DPython_EXECUTABLE="$PWD/$venv/bin/python" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    -DMAGNETO_BATCH_BYTES=0 > /dev/null &&
    find src -name '*.cpp' ! \( -path '*/python/*_3[0-9]*.cpp' ! -name "$own" \) -print0 |
    xargs -0 -P "$jobs" -n 1 clang-tidy -p build/lint --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-fno-openmp
}
[[ ${2:-} == fast ]] || check clang-tidy tidy
[[ ${#failed[@]} == 0 ]] || { echo "lint failed: ${failed[*]}"; exit 1; }
