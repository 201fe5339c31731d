#include "runtime/program/aten_program.h"

#include <ATen/core/List.h>
#include <ATen/ops/clone.h>
#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>

#include "graph/text.h"
#include "runtime/plan/failed_call.h"
#include "runtime/program/dispatch_scope.h"
#include "runtime/program/plain.h"
#include "runtime/program/program_steps.h"

namespace magneto::runtime {
namespace {

/// The memory of one run: registers and the argument stack. Kept per thread, one per level of nesting.
struct Frame {
  std::vector<at::Tensor> registers;
  torch::jit::Stack stack;
};

class FrameLease {
 public:
  explicit FrameLease(int32_t register_count) {
    if (pool().empty()) {
      frame_ = std::make_unique<Frame>();
    } else {
      frame_ = std::move(pool().back());
      pool().pop_back();
    }
    if (frame_->registers.size() < static_cast<size_t>(register_count)) frame_->registers.resize(register_count);
  }
  ~FrameLease() {
    if (!finished_) {
      for (at::Tensor& tensor : frame_->registers) tensor.reset();
    }
    frame_->stack.clear();
    pool().push_back(std::move(frame_));
  }
  FrameLease(const FrameLease&) = delete;

  Frame& operator*() const { return *frame_; }
  /// Every register was given up by its last use.
  void finish() { finished_ = true; }

 private:
  static std::vector<std::unique_ptr<Frame>>& pool() {
    thread_local std::vector<std::unique_ptr<Frame>> frames;
    return frames;
  }

  std::unique_ptr<Frame> frame_;
  bool finished_ = false;
};

class Run {
 public:
  Run(const AtenProgram::Impl& program, const at::Tensor* const* inputs, Frame& frame)
      : program_(program), tensors_{inputs, program.constants.data(), frame.registers.data()}, stack_(frame.stack) {}

  void run(at::Tensor* outputs) {
    if (!program_.symbols.empty()) symbols_ = program_.symbols.read(tensors_.inputs);
    direct_ = program_.plain && scope_.is_plain() && !at::hasCallbacks();
    for (size_t i = 0; direct_ && i < program_.input_count; ++i) direct_ = is_plain(*tensors_.inputs[i]);
    scope_.enter(/*with_tracking=*/!direct_);
    for (const CopiedConstant& constant : program_.copied_constants) {
      tensors_.registers[constant.register_index] = at::clone(constant.tensor);
    }
    run_steps();
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const Operand& output = program_.outputs[i];
      if (output.place == Place::Register) {
        outputs[i] = std::move(tensors_.registers[output.index]);
      } else {
        outputs[i] = tensors_[output];
      }
    }
  }

 private:
  void run_steps() {
    const Step* step = program_.steps.data();
    try {
      for (const Step* end = step + program_.steps.size(); step != end; ++step) run_step(*step);
    } catch (...) {
      note_failed_call(step->op);
      while (step-- != program_.steps.data()) note_earlier_call(step->op);
      throw;
    }
  }

  void run_step(const Step& step) {
    if (direct_) {
      for (const Operand& operand : step.bumped) {
        const at::Tensor& tensor = tensors_[operand];
        if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
      }
    }
    if (direct_ && step.mode == CallMode::Direct) {
      if (step.view && make_view(step)) return;
      if (step.typed) return call_typed(step);
    }
    push_arguments(step);
    call_boxed(step);
    take_results(step);
  }

  void call_typed(const Step& step) {
    at::Tensor result = step.typed(step, step.keys, tensors_);
    for (const Argument& argument : step.arguments) release(argument.tensor);
    if (step.results[0] >= 0) tensors_.registers[step.results[0]] = std::move(result);
  }

  void release(const Operand& operand) {
    if (operand.last_use) tensors_.registers[operand.index].reset();
  }

  bool make_view(const Step& step) {
    const StaticView& view = *step.view;
    const Operand& operand = step.arguments[0].tensor;
    const at::Tensor& source = tensors_[operand];
    const c10::TensorImpl* impl = source.unsafeGetTensorImpl();
    // Eager decides by the tensor it has. If a kernel laid it out otherwise than the capture thought, so do we.
    if (impl->layout() != at::kStrided || impl->sizes() != c10::IntArrayRef(view.source_sizes) ||
        impl->strides() != c10::IntArrayRef(view.source_strides) || !is_plain(source)) {
      return false;
    }
    const int64_t offset = impl->storage_offset();
    for (size_t i = 0; i < view.results.size(); ++i) {
      if (step.results[i] < 0) continue;
      auto result = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(impl->storage()),
                                                         impl->key_set(), impl->dtype());
      result->set_storage_offset(offset + view.results[i].offset);
      result->set_sizes_and_strides(view.results[i].sizes, view.results[i].strides);
      tensors_.registers[step.results[i]] = at::Tensor(std::move(result));
    }
    release(operand);
    return true;
  }

  at::Tensor take(const Operand& operand) {
    if (operand.index < 0) return {};
    if (operand.last_use) return std::move(tensors_.registers[operand.index]);
    return tensors_[operand];
  }

  void push_arguments(const Step& step) {
    stack_.clear();
    for (const Argument& argument : step.arguments) {
      switch (argument.kind) {
        case Argument::Kind::Constant:
          stack_.push_back(argument.constant);
          break;
        case Argument::Kind::Tensor:
          stack_.emplace_back(take(argument.tensor));
          if (argument.as_number) stack_.back() = stack_.back().toTensor().item();
          break;
        case Argument::Kind::TensorList: {
          c10::List<at::Tensor> list;
          list.reserve(argument.list.size());
          for (const Operand& operand : argument.list) list.push_back(take(operand));
          stack_.emplace_back(std::move(list));
          break;
        }
        case Argument::Kind::Size:
          stack_.push_back(graph::number_of(argument.size, symbols_));
          break;
        case Argument::Kind::OptionalTensorList: {
          c10::List<std::optional<at::Tensor>> list;
          list.reserve(argument.list.size());
          for (const Operand& operand : argument.list) {
            list.push_back(operand.index < 0 ? std::nullopt : std::optional<at::Tensor>(take(operand)));
          }
          stack_.emplace_back(std::move(list));
          break;
        }
      }
    }
  }

  void call_boxed(const Step& step) {
    if (!direct_) return step.op.callBoxed(stack_);
    switch (step.mode) {
      case CallMode::Direct:
        return step.op.redispatchBoxed(step.keys, &stack_);
      case CallMode::Tracked:
        return step.op.redispatchBoxed(step.keys | tracking(), &stack_);
      case CallMode::Dispatched:
        scope_.enter(/*with_tracking=*/true);
        step.op.callBoxed(stack_);
        return scope_.enter(/*with_tracking=*/false);
    }
  }

  /// ADInplaceOrView as eager's dispatch would find it: on this thread or on one of the tensors.
  c10::DispatchKeySet tracking() const {
    if (scope_.tracking_excluded()) return {};
    c10::DispatchKeySet keys = scope_.included_tracking();
    for (const c10::IValue& value : stack_) {
      if (value.isTensor()) {
        const at::Tensor& tensor = value.toTensor();
        if (tensor.defined()) keys = keys | tensor.key_set();
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) keys = keys | tensor.key_set();
      }
    }
    return keys & kTracking;
  }

  void take_results(const Step& step) {
    size_t next = 0;
    const auto store = [&](at::Tensor&& tensor) {
      if (next == step.results.size()) wrong_result_count(step);
      for (const auto& [position, symbol] : step.symbols) {
        if (position == next) symbols_.read(symbol, tensor);
      }
      const int32_t index = step.results[next++];
      if (index >= 0) tensors_.registers[index] = std::move(tensor);
    };
    for (c10::IValue& value : stack_) {
      if (value.isTensor()) {
        store(std::move(value).toTensor());
      } else if (value.isTensorList()) {
        for (at::Tensor& tensor : std::move(value).toTensorVector()) store(std::move(tensor));
      }
    }
    if (next != step.results.size()) wrong_result_count(step);
    stack_.clear();
  }

  [[noreturn]] static void wrong_result_count(const Step& step) {
    TORCH_CHECK(false, graph::operator_text(step.op), " gave another number of tensors than when it was captured");
  }

  const AtenProgram::Impl& program_;
  RunTensors tensors_;
  torch::jit::Stack& stack_;
  DispatchScope scope_;
  graph::SymbolValues symbols_;
  bool direct_ = false;
};

}  // namespace

AtenProgram::AtenProgram(const graph::Graph& graph) : impl_(std::make_unique<Impl>(build_program(graph))) {}
AtenProgram::~AtenProgram() = default;
AtenProgram::AtenProgram(AtenProgram&&) noexcept = default;

size_t AtenProgram::input_count() const { return impl_->input_count; }
size_t AtenProgram::output_count() const { return impl_->outputs.size(); }

void AtenProgram::run(const at::Tensor* const* inputs, at::Tensor* outputs) const {
  FrameLease frame(impl_->register_count);
  Run(*impl_, inputs, *frame).run(outputs);
  frame.finish();
}

std::string AtenProgram::print() const {
  const auto name = [](const Operand& operand) {
    if (operand.index < 0) return std::string("None");
    constexpr char letters[] = {'i', 'c', 'r'};
    return letters[static_cast<int>(operand.place)] + std::to_string(operand.index) + (operand.last_use ? "!" : "");
  };
  std::string out;
  for (const CopiedConstant& constant : impl_->copied_constants) {
    out += "r" + std::to_string(constant.register_index) + " = copy of a constant\n";
  }
  for (const Step& step : impl_->steps) {
    for (size_t i = 0; i < step.results.size(); ++i) {
      out += (i ? ", " : "") + (step.results[i] < 0 ? std::string("_") : "r" + std::to_string(step.results[i]));
    }
    constexpr const char* modes[] = {"direct", "tracked", "dispatched"};
    const char* mode = !impl_->plain ? "dispatched" : step.view ? "view" : step.typed ? "typed" : modes[int(step.mode)];
    out += std::string(step.results.empty() ? "" : " = ") + mode + ' ' + graph::operator_text(step.op) + '(';
    bool comma = false;
    for (const Argument& argument : step.arguments) {
      if (argument.kind == Argument::Kind::Constant || argument.kind == Argument::Kind::Size) continue;
      if (std::exchange(comma, true)) out += ", ";
      if (argument.kind == Argument::Kind::Tensor) {
        out += name(argument.tensor);
        continue;
      }
      out += '[';
      for (size_t i = 0; i < argument.list.size(); ++i) out += (i ? ", " : "") + name(argument.list[i]);
      out += ']';
    }
    out += ")\n";
  }
  out += "return (";
  for (size_t i = 0; i < impl_->outputs.size(); ++i) out += (i ? ", " : "") + name(impl_->outputs[i]);
  return out + ")\n";
}

}  // namespace magneto::runtime
