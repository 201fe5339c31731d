// Symbolic rules of operators that compute: the sizes of what they give, and what they ask of what they are given.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtilsMulti.h>

#include <algorithm>
#include <cmath>

#include "fake/symbolic_rules.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

/// What the program gives for sizes may be negative in another run, where eager raises.
bool are_sizes(const SymSizes& given) {
  return std::ranges::all_of(given, [](const SymInt& size) { return size >= 0; });
}

/// As large as the sizes that argument `i` lists.
template <size_t i>
bool as_told(SymbolicCall& call) {
  return are_sizes(call.symints(i)) && all_results(call, call.symints(i));
}

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

bool dot(SymbolicCall& call) {
  return call.sizes(0).size() == 1 && same_sizes(call.sizes(0), call.sizes(1)) && all_results(call, {});
}

/// (input, target, ..., reduction): 0 is none.
template <size_t reduction_arg>
bool loss(SymbolicCall& call) {
  if (!same_sizes(call.sizes(0), call.sizes(1))) return false;
  return all_results(call, call.integer(reduction_arg) == 0 ? call.sizes(0) : SymSizes{});
}

/// One number for each target.
template <size_t reduction_arg>
bool loss_of_targets(SymbolicCall& call) {
  if (call.tensor(0).sym_size(0) != call.tensor(1).sym_size(0)) return false;
  return all_results(call, call.integer(reduction_arg) == 0 ? call.sizes(1) : SymSizes{});
}

/// (input, target, weight, reduction, ...) of images.
bool nll_loss2d(SymbolicCall& call) {
  const SymSizes input = call.sizes(0), target = call.sizes(1);
  if (input.size() != 4 || target.size() != 3) return false;
  if (input[0] != target[0] || input[2] != target[1] || input[3] != target[2]) return false;
  return call.dense(0, call.integer(3) == 0 ? target : SymSizes{}) && call.dense(1, {});
}

/// (input, target, weight, reduction, ...): the loss, and the weight of all.
bool nll_loss(SymbolicCall& call) {
  const SymSizes input = call.sizes(0), target = call.sizes(1);
  if (input.size() != 2 || target.size() != 1 || input[0] != target[0]) return false;
  return call.dense(0, call.integer(3) == 0 ? target : SymSizes{}) && call.dense(1, {});
}

/// The halves along a dimension are the two operands.
bool glu(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  if (sizes.empty()) return false;
  SymInt& size = sizes[wrapped(call.integer(1), sizes)];
  if (size % 2 != 0) return false;
  size = size / 2;
  return all_results(call, sizes);
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

/// (self, num_classes).
bool one_hot(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  if (call.symint(1) < 1) return false;  // as many as the largest number says
  sizes.push_back(call.symint(1));
  return all_results(call, sizes);
}

/// (self, bins, ...).
bool histc(SymbolicCall& call) { return all_results(call, {call.symint(1)}); }

/// (self, samples, ...).
bool multinomial(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  if (sizes.empty()) return false;
  sizes.back() = call.symint(1);
  return all_results(call, sizes);
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
  } else if (left.size() == 2 && right.size() == 1) {
    if (left[1] != right[0]) return false;
    sizes = {left[0]};
  } else {
    return false;
  }
  // What is added broadcasts to the product.
  if (a == 1 && !same_sizes(at::infer_size_symdimvector(call.tensor(0).sym_sizes(), sizes), sizes)) return false;
  return all_results(call, sizes);
}

/// (a, b, c, expand a, expand b, expand c, summed dimensions, ...): each with dimensions of size one put in,
/// multiplied.
bool trilinear(SymbolicCall& call) {
  SymSizes all;
  for (size_t i = 0; i < 3; ++i) {
    SymSizes sizes = call.sizes(i);
    for (const int64_t dim : call.integers(3 + i)) sizes.insert(sizes.begin() + dim, SymInt(1));
    all = at::infer_size_symdimvector(all, sizes);
  }
  std::vector<int64_t> summed = call.integers(6);
  std::sort(summed.rbegin(), summed.rend());
  for (const int64_t dim : summed) all.erase(all.begin() + dim);
  return all_results(call, all);
}

// -- norms, attention ------------------------------------------------------------------------------------------------

/// (input, normalized_shape, ...): the result, and mean and rstd over the last dimensions.
bool layer_norm(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0), normal = call.symints(1);
  if (normal.size() > sizes.size()) return false;
  SymSizes statistics = sizes;
  for (size_t i = 0; i < normal.size(); ++i) {
    const size_t dim = sizes.size() - normal.size() + i;
    if (sizes[dim] != normal[i]) return false;
    statistics[dim] = 1;
  }
  return call.dense(0, sizes) && call.dense(1, statistics) && call.dense(2, statistics);
}

/// (input, weight, bias, N, C, HxW, group, eps).
bool group_norm(SymbolicCall& call) {
  const SymSizes statistics = {call.symint(3), call.symint(6)};
  return call.dense(0, call.sizes(0)) && call.dense(1, statistics) && call.dense(2, statistics);
}

/// (input, weight, bias, mean, variance, ...): they have a number for each channel, and so have the statistics if any.
bool batch_norm(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (sizes.size() < 2) return false;
  for (size_t i = 1; i < 5; ++i) {
    if (!call.is_none(i) && call.tensor(i).defined() && call.tensor(i).sym_numel() != sizes[1]) return false;
  }
  for (size_t k = 1; k < call.result_count(); ++k) {
    const bool empty = !call.result(k).defined() || call.result(k).sym_numel() == 0;
    if (!empty && !call.dense(k, {sizes[1]})) return false;
  }
  return call.dense(0, sizes);
}

bool flash_attention_for_cpu(SymbolicCall& call) {
  const SymSizes query = call.sizes(0), key = call.sizes(1), value = call.sizes(2);
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) return false;
  if (query[0] != key[0] || query[0] != value[0] || key[1] != value[1]) return false;
  if (query[1] != key[1] && query[1] % key[1] != 0) return false;  // heads may share keys
  if (query[3] != key[3] || query[3] != value[3] || key[2] != value[2]) return false;
  if (!call.is_none(5) && call.tensor(5).defined()) {
    const SymSizes all = {query[0], query[1], query[2], key[2]};
    if (!same_sizes(at::infer_size_symdimvector(call.tensor(5).sym_sizes(), all), all)) return false;
  }
  const SymSizes sums = {query[0], query[1], query[2]};
  return call.dense(0, query) && call.dense(1, sums);
}

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

/// (input, states, params, ..., bidirectional, batch_first): the output, and the states as they are in the end.
bool recurrent(SymbolicCall& call) {
  const SymSizes input = call.sizes(0);
  const std::vector<at::Tensor> states =
      call.arg(1).isTensorList() ? call.tensors(1) : std::vector<at::Tensor>{call.tensor(1)};
  const bool batch_first = call.arg(8).toBool();
  if (states[0].sym_size(1) != input[batch_first ? 0 : 1]) return false;
  SymSizes output = input;
  output[2] = states[0].sym_size(2) * (call.arg(7).toBool() ? 2 : 1);
  if (!call.dense(0, output)) return false;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!call.dense(i + 1, states[i].sym_sizes())) return false;
  }
  return true;
}

// -- indexing --------------------------------------------------------------------------------------------------------

bool embedding(SymbolicCall& call) {
  SymSizes sizes = call.sizes(1);
  sizes.push_back(call.tensor(0).sym_size(1));
  return all_results(call, sizes);
}

bool index_select(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  if (sizes.empty()) return false;
  sizes[wrapped(call.integer(1), sizes)] = call.tensor(2).sym_numel();
  return all_results(call, sizes);
}

/// self, dim, index: no index is larger than self but along dim.
bool gather(SymbolicCall& call) {
  const SymSizes self = call.sizes(0), index = call.sizes(2);
  if (self.size() != index.size() || self.empty()) return false;
  for (size_t i = 0; i < self.size(); ++i) {
    if (static_cast<int64_t>(i) != wrapped(call.integer(1), self) && index[i] > self[i]) return false;
  }
  return all_results(call, index);
}

/// The sizes of self[indices]; nothing for masks.
std::optional<SymSizes> indexed(const SymbolicCall& call) {
  const SymSizes self = call.sizes(0);
  const std::vector<at::Tensor> indices = call.tensors(1);
  SymSizes chosen;
  int64_t first = -1, last = -1;
  bool together = true;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i].defined()) continue;
    if (indices[i].scalar_type() == c10::kBool || indices[i].scalar_type() == c10::kByte) return std::nullopt;
    chosen = at::infer_size_symdimvector(chosen, indices[i].sym_sizes());
    together &= last < 0 || last + 1 == static_cast<int64_t>(i);
    if (first < 0) first = static_cast<int64_t>(i);
    last = static_cast<int64_t>(i);
  }
  if (first < 0) return std::nullopt;
  SymSizes sizes;
  if (!together) sizes.append(chosen.begin(), chosen.end());
  for (size_t i = 0; i < self.size(); ++i) {
    if (together && static_cast<int64_t>(i) == first) sizes.append(chosen.begin(), chosen.end());
    if (i >= indices.size() || !indices[i].defined()) sizes.push_back(self[i]);
  }
  return sizes;
}

bool index(SymbolicCall& call) {
  const auto sizes = indexed(call);
  return sizes && all_results(call, *sizes);
}

bool index_put(SymbolicCall& call) {
  const auto is_mask = [](const at::Tensor& index) {
    return index.defined() && (index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte);
  };
  if (std::ranges::any_of(call.tensors(1), is_mask)) return like_self(call);  // whether it fits, the kernel says
  const auto sizes = indexed(call);
  if (!sizes || !same_sizes(at::infer_size_symdimvector(call.tensor(2).sym_sizes(), *sizes), *sizes)) return false;
  return like_self(call);
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

bool stack(SymbolicCall& call) {
  const std::vector<at::Tensor> tensors = call.tensors(0);
  SymSizes sizes(tensors[0].sym_sizes().begin(), tensors[0].sym_sizes().end());
  for (const at::Tensor& tensor : tensors) {
    const c10::SymIntArrayRef other = tensor.sym_sizes();
    if (!same_sizes(sizes, SymSizes(other.begin(), other.end()))) return false;
  }
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), static_cast<int64_t>(sizes.size()) + 1);
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(tensors.size()));
  return all_results(call, sizes);
}

/// Parts along a dimension, as they stand in the whole.
bool add_parts(SymbolicCall& call, const SymSizes& lengths) {
  SymSizes sizes = call.sizes(0);
  if (sizes.empty() || lengths.size() != call.result_count()) return false;
  const c10::SymIntArrayRef strides = call.tensor(0).sym_strides();
  const int64_t dim = wrapped(call.integer(2), sizes);
  SymInt start = call.tensor(0).sym_storage_offset();
  for (size_t k = 0; k < lengths.size(); ++k) {
    sizes[dim] = lengths[k];
    if (!call.view(k, sizes, strides, start)) return false;
    start = start + lengths[k] * strides[dim];
  }
  return true;
}

/// (self, length, dim): parts of that length, the last one of what is left.
bool unsafe_split(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  const auto count = static_cast<int64_t>(call.result_count());
  if (sizes.empty() || count == 0) return false;
  SymSizes lengths(count, call.symint(1));
  lengths.back() = sizes[wrapped(call.integer(2), sizes)] - call.symint(1) * (count - 1);
  return lengths.back() > 0 && lengths.back() <= call.symint(1) && add_parts(call, lengths);
}

/// (self, lengths, dim).
bool unsafe_split_with_sizes(SymbolicCall& call) { return add_parts(call, call.symints(1)); }

bool repeat(SymbolicCall& call) {
  const SymSizes self = call.sizes(0);
  SymSizes sizes = call.symints(1);
  if (!are_sizes(sizes)) return false;
  const size_t added = sizes.size() - self.size();
  for (size_t i = added; i < sizes.size(); ++i) sizes[i] *= self[i - added];
  return all_results(call, sizes);
}

// -- new tensors -----------------------------------------------------------------------------------------------------

/// (n) or (n, m).
bool eye(SymbolicCall& call) { return all_results(call, {call.symint(0), call.symint(0)}); }
bool eye_m(SymbolicCall& call) { return all_results(call, {call.symint(0), call.symint(1)}); }

/// Whole numbers from `start` (or 0) to `end`, which `end_arg` says.
template <int start_arg, size_t end_arg, int step_arg>
bool arange(SymbolicCall& call) {
  const auto number = [&](int i, int64_t otherwise) -> std::optional<SymInt> {
    if (i < 0) return SymInt(otherwise);
    const c10::IValue& value = call.arg(static_cast<size_t>(i));
    if (value.isSymInt()) return value.toSymInt();
    // Whole numbers are as exact as integers.
    if (value.isDouble() && value.toDouble() == std::floor(value.toDouble()) && std::abs(value.toDouble()) < 1e9) {
      return SymInt(static_cast<int64_t>(value.toDouble()));
    }
    return value.isInt() ? std::optional<SymInt>(value.toInt()) : std::nullopt;
  };
  const auto start = number(start_arg, 0), end = number(end_arg, 0), step = number(step_arg, 1);
  if (!start || !end || !step) return false;
  const std::optional<int64_t> by = step->maybe_as_int();
  if (!by) {
    if (*step < 1 || *end < *start) return false;
    const SymInt way = *end - *start;
    return all_results(call, {way % *step == 0 ? way / *step : (way + *step - 1) / *step});
  }
  if (*by == 0) return false;
  const SymInt way = *by > 0 ? *end - *start : *start - *end;
  const int64_t pace = std::abs(*by);
  if (way < 0) return false;
  return all_results(call, {(way + (pace - 1)) / pace});
}

bool randperm(SymbolicCall& call) { return call.symint(0) >= 0 && all_results(call, {call.symint(0)}); }
bool linspace(SymbolicCall& call) { return call.symint(2) >= 0 && all_results(call, {call.symint(2)}); }

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

constexpr SymbolicRow rows[] = {
#define ROW_symbolic_compute(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const SymbolicRow> symbolic_compute_rules() { return rows; }

bool broadcast_symbolically(SymbolicCall& call) {
  SymSizes sizes;
  for (size_t i = 0; i < call.size(); ++i) {
    if (!call.arg(i).isTensor() || !call.tensor(i).defined()) continue;
    sizes = at::infer_size_symdimvector(sizes, call.tensor(i).sym_sizes());
  }
  return all_results(call, sizes);
}

}  // namespace magneto::fake
