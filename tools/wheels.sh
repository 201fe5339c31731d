#!/usr/bin/env bash
# Builds wheels into dist/: `wheels.sh one <python> <jobs>` for the PyTorch that this Python imports, `wheels.sh all <jobs>`
# for each pair of a Python and a release of PyTorch that can be had here; `wheels.sh pairs` lists these.
# Environment, for these two: PYTHONS (interpreters; otherwise each supported one that is found), RELEASES (of PyTorch;
# otherwise the newest patch release of each supported minor one that pip finds for the interpreter).
# Builds of one pair go on from where they stood.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }

# A folder for each pair: CMake's cache names its Python and its PyTorch. It lies where `build` lies: ccache knows files by
# paths that are relative to such a folder, and the compiler by its name: the one that CMake takes where nobody says.
build_one() {
  local python=$1 jobs=$2 release tag folder made
  read -r tag release < <("$python" -c 'import importlib.metadata as m, sys
print("cp%d%d" % sys.version_info[:2], m.version("torch").partition("+")[0])')
  folder=build-$tag-torch$release
  made=$folder/made
  mkdir -p dist "$made"
  rm -f "$made"/*
  PATH=$PATH:$(dirname "$python") CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
    "$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings=build-dir="$folder" -w "$made" .
  "$python" -P tools/name_wheel.py "$made"/magneto-*.whl "$release" dist
}

# Whether a Python can be built for: it runs, with headers and venv, and with a GIL.
can_build() {
  "$1" - << 'PY' 2> /dev/null
import ensurepip, os, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
assert not sysconfig.get_config_var("Py_GIL_DISABLED")
PY
}

# The first `python3.N` that can be built for. A shim of pyenv runs only what is chosen; its folder has all versions.
find_python() {
  local python
  for python in $(type -ap "$1") "${PYENV_ROOT:-$HOME/.pyenv}/versions/${1#python}".*/bin/"$1"; do
    can_build "$python" && { echo "$python"; return; }
  done
  return 1
}

# The interpreters to build for, a line each.
pythons() {
  local minor python
  for python in ${PYTHONS:-}; do
    find_python "$python" || { echo "error: $python is no CPython with headers and venv (PYTHONS)" >&2; exit 1; }
  done
  [[ -z ${PYTHONS:-} ]] || return 0
  for minor in $(tools/setup.sh minors); do find_python "python3.$minor" || true; done
}

# The releases of PyTorch to build for with an interpreter, oldest first.
releases() {
  if [[ -n ${RELEASES:-} ]]; then
    printf '%s\n' $RELEASES
    return
  fi
  local release
  for release in $("$1" -m pip index versions torch --disable-pip-version-check 2> /dev/null |
    sed -n 's/^Available versions: //p' | "$1" -P tools/name_wheel.py releases); do
    # What pip lists, its constraints may still forbid.
    ! "$1" -m pip install -q --dry-run --no-deps --target dist/none "torch==$release" &> /dev/null || echo "$release"
  done
}

build_all() {
  local jobs=$1 pythons python release venv minor failed=0
  local -a lines=() found
  pythons=$(pythons) || exit 1
  mapfile -t found < <(printf '%s' "$pythons")
  [[ ${#found[@]} != 0 ]] || { echo "error: no CPython here that Magneto supports and that has headers and venv" >&2; exit 1; }
  for python in "${found[@]}"; do
    minor=$("$python" -c 'import sys; print("3.%d" % sys.version_info.minor)')
    venv=.venv-wheels-$minor
    [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check 'scikit-build-core>=0.11' 'cmake>=3.25' ninja
    for release in $(releases "$venv/bin/python"); do
      say "CPython $minor, PyTorch $release"
      # Headers and libraries are all that a build wants of it: nothing that it would need to run.
      if ! "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "torch==$release"; then
        lines+=("CPython $minor, PyTorch $release: pip has no such PyTorch here")
        failed=1
      elif build_one "$venv/bin/python" "$jobs"; then
        lines+=("CPython $minor, PyTorch $release: built")
      else
        lines+=("CPython $minor, PyTorch $release: FAILED")
        failed=1
      fi
    done
  done
  printf '%s\n' "${lines[@]}"
  return $failed
}

list_pairs() {
  local python release
  for python in $(pythons); do
    for release in $(releases "$python"); do echo "$python $release"; done
  done
}

case ${1:-} in
  pairs) list_pairs ;;
  one) build_one "${@:2}" ;;
  all) build_all "${@:2}" ;;
  *) echo "usage: wheels.sh one <python> <jobs> | all <jobs> | pairs" >&2; exit 1 ;;
esac
