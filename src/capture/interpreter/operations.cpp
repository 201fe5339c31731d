// Operators and item access of the interpreted program.
#include "capture/interpreter/operations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/select.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/native_mode.h"
#include "capture/calls/special_methods.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/comparisons.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/nested_ints.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "guards/objects.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {

PyObject* operator_function(const char* name) {
  static constinit Imported module("operator");
  return PyObject_GetAttrString(module.get(), name);
}

namespace {

/// The class implements the operator in Python: `add` as __add__, __radd__ or __iadd__.
bool has_python_operator(Capture& capture, PyTypeObject* type, std::string_view name) {
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
  if (name.ends_with('_')) name.remove_suffix(1);
  for (const char* prefix : {"", "r", "i"}) {
    PyObject* method = capture.attributes.type_lookup(type, ("__" + (prefix + std::string(name)) + "__").c_str());
    if (method && PyFunction_Check(method)) return true;
  }
  return false;
}

}  // namespace

Ref operand(Capture& capture, PyObject* value, std::string_view name) {
  Ref object = capture.containers.resolve(value);
  if (is_derived_container(value) && capture.world.is_outside(value)) {
    static constexpr std::string_view reads[] = {"contains", "lt", "le", "eq", "ne", "gt", "ge"};
    const bool is_deque = PyObject_TypeCheck(value, guards::deque_type());
    if (is_deque && std::ranges::find(reads, name) == std::end(reads)) {  // gives one of its class
      capture.side_exit(BreakReason::OpaqueObject,
                        std::string("an operator is applied to an object of type ") + Py_TYPE(value)->tp_name);
    }
    const bool asked = has_python_operator(capture, Py_TYPE(value), name);
    object = asked ? Ref::borrow(value) : capture.containers.contents_of(value);
  }
  if (!is_builtin_container(value)) capture.containers.refuse_opaque(object.get(), 3);
  if (object.get() == value && capture.world.is_outside(value) && !capture.containers.is_shadow(value) &&
      !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) && !PyTuple_Check(value) &&
      !is_identity_constant(value) && !PyFunction_Check(value) && !PyMethod_Check(value) && !is_value(value)) {
    capture.side_exit(BreakReason::OpaqueObject,
                      std::string("an operator is applied to an object of type ") + Py_TYPE(value)->tp_name);
  }
  return object;
}

namespace {

PyObject* inplace_power(PyObject* a, PyObject* b) { return PyNumber_InPlacePower(a, b, Py_None); }
PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }

/// BINARY_OP's argument -> what it does and its name in `operator`.
struct BinaryOperator {
  PyObject* (*run)(PyObject*, PyObject*);
  const char* name;
  bool in_place;
  std::optional<guards::Arithmetic> arithmetic = {};
};

constexpr BinaryOperator kBinaryOperators[] = {
    {PyNumber_Add, "add", false, guards::Arithmetic::Add},
    {PyNumber_And, "and_", false, guards::Arithmetic::And},
    {PyNumber_FloorDivide, "floordiv", false, guards::Arithmetic::FloorDivide},
    {PyNumber_Lshift, "lshift", false, guards::Arithmetic::LeftShift},
    {PyNumber_MatrixMultiply, "matmul", false},
    {PyNumber_Multiply, "mul", false, guards::Arithmetic::Multiply},
    {PyNumber_Remainder, "mod", false, guards::Arithmetic::Remainder},
    {PyNumber_Or, "or_", false, guards::Arithmetic::Or},
    {power, "pow", false, guards::Arithmetic::Power},
    {PyNumber_Rshift, "rshift", false, guards::Arithmetic::RightShift},
    {PyNumber_Subtract, "sub", false, guards::Arithmetic::Subtract},
    {PyNumber_TrueDivide, "truediv", false, guards::Arithmetic::TrueDivide},
    {PyNumber_Xor, "xor", false, guards::Arithmetic::Xor},
    {PyNumber_InPlaceAdd, "iadd", true, guards::Arithmetic::Add},
    {PyNumber_InPlaceAnd, "iand", true, guards::Arithmetic::And},
    {PyNumber_InPlaceFloorDivide, "ifloordiv", true, guards::Arithmetic::FloorDivide},
    {PyNumber_InPlaceLshift, "ilshift", true, guards::Arithmetic::LeftShift},
    {PyNumber_InPlaceMatrixMultiply, "imatmul", true},
    {PyNumber_InPlaceMultiply, "imul", true, guards::Arithmetic::Multiply},
    {PyNumber_InPlaceRemainder, "imod", true, guards::Arithmetic::Remainder},
    {PyNumber_InPlaceOr, "ior", true, guards::Arithmetic::Or},
    {inplace_power, "ipow", true, guards::Arithmetic::Power},
    {PyNumber_InPlaceRshift, "irshift", true, guards::Arithmetic::RightShift},
    {PyNumber_InPlaceSubtract, "isub", true, guards::Arithmetic::Subtract},
    {PyNumber_InPlaceTrueDivide, "itruediv", true, guards::Arithmetic::TrueDivide},
    {PyNumber_InPlaceXor, "ixor", true, guards::Arithmetic::Xor},
};

/// In-place operators follow in the order of the plain ones.
constexpr int kFirstInPlace = std::size(kBinaryOperators) / 2;

constexpr const char* kComparisons[] = {"lt", "le", "eq", "ne", "gt", "ge"};

template <size_t count>
PyObject** cached_functions(const char* const (&names)[count]) {
  auto* functions = new PyObject*[count];
  for (size_t i = 0; i < count; ++i) functions[i] = operator_function(names[i]);
  return functions;
}

Ref call_operator(Capture& capture, PyObject* owner, const std::string& name, PyObject* other) {
  PyObject* method = capture.attributes.type_lookup(Py_TYPE(owner), name.c_str());
  if (!method || !PyFunction_Check(method)) return {};
  NonResumable scope(capture);
  Ref result = capture.calls.call(capture.world.wrap(method, capture.sources.constant(method)).get(), {owner, other});
  return result.get() == Py_NotImplemented ? Ref() : result;
}

/// An operator between a tensor and an instance of a Python class: a tensor knows nothing of the other, so that the
/// class's own method decides. Numbers, of whatever class, it takes itself where it is asked first. Null: it has none.
Ref tensor_and_instance(Capture& capture, int index, PyObject* left, PyObject* right) {
  PyObject* other = is_tensor(left) ? right : left;
  if (is_tensor(other) || is_scalar(other) || !PyType_HasFeature(Py_TYPE(other), Py_TPFLAGS_HEAPTYPE)) return {};
  if (lookup_in_type(Py_TYPE(other), MAGNETO_STR("__torch_function__"))) return {};
  const bool in_place = kBinaryOperators[index].in_place;
  std::string_view name = kBinaryOperators[in_place ? index - kFirstInPlace : index].name;
  if (name.ends_with('_')) name.remove_suffix(1);
  const std::string plain = std::string(name) + "__";
  const bool is_number = PyLong_Check(other) || PyFloat_Check(other) || PyComplex_Check(other);
  if (other == right && is_number && kBinaryOperators[index].arithmetic) return {};
  if (other == right) return call_operator(capture, right, "__r" + plain, left);
  if (in_place) {
    if (Ref result = call_operator(capture, left, "__i" + plain, right)) return result;
  }
  return call_operator(capture, left, "__" + plain, right);
}

/// Does the same beside a tensor, whether the number is wrapped as one or not. (`2 / x` multiplies by the reciprocal.)
bool takes_wrapped(int index, bool on_the_left) {
  using guards::Arithmetic;
  const auto arithmetic = kBinaryOperators[index].arithmetic;
  switch (arithmetic.value_or(Arithmetic::Power)) {
    case Arithmetic::Add:
    case Arithmetic::Subtract:
    case Arithmetic::Multiply:
    case Arithmetic::FloorDivide:
    case Arithmetic::Remainder:
      return true;
    case Arithmetic::TrueDivide:
    case Arithmetic::And:
    case Arithmetic::Or:
    case Arithmetic::Xor:
      return !on_the_left;
    default:
      return false;
  }
}

/// A tuple of whole numbers, or a torch.Size.
bool are_sizes(PyObject* object) {
  if (!PyTuple_CheckExact(object) && Py_TYPE(object) != size_class()) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    PyObject* item = PyTuple_GET_ITEM(object, i);
    if (!PyLong_CheckExact(item) && !size_of_number(item)) return false;
  }
  return true;
}

/// Of the left one's class; PyTorch's class says whether it has a say on the right.
Ref joined_sizes(PyObject* left, PyObject* right) {
  Ref items = checked(PySequence_List(left));
  if (PyList_SetSlice(items.get(), PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, right) < 0) throw PythonError{};
  Ref joined = checked(PyList_AsTuple(items.get()));
  const bool shape =
      Py_TYPE(left) == size_class() || (size_class()->tp_as_number && size_class()->tp_as_number->nb_add);
  return shape ? shape_of_items(joined.get()) : joined;
}

/// Of NumPy. A number of NumPy is not changed in place.
Ref array_operator(Capture& capture, int index, PyObject* left, PyObject* right) {
  static constexpr const char* symbols[] = {"+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"};
  static_assert(std::size(symbols) == kFirstInPlace);
  if (kBinaryOperators[index].in_place) {
    static constexpr const char* methods[] = {"iadd", "iand", "ifloordiv", "ilshift", "imatmul",  "imul", "imod",
                                              "ior",  "ipow", "irshift",   "isub",    "itruediv", "ixor"};
    static_assert(std::size(methods) == kFirstInPlace);
    index -= kFirstInPlace;
    if (guards::is_array(sample_of(left))) return capture.numpy.write_operator(left, methods[index], right);
  }
  return capture.numpy.operation({left, right}, std::string("$ ") + symbols[index] + " $");
}

/// C code that `x += y` calls changes the container.
bool changes_in_place(Capture& capture, PyObject* container, std::string_view operator_name) {
  if (PyTuple_Check(container) || PyFrozenSet_Check(container)) return false;
  if (is_builtin_container(container)) return true;
  if (!is_derived_container(container)) return false;
  if (operator_name.ends_with('_')) operator_name.remove_suffix(1);
  PyObject* method =
      capture.attributes.type_lookup(Py_TYPE(container), ("__i" + std::string(operator_name) + "__").c_str());
  return method && !PyFunction_Check(method);
}

/// What `n / x` and `n ** x` call, with a number that follows from sizes. Null: it is something else.
Ref size_and_tensor(Capture& capture, guards::Arithmetic arithmetic, PyObject* left, PyObject* right) {
  static constinit Imported reciprocal("torch._C", "TensorBase.reciprocal"), mul("torch._C", "TensorBase.mul"),
      pow("torch._C", "_VariableFunctionsClass.pow");
  if (!is_fake_tensor(right) || !(size_of_number(left) || is_symbolic_float(left))) return {};
  if (arithmetic == guards::Arithmetic::Power) return capture.torch.call_torch(pow.get(), {{left, right}});
  if (arithmetic != guards::Arithmetic::TrueDivide) return {};
  const Ref inverse = capture.torch.call_torch(reciprocal.get(), {{right}});
  return capture.torch.call_torch(mul.get(), {{inverse.get(), left}});
}

}  // namespace

Ref binary_operator(Capture& capture, int index, PyObject* left, PyObject* right) {
  PyObject* const operands[] = {left, right};
  const bool overridden = (is_tensor(left) || is_tensor(right)) && capture.torch.is_overridden(operands);
  if (const auto arithmetic = kBinaryOperators[index].arithmetic) {
    if (Ref result = capture.numbers.unknown_operation(*arithmetic, left, right)) return result;
    if (Ref result = overridden ? Ref() : size_and_tensor(capture, *arithmetic, left, right)) return result;
  }
  if (is_array(left) || is_array(right)) return array_operator(capture, index, left, right);
  const auto known = [&](PyObject* value, PyObject* other) {
    if (!is_tensor(other) || overridden) return capture.numbers.known(value);
    if (takes_wrapped(index, value == left)) return capture.numbers.beside_tensor(value);
    const bool exponent = value == right && kBinaryOperators[index].arithmetic == guards::Arithmetic::Power;
    return exponent && (size_of_number(value) || is_symbolic_float(value)) ? capture.symbols.with_symints(value)
                                                                           : capture.numbers.known(value);
  };
  const Ref known_left = known(left, right), known_right = known(right, left);
  const bool wrapped_left = left != known_left.get() && is_tensor(known_left.get());
  if (wrapped_left && kBinaryOperators[index].in_place) index -= kFirstInPlace;  // nothing to change in place
  const BinaryOperator& op = kBinaryOperators[index];
  const bool adds = op.run == PyNumber_Add || op.run == PyNumber_InPlaceAdd;
  if (adds && (holds_unknown_size(left) || holds_unknown_size(right)) && are_sizes(left) && are_sizes(right)) {
    return joined_sizes(left, right);
  }
  left = known_left.get(), right = known_right.get();
  if (is_tensor(left) || is_tensor(right)) {
    if (Ref result = tensor_and_instance(capture, index, left, right)) return result;
    static PyObject* functions[std::size(kBinaryOperators)] = {};
    // `number += tensor` changes nothing in place; as an in-place node it would print as an assignment to the number.
    if (op.in_place && is_scalar(left)) return binary_operator(capture, index - kFirstInPlace, left, right);
    if (!functions[index]) functions[index] = operator_function(op.name);
    PyObject* args[] = {left, right};
    const auto again = [&](const auto& put) { return binary_operator(capture, index, put[0], put[1]); };
    if (Ref result = capture.gradients.with_data(args, again)) return result;
    return capture.torch.record(graph::TorchNode::Kind::CallFunction, functions[index], args, nullptr,
                                [&] { return op.run(left, right); });
  }
  // `x += y` asks for __iadd__ first, and then for what `x + y` asks for.
  const std::string_view name = kBinaryOperators[op.in_place ? index - kFirstInPlace : index].name;
  const bool outside = capture.world.is_outside(left) || capture.containers.is_shadow(left);
  if (op.in_place && outside && changes_in_place(capture, left, name)) {
    Ref target = capture.containers.resolve(left, /*will_mutate=*/true);
    Ref other = operand(capture, right, op.name);
    capture.calls.call_native([&] { return op.run(target.get(), other.get()); });
    return Ref::borrow(left);
  }
  if (nested_int_of(left) || nested_int_of(right)) {  // PyTorch's own code knows what can be done with one
    const NativeScope scope(capture.mode);
    capture.mode.callbacks_allowed = false;
    return checked(op.run(left, right));
  }
  Ref a = operand(capture, left, name);
  Ref b = operand(capture, right, name);
  if (PyUnicode_Check(left) || PyBytes_Check(left)) {  // `text % values` writes all that is in the values
    b = capture.containers.resolve_deep(b.get());
    capture.containers.refuse_opaque(b.get(), 8);
    guard_class_text(capture, b.get(), 8);
  }
  return capture.calls.call_native([&] { return op.run(a.get(), b.get()); });
}

Ref unary_operator(Capture& capture, UnaryOperator op, PyObject* value) {
  struct Row {
    PyObject* (*run)(PyObject*);
    const char* name;
  };
  static constexpr Row rows[] = {{PyNumber_Negative, "neg"}, {PyNumber_Positive, "pos"}, {PyNumber_Invert, "invert"}};
  const Row& row = rows[static_cast<int>(op)];
  if (op == UnaryOperator::Negative) {
    static PyObject* const minus_one = PyLong_FromLong(-1);
    if (Ref result = capture.numbers.unknown_operation(guards::Arithmetic::Multiply, value, minus_one)) return result;
  }
  if (op == UnaryOperator::Positive && is_unknown_number(value) && guards::is_number(number_now(value))) {
    return Ref::borrow(value);
  }
  if (op == UnaryOperator::Invert && PyLong_CheckExact(number_now(value))) {  // ~n is -1 - n
    static PyObject* const minus_one = PyLong_FromLong(-1);
    if (Ref result = capture.numbers.unknown_operation(guards::Arithmetic::Subtract, minus_one, value)) return result;
  }
  if (is_array(value)) {
    static constexpr const char* forms[] = {"-$", "+$", "~$"};
    return capture.numpy.operation({value}, forms[static_cast<int>(op)]);
  }
  const Ref known = capture.numbers.known(value);
  value = known.get();
  if (is_tensor(value)) {
    static PyObject* functions[3] = {};
    PyObject*& function = functions[static_cast<int>(op)];
    if (!function) function = operator_function(row.name);
    PyObject* args[] = {value};
    const auto again = [&](const auto& put) { return unary_operator(capture, op, put[0]); };
    if (Ref result = capture.gradients.with_data(args, again)) return result;
    return capture.torch.record(graph::TorchNode::Kind::CallFunction, function, args, nullptr,
                                [&] { return row.run(value); });
  }
  Ref object = operand(capture, value, row.name);
  return capture.calls.call_native([&] { return row.run(object.get()); });
}

Ref compare(Capture& capture, int op, PyObject* left, PyObject* right) {
  if (Ref result = compare_nested_ints(capture, op, left, right)) return result;
  if (Ref result = capture.numbers.unknown_operation(kByCPython[op], left, right)) return result;
  if (is_array(left) || is_array(right)) {
    static constexpr const char* forms[] = {"$ < $", "$ <= $", "$ == $", "$ != $", "$ > $", "$ >= $"};
    return capture.numpy.operation({left, right}, forms[op]);
  }
  PyObject* const operands[] = {left, right};
  const bool overridden = (is_tensor(left) || is_tensor(right)) && capture.torch.is_overridden(operands);
  const auto operand_beside = [&](PyObject* value, PyObject* other) {
    return is_tensor(other) && !overridden ? capture.numbers.beside_tensor(value) : capture.numbers.known(value);
  };
  const Ref known_left = operand_beside(left, right), known_right = operand_beside(right, left);
  left = known_left.get(), right = known_right.get();
  if (is_tensor(left) || is_tensor(right)) {
    static constinit MadeOnce<PyObject*> made;
    PyObject* const* functions = made.get([] { return cached_functions(kComparisons); });
    PyObject* args[] = {left, right};
    const auto again = [&](const auto& put) { return compare(capture, op, put[0], put[1]); };
    if (Ref result = capture.gradients.with_data(args, again)) return result;
    return capture.torch.record(graph::TorchNode::Kind::CallFunction, functions[op], args, nullptr,
                                [&] { return PyObject_RichCompare(left, right, op); });
  }
  if (is_builtin_container(left) && is_builtin_container(right)) {
    capture.containers.guard_contents(left);
    capture.containers.guard_contents(right);
  }
  const Question question = op == Py_EQ || op == Py_NE ? Question::Equality : Question::Order;
  for (PyObject* value : {left, right}) guard_classes(capture, value, question, 8);
  Ref a = operand(capture, left, kComparisons[op]);
  Ref b = operand(capture, right, kComparisons[op]);
  const auto is_its_own = [](PyObject* object) {
    return Py_TYPE(object)->tp_richcompare == PyBaseObject_Type.tp_richcompare && !is_unknown_number(object);
  };
  if ((op == Py_EQ || op == Py_NE) && is_its_own(left) && is_its_own(right)) {
    return Ref::borrow(capture.world.is_identical(left, right) == (op == Py_EQ) ? Py_True : Py_False);
  }
  return capture.calls.call_native([&] { return PyObject_RichCompare(a.get(), b.get(), op); });
}

}  // namespace magneto::capture
