// Symbolic rules of operators that compute: the sizes of what they give, and what they ask of what they are given.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtilsMulti.h>

#include <algorithm>

#include "fake/session.h"
#include "fake/size_node.h"
#include "fake/symbolic_rules.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

/// Over the dimensions that argument `dims_arg` names (a number, a list, or all); whether they stay, says `keep_arg`.
template <size_t dims_arg, size_t keep_arg>
bool reduce(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const auto rank = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> dims;
  if (call.arg(dims_arg).isInt()) {
    dims = {call.integer(dims_arg)};
  } else if (!call.is_none(dims_arg)) {
    dims = call.integers(dims_arg);
  }
  auto mask = at::dim_list_to_bitset(dims, rank);
  if (dims.empty()) mask.set();
  const bool keep = keep_arg < call.size() && call.arg(keep_arg).isBool() && call.arg(keep_arg).toBool();
  for (int64_t dim = rank; dim-- > 0;) {
    if (!mask[dim]) continue;
    if (keep) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
  }
  return all_results(call, sizes);
}

/// Of everything, or over a dimension.
bool aminmax(SymbolicCall& call) {
  return call.is_none(1) && !call.arg(2).toBool() ? all_results(call, {}) : reduce<1, 2>(call);
}

bool to_number(SymbolicCall& call) { return all_results(call, {}); }

/// (input, target, ..., reduction): 0 is none.
template <size_t reduction_arg>
bool loss(SymbolicCall& call) {
  if (!same_sizes(call.sizes(0), call.sizes(1))) return false;
  return all_results(call, call.integer(reduction_arg) == 0 ? call.sizes(0) : SymSizes{});
}

/// (input, target, weight, reduction, ...): the loss, and the weight of all.
bool nll_loss(SymbolicCall& call) {
  const SymSizes input = call.sizes(0), target = call.sizes(1);
  if (input.size() != 2 || target.size() != 1 || input[0] != target[0]) return false;
  return call.dense(0, call.integer(3) == 0 ? target : SymSizes{}) && call.dense(1, {});
}

bool topk(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  if (sizes.empty()) return false;
  const int64_t dim = wrapped(call.integer(2), sizes);
  const SymInt k = call.symint(1);
  if (k > sizes[dim]) return false;
  sizes[dim] = k;
  return all_results(call, sizes);
}

/// As large as argument `i`.
template <size_t i>
bool like(SymbolicCall& call) {
  return all_results(call, call.sizes(i));
}

// -- products --------------------------------------------------------------------------------------------------------

template <size_t a, size_t b>
bool product(SymbolicCall& call) {
  const SymSizes left = call.sizes(a), right = call.sizes(b);
  SymSizes sizes;
  if (left.size() == 2 && right.size() == 2) {
    if (left[1] != right[0]) return false;
    sizes = {left[0], right[1]};
  } else if (left.size() == 3 && right.size() == 3) {
    if (left[0] != right[0] || left[2] != right[1]) return false;
    sizes = {left[0], left[1], right[2]};
  } else {
    return false;
  }
  // What is added broadcasts to the product.
  if (a == 1 && !same_sizes(broadcast_sizes(call.tensor(0).sym_sizes(), sizes), sizes)) return false;
  return all_results(call, sizes);
}

/// (a, b, c, expand a, expand b, expand c, summed dimensions, ...): each with dimensions of size one put in,
/// multiplied.
bool trilinear(SymbolicCall& call) {
  SymSizes all;
  for (size_t i = 0; i < 3; ++i) {
    SymSizes sizes = call.sizes(i);
    for (const int64_t dim : call.integers(3 + i)) sizes.insert(sizes.begin() + dim, SymInt(1));
    all = broadcast_sizes(all, sizes);
  }
  std::vector<int64_t> summed = call.integers(6);
  std::sort(summed.rbegin(), summed.rend());
  for (const int64_t dim : summed) all.erase(all.begin() + dim);
  return all_results(call, all);
}

// -- norms, attention ------------------------------------------------------------------------------------------------

/// (query, key, value, embed_dim, heads, ..., need_weights, average_attn_weights, ...).
bool multi_head_attention(SymbolicCall& call) {
  const SymSizes query = call.sizes(0), key = call.sizes(1);
  if (query.size() != 3 || key.size() != 3) return false;
  SymSizes weights = {query[0], query[1], key[1]};
  if (call.result_count() > 1 && call.result(1).defined() && call.result(1).dim() == 4) {
    weights.insert(weights.begin() + 1, SymInt(call.integer(4)));
  }
  const bool wants_weights = call.arg(10).toBool();
  return call.dense(0, query) && (!wants_weights || call.dense(1, weights));
}

/// (input, two weights, two biases, hidden state, cell state, ...): the output, both states, and bytes for the
/// backward, of which only oneDNN says how many they are.
bool lstm_layer(SymbolicCall& call) {
  const SymSizes input = call.sizes(0), state = call.sizes(5);
  if (input.size() != 3 || state.size() != 2) return false;
  if (!call.dense(0, {input[0], input[1], state[1]}) || !call.dense(1, state) || !call.dense(2, state)) return false;
  const at::Tensor& kept = call.result(3);
  if (!kept.defined()) return true;
  Session& session = *Session::current();
  if (!session.takes.sizes) return false;
  Session::Impl& impl = session.impl();
  impl.last_unbacked = session.make_unbacked(kept.size(0), {0, INT64_MAX}, "what an LSTM keeps for its gradients");
  return call.dense(3, {to_symint(impl.state, *impl.last_unbacked)});
}

// -- indexing --------------------------------------------------------------------------------------------------------

/// self, dim, index: no index is larger than self but along dim.
bool gather(SymbolicCall& call) {
  const SymSizes self = call.sizes(0), index = call.sizes(2);
  if (self.size() != index.size() || self.empty()) return false;
  for (size_t i = 0; i < self.size(); ++i) {
    if (static_cast<int64_t>(i) != wrapped(call.integer(1), self) && index[i] > self[i]) return false;
  }
  return all_results(call, index);
}

bool cat(SymbolicCall& call) {
  std::vector<at::Tensor> tensors = call.tensors(0);
  // Empty ones of one dimension are passed over, whatever the others are.
  std::erase_if(tensors, [](const at::Tensor& tensor) { return tensor.dim() == 1 && tensor.sym_size(0) == 0; });
  if (tensors.empty()) return false;
  SymSizes sizes(tensors[0].sym_sizes().begin(), tensors[0].sym_sizes().end());
  const int64_t dim = wrapped(call.integer(1), sizes);
  for (size_t t = 1; t < tensors.size(); ++t) {
    const c10::SymIntArrayRef more = tensors[t].sym_sizes();
    if (more.size() != sizes.size()) return false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (static_cast<int64_t>(i) == dim) {
        sizes[i] += more[i];
      } else if (sizes[i] != more[i]) {
        return false;
      }
    }
  }
  return all_results(call, sizes);
}

// -- new tensors -----------------------------------------------------------------------------------------------------

/// One below and right of the other; a vector is a row.
bool block_diag(SymbolicCall& call) {
  SymSizes sizes = {0, 0};
  for (const at::Tensor& tensor : call.tensors(0)) {
    const int64_t rank = tensor.dim();
    if (rank > 2) return false;
    sizes[0] += rank == 2 ? tensor.sym_size(0) : SymInt(1);
    sizes[1] += rank == 0 ? SymInt(1) : tensor.sym_size(-1);
  }
  return all_results(call, sizes);
}

/// (row, col, offset): the places of a matrix on the diagonal and below.
SymInt places_below(SymInt rows, const SymInt& columns, const SymInt& offset) {
  if (offset < 0) rows = rows + offset;  // the first ones have none
  if (rows < 1 || columns < 1) return 0;
  const SymInt first = offset < 0 ? SymInt(1) : offset + 1;  // of the first row that has some
  if (first >= columns) return rows * columns;
  const SymInt last = first + rows - 1;
  if (last <= columns) return (first + last) * rows / 2;
  const SymInt growing = columns - first;  // rows until they are full
  return (first + columns - 1) * growing / 2 + (rows - growing) * columns;
}

bool tril_indices(SymbolicCall& call) {
  return all_results(call, {2, places_below(call.symint(0), call.symint(1), call.symint(2))});
}

/// All others: what lies below the diagonal before.
bool triu_indices(SymbolicCall& call) {
  const SymInt rows = call.symint(0), columns = call.symint(1);
  return all_results(call, {2, rows * columns - places_below(rows, columns, call.symint(2) - 1)});
}

/// (length, ...).
bool window(SymbolicCall& call) { return call.symint(0) >= 0 && all_results(call, {call.symint(0)}); }

constexpr SymbolicRow compute_rows[] = {
#define ROW_symbolic_compute(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const SymbolicRow> symbolic_compute_rules() { return compute_rows; }

SymSizes broadcast_sizes(c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
  if (a.size() < b.size()) std::swap(a, b);
  SymSizes sizes(a.begin(), a.end());
  const size_t added = a.size() - b.size();
  for (size_t i = added; i < sizes.size(); ++i) {
    const SymInt& other = b[i - added];
    if (other.maybe_as_int() == 1 || expr_of(sizes[i]) == expr_of(other)) continue;
    sizes[i] = sizes[i].maybe_as_int() == 1 ? other : at::infer_size_symdimvector({&sizes[i], 1}, {&other, 1})[0];
  }
  return sizes;
}

bool broadcast_symbolically(SymbolicCall& call) {
  SymSizes sizes;
  for (size_t i = 0; i < call.size(); ++i) {
    if (!call.arg(i).isTensor() || !call.tensor(i).defined()) continue;
    sizes = broadcast_sizes(sizes, call.tensor(i).sym_sizes());
  }
  return all_results(call, sizes);
}

}  // namespace magneto::fake
