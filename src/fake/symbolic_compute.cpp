// Symbolic rules of operators that compute: the sizes of what they give, and what they ask of what they are given.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>

#include "fake/symbolic.h"

namespace magneto::fake {
namespace {

using c10::SymInt;

int64_t wrapped(int64_t dim, const SymSizes& sizes) {
  return at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()));
}

bool same_sizes(const SymSizes& a, const SymSizes& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

bool is_argument(const SymbolicCall& call, const at::Tensor& tensor) {
  for (size_t i = 0; i < call.size(); ++i) {
    if (call.arg(i).isTensor() && call.tensor(i).is_same(tensor)) return true;
  }
  return false;
}

/// All results have these sizes; those that are arguments (in place) already must.
bool all_results(SymbolicCall& call, const SymSizes& sizes) {
  for (size_t k = 0; k < call.result_count(); ++k) {
    if (!call.result(k).defined()) continue;
    if (is_argument(call, call.result(k))) {
      const c10::SymIntArrayRef own = call.result(k).sym_sizes();
      if (!same_sizes(SymSizes(own.begin(), own.end()), sizes)) return false;
    } else if (!call.dense(k, sizes)) {
      return false;
    }
  }
  return true;
}

/// As large as argument 0.
bool like_self(SymbolicCall& call) { return all_results(call, call.sizes(0)); }

/// As large as the sizes that argument `i` lists.
template <size_t i>
bool as_told(SymbolicCall& call) {
  return all_results(call, call.symints(i));
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

bool to_number(SymbolicCall& call) { return all_results(call, {}); }

bool dot(SymbolicCall& call) {
  return call.sizes(0).size() == 1 && same_sizes(call.sizes(0), call.sizes(1)) && all_results(call, {});
}

/// (input, target, reduction): 0 is none.
bool loss(SymbolicCall& call) {
  if (!same_sizes(call.sizes(0), call.sizes(1))) return false;
  return all_results(call, call.integer(2) == 0 ? call.sizes(0) : SymSizes{});
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

/// The statistics have a number for each channel: as many as in this run.
bool batch_norm(SymbolicCall& call) {
  const SymSizes sizes = call.sizes(0);
  if (sizes.size() > 1) (void)sizes[1].guard_int(__FILE__, __LINE__);
  return call.dense(0, sizes);
}

bool flash_attention_for_cpu(SymbolicCall& call) {
  const SymSizes query = call.sizes(0), key = call.sizes(1), value = call.sizes(2);
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) return false;
  for (const size_t dim : {0, 1}) {
    if (query[dim] != key[dim] || query[dim] != value[dim]) return false;
  }
  if (query[3] != key[3] || query[3] != value[3] || key[2] != value[2]) return false;
  if (!call.is_none(5) && call.tensor(5).defined()) {
    const SymSizes all = {query[0], query[1], query[2], key[2]};
    if (!same_sizes(at::infer_size_symdimvector(call.tensor(5).sym_sizes(), all), all)) return false;
  }
  const SymSizes sums = {query[0], query[1], query[2]};
  return call.dense(0, query) && call.dense(1, sums);
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

bool repeat(SymbolicCall& call) {
  const SymSizes self = call.sizes(0);
  SymSizes sizes = call.symints(1);
  const size_t added = sizes.size() - self.size();
  for (size_t i = added; i < sizes.size(); ++i) sizes[i] *= self[i - added];
  return all_results(call, sizes);
}

bool constant_pad(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes pad = call.symints(1);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    SymInt& size = sizes[sizes.size() - 1 - i];
    // Whether it grows says how the result is laid out.
    (void)(pad[2 * i] > 0);
    (void)(pad[2 * i + 1] > 0);
    size = size + pad[2 * i] + pad[2 * i + 1];
    if (size < 0) return false;
  }
  return all_results(call, sizes);
}

// -- new tensors -----------------------------------------------------------------------------------------------------

/// Whole numbers from `start` (or 0) to `end`, which `end_arg` says.
template <int start_arg, size_t end_arg, int step_arg>
bool arange(SymbolicCall& call) {
  const auto number = [&](int i, int64_t otherwise) -> std::optional<SymInt> {
    if (i < 0) return SymInt(otherwise);
    const c10::IValue& value = call.arg(static_cast<size_t>(i));
    if (value.isSymInt()) return value.toSymInt();
    return value.isInt() ? std::optional<SymInt>(value.toInt()) : std::nullopt;
  };
  const auto start = number(start_arg, 0), end = number(end_arg, 0), step = number(step_arg, 1);
  if (!start || !end || !step) return false;
  const std::optional<int64_t> by = step->maybe_as_int();
  if (!by || *by <= 0 || *end < *start) return false;
  return all_results(call, {(*end - *start + (*by - 1)) / *by});
}

// -- images ----------------------------------------------------------------------------------------------------------

SymInt at_or_last(const SymSizes& values, size_t i) { return values[std::min(i, values.size() - 1)]; }

/// How often a window of `kernel` with these steps fits.
SymInt windows(const SymInt& size, const SymInt& kernel, const SymInt& stride, const SymInt& padding,
               const SymInt& dilation) {
  return (size + padding * 2 - dilation * (kernel - 1) - 1) / stride + 1;
}

/// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups).
bool convolution(SymbolicCall& call) {
  const SymSizes input = call.sizes(0), weight = call.sizes(1);
  const SymSizes stride = call.symints(3), padding = call.symints(4), dilation = call.symints(5),
                 more = call.symints(7);
  const bool transposed = call.arg(6).toBool();
  const SymInt groups = call.symint(8);
  if (input.size() != weight.size() || input.size() < 3) return false;
  SymSizes sizes = {input[0], transposed ? weight[1] * groups : weight[0]};
  if (input[1] != (transposed ? weight[0] : weight[1] * groups)) return false;
  for (size_t i = 2; i < input.size(); ++i) {
    const SymInt s = at_or_last(stride, i - 2), p = at_or_last(padding, i - 2), d = at_or_last(dilation, i - 2);
    SymInt size = transposed ? (input[i] - 1) * s - p * 2 + d * (weight[i] - 1) + at_or_last(more, i - 2) + 1
                             : windows(input[i], weight[i], s, p, d);
    if (size < 1) return false;
    sizes.push_back(std::move(size));
  }
  return all_results(call, sizes);
}

/// (input, kernel_size, stride, padding, [dilation,] ceil_mode...): the last two dimensions.
template <int dilation_arg, size_t ceil_arg>
bool pool2d(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes kernel = call.symints(1), padding = call.symints(3);
  SymSizes stride = call.symints(2);
  if (stride.empty()) stride = kernel;
  if (call.arg(ceil_arg).toBool() || sizes.size() < 3) return false;
  const SymSizes dilation =
      dilation_arg < 0 ? SymSizes{1} : call.symints(static_cast<size_t>(std::max(dilation_arg, 0)));
  for (size_t i = 0; i < 2; ++i) {
    SymInt& size = sizes[sizes.size() - 2 + i];
    size = windows(size, at_or_last(kernel, i), at_or_last(stride, i), at_or_last(padding, i), at_or_last(dilation, i));
    if (size < 1) return false;
  }
  return all_results(call, sizes);
}

/// (input, output_size, ...): the last dimensions are as told.
bool resized(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymSizes told = call.symints(1);
  if (told.size() > sizes.size()) return false;
  std::copy(told.begin(), told.end(), sizes.end() - static_cast<int64_t>(told.size()));
  return all_results(call, sizes);
}

template <bool up>
bool pixel_shuffle(SymbolicCall& call) {
  SymSizes sizes = call.sizes(0);
  const SymInt factor = call.integer(1), square = factor * factor;
  SymInt &channels = sizes[sizes.size() - 3], &height = sizes[sizes.size() - 2], &width = sizes[sizes.size() - 1];
  if (up ? channels % square != 0 : height % factor != 0 || width % factor != 0) return false;
  channels = up ? channels / square : channels * square;
  height = up ? height * factor : height / factor;
  width = up ? width * factor : width / factor;
  return all_results(call, sizes);
}

constexpr SymbolicRow rows[] = {
    {"aten::pixel_shuffle", pixel_shuffle<true>},
    {"aten::pixel_unshuffle", pixel_shuffle<false>},
    {"aten::scalar_tensor", to_number},
    {"aten::sum", to_number},
    {"aten::sum.dim_IntList", reduce<1, 2>},
    {"aten::mean", to_number},
    {"aten::mean.dim", reduce<1, 2>},
    {"aten::prod", to_number},
    {"aten::prod.dim_int", reduce<1, 2>},
    {"aten::amax", reduce<1, 2>},
    {"aten::amin", reduce<1, 2>},
    {"aten::argmax", reduce<1, 2>},
    {"aten::argmin", reduce<1, 2>},
    {"aten::max", to_number},
    {"aten::min", to_number},
    {"aten::max.dim", reduce<1, 2>},
    {"aten::min.dim", reduce<1, 2>},
    {"aten::any", to_number},
    {"aten::any.dim", reduce<1, 2>},
    {"aten::any.dims", reduce<1, 2>},
    {"aten::all", to_number},
    {"aten::all.dim", reduce<1, 2>},
    {"aten::all.dims", reduce<1, 2>},
    {"aten::var.correction", reduce<1, 3>},
    {"aten::std.correction", reduce<1, 3>},
    {"aten::var_mean.correction", reduce<1, 3>},
    {"aten::std_mean.correction", reduce<1, 3>},
    {"aten::logsumexp", reduce<1, 2>},
    {"aten::linalg_vector_norm", reduce<2, 3>},
    {"aten::cumsum", like_self},
    {"aten::cumprod", like_self},
    {"aten::sort", like_self},
    {"aten::sort.stable", like_self},
    {"aten::topk", topk},
    {"aten::dot", dot},
    {"aten::mse_loss", loss},
    {"aten::smooth_l1_loss", loss},
    {"aten::nll_loss_forward", nll_loss},
    {"aten::glu", glu},
    {"aten::mm", product<0, 1>},
    {"aten::bmm", product<0, 1>},
    {"aten::mv", product<0, 1>},
    {"aten::addmm", product<1, 2>},
    {"aten::baddbmm", product<1, 2>},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_group_norm", group_norm},
    {"aten::native_batch_norm", batch_norm},
    {"aten::_native_batch_norm_legit_no_training", batch_norm},
    {"aten::_softmax", like_self},
    {"aten::_log_softmax", like_self},
    {"aten::_safe_softmax", like_self},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention_for_cpu},
    {"aten::index.Tensor", index},
    {"aten::_unsafe_index.Tensor", index},
    {"aten::index_put", index_put},
    {"aten::index_put_", index_put},
    {"aten::index_select", index_select},
    {"aten::embedding", embedding},
    {"aten::gather", gather},
    {"aten::cat", cat},
    {"aten::stack", stack},
    {"aten::repeat", repeat},
    {"aten::flip", like_self},
    {"aten::roll", like_self},
    {"aten::constant_pad_nd", constant_pad},
    {"aten::empty.memory_format", as_told<0>},
    {"aten::zeros", as_told<0>},
    {"aten::ones", as_told<0>},
    {"aten::rand", as_told<0>},
    {"aten::randn", as_told<0>},
    {"aten::full", as_told<0>},
    {"aten::randint", as_told<1>},
    {"aten::randint.low", as_told<2>},
    {"aten::new_empty", as_told<1>},
    {"aten::new_zeros", as_told<1>},
    {"aten::new_ones", as_told<1>},
    {"aten::new_full", as_told<1>},
    {"aten::empty_like", like_self},
    {"aten::zeros_like", like_self},
    {"aten::ones_like", like_self},
    {"aten::full_like", like_self},
    {"aten::rand_like", like_self},
    {"aten::randn_like", like_self},
    {"aten::_to_copy", like_self},
    {"aten::clone", like_self},
    {"aten::tril", like_self},
    {"aten::triu", like_self},
    {"aten::arange", arange<-1, 0, -1>},
    {"aten::arange.start", arange<0, 1, -1>},
    {"aten::arange.start_step", arange<0, 1, 2>},
    {"aten::convolution", convolution},
    {"aten::max_pool2d_with_indices", pool2d<4, 5>},
    {"aten::avg_pool2d", pool2d<-1, 4>},
    {"aten::_adaptive_avg_pool2d", resized},
    {"aten::upsample_nearest1d", resized},
    {"aten::upsample_nearest2d", resized},
    {"aten::upsample_bilinear2d", resized},
    {"aten::upsample_bicubic2d", resized},
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
