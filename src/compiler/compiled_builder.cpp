// From a LoopProgram to steps over registers: which tensors live where, and the arena's plan.
#include <algorithm>

#include "compiler/regions.h"
#include "compiler/shared_places.h"
#include "graph/aliases.h"
#include "graph/literal.h"
#include "graph/text.h"
#include "ops/kinds.h"
#include "passes/effects.h"
#include "runtime/program/compiled_steps.h"
#include "runtime/program/dispatch_scope.h"

namespace magneto::runtime {
namespace {

using graph::AtenArg;
using graph::AtenNode;
using graph::kNoValue;
using graph::ValueId;
using lower::BufferId;
using lower::BufferKind;

/// So much may be kept beyond the size of the weights that it is made of.
constexpr int64_t kPreparedBytes = 1 << 20;

class Builder {
 public:
  explicit Builder(CompiledProgram::Impl& impl)
      : impl_(impl), program_(impl.program), graph_(program_.functional.graph) {}

  void run() {
    if (!graph_.symbols.empty()) impl_.sized.emplace(graph_);
    impl_.input_count = graph_.inputs.size();
    buffer_register_.assign(program_.buffers.size(), -1);
    value_register_.assign(graph_.values.size(), -1);
    for (const lower::Step& step : program_.steps) add_step(step);
    add_copies();
    add_outputs();
    find_prepared();
    find_last_steps();
    plan_arena();
    plan_pointers();
    if (impl_.sized) plan_sizes();
  }

 private:
  int32_t end() const { return static_cast<int32_t>(impl_.steps.size()); }

  /// Dynamic sizes, by register.
  struct Geometry {
    shapes::Sizes sizes, strides;
    shapes::Size view_offset, bytes;
    bool is_static() const {
      return shapes::all_static(sizes) && shapes::all_static(strides) && view_offset.is_static() && bytes.is_static();
    }
  };

  int32_t add_register(Register made, Geometry geometry) {
    made.sizes = shapes::hints(geometry.sizes);
    made.strides = shapes::hints(geometry.strides);
    made.bytes = geometry.bytes.hint();
    if (made.source == Source::View) made.offset = geometry.view_offset.hint();
    impl_.registers.push_back(std::move(made));
    geometry_.resize(impl_.registers.size());
    geometry_.back() = std::move(geometry);
    return static_cast<int32_t>(impl_.registers.size() - 1);
  }

  int32_t register_of(BufferId id) {
    int32_t& known = buffer_register_[id];
    if (known >= 0) return known;
    const lower::Buffer& buffer = program_.buffers[id];
    Register made{.dtype = buffer.dtype, .value = buffer.value};
    switch (buffer.kind) {
      case BufferKind::Input:
        made.source = Source::Input;
        made.index = buffer.input;
        break;
      case BufferKind::Constant:
        made.source = buffer.escapes ? Source::Copy : Source::Constant;
        made.index = static_cast<int32_t>(impl_.constants.size());
        impl_.constants.push_back(graph_.values[buffer.value].constant);
        break;
      case BufferKind::Extern:
        made.source = Source::Returned;
        break;
      case BufferKind::Kernel:
        made.source = memory_of(id);
        break;
    }
    return known = add_register(std::move(made), {buffer.sizes, buffer.strides, 0, bytes_of(id)});
  }

  shapes::Size bytes_of(BufferId id) const {
    return program_.span(id) * static_cast<int64_t>(c10::elementSize(program_.buffers[id].dtype));
  }

  /// Where what a kernel or an out call writes lies.
  Source memory_of(BufferId id) const {
    const bool own = program_.buffers[id].escapes || (impl_.pooled && bytes_of(id).hint() >= kLeastPooledBytes);
    return own ? Source::Fresh : Source::Arena;
  }

  /// The register of a value that an operator sees; views are made before step `impl_.steps.size()`.
  int32_t register_of_value(ValueId id, std::vector<int32_t>& views) {
    if (value_register_[id] >= 0) return value_register_[id];
    const lower::Place& place = program_.places.at(id);
    const int32_t base = register_of(place.buffer);
    const graph::TensorMeta& meta = graph_.values[id].meta;
    const lower::Buffer& buffer = program_.buffers[place.buffer];
    const bool whole =
        place.offset == 0 && buffer.sizes == graph::sizes_of(meta) && buffer.strides == graph::strides_of(meta);
    if (buffer.value == id || whole) {
      return value_register_[id] = base;
    }
    Register view{.source = Source::View, .index = base, .dtype = meta.dtype, .value = id};
    const int32_t made =
        add_register(std::move(view), {graph::sizes_of(meta), graph::strides_of(meta), place.offset, 0});
    // A view of planned memory is made once, with the arena.
    if (impl_.registers[base].source != Source::Arena) views.push_back(made);
    return value_register_[id] = made;
  }

  void add_step(const lower::Step& step) {
    CompiledStep compiled;
    if (step.kernel) {
      compiled.kernel = static_cast<int32_t>(impl_.kernels.size());
      KernelCall call;
      call.kernel = &step.kernel->kernel;
      call.variant = step.kernel->variant;
      call.name = "magneto::" + step.kernel->kernel.name;
      auto argument = step.kernel->buffers.begin();
      for (const loops::Buffer& buffer : step.kernel->kernel.buffers) {
        if (buffer.role == loops::Role::Scratch) continue;  // no argument
        const int32_t reg = register_of(*argument++);
        call.registers.push_back(reg);
        call.roles.push_back(buffer.role);
        impl_.registers[reg].written |= buffer.role != loops::Role::In;
      }
      impl_.kernels.push_back(std::move(call));
    } else {
      compiled.call = static_cast<int32_t>(impl_.calls.size());
      impl_.calls.push_back(make_call(step.call.node, compiled.views));
      const Step& call = impl_.calls.back();
      const AtenNode& node = graph_.aten_nodes[step.call.node];
      // Into planned memory, if the operator can; the result must not leave.
      if (node.results.size() == 1 && call.results[0] >= 0) {
        Register& result = impl_.registers[call.results[0]];
        compiled.out = find_out_call(call, result.dtype);
        if (compiled.out) result.source = memory_of(program_.places[node.results[0]].buffer);
      }
    }
    impl_.steps.push_back(std::move(compiled));
  }

  /// How those of regions run: as those around them.
  compiler::Backend::Operators operators() const {
    using Operators = compiler::Backend::Operators;
    if (!impl_.device->compiles()) return Operators::Interpreted;
    const bool all_called = program_.choices.called.size() == graph_.aten_nodes.size();
    return all_called ? Operators::Called : Operators::Generated;
  }

  /// The operator and its arguments. `register_for`: that of a value.
  template <typename RegisterFor>
  Step step_of(int32_t index, RegisterFor register_for) const {
    const AtenNode& node = graph_.aten_nodes[index];
    Step step{node.op};
    step.node = index;
    const auto& arguments = node.op.schema().arguments();
    const auto operand = [&](ValueId id) {
      return Operand{Place::Register, false, id == kNoValue ? -1 : register_for(id)};
    };
    for (size_t i = 0; i < node.args.size(); ++i) {
      Argument argument;
      const c10::Type& type = *arguments[i].real_type();
      if (const auto* constant = std::get_if<c10::IValue>(&node.args[i])) {
        argument.constant = *constant;
      } else if (const auto* id = std::get_if<ValueId>(&node.args[i])) {
        if (*id == kNoValue) {
          argument.constant = type.kind() == c10::TypeKind::OptionalType ? c10::IValue() : c10::IValue(at::Tensor());
        } else {
          argument.kind = Argument::Kind::Tensor;
          argument.tensor = operand(*id);
          argument.as_number = !graph::is_tensor_type(type);
        }
      } else if (const auto* size = std::get_if<graph::SizeArg>(&node.args[i])) {
        argument.kind = Argument::Kind::Size;
        argument.size = *size;
      } else if (const auto* region = std::get_if<std::shared_ptr<const graph::Region>>(&node.args[i])) {
        argument.constant = compiler::compile_region(**region, operators());
      } else {
        const c10::Type* list = &type;
        while (list->kind() == c10::TypeKind::OptionalType)
          list = list->castRaw<c10::OptionalType>()->getElementType().get();
        const auto& element = *list->castRaw<c10::ListType>()->getElementType();
        argument.kind = element.kind() == c10::TypeKind::OptionalType ? Argument::Kind::OptionalTensorList
                                                                      : Argument::Kind::TensorList;
        for (const ValueId id : std::get<std::vector<ValueId>>(node.args[i])) argument.list.push_back(operand(id));
      }
      step.arguments.push_back(std::move(argument));
    }
    return step;
  }

  Step make_call(int32_t index, std::vector<int32_t>& views) {
    const AtenNode& node = graph_.aten_nodes[index];
    Step step = step_of(index, [&](ValueId id) { return register_of_value(id, views); });
    for (const ValueId id : node.results) {
      const bool kept = id != kNoValue && program_.places[id].buffer != lower::kNoBuffer &&
                        program_.buffers[program_.places[id].buffer].value == id;
      step.results.push_back(kept ? register_of(program_.places[id].buffer) : -1);
    }
    step.keys = impl_.device->keys();
    const bool composite = node.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const bool custom = passes::traits_of(node.op).effect && !node.op.operator_name().name.starts_with("aten::");
    // What may hand a view on is tracked: the view knows its base.
    const bool aliases = passes::traits_of(node.op).aliases;
    step.mode = composite || custom || aliases ? CallMode::Dispatched : CallMode::Direct;
    step.waits = ops::is_kind(passes::traits_of(node.op), ops::starts_collective);
    if (step.mode == CallMode::Direct) step.typed = find_typed_call(step);
    return step;
  }

  void add_copies() {
    for (const auto& bump : program_.functional.bumps) {
      const graph::Value& value = graph_.values[bump.value];
      if (value.kind != graph::ValueKind::Input) continue;
      const auto input = static_cast<int32_t>(std::find(graph_.inputs.begin(), graph_.inputs.end(), bump.value) -
                                              graph_.inputs.begin());
      InputWrite write{input, register_of(program_.places[bump.value].buffer), bump.count};
      for (const auto& copy : program_.copies) {
        if (copy.input == bump.value) write.from = register_of_value(copy.value, impl_.last_views);
      }
      impl_.writes.push_back(write);
    }
  }

  void add_outputs() {
    for (const int32_t node : program_.output_views) {
      // Made anew at the end, whatever registers the same value has for operators inside.
      Step step = step_of(node, [&](ValueId id) { return output_register(id); });
      step.mode = CallMode::Dispatched;
      for (const ValueId id : graph_.aten_nodes[node].results) {
        Register result{.source = Source::Returned};
        step.results.push_back(add_register(std::move(result), {}));
        if (id != kNoValue) output_register_[id] = step.results.back();
      }
      impl_.outputs.views.push_back(std::move(step));
    }
    for (const ValueId id : graph_.outputs) impl_.outputs.registers.push_back(output_register(id));
    for (const auto& bump : program_.functional.bumps) {
      if (graph_.values[bump.value].kind != graph::ValueKind::Input)
        impl_.outputs.bumps.emplace_back(output_register(bump.value), bump.count);
    }
  }

  /// The tensor to hand out, or to make a handed out view of.
  int32_t output_register(ValueId id) {
    if (const auto found = output_register_.find(id); found != output_register_.end()) return found->second;
    return register_of_value(id, impl_.last_views);
  }

  // -- weights

  /// Steps whose operands are weights, or made of them: those that require gradients, since others may be written
  /// through numpy's view of them.
  void find_prepared() {
    std::vector<bool> known(impl_.registers.size(), false), weight(impl_.registers.size(), false);
    for (size_t r = 0; r < impl_.registers.size(); ++r) {
      const Register& info = impl_.registers[r];
      known[r] = info.source == Source::Constant;
      weight[r] = info.source == Source::Input && graph_.values[graph_.inputs[info.index]].meta.requires_grad;
    }
    for (const InputWrite& write : impl_.writes) weight[write.target] = false;
    std::vector<int32_t> writers(impl_.registers.size(), 0);
    for (const KernelCall& call : impl_.kernels) {
      for (size_t i = 0; i < call.registers.size(); ++i) writers[call.registers[i]] += call.roles[i] != loops::Role::In;
    }
    std::vector<CompiledStep> others;
    std::vector<bool> read(impl_.registers.size(), false);
    for (CompiledStep& step : impl_.steps) {
      const std::optional<int32_t> result = prepacked_result(step, known, weight);
      if (!result || writers[*result] > 1) {
        others.push_back(std::move(step));
        continue;
      }
      for_each_register(step, [&](int32_t reg) {
        if (!weight[reg]) return;
        if (step.kernel < 0) {
          impl_.prepacked.inputs.push_back(reg);
          impl_.transient.push_back(reg);
        }
        if (read[reg]) return;
        read[reg] = true;
        impl_.prepacked.weights.push_back(impl_.registers[reg].index);
      });
      Register& made = impl_.registers[*result];
      known[*result] = made.prepared = true;
      if (step.kernel < 0) {
        impl_.prepacked.add_tensor(*result, made);
      } else {
        impl_.prepacked.place(made);
      }
      impl_.prepacked.steps.push_back(std::move(step));
    }
    impl_.steps = std::move(others);
  }

  /// The register that a step makes of nothing but weights: a kernel into planned memory, or an operator that gives a
  /// weight in its library's layout. None for other steps.
  std::optional<int32_t> prepacked_result(const CompiledStep& step, const std::vector<bool>& known,
                                          const std::vector<bool>& weight) const {
    if (step.kernel < 0) {
      const Step& call = impl_.calls[step.call];
      if (call.op.operator_name().name != "mkldnn::_reorder_convolution_weight") return std::nullopt;
      return weight[call.arguments[0].tensor.index] ? std::optional(call.results[0]) : std::nullopt;
    }
    const KernelCall& call = impl_.kernels[step.kernel];
    std::optional<int32_t> result;
    bool any = false;
    int64_t bytes = kPreparedBytes;
    for (size_t i = 0; i < call.registers.size(); ++i) {
      const int32_t reg = call.registers[i];
      if (call.roles[i] == loops::Role::In) {
        if (!weight[reg] && !known[reg]) return std::nullopt;
        any = any || weight[reg] || impl_.registers[reg].prepared;
        bytes += impl_.registers[reg].bytes;
        continue;
      }
      const bool made = call.roles[i] == loops::Role::Out && impl_.registers[reg].source == Source::Arena;
      if (result || !made) return std::nullopt;
      result = reg;
    }
    const int64_t most = std::min(bytes, Prepacked::room() - impl_.prepacked.bytes);
    const bool kept = any && result && !call.kernel->may_raise() && geometry_[*result].is_static() &&
                      impl_.registers[*result].bytes <= most;
    return kept ? result : std::nullopt;
  }

  // -- memory

  template <typename Visit>
  void for_each_register(const CompiledStep& step, Visit visit) const {
    if (step.kernel >= 0) {
      for (const int32_t index : impl_.kernels[step.kernel].registers) visit(index);
      return;
    }
    visit_call(impl_.calls[step.call], visit);
  }
  template <typename Visit>
  static void visit_call(const Step& call, Visit visit) {
    for (const Argument& argument : call.arguments) {
      if (argument.kind == Argument::Kind::Tensor) visit(argument.tensor.index);
      for (const Operand& operand : argument.list) {
        if (operand.index >= 0) visit(operand.index);
      }
    }
    for (const int32_t index : call.results) {
      if (index >= 0) visit(index);
    }
  }

  void find_last_steps() {
    const auto use = [&](int32_t index, int32_t step) {
      const int32_t base = impl_.registers[index].source == Source::View ? impl_.registers[index].index : index;
      for (const int32_t one : {index, base}) {
        impl_.registers[one].last_step = std::max(impl_.registers[one].last_step, step);
        impl_.registers[one].first_step = std::min(impl_.registers[one].first_step, step);
      }
    };
    for (const KernelCall& call : impl_.kernels) {
      for (const int32_t index : call.registers) impl_.registers[index].read = true;
    }
    for (const Step& call : impl_.calls) {
      for (const Argument& argument : call.arguments) {
        if (argument.kind == Argument::Kind::Tensor) impl_.registers[argument.tensor.index].read = true;
        for (const Operand& item : argument.list) {
          if (item.index >= 0) impl_.registers[item.index].read = true;
        }
      }
    }
    for (const Register& info : impl_.registers) {
      if (info.source == Source::View) impl_.registers[info.index].read = true;
    }
    const auto hold = [&](int32_t index) {
      Register& info = impl_.registers[index];
      info.held = true;
      if (info.source == Source::View) impl_.registers[info.index].held = true;
    };
    for (int32_t s = 0; s < end(); ++s) {
      for_each_register(impl_.steps[s], [&](int32_t index) {
        use(index, s);
        if (impl_.steps[s].kernel < 0) hold(index);
      });
    }
    const auto last = [&](int32_t index) {
      use(index, end());
      hold(index);
    };
    for (const InputWrite& write : impl_.writes) {
      last(write.target);
      if (write.from >= 0) last(write.from);
    }
    for (const Step& view : impl_.outputs.views) visit_call(view, last);
    for (const int32_t index : impl_.outputs.registers) last(index);
    for (const int32_t index : impl_.last_views) last(index);
    const int32_t first_write = first_written_input(impl_);
    for (size_t r = 0; r < impl_.registers.size(); ++r) {
      const Register& info = impl_.registers[r];
      const bool used = info.last_step >= 0 && info.last_step < end();
      if (info.source == Source::Input && used) impl_.steps[info.last_step].spent.push_back(static_cast<int32_t>(r));
      if (info.source == Source::Input && !info.held) continue;
      if (info.source == Source::Fresh && info.first_step < end()) {
        impl_.steps[std::min(info.first_step, first_write)].born.push_back(static_cast<int32_t>(r));
      } else if (info.source == Source::Input || info.source == Source::Copy || info.source == Source::Fresh) {
        impl_.starting.push_back(static_cast<int32_t>(r));
      }
      const bool kept = info.source == Source::Arena || info.source == Source::Constant || info.prepared ||
                        (info.source == Source::View && impl_.registers[info.index].source == Source::Arena);
      if (!kept) impl_.transient.push_back(static_cast<int32_t>(r));
      const bool own = (info.source == Source::Returned && !info.prepared) || info.source == Source::Fresh ||
                       info.source == Source::Copy ||
                       (info.source == Source::View && impl_.registers[info.index].source != Source::Arena);
      if (own && used) impl_.steps[info.last_step].dead.push_back(static_cast<int32_t>(r));
    }
  }

  /// Largest first, each at the lowest offset that is free while it lives.
  void plan_arena() {
    const std::vector<int32_t> place =
        find_shared_places(impl_, [&](int32_t a, int32_t b) { return geometry_[a].bytes == geometry_[b].bytes; });
    // What shares a place is planned as one, and lives until the last of it dies.
    std::vector<int32_t> last(place.size(), -1);
    for (size_t r = 0; r < place.size(); ++r) last[place[r]] = std::max(last[place[r]], impl_.registers[r].last_step);
    std::vector<int32_t> order;
    for (size_t r = 0; r < impl_.registers.size(); ++r) {
      const bool planned = impl_.registers[r].source == Source::Arena && !impl_.registers[r].prepared;
      if (planned && place[r] == static_cast<int32_t>(r)) order.push_back(static_cast<int32_t>(r));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return impl_.registers[a].bytes > impl_.registers[b].bytes; });
    std::vector<int32_t> placed;  // by offset
    for (const int32_t index : order) {
      Register& info = impl_.registers[index];
      const int64_t bytes = arena_space(info.bytes);
      int64_t offset = 0;
      for (const int32_t other : placed) {
        const Register& there = impl_.registers[other];
        if (last[other] < info.first_step || last[index] < there.first_step) continue;
        if (offset + bytes <= there.offset) break;
        offset = std::max(offset, there.offset + arena_space(there.bytes));
      }
      info.offset = offset;
      impl_.arena_bytes = std::max(impl_.arena_bytes, offset + bytes);
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), index,
                           [&](int32_t a, int32_t b) { return impl_.registers[a].offset < impl_.registers[b].offset; }),
          index);
    }
    for (size_t r = 0; r < place.size(); ++r) {
      if (place[r] == static_cast<int32_t>(r)) continue;
      impl_.registers[r].offset = impl_.registers[place[r]].offset;
      if (impl_.sized) impl_.sized->shared.emplace_back(static_cast<int32_t>(r), place[r]);
    }
    if (impl_.sized) order_arena(placed, last);
  }

  /// For other sizes than those of the capture: behind what each register lies. Of those below it that live when it
  /// does, the ones that have no other such between.
  void order_arena(const std::vector<int32_t>& placed, const std::vector<int32_t>& last) {
    const auto meet = [&](int32_t a, int32_t b) {
      return last[a] >= impl_.registers[b].first_step && last[b] >= impl_.registers[a].first_step;
    };
    for (size_t i = 0; i < placed.size(); ++i) {
      SizedPlan::Planned planned{placed[i], {}};
      for (size_t j = i; j-- > 0;) {
        if (!meet(placed[i], placed[j])) continue;
        const bool hidden =
            std::ranges::any_of(planned.behind, [&](int32_t between) { return meet(between, placed[j]); });
        if (!hidden) planned.behind.push_back(placed[j]);
      }
      impl_.sized->arena.push_back(std::move(planned));
    }
  }

  /// What of the registers depends on sizes.
  void plan_sizes() {
    SizedPlan& plan = *impl_.sized;
    for (int32_t r = 0; r < static_cast<int32_t>(impl_.registers.size()); ++r) {
      const Geometry& geometry = geometry_[r];
      const auto add = [&](const shapes::Size& size, SizedPlan::Part part, size_t dim = 0) {
        if (!size.is_static()) plan.fields.push_back({r, part, static_cast<int32_t>(dim), plan.sizes.add(size.expr())});
      };
      for (size_t d = 0; d < geometry.sizes.size(); ++d) {
        add(geometry.sizes[d], SizedPlan::Part::Size, d);
        add(geometry.strides[d], SizedPlan::Part::Stride, d);
      }
      add(geometry.view_offset, SizedPlan::Part::ViewOffset);
      add(geometry.bytes, SizedPlan::Part::Bytes);
    }
  }

  /// Kernels find their arguments in one row of pointers; those to planned memory and constants stay in it.
  void plan_pointers() {
    std::vector<int32_t> kernel_step(impl_.kernels.size());
    for (int32_t s = 0; s < end(); ++s) {
      if (impl_.steps[s].kernel >= 0) kernel_step[impl_.steps[s].kernel] = s;
    }
    for (size_t k = 0; k < impl_.kernels.size(); ++k) {
      KernelCall& call = impl_.kernels[k];
      call.first_pointer = impl_.fills.count;
      for (const int32_t reg : call.registers) {
        fills_of(impl_.registers[reg], impl_.steps[kernel_step[k]]).push_back({reg, impl_.fills.next()});
      }
    }
  }

  /// When a kernel's pointer to a register is filled.
  std::vector<PointerFill>& fills_of(const Register& info, CompiledStep& step) {
    switch (info.source) {
      case Source::Input:
        return impl_.fills.inputs;
      case Source::Constant:
      case Source::Arena:
        return info.prepared ? impl_.prepacked.fills : impl_.fills.kept;
      case Source::Copy:
        return impl_.fills.starting;
      case Source::Fresh:
      case Source::Returned:
      case Source::View:
        break;
    }
    return step.fills;
  }

  CompiledProgram::Impl& impl_;
  const lower::LoopProgram& program_;
  const graph::Graph& graph_;
  std::vector<int32_t> buffer_register_, value_register_;
  std::vector<Geometry> geometry_;
  std::unordered_map<ValueId, int32_t> output_register_;
};

}  // namespace

void build_compiled(CompiledProgram::Impl& impl) { Builder(impl).run(); }

}  // namespace magneto::runtime
