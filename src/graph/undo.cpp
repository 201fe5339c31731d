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

/// How many elements a mask selects, and whether the values fit, is no part of the key.
bool has_mask(const Graph& graph, const AtenNode& node) {
  bool found = false;
  for_each_operand(node, [&](ValueId id) {
    const c10::ScalarType dtype = graph.values[id].meta.dtype;
    found |= dtype == c10::kBool || dtype == c10::kByte;
  });
  return found;
}

/// Two calls with one key raise for the same reason: if the first did not, neither does the second.
std::string reason_key(const Graph& graph, const AtenNode& node) {
  std::string key = node.op.operator_name().name + "." + node.op.operator_name().overload_name;
  bool first = true;
  for (const AtenArg& arg : node.args) {
    key += "|";
    if (const auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {  // which dimension an index is of
      for (const ValueId id : *ids) key += id == kNoValue ? 'n' : 't';
    }
    for_each_tensor(arg, [&](ValueId id) {
      if (std::exchange(first, false)) {  // the tensor that is indexed counts by its sizes
        for (const int64_t size : graph.values[id].meta.sizes) key += "," + std::to_string(size);
      } else if (c10::isIntegralType(graph.values[id].meta.dtype, true)) {
        key += "%" + std::to_string(id);
      }
    });
    if (const auto* constant = std::get_if<c10::IValue>(&arg); constant && constant->isInt()) {
      key += ";" + std::to_string(constant->toInt());
    }
  }
  return key;
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

Undo undo_of(const Graph& graph) {
  Undo undo;
  std::vector<std::set<size_t>> roots(graph.values.size());  // inputs whose memory a value may be
  for (size_t i = 0; i < graph.inputs.size(); ++i) roots[graph.inputs[i]].insert(i);
  std::set<size_t> written;
  std::set<std::string> known;
  std::vector<at::Generator> drawn;
  for (const AtenNode& node : graph.aten_nodes) {
    const c10::FunctionSchema& schema = node.op.schema();
    if (!written.empty() || !drawn.empty()) {
      const bool indexed = node.op.operator_name().name.starts_with("aten::index") ||
                           node.op.operator_name().name.starts_with("aten::embedding");
      if (may_raise(graph, node) && !(indexed && !has_mask(graph, node) && known.count(reason_key(graph, node)))) {
        undo.written_inputs.assign(written.begin(), written.end());
        undo.generators = drawn;
      }
    }
    if (may_raise(graph, node)) {
      undo.may_raise = true;
      known.insert(reason_key(graph, node));
    }
    const Effects effects = effects_of(node.op);
    std::set<size_t> operands;
    for (size_t i = 0; i < node.args.size(); ++i) {
      for_each_tensor(node.args[i], [&](ValueId id) {
        if (effects.aliases) operands.insert(roots[id].begin(), roots[id].end());
        if (writes_argument(node, i)) written.insert(roots[id].begin(), roots[id].end());
      });
    }
    for (const ValueId id : node.results) {
      if (id != kNoValue) roots[id].insert(operands.begin(), operands.end());
    }
    if (!node.op.hasTag(at::Tag::nondeterministic_seeded)) continue;
    const at::Generator generator = generator_of(node);
    if (std::find(drawn.begin(), drawn.end(), generator) == drawn.end()) drawn.push_back(generator);
  }
  return undo;
}

}  // namespace magneto::graph
