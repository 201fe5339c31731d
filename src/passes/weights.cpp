// Convolutions by oneDNN's own operator, whose result can be put into planned memory
// (runtime/program/placed_results.h), with weights in its own layout: it reorders a plain weight in each call, which
// reads and writes all of it. Of a weight that the runtime watches (runtime/program/prepacked.h) this is done once.
#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "graph/text.h"
#include "passes/layout.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;

// What is called, as the PyTorch that this was written for has it. With another schema convolutions stay as they are.
constexpr std::string_view kReorder =
    "mkldnn::_reorder_convolution_weight(Tensor self, int[2] padding=0, int[2] stride=1, int[2] dilation=1, "
    "int groups=1, int[]? input_size=None) -> Tensor Y";
constexpr std::string_view kConvolution =
    "mkldnn::_convolution_pointwise(Tensor X, Tensor W, Tensor? B, int[] padding, int[] stride, int[] dilation, "
    "int groups, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y";

std::optional<c10::OperatorHandle> find_exactly(std::string_view schema) {
  const std::string name(schema.substr(0, schema.find('(')));
  auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!op || c10::toString(op->schema()) != schema || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return {};
  return op;
}

const c10::IValue& constant(const AtenNode& node, size_t index) { return constant_of(node.args[index]); }

class Reorder {
 public:
  Reorder(const graph::Graph& graph, const std::vector<bool>& watched)
      : graph_(graph), reorder_(find_exactly(kReorder)), convolution_(find_exactly(kConvolution)) {
    watched_.resize(graph.values.size(), false);
    for (size_t i = 0; i < watched.size(); ++i) watched_[graph.inputs[i]] = watched[i];
  }

  bool any() const {
    if (!reorder_ || !convolution_ || !at::globalContext().userEnabledMkldnn()) return false;
    const auto& nodes = graph_.aten_nodes;
    return std::any_of(nodes.begin(), nodes.end(), [&](const AtenNode& node) { return fits(node); });
  }

  void run(Rewriter& out) const {
    for (const AtenNode& node : out.old().aten_nodes) {
      if (!fits(node)) {
        out.copy(node);
        continue;
      }
      const std::vector<graph::AtenArg> args = out.map_args(node);
      const c10::IValue &stride = constant(node, 3), &padding = constant(node, 4), &dilation = constant(node, 5),
                        &groups = constant(node, 8);
      graph::AtenArg weight = out.map(plain_weight(node));
      if (const ValueId plain = watched_weight(node); plain != kNoValue) {
        // Its strides say nothing: the layout is the library's.
        TensorMeta reordered = meta(plain);
        reordered.strides = graph::contiguous_strides(reordered.sizes);
        reordered.storage_offset = 0;
        reordered.requires_grad = false;
        weight = out.add(*reorder_,
                         {out.map(plain), padding, stride, dilation, groups, c10::IValue(meta(node.args[0]).sizes)},
                         {&reordered}, node.torch_node)[0];
      }
      const c10::impl::GenericList no_scalars(c10::OptionalType::create(c10::NumberType::get()));
      const ValueId result = out.add(*convolution_,
                                     {args[0], weight, args[2], padding, stride, dilation, groups, c10::IValue("none"),
                                      c10::IValue(no_scalars), c10::IValue("")},
                                     {&meta(node.results[0])}, node.torch_node)[0];
      out.set(node.results[0], result);
    }
  }

 private:
  /// A convolution of channels-last images.
  bool fits(const AtenNode& node) const {
    if (node.op.operator_name().name != "aten::convolution" || constant(node, 6).toBool()) return false;  // transposed
    for (const size_t list : {3, 4, 5}) {
      if (constant(node, list).toDimVector().size() != 2) return false;
    }
    const TensorMeta& result = meta(node.results[0]);
    if (result.sizes.size() != 4 || result.strides != c10::get_channels_last_strides_2d(result.sizes)) return false;
    if (!is_done_by_library(meta(node.args[0]), meta(node.args[1]))) return false;
    const auto plain = [](const TensorMeta& meta) {
      const bool empty = std::find(meta.sizes.begin(), meta.sizes.end(), 0) != meta.sizes.end();
      return meta.dtype == c10::kFloat && meta.device.is_cpu() && !empty;
    };
    // oneDNN reads the bias as if it were contiguous, which eager makes it.
    const auto* bias = std::get_if<ValueId>(&node.args[2]);
    return plain(result) && plain(meta(node.args[0])) && plain(meta(node.args[1])) &&
           (!bias || *bias == kNoValue || (plain(meta(*bias)) && meta(*bias).strides == std::vector<int64_t>{1}));
  }

  /// The convolution's weight, before it was turned itself: oneDNN moves it into its own layout from either.
  ValueId plain_weight(const AtenNode& node) const {
    const ValueId weight = std::get<ValueId>(node.args[1]);
    const int32_t producer = graph_.values[weight].producer;
    if (producer < 0 || graph_.aten_nodes[producer].op.operator_name().name != "aten::clone") return weight;
    const ValueId plain = std::get<ValueId>(graph_.aten_nodes[producer].args[0]);
    return meta(plain).strides == graph::contiguous_strides(meta(plain).sizes) || watched_[plain] ? plain : weight;
  }

  /// It, if every write to it is noticed.
  ValueId watched_weight(const AtenNode& node) const {
    const ValueId weight = plain_weight(node);
    return watched_[weight] ? weight : kNoValue;
  }

  const TensorMeta& meta(const graph::AtenArg& arg) const { return meta(std::get<ValueId>(arg)); }
  const TensorMeta& meta(ValueId id) const { return graph_.values[id].meta; }

  const graph::Graph& graph_;
  const std::optional<c10::OperatorHandle> reorder_, convolution_;
  /// By value.
  std::vector<bool> watched_;
};

}  // namespace

void reorder_weights(Functional& functional, const std::vector<bool>& watched) {
  if (!Reorder(functional.graph, watched).any()) return;
  rewrite(functional, [&](Rewriter& out) { Reorder(out.old(), watched).run(out); });
}

}  // namespace magneto::passes
