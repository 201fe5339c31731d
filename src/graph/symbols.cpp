#include "graph/symbols.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace magneto::graph {

using shapes::Expr;

namespace {

void for_each_size(PyArg& arg, const std::function<void(Expr&)>& visit) {
  if (arg.kind == PyArg::Kind::Size) visit(arg.size);
  for (PyArg& item : arg.items) for_each_size(item, visit);
}

bool is_constant(Expr size) { return size.is_constant(); }

bool is_constant(const SymbolicGeometry& geometry) {
  return std::ranges::all_of(geometry.sizes, [](Expr size) { return is_constant(size); }) &&
         std::ranges::all_of(geometry.strides, [](Expr size) { return is_constant(size); }) &&
         is_constant(geometry.storage_offset);
}

/// Sizes among the arguments of torch calls become Python's numbers; `all`: also those that are none by themselves.
void give_numbers(PyArg& arg, const SymbolValues& values, bool all = true) {
  if (arg.kind == PyArg::Kind::Size && (all || is_constant(arg.size))) {
    arg.kind = PyArg::Kind::Const;
    arg.object = checked(PyLong_FromLongLong(values(arg.size)));
  }
  for (PyArg& item : arg.items) give_numbers(item, values, all);
}

}  // namespace

SymbolReader::SymbolReader(const Graph& graph) {
  for (const SymbolBinding& binding : graph.symbols_of(ValueKind::Input)) {
    const auto input = std::ranges::find(graph.inputs, binding.value);
    if (input == graph.inputs.end()) throw std::invalid_argument("a symbol is bound to no input");
    places_.push_back({binding, static_cast<size_t>(input - graph.inputs.begin())});
  }
}

SymbolValues SymbolReader::read(const at::Tensor* const* inputs) const {
  SymbolValues values;
  update(inputs, values);
  return values;
}

bool SymbolReader::update(const at::Tensor* const* inputs, SymbolValues& values) const {
  bool changed = false;
  for (const Place& place : places_) changed |= values.read(place.binding, *inputs[place.input]);
  return changed;
}

bool SymbolValues::read(const SymbolBinding& binding, const at::Tensor& tensor) {
  return set(binding.symbol, binding.dim < 0 ? *tensor.const_data_ptr<int64_t>() : tensor.size(binding.dim));
}

int64_t SymbolValues::operator()(Expr size) const {
  if (size.is_constant()) return size.number();
  return shapes::evaluate(size, [&](Expr leaf) { return values_.at(Expr::place(leaf.id())); });
}

void for_each_size(Graph& graph, const std::function<void(Expr&)>& visit) {
  for (Value& value : graph.values) {
    if (!value.meta.symbolic) continue;
    for (Expr& size : value.meta.symbolic->sizes) visit(size);
    for (Expr& stride : value.meta.symbolic->strides) visit(stride);
    visit(value.meta.symbolic->storage_offset);
  }
  for (AtenNode& node : graph.aten_nodes) {
    for (AtenArg& arg : node.args) {
      auto* sizes = std::get_if<SizeArg>(&arg);
      if (!sizes) continue;
      for (Expr& size : sizes->sizes) visit(size);
    }
  }
  for (TorchNode& node : graph.torch_nodes) {
    for (PyArg& arg : node.args) for_each_size(arg, visit);
    for (auto& [name, arg] : node.kwargs) for_each_size(arg, visit);
  }
}

c10::IValue number_of(const SizeArg& arg, const SymbolValues& values) {
  if (!arg.is_list) return values(arg.sizes[0]);
  std::vector<int64_t> numbers;
  for (const Expr size : arg.sizes) numbers.push_back(values(size));
  return numbers;
}

void fold_numbers(Graph& graph) {
  const SymbolValues none;
  for (Value& value : graph.values) {
    if (value.meta.symbolic && is_constant(*value.meta.symbolic)) value.meta.symbolic.reset();
  }
  for (AtenNode& node : graph.aten_nodes) {
    for (AtenArg& arg : node.args) {
      const auto* sizes = std::get_if<SizeArg>(&arg);
      if (sizes && std::ranges::all_of(sizes->sizes, [](Expr size) { return is_constant(size); })) {
        arg = number_of(*sizes, none);
      }
    }
  }
  for (TorchNode& node : graph.torch_nodes) {
    for (PyArg& arg : node.args) give_numbers(arg, none, /*all=*/false);
    for (auto& [name, arg] : node.kwargs) give_numbers(arg, none, /*all=*/false);
  }
}

namespace {

shapes::Sizes with_hints(const std::vector<Expr>& sizes, const std::vector<int64_t>& hints) {
  shapes::Sizes result;
  for (size_t i = 0; i < sizes.size(); ++i) result.emplace_back(sizes[i], hints[i]);
  return result;
}

}  // namespace

std::vector<Expr> exprs_of(const AtenArg& arg) {
  if (const auto* sizes = std::get_if<SizeArg>(&arg)) return sizes->sizes;
  const auto& constant = std::get<c10::IValue>(arg);
  if (constant.isInt()) return {constant.toInt()};
  const std::vector<int64_t> numbers = constant.toIntVector();
  return {numbers.begin(), numbers.end()};
}

shapes::Sizes sizes_of(const TensorMeta& meta) {
  if (meta.symbolic) return with_hints(meta.symbolic->sizes, meta.sizes);
  return {meta.sizes.begin(), meta.sizes.end()};
}

shapes::Sizes strides_of(const TensorMeta& meta) {
  if (meta.symbolic) return with_hints(meta.symbolic->strides, meta.strides);
  return {meta.strides.begin(), meta.strides.end()};
}

bool lies_so(const TensorMeta& meta, const std::vector<shapes::Expr>& sizes, const std::vector<shapes::Expr>& strides) {
  const shapes::Sizes its_sizes = sizes_of(meta), its_strides = strides_of(meta);
  bool same = sizes.size() == its_sizes.size() && strides.size() == its_strides.size();
  for (size_t i = 0; same && i < sizes.size(); ++i) {
    same = its_sizes[i].expr() == sizes[i] && (its_sizes[i] == 1 || its_strides[i].expr() == strides[i]);
  }
  return same;
}

shapes::Size offset_of(const TensorMeta& meta) {
  if (meta.symbolic) return {meta.symbolic->storage_offset, meta.storage_offset};
  return meta.storage_offset;
}

Graph with_numbers(const Graph& graph, const SymbolValues& values) {
  Graph result = graph;
  result.symbols.clear();
  for (Value& value : result.values) {
    if (!value.meta.symbolic) continue;
    const SymbolicGeometry& geometry = *value.meta.symbolic;
    for (size_t i = 0; i < geometry.sizes.size(); ++i) {
      value.meta.sizes[i] = values(geometry.sizes[i]);
      value.meta.strides[i] = values(geometry.strides[i]);
    }
    value.meta.storage_offset = values(geometry.storage_offset);
    value.meta.symbolic.reset();
  }
  for (AtenNode& node : result.aten_nodes) {
    for (AtenArg& arg : node.args) {
      if (const auto* sizes = std::get_if<SizeArg>(&arg)) arg = number_of(*sizes, values);
    }
  }
  for (TorchNode& node : result.torch_nodes) {
    for (PyArg& arg : node.args) give_numbers(arg, values);
    for (auto& [name, arg] : node.kwargs) give_numbers(arg, values);
  }
  return result;
}

}  // namespace magneto::graph
