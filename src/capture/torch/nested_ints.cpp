#include "capture/torch/nested_ints.h"

#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/world.h"
#include "python/imported.h"

namespace magneto::capture {

std::optional<NestedInt> nested_int_of(PyObject* object) {
  static constinit Imported type("torch", "SymInt");
  if (Py_TYPE(object) != type.type()) return std::nullopt;
  const Ref node = checked(PyObject_GetAttrString(object, "node"));
  if (Ref::steal(PyObject_CallMethod(node.get(), "is_nested_int", nullptr)).get() != Py_True) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto number = [&](const char* method) {
    const int64_t value = PyLong_AsLongLong(checked(PyObject_CallMethod(node.get(), method, nullptr)).get());
    if (value == -1 && PyErr_Occurred()) throw PythonError{};
    return value;
  };
  return NestedInt{number("nested_int"), number("nested_int_coeff")};
}

Ref compare_nested_ints(Capture& capture, int op, PyObject* left, PyObject* right) {
  const auto a = nested_int_of(left), b = nested_int_of(right);
  if (!a && !b) return {};
  if ((!a && !PyLong_Check(number_now(left))) || (!b && !PyLong_Check(number_now(right)))) return {};
  if (op == Py_EQ || op == Py_NE) {
    const bool equal = a && b && a->id == b->id && a->factor == b->factor;
    return Ref::borrow(equal == (op == Py_EQ) ? Py_True : Py_False);
  }
  const Ref known_left = capture.numbers.known(left), known_right = capture.numbers.known(right);
  const NativeScope scope(capture.mode);
  capture.mode.callbacks_allowed = false;
  const Ref result = checked(PyObject_RichCompare(known_left.get(), known_right.get(), op));
  const int truth = PyObject_IsTrue(result.get());
  if (truth < 0) throw PythonError{};
  return Ref::borrow(truth ? Py_True : Py_False);
}

Ref TensorMap::nested_int(PyObject* function, const CallArgs& args) {
  CallArgs given = args;
  c.numbers.specialize_all(given);
  PyObject* const tensor = given.positional() > 0 ? given.values[0] : nullptr;
  if (!tensor || !is_fake_tensor(tensor)) {
    c.side_exit(BreakReason::UnsupportedTensor, "call of " + callable_name(function));
  }
  PyObject* const real = original(tensor).first;
  if (real && fake_of.at(real).get() == tensor) given.values[0] = real;
  Ref made = checked(PyObject_Vectorcall(function, given.values.data(), given.positional(), given.kwnames));
  if (const auto number = nested_int_of(made.get())) {
    nested_ints[number->id] = {Ref::borrow(function), Ref::borrow(tensor)};
  }
  c.world.keep(made);
  return made;
}

}  // namespace magneto::capture
