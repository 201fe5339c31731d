#include "graph/undo.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "graph/aliases.h"

namespace magneto::graph {

namespace {

enum class Safe : uint8_t { Always, Fitting, Floats };

/// ATen operators that are known not to raise once capture has checked shapes and dtypes: by their names, without the
/// underscore of the in-place form. Whatever has no row may raise. `Fitting`: a number may not fit a narrow integer.
/// `Floats`: integers may be divided by zero.
const std::unordered_map<std::string_view, Safe>& known_safe() {
  static const auto* table = [] {
    auto* table = new std::unordered_map<std::string_view, Safe>;
    const auto add = [&](Safe when, std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) table->emplace(name, when);
    };
    add(Safe::Always, {"view",
                       "_unsafe_view",
                       "reshape",
                       "_reshape_alias",
                       "t",
                       "transpose",
                       "permute",
                       "unsqueeze",
                       "squeeze",
                       "slice",
                       "select",
                       "expand",
                       "alias",
                       "detach",
                       "unbind",
                       "split",
                       "split_with_sizes",
                       "clone",
                       "contiguous",
                       "copy",
                       "_to_copy",
                       "zero",
                       "zeros_like",
                       "ones_like",
                       "empty_like",
                       "cat",
                       "stack",
                       "eq",
                       "ne",
                       "lt",
                       "le",
                       "gt",
                       "ge",
                       "logical_and",
                       "logical_or",
                       "logical_not",
                       "where",
                       "isnan",
                       "isinf",
                       "constant_pad_nd",
                       "amax",
                       "amin",
                       "max",
                       "min",
                       "argmax",
                       "argmin",
                       "sort",
                       "topk",
                       "flip",
                       "roll",
                       "diagonal",
                       "tril",
                       "triu",
                       "any",
                       "all",
                       "unfold",
                       "as_strided",
                       "bitwise_not",
                       "logical_xor",
                       "sign",
                       "relu6",
                       "isfinite",
                       "empty",
                       "zeros",
                       "ones",
                       "full",
                       "arange",
                       "scalar_tensor",
                       "max_pool2d_with_indices",
                       "select_scatter",
                       "slice_scatter",
                       "diagonal_scatter",
                       "as_strided_scatter",
                       "_native_batch_norm_legit_functional",
                       "_native_batch_norm_legit_no_training",
                       "_fused_rms_norm",
                       "rms_norm",
                       "_softmax_backward_data",
                       "_log_softmax_backward_data",
                       "_safe_softmax",
                       "diagonal_backward",
                       "select_backward",
                       "slice_backward",
                       "elu_backward",
                       "hardsigmoid_backward",
                       "hardtanh_backward",
                       "leaky_relu_backward",
                       "softplus_backward",
                       "mse_loss_backward",
                       "native_dropout_backward",
                       "native_group_norm_backward",
                       "native_layer_norm_backward",
                       "convolution_backward",
                       "new_empty",
                       "new_full",
                       "new_ones",
                       "new_zeros",
                       "empty_strided",
                       "eye",
                       "linspace",
                       "repeat",
                       "lift_fresh",
                       "lift_fresh_copy",
                       "bitwise_and",
                       "bitwise_or",
                       "bitwise_xor",
                       "__and__",
                       "__or__",
                       "__xor__",
                       "std_mean",
                       "logsumexp",
                       "cumprod",
                       "prod",
                       "avg_pool1d",
                       "avg_pool3d",
                       "max_pool1d",
                       "max_pool3d_with_indices",
                       "_adaptive_avg_pool3d"});
    add(Safe::Fitting, {"add", "sub", "rsub", "mul", "neg", "abs", "fill", "masked_fill", "clamp", "clamp_min",
                        "clamp_max", "maximum", "minimum", "relu", "sum", "full_like"});
    add(Safe::Floats, {"div",
                       "exp",
                       "expm1",
                       "log",
                       "log1p",
                       "log2",
                       "sqrt",
                       "rsqrt",
                       "reciprocal",
                       "sin",
                       "cos",
                       "tanh",
                       "sigmoid",
                       "silu",
                       "gelu",
                       "erf",
                       "elu",
                       "leaky_relu",
                       "hardtanh",
                       "hardswish",
                       "hardsigmoid",
                       "softplus",
                       "lerp",
                       "addcmul",
                       "addcdiv",
                       "square",
                       "mean",
                       "mm",
                       "bmm",
                       "addmm",
                       "baddbmm",
                       "convolution",
                       "native_layer_norm",
                       "native_group_norm",
                       "native_batch_norm",
                       "native_dropout",
                       "_softmax",
                       "_log_softmax",
                       "threshold_backward",
                       "tanh_backward",
                       "sigmoid_backward",
                       "silu_backward",
                       "gelu_backward",
                       "pow",
                       "cumsum",
                       "var",
                       "var_mean",
                       "std",
                       "floor",
                       "ceil",
                       "round",
                       "trunc",
                       "softmax",
                       "prelu",
                       "native_batch_norm_backward",
                       "avg_pool2d",
                       "_adaptive_avg_pool2d",
                       "upsample_nearest2d",
                       "upsample_bilinear2d",
                       "_scaled_dot_product_flash_attention_for_cpu",
                       "_native_batch_norm_legit",
                       "_fused_adam",
                       "_fused_adamw",
                       "_fused_sgd",
                       "_fused_adagrad",
                       "norm",
                       "linalg_vector_norm",
                       "acos",
                       "acosh",
                       "asin",
                       "asinh",
                       "atan",
                       "atan2",
                       "atanh",
                       "cosh",
                       "sinh",
                       "tan",
                       "erfc",
                       "exp2",
                       "log10",
                       "mish",
                       "threshold",
                       "floor_divide",
                       "fmod",
                       "remainder"});
    return table;
  }();
  return *table;
}

/// What an operator with random results draws from.
at::Generator generator_of(const AtenNode& node) {
  for (const AtenArg& arg : node.args) {
    const auto* constant = std::get_if<c10::IValue>(&arg);
    if (constant && constant->isGenerator()) return constant->toGenerator();
  }
  return at::globalContext().defaultGenerator(at::kCPU);
}

}  // namespace

bool may_raise(const Graph& graph, const AtenNode& node) {
  std::string_view name = node.op.operator_name().name;
  const bool own = name.starts_with("magneto::");        // ATen's with symbols for sizes, most of them
  if (!own && !name.starts_with("aten::")) return true;  // of a library: nobody knows
  name.remove_prefix(name.find("::") + 2);
  constexpr std::string_view kForeach = "_foreach_";  // each tensor of a list
  if (name.starts_with(kForeach)) name.remove_prefix(kForeach.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto row = known_safe().find(name);
  if (row == known_safe().end()) return true;
  if (row->second == Safe::Always) return false;
  bool raises = false;
  for_each_operand(node, [&](ValueId id) {
    const c10::ScalarType dtype = graph.values[id].meta.dtype;
    if (!c10::isIntegralType(dtype, /*includeBool=*/true)) return;
    raises |= row->second == Safe::Floats || dtype != c10::kLong;
  });
  return raises;
}

namespace {

/// The program's own check, or one of what its capture went on with: it stands for an error that only CPython knows.
bool is_check(const AtenNode& node) {
  const std::string& name = node.op.operator_name().name;
  return name.starts_with("aten::_assert") || name.starts_with("aten::_functional_assert") || name == "magneto::check";
}

/// What is written does not depend on what was there.
bool replaces(const AtenNode& node) {
  const std::string_view name = node.op.operator_name().name;
  if (name == "aten::index_put_") {
    const auto* accumulate = node.args.size() > 3 ? std::get_if<c10::IValue>(&node.args[3]) : nullptr;
    return !accumulate || !accumulate->isBool() || !accumulate->toBool();
  }
  return name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_" || name == "aten::index_copy_" ||
         name == "aten::index_fill_";
}

/// What happens to the memory of one input.
struct History {
  bool written = false, read = false;
  /// The contents that a second run finds would make a difference.
  bool differs = false;
};

}  // namespace

Undo undo_of(const Graph& graph, int32_t last_guarded) {
  Undo undo;
  std::vector<std::set<size_t>> roots(graph.values.size());  // inputs whose memory a value may be
  for (size_t i = 0; i < graph.inputs.size(); ++i) roots[graph.inputs[i]].insert(i);
  std::vector<History> history(graph.inputs.size());
  size_t written = 0, drawn = 0;  // by the operators in front of the last one that may fail
  const auto fails = [&] {
    written = undo.written.size();
    drawn = undo.generators.size();
  };
  for (size_t index = 0; index < graph.aten_nodes.size(); ++index) {
    const AtenNode& node = graph.aten_nodes[index];
    const Effects effects = effects_of(node.op);
    const bool raises = may_raise(graph, node), is_view = effects.aliases && !effects.writes;
    undo.may_raise |= raises;
    // It allocates memory, or raises before it has written anything.
    if (!is_view) fails();
    std::set<size_t> operands;
    const auto for_each_root = [&](bool of_written, const auto& visit) {
      for (size_t i = 0; i < node.args.size(); ++i) {
        if (writes_argument(node, i) != of_written) continue;
        for_each_tensor(node.args[i], [&](ValueId id) {
          if (effects.aliases) operands.insert(roots[id].begin(), roots[id].end());
          for (const size_t root : roots[id]) visit(root);
        });
      }
    };
    for_each_root(false, [&](size_t root) { history[root].read |= !is_view; });
    size_t writes = 0;
    for_each_root(true, [&](size_t root) {
      ++writes;
      history[root].differs |= history[root].read || !replaces(node);
      if (!std::exchange(history[root].written, true)) undo.written.push_back({root, true});
    });
    for (const ValueId id : node.results) {
      if (id != kNoValue) roots[id].insert(operands.begin(), operands.end());
    }
    if (node.op.hasTag(at::Tag::nondeterministic_seeded)) {
      const at::Generator generator = generator_of(node);
      auto& known = undo.generators;
      if (std::find(known.begin(), known.end(), generator) == known.end()) known.push_back(generator);
    }
    if (raises || writes > 1) fails();  // in the middle of its own writes
    undo.needs_rerun |= !undo.empty() && static_cast<int32_t>(index) <= last_guarded;
  }
  undo.written.resize(written);
  undo.generators.resize(drawn);
  undo.needs_rerun |= std::any_of(graph.aten_nodes.begin(), graph.aten_nodes.end(), is_check);
  for (Undo::Written& each : undo.written) each.contents = history[each.input].differs;
  return undo;
}

}  // namespace magneto::graph
