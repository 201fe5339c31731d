// Memory layouts: convolutions work on channels that lie next to each other. Given tensors with channels first, the
// library reorders them at each call, or takes a slower way. What lies between convolutions is generated and works in
// any layout, so that a network stays channels-last from its input to the last convolution.
#include <c10/core/MemoryFormat.h>

#include <unordered_map>

#include "graph/aliases.h"
#include "graph/symbols.h"
#include "graph/text.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;

bool is_image(const TensorMeta& meta) {
  return meta.sizes.size() == 4 && meta.device.is_cpu() && (meta.dtype == c10::kFloat || meta.dtype == c10::kBFloat16);
}

/// The same memory, dimensions of size one aside.
bool same_layout(const shapes::Sizes& sizes, const shapes::Sizes& a, const shapes::Sizes& b) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && a[i] != b[i]) return false;
  }
  return true;
}

/// The strides become those of channels-last images.
void turn(TensorMeta& meta) {
  meta.strides = c10::get_channels_last_strides_2d(meta.sizes);
  if (!meta.symbolic) return;
  const std::vector<shapes::Expr>& sizes = meta.symbolic->sizes;
  meta.symbolic->strides = {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1], sizes[1]};
}

/// A convolution that the library does: as PyTorch chooses it, small ones of a single image aside.
bool is_convolution(const AtenNode& node, const graph::Graph& graph) {
  if (node.op.operator_name().name != "aten::convolution") return false;
  const TensorMeta& input = graph.values[std::get<ValueId>(node.args[0])].meta;
  const TensorMeta& weight = graph.values[std::get<ValueId>(node.args[1])].meta;
  const TensorMeta& result = graph.values[node.results[0]].meta;
  if (!is_image(input) || !is_image(weight) || !is_image(result)) return false;
  if (constant_of(node.args[6]).toBool()) return false;  // transposed
  if (result.strides != graph::contiguous_strides(result.sizes)) return false;
  int64_t count = 1;
  for (const int64_t size : input.sizes) count *= size;
  const bool wide = weight.sizes[2] > 3 && weight.sizes[3] > 3;
  return count > 20480 || (count > 0 && (input.sizes[0] > 1 || wide));
}

/// Its kernel works in the layout of its operand.
bool follows(const AtenNode& node, const graph::Graph& graph) {
  const std::string& name = node.op.operator_name().name;
  if (name != "aten::max_pool2d_with_indices" && name != "aten::avg_pool2d") return false;
  const TensorMeta& result = graph.values[node.results[0]].meta;
  return is_image(graph.values[std::get<ValueId>(node.args[0])].meta) && is_image(result) &&
         result.strides == graph::contiguous_strides(result.sizes);
}

class Relayout {
 public:
  explicit Relayout(Rewriter& out) : out_(out), clone_(find_op("aten::clone")) {}

  void run() {
    for (const AtenNode& node : out_.old().aten_nodes) {
      if (is_convolution(node, out_.old())) {
        relay(node, 2);
      } else if (follows(node, out_.old())) {
        relay(node, 1);
      } else {
        out_.copy(node);
      }
    }
  }

 private:
  /// `node` with its first `operands` and its results channels-last.
  void relay(const AtenNode& node, size_t operands) {
    std::vector<graph::AtenArg> args = out_.map_args(node);
    for (size_t i = 0; i < operands; ++i) args[i] = turned(std::get<ValueId>(args[i]), node.torch_node);
    std::vector<TensorMeta> metas;
    for (const ValueId id : node.results) {
      metas.push_back(id == kNoValue ? TensorMeta{} : out_.old().values[id].meta);
      if (id != kNoValue) turn(metas.back());
    }
    std::vector<const TensorMeta*> given;
    for (size_t i = 0; i < metas.size(); ++i) given.push_back(node.results[i] == kNoValue ? nullptr : &metas[i]);
    const std::vector<ValueId> results = out_.add(node.op, std::move(args), given, node.torch_node);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == kNoValue) continue;
      const ValueId back =
          clone(results[i], out_.old().values[node.results[i]].meta, c10::MemoryFormat::Contiguous, node.torch_node);
      turned_[back] = results[i];
      out_.set(node.results[i], back);
    }
  }

  /// The value of a new number, channels-last.
  ValueId turned(ValueId id, int32_t torch_node) {
    TensorMeta meta = out_.graph().values[id].meta;
    const shapes::Sizes strides = graph::strides_of(meta);
    turn(meta);
    if (same_layout(graph::sizes_of(meta), strides, graph::strides_of(meta))) return id;
    ValueId& made = turned_.try_emplace(id, kNoValue).first->second;
    if (made == kNoValue) {
      meta.storage_offset = 0;
      if (meta.symbolic) meta.symbolic->storage_offset = 0;
      made = clone(id, meta, c10::MemoryFormat::ChannelsLast, torch_node);
    }
    return made;
  }

  ValueId clone(ValueId id, const TensorMeta& meta, c10::MemoryFormat format, int32_t torch_node) {
    return out_.add(clone_, {id, c10::IValue(static_cast<int64_t>(format))}, {&meta}, torch_node)[0];
  }

  Rewriter& out_;
  const c10::OperatorHandle clone_;
  std::unordered_map<ValueId, ValueId> turned_;
};

}  // namespace

void prefer_channels_last(Functional& functional) {
  const graph::Graph& graph = functional.graph;
  bool any = false;
  for (const AtenNode& node : graph.aten_nodes) any = any || is_convolution(node, graph);
  if (!any) return;
  rewrite(functional, [](Rewriter& out) { Relayout(out).run(); });
}

}  // namespace magneto::passes
