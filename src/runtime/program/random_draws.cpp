// PyTorch's generator of a CPU is a Mersenne twister, of which its kernels ask one number after another: 8 ns for each
// element of a dropout's mask, more than all else that a dropout does. Here 624 numbers are made at once, with vectors,
// from the generator's state, which is then as PyTorch's kernel would leave it.
//
// What PyTorch's kernels make of the numbers is not promised by anyone (a build may ask another library). So the first
// use compares: where a kernel of PyTorch gives other elements than ours, or leaves another state, it is called
// instead.
#include "runtime/program/random_draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "runtime/program/placed_results.h"
#include "runtime/program/typed_argument.h"

namespace magneto::runtime {
namespace {

constexpr int kState = at::MERSENNE_STATE_N, kMiddle = at::MERSENNE_STATE_M;

[[gnu::always_inline]] inline uint32_t twisted(uint32_t far, uint32_t high, uint32_t low) {
  const uint32_t mixed = (high & at::UMASK) | (low & at::LMASK);
  return far ^ (mixed >> 1) ^ ((0U - (low & 1U)) & at::MATRIX_A);
}

/// The next 624 numbers of the state `s`. Each loop reads what it writes 227 or more elements before, or not yet.
[[gnu::always_inline]] inline void advance(uint32_t* s) {
#pragma GCC ivdep
  for (int i = 0; i < kState - kMiddle; ++i) s[i] = twisted(s[i + kMiddle], s[i], s[i + 1]);
#pragma GCC ivdep
  for (int i = kState - kMiddle; i < kState - 1; ++i) s[i] = twisted(s[i + kMiddle - kState], s[i], s[i + 1]);
  s[kState - 1] = twisted(s[kMiddle - 1], s[kState - 1], s[0]);
}

[[gnu::always_inline]] inline void temper(uint32_t* __restrict to, const uint32_t* __restrict from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t y = from[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    to[i] = y ^ (y >> 18);
  }
}

/// Elements that are `one` where the 53 low bits of two numbers are less than `bound`, else zero. Of the two the first
/// is the higher; compared apart, since not all CPUs compare vectors of 64 bits.
template <typename Element>
[[gnu::always_inline]] inline void below(Element* __restrict to, const uint32_t* __restrict numbers, int64_t count,
                                         uint64_t bound, Element one) {
  const auto high_bound = static_cast<int32_t>(bound >> 32);
  const uint32_t low_bound = static_cast<uint32_t>(bound) ^ 0x80000000U;
  for (int64_t i = 0; i < count; ++i) {
    const auto high = static_cast<int32_t>(numbers[2 * i] & 0x1fffffU);
    const uint32_t low = numbers[2 * i + 1] ^ 0x80000000U;
    const bool less =
        (high < high_bound) | ((high == high_bound) & (static_cast<int32_t>(low) < static_cast<int32_t>(low_bound)));
    to[i] = less ? one : Element(0);
  }
}

[[gnu::always_inline]] inline void unit(float* __restrict to, const uint32_t* __restrict numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = static_cast<float>(static_cast<int32_t>(numbers[i] & 0xffffffU)) * 0x1p-24F;
}

[[gnu::always_inline]] inline void unit(double* __restrict to, const uint32_t* __restrict numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    // Both parts are exact, and so is their sum.
    const auto high = static_cast<double>(static_cast<int32_t>(numbers[2 * i] & 0x1fffffU));
    const auto low = static_cast<double>(static_cast<int32_t>(numbers[2 * i + 1] ^ 0x80000000U)) + 0x1p31;
    to[i] = high * 0x1p-21 + low * 0x1p-53;
  }
}

// The loops above, compiled for the vectors that every CPU has and for wide ones.
#define MAGNETO_LOOPS(Width, ...)                                                                                   \
  struct Width {                                                                                                    \
    __VA_ARGS__ static void advance(uint32_t* s) { runtime::advance(s); }                                           \
    __VA_ARGS__ static void temper(uint32_t* to, const uint32_t* from, int64_t n) { runtime::temper(to, from, n); } \
    template <typename Element>                                                                                     \
    __VA_ARGS__ static void below(Element* to, const uint32_t* from, int64_t n, uint64_t bound, Element one) {      \
      runtime::below(to, from, n, bound, one);                                                                      \
    }                                                                                                               \
    template <typename Element>                                                                                     \
    __VA_ARGS__ static void unit(Element* to, const uint32_t* from, int64_t n) {                                    \
      runtime::unit(to, from, n);                                                                                   \
    }                                                                                                               \
  }
MAGNETO_LOOPS(Narrow, [[gnu::optimize("O3")]]);
#if defined(__x86_64__)
MAGNETO_LOOPS(Wide, [[gnu::target("avx2"), gnu::optimize("O3")]]);
bool has_wide() { return __builtin_cpu_supports("avx2"); }
#else
using Wide = Narrow;
bool has_wide() { return false; }
#endif

/// The numbers of a generator, one behind the other. What was taken is gone from the generator when this is.
class Numbers {
 public:
  explicit Numbers(at::CPUGeneratorImpl& generator)
      : generator_(generator), engine_(generator.engine()), data_(engine_.data()) {}
  ~Numbers() {
    engine_.set_data(data_);
    generator_.set_engine(engine_);
  }
  Numbers(const Numbers&) = delete;

  void take(uint32_t* to, int64_t count) {
    while (count > 0) {
      // `left_` counts the draw that makes the next state.
      if (data_.left_ == 1) {
        (wide_ ? Wide::advance : Narrow::advance)(data_.state_.data());
        data_.left_ = kState + 1;
        data_.next_ = 0;
      }
      const int64_t part = std::min<int64_t>(count, data_.left_ - 1);
      (wide_ ? Wide::temper : Narrow::temper)(to, data_.state_.data() + data_.next_, part);
      data_.left_ -= static_cast<int>(part);
      data_.next_ += static_cast<uint32_t>(part);
      to += part;
      count -= part;
    }
  }
  bool wide() const { return wide_; }

 private:
  at::CPUGeneratorImpl& generator_;
  at::mt19937 engine_;
  at::mt19937_data_pod data_;
  const bool wide_ = has_wide();
};

/// Hands `make` the numbers for so many elements, `each` for one, in parts: make(first, numbers, count).
template <typename Make>
void in_parts(Numbers& numbers, int64_t count, int64_t each, Make make) {
  std::array<uint32_t, 2 * kState> part;
  const int64_t most = static_cast<int64_t>(part.size()) / each;
  for (int64_t first = 0; first < count; first += most) {
    const int64_t now = std::min(most, count - first);
    numbers.take(part.data(), now * each);
    make(first, part.data(), now);
  }
}

template <typename Element>
void fill_below(Numbers& numbers, Element* to, int64_t count, uint64_t bound, Element one) {
  const auto fill = numbers.wide() ? Wide::below<Element> : Narrow::below<Element>;
  in_parts(numbers, count, 2,
           [&](int64_t first, const uint32_t* from, int64_t now) { fill(to + first, from, now, bound, one); });
}

/// False: not of that dtype.
bool fill_bernoulli(Numbers& numbers, const at::Tensor& out, double p) {
  const auto bound = static_cast<uint64_t>(std::ceil(std::ldexp(p, 53)));
  void* const to = out.mutable_data_ptr();
  const int64_t count = out.numel();
  switch (out.scalar_type()) {
    case c10::kFloat:
      return fill_below(numbers, static_cast<float*>(to), count, bound, 1.0F), true;
    case c10::kDouble:
      return fill_below(numbers, static_cast<double*>(to), count, bound, 1.0), true;
    case c10::kBFloat16:
      return fill_below<uint16_t>(numbers, static_cast<uint16_t*>(to), count, bound, 0x3f80), true;
    case c10::kHalf:
      return fill_below<uint16_t>(numbers, static_cast<uint16_t*>(to), count, bound, 0x3c00), true;
    case c10::kBool:
      return fill_below<uint8_t>(numbers, static_cast<uint8_t*>(to), count, bound, 1), true;
    default:
      return false;
  }
}

template <typename Element>
void fill_unit(Numbers& numbers, const at::Tensor& out) {
  auto* const to = out.mutable_data_ptr<Element>();
  const auto fill = numbers.wide() ? Wide::unit<Element> : Narrow::unit<Element>;
  in_parts(numbers, out.numel(), sizeof(Element) / sizeof(uint32_t),
           [&](int64_t first, const uint32_t* from, int64_t now) { fill(to + first, from, now); });
}

bool fill_uniform(Numbers& numbers, const at::Tensor& out) {
  if (out.scalar_type() == c10::kFloat) return fill_unit<float>(numbers, out), true;
  if (out.scalar_type() == c10::kDouble) return fill_unit<double>(numbers, out), true;
  return false;
}

bool same_state(const at::Generator& a, const at::Generator& b) {
  const auto of = [](const at::Generator& generator) { return generator.get<at::CPUGeneratorImpl>()->engine().data(); };
  const at::mt19937_data_pod one = of(a), other = of(b);
  return one.left_ == other.left_ && one.next_ == other.next_ && one.state_ == other.state_;
}

/// Whether `ours` gives what `theirs` does, in each dtype: elements over more than a state, and the state behind.
template <typename Ours, typename Theirs>
bool agrees(std::initializer_list<c10::ScalarType> dtypes, Ours ours, Theirs theirs) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet(c10::DispatchKey::Python).add(c10::DispatchKey::PythonTLSSnapshot));
  const at::DisableRecordFunctionGuard unrecorded;
  for (const c10::ScalarType dtype : dtypes) {
    for (const int64_t count : {1, 7, 1001}) {
      at::Generator a = at::detail::createCPUGenerator(count), b = at::detail::createCPUGenerator(count);
      const auto options = at::TensorOptions(dtype).device(c10::kCPU);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const at::Tensor mine = at::empty({count}, options);
        {
          Numbers numbers(*a.get<at::CPUGeneratorImpl>());
          ours(numbers, mine);
        }
        if (!at::equal(mine, theirs(count, options, b)) || !same_state(a, b)) return false;
      }
    }
  }
  return true;
}

bool bernoulli_agrees() {
  static const bool known = agrees(
      {c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf, c10::kBool},
      [](Numbers& numbers, const at::Tensor& out) { fill_bernoulli(numbers, out, 0.3); },
      [](int64_t count, at::TensorOptions options, const at::Generator& generator) {
        return at::bernoulli(at::empty({count}, options), 0.3, generator);
      });
  return known;
}

bool uniform_agrees() {
  static const bool known = agrees(
      {c10::kFloat, c10::kDouble}, [](Numbers& numbers, const at::Tensor& out) { fill_uniform(numbers, out); },
      [](int64_t count, at::TensorOptions options, const at::Generator& generator) {
        return at::rand({count}, generator, options);
      });
  return known;
}

/// `fill`s a tensor on the CPU that has no gaps, in the order of its memory, as PyTorch's kernels do. False: it is left
/// to them.
template <typename Fill>
bool filled(const at::Tensor& out, Fill fill) {
  if (!out.is_cpu() || !out.is_non_overlapping_and_dense()) return false;
  auto* const generator = at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  Numbers numbers(*generator);
  return fill(numbers);
}

}  // namespace

void draw_bernoulli(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out) {
  const auto p = argument<double>(step, registers, 1);
  const bool of_default = step.arguments[2].constant.isNone();
  const auto fill = [&](Numbers& numbers) { return fill_bernoulli(numbers, out, p); };
  if (of_default && p >= 0 && p <= 1 && bernoulli_agrees() && filled(out, fill)) return;
  call_placed(step, keys, registers, out);
}

void draw_uniform(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out) {
  if (uniform_agrees() && filled(out, [&](Numbers& numbers) { return fill_uniform(numbers, out); })) return;
  call_placed(step, keys, registers, out);
}

}  // namespace magneto::runtime
