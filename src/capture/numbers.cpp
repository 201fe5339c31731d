// Numbers that differ from run to run: loop counters, sums of what `.item()` gave, counters in attributes.
//
// A number from outside is guarded by its value, until captures at the same place have found another one there. From
// then on, and from the start in the locals and on the stack of a segment that goes on behind a side exit, an *unknown
// number* stands for it: it is handed on, arithmetic on it is done again in front of each run (guards::Number), and of
// a comparison only the outcome is guarded. Where more is needed (an index, a shape, a text), its value is guarded
// after all; beside a tensor it is an input of the graph, as PyTorch wraps numbers; and when there are nearly as many
// captures as are kept, the segment ends there instead.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include "capture/capture.h"
#include "guards/constants.h"
#include "guards/number.h"

namespace magneto::capture {

using guards::Arithmetic;
using guards::Source;
using guards::SourceKind;

namespace {

/// The stand-in. C code that looks at one, past all that asks for `known` first, has the segment captured again.
struct UnknownNumber {
  PyObject_HEAD PyObject* now;  // the value in this run
  const Source* source;
  bool changes;  // captures have found different values
};

void look() {
  if (Capture* capture = Capture::current()) return capture->unknown_is_read();
  PyErr_SetString(PyExc_RuntimeError, "a number's value was asked for while no capture ran");
}

PyObject* look_1(PyObject*) { return look(), nullptr; }
PyObject* look_2(PyObject*, PyObject*) { return look(), nullptr; }
PyObject* look_3(PyObject*, PyObject*, PyObject*) { return look(), nullptr; }
PyObject* look_compared(PyObject*, PyObject*, int) { return look(), nullptr; }
int look_truth(PyObject*) { return look(), -1; }
Py_hash_t look_hash(PyObject*) { return look(), -1; }

void dealloc(PyObject* self) {
  Py_DECREF(reinterpret_cast<UnknownNumber*>(self)->now);
  PyObject_Free(self);
}

PyTypeObject* unknown_type() {
  static PyNumberMethods number{
      .nb_add = look_2,
      .nb_subtract = look_2,
      .nb_multiply = look_2,
      .nb_remainder = look_2,
      .nb_divmod = look_2,
      .nb_power = look_3,
      .nb_negative = look_1,
      .nb_positive = look_1,
      .nb_absolute = look_1,
      .nb_bool = look_truth,
      .nb_invert = look_1,
      .nb_lshift = look_2,
      .nb_rshift = look_2,
      .nb_and = look_2,
      .nb_xor = look_2,
      .nb_or = look_2,
      .nb_int = look_1,
      .nb_float = look_1,
      .nb_floor_divide = look_2,
      .nb_true_divide = look_2,
      .nb_index = look_1,
      .nb_matrix_multiply = look_2,
  };
  static PyTypeObject type{
      .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "magneto._C.UnknownNumber",
      .tp_basicsize = sizeof(UnknownNumber),
      .tp_dealloc = dealloc,
      .tp_repr = look_1,
      .tp_as_number = &number,
      .tp_hash = look_hash,
      .tp_call = look_3,
      .tp_str = look_1,
      .tp_getattro = look_2,
      .tp_flags = Py_TPFLAGS_DEFAULT,
      .tp_doc = "Stands for a number that the capture goes on without knowing.",
      .tp_richcompare = look_compared,
      .tp_iter = look_1,
  };
  static const bool ready = PyType_Ready(&type) == 0;
  if (!ready) throw PythonError{};
  return &type;
}

UnknownNumber& unknown_of(PyObject* object) { return *reinterpret_cast<UnknownNumber*>(object); }

}  // namespace

bool is_unknown_number(PyObject* object) { return object && Py_TYPE(object) == unknown_type(); }

PyObject* number_now(PyObject* object) { return is_unknown_number(object) ? unknown_of(object).now : object; }

void Capture::unknown_is_read() {
  memory_.needs_all |= !sticky_;
  interrupt_c_code(sticky_ ? sticky_ : std::make_exception_ptr(Retry{}));
}

namespace {

/// Tells places apart, for all captures of a segment. (Printing a source would run the `__repr__` of dict keys.)
std::string place_of(const Source* source) {
  if (!source) return {};
  const size_t key = source->key ? guards::constant_hash(source->key.get()) : 0;
  return std::to_string(static_cast<int>(source->kind)) + "," + std::to_string(source->index) + "," +
         std::to_string(key) + ";" + place_of(source->base) + place_of(source->other);
}

}  // namespace

bool Capture::has_changed(const Source* source, PyObject* found, const char* what) {
  auto [known, added] = memory_.found.try_emplace(place_of(source) + what, Ref::borrow(found));
  if (added) return false;
  if (known->second && !guards::constants_equal(known->second.get(), found)) known->second = Ref();
  return !known->second;
}

void Capture::exit_on_change(const Source* source, PyObject* found, const char* what) {
  if (!resumed_ || !has_changed(source, found, what) || !exits_on_change || !frame) return;
  side_exit(BreakReason::ChangingValue, source->name() + what + " differs from run to run");
}

void Capture::guard_length(const Source* source, PyTypeObject* type, Py_ssize_t length) {
  exit_on_change(source, checked(PyLong_FromSsize_t(length)).get(), ".__len__()");
  guards.length(source, type, length);
}

Ref Capture::wrap_scalar(PyObject* raw, const Source* source) {
  if (source->kind == SourceKind::Const) return Ref::borrow(raw);
  if (guards::is_number(raw) && !in_container_ && !memory_.needs_all && !memory_.needed.count(place_of(source))) {
    const bool changes = has_changed(source, raw, "");
    const bool fleeting = resumed_ && (source->kind == SourceKind::Local || source->kind == SourceKind::Stack);
    if (changes || fleeting) {
      guards.type(source, Py_TYPE(raw));
      return unknown_number(raw, source, changes);
    }
  } else {
    exit_on_change(source, raw, "");
  }
  guards.equals(source, raw);
  return Ref::borrow(raw);
}

Ref Capture::unknown_number(PyObject* now, const Source* source, bool changes) {
  Ref& known = unknown_numbers_[source];
  if (known) return known;
  auto* made = PyObject_New(UnknownNumber, unknown_type());
  if (!made) throw PythonError{};
  made->now = Py_NewRef(now);
  made->source = source;
  made->changes = changes;
  known = Ref::steal(reinterpret_cast<PyObject*>(made));
  outside_[known.get()] = source;
  return known;
}

Ref Capture::known(PyObject* value) {
  if (!is_unknown_number(value)) return Ref::borrow(value);
  const UnknownNumber& number = unknown_of(value);
  if (exits_on_change && number.changes && frame) {
    side_exit(BreakReason::ChangingValue, number.source->name() + " is needed, and differs from run to run");
  }
  guards.equals(number.source, number.now);
  return Ref::borrow(number.now);
}

Ref Capture::beside_tensor(PyObject* value) {
  if (!is_unknown_number(value) || !unknown_of(value).changes) return known(value);
  const Source* source = unknown_of(value).source;
  Ref& input = number_inputs_[source];
  if (!input) {
    Ref real = runtime::tensor_of_number(unknown_of(value).now);
    at::Tensor fake = session->make_input(THPVariable_Unpack(real.get()), source->name());
    input = checked(THPVariable_Wrap(fake));
    fake_of_[real.get()] = input;
    inputs_[session->value_of(fake)] = {real, source, /*number=*/true};
  }
  return input;
}

void Capture::know_all(CallArgs& args, size_t end) {
  for (PyObject*& value : std::span(args.values).first(std::min(end, args.values.size()))) {
    if (!is_unknown_number(value)) continue;
    keep(known(value));
    value = kept_.back().get();
  }
}

void Capture::need(PyObject* value) {
  const std::function<void(const Source*)> note = [&](const Source* source) {
    if (source->kind != SourceKind::Number) {
      memory_.needed.insert(place_of(source));
      return;
    }
    note(source->base);
    note(source->other);
  };
  note(unknown_of(value).source);
  throw Retry{};
}

Ref Capture::unknown_operation(Arithmetic operation, PyObject* left, PyObject* right) {
  if (!is_unknown_number(left) && !is_unknown_number(right)) return {};
  PyObject *a = number_now(left), *b = number_now(right);
  if (!guards::is_number(a) || !guards::is_number(b)) return {};
  Ref now = guards::compute(operation, a, b);
  if (!now) {  // the program raises: for these values
    PyErr_Clear();
    checked(guards::compute(operation, known(left).get(), known(right).get()).release());
  }
  const auto source_of_operand = [&](PyObject* operand) {
    if (is_unknown_number(operand)) return unknown_of(operand).source;
    keep(Ref::borrow(operand));
    return sources.constant(operand);
  };
  const auto changes = [](PyObject* operand) { return is_unknown_number(operand) && unknown_of(operand).changes; };
  const Source* source = sources.number(operation, source_of_operand(left), source_of_operand(right));
  Ref result = unknown_number(now.get(), source, changes(left) || changes(right));
  return PyBool_Check(now.get()) ? known(result.get()) : result;  // a comparison: which way the program goes
}

}  // namespace magneto::capture
