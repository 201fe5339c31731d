// The layouts of objects that the running kind of CPython has: one header per minor version, for what is read where
// speed counts. What is called stands in frame.h, types.h and dicts.h.
#pragma once

#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000
#error "Magneto supports CPython 3.11 to 3.13"
#elif PY_VERSION_HEX < 0x030C0000
#include "python/abi/layout_311.h"
#elif PY_VERSION_HEX < 0x030D0000
#include "python/abi/layout_312.h"
#elif PY_VERSION_HEX < 0x030E0000
#include "python/abi/layout_313.h"
#elif PY_VERSION_HEX < 0x030F0000
#include "python/abi/layout_314.h"
#else
#error "Magneto supports CPython 3.11 to 3.14"
#endif
