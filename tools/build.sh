#!/usr/bin/env bash
# Configures (when needed) and builds the core: `build.sh <build folder> <jobs> [cmake options...]`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
folder=$1 jobs=$2
shift 2
# A finished code generator for machines without LLVM.
[[ -z ${MAGNETO_CODEGEN_LIBRARY:-} ]] || set -- "$@" -DMAGNETO_CODEGEN_LIBRARY="$MAGNETO_CODEGEN_LIBRARY"
PATH=$PATH:$PWD/$venv/bin

# A folder configured for another Python or PyTorch can't be reused.
identity="$($venv/bin/python -c 'import sys, importlib.metadata as m; print(sys.version, m.version("torch"))') $PWD $*"
if [[ ! -f $folder/build.ninja || $(cat "$folder/.identity" 2> /dev/null) != "$identity" ]]; then
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  mkdir -p "$folder"
  cmake -S . -B "$folder" -G Ninja -DPython_EXECUTABLE="$PWD/$venv/bin/python" "$@" > "$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log" >&2; exit 1; }
  echo "$identity" > "$folder/.identity"
fi
# One line while it works; all of it when it fails.
if [[ -t 1 ]]; then
  ninja -C "$folder" -j "$jobs"
else
  ninja -C "$folder" -j "$jobs" > "$folder/build.log" 2>&1 || { cat "$folder/build.log" >&2; exit 1; }
fi
