// Dynamic numbers: loop counters, sums of what `.item()` gave, counters in attributes.
//
// A number from outside is guarded by its value, until captures at the same place have found another one there. From
// then on, and from the start in the locals and on the stack of a segment that goes on behind a side exit, an *unknown
// number* stands for it: it is handed on, arithmetic on it is done again in front of each run (guards::Number), and of
// a comparison only the outcome is guarded. Where more is needed (an index, a shape, a text), its value is guarded
// after all; beside a tensor it is an input of the graph, as PyTorch wraps numbers; and when there are nearly as many
// captures as are kept, the segment ends there instead.
#include <pybind11/gil.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/numbers/places.h"
#include "fake/data_sizes.h"
#include "guards/constants.h"
#include "guards/draw.h"
#include "guards/number.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Arithmetic;
using guards::Source;
using guards::SourceKind;

namespace {

/// The stand-in. C code that looks at one, past all that asks for `known` first, has the segment captured again. One
/// that follows from sizes (sizes.cpp) answers by itself: what is asked is then assumed.
struct UnknownNumber {
  PyObject_HEAD PyObject* now;  // the value in this run
  PyObject* holder;             // of a data-dependent float: the tensor that holds it
  const Source* source;         // null: data-dependent
  bool changes;                 // captures have found different values
  bool is_size;
  bool of_sizes;  // a float that follows from sizes alone
  shapes::Expr size;
  bool is_symbolic_bool;  // a data-dependent bool
  shapes::Relation question;
  bool is_text;
};

bool is_size(PyObject* object) {
  return is_unknown_number(object) && reinterpret_cast<UnknownNumber*>(object)->is_size;
}

/// Whatever C code asks of it may be answered, and is assumed then.
bool answers(PyObject* object) {
  return is_size(object) || holder_of_float(object) ||
         (is_unknown_number(object) && reinterpret_cast<UnknownNumber*>(object)->of_sizes);
}

/// Follows from sizes, and data-dependent.
bool is_data_number(PyObject* object) { return is_size(object) && !reinterpret_cast<UnknownNumber*>(object)->source; }

void look() {
  if (Capture* capture = Capture::current()) return capture->unknown_is_read();
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
    return capture->interrupt_c_code(std::current_exception());
  }
}

/// `function` of the value itself, which is assumed from here on.
template <typename Function>
PyObject* answer_known(PyObject* self, const Function& function) {
  if (!answers(self) && !symbolic_bool_of(self)) return look(), nullptr;
  return answer([&](Capture& capture) { return checked(function(capture.known(self).get())); });
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
    return checked(guards::compute(operation, capture.known(left).get(), capture.known(right).get()).release());
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
  return answer([&](Capture& capture) { return capture.unknown_operation(operation, left, right); });
}

/// Operations that no source repeats: of the values.
template <PyObject* (*function)(PyObject*, PyObject*)>
PyObject* look_at_both(PyObject* left, PyObject* right) {
  if ((is_unknown_number(left) && !is_size(left)) || (is_unknown_number(right) && !is_size(right))) {
    return look(), nullptr;
  }
  return answer(
      [&](Capture& capture) { return checked(function(capture.known(left).get(), capture.known(right).get())); });
}

PyObject* look_3(PyObject* left, PyObject* right, PyObject* modulus) {
  if ((is_unknown_number(left) && !is_size(left)) || (is_unknown_number(right) && !is_size(right))) {
    return look(), nullptr;
  }
  return answer([&](Capture& capture) {
    return checked(PyNumber_Power(capture.known(left).get(), capture.known(right).get(), capture.known(modulus).get()));
  });
}

PyObject* look_called(PyObject*, PyObject*, PyObject*) { return look(), nullptr; }

PyObject* look_attribute(PyObject* self, PyObject* name) {
  return answer_known(self, [&](PyObject* value) { return PyObject_GetAttr(value, name); });
}

PyObject* look_compared(PyObject* left, PyObject* right, int op) {
  static constexpr Arithmetic comparisons[] = {Arithmetic::Less,     Arithmetic::LessEqual, Arithmetic::Equal,
                                               Arithmetic::NotEqual, Arithmetic::Greater,   Arithmetic::GreaterEqual};
  if (!answers(left)) return look(), nullptr;
  if (!answers(right) && !guards::is_number(right)) {
    if (is_other_number(right)) return compute_known(comparisons[op], left, right);
    Py_RETURN_NOTIMPLEMENTED;
  }
  return answer([&](Capture& capture) { return capture.unknown_operation(comparisons[op], left, right); });
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
  Py_DECREF(reinterpret_cast<UnknownNumber*>(self)->now);
  Py_XDECREF(reinterpret_cast<UnknownNumber*>(self)->holder);
  PyObject_Free(self);
}

PyTypeObject* unknown_type() {
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
  };
  static const bool ready = PyType_Ready(&type) == 0;
  if (!ready) throw PythonError{};
  return &type;
}

UnknownNumber& unknown_of(PyObject* object) { return *reinterpret_cast<UnknownNumber*>(object); }

}  // namespace

bool is_unknown_number(PyObject* object) { return object && Py_TYPE(object) == unknown_type(); }

bool answers_by_itself(PyObject* object) { return answers(object) || symbolic_bool_of(object); }

const shapes::Relation* symbolic_bool_of(PyObject* object) {
  return is_unknown_number(object) && unknown_of(object).is_symbolic_bool ? &unknown_of(object).question : nullptr;
}

PyObject* holder_of_float(PyObject* object) { return is_unknown_number(object) ? unknown_of(object).holder : nullptr; }

const shapes::Expr* size_of_number(PyObject* object) { return is_size(object) ? &unknown_of(object).size : nullptr; }

PyObject* number_now(PyObject* object) { return is_unknown_number(object) ? unknown_of(object).now : object; }

void Capture::unknown_is_read() {
  memory_.needs_all |= !sticky_;
  interrupt_c_code(sticky_ ? sticky_ : std::make_exception_ptr(Retry{}));
}

std::string place_of(const Source* source) {
  if (!source) return {};
  const size_t key = source->key ? guards::constant_hash(source->key.get()) : 0;
  return std::to_string(static_cast<int>(source->kind)) + "," + std::to_string(source->index) + "," +
         std::to_string(key) + ";" + place_of(source->base) + place_of(source->other);
}

bool Capture::has_changed(const Source* source, PyObject* found, const char* what) {
  auto [known, added] = memory_.found.try_emplace(place_of(source) + what, Ref::borrow(found));
  if (added) return false;
  Ref& value = known->second;
  if (value && !guards::constants_equal(value.get(), found))
    memory_.found[place_of(source) + what + kFirstFound] = std::exchange(value, Ref());
  return !value;
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
  if (guards::is_number(raw) && !memory_.needs_all && !memory_.needed.count(place_of(source))) {
    const bool changes = has_changed(source, raw, "") && (!in_container_ || !PyBool_Check(raw));
    const bool fleeting = resumed_ && (source->kind == SourceKind::Local || source->kind == SourceKind::Stack);
    if (changes && dynamic >= Dynamic::Automatic && PyLong_CheckExact(raw)) {
      int overflow = 0;
      const int64_t now = PyLong_AsLongLongAndOverflow(raw, &overflow);
      if (!overflow) {
        guards.type(source, Py_TYPE(raw));
        return size_number(symbol_of_number(source, now));
      }
    }
    if (in_container_ && !changes) {  // C code would look at what stands for it
      exit_on_change(source, raw, "");
    } else if (changes || fleeting) {
      guards.type(source, Py_TYPE(raw));
      return unknown_number(raw, source, changes);
    }
  } else {
    exit_on_change(source, raw, "");
  }
  guards.equals(source, raw);
  return Ref::borrow(raw);
}

namespace {

Ref make_unknown(PyObject* now, const Source* source, bool changes) {
  auto* made = PyObject_New(UnknownNumber, unknown_type());
  if (!made) throw PythonError{};
  made->now = Py_NewRef(now);
  made->source = source;
  made->holder = nullptr;
  made->changes = changes;
  made->is_size = made->is_symbolic_bool = made->of_sizes = made->is_text = false;
  return Ref::steal(reinterpret_cast<PyObject*>(made));
}

}  // namespace

bool is_symbolic_string(PyObject* object) { return is_unknown_number(object) && unknown_of(object).is_text; }

Ref make_symbolic_string() {
  Ref text = make_unknown(checked(PyUnicode_New(0, 0)).get(), nullptr, false);
  unknown_of(text.get()).is_text = true;
  return text;
}

Ref Capture::unknown_number(PyObject* now, const Source* source, bool changes) {
  Ref& known = unknown_numbers_[source];
  if (known) return known;
  known = make_unknown(now, source, changes);
  outside_[known.get()] = source;
  return known;
}

Ref Capture::data_float(const at::Tensor& holder) {
  data_floats_.push_back(make_unknown(checked(PyFloat_FromDouble(fake::kSomeFloat)).get(), nullptr, false));
  unknown_of(data_floats_.back().get()).holder = tensor_object(holder);
  return data_floats_.back();
}

Ref Capture::question(const shapes::Relation& relation) {
  const bool now = shapes::holds(relation.kind, session->sizes().example(relation.difference));
  symbolic_bools_.push_back(make_unknown(now ? Py_True : Py_False, nullptr, false));
  unknown_of(symbolic_bools_.back().get()).is_symbolic_bool = true;
  unknown_of(symbolic_bools_.back().get()).question = relation;
  return symbolic_bools_.back();
}

Ref Capture::is_not_zero(PyObject* value) {
  static PyObject* const zero = PyLong_FromLong(0);
  return symbolic_bool_of(value) ? Ref::borrow(value) : unknown_operation(Arithmetic::NotEqual, value, zero);
}

Ref Capture::size_number(shapes::Expr size) {
  const int64_t example = session->sizes().example(size);  // throws where it wraps, which simplifying does not
  size = session->sizes().simplified(size);
  if (size.is_constant()) return checked(PyLong_FromLongLong(example));
  Ref& known = size_numbers_[size.identity()];
  if (known) return known;
  Ref now = checked(PyLong_FromLongLong(example));
  const auto made = [&](Ref number) {
    unknown_of(number.get()).is_size = true;
    unknown_of(number.get()).size = size;
    return number;
  };
  if (session->sizes().is_unbacked(size)) return known = made(make_unknown(now.get(), nullptr, false));
  const bool changes = shapes::any_leaf(session->sizes().original(size), [&](shapes::Expr leaf) {
    const auto symbol = std::ranges::find(sizes_.symbols, leaf.id(), &guards::SizeAssumptions::Symbol::id);
    return symbol->place.kind == guards::SizePlace::Kind::Number;
  });
  return known = made(unknown_number(now.get(), source_of_size(size), changes));
}

namespace {

/// Larger powers are numbers of their own.
constexpr int64_t kMostFactors = 8, kMostShift = 61;

shapes::Expr product(const std::vector<shapes::Expr>& factors) {
  shapes::Expr result = 1;
  for (const shapes::Expr factor : factors) result *= factor;
  return result;
}

}  // namespace

/// Null also where the result is beyond 64 bits: Python's own numbers know no bounds.
Ref Capture::size_operation(Arithmetic operation, PyObject* left, PyObject* right) try {
  const auto size_of = [](PyObject* operand) -> std::optional<shapes::Expr> {
    if (is_size(operand)) return unknown_of(operand).size;
    int overflow = 0;
    const int64_t number = PyLong_CheckExact(operand) ? PyLong_AsLongLongAndOverflow(operand, &overflow) : 0;
    return PyLong_CheckExact(operand) && !overflow ? std::optional<shapes::Expr>(number) : std::nullopt;
  };
  const auto a = size_of(left), b = size_of(right);
  // Of constants, sizes that were fixed since, Python computes: expressions wrap.
  if (!a || !b || (a->is_constant() && b->is_constant())) return {};
  const auto answer = [&](const shapes::Relation& relation) {
    const std::optional<bool> holds = session->sizes().evaluate(relation);
    return holds ? Ref::borrow(*holds ? Py_True : Py_False) : question(relation);
  };
  switch (operation) {
    case Arithmetic::Add:
      return size_number(*a + *b);
    case Arithmetic::Subtract:
      return size_number(*a - *b);
    case Arithmetic::Multiply:
      return size_number(*a * *b);
    case Arithmetic::FloorDivide:
    case Arithmetic::Remainder:
      // What only the data says is not zero; where it is, CPython raises.
      if (session->sizes().is_unbacked(*b) ? !session->assume_checked(shapes::not_equal(*b, 0))
                                           : !session->sizes().evaluate(shapes::not_equal(*b, 0)).value()) {
        return {};
      }
      return size_number(operation == Arithmetic::FloorDivide ? shapes::floor_div(*a, *b) : shapes::mod(*a, *b));
    case Arithmetic::Minimum:
      return size_number(shapes::min(*a, *b));
    case Arithmetic::Maximum:
      return size_number(shapes::max(*a, *b));
    case Arithmetic::Less:
      return answer(shapes::less(*a, *b));
    case Arithmetic::LessEqual:
      return answer(shapes::at_most(*a, *b));
    case Arithmetic::Equal:
      return answer(shapes::equal(*a, *b));
    case Arithmetic::NotEqual:
      return answer(shapes::not_equal(*a, *b));
    case Arithmetic::Greater:
      return answer(shapes::less(*b, *a));
    case Arithmetic::GreaterEqual:
      return answer(shapes::at_most(*b, *a));
    case Arithmetic::Power:
      if (!b->is_constant() || b->number() < 0 || b->number() > kMostFactors) return {};
      return size_number(product(std::vector<shapes::Expr>(b->number(), *a)));
    case Arithmetic::LeftShift:
    case Arithmetic::RightShift: {
      if (!b->is_constant() || b->number() < 0 || b->number() > kMostShift) return {};
      const int64_t power = int64_t{1} << b->number();
      return size_number(operation == Arithmetic::LeftShift ? *a * power : shapes::floor_div(*a, power));
    }
    case Arithmetic::And: {  // n & 7, n & -8
      if (!b->is_constant()) return {};
      const int64_t mask = b->number();
      const auto is_power = [](int64_t number) { return number > 0 && (number & (number - 1)) == 0; };
      if (mask >= 0 && mask < INT64_MAX && is_power(mask + 1)) return size_number(shapes::mod(*a, mask + 1));
      if (mask < 0 && mask > INT64_MIN && is_power(-mask)) return size_number(*a - shapes::mod(*a, -mask));
      return {};
    }
    case Arithmetic::TrueDivide:
    case Arithmetic::Or:
    case Arithmetic::Xor:
    case Arithmetic::Call:
      return {};
  }
  return {};
} catch (const shapes::SizeOverflow&) {
  return {};
}

namespace {

bool is_drawn(const Source* source) {
  if (source->kind == SourceKind::Number) return is_drawn(source->base) || (source->other && is_drawn(source->other));
  return source->kind == SourceKind::Draw;
}

/// More draws than this in one segment: peeking at the last one costs as many.
constexpr Py_ssize_t kMostDraws = 32;

}  // namespace

bool is_symbolic_float(PyObject* object) {
  if (!is_unknown_number(object)) return false;
  const UnknownNumber& number = unknown_of(object);
  return number.holder ||
         (number.changes && !number.is_size && PyFloat_CheckExact(number.now) && !is_drawn(number.source));
}

bool Capture::assume_float(const at::Tensor& holder) {
  const pybind11::gil_scoped_acquire gil;  // operators called from Python run without it
  for (const auto& [source, input] : number_inputs_) {
    if (!unpack_tensor(input.get()).is_same(holder)) continue;
    guards.equals(source, unknown_of(unknown_numbers_.at(source).get()).now);
    return true;
  }
  return false;
}

Ref Capture::draw(PyObject* random) {
  const Source* generator = source_of(random);
  auto drawn = std::ranges::find(draws_, random, [](const auto& entry) { return entry.first.get(); });
  const Py_ssize_t index = drawn == draws_.end() ? 0 : drawn->second;
  const Source* source = generator ? sources.draw(generator, index) : nullptr;
  if (!source || !guards::is_random(random) || index == kMostDraws || memory_.needs_all ||
      memory_.needed.count(place_of(source))) {
    side_exit(BreakReason::OpaqueCall, "call of the C function _random.Random.random");
  }
  Ref now = checked(guards::peek_random(random, index).release());
  if (index == 0) drawn = draws_.insert(draws_.end(), {Ref::borrow(random), 0});
  ++drawn->second;
  guards.type(source, &PyFloat_Type);
  return unknown_number(now.get(), source, /*changes=*/true);
}

Ref draw_number(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "random");
  return capture.draw(args.values[0]);
}

Ref Capture::known(PyObject* value) {
  if (!is_unknown_number(value)) return Ref::borrow(value);
  const UnknownNumber& number = unknown_of(value);
  if (number.is_text) need_text(value);
  if (number.holder) exit_for_float();
  if (number.is_symbolic_bool) {
    const std::optional<bool> holds = session->sizes().decide(number.question);
    if (!holds) exit_at_question(number.question);
    return Ref::borrow(*holds ? Py_True : Py_False);
  }
  // Which way a program goes may be guarded once; of many such ways there would be a capture each.
  if (!number.is_size && is_drawn(number.source) && (!PyBool_Check(number.now) || std::exchange(draw_decides_, true))) {
    if (!frame) need(value);
    side_exit(BreakReason::ChangingValue, number.source->name() + ", a random number, is needed");
  }
  if (exits_on_change && number.changes && frame) {
    side_exit(BreakReason::ChangingValue, number.source->name() + " is needed, and differs from run to run");
  }
  if (number.is_size) {
    const std::optional<int64_t> fixed = session->sizes().specialise(number.size);
    if (!fixed) exit_for_number(number.size);
    return checked(PyLong_FromLongLong(*fixed));
  }
  guards.equals(number.source, number.now);
  return Ref::borrow(number.now);
}

Ref Capture::beside_tensor(PyObject* value) {
  if (PyObject* holder = holder_of_float(value)) return Ref::borrow(holder);
  if (!is_unknown_number(value) || (!unknown_of(value).changes && !is_size(value))) return known(value);
  if (is_data_number(value)) {
    const shapes::Expr size = session->sizes().simplified(unknown_of(value).size);
    return size.is_constant() ? known(value) : tensor_of_data_number(size, /*wrapped=*/true);
  }
  const Source* source = unknown_of(value).source;
  const auto known_input = number_inputs_.find(source);
  if (known_input != number_inputs_.end()) return known_input->second;
  return add_number_input(source, runtime::tensor_of_number(unknown_of(value).now));
}

Ref Capture::add_number_input(const Source* source, const Ref& real) {
  at::Tensor fake = session->make_input(unpack_tensor(real.get()), source->name());
  Ref input = checked(tensor_object(fake));
  number_inputs_[source] = input;
  fake_of_[real.get()] = input;
  inputs_[session->value_of(fake)] = {real, source, /*number=*/true};
  return input;
}

void Capture::specialize_all(CallArgs& args, size_t end, bool sizes_kept) {
  for (PyObject*& value : std::span(args.values).first(std::min(end, args.values.size()))) {
    if (!is_unknown_number(value) || (sizes_kept && (is_size(value) || is_symbolic_float(value)))) continue;
    keep(known(value));
    value = kept_.back().get();
  }
}

void Capture::need(PyObject* value) {
  if (is_symbolic_string(value)) need_text(value);
  const std::function<void(const Source*)> note = [&](const Source* source) {
    if (source->kind != SourceKind::Number) {
      memory_.needed.insert(place_of(source));
      return;
    }
    note(source->base);
    if (source->other) note(source->other);
  };
  note(unknown_of(value).source);
  throw Retry{};
}

Ref Capture::unknown_operation(Arithmetic operation, PyObject* left, PyObject* right) {
  if (!is_unknown_number(left) && !is_unknown_number(right)) return {};
  for (PyObject* operand : {left, right}) {
    if (is_symbolic_string(operand)) need_text(operand);
  }
  if (holder_of_float(left) || holder_of_float(right)) {
    Ref result = data_operation(operation, left, right);
    if (result || !guards::is_number(number_now(left)) || !guards::is_number(number_now(right))) return result;
    const Ref a = known(left), b = known(right);
    return checked(guards::compute(operation, a.get(), b.get()).release());
  }
  if (symbolic_bool_of(left) || symbolic_bool_of(right)) {
    return checked(guards::compute(operation, known(left).get(), known(right).get()).release());
  }
  if (is_size(left) || is_size(right)) {
    if (Ref result = size_operation(operation, left, right)) return result;
    const bool numbers = guards::is_number(number_now(left)) && guards::is_number(number_now(right));
    if (numbers && (is_data_number(left) || is_data_number(right))) {
      if (Ref result = data_operation(operation, left, right)) return result;
    }
    if (memory_.needs_all || (numbers && (is_data_number(left) || is_data_number(right)))) {
      const Ref a = known(left), b = known(right);
      return checked(guards::compute(operation, a.get(), b.get()).release());
    }
  }
  PyObject *a = number_now(left), *b = number_now(right);
  if (!guards::is_number(a) || !guards::is_number(b)) return {};
  Ref now = guards::compute(operation, a, b);
  if (!now) {  // the program raises: for these values
    PyErr_Clear();
    checked(guards::compute(operation, known(left).get(), known(right).get()).release());
  }
  const Source* source = sources.number(operation, source_of_operand(left), source_of_operand(right));
  return computed_number(now, source, {left, right});
}

const Source* Capture::source_of_operand(PyObject* operand) {
  if (is_unknown_number(operand)) return unknown_of(operand).source;
  keep(Ref::borrow(operand));
  return sources.constant(operand);
}

Ref Capture::computed_number(const Ref& now, const Source* source, std::initializer_list<PyObject*> operands) {
  const bool changes = std::ranges::any_of(operands, [](PyObject* operand) {
    return is_unknown_number(operand) && (unknown_of(operand).changes || is_size(operand));
  });
  int overflow = 0;
  const int64_t number = PyLong_CheckExact(now.get()) ? PyLong_AsLongLongAndOverflow(now.get(), &overflow) : 0;
  if (changes && dynamic >= Dynamic::Automatic && PyLong_CheckExact(now.get()) && !overflow) {
    return size_number(symbol_of_number(source, number));
  }
  Ref result = unknown_number(now.get(), source, changes);
  unknown_of(result.get()).of_sizes =
      std::ranges::all_of(operands, [](PyObject* operand) { return !is_unknown_number(operand) || answers(operand); });
  return PyBool_Check(now.get()) ? known(result.get()) : result;  // a comparison: which way the program goes
}

namespace {

/// Of an int the int itself.
bool keeps_ints(PyObject* function) {
  static constexpr std::string_view names[] = {"floor", "ceil", "trunc", "round"};
  return function == reinterpret_cast<PyObject*>(&PyLong_Type) ||
         std::ranges::find(names, c_function_name(function)) != std::end(names);
}

}  // namespace

Ref Capture::unknown_function(PyObject* function, const CallArgs& args) {
  const std::vector<PyObject*>& values = args.values;
  if (function == reinterpret_cast<PyObject*>(&PyFloat_Type) && !args.kwnames && values.size() == 1) {
    if (holder_of_float(values[0])) return Ref::borrow(values[0]);
    static PyObject* const one = PyFloat_FromDouble(1);
    if (is_data_number(values[0])) return data_operation(Arithmetic::Multiply, values[0], one);
  }
  const auto is_operand = [](PyObject* value) {
    return !is_data_number(value) && !holder_of_float(value) && !symbolic_bool_of(value) &&
           guards::is_number(number_now(value));
  };
  if (args.kwnames || values.empty() || values.size() > 2 || memory_.needs_all ||
      std::ranges::none_of(values, is_unknown_number) || !std::ranges::all_of(values, is_operand)) {
    return {};
  }
  PyObject *left = values[0], *right = values.size() > 1 ? values[1] : nullptr;
  if (is_size(left) && !right && keeps_ints(function)) return Ref::borrow(left);
  if (is_size(left) && !right && c_function_name(function) == "abs") {
    const shapes::Expr size = unknown_of(left).size;
    return size_number(shapes::max(size, 0 - size));
  }
  Ref now = guards::compute(Arithmetic::Call, number_now(left), right ? number_now(right) : nullptr, function);
  if (!now) {  // the program raises: for these values
    PyErr_Clear();
    return {};
  }
  if (!guards::is_number(now.get()) && !PyBool_Check(now.get())) return {};
  const Source* source = sources.call(function, source_of_operand(left), right ? source_of_operand(right) : nullptr);
  return computed_number(now, source, {left, right});
}

}  // namespace magneto::capture
