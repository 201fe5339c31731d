#!/usr/bin/env bash
# Makes .venv and what a make target needs in it: `setup.sh build|test|lint|docs|wheel`. Leaves .venv/.ready-<what>.
# `setup.sh same`: fails if .venv has another Python than PYTHON. `setup.sh minors`: the minor versions that are supported.
# Environment: PYTHON (interpreter to use), TORCH (requirement to install where there is no supported PyTorch), VENV (in
# place of .venv).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

# On a terminal pip shows its own progress.
quiet=(-q)
[[ -t 1 ]] && quiet=()

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Installs Debian packages, or says how.
need_packages() {
  command -v apt-get > /dev/null || fail "missing: $*. Install them with your system's package manager and run make again."
  if [[ $(id -u) == 0 ]]; then
    say "Installing $*"
    apt-get update -qq > /dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" > /dev/null
  else
    fail "missing: $*. Run: sudo apt-get install -y $*"
  fi
}

# The minor versions of CPython 3 that Magneto supports, oldest first.
supported_minors() { seq $(sed -nE 's/^OLDEST, NEWEST = \(3, ([0-9]+)\), \(3, ([0-9]+)\).*/\1 \2/p' magneto/_load.py); }
supported_pythons() { echo "CPython 3.$(supported_minors | head -1) to 3.$(supported_minors | tail -1)"; }

# The first interpreter that Magneto supports. What has no GIL is another interpreter.
find_python() {
  local candidate minor
  for candidate in ${PYTHON:-python3 $(supported_minors | sort -rn | sed 's/^/python3./') python}; do
    minor=$("$candidate" -c 'import platform, sys, sysconfig
if platform.python_implementation() == "CPython" and sys.version_info.major == 3 and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print(sys.version_info.minor)' 2> /dev/null) || continue
    if supported_minors | grep -x "${minor:-none}" > /dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# What the interpreter $1 can't do: packages that would help, by their Debian names.
missing_for_python() {
  "$1" - << 'PY'
import importlib.util, os, sys, sysconfig
version = f"{sys.version_info.major}.{sys.version_info.minor}"
if not importlib.util.find_spec("ensurepip") or not importlib.util.find_spec("venv"):
    print(f"python{version}-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(f"python{version}-dev")
PY
}

# The folder that holds a supported PyTorch of interpreter $1; empty if there is none.
torch_of() {
  "$1" - << 'PY'
import importlib.util, os, re
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    facts = {}
    with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
        exec(file.read(), facts)
    if (2, 11) <= tuple(map(int, re.findall(r"\d+", facts["__version__"])[:2])) < (2, 16):
        print(os.path.dirname(os.path.dirname(spec.origin)))
PY
}

pip_install() {
  # PyTorch stays as it is, whatever the other packages would like.
  local pin
  pin=$(mktemp)
  "$venv/bin/python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' > "$pin" 2> /dev/null || : > "$pin"
  "$venv/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check -c "$pin" "$@"
  rm -f "$pin"
}

# What libmagneto_codegen is linked with; cmake/codegen.cmake.
need_llvm() {
  local -a packages=()
  command -v llvm-config-19 > /dev/null || [[ -x /usr/lib/llvm-19/bin/llvm-config ]] || packages+=(llvm-19-dev)
  [[ -e /usr/include/zlib.h ]] || packages+=(zlib1g-dev)
  [[ -e /usr/include/zstd.h ]] || packages+=(libzstd-dev)
  [[ ${#packages[@]} == 0 ]] || need_packages "${packages[@]}"
}

set_up_build() {
  command -v g++ > /dev/null || need_packages g++
  [[ -n ${MAGNETO_CODEGEN_LIBRARY:-} ]] || need_llvm
  local python missing torch_folder
  if ! python=$(find_python); then
    [[ -n ${PYTHON:-} ]] && fail "PYTHON=$PYTHON is no $(supported_pythons) with a GIL"
    need_packages python3 python3-venv python3-dev
    python=$(find_python) || fail "Magneto needs $(supported_pythons); python3 is $(python3 --version). Give one with PYTHON=..."
  fi
  missing=$(missing_for_python "$python")
  [[ -z $missing ]] || need_packages $missing

  if [[ ! -x "$venv/bin/python" ]]; then
    torch_folder=$(torch_of "$python")
    say "Making $venv with $("$python" --version)"
    "$python" -m venv ${torch_folder:+--system-site-packages} "$venv"
    if [[ -n $torch_folder && -z $(torch_of "$venv/bin/python") ]]; then
      # PYTHON is itself in a virtual environment, whose packages a new one does not see.
      echo "$torch_folder" > "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_chosen_python.pth"
    fi
  fi
  if [[ -z $(torch_of "$venv/bin/python") ]]; then
    say "Installing $TORCH"
    "$venv/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check "$TORCH"
  else
    say "Using the PyTorch in $(torch_of "$venv/bin/python")"
  fi

  local tools=()
  tool_version cmake | awk -F. '{ exit !($1 > 3 || ($1 == 3 && $2 >= 25)) }' || tools+=("cmake>=3.25")
  command -v ninja > /dev/null || tools+=("ninja")
  [[ ${#tools[@]} == 0 ]] || pip_install "${tools[@]}"

  # The checkout itself is the installed package.
  pwd > "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/magneto_checkout.pth"
}

tool_version() { { command -v "$1" > /dev/null && "$1" --version; } | head -1 | grep -oE '[0-9]+\.[0-9]+' | head -1 || true; }

# Installs a dependency group of pyproject.toml.
set_up_group() {
  local -a requirements
  mapfile -t requirements < <("$venv/bin/python" -c 'import sys, tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"][sys.argv[1]]))' "$1")
  say "Installing the packages for $1"
  pip_install "${requirements[@]}"
}

# tests/test_report.py looks at pages in a browser; tests/browser.py has the names. Without one only those tests fail.
set_up_browser() {
  local name
  for name in ${CHROMIUM:-} chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" > /dev/null && return
  done
  (need_packages chromium) || say "Without a browser tests/test_report.py fails"
}

# Whoever names a Python for an environment that is there already would otherwise get the environment's, silently.
check_same_python() {
  local asked found
  asked=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "PYTHON=$PYTHON does not run"
  found=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [[ $asked == "$found" ]] ||
    fail "$venv has CPython $found, PYTHON=$PYTHON is $asked. Name another environment (VENV=.venv-$asked), or remove this one"
}

case ${1:-} in
  same) check_same_python && exit ;;
  minors) supported_minors && exit ;;
  build) set_up_build ;;
  test) set_up_group test; set_up_browser ;;
  lint | docs | wheel) set_up_group "$1" ;;
  *) fail "usage: setup.sh build|test|lint|docs|wheel" ;;
esac
touch "$venv/.ready-$1"
