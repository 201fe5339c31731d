// Memory layouts: convolutions work on channels that lie next to each other. Given tensors with channels first, the
// library reorders them at each call, or takes a slower way. What lies between convolutions is generated and works in
// any layout, so that a network stays channels-last from its input to the last convolution.
#include "passes/layout.h"

#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fake/onednn.h"
#include "graph/aliases.h"
#include "graph/symbols.h"
#include "graph/text.h"
#include "ops/kinds.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;

constexpr int64_t kFewChannels = 16;

int64_t count_of(const TensorMeta& meta) {
  int64_t count = 1;
  for (const int64_t size : meta.sizes) count *= size;
  return count;
}

bool is_image(const TensorMeta& meta) {
  return meta.sizes.size() == 4 && meta.device.is_cpu() && (meta.dtype == c10::kFloat || meta.dtype == c10::kBFloat16);
}

/// It lies channels-last, dimensions of size one aside.
bool is_turned(const TensorMeta& meta) {
  TensorMeta turned = meta;
  turn(turned);
  const shapes::Sizes sizes = graph::sizes_of(meta), strides = graph::strides_of(meta);
  const shapes::Sizes wanted = graph::strides_of(turned);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && strides[i] != wanted[i]) return false;
  }
  return true;
}

/// The operands, a bit for each, in whose layout the kernel works: where these lie channels-last, so do its results.
/// Convolutions, pooling, and their backwards; transposed ones are another matter. `small`: small ones too.
uint32_t turned_operands(const AtenNode& node, const graph::Graph& graph, bool small) {
  const ops::Operator& op = ops::operator_of(node.op);
  const bool backward = ops::is_kind(op, ops::is_convolution_backward) || ops::is_kind(op, ops::is_pooling_backward);
  const bool convolves = ops::is_kind(op, ops::is_convolution) || ops::is_kind(op, ops::is_convolution_backward);
  if (!convolves && !backward && !ops::is_kind(op, ops::is_pooling)) return 0;
  const auto stays = [&](ValueId id) {
    if (id == kNoValue || graph.values[id].meta.sizes.size() == 1) return false;  // a bias's gradient
    const TensorMeta& meta = graph.values[id].meta;
    return meta.sizes.size() != 4 || meta.strides != graph::contiguous_strides(meta.sizes);
  };
  const auto meta = [&](size_t i) -> const TensorMeta& { return graph.values[std::get<ValueId>(node.args[i])].meta; };
  if (!is_image(meta(0)) || std::ranges::any_of(node.results, stays)) return 0;
  if (!convolves) {
    const bool has_indices = backward && std::holds_alternative<ValueId>(node.args.back());
    return !backward ? 0b1 : has_indices ? 0b11 | 1U << (node.args.size() - 1) : 0b11;
  }
  if (constant_of(node.args[backward ? 7 : 6]).toBool()) return 0;
  const TensorMeta &input = meta(backward ? 1 : 0), &weight = meta(backward ? 2 : 1);
  if (!is_image(input) || !is_image(weight)) return 0;
  // The gradient of a weight with several taps is computed in a layout of the library's, from which its channels are
  // moved one by one.
  const bool taps = weight.sizes[2] * weight.sizes[3] > 1;
  if (backward && taps && count_of(weight) > count_of(input)) return 0;
  // Of few channels PyTorch's own way, which small ones take, is slower with these last.
  const bool fast = small && std::min(weight.sizes[0], weight.sizes[1]) >= kFewChannels;
  if (!fast && !is_done_by_library(input, weight)) return 0;
  return backward ? 0b111 : 0b11;
}

class Relayout {
 public:
  explicit Relayout(Rewriter& out) : out_(out), aliases_(out.old()) {}

  void run() {
    for (const AtenNode& node : out_.old().aten_nodes) {
      if (const uint32_t operands = turned_operands(node, out_.old(), true)) {
        relay(node, operands);
      } else if (!takes_copy(node)) {
        out_.copy(node);
        remember_source(node);
      }
    }
  }

 private:
  /// `node` with these operands and its results channels-last.
  void relay(const AtenNode& node, uint32_t operands) {
    std::vector<graph::AtenArg> args = out_.map_args(node);
    for (size_t i = 0; operands >> i != 0; ++i) {
      if ((operands >> i & 1) != 0) args[i] = turned(std::get<ValueId>(args[i]), node.torch_node);
    }
    const auto turns = [&](size_t i) {
      if (node.results[i] == kNoValue) return false;
      const TensorMeta& meta = out_.old().values[node.results[i]].meta;
      // Of one tap, a weight's gradient lies in the same memory either way.
      return meta.sizes.size() == 4 && !(i == 1 && is_turned(meta));
    };
    std::vector<TensorMeta> metas;
    for (size_t i = 0; i < node.results.size(); ++i) {
      metas.push_back(node.results[i] == kNoValue ? TensorMeta{} : out_.old().values[node.results[i]].meta);
      if (turns(i)) turn(metas.back());
    }
    std::vector<const TensorMeta*> given;
    for (size_t i = 0; i < metas.size(); ++i) given.push_back(node.results[i] == kNoValue ? nullptr : &metas[i]);
    const std::vector<ValueId> results = out_.add(node.op, std::move(args), given, node.torch_node);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == kNoValue) continue;
      out_.set(node.results[i], results[i]);
      if (!turns(i)) continue;
      const ValueId back =
          clone(results[i], out_.old().values[node.results[i]].meta, c10::MemoryFormat::Contiguous, node.torch_node);
      turned_[back] = results[i];
      out_.set(node.results[i], back);
    }
  }

  bool copies_to(const AtenNode& node, c10::MemoryFormat format) const {
    if (node.op != passes::clone()) return false;
    const auto* given = std::get_if<c10::IValue>(&node.args[1]);
    return given && given->isInt() && given->toInt() == static_cast<int64_t>(format) &&
           out_.old().values[node.results[0]].meta.sizes.size() == 4;
  }

  /// `node` copies an image that is there, channels-last.
  bool takes_copy(const AtenNode& node) {
    if (!copies_to(node, c10::MemoryFormat::ChannelsLast)) return false;
    const auto found = turned_.find(out_.map(std::get<ValueId>(node.args[0])));
    if (found == turned_.end()) return false;
    // Handed out is memory of the graph's own, and to one alone.
    if (aliases_.output(node.results[0]) && !taken_.insert(found->second).second) return false;
    out_.set(node.results[0], found->second);
    return true;
  }

  /// `node` may have copied an image that was channels-last, as halves of joint graphs do.
  void remember_source(const AtenNode& node) {
    if (!copies_to(node, c10::MemoryFormat::Contiguous)) return;
    const ValueId source = out_.map(std::get<ValueId>(node.args[0]));
    if (!is_turned(out_.graph().values[source].meta)) return;
    turned_[out_.map(node.results[0])] = source;
    taken_.insert(source);
  }

  /// The value of a new number, channels-last.
  ValueId turned(ValueId id, int32_t torch_node) {
    TensorMeta meta = out_.graph().values[id].meta;
    if (is_turned(meta)) return id;
    turn(meta);
    ValueId& made = turned_.try_emplace(id, kNoValue).first->second;
    if (made == kNoValue) made = clone(id, meta, c10::MemoryFormat::ChannelsLast, torch_node);
    return made;
  }

  ValueId clone(ValueId id, const TensorMeta& meta, c10::MemoryFormat format, int32_t torch_node) {
    return out_.add(passes::clone(), {id, c10::IValue(static_cast<int64_t>(format))}, {&meta}, torch_node)[0];
  }

  Rewriter& out_;
  const graph::Aliases aliases_;
  /// Of new numbers, the same image channels-last.
  std::unordered_map<ValueId, ValueId> turned_;
  /// Of these, what may not be handed out any more.
  std::unordered_set<ValueId> taken_;
};

/// Calls `visit` for each operand and result that a kernel will have channels-last.
template <typename Visit>
void for_each_turned(const AtenNode& node, uint32_t operands, Visit visit) {
  for (size_t i = 0; operands >> i != 0; ++i) {
    if ((operands >> i & 1) != 0) visit(std::get<ValueId>(node.args[i]));
  }
  for (const ValueId id : node.results) {
    if (id != kNoValue) visit(id);
  }
}

/// Something is turned; then small convolutions are, too, so that what lies between them has one layout.
bool has_turned(const graph::Graph& graph) {
  return std::ranges::any_of(graph.aten_nodes, [&](const AtenNode& node) {
    const ops::Operator& op = ops::operator_of(node.op);
    const bool pools = ops::is_kind(op, ops::is_pooling) || ops::is_kind(op, ops::is_pooling_backward);
    return !pools && turned_operands(node, graph, false) != 0;
  });
}

}  // namespace

const c10::OperatorHandle& clone() {
  static const c10::OperatorHandle op = find_op("aten::clone");
  return op;
}

bool is_done_by_library(const TensorMeta& input, const TensorMeta& weight) {
  return fake::is_for_onednn(count_of(input), input.sizes[0], weight.sizes[2] > 3 && weight.sizes[3] > 3);
}

void turn(TensorMeta& meta) {
  meta.strides = c10::get_channels_last_strides_2d(meta.sizes);
  meta.storage_offset = 0;
  if (!meta.symbolic) return;
  const std::vector<shapes::Expr>& sizes = meta.symbolic->sizes;
  meta.symbolic->strides = {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1], sizes[1]};
  meta.symbolic->storage_offset = 0;
}

std::vector<bool> channels_last_values(const graph::Graph& graph) {
  if (!has_turned(graph)) return {};
  std::vector<bool> found(graph.values.size(), false);
  for (const AtenNode& node : graph.aten_nodes) {
    if (const uint32_t operands = turned_operands(node, graph, true)) {
      for_each_turned(node, operands, [&](ValueId id) { found[id] = true; });
      continue;
    }
    if (graph::effects_of(node.op).aliases) continue;
    // What kernels compute of an image, element by element, or but for a channel's numbers, lies like it.
    const auto is_like_image = [&](ValueId result) {
      bool like = false;
      graph::for_each_operand(node, [&](ValueId id) {
        like |= found[id] && graph.values[id].meta.sizes == graph.values[result].meta.sizes;
      });
      return like;
    };
    for (const ValueId id : node.results) {
      if (id != kNoValue) found[id] = is_like_image(id);
    }
  }
  for (size_t id = 0; id < found.size(); ++id) {
    const TensorMeta& meta = graph.values[id].meta;
    found[id] = found[id] && meta.sizes.size() == 4 && meta.strides == graph::contiguous_strides(meta.sizes);
  }
  return found;
}

void prefer_channels_last(Functional& functional) {
  if (!has_turned(functional.graph)) return;
  rewrite(functional, [](Rewriter& out) { Relayout(out).run(); });
  eliminate_dead(functional);  // copies from one layout to the other and back
}

}  // namespace magneto::passes
