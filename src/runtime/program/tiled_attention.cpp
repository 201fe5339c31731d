// Attention by tiles of scores (passes/tiles.h): nothing of the size of all scores is made, and tiles of which a mask
// leaves nothing are not multiplied.
//
// Threads take blocks of queries, one after another. For each block of keys: one product, a region that makes scores
// weights and brings the softmax so far up to date, another product. What a row has so far is its greatest score, the
// sum of its weights as they are beside that, and their product with values.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "codegen/kernel.h"
#include "runtime/program/regions.h"

namespace magneto::runtime {
namespace {

constexpr int64_t kQueries = 128, kKeys = 256;

struct Problem {
  at::Tensor query, key, value;
  const TensorComputation *scores, *live, *lookups;
  bool is_masked, looks_up, every_batch, every_head;
  std::vector<at::Tensor> operands;
  int64_t batches, heads, queries, keys, group, head_size, width, query_blocks, key_blocks;
};

/// A view that is moved from tile to tile.
void place(const at::Tensor& view, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
}

/// What a thread has of its own: the tile that it works on.
class Tile {
 public:
  explicit Tile(const Problem& problem) : problem_(problem) {
    const auto options = problem.query.options();
    scores_ = at::empty({kQueries, kKeys}, options);
    result_ = at::empty({kQueries, problem.width}, options);
    greatest_ = at::empty({kQueries}, options);
    sum_ = at::empty({kQueries}, options);
    position_ = at::empty({1}, options.dtype(at::kByte));
    query_ = problem.query.as_strided({0}, {1});
    key_ = problem.key.as_strided({0}, {1});
    value_ = problem.value.as_strided({0}, {1});
    inputs_ = {&position_, &scores_, &result_, &greatest_, &sum_};
    for (const at::Tensor& operand : problem.operands) inputs_.push_back(&operand);
  }

  void start(int64_t batch, int64_t head, int64_t query_block) {
    batch_ = batch, head_ = head, row_ = query_block * kQueries;
    rows_ = std::min(kQueries, problem_.queries - row_);
    const at::Tensor& query = problem_.query;
    place(query_, {rows_, problem_.head_size}, {query.stride(2), query.stride(3)},
          query.storage_offset() + batch * query.stride(0) + head * query.stride(1) + row_ * query.stride(2));
    place(result_, {rows_, problem_.width}, {problem_.width, 1}, 0);
    place(greatest_, {rows_}, {1}, 0);
    place(sum_, {rows_}, {1}, 0);
  }

  void move(int64_t key_block) {
    column_ = key_block * kKeys;
    columns_ = std::min(kKeys, problem_.keys - column_);
    place(scores_, {rows_, columns_}, {columns_, 1}, 0);
    place(position_, {batch_, head_, row_, column_}, {0, 0, 0, 0}, 0);
  }

  bool answer(const TensorComputation& region) const {
    at::Tensor said;
    region.compute(inputs_.data(), &said);
    return *said.const_data_ptr<bool>();
  }

  template <typename Number>
  void clear() {
    result_.zero_();
    sum_.zero_();
    greatest_.fill_(-std::numeric_limits<Number>::infinity());
  }

  void attend() {
    const at::Tensor &key = problem_.key, &value = problem_.value;
    const int64_t head = head_ / problem_.group;
    place(key_, {problem_.head_size, columns_}, {key.stride(3), key.stride(2)},
          key.storage_offset() + batch_ * key.stride(0) + head * key.stride(1) + column_ * key.stride(2));
    place(value_, {columns_, problem_.width}, {value.stride(2), value.stride(3)},
          value.storage_offset() + batch_ * value.stride(0) + head * value.stride(1) + column_ * value.stride(2));
    at::cpu::mm_out(scores_, query_, key_);
    at::Tensor weights;
    // Given back to the pool tile by tile: the next one gets the same memory.
    problem_.scores->compute(inputs_.data(), &weights);
    at::cpu::addmm_(result_, weights, value_);
  }

  /// The block's rows of the three results.
  template <typename Number, typename Result>
  void finish(const std::vector<at::Tensor>& results) const {
    const int64_t first = (batch_ * problem_.heads + head_) * problem_.queries + row_, width = problem_.width;
    const auto *made = result_.const_data_ptr<Number>(), *sums = sum_.const_data_ptr<Number>(),
               *greatest = greatest_.const_data_ptr<Number>();
    auto* out = results[0].mutable_data_ptr<Result>() + first * width;
    auto *logarithms = results[1].mutable_data_ptr<Number>() + first,
         *most = results[2].mutable_data_ptr<Number>() + first;
    for (int64_t i = 0; i < rows_; ++i) {
      const Number sum = sums[i] == 0 ? 1 : sums[i];
      for (int64_t k = 0; k < width; ++k) out[i * width + k] = static_cast<Result>(made[i * width + k] / sum);
      most[i] = greatest[i];
      logarithms[i] = std::isinf(greatest[i]) ? greatest[i] : greatest[i] + std::log(sums[i]);
    }
  }

 private:
  const Problem& problem_;
  at::Tensor position_, scores_, result_, greatest_, sum_, query_, key_, value_;
  std::vector<const at::Tensor*> inputs_;
  int64_t batch_ = 0, head_ = 0, row_ = 0, rows_ = 0, column_ = 0, columns_ = 0;
};

/// Calls `work(tile, i)` for each i below `count`, on all threads.
template <typename Work>
void for_each_block(const Problem& problem, int64_t count, const Work& work) {
  std::atomic<int64_t> next = 0;
  codegen::on_threads(0, std::min<int64_t>(at::get_num_threads(), count), 1, [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tile tile(problem);
    for (int64_t i = next++; i < count; i = next++) work(tile, i);
  });
}

/// Which tiles are to be computed.
class LiveTiles {
 public:
  explicit LiveTiles(const Problem& problem) : problem_(problem) {
    if (!problem.is_masked) return;
    const int64_t batches = problem.every_batch ? 1 : problem.batches, heads = problem.every_head ? 1 : problem.heads;
    live_.resize(batches * heads * problem.query_blocks * problem.key_blocks);
    for_each_block(problem, batches * heads * problem.query_blocks, [&](Tile& tile, int64_t i) {
      const int64_t block = i % problem.query_blocks, of_head = i / problem.query_blocks;
      tile.start(of_head / heads, of_head % heads, block);
      for (int64_t k = 0; k < problem.key_blocks; ++k) {
        tile.move(k);
        const bool live = tile.answer(*problem.live);
        live_[i * problem.key_blocks + k] = live;
        TORCH_CHECK_INDEX(live || !problem.looks_up || !tile.answer(*problem.lookups), "index is out of bounds");
      }
    });
    if (problem.value.scalar_type() == at::kDouble) {
      find_endless<double, int64_t>();
    } else {
      find_endless<float, int32_t>();
    }
  }

  bool operator()(int64_t batch, int64_t head, int64_t query_block, int64_t key_block) const {
    if (!problem_.is_masked) return true;
    const int64_t b = problem_.every_batch ? 0 : batch, h = problem_.every_head ? 0 : head;
    const int64_t of_head = problem_.every_head ? b : b * problem_.heads + h;
    return live_[(of_head * problem_.query_blocks + query_block) * problem_.key_blocks + key_block] != 0 ||
           (!endless_.empty() &&
            endless_[(batch * (problem_.heads / problem_.group) + head / problem_.group) * problem_.key_blocks +
                     key_block] != 0);
  }

 private:
  /// A weight of zero times infinity, or NaN, is NaN: values of masked keys count there.
  template <typename Number, typename Bits>
  void find_endless() {
    const at::Tensor& value = problem_.value;
    const int64_t heads = problem_.heads / problem_.group, blocks = problem_.key_blocks;
    std::vector<uint8_t> endless(problem_.batches * heads * blocks);
    std::atomic<bool> any = false;
    const auto* data = value.const_data_ptr<Number>();
    codegen::on_threads(0, static_cast<int64_t>(endless.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t of_head = i / blocks, first = i % blocks * kKeys, last = std::min(first + kKeys, problem_.keys);
        const auto* from = data + of_head / heads * value.stride(0) + of_head % heads * value.stride(1);
        Bits largest = 0;
        for (int64_t row = first; row < last; ++row) {
          for (int64_t k = 0; k < problem_.width; ++k) {
            const auto bits = std::bit_cast<Bits>(from[row * value.stride(2) + k]);
            largest = std::max(largest, static_cast<Bits>(bits & std::numeric_limits<Bits>::max()));
          }
        }
        if (largest < std::bit_cast<Bits>(std::numeric_limits<Number>::infinity())) continue;
        endless[i] = 1;
        any = true;
      }
    });
    if (any) endless_ = std::move(endless);
  }

  const Problem& problem_;
  std::vector<uint8_t> live_, endless_;  // bytes: threads write them side by side
};

template <typename Number, typename Result>
void attend(const Problem& problem, const std::vector<at::Tensor>& results) {
  const LiveTiles live(problem);
  const int64_t heads = problem.batches * problem.heads;
  for_each_block(problem, heads * problem.query_blocks, [&](Tile& tile, int64_t i) {
    // The last queries first: under a causal mask they have the most keys.
    const int64_t block = problem.query_blocks - 1 - i / heads, of_head = i % heads;
    const int64_t batch = of_head / problem.heads, head = of_head % problem.heads;
    tile.start(batch, head, block);
    tile.clear<Number>();
    for (int64_t k = 0; k < problem.key_blocks; ++k) {
      if (!live(batch, head, block, k)) continue;
      tile.move(k);
      tile.attend();
    }
    tile.finish<Number, Result>(results);
  });
}

template <typename Number>
void attend_as(const Problem& problem, const std::vector<at::Tensor>& results) {
  switch (results[0].scalar_type()) {
    case at::kBFloat16:
      return attend<Number, at::BFloat16>(problem, results);
    case at::kHalf:
      return attend<Number, at::Half>(problem, results);
    case at::kDouble:
      return attend<Number, double>(problem, results);
    default:
      return attend<Number, float>(problem, results);
  }
}

at::Tensor with_dense_rows(at::Tensor tensor) { return tensor.stride(3) == 1 ? tensor : tensor.contiguous(); }

/// tiled_attention(Tensor query, Tensor key, Tensor value, Any scores, Any live, Any lookups, bool is_masked, bool
/// looks_up, bool every_batch, bool every_head, ScalarType dtype, Tensor[] operands) -> (Tensor, Tensor, Tensor): the
/// result, the logarithms of sums, and the greatest scores.
void run_tiled_attention(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  Problem problem;
  problem.operands = torch::jit::pop(*stack).toTensorVector();
  const auto dtype = static_cast<c10::ScalarType>(torch::jit::pop(*stack).toInt());
  for (bool* each : {&problem.every_head, &problem.every_batch, &problem.looks_up, &problem.is_masked})
    *each = torch::jit::pop(*stack).toBool();
  const c10::IValue lookups = torch::jit::pop(*stack), live = torch::jit::pop(*stack), scores = torch::jit::pop(*stack);
  problem.scores = &computation_of(scores);
  problem.live = &computation_of(live);
  problem.lookups = &computation_of(lookups);
  for (at::Tensor* each : {&problem.value, &problem.key, &problem.query})
    *each = with_dense_rows(torch::jit::pop(*stack).toTensor());
  problem.batches = problem.query.size(0), problem.heads = problem.query.size(1);
  problem.queries = problem.query.size(2), problem.keys = problem.key.size(2);
  problem.head_size = problem.query.size(3), problem.width = problem.value.size(3);
  problem.group = problem.heads / std::max<int64_t>(problem.key.size(1), 1);
  problem.query_blocks = (problem.queries + kQueries - 1) / kQueries;
  problem.key_blocks = (problem.keys + kKeys - 1) / kKeys;
  const auto options = problem.query.options();
  const std::vector<int64_t> rows = {problem.batches, problem.heads, problem.queries};
  const std::vector<at::Tensor> results = {
      at::empty({problem.batches, problem.heads, problem.queries, problem.width}, options.dtype(dtype)),
      at::empty(rows, options), at::empty(rows, options)};
  if (results[1].numel() > 0) {
    problem.query.scalar_type() == at::kDouble ? attend_as<double>(problem, results)
                                               : attend_as<float>(problem, results);
  }
  for (const at::Tensor& result : results) torch::jit::push(*stack, result);
}

/// from_tile and tile where no kernel computes them.
at::Tensor from_tile(const at::Tensor& tile, at::IntArrayRef sizes, at::IntArrayRef at) {
  at::Tensor whole = at::zeros(sizes, tile.options());
  whole.narrow(-2, at[0], tile.size(0)).narrow(-1, at[1], tile.size(1)).copy_(tile);
  return whole;
}
at::Tensor tile(const at::Tensor& whole, at::IntArrayRef at, at::IntArrayRef sizes) {
  at::Tensor part = whole;
  while (part.dim() > 2) part = part.select(0, part.size(0) == 1 ? 0 : at[at.size() - part.dim()]);
  for (int64_t dim = 0; dim < part.dim(); ++dim) {
    const size_t place = at.size() - part.dim() + dim;
    if (part.size(dim) != 1) part = part.narrow(dim, at[place], sizes[place - 2]);
  }
  return part.expand(sizes).contiguous();
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def(
      "tiled_attention(Tensor query, Tensor key, Tensor value, Any scores, Any live, Any lookups, bool is_masked, bool "
      "looks_up, bool every_batch, bool every_head, ScalarType dtype, Tensor[] operands) -> (Tensor, Tensor, Tensor)");
  library.impl("tiled_attention", c10::DispatchKey::CompositeExplicitAutograd,
               torch::CppFunction::makeFromBoxedFunction<&run_tiled_attention>());
  library.def("from_tile(Tensor tile, SymInt[] sizes, SymInt[] at) -> Tensor");
  library.impl("from_tile", c10::DispatchKey::CPU, from_tile);
  library.def("tile(Tensor whole, SymInt[] at, SymInt[] sizes) -> Tensor");
  library.impl("tile", c10::DispatchKey::CPU, tile);
}

}  // namespace
}  // namespace magneto::runtime
