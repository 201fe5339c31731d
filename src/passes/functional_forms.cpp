#include "passes/functional_forms.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "graph/aliases.h"
#include "graph/symbols.h"
#include "graph/text.h"
#include "ops/operator.h"
#include "passes/effects.h"
#include "passes/view_meta.h"

namespace magneto::passes {

using graph::AtenArg;
using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;

void refuse(const c10::OperatorHandle& op, const char* why) {
  throw Unsupported(graph::operator_text(op) + ": " + why);
}

c10::ScalarType promoted(c10::ScalarType dims, c10::ScalarType zero, c10::ScalarType number, bool floats_for_integers) {
  const auto category = [](c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Undefined ? 0
           : dtype == c10::kBool               ? 1
           : c10::isIntegralType(dtype, false) ? 2
           : !c10::isComplexType(dtype)        ? 3
                                               : 4;
  };
  c10::ScalarType result = number;
  if (category(zero) >= category(result)) result = zero;
  if (category(dims) >= category(result)) result = dims;
  const bool is_float = !floats_for_integers || category(result) >= 3;
  return is_float ? result : c10::get_default_dtype_as_scalartype();
}

bool is_reshape(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return (name.name == "aten::view" && name.overload_name.empty()) || name.name == "aten::_unsafe_view" ||
         name.name == "aten::_reshape_alias";
}

std::optional<c10::OperatorHandle> functional_of(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto fits = [&](const c10::OperatorHandle& candidate) {
    if (graph::effects_of(candidate).writes || graph::effects_of(candidate).aliases) return false;
    // The same arguments without those named `out`.
    std::vector<const c10::Argument*> left;
    for (const c10::Argument& argument : op.schema().arguments()) {
      if (!argument.is_out()) left.push_back(&argument);
    }
    const auto& right = candidate.schema().arguments();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i]->name() != right[i].name() || *left[i]->type() != *right[i].type()) return false;
    }
    return true;
  };
  std::vector<c10::OperatorName> candidates;
  if (name.name.ends_with('_') && !name.name.ends_with("__")) {
    const std::string functional = name.name.substr(0, name.name.size() - 1);
    // bernoulli_.float is the one whose overload has another name.
    candidates.emplace_back(functional, functional == "aten::bernoulli" && name.overload_name == "float"
                                            ? std::string("p")
                                            : name.overload_name);
  } else {
    const std::string& overload = name.overload_name;
    for (std::string other :
         {std::string(), std::string("Tensor"),
          overload.ends_with("_out") ? overload.substr(0, overload.size() - 4) : std::string("Scalar"),
          std::string("default")}) {
      candidates.emplace_back(name.name, std::move(other));
    }
  }
  for (const c10::OperatorName& candidate : candidates) {
    if (auto found = dispatcher.findSchema(candidate); found && fits(*found)) return found;
  }
  // By its arguments, where the overload has another name: pow_.Scalar has pow.Tensor_Scalar, normal_ has
  // normal_functional.
  if (!name.name.ends_with('_') || name.name.ends_with("__")) return std::nullopt;
  const std::string functional = name.name.substr(0, name.name.size() - 1);
  for (const std::string& other : {functional, functional + "_functional"}) {
    for (const c10::OperatorName& candidate : overloads_of(other)) {
      if (auto found = dispatcher.findSchema(candidate); found && fits(*found)) return found;
    }
  }
  return std::nullopt;
}

// -- inverses of views ----------------------------------------------------------------------------------------------

namespace {

/// A written view with what its inverse asks of it.
struct Written : WrittenView {
  explicit Written(const WrittenView& view)
      : WrittenView(view),
        whole(out.graph().values[parent].meta),
        part(out.graph().values[value].meta),
        rank(static_cast<int64_t>(whole.sizes.size())) {}

  const AtenArg& arg(size_t i) const { return node.args[i]; }
  int64_t integer(size_t i) const { return constant_of(arg(i)).toInt(); }
  int64_t dimension(size_t i) const {
    const int64_t dim = integer(i);
    return dim < 0 ? dim + rank : dim;
  }
  ValueId add(const c10::OperatorHandle& op, std::vector<AtenArg> args, const TensorMeta& made) const {
    return out.add(op, std::move(args), {&made}, torch_node)[0];
  }
  /// `whole` as a tensor of its own.
  TensorMeta fresh() const { return dense(whole); }

  TensorMeta whole, part;
  int64_t rank;
};

ValueId same_elements(const Written& view) { return view.value; }

ValueId reshaped(const Written& view) {
  static const auto reshape = find_op("aten::reshape");
  AtenArg sizes = c10::IValue(view.whole.sizes);
  if (view.whole.symbolic) sizes = graph::SizeArg{view.whole.symbolic->sizes};
  return view.add(reshape, {view.value, sizes}, view.fresh());
}

ValueId expanded(const Written& view) {
  if (graph::sizes_of(view.whole) == graph::sizes_of(view.part)) return view.value;
  refuse(view.node.op, "a view that is written has no inverse here");
}

/// A permutation: dimension i is dimension order[i] of the tensor.
TensorMeta with_dimensions(const TensorMeta& meta, const std::vector<int64_t>& order) {
  TensorMeta made = meta;
  for (size_t i = 0; i < order.size(); ++i) {
    made.sizes[i] = meta.sizes[order[i]];
    made.strides[i] = meta.strides[order[i]];
    if (!meta.symbolic) continue;
    made.symbolic->sizes[i] = meta.symbolic->sizes[order[i]];
    made.symbolic->strides[i] = meta.symbolic->strides[order[i]];
  }
  return made;
}

ValueId add_permutation(Rewriter& out, ValueId tensor, const std::vector<int64_t>& order, const TensorMeta& made,
                        int32_t torch_node) {
  static const auto permute = find_op("aten::permute");
  return out.add(permute, {tensor, c10::IValue(order)}, {&made}, torch_node)[0];
}

/// order[i]: the dimension of the whole that dimension i of the view shows.
ValueId permuted(const Written& view, const std::vector<int64_t>& order) {
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    inverse[order[i] < 0 ? order[i] + view.rank : order[i]] = static_cast<int64_t>(i);
  return add_permutation(view.out, view.value, inverse, with_dimensions(view.part, inverse), view.torch_node);
}

ValueId by_permutation(const Written& view) { return permuted(view, constant_of(view.arg(1)).toIntVector()); }

ValueId reversed(const Written& view) {
  std::vector<int64_t> order;
  for (int64_t i = view.rank; i-- > 0;) order.push_back(i);
  return permuted(view, order);
}

ValueId swapped(const Written& view) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < view.rank; ++i) order.push_back(i);
  if (view.rank) std::swap(order[view.dimension(1)], order[view.dimension(2)]);
  return permuted(view, order);
}

ValueId scatter_slice(const Written& view, int64_t dim, const AtenArg& start, const AtenArg& end, const AtenArg& step) {
  static const auto scatter = find_op("aten::slice_scatter");
  return view.add(scatter, {view.parent, view.value, c10::IValue(dim), start, end, step}, view.fresh());
}

ValueId sliced(const Written& view) {
  return scatter_slice(view, view.integer(1), view.arg(2), view.arg(3), view.arg(4));
}

ValueId selected(const Written& view) {
  static const auto scatter = find_op("aten::select_scatter");
  return view.add(scatter, {view.parent, view.value, view.arg(1), view.arg(2)}, view.fresh());
}

ValueId unbound(const Written& view) {
  static const auto scatter = find_op("aten::select_scatter");
  const AtenArg place = c10::IValue(static_cast<int64_t>(view.result));
  return view.add(scatter, {view.parent, view.value, view.arg(1), place}, view.fresh());
}

ValueId diagonal(const Written& view) {
  static const auto scatter = find_op("aten::diagonal_scatter");
  return view.add(scatter, {view.parent, view.value, view.arg(1), view.arg(2), view.arg(3)}, view.fresh());
}

shapes::Expr size_of(const AtenArg& arg) {
  const auto* sizes = std::get_if<graph::SizeArg>(&arg);
  return sizes ? sizes->sizes.front() : shapes::Expr(constant_of(arg).toInt());
}

AtenArg size_argument(shapes::Expr size) {
  if (size.is_constant()) return c10::IValue(size.number());
  return graph::SizeArg{{size}, /*is_list=*/false};
}

/// A part of a split, where the parts in front of it have so many elements.
ValueId scatter_part(const Written& view, shapes::Expr start) {
  const int64_t dim = view.dimension(2);
  const shapes::Expr size = view.part.symbolic ? view.part.symbolic->sizes[dim] : shapes::Expr(view.part.sizes[dim]);
  return scatter_slice(view, dim, size_argument(start), size_argument(start + size), c10::IValue(int64_t{1}));
}

ValueId split(const Written& view) { return scatter_part(view, size_of(view.arg(1)) * shapes::Expr(view.result)); }

ValueId split_with_sizes(const Written& view) {
  shapes::Expr start = 0;
  const auto* sizes = std::get_if<graph::SizeArg>(&view.arg(1));
  for (int32_t i = 0; i < view.result; ++i) {
    start += sizes ? sizes->sizes[i] : shapes::Expr(constant_of(view.arg(1)).toIntVector()[i]);
  }
  return scatter_part(view, start);
}

struct Inverse {
  std::string_view view;
  ValueId (*put_back)(const Written&);
};

constexpr Inverse kInverses[] = {
#define ROW_call_inverse(op, function) {op, function},
#include "ops/rows.def"
};

}  // namespace

ValueId draw_in_rows(Rewriter& out, const c10::OperatorHandle& op, std::vector<AtenArg> args, const TensorMeta& memory,
                     int32_t torch_node) {
  for (size_t i = 1; i < args.size(); ++i) {
    if (!std::holds_alternative<c10::IValue>(args[i]))
      refuse(op, "draws random numbers into memory that is not row-major");
  }
  std::vector<int64_t> order(memory.sizes.size()), inverse(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int64_t dim) { return memory.strides[dim]; });
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int64_t>(i);
  const TensorMeta rows = with_dimensions(memory, order);
  args[0] = add_permutation(out, std::get<ValueId>(args[0]), order, rows, torch_node);
  const ValueId drawn = out.add(op, std::move(args), {&rows}, torch_node)[0];
  return add_permutation(out, drawn, inverse, memory, torch_node);
}

ValueId put_back(const WrittenView& view) {
  static const auto* inverses = [] {
    auto* table = new std::unordered_map<c10::OperatorName, ValueId (*)(const Written&)>;
    for (const Inverse& row : kInverses) table->emplace(ops::parsed(row.view), row.put_back);
    return table;
  }();
  const auto found = inverses->find(view.node.op.operator_name());
  if (found == inverses->end()) refuse(view.node.op, "a view that is written has no inverse here");
  return found->second(Written(view));
}

c10::ScalarType written_dtype(const Graph& graph, const AtenNode& node, const c10::OperatorHandle& functional,
                              const std::vector<AtenArg>& args, size_t k, const TensorMeta& memory) {
  const OperatorTraits& op = traits_of(functional);
  const bool is_out = std::any_of(node.op.schema().arguments().begin(), node.op.schema().arguments().end(),
                                  [](const c10::Argument& argument) { return argument.is_out(); });
  // An out argument of another size is resized; only elementwise operators tell the size without computing.
  if (is_out && !functional.hasTag(at::Tag::pointwise)) refuse(node.op, "writes to `out` what is not elementwise");
  std::vector<int64_t> sizes;
  c10::ScalarType dims = c10::ScalarType::Undefined, zero = dims, number = dims;
  const auto add = [](c10::ScalarType& to, c10::ScalarType dtype) {
    to = to == c10::ScalarType::Undefined ? dtype : c10::promoteTypes(to, dtype);
  };
  const auto add_tensor = [&](ValueId id) {
    if (id == kNoValue) return;
    const TensorMeta& given = graph.values[id].meta;
    c10::ScalarType dtype = given.dtype;
    if (given.wrapped && c10::isFloatingType(dtype)) dtype = c10::get_default_dtype_as_scalartype();
    add(given.wrapped ? number : given.sizes.empty() ? zero : dims, dtype);
    const std::vector<int64_t>& other = given.sizes;
    if (other.size() > sizes.size()) sizes.insert(sizes.begin(), other.size() - sizes.size(), 1);
    for (size_t i = 0; i < other.size(); ++i) {
      int64_t& size = sizes[sizes.size() - other.size() + i];
      if (size == 1) size = other[i];
    }
  };
  for (const AtenArg& arg : args) {
    if (const auto* id = std::get_if<ValueId>(&arg)) {
      add_tensor(*id);
    } else if (const auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
      if (k < ids->size()) add_tensor((*ids)[k]);
    } else if (const auto* constant = std::get_if<c10::IValue>(&arg); constant && constant->isDouble()) {
      add(number, c10::get_default_dtype_as_scalartype());
    }
  }
  if (is_out && sizes != memory.sizes) refuse(node.op, "changes the size of what it writes");
  if (op.is(ops::gives_bool)) return c10::kBool;
  if (!op.is(ops::promotes)) {
    // Of its own dtype (fill, copy, scatter, random numbers); for others that is known if nothing else takes part.
    const bool alone = (dims == c10::ScalarType::Undefined || dims == memory.dtype) &&
                       (zero == c10::ScalarType::Undefined || zero == memory.dtype);
    if (!is_out && (alone || op.is(ops::keeps_dtype))) return memory.dtype;
    refuse(node.op, "writes a dtype that is not known beforehand");
  }
  const c10::ScalarType result = promoted(dims, zero, number, op.is(ops::floats_for_integers));
  return result == c10::ScalarType::Undefined ? memory.dtype : result;
}

}  // namespace magneto::passes
