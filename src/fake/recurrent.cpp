// What PyTorch's own LSTM calls (native/mkldnn/RNN.cpp), which asks for plain sizes on the way.
#include "fake/recurrent.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/lstm_ops.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "fake/fake_impl.h"

namespace magneto::fake {

namespace {

/// (input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first).
struct Lstm {
  explicit Lstm(at::ArrayRef<c10::IValue> args)
      : input(args[0].toTensor()),
        states(args[1].toTensorVector()),
        params(args[2].toTensorVector()),
        biases(args[3].toBool()),
        layers(args[4].toInt()),
        dropout(args[6].toBool() ? args[5].toDouble() : 0),
        train(args[6].toBool()),
        bidirectional(args[7].toBool()),
        batch_first(args[8].toBool()) {}

  size_t params_of_layer() const { return biases ? 4 : 2; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  bool is_for_onednn() const;
  bool fits() const;
  std::array<at::Tensor, 3> run() const;

  at::Tensor input;
  std::vector<at::Tensor> states, params;
  bool biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;
};

/// With gradients or dropout: else the operator is kept whole. Autocast makes all tensors of one dtype.
bool Lstm::is_for_onednn() const {
  const FakeImpl* fake = as_fake(input);
  if (!fake || !fake->symbolic() || fake->state().purpose.exports || !at::GradMode::is_enabled() ||
      !onednn_takes(input.scalar_type()))
    return false;
  if (input.dim() != 3 || states.size() != 2) return false;
  const bool casts = at::autocast::is_autocast_enabled(c10::kCPU);
  bool usual = true, needed = dropout > 0;
  const auto look = [&](const at::Tensor& tensor) {
    const c10::ScalarType dtype = tensor.scalar_type();
    const bool fits = casts ? dtype == c10::kFloat || dtype == c10::kBFloat16 : dtype == input.scalar_type();
    usual = usual && fits && tensor.device().is_cpu();
    needed |= tensor.requires_grad();
  };
  look(input);
  std::ranges::for_each(states, look);
  std::ranges::for_each(params, look);
  return usual && needed;
}

/// The shapes are those that it takes, and no hidden state is projected.
bool Lstm::fits() const {
  if (params.size() != params_of_layer() * layers * directions() || input.sym_numel() == 0) return false;
  const c10::SymInt batch = input.sym_size(batch_first ? 0 : 1);
  for (const at::Tensor& state : states) {
    if (state.dim() != 3 || state.sym_size(0) != layers * directions() || state.sym_size(1) != batch) return false;
  }
  const c10::SymInt hidden = states[0].sym_size(2);
  if (states[1].sym_size(2) != hidden) return false;
  for (size_t i = 0; i < params.size(); ++i) {
    const bool of_input = i % params_of_layer() == 0, of_state = i % params_of_layer() == 1;
    if (params[i].dim() != (of_input || of_state ? 2 : 1) || params[i].sym_size(0) != 4 * hidden) return false;
    const bool first = i < params_of_layer() * directions();
    if (of_input && params[i].sym_size(1) != (first ? input.sym_size(2) : directions() * hidden)) return false;
    if (of_state && params[i].sym_size(1) != hidden) return false;
  }
  return true;
}

std::array<at::Tensor, 3> Lstm::run() const {
  constexpr int64_t kMode = 2;  // ideep::rnn_kind::LSTM
  const int64_t hidden = states[0].sym_size(2).guard_int(__FILE__, __LINE__);
  at::Tensor rows = (batch_first ? input.transpose(0, 1) : input).contiguous();
  const at::Tensor h = states[0].contiguous(), c = states[1].contiguous();
  std::vector<at::Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < directions(); ++direction) {
      const int64_t index = layer * directions() + direction;
      const at::Tensor* const own = params.data() + params_of_layer() * index;
      const auto bias = [&](size_t k) {
        return biases ? own[2 + k] : at::zeros_symint(own[k].sym_sizes(), own[k].options());
      };
      const auto [output, h_of_layer, c_of_layer, workspace] =
          at::mkldnn_rnn_layer(rows, own[0], own[1], bias(0), bias(1), h.select(0, index), c.select(0, index),
                               direction > 0, {}, kMode, hidden, layers, biases, bidirectional, batch_first, train);
      outputs.push_back(output);
      last_h.push_back(h_of_layer);
      last_c.push_back(c_of_layer);
    }
    rows = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && layer < layers - 1) rows = at::dropout(rows, dropout, /*train=*/true);
  }
  return {batch_first ? rows.transpose(0, 1) : rows, at::stack(last_h, 0), at::stack(last_c, 0)};
}

}  // namespace

bool onednn_takes(c10::ScalarType dtype) {
  static const bool takes_narrow = [] {
    const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    return op && op->typed<bool()>().call();
  }();
  return at::globalContext().userEnabledMkldnn() && (dtype == c10::kFloat || (dtype == c10::kBFloat16 && takes_narrow));
}

bool call_lstm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.operator_name().name != at::_ops::lstm_input::name ||
      op.operator_name().overload_name != at::_ops::lstm_input::overload_name) {
    return false;
  }
  constexpr size_t kArguments = 9;
  const Lstm lstm(torch::jit::last(*stack, kArguments));
  if (!lstm.is_for_onednn() || !lstm.fits()) return false;
  const std::array<at::Tensor, 3> results = lstm.run();
  torch::jit::drop(*stack, kArguments);
  for (const at::Tensor& result : results) stack->emplace_back(result);
  return true;
}

}  // namespace magneto::fake
