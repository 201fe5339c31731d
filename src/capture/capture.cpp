// A capture's life: its start, its end, and the frames that C code calls back in between.
#include "capture/capture.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "autograd/joint.h"
#include "autograd/leftover_tasks.h"
#include "capture/calls/callbacks.h"
#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/native_mode.h"
#include "capture/exits/exit_builder.h"
#include "capture/exits/half_done.h"
#include "capture/exits/rebuild.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/strings.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/data_parallel.h"
#include "capture/torch/gradients.h"
#include "capture/torch/mask_loops.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "fake/session.h"
#include "graph/aliases.h"
#include "graph/integers.h"
#include "graph/orphans.h"
#include "graph/torch_values.h"
#include "observe/times.h"
#include "python/abi/frame.h"
#include "python/abi/paused_collector.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "runtime/plan/inference_mode.h"
#include "support/autocast_depth.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

thread_local Capture* current_capture = nullptr;

}  // namespace

Capture* Capture::current() { return current_capture; }

void keep_forever(PyObject* object) { Py_INCREF(object); }

namespace {

/// While a capture runs on this thread, frames that C code calls go to it.
PyObject* capture_hook(PyThreadState* thread, Frame* frame, int throwflag) {
  if (current_capture) {
    bool handled = false;
    PyObject* result = current_capture->callbacks.run(thread, frame, throwflag, &handled);
    if (handled) return result;
  }
  return run_frame_plainly(thread, frame, throwflag);
}

}  // namespace

/// The thread's state that interpreted code may change; put back when the capture ends, however it ends.
struct Capture::ThreadState {
  size_t transforms = transform_depth();
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  c10::AutogradState autograd = c10::AutogradState::get_tls_state();
  bool autocast_cpu = at::autocast::is_autocast_enabled(at::kCPU);
  bool autocast_cuda = at::autocast::is_autocast_enabled(at::kCUDA);
  at::ScalarType cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType cuda_dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  int nesting = autocast_depth();
  at::impl::SavedTensorDefaultHooksTLS saved_hooks = at::SavedTensorDefaultHooks::get_tls_state();
  at::impl::PythonTorchFunctionTLS torch_function = at::impl::PythonTorchFunctionTLS::get_state();
  std::vector<PyObject*> modes = guards::function_modes();  // alive in torch_function
  const PausedCollector paused;
  Ref handled = Ref::steal(PyErr_GetHandledException());
  FrameHook hook{capture_hook};

  // What packs saved tensors, and was turned on outside, sees the real ones.
  ThreadState() { at::SavedTensorDefaultHooks::set_tracing(true); }
  ~ThreadState() {
    leave_transforms(transforms);
    if (at::InferenceMode::is_enabled() != autograd.get_inference_mode()) runtime::set_inference_mode(false);
    at::GradMode::set_enabled(autograd.get_grad_mode());
    c10::AutogradState::get_tls_state().set_fw_grad_mode(autograd.get_fw_grad_mode());
    if (at::autocast::is_autocast_enabled(at::kCPU) != autocast_cpu)
      at::autocast::set_autocast_enabled(at::kCPU, autocast_cpu);
    if (at::autocast::is_autocast_enabled(at::kCUDA) != autocast_cuda)
      at::autocast::set_autocast_enabled(at::kCUDA, autocast_cuda);
    at::autocast::set_autocast_dtype(at::kCPU, cpu_dtype);
    at::autocast::set_autocast_dtype(at::kCUDA, cuda_dtype);
    at::autocast::set_autocast_cache_enabled(autocast_cache);
    if (nesting == 0) at::autocast::clear_cache();  // of what PyTorch has kept of stand-ins
    for (int now = autocast_depth(); now < nesting; ++now) at::autocast::increment_nesting();
    for (int now = autocast_depth(); now > nesting; --now) at::autocast::decrement_nesting();
    at::impl::PythonTorchFunctionTLS::set_state(torch_function);
    PyErr_SetHandledException(handled.get());
    at::SavedTensorDefaultHooks::set_tls_state(saved_hooks);
    hook.end();
  }
};

namespace {

/// A region that the segment has entered and not left, and in which none ends.
struct OpenRegion {
  const BreakSite* entry;
  std::string name;
};

std::optional<OpenRegion> open_region(const Capture& c) {
  if (const BreakSite* entry = entry_of_dual_level()) return OpenRegion{entry, "forward-mode AD"};
  if (const BreakSite* entry = c.torch.inference.open_entry()) return OpenRegion{entry, "inference mode"};
  if (const BreakSite* entry = c.torch.dispatch_modes.open_entry()) return OpenRegion{entry, "a dispatch mode"};
  return std::nullopt;
}

/// Fresh objects of a capture that refer to each other in a circle hold fakes until they are collected. Nothing was
/// collected meanwhile, so that they are in the youngest generation. The program's garbage goes with them, and what it
/// runs at its end: that is none of the capture's.
void collect_cycles() {
  const SavedError saved;
  const fake::Session::Aside aside;
  static constinit Imported collect("gc", "collect");
  Ref youngest = Ref::steal(PyLong_FromLong(0));
  Ref count = Ref::steal(PyObject_CallOneArg(collect.get(), youngest.get()));
  PyErr_Clear();
}

std::shared_ptr<autograd::Joint> partitioned(autograd::JointTrace& trace, const autograd::PartitionWay& way) {
  const runtime::StageTime time("compile.capture.partition");
  return std::make_shared<autograd::Joint>(trace.take(way));
}

}  // namespace

const std::vector<PyObject*>& Capture::modes_at_start() const { return thread_state_->modes; }

PyObject* Capture::start_handled() const { return thread_state_->handled.get(); }

/// In the order in which they are made; they die before the graph and the guards.
struct Capture::Storage {
  explicit Storage(Capture& c)
      : world(c),
        containers(c),
        overlays(c),
        attributes(c),
        tensors(c),
        symbols(c),
        numbers(c),
        strings(c),
        numpy(c),
        calls(c),
        callbacks(c),
        protocol(c),
        deferred(c),
        torch(c),
        gradients(c),
        mask_loops(c),
        frames(c),
        errors(c),
        exits(c) {}

  World world;
  Containers containers;
  Overlays overlays;
  Attributes attributes;
  TensorMap tensors;
  Symbols symbols;
  Numbers numbers;
  Strings strings;
  NumpyCapture numpy;
  NativeMode mode;
  Calls calls;
  Callbacks callbacks;
  ObjectProtocol protocol;
  DeferredCalls deferred;
  TorchCalls torch;
  Gradients gradients;
  MaskLoops mask_loops;
  Frames frames;
  Errors errors;
  ExitBuilder exits;

  Parts parts() {
    return {world, containers, overlays, attributes, tensors, symbols,   numbers,    strings, numpy,  mode,
            calls, callbacks,  protocol, deferred,   torch,   gradients, mask_loops, frames,  errors, exits};
  }
};

Capture::Capture(const Start& start, const KnownBreaks& known_breaks, SpecializationFeedback& feedback)
    : Capture(std::make_unique<Storage>(*this), start, known_breaks, feedback) {}

Capture::Capture(std::unique_ptr<Storage> storage, const Start& start, const KnownBreaks& known_breaks,
                 SpecializationFeedback& feedback)
    : Parts(storage->parts()),
      guards(sources),
      known_breaks(known_breaks),
      feedback(feedback),
      resumed(start.prologue_done),
      storage_(std::move(storage)),
      thread_state_(std::make_unique<ThreadState>()) {
  errors.handled_at_start = checked(PyBaseObject_Type.tp_alloc(&PyBaseObject_Type, 0));
  start_state = guards::GlobalState::read();
  guards.set_global_state(start_state);
  session = std::make_unique<fake::Session>(graph);
  session->assume_floats([this](const at::Tensor& holder) { return numbers.assume_float(holder); });
  alive_fakes_ = session->alive_count();
  session->examples = feedback.examples;
  session->place = [this] { return frames.user_line(); };
  start_at(start);
  current_capture = this;
}

void Capture::start_at(const Start& start) {
  frames.root.info = start.info;
  frames.root.function = Ref::borrow(start.function);
  frames.root.function_source = sources.function();
  guards.function(frames.root.function_source, start.function);
  frames.root.globals = PyFunction_GET_GLOBALS(start.function);
  frames.root.builtins = reinterpret_cast<PyFunctionObject*>(start.function)->func_builtins;
  frames.root.storage.assign(start.info->nlocals + start.info->stack_size + 1, nullptr);
  frames.root.slots = frames.root.storage.data();
  frames.root.raw.assign(start.info->nlocals, 1);
  for (int32_t i = 0; i < start.info->nlocals + start.depth; ++i) frames.root.slots[i] = Py_XNewRef(start.slots[i]);
  frames.root.pc = start.instr;
  torch.handled_from_start = start.info->handler_of(start.instr) != nullptr;
  frames.root.depth = start.depth;
  frames.start_depth = start.depth;
  world.outside[start.function] = frames.root.function_source;
  if (start.prologue_done) {
    for (int32_t i = 0; i < start.info->nlocals; ++i) {
      PyObject* cell = frames.root.slots[i];
      if (!(start.info->kinds[i] & kCellOrFree) || !cell || !PyCell_Check(cell)) continue;
      PyObject* name = PyTuple_GET_ITEM(start.info->localsplus_names.get(), i);
      world.cell_contents[cell] = i >= start.info->first_free
                                      ? sources.closure(frames.root.function_source, i - start.info->first_free, name)
                                      : sources.cell(sources.local(i, name));
    }
  } else {
    world.register_closure(start.function, frames.root.function_source);
  }
}

Capture::~Capture() {
  torch.switches.put_back();
  callbacks.close_generators();
  current_capture = nullptr;
  // Fakes die before the session that made them.
  for (PyObject*& slot : frames.root.storage) Py_CLEAR(slot);
  tensors.fake_of.clear();
  tensors.of_classes.clear();
  tensors.nested_ints.clear();
  containers.shadows.clear();
  containers.tails.clear();
  tensors.number_inputs.clear();
  overlays.all.clear();
  world.kept.clear();
  errors.sticky = nullptr;
  thread_state_.reset();
  if (*alive_fakes_ > 0) autograd::drop_leftover_tasks();
  if (*alive_fakes_ > 0) calls.classes.forget();
  if (*alive_fakes_ > 0) collect_cycles();
  session.reset();
}

Trace Capture::run() {
  Ref value;
  try {
    for (int32_t i = 0; i < frames.start_depth; ++i) {  // what is on the stack of a frame entered half way
      if (PyObject* raw = frames.root.stack()[i]) {
        frame = &frames.root;
        Ref wrapped = world.wrap(raw, sources.stack(i));
        frame = nullptr;
        Py_SETREF(frames.root.stack()[i], wrapped.release());
      }
      frames.root.raw_stack = i + 1;
    }
    frames.reading_start = false;
    value = frames.run(frames.root);
  } catch (const SideExit&) {  // NOLINT(bugprone-empty-catch): the segment ends there
  } catch (const PythonError&) {
    mask_loops.require_none();
    throw;
  } catch (const Abandon&) {
    mask_loops.require_none();
    throw;
  }
  mask_loops.require_none();
  if (const auto region = open_region(*this)) throw exits.restart_before(*region->entry, "it ends in " + region->name);
  const bool is_open = transform_depth() > thread_state_->transforms;
  if (is_open) abandon(BreakReason::OpaqueCall, "the segment ends where a transform of torch.func is active");
  // A run forgets what was cast in the one region at its end, and would forget what was cast in the other with it.
  const fake::AutocastCasts& casts = session->impl().casts;
  if (casts.has_left_outer() && casts.has_open()) {
    throw exits.restart_before(*torch.cast_in_next_region, "it ends in a second region of autocast");
  }
  return finish(value);
}

// -- what comes from outside while a capture runs ---------------------------------------------------------------------

/// While alive, this thread runs as if there were no capture: for code that interrupts it (signal handlers). It may
/// capture itself.
class Capture::Suspended {
 public:
  explicit Suspended(Capture& capture)
      : capture_(capture), keys_(capture.thread_state_->keys), hook_(run_frame_plainly) {
    const ThreadState& before = *capture.thread_state_;
    capture.torch.switches.put_back();
    current_capture = nullptr;
    if (before.transforms == 0) std::swap(transforms_, at::functorch::functorchTLSAccessor());
    at::impl::PythonTorchFunctionTLS::set_state(before.torch_function);
    at::SavedTensorDefaultHooks::set_tls_state(before.saved_hooks);
    c10::AutogradState::set_tls_state(before.autograd);
  }
  ~Suspended() {
    c10::AutogradState::set_tls_state(autograd_);
    at::SavedTensorDefaultHooks::set_tls_state(saved_hooks_);
    at::impl::PythonTorchFunctionTLS::set_state(torch_function_);
    if (capture_.thread_state_->transforms == 0) std::swap(transforms_, at::functorch::functorchTLSAccessor());
    current_capture = &capture_;
    capture_.torch.switches.put_again();
  }

 private:
  Capture& capture_;
  const at::impl::PythonTorchFunctionTLS torch_function_ = at::impl::PythonTorchFunctionTLS::get_state();
  const c10::AutogradState autograd_ = c10::AutogradState::get_tls_state();
  const at::impl::SavedTensorDefaultHooksTLS saved_hooks_ = at::SavedTensorDefaultHooks::get_tls_state();
  /// Of torch.func, the object itself: C++ code refers to it.
  std::unique_ptr<at::functorch::FuncTorchTLSBase> transforms_;
  const c10::impl::ForceDispatchKeyGuard keys_;  // puts back, last of all, what the capture had
  const fake::Session::Aside aside_;
  const FrameHook hook_;
};

void Capture::run_suspended(const std::function<void()>& run) {
  const Suspended suspended(*this);
  run();
}

const std::vector<CodePlace>& Capture::site() const { return frames.site; }

const std::pair<BreakSite, KnownBreak>& Capture::restart() const { return exits.restart; }

Ref Capture::take_interrupt() { return std::move(errors.interrupt); }

bool Capture::has_said_compiling() const { return calls.has_said_compiling; }

void Capture::note_guard_places() {
  guards.note_places([this] { return frames.user_place(); });
}

// -- ends ------------------------------------------------------------------------------------------------------------

void Capture::abandon(BreakReason reason, std::string message) {
  PyErr_Clear();
  throw Abandon{reason, std::move(message)};
}

void Capture::side_exit(BreakReason reason, std::string message) {
  errors.check_sticky();
  PyErr_Clear();
  mask_loops.require_none(message);
  const bool needs_data = reason == BreakReason::DataDependentValue || reason == BreakReason::DataDependentBranch;
  if (!feedback.plain_sizes && (symbols.of_torch > 0 || (needs_data && symbols.makes_tensors_of_sizes))) {
    feedback.plain_sizes = true;
    throw Retry{};
  }
  if (!frame || mode.backwards_run) abandon(reason, std::move(message));
  if (const auto region = open_region(*this)) {
    throw exits.restart_before(*region->entry, "in " + region->name + ", " + break_info(reason).name + ": " + message);
  }
  // Frames that can't be cut here: the segment ends in front of the outermost call that led into them.
  const InterpFrame* cut = nullptr;
  std::string inside;
  for (const InterpFrame* f = frame; f; f = f->caller) {
    if (f == mode.called_back_from) cut = f;
    if (f->callback || (f->caller && !f->caller->result_is_pushed)) {
      cut = f->caller;
      inside = f->callback ? "" : callable_name(f->function.get()) + ", which runs as a whole, ";
    }
  }
  if (cut) {
    if (inside.empty()) inside = "a Python function that C code calls from here, ";
    throw exits.restart_before(*cut, "in " + inside + std::string(break_info(reason).name) + ": " + message);
  }
  if (is_half_done(*this)) throw exits.restart_before(*frame, std::move(message), reason);
  mask_loops.require_known(frame);
  exits.exit = std::make_unique<runtime::Exit>();
  exits.exit->reason = reason;
  exits.exit->message = std::move(message);
  exits.plan = std::make_unique<runtime::Plan>();
  exits.rebuilder = std::make_unique<Rebuilder>(*this, *exits.plan);
  std::vector<InterpFrame*> frames;
  for (InterpFrame* f = frame; f; f = f->caller) frames.insert(frames.begin(), f);
  try {
    for (InterpFrame* f : frames) exits.exit->frames.push_back(exits.rebuilder->frame_state(*f, f == frame));
  } catch (Abandon& abandon) {
    exits.restart_before_allocation(abandon);
    abandon.message += "; it ends in " + std::string(PyUnicode_AsUTF8(frame->info->code->co_qualname)) + ", line " +
                       std::to_string(frame->instr().line) + ", because of " + break_info(reason).name + ": " +
                       exits.exit->message;
    throw;
  }
  exits.rebuilder->handled_exception();
  throw SideExit{};
}

Trace Capture::finish(const Ref& value) {
  Trace trace;
  runtime::StageTime plan_time("compile.capture.plan");
  try {
    if (!exits.plan) {
      exits.plan = std::make_unique<runtime::Plan>();
      exits.rebuilder = std::make_unique<Rebuilder>(*this, *exits.plan);
      exits.plan->return_register = exits.rebuilder->build(value.get());
      exits.rebuilder->handled_exception();
    }
    exits.rebuilder->journal();
  } catch (const Abandon& abandon) {
    exits.restart_before_allocation(abandon);
    throw;
  }
  exits.rebuilder->set_handled_exception();
  torch.switches.leave();
  guards::GlobalState end = guards::GlobalState::read();
  if (exits.rebuilder->function_modes(thread_state_->modes, guards::function_modes())) {
    end.torch_function_modes = start_state.torch_function_modes;
    end.torch_function_stack = start_state.torch_function_stack;
  }
  exits.rebuilder->modes(start_state, end, autocast_depth() - thread_state_->nesting);
  exits.rebuilder->deferred_calls();
  exits.rebuilder->gradient_hooks();
  symbols.flush_checks();
  graph::adopt_orphans(graph);
  trace.needs_grad = gradients.needs_grad();
  std::optional<autograd::JointTrace> joint;
  if (trace.needs_grad && !options.wants_backward) trace.no_joint = "magneto.config.joint_graph is off";
  if (trace.needs_grad && options.wants_backward) joint = gradients.trace_backward(&trace.no_joint);
  if (options.tries_data_sizes && !trace.no_joint.empty() && !graph.symbols_of(graph::ValueKind::Result).empty()) {
    symbols.end_at_data_sizes();
  }
  symbols.finish_sizes();
  if (joint) trace.joint = partitioned(*joint, options.partition);
  if (joint) cut_at_buckets(*this, *trace.joint);

  // Inputs that nothing computes with are guarded, but are no inputs of the graph.
  std::vector<uint8_t> used(graph.values.size(), 0);
  auto use = [&](graph::ValueId id) {
    if (id != graph::kNoValue) used[id] = 1;
  };
  for (const graph::AtenNode& node : graph.aten_nodes) graph::for_each_operand(node, use);
  for (graph::ValueId id : graph.outputs) use(id);
  for (const graph::SymbolBinding& symbol : graph.symbols) use(symbol.value);
  for (const graph::TorchNode& node : graph.torch_nodes) {  // `x.view_as(y)` reads no data of y, but is called with it
    for (const graph::PyArg& arg : node.args) graph::for_each_value(arg, use);
    for (const auto& [name, arg] : node.kwargs) graph::for_each_value(arg, use);
  }
  if (trace.joint) autograd::for_each_input(*trace.joint, use);  // a custom function's backward may read others
  std::erase_if(graph.inputs, [&](graph::ValueId id) { return !used[id]; });
  for (graph::ValueId id : graph.inputs) {
    const TensorInput& input = tensors.inputs.at(id);
    guards.require(input.source);
    trace.example_inputs.push_back(input.real);
  }
  for (graph::ValueId id : session->read_inputs()) {
    if (const auto input = tensors.inputs.find(id); input != tensors.inputs.end()) {
      guards.tensor_data(input->second.source, input->second.real.get());
    }
  }
  exits.rebuilder->require_sources();
  world.guard_distinct();
  {
    const runtime::StageTime guard_time("compile.capture.guards");
    trace.guards = std::make_unique<guards::GuardProgram>(guards, sources);
  }
  exits.rebuilder->resolve_slots(*trace.guards);
  for (graph::ValueId id : graph.inputs) {
    const TensorInput& input = tensors.inputs.at(id);
    const auto position = static_cast<int32_t>(exits.plan->input_slots.size());
    if (input.number) {
      exits.plan->number_inputs.push_back(position);
      exits.plan->integers.push_back(graph::integers_that_fit(graph, id));
    }
    if (input.array) exits.plan->array_inputs.push_back(position);
    exits.plan->input_slots.push_back(trace.guards->slot_of(input.source));
  }
  const auto is_half = [](const graph::Value& value) { return value.meta.dtype == c10::ScalarType::Half; };
  if (std::ranges::any_of(graph.values, is_half)) exits.plan->most_of_numbers = std::numeric_limits<c10::Half>::max();
  exits.plan->undo = graph::undo_of(graph, torch.last_guarded);
  // What is written may share its memory with an operand, but not with a number.
  std::erase_if(exits.plan->undo.written, [&](const graph::Undo::Written& written) {
    return std::ranges::find(exits.plan->number_inputs, static_cast<int32_t>(written.input)) !=
           exits.plan->number_inputs.end();
  });
  exits.plan->exclusive = torch.makes_generators;
  exits.plan->output_count = static_cast<int32_t>(graph.outputs.size());
  exits.plan->exit = std::move(exits.exit);
  exits.rebuilder.reset();
  trace.plan = std::move(exits.plan);
  trace.graph = std::move(graph);
  trace.counters = session->counters;
  trace.codes = std::move(frames.codes);
  trace.size_log = std::move(symbols.size_log);
  trace.violation = std::move(symbols.violation);
  trace.assumptions = std::move(assumptions);
  return trace;
}

}  // namespace magneto::capture
