// Symbolic rules of the operators that autograd's formulas call: a gradient is as large as what it is the gradient of.
#include "fake/symbolic_rules.h"

namespace magneto::fake {
namespace {

/// Result k, where there is one, is as large as argument number k of `of`.
template <size_t... of>
bool like(SymbolicCall& call) {
  size_t k = 0;
  const auto one = [&](size_t argument) {
    const size_t result = k++;
    if (result >= call.result_count() || !call.result(result).defined()) return true;
    return !call.is_none(argument) && call.tensor(argument).defined() && call.dense(result, call.sizes(argument));
  };
  return (one(of) && ...);
}

/// As large as the sizes that argument `i` lists.
template <size_t i>
bool as_told(SymbolicCall& call) {
  return all_results(call, call.symints(i));
}

/// The gradients of the input, and of a weight and a bias that have a number for each channel.
bool of_channels(SymbolicCall& call, const c10::SymInt& channels) {
  for (size_t k = 1; k < call.result_count(); ++k) {
    if (call.result(k).defined() && !call.dense(k, {channels})) return false;
  }
  return !call.result(0).defined() || call.dense(0, call.sizes(1));
}

/// (grad, input, ...).
bool batch_norm(SymbolicCall& call) {
  return call.sizes(1).size() >= 2 && of_channels(call, call.tensor(1).sym_size(1));
}

/// (grad, input, mean, rstd, weight, N, C, ...).
bool group_norm(SymbolicCall& call) { return of_channels(call, call.symint(6)); }

/// (grad, input, weight, bias_sizes, ...).
bool convolution(SymbolicCall& call) {
  if (call.result_count() > 2 && call.result(2).defined()) {
    if (call.is_none(3) || !call.dense(2, call.symints(3))) return false;
  }
  return like<1, 2>(call);
}

/// (input, two weights, two biases, hidden state, cell state, ...): where a layer has no biases, too, two gradients of
/// one.
bool recurrent_layer(SymbolicCall& call) {
  const auto like = [&](size_t k) { return call.dense(k, call.sizes(k)); };
  const c10::SymInt gates = call.tensor(1).sym_size(0);
  return like(0) && like(1) && like(2) && call.dense(3, {gates}) && call.dense(4, {gates}) && like(5) && like(6);
}

constexpr SymbolicRow gradient_rows[] = {
#define ROW_symbolic_gradients(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const SymbolicRow> symbolic_gradients_rules() { return gradient_rows; }

}  // namespace magneto::fake
