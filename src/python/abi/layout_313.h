// CPython 3.13's layouts. Included by layout.h alone.
#pragma once

#include "python/abi/embedded_values.h"
