// PyTorch's kernel adds row after row by an operator's call each, which takes longer than the sums.
#include "runtime/program/embedding_gradients.h"

#include <ATen/Parallel.h>
#include <ATen/ops/embedding_dense_backward_ops.h>

#include <algorithm>
#include <cstring>

#include "runtime/program/typed_argument.h"

namespace magneto::runtime {
namespace {

/// So many elements are worth a thread of their own.
constexpr int64_t kGrain = 32 * 1024;

struct Rows {
  int64_t count, width, table;  // rows of the gradient, their elements, rows of the table
  int64_t padding;              // the row of the table that has no gradient; -1: there is none
};

/// With vectors, whatever the build's level of optimisation is.
template <typename Number>
[[gnu::optimize("O3")]] void add_to(Number* __restrict to, const Number* __restrict from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <typename Number, typename Index>
void add_rows(const Rows& rows, const at::Tensor& gradient, const at::Tensor& indices, at::Tensor& out) {
  const auto* const from = gradient.const_data_ptr<Number>();
  const auto* const index = indices.const_data_ptr<Index>();
  auto* const to = out.mutable_data_ptr<Number>();
  at::parallel_for(0, rows.table, std::max<int64_t>(1, kGrain / rows.width), [&](int64_t begin, int64_t end) {
    std::memset(to + begin * rows.width, 0, static_cast<size_t>((end - begin) * rows.width) * sizeof(Number));
  });
  // By columns: which rows of the table have more to add, nobody knows.
  const int64_t columns = std::max<int64_t>(16, kGrain / rows.count);
  at::parallel_for(0, rows.width, columns, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < rows.count; ++i) {
      const auto row = static_cast<int64_t>(index[i]);
      if (row < 0 || row >= rows.table || row == rows.padding) continue;
      add_to(to + row * rows.width + begin, from + i * rows.width + begin, end - begin);
    }
  });
}

template <typename Number>
void add_rows(const Rows& rows, const at::Tensor& gradient, const at::Tensor& indices, at::Tensor& out) {
  if (indices.scalar_type() == c10::kInt) return add_rows<Number, int32_t>(rows, gradient, indices, out);
  add_rows<Number, int64_t>(rows, gradient, indices, out);
}

}  // namespace

void sum_embedding_rows(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out) {
  const auto& given = argument<at::Tensor>(step, registers, 0);
  const auto& indices = argument<at::Tensor>(step, registers, 1);
  const auto table = argument<c10::SymInt>(step, registers, 2), padding = argument<c10::SymInt>(step, registers, 3);
  const auto by_frequency = argument<bool>(step, registers, 4);
  const bool known = given.scalar_type() == c10::kFloat || given.scalar_type() == c10::kDouble;
  if (!known || by_frequency || !out.is_contiguous()) {
    out.copy_(at::_ops::embedding_dense_backward::redispatch(keys, given, indices, table, padding, by_frequency));
    return;
  }
  const int64_t width = out.size(1);
  const Rows rows{indices.numel(), width, out.size(0), padding.expect_int()};
  if (rows.count == 0 || width == 0) {
    out.zero_();
    return;
  }
  const at::Tensor gradient = given.contiguous(), places = indices.contiguous();
  if (given.scalar_type() == c10::kDouble) return add_rows<double>(rows, gradient, places, out);
  add_rows<float>(rows, gradient, places, out);
}

}  // namespace magneto::runtime
