#include "capture/exits/half_done.h"

#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/world/world.h"
#include "guards/objects.h"

namespace magneto::capture {

namespace {

/// A container, or of a class derived from one, that C code may change.
bool is_changeable(PyObject* object) {
  return PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object) ||
         PyObject_TypeCheck(object, guards::deque_type());
}

/// The operand is one that C code may have changed, or holds one (the arguments behind a star, a bound method).
bool may_have_changed(Capture& c, PyObject* operand, bool in_midst, int deep) {
  if (!operand || deep < 0) return false;
  if (PyIter_Check(operand)) return !c.world.is_outside(operand);
  if (in_midst && is_changeable(operand)) return true;
  if (PyMethod_Check(operand)) return may_have_changed(c, PyMethod_GET_SELF(operand), in_midst, deep - 1);
  if (PyCFunction_Check(operand)) return may_have_changed(c, PyCFunction_GET_SELF(operand), in_midst, deep - 1);
  if (!PyTuple_CheckExact(operand)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operand); ++i) {
    if (may_have_changed(c, PyTuple_GET_ITEM(operand, i), in_midst, deep - 1)) return true;
  }
  return false;
}

}  // namespace

bool is_half_done(Capture& c) {
  InterpFrame& f = *c.frame;
  if (c.calls.natives_run == f.natives_before) return false;
  const bool in_midst = c.mode.native_from == &f;
  const int32_t operands = std::min(f.depth, std::max(f.pops, 2));
  for (int32_t i = 0; i < operands; ++i) {
    if (may_have_changed(c, f.top(i), in_midst, 2)) return true;
  }
  return false;
}

}  // namespace magneto::capture
