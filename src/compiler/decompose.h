// Operators of a graph replaced by what functions in Python make of them.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "passes/passes.h"

namespace magneto::compiler {

/// `table`: a dict from overloads (torch.ops.aten.gelu.default) to functions, which are called on stand-ins, again
/// until no operator of the graph is in it. Sizes may vary where `assumed` is given, which gets what the functions
/// asked of them, in Python, and where no data says them. Throws Unsupported where stand-ins are not enough, and
/// PythonError, with BackendFailed set, where a function raises. Needs the GIL.
passes::Functional decompose(passes::Functional functional, PyObject* table,
                             std::vector<std::string>* assumed = nullptr);

}  // namespace magneto::compiler
