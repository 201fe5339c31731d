// CPython 3.14's layouts. Included by layout.h alone.
#pragma once

#include <Python.h>

#include <cstdint>

#include "python/abi/embedded_values.h"

namespace magneto {

// Dicts have no versions: a watcher counts (watched_dicts.h). dicts.h says what these are.

/// From here on each change of the dict changes its version. False: no memory.
bool keeps_version(PyObject* dict);
/// Where that version is, for a dict that `keeps_version` has answered for.
const uint64_t* dict_version_place(PyObject* dict);
/// 0: it has none.
uint64_t dict_version(PyObject* dict);

}  // namespace magneto
