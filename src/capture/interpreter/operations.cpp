// Operators and item access of the interpreted program.
#include "capture/interpreter/operations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/select.h>
#include <torch/csrc/Size.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "capture/calls/handlers.h"
#include "capture/calls/special_methods.h"
#include "guards/array.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

namespace {

PyObject* operator_function(const char* name) {
  static constinit Imported module("operator");
  return PyObject_GetAttrString(module.get(), name);
}

/// The key in a tuple: a None would be no argument, a tuple several.
[[noreturn]] void raise_key_error(PyObject* key) {
  Ref arguments = checked(PyTuple_Pack(1, key));
  PyErr_SetObject(PyExc_KeyError, arguments.get());
  throw PythonError{};
}

bool needs_grad(const at::Tensor& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }

/// A tensor of one integer that only the run knows.
bool is_unknown_place(PyObject* index) {
  if (!is_fake_tensor(index)) return false;
  const at::Tensor& tensor = unpack_tensor(index);
  return tensor.dim() == 0 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) &&
         tensor.scalar_type() != c10::kByte && !fake::known_value(tensor);
}

/// A key with unknown places in it: eager gives a view.
struct UnknownPlaces {  // or numbers that follow from sizes, which PyTorch's indexing would fix
  std::vector<std::pair<int64_t, PyObject*>> places;  // by dimension of the tensor, ascending
  Ref rest;                                           // the key without them
};

std::span<PyObject* const> key_items(PyObject* const& key) {
  return PyTuple_CheckExact(key) ? std::span(&PyTuple_GET_ITEM(key, 0), static_cast<size_t>(PyTuple_GET_SIZE(key)))
                                 : std::span(&key, 1);
}

/// Whole numbers, each of which takes one dimension.
bool is_list_of_places(PyObject* item) {
  if (!is_fake_tensor(item)) return false;
  const c10::ScalarType dtype = unpack_tensor(item).scalar_type();
  return dtype == c10::kLong || dtype == c10::kInt;
}

/// Nothing for keys without one, and for those with masks or lists, or with other tensors beside one in a tensor.
std::optional<UnknownPlaces> unknown_places(PyObject* tensor, PyObject* key) {
  if (!is_fake_tensor(tensor)) return std::nullopt;
  const std::span<PyObject* const> items = key_items(key);
  const auto is_place = [&](PyObject* item) {
    return symint_value(item) || (is_unknown_place(item) && !needs_grad(unpack_tensor(tensor)));
  };
  if (std::ranges::none_of(items, is_place)) return std::nullopt;
  const auto consumes = [](PyObject* item) { return item != Py_None && item != Py_Ellipsis; };
  const int64_t left = unpack_tensor(tensor).dim() - std::ranges::count_if(items, consumes);
  if (left < 0 || std::ranges::count(items, Py_Ellipsis) > 1) return std::nullopt;  // an error
  UnknownPlaces found{{}, checked(PyList_New(0))};
  int64_t dim = 0;
  for (PyObject* item : items) {
    if (is_place(item)) {
      found.places.emplace_back(dim++, item);
      continue;
    }
    if (!PyLong_CheckExact(item) && !PySlice_Check(item) && consumes(item) && !is_list_of_places(item)) {
      return std::nullopt;
    }
    dim += item == Py_Ellipsis ? left : consumes(item);
    if (PyList_Append(found.rest.get(), item) < 0) throw PythonError{};
  }
  const auto holds_place = [](const auto& place) { return is_fake_tensor(place.second); };
  const auto is_other_tensor = [&](PyObject* item) { return is_fake_tensor(item) && !is_place(item); };
  if (std::ranges::any_of(found.places, holds_place) && std::ranges::any_of(items, is_other_tensor)) {
    return std::nullopt;
  }
  found.rest = checked(PyList_AsTuple(found.rest.get()));
  return found;
}

PyObject* select_unknown(PyObject* tensor, const UnknownPlaces& key) {
  static const auto select = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("magneto::select", "")
                                 .typed<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&)>();
  at::Tensor view = unpack_tensor(tensor);
  const bool done = runtime::with_torch_errors([&] {
    for (size_t i = key.places.size(); i-- > 0;) {
      const auto& [dim, place] = key.places[i];
      if (const auto number = symint_value(place)) {
        view = at::select_symint(view, dim, fake::Session::current()->symint(*number));
      } else {
        view = select.call(view, dim, unpack_tensor(place));
      }
    }
  });
  if (!done) return nullptr;
  Ref selected = Ref::steal(tensor_object(view));
  if (PyTuple_GET_SIZE(key.rest.get()) == 0 || !selected) return selected.release();
  return PyObject_GetItem(selected.get(), key.rest.get());
}

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

PyObject* const* cached_functions(const char* const* names, size_t count) {
  auto* functions = new PyObject*[count];
  for (size_t i = 0; i < count; ++i) functions[i] = operator_function(names[i]);
  return functions;
}

/// The class implements the operator in Python: `add` as __add__, __radd__ or __iadd__.
bool has_python_operator(Capture& capture, PyTypeObject* type, std::string_view name) {
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
  if (name.ends_with('_')) name.remove_suffix(1);
  for (const char* prefix : {"", "r", "i"}) {
    PyObject* method = capture.type_lookup(type, ("__" + (prefix + std::string(name)) + "__").c_str());
    if (method && PyFunction_Check(method)) return true;
  }
  return false;
}

/// Operands that a C operator may read: containers from outside are replaced; opaque C objects end the segment.
Ref operand(Capture& capture, PyObject* value, std::string_view name) {
  if (!is_builtin_container(value)) capture.refuse_opaque(value, 3);
  Ref object = capture.resolve(value);
  if (object.get() == value && capture.is_outside(value) && !capture.is_shadow(value) &&
      !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) && !PyTuple_Check(value) &&
      !is_identity_constant(value) && !PyFunction_Check(value) && !PyMethod_Check(value) && !is_value(value)) {
    capture.side_exit(BreakReason::OpaqueObject,
                      std::string("an operator is applied to an object of type ") + Py_TYPE(value)->tp_name);
  }
  if (object.get() == value && capture.is_outside(value) && !capture.is_shadow(value) &&
      (PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value)) &&
      !has_python_operator(capture, Py_TYPE(value), name)) {
    return capture.contents_of(value);
  }
  return object;
}

Ref call_operator(Capture& capture, PyObject* owner, const std::string& name, PyObject* other) {
  PyObject* method = capture.type_lookup(Py_TYPE(owner), name.c_str());
  if (!method || !PyFunction_Check(method)) return {};
  Capture::NonResumable scope(capture);
  Ref result = capture.call(capture.wrap(method, capture.sources.constant(method)).get(), {owner, other});
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
  if (!PyTuple_CheckExact(object) && Py_TYPE(object) != &THPSizeType) return false;
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
  const bool shape = Py_TYPE(left) == &THPSizeType || (THPSizeType.tp_as_number && THPSizeType.tp_as_number->nb_add);
  return shape ? shape_of_items(joined.get()) : joined;
}

/// Of NumPy. A number of NumPy is not changed in place.
Ref array_operator(Capture& capture, int index, PyObject* left, PyObject* right) {
  static constexpr const char* symbols[] = {"+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"};
  static_assert(std::size(symbols) == kFirstInPlace);
  if (kBinaryOperators[index].in_place) {
    if (guards::is_array(sample_of(left))) {
      capture.side_exit(BreakReason::Mutation, "an array of NumPy is changed in place");
    }
    index -= kFirstInPlace;
  }
  return capture.numpy_operation({left, right}, std::string("$ ") + symbols[index] + " $");
}

/// What `n / x` and `n ** x` call, with a number that follows from sizes. Null: it is something else.
Ref size_and_tensor(Capture& capture, guards::Arithmetic arithmetic, PyObject* left, PyObject* right) {
  static constinit Imported reciprocal("torch._C", "TensorBase.reciprocal"), mul("torch._C", "TensorBase.mul"),
      pow("torch._C", "_VariableFunctionsClass.pow");
  if (!is_fake_tensor(right) || !(size_of_number(left) || is_symbolic_float(left))) return {};
  if (arithmetic == guards::Arithmetic::Power) return capture.call_torch(pow.get(), {{left, right}});
  if (arithmetic != guards::Arithmetic::TrueDivide) return {};
  const Ref inverse = capture.call_torch(reciprocal.get(), {{right}});
  return capture.call_torch(mul.get(), {{inverse.get(), left}});
}

}  // namespace

Ref binary_operator(Capture& capture, int index, PyObject* left, PyObject* right) {
  PyObject* const operands[] = {left, right};
  const bool overridden = (is_tensor(left) || is_tensor(right)) && capture.is_overridden(operands);
  if (const auto arithmetic = kBinaryOperators[index].arithmetic) {
    if (Ref result = capture.unknown_operation(*arithmetic, left, right)) return result;
    if (Ref result = overridden ? Ref() : size_and_tensor(capture, *arithmetic, left, right)) return result;
  }
  if (is_array(left) || is_array(right)) return array_operator(capture, index, left, right);
  const auto known = [&](PyObject* value, PyObject* other) {
    if (!is_tensor(other) || overridden) return capture.known(value);
    if (takes_wrapped(index, value == left)) return capture.beside_tensor(value);
    const bool exponent = value == right && kBinaryOperators[index].arithmetic == guards::Arithmetic::Power;
    return exponent && (size_of_number(value) || is_symbolic_float(value)) ? capture.with_symints(value)
                                                                           : capture.known(value);
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
    return capture.record(graph::TorchNode::Kind::CallFunction, functions[index], args, nullptr,
                          [&] { return op.run(left, right); });
  }
  if (op.in_place && is_builtin_container(left) && (capture.is_outside(left) || capture.is_shadow(left)) &&
      !PyTuple_Check(left) && !PyFrozenSet_Check(left)) {
    Ref target = capture.resolve(left, /*will_mutate=*/true);
    Ref other = operand(capture, right, op.name);
    capture.call_native([&] { return op.run(target.get(), other.get()); });
    return Ref::borrow(left);
  }
  // `x += y` asks for __iadd__ first, and then for what `x + y` asks for.
  const std::string_view name = kBinaryOperators[op.in_place ? index - kFirstInPlace : index].name;
  Ref a = operand(capture, left, name);
  Ref b = operand(capture, right, name);
  if (PyUnicode_Check(left) || PyBytes_Check(left)) {  // `text % values` writes all that is in the values
    b = capture.resolve_deep(b.get());
    capture.refuse_opaque(b.get(), 8);
    guard_class_text(capture, b.get(), 8);
  }
  return capture.call_native([&] { return op.run(a.get(), b.get()); });
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
    if (Ref result = capture.unknown_operation(guards::Arithmetic::Multiply, value, minus_one)) return result;
  }
  if (op == UnaryOperator::Positive && is_unknown_number(value) && guards::is_number(number_now(value))) {
    return Ref::borrow(value);
  }
  if (op == UnaryOperator::Invert && PyLong_CheckExact(number_now(value))) {  // ~n is -1 - n
    static PyObject* const minus_one = PyLong_FromLong(-1);
    if (Ref result = capture.unknown_operation(guards::Arithmetic::Subtract, minus_one, value)) return result;
  }
  if (is_array(value)) {
    static constexpr const char* forms[] = {"-$", "+$", "~$"};
    return capture.numpy_operation({value}, forms[static_cast<int>(op)]);
  }
  const Ref known = capture.known(value);
  value = known.get();
  if (is_tensor(value)) {
    static PyObject* functions[3] = {};
    PyObject*& function = functions[static_cast<int>(op)];
    if (!function) function = operator_function(row.name);
    PyObject* args[] = {value};
    return capture.record(graph::TorchNode::Kind::CallFunction, function, args, nullptr,
                          [&] { return row.run(value); });
  }
  Ref object = operand(capture, value, row.name);
  return capture.call_native([&] { return row.run(object.get()); });
}

Ref compare(Capture& capture, int op, PyObject* left, PyObject* right) {
  static constexpr guards::Arithmetic comparisons[] = {guards::Arithmetic::Less,    guards::Arithmetic::LessEqual,
                                                       guards::Arithmetic::Equal,   guards::Arithmetic::NotEqual,
                                                       guards::Arithmetic::Greater, guards::Arithmetic::GreaterEqual};
  if (Ref result = capture.unknown_operation(comparisons[op], left, right)) return result;
  if (is_array(left) || is_array(right)) {
    static constexpr const char* forms[] = {"$ < $", "$ <= $", "$ == $", "$ != $", "$ > $", "$ >= $"};
    return capture.numpy_operation({left, right}, forms[op]);
  }
  PyObject* const operands[] = {left, right};
  const bool overridden = (is_tensor(left) || is_tensor(right)) && capture.is_overridden(operands);
  const auto operand_beside = [&](PyObject* value, PyObject* other) {
    return is_tensor(other) && !overridden ? capture.beside_tensor(value) : capture.known(value);
  };
  const Ref known_left = operand_beside(left, right), known_right = operand_beside(right, left);
  left = known_left.get(), right = known_right.get();
  if (is_tensor(left) || is_tensor(right)) {
    static PyObject* const* functions = cached_functions(kComparisons, 6);
    PyObject* args[] = {left, right};
    return capture.record(graph::TorchNode::Kind::CallFunction, functions[op], args, nullptr,
                          [&] { return PyObject_RichCompare(left, right, op); });
  }
  if (is_builtin_container(left) && is_builtin_container(right)) {
    capture.guard_contents(left);
    capture.guard_contents(right);
  }
  const Question question = op == Py_EQ || op == Py_NE ? Question::Equality : Question::Order;
  for (PyObject* value : {left, right}) guard_classes(capture, value, question, 8);
  Ref a = operand(capture, left, kComparisons[op]);
  Ref b = operand(capture, right, kComparisons[op]);
  const auto is_its_own = [](PyObject* object) {
    return Py_TYPE(object)->tp_richcompare == PyBaseObject_Type.tp_richcompare && !is_unknown_number(object);
  };
  if ((op == Py_EQ || op == Py_NE) && is_its_own(left) && is_its_own(right)) {
    return Ref::borrow(capture.is_identical(left, right) == (op == Py_EQ) ? Py_True : Py_False);
  }
  return capture.call_native([&] { return PyObject_RichCompare(a.get(), b.get(), op); });
}

Ref Capture::subscript(PyObject* container, PyObject* key, bool past_override) {
  const Ref known_key = is_tensor(container) && size_of_number(key) ? with_symints(key) : known(key);
  key = known_key.get();
  if (is_tensor(container)) {
    static PyObject* const getitem = operator_function("getitem");
    Ref deep = with_symints(readable(key).get());
    PyObject* args[] = {container, deep.get()};
    const auto places = is_overridden(args) ? std::nullopt : unknown_places(container, deep.get());
    return record(graph::TorchNode::Kind::CallFunction, getitem, args, nullptr, [&] {
      return places ? select_unknown(container, *places) : PyObject_GetItem(container, deep.get());
    });
  }
  if (is_array(container)) return numpy_item(container, key);
  if (PySlice_Check(key) && holds_unknown_size(container)) return slice_of_shape(container, key);
  PyTypeObject* type = Py_TYPE(container);
  if (!past_override && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* method = type_lookup(type, MAGNETO_STR("__getitem__"));
    if (method && PyFunction_Check(method)) {
      return call(wrap(method, sources.constant(method)).get(), {container, key});
    }
  }
  refuse_opaque(key, 1);
  if (is_dict_view(container) && is_outside(container)) {
    const Ref view = resolve(container);
    if (is_shadow(view.get())) return call_native([&] { return PyObject_GetItem(view.get(), key); });
  }
  const Source* source = source_of(container);
  if (!source || has_shadow(container) || is_shadow(container)) {
    Ref object = resolve(container);
    if (past_override && PyDict_Check(object.get())) {
      PyObject* value = PyDict_GetItemWithError(object.get(), key);
      if (value) return Ref::borrow(value);
      if (PyErr_Occurred()) throw PythonError{};
      PyObject* missing = PyDict_CheckExact(object.get()) ? nullptr : type_lookup(type, MAGNETO_STR("__missing__"));
      if (missing && PyFunction_Check(missing)) {
        return call(wrap(missing, sources.constant(missing)).get(), {container, key});
      }
      if (missing) return call_native([&] { return PyObject_CallFunctionObjArgs(missing, container, key, nullptr); });
      raise_key_error(key);
    }
    Ref resolved_key = resolve(key);
    if (PyDict_Check(object.get())) guard_classes(*this, key, Question::Hash, 8);
    return call_native([&] { return PyObject_GetItem(object.get(), resolved_key.get()); });
  }
  if (PyType_Check(container)) {
    type_lookup(reinterpret_cast<PyTypeObject*>(container), MAGNETO_STR("__class_getitem__"));
    Ref resolved_key = resolve_deep(key);
    return call_native([&] { return PyObject_GetItem(container, resolved_key.get()); });
  }
  if (PyDict_Check(container)) {
    check_hashable(key);
    if (Ref value = dict_lookup(container, key)) return value;
    if (type == &PyDict_Type || type == &PyODict_Type) raise_key_error(key);
    PyObject* missing = type_lookup(type, MAGNETO_STR("__missing__"));
    if (missing && PyFunction_Check(missing)) {
      return call(wrap(missing, sources.constant(missing)).get(), {container, key});
    }
    if (missing && is_builtin_container(container)) {  // a defaultdict: the key is made
      Ref object = resolve(container, /*will_mutate=*/true);
      return call_native([&] { return PyObject_GetItem(object.get(), key); });
    }
    if (missing) side_exit(BreakReason::OpaqueObject, std::string("a missing key of a ") + type->tp_name);
    raise_key_error(key);
  }
  if ((PyList_Check(container) || PyTuple_Check(container)) && PyIndex_Check(key) && !is_tensor(key)) {
    Ref number = call_native([&] { return PyNumber_Index(key); });
    Py_ssize_t index = PyNumber_AsSsize_t(number.get(), PyExc_IndexError);
    if (index == -1 && PyErr_Occurred()) throw PythonError{};
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(container);
    if (index < 0 || index >= size) guard_length(source, type, size);
    if (index < 0) index += size;
    if (index < 0 || index >= size) {
      PyErr_Format(PyExc_IndexError, "%s index out of range", PyList_Check(container) ? "list" : "tuple");
      throw PythonError{};
    }
    return wrap(PySequence_Fast_GET_ITEM(container, index), sources.seq_item(source, index));
  }
  if (is_builtin_container(container) || PyList_Check(container) || PyTuple_Check(container)) {
    Ref object = is_builtin_container(container) ? resolve(container) : contents_of(container);
    return call_native([&] { return PyObject_GetItem(object.get(), key); });
  }
  if (is_identity_constant(container) || is_value(container)) {
    return call_native([&] { return PyObject_GetItem(container, key); });
  }
  side_exit(BreakReason::OpaqueObject, source->name() + " of type " + type->tp_name + " is indexed");
}

void Capture::store_subscript(PyObject* container, PyObject* key, PyObject* value) {
  const Ref known_key = is_tensor(container) && size_of_number(key) ? with_symints(key) : known(key);
  key = known_key.get();
  if (is_tensor(container)) {
    const Ref known_value = value ? readable(known(value).get()) : Ref();
    value = known_value.get();
    if (!value) {
      PyErr_SetString(PyExc_TypeError, "Tensor does not support deleting items");
      throw PythonError{};
    }
    static PyObject* const setitem = operator_function("setitem");
    Ref deep = with_symints(readable(key).get());
    PyObject* args[] = {container, deep.get(), value};
    auto places = is_overridden(args) ? std::nullopt : unknown_places(container, deep.get());
    // Where only the data says, what is written to such a place stays an operator of its own.
    if (places && std::ranges::any_of(places->places, [](const auto& place) { return is_fake_tensor(place.second); })) {
      places.reset();
    }
    PyObject* const written = deep.get();
    if (places && std::ranges::any_of(key_items(written), is_fake_tensor)) places.reset();
    record(graph::TorchNode::Kind::CallFunction, setitem, args, nullptr, [&]() -> PyObject* {
      const Ref view = places ? Ref::steal(select_unknown(container, *places)) : Ref();
      if (places && !view) return nullptr;
      PyObject *target = places ? view.get() : container, *where = places ? Py_Ellipsis : deep.get();
      if (is_put_by_mask(target, where, value)) return put_by_mask(target, where, value);
      return PyObject_SetItem(target, where, value) < 0 ? nullptr : Py_NewRef(Py_None);
    });
    return;
  }
  if (is_array(container)) side_exit(BreakReason::Mutation, "an array of NumPy is changed");
  PyTypeObject* type = Py_TYPE(container);
  PyObject* name = value ? MAGNETO_STR("__setitem__") : MAGNETO_STR("__delitem__");
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* method = type_lookup(type, name);
    if (method && PyFunction_Check(method)) {
      NonResumable scope(*this);
      Ref function = wrap(method, sources.constant(method));
      value ? call(function.get(), {container, key, value}) : call(function.get(), {container, key});
      return;
    }
  }
  refuse_opaque(key, 1);
  // Subclasses too, but those that keep an order of their own.
  if (is_outside(container) && PyDict_Check(container) && !PyODict_Check(container) && original_key(key)) {
    if (!value && !dict_lookup(container, key)) {
      raise_key_error(key);
    }
    store_entry(container, key, value);
    return;
  }
  if (is_outside(container) && !is_builtin_container(container)) {
    side_exit(BreakReason::Mutation, source_of(container)->name() + " of type " + type->tp_name + " is changed");
  }
  Ref object = resolve(container, /*will_mutate=*/true);
  if (PyDict_Check(object.get())) guard_classes(*this, key, Question::Hash, 8);
  Ref items = value && PySlice_Check(key) ? resolve(value) : Ref::borrow(value);
  if (value && PySlice_Check(key)) refuse_opaque_iterable(value);
  call_native([&]() -> PyObject* {
    const int failed = value ? PyObject_SetItem(object.get(), key, items.get()) : PyObject_DelItem(object.get(), key);
    return failed < 0 ? nullptr : Py_NewRef(Py_None);
  });
}

/// One comparison after the other: each is a question about sizes.
static bool contains_size(Capture& capture, PyObject* container, PyObject* item) {
  const Ref members = checked(PySequence_Tuple(container));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members.get()); ++i) {
    PyObject* member = PyTuple_GET_ITEM(members.get(), i);
    if (member == item || capture.truth(compare(capture, Py_EQ, member, item).get())) return true;
  }
  return false;
}

bool Capture::contains(PyObject* container, PyObject* item) {
  const bool scanned =
      PyTuple_CheckExact(container) || PyList_CheckExact(container) || PyFrozenSet_CheckExact(container);
  if (size_of_number(item) && scanned && !is_outside(container) && !exits_on_change)
    return contains_size(*this, container, item);
  const Ref known_item = known(item);
  item = known_item.get();
  if (is_tensor(container)) {
    static PyObject* const function = operator_function("contains");
    PyObject* args[] = {container, item};
    return record(graph::TorchNode::Kind::CallFunction, function, args, nullptr, [&]() -> PyObject* {
             const int found = PySequence_Contains(container, item);
             return found < 0 ? nullptr : PyBool_FromLong(found);
           }).get() == Py_True;
  }
  PyTypeObject* type = Py_TYPE(container);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* method = type_lookup(type, MAGNETO_STR("__contains__"));
    if (method && PyFunction_Check(method)) {
      NonResumable scope(*this);
      Ref result = call(wrap(method, sources.constant(method)).get(), {container, item});
      return truth(result.get());
    }
  }
  if (PyDictKeys_Check(container) && !is_outside(container)) {  // whatever the values are
    return contains(reinterpret_cast<DictView*>(container)->dict, item);
  }
  if (PyDict_Check(container) && is_outside(container) && !has_shadow(container) && !is_shadow(container)) {
    check_hashable(item);
    return static_cast<bool>(dict_lookup(container, item));
  }
  if (!PyDict_Check(container)) guard_contents(container);  // of a dict, the keys
  guard_contents(item);
  const Question question = PyAnySet_Check(container) || PyDict_Check(container) ? Question::Hash : Question::Equality;
  for (PyObject* value : {container, item}) guard_classes(*this, value, question, 8);
  if (!is_builtin_container(item)) refuse_opaque(item);
  Ref object = operand(*this, container, "contains");
  Ref needle = resolve(item);
  return call_native([&]() -> PyObject* {
           const int found = PySequence_Contains(object.get(), needle.get());
           return found < 0 ? nullptr : PyBool_FromLong(found);
         }).get() == Py_True;
}

}  // namespace magneto::capture
