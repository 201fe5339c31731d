// Dynamic sizes.
//
// Which dimensions of an input may differ, its marks say, or the option `dynamic`, or earlier captures that found
// another size there. Such a size is a symbol of the session's Environment. The program sees a stand-in for the number
// (numbers.cpp), operators of torch see torch.SymInt; both ask the environment, and what it could not answer without
// looking at this run is a guard in the end.
#include <c10/util/Backtrace.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/frames.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/places.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/nested_ints.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "fake/copies.h"
#include "fake/size_node.h"
#include "fake/sized_input.h"
#include "graph/region.h"
#include "graph/symbols.h"
#include "guards/failure.h"
#include "guards/objects.h"
#include "guards/text.h"
#include "python/abi/dicts.h"
#include "python/imported.h"
#include "runtime/plan/plan.h"
#include "shapes/condition.h"
#include "support/symbol_object.h"
#include "support/tensor_object.h"

namespace magneto::capture {

bool Symbols::makes_tensor_of_sizes() { return makes_tensors_of_sizes = !c.feedback.plain_sizes; }

using guards::kMostSize;
using guards::SizePlace;
using guards::Source;
using guards::SourceKind;
using shapes::Expr;
using shapes::ExprKind;

namespace {

/// A parameter or buffer of a module: its sizes are part of the program.
bool is_module_state(PyObject* raw, const Source* source) {
  static constinit Imported parameter("torch.nn", "Parameter");
  if (PyObject_TypeCheck(raw, parameter.type())) return true;
  if (source->kind != SourceKind::DictItem || source->base->kind != SourceKind::Attr) return false;
  PyObject* dict = source->base->key.get();
  return PyUnicode_CompareWithASCIIString(dict, "_buffers") == 0 ||
         PyUnicode_CompareWithASCIIString(dict, "_parameters") == 0;
}

/// What magneto.mark_dynamic and its like have hung on a tensor (magneto/_marks.py).
struct Marks {
  PyObject* dict;

  explicit Marks(PyObject* tensor) : dict(instance_dict(tensor)) {}

  /// The dimension is in the set of that name.
  bool has(const char* name, PyObject* dim) const {
    PyObject* dims = dict ? PyDict_GetItemString(dict, name) : nullptr;
    return dims && PyAnySet_Check(dims) && PySet_Contains(dims, dim) == 1;
  }
  /// `least`: sizes below are captures of their own.
  shapes::Range range(PyObject* dim, int64_t least) const {
    shapes::Range range{least, kMostSize};
    PyObject* ranges = dict ? PyDict_GetItemString(dict, "_dynamo_dynamic_range") : nullptr;
    PyObject* bounds = ranges && PyDict_Check(ranges) ? PyDict_GetItem(ranges, dim) : nullptr;
    if (!bounds || !PyTuple_Check(bounds) || PyTuple_GET_SIZE(bounds) != 2) return range;
    PyObject *low = PyTuple_GET_ITEM(bounds, 0), *high = PyTuple_GET_ITEM(bounds, 1);
    if (PyLong_Check(low)) range.low = std::max(least, static_cast<int64_t>(PyLong_AsLongLong(low)));
    if (PyLong_Check(high)) range.high = PyLong_AsLongLong(high);
    return range;
  }
};

}  // namespace

namespace {

/// The frames that are captured, outermost first, and, if that is asked for, those of the core.
std::string stack_below(const InterpFrame* frame) {
  std::string text;
  for (; frame; frame = frame->caller) {
    const PyCodeObject* code = frame->info->code;
    text.insert(0, "  File \"" + std::string(PyUnicode_AsUTF8(code->co_filename)) + "\", line " +
                       std::to_string(frame->instr().line) + ", in " + PyUnicode_AsUTF8(code->co_name) + "\n");
  }
  text = "\nUser stack (most recent call last):\n" + text;
  const char* core = getenv("TORCHDYNAMO_EXTENDED_DEBUG_CPP");
  if (core && std::string_view(core) == "1") text += "C++ stack:\n" + c10::get_backtrace();
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

/// Why a size or a number is a symbol, though nobody asked for it.
std::string change_text(const SpecializationFeedback& memory, const std::string& name) {
  const auto first = memory.found.find(name + kFirstFound);
  return "it differs from call to call" +
         (first == memory.found.end() ? "" : ": it was " + guards::object_text(first->second.get()));
}

/// In a line of the log of sizes: where the reason is to stand.
constexpr char kWhy[] = " (why)";
void say_why(std::string& line, const std::string& why) {
  line.replace(line.find(kWhy), sizeof(kWhy) - 1, " (" + why + ")");
}

/// Whether a variable for closer looks names the symbol or the guard.
bool is_asked_for(const char* variable, const std::string& name, bool several) {
  const char* text = getenv(variable);
  if (!text) return false;
  if (!several) return name == text;
  return ("," + std::string(text) + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

/// From here on what is assumed of sizes is noted with the user's line.
void Symbols::note_assumptions() {
  c.session->use_symbols();
  c.session->sizes().on_assume = [this](const shapes::Relation& relation) {
    const bool checked = c.session->sizes().is_unbacked(relation.difference);
    size_assumptions_.emplace_back(relation, c.frames.user_line());
    const std::string text = shapes::text(relation);
    const bool closer = is_asked_for("TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED", text, false);
    size_log.push_back("eval " + text + (checked ? " [checked in each run] " : " [guard added] ") +
                       size_assumptions_.back().second +
                       (closer ? stack_below(c.frame)
                               : ", for more info run with TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED=\"" + text + "\""));
  };
}

Expr Symbols::symbol_at(const SizePlace& place, int64_t now, shapes::Range range) {
  shapes::Environment& environment = c.session->sizes();
  if (assumed.symbols.empty()) note_assumptions();
  const Expr symbol = environment.symbol(now, range);
  assumed.symbols.push_back({symbol.id(), place, range});
  const auto bound = [](int64_t number) {
    return number >= kMostSize ? "int_oo" : number == INT64_MIN ? "-int_oo" : std::to_string(number);
  };
  const std::string name = shapes::text(symbol);
  const bool closer = is_asked_for("TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL", name, true);
  size_log.push_back("create_symbol " + name + " = " + std::to_string(now) + " for " + place.name() + " [" +
                     bound(range.low) + ", " + bound(range.high) + "] " + c.frames.user_line() + kWhy +
                     (closer ? stack_below(c.frame)
                             : ", for more info run with TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL=\"" + name + "\""));
  return symbol;
}

Expr Symbols::symbol_of_number(const Source* source, int64_t now) {
  const SizePlace place{source, SizePlace::Kind::Number, 0};
  const auto known = std::ranges::find(assumed.symbols, place, &guards::SizeAssumptions::Symbol::place);
  if (known != assumed.symbols.end()) return Expr::symbol(known->id);
  const Expr symbol = symbol_at(place, now, {});
  say_why(size_log.back(), change_text(c.feedback, place_of(source)));
  return symbol;
}

/// What hangs on a tensor whose class has marked it: no wish of the program's.
static bool hangs_on_class_tensor(Capture& c, const Source* source) {
  for (const Source* base = source->base; base; base = base->base) {
    const auto is_base = [&](const auto& entry) { return entry.second.source == base; };
    if (std::ranges::any_of(c.tensors.of_classes, is_base)) return true;
  }
  return false;
}

std::vector<Expr> Symbols::symbolic_sizes(PyObject* raw, const Source* source) {
  if (c.feedback.needs_all || is_module_state(raw, source)) return {};
  const at::Tensor& tensor = unpack_tensor(raw);
  const Marks marks(raw);
  std::vector<Expr> sizes;
  bool any = false;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const int64_t now = tensor.size(dim);
    Expr size = now;
    const std::string what = ".size()[" + std::to_string(dim) + "]";
    const bool changes = c.numbers.has_changed(source, checked(PyLong_FromLongLong(now)).get(), what.c_str());
    const Ref number = checked(PyLong_FromLongLong(dim));
    const bool asked = marks.has("_dynamo_dynamic_indices", number.get());
    const bool required = asked && !hangs_on_class_tensor(c, source);
    const bool marked = asked || marks.has("_dynamo_weak_dynamic_indices", number.get()) ||
                        marks.has("_dynamo_propagated_dynamic_indices", number.get());  // of jagged tensors
    if (marks.has("_dynamo_unbacked_indices", number.get())) {
      any = true;
      const SizePlace place{source, SizePlace::Kind::Size, static_cast<int32_t>(dim)};
      note_assumptions();
      size = c.session->make_unbacked(now, {0, kMostSize}, place.name() + ", which is marked as unbacked");
      assumed.symbols.push_back({size.id(), place, {0, kMostSize}});
      sizes.push_back(size);
      continue;
    }
    const bool by_itself = c.options.dynamic == Dynamic::Always || (changes && c.options.dynamic == Dynamic::Automatic);
    if (now > 1 && (marked || by_itself) && !marks.has("_dynamo_static_indices", number.get())) {
      any = true;
      const SizePlace place{source, SizePlace::Kind::Size, static_cast<int32_t>(dim)};
      const auto known = required || !c.options.use_duck_shape ? duck_sizes_.end() : duck_sizes_.find(now);
      if (known != duck_sizes_.end()) {
        size = known->second;
        assumed.same.push_back({place, size});
      } else {
        const shapes::Range range = marks.range(number.get(), c.session->exports() ? 1 : 2);
        if (now < range.low || now > range.high) {
          violation = place.name() + " was marked as lying in [" + std::to_string(range.low) + ", " +
                      std::to_string(range.high) + "], and is " + std::to_string(now);
        }
        const std::string why = required ? "marked by mark_dynamic"
                                : marked ? "marked by maybe_mark_dynamic"
                                : c.options.dynamic == Dynamic::Always
                                    ? "dynamic=True"
                                    : change_text(c.feedback, place_of(source) + what);
        size = symbol_at(place, now, range);
        say_why(size_log.back(), why);
        if (!required) duck_sizes_.emplace(now, size);
        if (required) required_.push_back({place, size});
      }
    }
    sizes.push_back(size);
  }
  return any ? sizes : std::vector<Expr>{};
}

void Symbols::guard_symbolic(const Source* source, PyObject* raw, const std::vector<Expr>& sizes,
                             const std::vector<Expr>& strides) {
  std::vector<bool> free_sizes, free_strides;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    free_sizes.push_back(!sizes[dim].is_constant());
    free_strides.push_back(!strides[dim].is_constant());
    if (strides[dim].is_constant()) continue;
    assumed.same.push_back({{source, SizePlace::Kind::Stride, static_cast<int32_t>(dim)}, strides[dim]});
  }
  c.guards.tensor(source, raw, std::move(free_sizes), std::move(free_strides));
}

const Source* Symbols::source_of_size(Expr size) {
  using guards::Arithmetic;
  size = c.session->sizes().original(size);
  const auto number = [&](int64_t value) { return c.sources.constant(checked(PyLong_FromLongLong(value)).get()); };
  const auto all = [&](Arithmetic operation) {
    const Source* result = nullptr;
    for (const Expr operand : size.operands()) {
      const Source* next = source_of_size(operand);
      result = result ? c.sources.number(operation, result, next) : next;
    }
    return result;
  };
  switch (size.kind()) {
    case ExprKind::Constant:
      return number(size.number());
    case ExprKind::Symbol: {
      const auto symbol = std::ranges::find(assumed.symbols, size.id(), &guards::SizeAssumptions::Symbol::id);
      const SizePlace& place = symbol->place;
      return place.kind == SizePlace::Kind::Number ? place.source : c.sources.size(place.source, place.dim);
    }
    case ExprKind::Sum: {
      const Source* total = nullptr;
      for (size_t i = 0; i < size.operands().size(); ++i) {
        const Source* term = source_of_size(size.operands()[i]);
        const int64_t factor = size.coefficients()[i];
        if (factor != 1) term = c.sources.number(Arithmetic::Multiply, term, number(factor));
        total = total ? c.sources.number(Arithmetic::Add, total, term) : term;
      }
      return size.number() == 0 ? total : c.sources.number(Arithmetic::Add, total, number(size.number()));
    }
    case ExprKind::Product:
      return all(Arithmetic::Multiply);
    case ExprKind::FloorDiv:
      return all(Arithmetic::FloorDivide);
    case ExprKind::Mod:
      return all(Arithmetic::Remainder);
    case ExprKind::Min:
      return all(Arithmetic::Minimum);
    case ExprKind::Max:
      return all(Arithmetic::Maximum);
    case ExprKind::Variable:
    case ExprKind::Value:
      break;
  }
  throw std::logic_error("a size that is no size: " + shapes::text(size));
}

/// Past the constructor of torch.Size, which looks at the numbers.
Ref shape_of_items(PyObject* items) {
  Ref args = checked(PyTuple_Pack(1, items));
  return checked(PyTuple_Type.tp_new(size_class(), args.get(), nullptr));
}

bool holds_unknown_size(PyObject* object) {
  if (Py_TYPE(object) != size_class()) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    if (size_of_number(PyTuple_GET_ITEM(object, i))) return true;
  }
  return false;
}

std::string_view c_function_name(PyObject* callable) {
  if (PyCFunction_Check(callable)) return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  if (Py_TYPE(callable) != &PyMethodDescr_Type) return {};
  return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method->ml_name;
}

bool is_operator_type(PyTypeObject* type) {
  static constinit Imported overload("torch._ops", "OpOverload"), packet("torch._ops", "OpOverloadPacket");
  return type == overload.type() || type == packet.type();
}

std::string operator_base_name(PyObject* callable) {
  static constinit Imported overload("torch._ops", "OpOverload");
  Ref packet = PyType_IsSubtype(Py_TYPE(callable), overload.type())
                   ? checked(PyObject_GetAttrString(callable, "_overloadpacket"))
                   : Ref::borrow(callable);
  return PyUnicode_AsUTF8(checked(PyObject_GetAttrString(packet.get(), "_qualified_op_name")).get());
}

bool takes_symints(PyObject* callable) {
  const std::string_view function = c_function_name(callable);
  if (function.empty() && !is_operator_type(Py_TYPE(callable))) return false;
  const std::string name = function.empty() ? operator_base_name(callable) : "aten::" + std::string(function);
  static auto* known = new std::unordered_map<std::string, bool>{
      {"aten::arange", true}, {"aten::_remove_batch_dim", true}};  // no operators, or of Scalars
  const auto [row, added] = known->try_emplace(name, false);
  if (!added) return row->second;
  for (const auto& op : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    for (const c10::Argument& argument : op->schema().arguments()) {
      const std::string type = argument.real_type()->str();
      row->second |= type.find("SymInt") != std::string::npos || type.starts_with("Scalar");
    }
  }
  return row->second;
}

Ref slice_of_shape(PyObject* shape, PyObject* slice) {
  return shape_of_items(checked(PyTuple_Type.tp_as_mapping->mp_subscript(shape, slice)).get());
}

Ref Symbols::shape_of(const at::Tensor& tensor) {
  if (!fake::is_fake(tensor)) return {};
  const std::vector<Expr> sizes = c.session->sizes_of(tensor);
  if (std::ranges::all_of(sizes, [](Expr size) { return size.is_constant(); })) return {};
  Ref items = checked(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
  for (size_t i = 0; i < sizes.size(); ++i) PyTuple_SET_ITEM(items.get(), i, size_number(sizes[i]).release());
  return shape_of_items(items.get());
}

Ref symint_object(const c10::SymInt& size) {
  static constinit Imported type("torch", "SymInt");
  Ref node = checked(node_object(size.toSymNode()));
  Ref made = checked(PyBaseObject_Type.tp_new(type.type(), checked(PyTuple_New(0)).get(), nullptr));
  if (PyObject_SetAttrString(made.get(), "node", node.get()) < 0) throw PythonError{};
  return made;
}

namespace {

Ref symfloat_object(const c10::SymFloat& number) {
  static constinit Imported type("torch", "SymFloat");
  Ref node = checked(node_object(number.toSymNodeImpl()));
  Ref made = checked(PyBaseObject_Type.tp_new(type.type(), checked(PyTuple_New(0)).get(), nullptr));
  if (PyObject_SetAttrString(made.get(), "node", node.get()) < 0) throw PythonError{};
  return made;
}

}  // namespace

bool holds_size(PyObject* object, int depth) {
  if (size_of_number(object) || is_symbolic_float(object)) return true;
  if (depth > 8) return false;
  if (PyTuple_Check(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (holds_size(PySequence_Fast_GET_ITEM(object, i), depth + 1)) return true;
    }
  } else if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    return holds_size(slice->start, depth + 1) || holds_size(slice->stop, depth + 1) ||
           holds_size(slice->step, depth + 1);
  }
  return false;
}

namespace {

/// A copy with `convert` of the sizes in it.
template <typename Convert>
Ref with_converted(PyObject* object, const Convert& convert) {
  if (!holds_size(object)) return Ref::borrow(object);
  if (is_unknown_number(object)) return convert(object);
  if (PySlice_Check(object)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(object);
    return checked(PySlice_New(with_converted(slice->start, convert).get(), with_converted(slice->stop, convert).get(),
                               with_converted(slice->step, convert).get()));
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
  Ref items = checked(PyList_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyList_SET_ITEM(items.get(), i, with_converted(PySequence_Fast_GET_ITEM(object, i), convert).release());
  }
  return PyList_Check(object) ? items : checked(PyList_AsTuple(items.get()));
}

}  // namespace

at::Tensor symfloat_holder(PyObject* object) {
  static constinit Imported type("torch", "SymFloat");
  if (Py_TYPE(object) != type.type()) return {};
  Ref node = checked(PyObject_GetAttrString(object, "node"));
  return fake::holder_of(c10::SymFloat(node_of_object(node.get())));
}

std::optional<Expr> symint_value(PyObject* object) {
  static constinit Imported type("torch", "SymInt");
  if (Py_TYPE(object) != type.type() || nested_int_of(object)) return std::nullopt;
  Ref node = checked(PyObject_GetAttrString(object, "node"));
  return fake::expr_of(c10::SymInt(node_of_object(node.get())));
}

Ref Symbols::with_symints(PyObject* object) {
  return with_converted(object, [&](PyObject* number) -> Ref {
    if (is_symbolic_float(number)) {
      const Ref holder = c.numbers.beside_tensor(number);
      const double now = PyFloat_AS_DOUBLE(number_now(number));
      return symfloat_object(c.session->symfloat(unpack_tensor(holder.get()), now));
    }
    const Expr size = c.session->sizes().simplified(*size_of_number(number));
    if (size.is_constant()) return checked(PyLong_FromLongLong(size.number()));
    return symint_object(c.session->symint(size));
  });
}

/// Lists of sizes, which were made for the call, hold plain numbers afterwards: some functions look no further.
bool Symbols::fix_sizes(std::span<PyObject* const> args) {
  bool found = false;
  const auto is_fixed = [&](Expr size) { return c.session->sizes().simplified(size).is_constant(); };
  const std::function<void(PyObject*, int)> fix = [&](PyObject* arg, int depth) {
    if (is_fake_tensor(arg)) {
      const at::Tensor& tensor = unpack_tensor(arg);
      // Fixed in vain, they would be fixed again for ever.
      found |= c.session->fix_sizes(tensor) && std::ranges::all_of(c.session->sizes_of(tensor), is_fixed);
    } else if (const auto size = symint_value(arg)) {
      const bool was_fixed = is_fixed(*size);
      c.session->sizes().specialise(*size);
      found |= !was_fixed && is_fixed(*size);
    } else if (depth < 8 && (PyTuple_Check(arg) || PyList_Check(arg))) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arg); ++i) {
        PyObject*& item = PySequence_Fast_ITEMS(arg)[i];
        fix(item, depth + 1);
        const auto size = symint_value(item);
        const Expr number = size ? c.session->sizes().simplified(*size) : Expr();
        if (size && number.is_constant()) Py_SETREF(item, checked(PyLong_FromLongLong(number.number())).release());
      }
    }
  };
  for (PyObject* arg : args) fix(arg, 0);
  return found;
}

Ref Symbols::with_size_numbers(PyObject* result) {
  static constinit Imported sym_float("torch", "SymFloat"), sym_bool("torch", "SymBool");
  PyTypeObject* type = Py_TYPE(result);
  if (const auto size = symint_value(result)) return size_number(*size);
  if (type == sym_float.type()) return checked(PyNumber_Float(result));
  if (type == sym_bool.type()) return Ref::borrow(PyObject_IsTrue(result) ? Py_True : Py_False);
  const bool shape = type == size_class(), list = PyList_CheckExact(result);
  if (!PyTuple_CheckExact(result) && !shape && !list) return Ref::borrow(result);
  std::vector<Ref> items;
  bool changes = false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(result, i);
    items.push_back(with_size_numbers(item));
    changes |= items.back().get() != item;
  }
  if (!changes) return Ref::borrow(result);
  Ref made = list ? Ref::borrow(result) : checked(PyTuple_New(PySequence_Fast_GET_SIZE(result)));
  for (size_t i = 0; i < items.size(); ++i) {
    Py_XSETREF(PySequence_Fast_ITEMS(made.get())[i], items[i].release());
  }
  return shape ? shape_of_items(made.get()) : made;
}

Ref Symbols::with_known_sizes(PyObject* object) {
  return with_converted(object, [&](PyObject* number) { return c.numbers.known(number); });
}

/// A size that was marked as dynamic, and that the program forces to one value: where it does so.
void Symbols::check_required_sizes() {
  shapes::Environment& environment = c.session->sizes();
  for (const auto& [place, size] : required_) {
    const Expr now = environment.simplified(size);
    if (!now.is_constant() || !violation.empty()) continue;
    violation = place.name() + " was marked as dynamic, but the program is valid for the size " +
                std::to_string(now.number()) + " alone";
    for (const auto& [relation, line] : size_assumptions_) {
      if (relation.kind != shapes::Relation::Kind::Zero || !shapes::depends_on(relation.difference, size)) continue;
      violation += ": it needs " + guards::in_places(shapes::condition(relation), assumed) + " " + line;
      break;
    }
    violation += ". Take the mark away, use maybe_mark_dynamic, or change that line.";
  }
}

void Symbols::finish_sizes() {
  fake::ask_about_copies(c.session->impl(), 0);
  if (assumed.empty() && c.graph.symbols.empty()) return;
  check_required_sizes();
  shapes::Environment& environment = c.session->sizes();
  environment.on_assume = nullptr;
  std::set<int32_t> used = fake::settle_sizes(*c.session, c.graph);
  for (const auto& region : c.torch.regions) used.merge(fake::settle_sizes(*c.session, region->graph));
  std::erase_if(c.graph.symbols, [&](const auto& symbol) { return !used.count(symbol.symbol); });
  for (const auto& symbol : assumed.symbols) {
    if (!used.count(symbol.id)) continue;
    const Expr expr = Expr::symbol(symbol.id);
    const shapes::Range range = environment.range(environment.simplified(expr));
    const int64_t hint = environment.example(expr);
    if (symbol.place.kind == SizePlace::Kind::Number) {
      Ref input = c.numbers.beside_tensor(c.numbers.unknown_numbers.at(symbol.place.source).get());
      c.graph.symbols.push_back({symbol.id, c.session->value_of(unpack_tensor(input.get())), -1, range, hint});
      continue;
    }
    const auto input = std::ranges::find_if(c.tensors.inputs, [&](const auto& each) {
      return each.second.source == symbol.place.source && !each.second.number;
    });
    c.graph.symbols.push_back({symbol.id, input->first, symbol.place.dim, range, hint});
  }
  graph::close_regions(c.graph, c.torch.regions);
  if (assumed.empty()) return;
  guards::SizeAssumptions assumptions = std::move(assumed);
  for (auto& same : assumptions.same) same.is = environment.original(environment.simplified(same.is));
  assumptions.relations = environment.guards();
  std::vector<std::string> places;
  for (const shapes::Relation& relation : assumptions.relations) {
    const auto noted = std::ranges::find(size_assumptions_, relation, &std::pair<shapes::Relation, std::string>::first);
    const bool known = noted != size_assumptions_.end() && noted->second.starts_with("at ");
    places.push_back(known ? noted->second.substr(3) : "");
  }
  note_size_places(c.guards, std::move(places));
  for (const std::string& op : c.session->counters.specialised_ops) {
    size_log.push_back("specialise " + op + " has no symbolic rule for what it was given: those sizes are constants");
  }
  size_log.push_back("produce_guards");
  for (const std::string& line : assumptions.lines()) size_log.push_back(line);
  c.guards.sizes(std::move(assumptions));
}

}  // namespace magneto::capture
