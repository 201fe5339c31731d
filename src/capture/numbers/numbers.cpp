// Dynamic numbers: loop counters, sums of what `.item()` gave, counters in attributes.
//
// A number from outside is guarded by its value, until captures at the same place have found another one there. From
// then on, and from the start in the locals and on the stack of a segment that goes on behind a side exit, an *unknown
// number* stands for it: it is handed on, arithmetic on it is done again in front of each run (guards::Number), and of
// a comparison only the outcome is guarded. Where more is needed (an index, a shape, a text), its value is guarded
// after all; beside a tensor it is an input of the graph, as PyTorch wraps numbers; and when there are nearly as many
// captures as are kept, the segment ends there instead.
#include "capture/numbers/numbers.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/drafts.h"
#include "capture/numbers/places.h"
#include "capture/numbers/strings.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/numbers/unknown_number.h"
#include "capture/torch/mask_loops.h"
#include "capture/torch/memory_questions.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "fake/data_sizes.h"
#include "fake/scales.h"
#include "guards/constants.h"
#include "guards/number.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Arithmetic;
using guards::Source;
using guards::SourceKind;

void Numbers::unknown_is_read() {
  c.feedback.needs_all |= !c.errors.sticky;
  c.errors.interrupt_c_code(c.errors.sticky ? c.errors.sticky : std::make_exception_ptr(Retry{}));
}

std::string place_of(const Source* source) {
  if (!source) return {};
  const size_t key = source->key ? guards::constant_hash(source->key.get()) : 0;
  return std::to_string(static_cast<int>(source->kind)) + "," + std::to_string(source->index) + "," +
         std::to_string(key) + ";" + place_of(source->base) + place_of(source->other);
}

bool Numbers::has_unknown_numbers() const {
  return !unknown_numbers.empty() || !c.symbols.size_numbers.empty() || !c.symbols.symbolic_bools.empty() ||
         !data_floats_.empty() || !c.strings.made.empty();
}

bool Numbers::has_changed(const Source* source, PyObject* found, const char* what) {
  auto [known, added] = c.feedback.found.try_emplace(place_of(source) + what, Ref::borrow(found));
  if (added) return false;
  Ref& value = known->second;
  if (value && !guards::constants_equal(value.get(), found))
    c.feedback.found[place_of(source) + what + kFirstFound] = std::exchange(value, Ref());
  return !value;
}

void Numbers::exit_on_change(const Source* source, PyObject* found, const char* what) {
  if (!c.resumed || !has_changed(source, found, what) || !c.options.exits_on_change || !c.frame) return;
  c.side_exit(BreakReason::ChangingValue, source->name() + what + " differs from run to run");
}

void Numbers::guard_length(const Source* source, PyTypeObject* type, Py_ssize_t length) {
  exit_on_change(source, checked(PyLong_FromSsize_t(length)).get(), ".__len__()");
  c.guards.length(source, type, length);
}

Ref Numbers::wrap_scalar(PyObject* raw, const Source* source) {
  if (source->kind == SourceKind::Const) return Ref::borrow(raw);
  if (guards::is_number(raw) && !c.feedback.needs_all && !c.feedback.needed.count(place_of(source))) {
    const bool changes = has_changed(source, raw, "") && (!c.containers.in_container || !PyBool_Check(raw));
    const bool fleeting = c.resumed && (source->kind == SourceKind::Local || source->kind == SourceKind::Stack);
    if (changes && c.options.dynamic >= Dynamic::Automatic && PyLong_CheckExact(raw)) {
      int overflow = 0;
      const int64_t now = PyLong_AsLongLongAndOverflow(raw, &overflow);
      if (!overflow) {
        c.guards.type(source, Py_TYPE(raw));
        return c.symbols.size_number(c.symbols.symbol_of_number(source, now));
      }
    }
    if (c.containers.in_container && !changes) {  // C code would look at what stands for it
      exit_on_change(source, raw, "");
    } else if (changes || fleeting) {
      c.guards.type(source, Py_TYPE(raw));
      return unknown_number(raw, source, changes);
    }
  } else {
    exit_on_change(source, raw, "");
  }
  c.guards.equals(source, raw);
  return Ref::borrow(raw);
}

Ref Numbers::unknown_number(PyObject* now, const Source* source, bool changes) {
  Ref& known = unknown_numbers[source];
  if (known) return known;
  known = make_unknown(now, OutsideNumber{source, changes});
  c.world.outside[known.get()] = source;
  return known;
}

Ref Numbers::data_float(const at::Tensor& holder) {
  data_floats_.push_back(
      make_unknown(checked(PyFloat_FromDouble(fake::kSomeFloat)).get(), DataFloat{Ref::steal(tensor_object(holder))}));
  return data_floats_.back();
}

Ref Symbols::question(const shapes::Relation& relation) {
  const bool now = shapes::holds(relation.kind, c.session->sizes().example(relation.difference));
  symbolic_bools.push_back(make_unknown(now ? Py_True : Py_False, relation));
  return symbolic_bools.back();
}

Ref Numbers::is_not_zero(PyObject* value) {
  static PyObject* const zero = PyLong_FromLong(0);
  if (holder_of_float(value) && decides_step(c)) {
    assume_step(c, value);
    return Ref::borrow(Py_False);
  }
  return symbolic_bool_of(value) ? Ref::borrow(value) : unknown_operation(Arithmetic::NotEqual, value, zero);
}

Ref Symbols::size_number(shapes::Expr size) {
  const int64_t example = c.session->sizes().example(size);  // throws where it wraps, which simplifying does not
  size = c.session->sizes().simplified(size);
  if (size.is_constant()) return checked(PyLong_FromLongLong(example));
  Ref& known = size_numbers[size.identity()];
  if (known) return known;
  Ref now = checked(PyLong_FromLongLong(example));
  if (c.session->sizes().is_unbacked(size)) return known = make_unknown(now.get(), SizeNumber{size, nullptr, false});
  const bool of_changing_number = shapes::any_leaf(c.session->sizes().original(size), [&](shapes::Expr leaf) {
    const auto symbol = std::ranges::find(assumed.symbols, leaf.id(), &guards::SizeAssumptions::Symbol::id);
    return symbol->place.kind == guards::SizePlace::Kind::Number;
  });
  known = c.numbers.unknown_number(now.get(), source_of_size(size), of_changing_number);
  UnknownNumber& number = unknown_of(known.get());
  number.meaning = SizeNumber{size, source_of(number), changes(number)};
  return known;
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
Ref Symbols::size_operation(Arithmetic operation, PyObject* left, PyObject* right) try {
  const auto size_of = [](PyObject* operand) -> std::optional<shapes::Expr> {
    if (const shapes::Expr* size = size_of_number(operand)) return *size;
    int overflow = 0;
    const int64_t number = PyLong_CheckExact(operand) ? PyLong_AsLongLongAndOverflow(operand, &overflow) : 0;
    return PyLong_CheckExact(operand) && !overflow ? std::optional<shapes::Expr>(number) : std::nullopt;
  };
  const auto a = size_of(left), b = size_of(right);
  // Of constants, sizes that were fixed since, Python computes: expressions wrap.
  if (!a || !b || (a->is_constant() && b->is_constant())) return {};
  const auto answer = [&](const shapes::Relation& relation) {
    if (!c.session->sizes().decide(relation)) c.numbers.draws_decide(relation);
    // Of one graph for others it stays open until somebody needs it: torch.cond does not.
    const bool stays_open = c.options.fullgraph && !c.options.assumes_bools;
    const std::optional<bool> holds =
        stays_open ? c.session->sizes().decide(relation) : c.session->sizes().evaluate(relation);
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
      if (c.session->sizes().is_unbacked(*b) ? !c.session->assume_checked(shapes::not_equal(*b, 0))
                                             : !c.session->sizes().evaluate(shapes::not_equal(*b, 0)).value()) {
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

bool is_symbolic_float(PyObject* object) {
  if (meaning_of<DataFloat>(object)) return true;
  const auto* number = meaning_of<OutsideNumber>(object);
  return number && number->changes && PyFloat_CheckExact(number_now(object)) && !is_drawn(number->source);
}

bool Numbers::assume_float(const at::Tensor& holder) {
  const WithGil gil;  // operators called from Python run without it
  for (const auto& [source, input] : c.tensors.number_inputs) {
    if (!unpack_tensor(input.get()).is_same(holder)) continue;
    c.guards.equals(source, unknown_of(unknown_numbers.at(source).get()).now);
    return true;
  }
  return false;
}

Ref Numbers::known(PyObject* value) {
  if (!is_unknown_number(value)) return Ref::borrow(value);
  if (is_symbolic_string(value)) c.strings.need_text(value);
  if (PyObject* holder = holder_of_float(value)) {
    if (Ref now = drafts::number_in(c, holder)) return now;
    exit_for_float();
  }
  if (const auto* storage = meaning_of<OfStorage>(value); storage && storage->size) {
    return storage_bytes(c, storage->tensor.get());
  }
  if (meaning_of<OfStorage>(value)) c.side_exit(BreakReason::DataAccess, "the storage of a tensor is looked at");
  if (meaning_of<Address>(value)) c.side_exit(BreakReason::DataAccess, "the address of a tensor is looked at");
  if (const shapes::Relation* question = symbolic_bool_of(value)) {
    std::optional<bool> holds = c.session->sizes().decide(*question);
    if (!holds) holds = c.session->sizes().evaluate(*question);
    if (!holds) holds = c.mask_loops.answer(*question);
    if (!holds) holds = drafts::answer(c, *question);
    if (!holds) c.symbols.exit_at_question(*question);
    return Ref::borrow(*holds ? Py_True : Py_False);
  }
  const UnknownNumber& number = unknown_of(value);
  const Source* source = source_of(number);
  const shapes::Expr* size = size_of_number(value);
  if (source && !let_draws_decide(source, PyBool_Check(number.now), size != nullptr)) {
    if (!c.frame) need(value);
    c.side_exit(BreakReason::ChangingValue, source->name() + ", a random number, is needed");
  }
  if (c.options.exits_on_change && changes(number) && c.frame) {
    c.side_exit(BreakReason::ChangingValue, source->name() + " is needed, and differs from run to run");
  }
  if (size) {
    std::optional<int64_t> fixed = c.session->sizes().specialise(*size);
    if (!fixed) fixed = drafts::number(c, *size);
    if (!fixed) c.symbols.exit_for_number(*size);
    return checked(PyLong_FromLongLong(*fixed));
  }
  c.guards.equals(source, number.now);
  return Ref::borrow(number.now);
}

Ref Numbers::beside_tensor(PyObject* value) {
  if (PyObject* holder = holder_of_float(value)) return Ref::borrow(holder);
  if (!is_unknown_number(value) || (!changes(unknown_of(value)) && !is_size(value))) return known(value);
  if (is_data_number(value)) {
    const shapes::Expr size = c.session->sizes().simplified(*size_of_number(value));
    return size.is_constant() ? known(value) : c.symbols.tensor_of_data_number(size, /*wrapped=*/true);
  }
  const Source* source = source_of(unknown_of(value));
  const auto known_input = c.tensors.number_inputs.find(source);
  if (known_input != c.tensors.number_inputs.end()) return known_input->second;
  return c.tensors.add_number_input(source, runtime::tensor_of_number(unknown_of(value).now));
}

Ref TensorMap::add_number_input(const Source* source, const Ref& real) {
  at::Tensor fake = c.session->make_input(unpack_tensor(real.get()), source->name());
  Ref input = checked(tensor_object(fake));
  number_inputs[source] = input;
  fake_of[real.get()] = input;
  inputs[c.session->value_of(fake)] = {real, source, /*number=*/true};
  return input;
}

void Numbers::specialize_all(CallArgs& args, size_t end, bool sizes_kept) {
  for (PyObject*& value : std::span(args.values).first(std::min(end, args.values.size()))) {
    if (!is_unknown_number(value) || (sizes_kept && (is_size(value) || is_symbolic_float(value)))) continue;
    c.world.keep(known(value));
    value = c.world.kept.back().get();
  }
}

void Numbers::need(PyObject* value) {
  if (is_symbolic_string(value)) c.strings.need_text(value);
  if (meaning_of<OfStorage>(value) || meaning_of<Address>(value)) {
    c.feedback.needs_all = true;
    throw Retry{};
  }
  const std::function<void(const Source*)> note = [&](const Source* source) {
    if (source->kind != SourceKind::Number) {
      c.feedback.needed.insert(place_of(source));
      return;
    }
    note(source->base);
    if (source->other) note(source->other);
  };
  note(source_of(unknown_of(value)));
  throw Retry{};
}

/// `n / 3`, `n * 1.5`, `1.5 * n`: rounded to an int, the float is what division of ints gives.
static std::optional<std::pair<shapes::Expr, int64_t>> quotient_of(Arithmetic operation, PyObject* left,
                                                                   PyObject* right) {
  if (operation == Arithmetic::Multiply && !is_size(left)) std::swap(left, right);
  if (!is_size(left) || is_data_number(left)) return std::nullopt;
  const shapes::Expr size = *size_of_number(left);
  if (operation == Arithmetic::TrueDivide && PyLong_CheckExact(right)) {
    int overflow = 0;
    const int64_t by = PyLong_AsLongLongAndOverflow(right, &overflow);
    constexpr int64_t kMostDivisor = int64_t{1} << 20;
    if (!overflow && by > 0 && by <= kMostDivisor) return std::pair(size, by);
  }
  if (operation != Arithmetic::Multiply || !PyFloat_CheckExact(right)) return std::nullopt;
  const auto parts = fake::partition(PyFloat_AS_DOUBLE(right));
  if (!parts || parts->first <= 0) return std::nullopt;
  return std::pair(size * shapes::Expr(parts->first), parts->second);
}

Ref Numbers::unknown_operation(Arithmetic operation, PyObject* left, PyObject* right) {
  if (!is_unknown_number(left) && !is_unknown_number(right)) return {};
  for (PyObject* operand : {left, right}) {
    if (is_symbolic_string(operand)) c.strings.need_text(operand);
    if (meaning_of<Address>(operand)) return address_operation(c, operation, left, right);
  }
  if (meaning_of<OfStorage>(left) || meaning_of<OfStorage>(right)) {
    if (!guards::is_number(number_now(left)) || !guards::is_number(number_now(right))) return {};
    const Ref a = known(left), b = known(right);
    return checked(guards::compute(operation, a.get(), b.get()).release());
  }
  if (holder_of_float(left) || holder_of_float(right)) {
    Ref result = data_operation(operation, left, right);
    if (result || !guards::is_number(number_now(left)) || !guards::is_number(number_now(right))) return result;
    if (Ref answer = drafts::comparison(c, operation, left, right)) return answer;
    const Ref a = known(left), b = known(right);
    return checked(guards::compute(operation, a.get(), b.get()).release());
  }
  if (symbolic_bool_of(left) || symbolic_bool_of(right)) {
    return checked(guards::compute(operation, known(left).get(), known(right).get()).release());
  }
  if (is_size(left) || is_size(right)) {
    if (Ref result = c.symbols.size_operation(operation, left, right)) return result;
    const bool numbers = guards::is_number(number_now(left)) && guards::is_number(number_now(right));
    if (numbers && (is_data_number(left) || is_data_number(right))) {
      if (Ref result = data_operation(operation, left, right)) return result;
    }
    if (c.feedback.needs_all || (numbers && (is_data_number(left) || is_data_number(right)))) {
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
  const Source* source = c.sources.number(operation, source_of_operand(left), source_of_operand(right));
  Ref result = computed_number(now, source, {left, right});
  if (auto* number = meaning_of<OutsideNumber>(result.get())) number->quotient = quotient_of(operation, left, right);
  return result;
}

const Source* Numbers::source_of_operand(PyObject* operand) {
  if (is_unknown_number(operand)) return source_of(unknown_of(operand));
  c.world.keep(Ref::borrow(operand));
  return c.sources.constant(operand);
}

Ref Numbers::computed_number(const Ref& now, const Source* source, std::initializer_list<PyObject*> operands) {
  const bool any_changes = std::ranges::any_of(operands, [](PyObject* operand) {
    return is_unknown_number(operand) && (changes(unknown_of(operand)) || is_size(operand));
  });
  int overflow = 0;
  const int64_t number = PyLong_CheckExact(now.get()) ? PyLong_AsLongLongAndOverflow(now.get(), &overflow) : 0;
  if (any_changes && c.options.dynamic >= Dynamic::Automatic && PyLong_CheckExact(now.get()) && !overflow) {
    return c.symbols.size_number(c.symbols.symbol_of_number(source, number));
  }
  Ref result = unknown_number(now.get(), source, any_changes);
  if (auto* number = meaning_of<OutsideNumber>(result.get())) {
    number->of_sizes = std::ranges::all_of(
        operands, [](PyObject* operand) { return !is_unknown_number(operand) || answers(operand); });
  }
  return PyBool_Check(now.get()) ? known(result.get()) : result;  // a comparison: which way the program goes
}

namespace {

/// Of an int the int itself.
bool keeps_ints(PyObject* function) {
  static constexpr std::string_view names[] = {"floor", "ceil", "trunc", "round"};
  return function == reinterpret_cast<PyObject*>(&PyLong_Type) ||
         std::ranges::find(names, c_function_name(function)) != std::end(names);
}

/// What the function makes of a size that is divided; nothing: it is none of those, or may be negative.
std::optional<shapes::Expr> rounded(Capture& c, PyObject* function, const std::pair<shapes::Expr, int64_t>& quotient) {
  const auto& [size, by] = quotient;
  shapes::Environment& environment = c.session->sizes();
  if (environment.range(environment.simplified(size)).low < 0) return std::nullopt;
  const std::string_view name = c_function_name(function);
  if (name == "ceil") return shapes::ceil_div(size, by);
  const bool cuts = function == reinterpret_cast<PyObject*>(&PyLong_Type) || name == "floor" || name == "trunc";
  return cuts ? std::optional(shapes::floor_div(size, by)) : std::nullopt;
}

}  // namespace

Ref Numbers::unknown_function(PyObject* function, const CallArgs& args) {
  const std::vector<PyObject*>& values = args.values;
  const bool alone = !args.kwnames && values.size() == 1;
  if (function == reinterpret_cast<PyObject*>(&PyLong_Type) && alone && size_of_number(values[0])) {
    return Ref::borrow(values[0]);
  }
  if (function == reinterpret_cast<PyObject*>(&PyFloat_Type) && alone) {
    if (holder_of_float(values[0])) return Ref::borrow(values[0]);
    static PyObject* const one = PyFloat_FromDouble(1);
    if (is_data_number(values[0])) return data_operation(Arithmetic::Multiply, values[0], one);
  }
  const auto is_operand = [](PyObject* value) {
    return !is_data_number(value) && !holder_of_float(value) && !symbolic_bool_of(value) &&
           !meaning_of<OfStorage>(value) && !meaning_of<Address>(value) && guards::is_number(number_now(value));
  };
  if (args.kwnames || values.empty() || values.size() > 2 || c.feedback.needs_all ||
      std::ranges::none_of(values, is_unknown_number) || !std::ranges::all_of(values, is_operand)) {
    return {};
  }
  PyObject *left = values[0], *right = values.size() > 1 ? values[1] : nullptr;
  if (is_size(left) && !right && keeps_ints(function)) return Ref::borrow(left);
  if (is_size(left) && !right && c_function_name(function) == "abs") {
    const shapes::Expr size = *size_of_number(left);
    return c.symbols.size_number(shapes::max(size, 0 - size));
  }
  if (const auto* number = right ? nullptr : meaning_of<OutsideNumber>(left); number && number->quotient) {
    if (const auto whole = rounded(c, function, *number->quotient)) return c.symbols.size_number(*whole);
  }
  Ref now = guards::compute(Arithmetic::Call, number_now(left), right ? number_now(right) : nullptr, function);
  if (!now) {  // the program raises: for these values
    PyErr_Clear();
    return {};
  }
  if (!guards::is_number(now.get()) && !PyBool_Check(now.get())) return {};
  const Source* source = c.sources.call(function, source_of_operand(left), right ? source_of_operand(right) : nullptr);
  return computed_number(now, source, {left, right});
}

}  // namespace magneto::capture
