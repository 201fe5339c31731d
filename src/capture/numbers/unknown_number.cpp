#include "capture/numbers/unknown_number.h"

#include <memory>
#include <utility>

#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/comparisons.h"
#include "capture/numbers/numbers.h"

namespace magneto::capture {

using guards::Arithmetic;
using guards::Source;

namespace {

void look() {
  if (Capture* capture = Capture::current()) return capture->numbers.unknown_is_read();
  PyErr_SetString(PyExc_RuntimeError, "a number's value was asked for while no capture ran");
}

/// What `compute` gives of numbers that follow from sizes.
template <typename Compute>
PyObject* answer(const Compute& compute) {
  Capture* capture = Capture::current();
  if (!capture) return look(), nullptr;
  try {
    return compute(*capture).release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (...) {
    return capture->errors.interrupt_c_code(std::current_exception());
  }
}

/// `function` of the value itself, which is assumed from here on.
template <typename Function>
PyObject* answer_known(PyObject* self, const Function& function) {
  if (!answers(self) && !symbolic_bool_of(self)) return look(), nullptr;
  return answer([&](Capture& capture) { return checked(function(capture.numbers.known(self).get())); });
}

template <PyObject* (*function)(PyObject*)>
PyObject* look_1(PyObject* self) {
  return answer_known(self, function);
}
PyObject* same(PyObject* value) { return Py_NewRef(value); }

/// Numbers of other kinds than sources compute with: bools, enums, complex numbers.
bool is_other_number(PyObject* object) {
  return PyLong_Check(object) || PyFloat_Check(object) || PyComplex_Check(object);
}

PyObject* compute_known(Arithmetic operation, PyObject* left, PyObject* right) {
  return answer([&](Capture& capture) {
    return checked(
        guards::compute(operation, capture.numbers.known(left).get(), capture.numbers.known(right).get()).release());
  });
}

template <Arithmetic operation>
PyObject* look_2(PyObject* left, PyObject* right) {
  const auto computes = [](PyObject* value) { return answers(value) || guards::is_number(value); };
  if (!computes(left) || !computes(right)) {
    if (is_unknown_number(left) ? !answers(left) : is_unknown_number(right) && !answers(right)) return look(), nullptr;
    if (is_other_number(answers(left) ? right : left)) return compute_known(operation, left, right);
    Py_RETURN_NOTIMPLEMENTED;
  }
  return answer([&](Capture& capture) { return capture.numbers.unknown_operation(operation, left, right); });
}

/// Operations that no source repeats: of the values.
template <PyObject* (*function)(PyObject*, PyObject*)>
PyObject* look_at_both(PyObject* left, PyObject* right) {
  if ((is_unknown_number(left) && !is_size(left)) || (is_unknown_number(right) && !is_size(right))) {
    return look(), nullptr;
  }
  return answer([&](Capture& capture) {
    return checked(function(capture.numbers.known(left).get(), capture.numbers.known(right).get()));
  });
}

PyObject* look_3(PyObject* left, PyObject* right, PyObject* modulus) {
  if ((is_unknown_number(left) && !is_size(left)) || (is_unknown_number(right) && !is_size(right))) {
    return look(), nullptr;
  }
  return answer([&](Capture& capture) {
    return checked(PyNumber_Power(capture.numbers.known(left).get(), capture.numbers.known(right).get(),
                                  capture.numbers.known(modulus).get()));
  });
}

PyObject* look_called(PyObject*, PyObject*, PyObject*) { return look(), nullptr; }

PyObject* look_attribute(PyObject* self, PyObject* name) {
  return answer_known(self, [&](PyObject* value) { return PyObject_GetAttr(value, name); });
}

PyObject* look_compared(PyObject* left, PyObject* right, int op) {
  if (!answers(left)) return look(), nullptr;
  if (!answers(right) && !guards::is_number(right)) {
    if (is_other_number(right)) return compute_known(kByCPython[op], left, right);
    Py_RETURN_NOTIMPLEMENTED;
  }
  return answer([&](Capture& capture) { return capture.numbers.unknown_operation(kByCPython[op], left, right); });
}

int look_truth(PyObject* self) {
  Ref value = Ref::steal(answer_known(self, same));
  return value ? PyObject_IsTrue(value.get()) : -1;
}

Py_hash_t look_hash(PyObject* self) {
  Ref value = Ref::steal(answer_known(self, same));
  return value ? PyObject_Hash(value.get()) : -1;
}

void dealloc(PyObject* self) {
  Py_DECREF(unknown_of(self).now);
  std::destroy_at(&unknown_of(self).meaning);
  PyObject_Free(self);
}

/// Of what stands for a storage: their rows in effects.def say what they do.
PyObject* look_method(PyObject*, PyObject*) { return look(), nullptr; }

PyTypeObject* unknown_type() {
  static PyMethodDef methods[] = {{"nbytes", look_method, METH_NOARGS, nullptr},
                                  {"size", look_method, METH_NOARGS, nullptr},
                                  {"data_ptr", look_method, METH_NOARGS, nullptr},
                                  {}};
  static PyNumberMethods number{
      .nb_add = look_2<Arithmetic::Add>,
      .nb_subtract = look_2<Arithmetic::Subtract>,
      .nb_multiply = look_2<Arithmetic::Multiply>,
      .nb_remainder = look_2<Arithmetic::Remainder>,
      .nb_divmod = look_at_both<PyNumber_Divmod>,
      .nb_power = look_3,
      .nb_negative = look_1<PyNumber_Negative>,
      .nb_positive = look_1<PyNumber_Positive>,
      .nb_absolute = look_1<PyNumber_Absolute>,
      .nb_bool = look_truth,
      .nb_invert = look_1<PyNumber_Invert>,
      .nb_lshift = look_at_both<PyNumber_Lshift>,
      .nb_rshift = look_at_both<PyNumber_Rshift>,
      .nb_and = look_at_both<PyNumber_And>,
      .nb_xor = look_at_both<PyNumber_Xor>,
      .nb_or = look_at_both<PyNumber_Or>,
      .nb_int = look_1<same>,
      .nb_float = look_1<PyNumber_Float>,
      .nb_floor_divide = look_2<Arithmetic::FloorDivide>,
      .nb_true_divide = look_2<Arithmetic::TrueDivide>,
      .nb_index = look_1<same>,
      .nb_matrix_multiply = look_at_both<PyNumber_MatrixMultiply>,
  };
  static PyTypeObject type{
      .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "magneto._C.UnknownNumber",
      .tp_basicsize = sizeof(UnknownNumber),
      .tp_dealloc = dealloc,
      .tp_repr = look_1<PyObject_Repr>,
      .tp_as_number = &number,
      .tp_hash = look_hash,
      .tp_call = look_called,
      .tp_str = look_1<PyObject_Str>,
      .tp_getattro = look_attribute,
      .tp_flags = Py_TPFLAGS_DEFAULT,
      .tp_doc = "Stands for a number that the capture goes on without knowing.",
      .tp_richcompare = look_compared,
      .tp_iter = look_1<PyObject_GetIter>,
      .tp_methods = methods,
  };
  static const bool ready = PyType_Ready(&type) == 0;
  if (!ready) throw PythonError{};
  return &type;
}

}  // namespace

Ref make_unknown(PyObject* now, Meaning meaning) {
  auto* made = PyObject_New(UnknownNumber, unknown_type());
  if (!made) throw PythonError{};
  made->now = Py_NewRef(now);
  std::construct_at(&made->meaning, std::move(meaning));
  return Ref::steal(reinterpret_cast<PyObject*>(made));
}

bool is_unknown_number(PyObject* object) { return object && Py_TYPE(object) == unknown_type(); }

bool is_size(PyObject* object) { return meaning_of<SizeNumber>(object) != nullptr; }

bool answers(PyObject* object) {
  const auto* number = meaning_of<OutsideNumber>(object);
  return is_size(object) || meaning_of<DataFloat>(object) || (number && number->of_sizes);
}

bool is_data_number(PyObject* object) {
  const auto* number = meaning_of<SizeNumber>(object);
  return number && !number->source;
}

const Source* source_of(const UnknownNumber& unknown) {
  if (const auto* number = std::get_if<OutsideNumber>(&unknown.meaning)) return number->source;
  const auto* size = std::get_if<SizeNumber>(&unknown.meaning);
  return size ? size->source : nullptr;
}

bool changes(const UnknownNumber& unknown) {
  if (const auto* number = std::get_if<OutsideNumber>(&unknown.meaning)) return number->changes;
  const auto* size = std::get_if<SizeNumber>(&unknown.meaning);
  return size && size->changes;
}

bool answers_by_itself(PyObject* object) { return answers(object) || symbolic_bool_of(object); }

const shapes::Relation* symbolic_bool_of(PyObject* object) { return meaning_of<shapes::Relation>(object); }

PyObject* holder_of_float(PyObject* object) {
  const auto* number = meaning_of<DataFloat>(object);
  return number ? number->holder.get() : nullptr;
}

const shapes::Expr* size_of_number(PyObject* object) {
  const auto* number = meaning_of<SizeNumber>(object);
  return number ? &number->size : nullptr;
}

PyObject* number_now(PyObject* object) { return is_unknown_number(object) ? unknown_of(object).now : object; }

bool is_symbolic_string(PyObject* object) { return meaning_of<DataString>(object) != nullptr; }

bool is_storage(PyObject* object) {
  const auto* storage = meaning_of<OfStorage>(object);
  return storage && !storage->size;
}

Ref make_symbolic_string() { return make_unknown(checked(PyUnicode_New(0, 0)).get(), DataString{}); }

}  // namespace magneto::capture
