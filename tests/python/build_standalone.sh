#!/bin/sh
# Builds magneto/_testing with the stage `python` alone, which needs no PyTorch: the way to test it on an interpreter that
# has none, in seconds.
# usage: tests/python/build_standalone.sh PYTHON FOLDER; then, with a PYTHON that has pytest and no magneto:
#   PYTHONPATH=FOLDER PYTHON -P -m pytest --noconftest -o addopts=--import-mode=importlib tests/python
# (test_code.py's cases of transformers' models are skipped where it is not installed)
set -e
python=$1
folder=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
eval "$("$python" -c 'import sys, sysconfig as s
print("include=" + s.get_paths()["include"], "suffix=" + s.get_config_var("EXT_SUFFIX"))
print("version=%d%d" % sys.version_info[:2])')"
mkdir -p "$folder/magneto" "$folder/objects$version"
objects=
for source in "$root"/src/python/*.cpp "$root"/src/python/*/*.cpp "$root/src/testing/python_bindings.cpp" \
  "$root/tests/python/standalone_module.cpp"; do
  case $source in
    *cpython_"$version".cpp | *decode_"$version".cpp) ;;
    *cpython_3*.cpp | *decode_3*.cpp | *setting_values.cpp) continue ;;
  esac
  object=$folder/objects$version/$(basename "$source" .cpp).o
  if [ ! -e "$object" ] || [ -n "$(find "$root/src" "$source" -newer "$object" -name '*.*' -type f | head -1)" ]; then
    ${CXX:-g++} -std=c++20 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter \
      -Wno-missing-field-initializers $CXXFLAGS -isystem "$include" -I "$root/src" -c "$source" -o "$object"
  fi
  objects="$objects $object"
done
${CXX:-g++} -shared $CXXFLAGS $objects -o "$folder/magneto/_testing$suffix"
touch "$folder/magneto/__init__.py"
