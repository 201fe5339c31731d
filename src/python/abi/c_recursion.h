// CPython 3.12 and 3.13 count the calls of C code. Included once, by the version's cpython_3xx.cpp, after
// cpython_common.h.
#pragma once

#include "python/abi/cpython_common.h"

namespace magneto {

namespace {

/// Up to this sys.getrecursionlimit() the C stack holds all frames, each with a hook and an evaluator of its own.
constexpr int safe_recursion_limit = 2000;
/// What one evaluator takes of a thread's C recursion (PY_EVAL_C_STACK_UNITS of Python/ceval.c).
constexpr int evaluator_c_units = 2;

/// Without a hook, most calls of Python functions share one evaluator; with it each has its own, and the fixed C limit
/// (1,500 units in 3.12.1) would stop a program at a depth of 750 that may go to 1,000. So an evaluator that a hook
/// enters is not counted, unless the program has set a limit that the C stack would not bear.
PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag) {
  const int credit = thread->py_recursion_limit <= safe_recursion_limit ? evaluator_c_units : 0;
  thread->c_recursion_remaining += credit;
  PyObject* result = _PyEval_EvalFrameDefault(thread, frame, throwflag);
  thread->c_recursion_remaining -= credit;
  return result;
}

}  // namespace

}  // namespace magneto
