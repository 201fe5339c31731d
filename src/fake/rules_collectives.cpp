// Collectives of torch.distributed: how large what each process gets is.
#include "fake/shape_rules.h"

namespace magneto::fake {
namespace {

/// Others' strides PyTorch's own function says, version by version.
bool is_row_major(const at::Tensor& tensor) { return tensor.is_contiguous() && tensor.layout() == c10::kStrided; }

/// (input, ...): as large as what each process gives.
template <class C>
Sizes<C> as_given(const at::Tensor& input, const Size<C>&) {
  return sizes_of<C>(input);
}

/// One piece of each process, one after the other.
template <class C>
Sizes<C> times_group(const at::Tensor& input, const Size<C>& group_size) {
  auto sizes = sizes_of<C>(input);
  if (sizes.empty()) {
    sizes.push_back(group_size);
  } else {
    sizes[0] = sizes[0] * group_size;
  }
  return sizes;
}

template <class C>
Sizes<C> over_group(const at::Tensor& input, const Size<C>& group_size) {
  auto sizes = sizes_of<C>(input);
  sizes[0] = sizes[0] / group_size;
  return sizes;
}

template <class C, auto sizes>
bool one(C& call, size_t group_argument) {
  const at::Tensor& input = call.tensor(0);
  if (kPlain<C> && !is_row_major(input)) return false;
  const Size<C> group_size = group_argument ? size_argument(call, group_argument) : Size<C>(1);
  return add(call, sizes(input, group_size), input.scalar_type(), input.device());
}

/// A list of tensors.
template <auto sizes>
bool each(Call& call, size_t group_argument) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& input : call.tensors(0)) {
    if (!is_row_major(input)) return false;
    const int64_t group_size = group_argument ? call.integer(group_argument) : 1;
    results.push_back(call.empty(sizes(input, group_size), input.scalar_type(), input.device()));
  }
  call.result(std::move(results));
  return true;
}
template <auto sizes>
bool each(SymbolicCall& call, size_t group_argument) {
  for (const at::Tensor& input : call.tensors(0)) {
    const c10::SymInt group_size = group_argument ? call.symint(group_argument) : c10::SymInt(1);
    if (!call.add(sizes(input, group_size))) return false;
  }
  return true;
}

/// all_reduce(input, reduce_op, group_name), broadcast(input, src, group_name).
template <class C>
bool same_sizes(C& call) {
  return one<C, as_given<C>>(call, 0);
}

/// all_gather_into_tensor(input, group_size, group_name).
template <class C>
bool gathered(C& call) {
  return one<C, times_group<C>>(call, 1);
}

/// reduce_scatter_tensor(input, reduce_op, group_size, group_name).
template <class C>
bool scattered(C& call) {
  const at::Tensor& input = call.tensor(0);
  if (input.dim() == 0 || size_argument(call, 2) <= 0) return false;
  return one<C, over_group<C>>(call, 2);
}

template <class C>
bool each_same_sizes(C& call) {
  return each<as_given<C>>(call, 0);
}

template <class C>
bool each_gathered(C& call) {
  return each<times_group<C>>(call, 1);
}

template <class C>
bool each_scattered(C& call) {
  for (const at::Tensor& input : call.tensors(0)) {
    if (input.dim() == 0 || size_argument(call, 2) <= 0) return false;
  }
  return each<over_group<C>>(call, 2);
}

/// all_to_all_single(input, output_split_sizes, input_split_sizes, group_name): as many rows as the first list says.
template <class C>
bool exchanged(C& call) {
  const at::Tensor& input = call.tensor(0);
  if (input.dim() == 0 || (kPlain<C> && !is_row_major(input))) return false;
  auto sizes = sizes_of<C>(input);
  sizes[0] = Size<C>(0);
  for (const Size<C>& rows : sizes_argument(call, 1)) sizes[0] = sizes[0] + rows;
  return add(call, sizes, input.scalar_type(), input.device());
}

/// wait_tensor(tensor): the tensor itself, as eager gives it.
template <class C>
bool waited(C& call) {
  return add_self(call);
}

}  // namespace

std::span<const RuleRow> collectives_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_collectives(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_collectives_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_collectives(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
