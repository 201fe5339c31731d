// From the captured graph to the normal form that is lowered: no operator writes, nothing is computed twice or for
// nobody. Each pass takes a graph and gives one; `normalise` runs them in order, with the verifier in between.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/partition.h"
#include "observe/stages.h"

namespace magneto::passes {

/// The graph holds something that a pass has no answer for: it runs as it was captured, and says why.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A functional graph, and what is owed to the outside once all of it has been computed.
struct Functional {
  /// No operator writes. Outputs that are inputs or views of inputs stand for that memory, after the writes below.
  graph::Graph graph;
  struct Write {
    graph::ValueId input, value;
  };
  /// `value` replaces the contents of `input`.
  std::vector<Write> writes;
  struct Bump {
    graph::ValueId value;
    int32_t count;
  };
  /// Version counters as eager leaves them: an output's, or a written input's, goes up by `count` (zero where eager
  /// writes without counting).
  std::vector<Bump> bumps;
};

/// `print(graph)` with a line per write and bump.
std::string print(const Functional& functional);
/// `graph::verify_operators`, and: no operator writes. Empty when sound.
std::vector<std::string> verify(const Functional& functional);

// -- the passes
// --------------------------------------------------------------------------------------------------------

/// Turns writes into new values:
///     %1 = add_(%1, 1)        becomes   %2 = add(%1, 1), and %2 stands for %1 from here on
///     select(%1, 0, 0).mul_() becomes   select, mul, select_scatter
/// Views are made again from the new value of their base. Throws Unsupported for writes it cannot express.
/// `exact`: what is read lies as in eager, which decides the order of sums.
Functional functionalise(graph::Graph graph, bool exact = false);
/// The nodes at which `functionalise` would throw.
std::vector<int32_t> refused_nodes(graph::Graph graph);
/// Operators that give a tensor other sizes or strides in place give a view instead, which later operators read:
///     t_(%1); add(%1, 1)   becomes   %2 = t(%1); add(%2, 1)
/// where the tensor is no input and does not leave: its own geometry is seen by nobody.
void separate_inplace_views(graph::Graph& graph);
/// Views by strides, and windows, are views by dimensions, where those of contiguous memory do:
///     as_strided(%1, [6, 2], [8, 1], 3)   becomes   slice(%1, 1, 3, 5, 1), of a [6, 8]
void index_strided_views(graph::Graph& graph);
/// Both: views that have inverses, and names for what they show.
inline void simplify_views(graph::Graph& graph) {
  separate_inplace_views(graph);
  index_strided_views(graph);
}
/// Operators on lists of tensors become operators on each:
///     %2, %3 = _foreach_mul([%0, %1], 2)   becomes   %2 = mul(%0, 2), %3 = mul(%1, 2)
void split_lists(Functional& functional);
/// Gradients of slices that lie side by side are put there, where else each element is added up once for each slice:
///     %2 = add(select_backward(%0, [2, 3], 0, 0), select_backward(%1, [2, 3], 0, 1))
///     becomes   %2 = cat([unsqueeze(%0, 0), unsqueeze(%1, 0)])
void place_slices(Functional& functional);
/// Of memory that is overwritten with what lies alike nothing is read, and it need not be made:
///     %2 = copy(%1, %0)   becomes   %2 = copy(%0, %0)
void forget_overwritten(Functional& functional);
/// Takes out operators that nobody needs. Keeps effects: random numbers drawn, assertions.
void eliminate_dead(Functional& functional);
/// Merges operators that compute the same from the same.
void merge_common(Functional& functional);
/// Computes now what depends on constants only, up to `kFoldedBytes` each.
void fold_constants(Functional& functional);
constexpr int64_t kFoldedBytes = 16 * 1024;
/// Attention that is written out, where one operator for it is faster:
///     %5 = bmm(_softmax(mul(bmm(%0, %1), 0.125), -1), %2)   becomes   %4 = magneto::attention(%0, %1, %2, None, 0.125)
/// and copies that turn heads and rows.
void fuse_attention(Functional& functional);
/// Where only generated kernels read a product, they add its bias:
///     %3 = addmm(%0, %1, %2)   becomes   %4 = mm(%1, %2), %3 = add(%4, %0)
void separate_bias(Functional& functional);
/// Convolutions, and pooling between them, on tensors whose channels lie next to each other:
///     %2 = convolution(%0, %1)   becomes   %3 = clone(%0, channels_last), %4 = clone(%1, channels_last),
///                                          %5 = convolution(%3, %4), %2 = clone(%5, contiguous)
/// where the last clone is what the rest of the graph reads: of such copies only those are made that an operator's
/// kernel or the caller needs in memory.
void prefer_channels_last(Functional& functional);
/// Convolutions of channels-last images by oneDNN's own operator, with weights in its own layout, made once:
///     %2 = convolution(%0, %1)   becomes   %3 = mkldnn::_reorder_convolution_weight(%1),
///                                          %2 = mkldnn::_convolution_pointwise(%0, %3)
/// where %1 is an input whose every write is noticed (by input, `watched`). Other weights stay as they are.
void reorder_weights(Functional& functional, const std::vector<bool>& watched);

struct Pass {
  std::string_view name;
  /// `watched`: as above.
  void (*run)(Functional& functional, const std::vector<bool>& watched);
  /// The results have the same bits.
  bool keeps_bits;
};
/// One of those that `normalise` runs behind `functionalise`; null: there is none of that name.
const Pass* find_pass(std::string_view name);

/// All of them, in order, with the verifier behind each. `sink` is offered the functional graph.
/// `exact`: without those after which a result may be rounded otherwise.
Functional normalise(graph::Graph graph, const std::vector<bool>& watched, graph::StageSink& sink, bool exact = false);

// -- graphs of which a part does not compile (cut.cpp)

/// Kernels and direct calls can take such tensors: dense, strided, real, on the CPU.
bool is_dense_cpu(const graph::TensorMeta& meta);
/// The operators that are to be called as they are: those on other tensors, and those that `functionalise` refuses.
graph::NodeFlags node_flags(const graph::Graph& graph);
/// Calling these leaves something to compile, and each value of `graph` is one tensor in all parts.
bool can_cut(const graph::Graph& graph);

}  // namespace magneto::passes
