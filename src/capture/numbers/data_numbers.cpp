// Data-dependent numbers and sizes: what `.item()` and `nonzero` give, where the capture goes on without
// knowing them.
//
// They are symbols without a value. What is asked of one and does not follow from what is known, the program's own
// questions that is, ends the segment; `torch._check` and `assert` say what is to be known, and are operators of the
// graph: where one does not hold, the run is undone and CPython runs the segment, which raises what the program says.

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/computation.h"
#include "capture/numbers/counters.h"
#include "capture/numbers/drafts.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/torch/mask_loops.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/modules.h"
#include "fake/data_sizes.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "shapes/condition.h"
#include "support/symbol_object.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using shapes::Expr;
using shapes::Relation;

namespace {

/// An operator of ours as the torch level calls it.
template <const char* const& name>
PyObject* overload_packet() {
  static constinit MadeOnce<PyObject> overload;
  return overload.get([] {
    static constinit Imported ops("torch", "ops");
    Ref space = checked(PyObject_GetAttrString(ops.get(), "magneto"));
    Ref packet = checked(PyObject_GetAttrString(space.get(), name));
    return checked(PyObject_GetAttrString(packet.get(), "default")).release();
  });
}

constexpr const char* kCheck = "check";
constexpr const char* kNumber = "number";
constexpr const char* kSize = "size";
constexpr const char* kFloat = "float";
constexpr const char* kArithmetic = "arithmetic";

/// A number as operators take it.
at::Scalar scalar_of(PyObject* number) {
  if (const auto size = symint_value(number)) {
    return symint_of_object(number);
  }
  if (symfloat_holder(number).defined()) return symfloat_of_object(number);
  if (PyFloat_CheckExact(number)) return PyFloat_AS_DOUBLE(number);
  return static_cast<int64_t>(PyLong_AsLongLong(number));
}

/// Numbers for the symbols in the relations for which these hold: all the same, but for one, which may be the others'
/// sum. Empty: none found.
std::vector<std::pair<int32_t, int64_t>> find_example(const shapes::Environment& environment,
                                                      const std::vector<Relation>& relations) {
  std::set<int32_t, std::greater<>> symbols;
  for (const Relation& relation : relations) {
    shapes::any_leaf(relation.difference, [&](Expr leaf) {
      if (leaf.id() < 0) symbols.insert(leaf.id());
      return false;
    });
  }
  const auto hold = [&](int64_t value, int32_t other, int64_t value_of_other) {
    return std::ranges::all_of(relations, [&](const Relation& relation) {
      return shapes::holds(relation.kind, shapes::evaluate(relation.difference, [&](Expr leaf) {
                             if (leaf.id() >= 0) return environment.example(leaf);
                             return leaf.id() == other ? value_of_other : value;
                           }));
    });
  };
  constexpr int64_t kMost = 4096;
  std::vector<int64_t> candidates = {1031, 7, 5, 11, 3, 13, 2};
  for (int64_t value = 1031; value < kMost; value += 16) candidates.push_back(value);
  for (int64_t value = 0; value < kMost; ++value) candidates.push_back(value);
  const auto count = static_cast<int64_t>(symbols.size());
  for (const int64_t value : candidates) {
    for (const int32_t other : symbols) {
      std::vector<int64_t> values(16);
      std::iota(values.begin(), values.end(), value);
      if (count > 1) values.push_back((count - 1) * value);
      const auto last = std::ranges::find_if(values, [&](int64_t each) { return hold(value, other, each); });
      if (last == values.end()) continue;
      std::vector<std::pair<int32_t, int64_t>> found;
      for (const int32_t symbol : symbols) found.emplace_back(symbol, symbol == other ? *last : value);
      return found;
    }
  }
  return {};
}

/// It holds for one number alone, which nobody has asked for. `examples`: for what has been asked.
bool fixes_number(Relation::Kind kind, Expr difference, const std::vector<int64_t>& examples) {
  std::set<int32_t> symbols;
  shapes::any_leaf(difference, [&](Expr leaf) {
    symbols.insert(leaf.id());
    return false;
  });
  if (kind != Relation::Kind::Zero || symbols.size() != 1 || difference.kind() == shapes::ExprKind::Mod) return false;
  const auto index = static_cast<size_t>(-1 - *symbols.begin());
  return index >= examples.size() || examples[index] < 0;
}

}  // namespace

void Symbols::end_at_data_sizes() {
  c.feedback.ends_at_data_sizes = true;
  throw Retry{};
}

void Symbols::flush_checks(bool of_program) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("magneto::check", "")
                                    .typed<void(c10::SymInt, int64_t, std::string_view)>();
  const auto is_bound = [&](Expr leaf) {
    return leaf.id() >= 0 || std::ranges::count(c.graph.symbols, leaf.id(), &graph::SymbolBinding::symbol) > 0 ||
           std::ranges::count(assumed.symbols, leaf.id(), &guards::SizeAssumptions::Symbol::id) > 0;
  };
  const auto is_of_result = [&](Expr leaf) {
    const auto found = std::ranges::find(c.graph.symbols, leaf.id(), &graph::SymbolBinding::symbol);
    return found != c.graph.symbols.end() && c.graph.values[found->value].kind == graph::ValueKind::Result;
  };
  for (const Relation& relation : c.session->take_checks()) {
    const Expr original = c.session->sizes().original(relation.difference);
    // Of an operator that was taken back: nothing is left of it.
    if (shapes::any_leaf(original, [&](Expr leaf) { return !is_bound(leaf); })) continue;
    if (c.options.tries_data_sizes && !of_program && shapes::any_leaf(original, is_of_result)) {
      if (fixes_number(relation.kind, original, c.feedback.examples)) end_at_data_sizes();
      c.feedback.checks_data_sizes = true;
    }
    // As it is asked, not as it is known now: for what is known, it holds.
    const Expr difference =
        shapes::substitute(original, [](Expr leaf) { return std::optional(Expr::value(leaf.id())); });
    const auto kind = static_cast<int64_t>(relation.kind);
    const std::string text = shapes::text(relation);
    const c10::SymInt size = c.session->symint(difference);
    Ref symint = symint_object(size), number = checked(PyLong_FromLongLong(kind));
    Ref question = checked(PyUnicode_FromString(text.c_str()));
    PyObject* args[] = {symint.get(), number.get(), question.get()};
    c.torch.record(graph::TorchNode::Kind::CallFunction, overload_packet<kCheck>(), args, nullptr, [&] {
      operation.call(size, kind, text);
      return Py_NewRef(Py_None);
    });
  }
}

void Symbols::bind_symbols(PyObject* result, size_t before, graph::TorchNode& node) {
  const auto number = symint_value(result);
  for (size_t i = before, end = c.graph.symbols.size(); i < end; ++i) {
    const graph::SymbolBinding symbol = c.graph.symbols[i];
    const Expr expr = Expr::symbol(symbol.symbol);
    if (number && *number == expr) node.results.push_back({{}, symbol.value});  // item()
    if (std::ranges::count(node.results, symbol.value, &graph::TorchResult::value)) continue;
    // Found inside the call, by the operators; the torch level sees what comes out.
    for (const graph::TorchResult& out : node.results) {
      if (out.value == graph::kNoValue) continue;
      const auto& geometry = c.graph.values[out.value].meta.symbolic;
      const auto dim = geometry ? std::ranges::find(geometry->sizes, expr) : std::vector<Expr>::const_iterator();
      if (!geometry || dim == geometry->sizes.end()) continue;
      c.graph.symbols.push_back({symbol.symbol, out.value, static_cast<int32_t>(dim - geometry->sizes.begin())});
      break;
    }
  }
}

Ref Symbols::tensor_of_question(const Relation& question) {
  using Kind = Relation::Kind;
  static PyObject* const zero = PyLong_FromLong(0);
  const Ref difference = tensor_of_data_number(question.difference, /*wrapped=*/false);
  const int comparison = question.kind == Kind::Zero ? Py_EQ : question.kind == Kind::NonZero ? Py_NE : Py_GE;
  return compare(c, comparison, difference.get(), zero);
}

Ref Symbols::tensor_of_data_number(const Expr& size, bool wrapped) {
  const auto operation = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(wrapped ? "magneto::number" : "magneto::size", "")
                             .typed<at::Tensor(c10::SymInt)>();
  const c10::SymInt number = c.session->symint(size);
  Ref symint = symint_object(number);
  PyObject* args[] = {symint.get()};
  PyObject* target = wrapped ? overload_packet<kNumber>() : overload_packet<kSize>();
  return c.torch.record(graph::TorchNode::Kind::CallFunction, target, args, nullptr,
                        [&] { return tensor_object(operation.call(number)); });
}

namespace {

/// Among the numbers that captures have needed: those in an optimizer's state, which guards then read.
constexpr const char* kState = "the state of an optimizer";

/// What an optimizer of PyTorch's computes of its step's number, and of norms, goes to operators, and nowhere else.
bool is_in_optimizer(const InterpFrame* frame) {
  return frame && module_of(frame->globals).starts_with("torch.optim.");
}

}  // namespace

Ref float_of_tensor(Capture& capture, PyObject* object) {
  const at::Tensor& tensor = unpack_tensor(object);
  if (!c10::isFloatingType(tensor.scalar_type()) || tensor.numel() != 1 || fake::known_value(tensor)) return {};
  if (capture.feedback.needed.contains(kState) && is_in_optimizer(capture.frame)) {
    if (Ref number = number_in_state(capture, tensor)) return number;
  }
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("magneto::item", "").typed<at::Tensor(const at::Tensor&)>();
  capture.session->use_symbols();
  PyObject* args[] = {object};
  const Ref holder = capture.torch.record(graph::TorchNode::Kind::CallMethod, MAGNETO_STR("item"), args, nullptr, [&] {
    const at::NoGradGuard guard;
    return tensor_object(operation.call(tensor));
  });
  return capture.numbers.data_float(unpack_tensor(holder.get()));
}

Ref Numbers::float_item(PyObject* callable, const std::vector<PyObject*>& values) {
  static constinit Imported overload("torch", "ops.aten.item.default");  // in an exported graph
  const bool reads = c_function_name(callable) == "item" || callable == overload.get();
  if (values.size() != 1 || !reads || !is_fake_tensor(values[0])) return {};
  if (!c.session->takes.numbers && !is_in_optimizer(c.frame) && !decides_step(c)) return {};
  return float_of_tensor(c, values[0]);
}

Ref Numbers::tensor_of_data_float(PyObject* value) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("magneto::float", "").typed<at::Tensor(const at::Scalar&)>();
  const Ref number = c.symbols.with_symints(value);
  PyObject* args[] = {number.get()};
  return c.torch.record(graph::TorchNode::Kind::CallFunction, overload_packet<kFloat>(), args, nullptr,
                        [&] { return tensor_object(operation.call(scalar_of(number.get()))); });
}

Ref Numbers::data_operation(guards::Arithmetic operation, PyObject* left, PyObject* right) {
  using guards::Arithmetic;
  const auto is_float = [](PyObject* value) { return PyFloat_CheckExact(number_now(value)); };
  if (!guards::is_number(number_now(left)) || !guards::is_number(number_now(right))) return {};
  switch (operation) {
    case Arithmetic::Add:
    case Arithmetic::Subtract:
    case Arithmetic::Multiply:
    case Arithmetic::FloorDivide:
    case Arithmetic::Remainder:
    case Arithmetic::Power:
      if (!is_float(left) && !is_float(right)) return {};
      break;
    case Arithmetic::Minimum:
    case Arithmetic::Maximum:
      if (!is_float(left) || !is_float(right)) return {};
      break;
    case Arithmetic::TrueDivide:
      break;
    default:
      return {};
  }
  static const auto arithmetic = c10::Dispatcher::singleton()
                                     .findSchemaOrThrow("magneto::arithmetic", "")
                                     .typed<at::Tensor(const at::Scalar&, const at::Scalar&, int64_t)>();
  const auto operand = [&](PyObject* value) {
    return size_of_number(value) || is_symbolic_float(value) ? c.symbols.with_symints(value) : known(value);
  };
  const Ref a = operand(left), b = operand(right);
  const Ref number = checked(PyLong_FromLong(static_cast<long>(operation)));
  PyObject* args[] = {a.get(), b.get(), number.get()};
  const Ref holder =
      c.torch.record(graph::TorchNode::Kind::CallFunction, overload_packet<kArithmetic>(), args, nullptr, [&] {
        return tensor_object(arithmetic.call(scalar_of(a.get()), scalar_of(b.get()), static_cast<int64_t>(operation)));
      });
  return data_float(unpack_tensor(holder.get()));
}

void Numbers::exit_for_float() {
  if (is_in_optimizer(c.frame) && c.feedback.needed.insert(kState).second) throw Retry{};
  c.side_exit(BreakReason::DataDependentValue, "the program needs a data-dependent float");
}

void end_at_data_numbers(Capture& c) {
  const auto is_number = [](const graph::SymbolBinding& symbol) { return symbol.dim < 0; };
  if (c.session->takes.numbers || c.feedback.ends_at_data_numbers) return;
  if (std::ranges::none_of(c.graph.symbols_of(graph::ValueKind::Result), is_number)) return;
  PyErr_Clear();
  c.feedback.ends_at_data_numbers = true;
  throw Retry{};
}

void Symbols::exit_at_question(const Relation& relation) {
  end_at_data_numbers(c);
  c.side_exit(BreakReason::DataDependentBranch, "the program asks whether " + shapes::condition(relation) +
                                                    ", which is data-dependent (" +
                                                    c.session->origins(relation.difference) + ")");
}

void Symbols::exit_for_number(Expr size) {
  end_at_data_numbers(c);
  c.side_exit(BreakReason::DataDependentValue, "the program needs the number " + shapes::text(size) +
                                                   ", which is data-dependent (" + c.session->origins(size) + ")");
}

void Symbols::require_length(PyObject* object, std::optional<int64_t> wanted) {
  const at::Tensor& tensor = unpack_tensor(object);
  if (!fake::is_fake(tensor) || tensor.dim() == 0) return;
  const Expr length = c.session->sizes().simplified(c.session->sizes_of(tensor)[0]);
  if (!c.session->sizes().is_unbacked(length)) return;
  end_at_data_numbers(c);
  if (c.options.tries_data_sizes) end_at_data_sizes();
  // Where it has another length, CPython raises what eager does.
  if (wanted && c.options.fullgraph && check_questions({shapes::equal(length, *wanted)})) return;
  if (drafts::number(c, length)) return;
  const std::string why = c.frame ? c.mask_loops.why_refused(*c.frame) : "";
  c.side_exit(BreakReason::DataDependentValue,
              "the program goes over a tensor whose length " + shapes::text(length) + " is data-dependent (" +
                  c.session->origins(length) + ")" +
                  (why.empty() ? "" : "; it is not captured as a loop over a mask: " + why));
}

namespace {

/// As find_example, of the numbers that these are in this call.
std::vector<std::pair<int32_t, int64_t>> example_of_call(Capture& c, const std::vector<Relation>& relations) {
  std::map<int32_t, int64_t> now;
  for (const Relation& relation : relations) {
    shapes::any_leaf(relation.difference, [&](Expr leaf) {
      for (const graph::SymbolBinding& binding : c.graph.symbols) {
        const graph::Value& value = c.graph.values[binding.value];
        if (binding.symbol != leaf.id() || value.kind != graph::ValueKind::Result || now.contains(leaf.id())) continue;
        if (c.options.drafts) {
          if (const auto number = Computation(c, Computation::Extent::All).size(leaf)) now.emplace(leaf.id(), *number);
          continue;
        }
        const graph::ValueId counted = fake::counted_by(c.graph, c.graph.aten_nodes[value.producer]);
        if (counted == graph::kNoValue) continue;
        const std::optional<int64_t> count = count_of_data(c, counted);
        if (count.value_or(0) > 0) now.emplace(leaf.id(), *count);
      }
      return leaf.id() < 0 && !now.contains(leaf.id());
    });
  }
  const auto holds = [&](const Relation& relation) {
    return shapes::holds(relation.kind, shapes::evaluate(relation.difference, [&](Expr leaf) {
                           const auto known = now.find(leaf.id());
                           return known == now.end() ? c.session->sizes().example(leaf) : known->second;
                         }));
  };
  if (!std::ranges::all_of(relations, holds)) return {};
  return {now.begin(), now.end()};
}

}  // namespace

void Symbols::retry_with_example(const std::vector<Relation>& relations) {
  auto found = example_of_call(c, relations);
  if (found.empty()) found = find_example(c.session->sizes(), relations);
  std::vector<int64_t>& examples = c.feedback.examples;
  for (const auto& [symbol, value] : found) {
    const auto index = static_cast<size_t>(-1 - symbol);
    if (examples.size() <= index) examples.resize(index + 1, -1);
    examples[index] = value;
  }
  constexpr int kMostChanges = 20, kMostInDrafts = 1000;
  if (found.empty() || ++c.feedback.example_changes >= (c.options.drafts ? kMostInDrafts : kMostChanges)) return;
  PyErr_Clear();
  throw Retry{};
}

void Symbols::retry_without_rest() {
  std::vector<Relation> wished;
  for (const Relation& relation : c.session->take_checks()) {
    const Expr original = c.session->sizes().original(relation.difference);
    const bool has_rest = relation.kind == Relation::Kind::NonZero && original.kind() == shapes::ExprKind::Mod;
    if (has_rest && !c.session->sizes().is_unbacked(original.operands()[1]))
      wished.push_back(shapes::equal(original, 0));
  }
  if (!wished.empty()) retry_with_example(wished);
}

bool Symbols::check_questions(const std::vector<Relation>& relations) {
  shapes::Environment& environment = c.session->sizes();
  std::vector<Relation> open;
  for (const Relation& relation : relations) {
    const std::optional<bool> known =
        environment.is_unbacked(relation.difference) ? environment.decide(relation) : environment.evaluate(relation);
    if (known && !*known) return false;
    if (!known) open.push_back(shapes::with_difference(relation, environment.original(relation.difference)));
  }
  const auto is_so = [&](const Relation& relation) {
    return shapes::holds(relation.kind, environment.example(relation.difference));
  };
  if (!std::ranges::all_of(open, is_so)) {
    // Rules for plain numbers run on examples, which have to satisfy what is known.
    retry_with_example(open);
    exit_at_question(open.front());
  }
  flush_checks();  // what operators have asked so far
  for (const Relation& relation : open) c.session->assume_checked(relation);
  flush_checks(/*of_program=*/true);
  return true;
}

bool Symbols::check_condition(PyObject* condition) {
  if (condition == Py_True) return true;
  if (const Relation* question = symbolic_bool_of(condition)) return check_questions({*question});
  return false;
}

Ref Symbols::check(PyObject* function, const CallArgs& args) {
  if (args.positional() == 0) return {};
  const std::string name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_name);
  if (name == "_check_tensor_all_with") return c.calls.check_tensor_all(args);
  static PyObject* const zero = PyLong_FromLong(0);
  bool holds = true;
  const auto check_order = [&](PyObject* least, PyObject* most) {
    if (!guards::is_number(number_now(least)) || !guards::is_number(number_now(most))) return false;
    Ref condition = c.numbers.unknown_operation(guards::Arithmetic::LessEqual, least, most);
    if (!condition) condition = checked(PyObject_RichCompare(least, most, Py_LE));
    return check_condition(condition.get());
  };
  if (name == "_check_is_size") {
    holds = check_order(zero, args.values[0]);
    for (size_t i = args.positional(); i < args.values.size(); ++i) {
      if (PyUnicode_CompareWithASCIIString(args.keyword(i), "max") != 0 || args.values[i] == Py_None) continue;
      holds = holds && check_order(args.values[0], args.values[i]);
    }
  } else {
    holds = check_condition(args.values[0]);
  }
  // It raises, or takes something else than a bool, which is PyTorch's to say.
  if (!holds) c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(function) + " with what is not true");
  return Ref::borrow(Py_None);
}

}  // namespace magneto::capture
