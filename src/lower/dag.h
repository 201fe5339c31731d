// Tensor expressions: what the operators of a graph compute, element by element, before it is decided which loops do
// it.
//
// A node is a tensor by its value: it has sizes and a dtype and no memory. Equal nodes are one node, so that common
// subexpressions need no pass, and making a node simplifies it. The law of simplification: the result is the same
// number, NaN, infinity and the sign of zero included.
//
// A view is a map of indices: node `v` of sizes [3, 2] over `x` with map [i1, i0] is x transposed. Variable `i` stands
// for the index in dimension i of the node that has the map.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "loops/ir.h"
#include "shapes/index_knowledge.h"

namespace magneto::lower {

using loops::Dtype;
using loops::Op;
using shapes::Expr;
using NodeId = int32_t;
using shapes::Size;
using shapes::Sizes;
inline constexpr NodeId kNoNode = -1;

enum class NodeKind : uint8_t {
  Leaf,    // a buffer: element offset + sum(index * stride)
  Number,  // the same number everywhere
  Index,   // map[0] as an i64
  Math,    // `op` of the operands (math, comparison, cast to `dtype`, select), all of the node's sizes
  View,    // operand[map]
  Gather,  // operand 0 at map; %k in the map is operand k+1, an index that is checked: size, message, dimension in data
  Guard,   // operand 0 where every condition holds (low <= map[k] < high), else operand 1; operand 0 is read nowhere
           // else
  Reduce,  // `op` over `dims`, which stay with size 1. Argmax: operand 1 is the index
  Extra,   // the second result of the Reduce operand 0 (welford: the sum of squared distances)
  Scan,    // `op` along dims[0]
  Scatter,  // operand 0 is added to the buffers that this root goes to, each element at map; %k and checks as of Gather
};

struct Node {
  NodeKind kind = NodeKind::Leaf;
  Op op = Op::Load;
  /// The dtype of the value (f32 for bf16 and f16).
  Dtype dtype = Dtype::F32;
  Sizes sizes;
  std::vector<NodeId> operands;
  std::vector<Expr> map;
  /// Leaf: buffer, offset, strides. Number of an integer dtype: the number. Reduce, Scan: the dims. Guard: low, high,
  /// low, high... Gather, for each index: the size that it is checked against, the message (IndexMessage), the
  /// dimension.
  Sizes data;
  double number = 0;

  int32_t buffer() const { return static_cast<int32_t>(data[0].number()); }
  std::vector<int64_t> dims() const { return shapes::numbers(data); }
};

/// What eager says of an index that is out of bounds.
enum IndexMessage : int64_t { kInSelf, kNamed, kTarget };

/// How many elements.
Size count(const Sizes& sizes);

/// Of a Guard: low <= expr < high.
struct Condition {
  Expr expr;
  Size low, high;
};
/// Whether it holds at every element (true), or at none (false), by what is known of the variables.
std::optional<bool> decided(const Condition& condition, shapes::IndexKnowledge known);

class Dag {
 public:
  const Node& operator[](NodeId id) const { return nodes_[id]; }
  NodeId size() const { return static_cast<NodeId>(nodes_.size()); }

  /// A node of its own that reads `id`: what is written to its memory is not seen by who else reads that.
  NodeId apart(NodeId id) {
    std::vector<Expr> map;
    for (size_t i = 0; i < nodes_[id].sizes.size(); ++i) map.push_back(Expr::variable(static_cast<int32_t>(i)));
    nodes_.push_back({NodeKind::View, Op::Load, nodes_[id].dtype, nodes_[id].sizes, {id}, std::move(map)});
    return size() - 1;
  }

  /// What is known of the symbols in sizes.
  shapes::SymbolFacts symbols;

  /// A node of its own that computes the same.
  NodeId copy(NodeId id) {
    nodes_.push_back(nodes_[id]);
    return size() - 1;
  }

  NodeId leaf(int32_t buffer, Dtype value_dtype, Sizes sizes, const Sizes& strides, Size offset);
  NodeId number(Dtype dtype, double value, Sizes sizes = {});
  NodeId integer(Dtype dtype, int64_t value, Sizes sizes = {});
  NodeId index(Expr expr, Sizes sizes);
  NodeId cast(Dtype dtype, NodeId operand);
  /// Math and Compare ops and Select; operands are broadcast against each other.
  NodeId math(Op op, const std::vector<NodeId>& operands);
  NodeId view(NodeId operand, std::vector<Expr> map, Sizes sizes);
  /// Spreads dimensions of size one and adds leading ones.
  NodeId broadcast(NodeId operand, const Sizes& sizes);
  /// The same elements in row-major order under other sizes.
  NodeId reshape(NodeId operand, const Sizes& sizes);
  NodeId gather(NodeId data, const std::vector<NodeId>& indices, std::vector<Expr> map, Sizes checks, Sizes sizes);
  /// To be a root: its sizes are those of `value`, map has an index for each dimension of the tensor that is added to.
  NodeId scatter(NodeId value, const std::vector<NodeId>& indices, std::vector<Expr> map, Sizes checks);
  NodeId guard(const std::vector<Condition>& conditions, NodeId inside, NodeId outside);
  NodeId reduce(Op op, NodeId operand, std::vector<int64_t> dims, NodeId index = kNoNode);
  /// What makes one result of a reduction's results over parts.
  static Op of_parts(Op op) { return op == Op::ReduceSumWide ? Op::ReduceSum : op; }
  NodeId extra(NodeId reduce);
  NodeId scan(Op op, NodeId operand, int64_t dim, NodeId index = kNoNode);

  /// An index over a node of these sizes, simplified.
  Expr simplify(Expr expr, const Sizes& sizes) const;
  /// It is not known that there are elements.
  bool may_be_empty(const Sizes& sizes) const;

 private:
  NodeId add(Node node);
  std::optional<bool> decided(const Condition& condition, const Sizes& sizes) const;
  /// The operand of a Guard that a view of it shows nothing but; kNoNode if it shows both.
  NodeId shown(const Node& guard, const std::vector<Expr>& map, const Sizes& sizes) const;
  NodeId simplified(Op op, const std::vector<NodeId>& operands);

  std::vector<Node> nodes_;
  std::unordered_multimap<size_t, NodeId> known_;
};

/// Of a Scatter, by its dimensions: whether elements that differ there alone may be added to one place.
std::vector<bool> may_collide(const Node& scatter);

/// Strides that count each element once, with no gap: an index can be told from a position.
bool is_dense(const Sizes& sizes, const Sizes& strides);
/// The strides of a row-major tensor.
Sizes row_major(const Sizes& sizes);

/// The index in each dimension for the row-major position `position` in a tensor of `sizes` with dense `strides`.
std::vector<Expr> delinearise(Expr position, const Sizes& sizes, const Sizes& strides);

/// One line per node that `roots` need, operands first; `comment` of a node stands behind it.
std::string print(const Dag& dag, const std::vector<NodeId>& roots,
                  const std::function<std::string(NodeId)>& comment = {});

}  // namespace magneto::lower
