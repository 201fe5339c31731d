#include "runtime/program/torch_program.h"

#include <ATen/ops/clone.h>

#include <stdexcept>

#include "graph/aliases.h"
#include "graph/symbols.h"
#include "graph/torch_values.h"
#include "ops/library.h"
#include "runtime/plan/failed_call.h"
#include "runtime/plan/thread_modes.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::runtime {

using graph::Graph;
using graph::kNoValue;
using graph::PyArg;
using graph::TorchNode;
using graph::TorchResult;
using graph::ValueId;
using graph::ValueKind;

namespace {

struct Call {
  bool method;
  Ref target;
  std::vector<PyArg> args;  // positional, then keyword arguments
  Ref keywords;             // their names, or null
  std::vector<TorchResult> results;
  std::vector<ValueId> dead;                   // values that nobody needs after this call
  std::vector<graph::SymbolBinding> symbols;   // what its results say
  std::vector<c10::OperatorHandle> operators;  // of libraries, that it calls
};

struct Constant {
  ValueId id;
  at::Tensor tensor;
  Ref object;  // null: each run gets its own copy
};

graph::SymbolValues symbols_of(const graph::SymbolReader& reader, PyObject* const* inputs, size_t count) {
  if (reader.empty()) return {};
  std::vector<const at::Tensor*> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(&unpack_tensor(inputs[i]));
  return reader.read(tensors.data());
}

/// A symbol's number from what a torch call gave: a tensor, or the number itself (`item()`).
void read(const graph::SymbolBinding& symbol, PyObject* object, graph::SymbolValues* symbols) {
  if (is_tensor_object(object)) {
    symbols->read(symbol, unpack_tensor(object));
    return;
  }
  const int64_t number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw PythonError{};
  symbols->set(symbol.symbol, number);
}

/// `object[path[0]][path[1]]...`
Ref item_at(const Ref& object, const std::vector<int32_t>& path) {
  Ref item = object;
  for (const int32_t index : path) item = checked(PySequence_GetItem(item.get(), index));
  return item;
}

}  // namespace

struct TorchProgram::Impl {
  std::vector<Call> calls;
  std::vector<Constant> constants;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  size_t value_count = 0;
  graph::SymbolReader symbols;

  explicit Impl(const Graph& graph) : symbols(graph) {}
};

TorchProgram::TorchProgram(const Graph& graph) : impl_(std::make_unique<Impl>(graph)) {
  const std::vector<bool> used = graph::values_used_by_torch(graph);
  const graph::Aliases aliases(graph);
  impl_->inputs = graph.inputs;
  impl_->outputs = graph.outputs;
  impl_->value_count = graph.values.size();
  std::vector<bool> defined(graph.values.size(), false);
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
    const graph::Value& value = graph.values[id];
    defined[id] = value.kind != ValueKind::Result;
    if (value.kind != ValueKind::Constant || !used[id]) continue;
    Ref object = aliases.needs_copy(id) ? Ref() : checked(tensor_object(value.constant));
    impl_->constants.push_back({id, value.constant, std::move(object)});
  }
  const std::vector<graph::SymbolBinding> result_symbols = graph.symbols_of(ValueKind::Result);
  const auto require = [&](ValueId id) {
    if (!defined[id])
      throw std::invalid_argument("%" + std::to_string(id) + " is not made by any torch call before its use");
  };
  for (const TorchNode& node : graph.torch_nodes) {
    Call call{node.kind == TorchNode::Kind::CallMethod, node.target, node.args, {}, {}, {}, {}, {}};
    if (!node.kwargs.empty()) {
      call.keywords = checked(PyTuple_New(static_cast<Py_ssize_t>(node.kwargs.size())));
      for (size_t i = 0; i < node.kwargs.size(); ++i) {
        PyObject* name = PyUnicode_InternFromString(node.kwargs[i].first.c_str());
        PyTuple_SET_ITEM(call.keywords.get(), i, checked(name).release());
        call.args.push_back(node.kwargs[i].second);
      }
    }
    for (const PyArg& arg : call.args) graph::for_each_value(arg, require);
    for (const TorchResult& result : node.results) {
      const auto says = [&](const graph::SymbolBinding& symbol) { return symbol.value == result.value; };
      std::ranges::copy_if(result_symbols, std::back_inserter(call.symbols), says);
      if (result.value == kNoValue || (!used[result.value] && call.symbols.empty())) continue;
      call.results.push_back(result);
      defined[result.value] = true;
    }
    impl_->calls.push_back(std::move(call));
  }
  for (const graph::AtenNode& node : graph.aten_nodes) {
    const bool known = node.torch_node >= 0 && static_cast<size_t>(node.torch_node) < impl_->calls.size();
    if (known && ops::is_of_library(node.op)) impl_->calls[node.torch_node].operators.push_back(node.op);
  }
  std::vector<bool> alive(graph.values.size(), false);
  for (const ValueId id : graph.outputs) {
    require(id);
    alive[id] = true;
  }
  for (size_t i = impl_->calls.size(); i-- > 0;) {
    Call& call = impl_->calls[i];
    // An in-place call's result may be a value whose uses are all behind.
    const auto is_read = [&](ValueId id) {
      return std::ranges::count(call.symbols, id, &graph::SymbolBinding::value) > 0;
    };
    std::erase_if(call.results, [&](const TorchResult& result) {
      if (!alive[result.value] && is_read(result.value)) call.dead.push_back(result.value);
      return !alive[result.value] && !is_read(result.value);
    });
    for (const PyArg& arg : call.args) {
      graph::for_each_value(arg, [&](ValueId id) {
        if (!alive[id]) call.dead.push_back(id);
        alive[id] = true;
      });
    }
  }
}

TorchProgram::~TorchProgram() = default;
TorchProgram::TorchProgram(TorchProgram&&) noexcept = default;

size_t TorchProgram::input_count() const { return impl_->inputs.size(); }
size_t TorchProgram::output_count() const { return impl_->outputs.size(); }

void TorchProgram::run(PyObject* const* inputs, Ref* outputs) const {
  std::vector<Ref> values(impl_->value_count);
  for (size_t i = 0; i < impl_->inputs.size(); ++i) values[impl_->inputs[i]] = Ref::borrow(inputs[i]);
  for (const Constant& constant : impl_->constants) {
    Ref& value = values[constant.id];
    value = constant.object;
    if (value) continue;
    at::Tensor copy;
    if (!with_torch_errors([&] { copy = at::clone(constant.tensor); })) throw PythonError{};
    value = checked(tensor_object(copy));
  }
  graph::SymbolValues symbols = symbols_of(impl_->symbols, inputs, impl_->inputs.size());
  std::vector<Ref> args;
  std::vector<PyObject*> pointers;
  const ModesKeptOnError modes;
  const auto run_call = [&](const Call& call) {
    args.clear();
    // Slot 0 is what PY_VECTORCALL_ARGUMENTS_OFFSET lends to the callee.
    pointers.assign(1, nullptr);
    for (const PyArg& arg : call.args) {
      args.push_back(graph::build_py_arg(
          arg, [&](ValueId id) { return id == kNoValue ? Ref::borrow(Py_None) : values[id]; },
          [](PyObject* object) { return Ref::borrow(object); },
          [&](shapes::Expr size) { return checked(PyLong_FromLongLong(symbols(size))); },
          [&](ValueId id) {
            const Ref& value = values[id];
            return PyFloat_Check(value.get()) ? value : checked(PyObject_CallMethod(value.get(), "item", nullptr));
          }));
      pointers.push_back(args.back().get());
    }
    const size_t keywords = call.keywords ? PyTuple_GET_SIZE(call.keywords.get()) : 0;
    const size_t count = (args.size() - keywords) | PY_VECTORCALL_ARGUMENTS_OFFSET;
    const auto vectorcall = call.method ? PyObject_VectorcallMethod : PyObject_Vectorcall;
    Ref result = checked(vectorcall(call.target.get(), pointers.data() + 1, count, call.keywords.get()));
    args.clear();
    for (const TorchResult& item : call.results) values[item.value] = item_at(result, item.path);
    for (const graph::SymbolBinding& symbol : call.symbols) read(symbol, values[symbol.value].get(), &symbols);
    for (const ValueId id : call.dead) values[id] = Ref();
  };
  const Call* call = impl_->calls.data();
  try {
    for (const Call* end = call + impl_->calls.size(); call != end; ++call) run_call(*call);
  } catch (const PythonError&) {
    for (const c10::OperatorHandle& op : call->operators) note_failed_call(op);
    while (call-- != impl_->calls.data()) {
      for (const c10::OperatorHandle& op : call->operators) note_earlier_call(op);
    }
    throw;
  }
  for (size_t i = 0; i < impl_->outputs.size(); ++i) outputs[i] = values[impl_->outputs[i]];
}

}  // namespace magneto::runtime
