// A capture's life: its start, its end, and the frames that C code calls back in between.
#include "capture/capture.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "autograd/joint.h"
#include "autograd/leftover_tasks.h"
#include "capture/calls/native_functions.h"
#include "capture/exits/rebuild.h"
#include "capture/torch/transforms.h"
#include "capture/world/modules.h"
#include "fake/dispatch_key.h"
#include "graph/aliases.h"
#include "graph/integers.h"
#include "graph/orphans.h"
#include "graph/torch_values.h"
#include "observe/times.h"
#include "python/abi/frame.h"
#include "python/abi/paused_collector.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

thread_local Capture* current_capture = nullptr;

}  // namespace

Capture* Capture::current() { return current_capture; }

void keep_forever(PyObject* object) { Py_INCREF(object); }

namespace {

PyObject* run_frame_plainly(PyThreadState* thread, Frame* frame, int throwflag) {
  return throwflag ? frame_throw(thread, frame) : frame_continue(thread, frame);
}

/// While a capture runs on this thread, frames that C code calls go to it.
PyObject* capture_hook(PyThreadState* thread, Frame* frame, int throwflag) {
  if (current_capture) {
    bool handled = false;
    PyObject* result = current_capture->run_callback(thread, frame, throwflag, &handled);
    if (handled) return result;
  }
  return run_frame_plainly(thread, frame, throwflag);
}

int autocast_nesting() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

}  // namespace

/// The thread's state that interpreted code may change; put back when the capture ends, however it ends.
struct Capture::ThreadState {
  size_t transforms = transform_depth();
  bool grad_mode = at::GradMode::is_enabled();
  bool forward_grad_mode = c10::AutogradState::get_tls_state().get_fw_grad_mode();
  bool autocast_cpu = at::autocast::is_autocast_enabled(at::kCPU);
  bool autocast_cuda = at::autocast::is_autocast_enabled(at::kCUDA);
  at::ScalarType cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType cuda_dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  int nesting = autocast_nesting();
  bool deferring = at::SavedTensorDefaultHooks::set_tracing(true);  // what packs saved tensors sees the real ones
  std::optional<std::string> no_saved_hooks = at::SavedTensorDefaultHooks::get_disabled_error_message();
  at::impl::PythonTorchFunctionTLS torch_function = at::impl::PythonTorchFunctionTLS::get_state();
  std::vector<PyObject*> modes = guards::function_modes();  // alive in torch_function
  const PausedCollector paused;
  Ref handled = Ref::steal(PyErr_GetHandledException());
  FrameHook hook{capture_hook};

  ~ThreadState() {
    leave_transforms(transforms);
    if (!no_saved_hooks) at::SavedTensorDefaultHooks::enable();
    at::GradMode::set_enabled(grad_mode);
    c10::AutogradState::get_tls_state().set_fw_grad_mode(forward_grad_mode);
    if (at::autocast::is_autocast_enabled(at::kCPU) != autocast_cpu)
      at::autocast::set_autocast_enabled(at::kCPU, autocast_cpu);
    if (at::autocast::is_autocast_enabled(at::kCUDA) != autocast_cuda)
      at::autocast::set_autocast_enabled(at::kCUDA, autocast_cuda);
    at::autocast::set_autocast_dtype(at::kCPU, cpu_dtype);
    at::autocast::set_autocast_dtype(at::kCUDA, cuda_dtype);
    at::autocast::set_autocast_cache_enabled(autocast_cache);
    for (int now = autocast_nesting(); now < nesting; ++now) at::autocast::increment_nesting();
    for (int now = autocast_nesting(); now > nesting; --now) at::autocast::decrement_nesting();
    at::impl::PythonTorchFunctionTLS::set_state(torch_function);
    PyErr_SetHandledException(handled.get());
    at::SavedTensorDefaultHooks::set_tracing(deferring);
    hook.end();
  }
};

namespace {

/// Fresh objects of a capture that refer to each other in a circle hold fakes until they are collected. Nothing was
/// collected meanwhile, so that they are in the youngest generation.
void collect_cycles() {
  SavedError saved;
  static constinit Imported collect("gc", "collect");
  Ref youngest = Ref::steal(PyLong_FromLong(0));
  Ref count = Ref::steal(PyObject_CallOneArg(collect.get(), youngest.get()));
  PyErr_Clear();
}

}  // namespace

const std::vector<PyObject*>& Capture::modes_at_start() const { return thread_state_->modes; }

PyObject* Capture::start_handled() const { return thread_state_->handled.get(); }

Capture::Capture(const Start& start, const KnownBreaks& known_breaks, SpecializationFeedback& memory)
    : guards(sources), known_breaks_(known_breaks), memory_(memory), resumed_(start.prologue_done) {
  thread_state_ = std::make_unique<ThreadState>();
  handled_at_start_ = checked(PyBaseObject_Type.tp_alloc(&PyBaseObject_Type, 0));
  start_state_ = guards::GlobalState::read();
  guards.set_global_state(start_state_);
  session = std::make_unique<fake::Session>(graph);
  session->assume_floats([this](const at::Tensor& holder) { return assume_float(holder); });
  alive_fakes_ = session->alive_count();
  session->examples = memory.examples;
  session->place = [this] { return user_line(); };
  root_.info = start.info;
  root_.function = Ref::borrow(start.function);
  root_.function_source = sources.function();
  guards.function(root_.function_source, start.function);
  root_.globals = PyFunction_GET_GLOBALS(start.function);
  root_.builtins = reinterpret_cast<PyFunctionObject*>(start.function)->func_builtins;
  root_.storage.assign(start.info->nlocals + start.info->stack_size + 1, nullptr);
  root_.slots = root_.storage.data();
  root_.raw.assign(start.info->nlocals, 1);
  for (int32_t i = 0; i < start.info->nlocals + start.depth; ++i) root_.slots[i] = Py_XNewRef(start.slots[i]);
  root_.pc = start.instr;
  handled_from_start_ = start.info->handler_of(start.instr) != nullptr;
  root_.depth = start.depth;
  start_depth_ = start.depth;
  outside_[start.function] = root_.function_source;
  if (start.prologue_done) {
    constexpr uint8_t kCellOrFree = 0x40 | 0x80;  // CO_FAST_CELL, CO_FAST_FREE
    for (int32_t i = 0; i < start.info->nlocals; ++i) {
      PyObject* cell = root_.slots[i];
      if (!(start.info->kinds[i] & kCellOrFree) || !cell || !PyCell_Check(cell)) continue;
      PyObject* name = PyTuple_GET_ITEM(start.info->localsplus_names.get(), i);
      cell_contents_[cell] = i >= start.info->first_free
                                 ? sources.closure(root_.function_source, i - start.info->first_free, name)
                                 : sources.cell(sources.local(i, name));
    }
  } else {
    register_closure(start.function, root_.function_source);
  }
  current_capture = this;
}

Capture::~Capture() {
  close_generators();
  current_capture = nullptr;
  // Fakes die before the session that made them.
  for (PyObject*& slot : root_.storage) Py_CLEAR(slot);
  fake_of_.clear();
  shadows_.clear();
  tails_.clear();
  number_inputs_.clear();
  overlays_.clear();
  kept_.clear();
  sticky_ = nullptr;
  thread_state_.reset();
  if (*alive_fakes_ > 0) autograd::drop_leftover_tasks();
  if (*alive_fakes_ > 0) collect_cycles();
  session.reset();
}

Trace Capture::run() {
  Ref value;
  try {
    for (int32_t i = 0; i < start_depth_; ++i) {  // what is on the stack of a frame entered half way
      if (PyObject* raw = root_.stack()[i]) {
        frame = &root_;
        Ref wrapped = wrap(raw, sources.stack(i));
        frame = nullptr;
        Py_SETREF(root_.stack()[i], wrapped.release());
      }
      root_.raw_stack = i + 1;
    }
    reading_start_ = false;
    value = run_frame(root_);
  } catch (const SideExit&) {
  }
  if (const BreakSite* entry = entry_of_dual_level()) throw restart_before(*entry, "it ends in forward-mode AD");
  const bool is_open = transform_depth() > thread_state_->transforms;
  if (is_open) abandon(BreakReason::OpaqueCall, "the segment ends where a transform of torch.func is active");
  return finish(value);
}

/// Generators that are alive at the end hold fakes, and closing them would run the user's `finally` blocks: they are
/// sent back to their first instruction, which no handler covers, and closed there.
void Capture::close_generators() {
  SavedError saved;
  callbacks_allowed_ = false;
  for (const Ref& reference : generators_) {
    PyObject* generator = PyWeakref_GET_OBJECT(reference.get());
    Frame* suspended = generator == Py_None ? nullptr : generator_frame(generator);
    if (!suspended) continue;
    Ref held = Ref::borrow(generator);
    frame_set_running(suspended, decode(frame_code(suspended)), 0, frame_stack_depth(suspended));
    Ref closed = Ref::steal(PyObject_CallMethod(generator, "close", nullptr));
    if (!closed) PyErr_WriteUnraisable(generator);
  }
  generators_.clear();
}

// -- what comes from outside while a capture runs ---------------------------------------------------------------------

/// While alive, this thread runs as if there were no capture: for code that interrupts it (signal handlers).
class Capture::Suspended {
 public:
  explicit Suspended(Capture& capture) : capture_(capture), hook_(run_frame_plainly) {
    current_capture = nullptr;
    fake::include_keys(false);
    at::SavedTensorDefaultHooks::set_tracing(capture.thread_state_->deferring);
    at::GradMode::set_enabled(capture.thread_state_->grad_mode);
  }
  ~Suspended() {
    at::GradMode::set_enabled(grad_mode_);
    at::SavedTensorDefaultHooks::set_tracing(true);
    fake::include_keys(true);
    current_capture = &capture_;
  }

 private:
  Capture& capture_;
  bool grad_mode_ = at::GradMode::is_enabled();
  FrameHook hook_;
};

void Capture::handle_signals() {
  const Suspended suspended(*this);
  if (PyErr_CheckSignals() < 0) {
    // A handler raised: that reaches the program at some instruction, and it is not the program's own doing.
    interrupt_ = take_error();
    throw Interrupted{};
  }
}

void Capture::run_suspended(const std::function<void()>& run) {
  const Suspended suspended(*this);
  run();
}

void Capture::trace_instruction() {
  SavedError saved;
  run_suspended([this] { tracer->instruction(*frame); });
}

void Capture::note_guard_places() {
  // Many guards come of one line.
  guards.note_places([this, code = Ref(), line = int32_t{-1}, place = std::string()]() mutable {
    auto* const now = frame ? reinterpret_cast<PyObject*>(frame->info->code) : nullptr;
    const int32_t line_now = frame ? frame->instr().line : -1;
    if (now != code.get() || line_now != line) {
      code = Ref::borrow(now);
      line = line_now;
      place = user_place();
    }
    return place;
  });
}

std::string Capture::user_place() const {
  if (!frame) return "";
  const PyCodeObject* code = frame->info->code;
  return std::string(PyUnicode_AsUTF8(code->co_filename)) + ":" + std::to_string(frame->instr().line) + " in " +
         PyUnicode_AsUTF8(code->co_name);
}

void Capture::check_interrupt() {
  if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) return;
  Ref raised = take_error();
  const Op op = frame->instr().op;
  if (op == Op::RAISE_VARARGS) program_interrupt_ = raised;
  if (raised.get() != program_interrupt_.get()) {
    interrupt_ = std::move(raised);
    throw Interrupted{};
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.get())), raised.get());
}

// -- ends ------------------------------------------------------------------------------------------------------------

void Capture::abandon(BreakReason reason, std::string message) {
  PyErr_Clear();
  throw Abandon{reason, std::move(message)};
}

void Capture::note_allocation_site(PyObject* object) {
  if (is_scalar(object) || is_tensor(object) || is_builtin_container(object) || PyFunction_Check(object) ||
      PyMethod_Check(object) || is_outside(object)) {
    return;
  }
  // The object is not kept, its end may be noticed: an address used again leads to an early end of the segment at
  // worst.
  allocation_sites_[object] = {frame->info->code, frame->pc};
}

Restart Capture::restart_before(const BreakSite& site, std::string reason) {
  restart_ = {site, std::move(reason)};
  return {};
}

PyObject* Capture::interrupt_c_code(std::exception_ptr thrown) {
  sticky_ = std::move(thrown);
  PyErr_SetString(PyExc_RuntimeError, "the capture was interrupted");
  return nullptr;
}

/// An object that can't be made anew is alive at the end: the segment is captured again, to end in front of the
/// instruction that made it, so that the program makes it for real. What C code made (a group of itertools.groupby) was
/// born with what it refers to.
void Capture::restart_before_allocation(const Abandon& abandon) {
  if (!abandon.object) return;
  auto born = allocation_sites_.find(abandon.object);
  if (born == allocation_sites_.end() && Py_TYPE(abandon.object)->tp_traverse) {
    for (PyObject* parent : referents(abandon.object)) {
      if (born = allocation_sites_.find(parent); born != allocation_sites_.end()) break;
    }
  }
  if (born == allocation_sites_.end() || known_breaks_.count(born->second)) return;
  throw restart_before(born->second, abandon.message);
}

void Capture::side_exit(BreakReason reason, std::string message) {
  check_sticky();
  PyErr_Clear();
  const bool needs_data = reason == BreakReason::DataDependentValue || reason == BreakReason::DataDependentBranch;
  if (!memory_.plain_sizes && (of_torch_ > 0 || (needs_data && makes_tensors_of_sizes_))) {
    memory_.plain_sizes = true;
    throw Retry{};
  }
  if (!frame || backwards_run_) abandon(reason, std::move(message));
  if (const BreakSite* entry = entry_of_dual_level()) throw restart_before(*entry, "in forward-mode AD, " + message);
  // Frames that can't be cut here: the segment ends in front of the outermost call that led into them.
  const InterpFrame* cut = nullptr;
  std::string inside;
  for (const InterpFrame* f = frame; f; f = f->caller) {
    if (f == called_back_from_) cut = f;
    if (f->callback || (f->caller && !f->caller->result_is_pushed)) {
      cut = f->caller;
      inside = f->callback ? "" : callable_name(f->function.get()) + ", which runs as a whole, ";
    }
  }
  if (cut) {
    if (inside.empty()) inside = "a Python function that C code calls from here, ";
    throw restart_before(*cut, "in " + inside + std::string(break_info(reason).name) + ": " + message);
  }
  exit_ = std::make_unique<runtime::Exit>();
  exit_->reason = reason;
  exit_->message = std::move(message);
  plan_ = std::make_unique<runtime::Plan>();
  rebuilder_ = std::make_unique<Rebuilder>(*this, *plan_);
  std::vector<InterpFrame*> frames;
  for (InterpFrame* f = frame; f; f = f->caller) frames.insert(frames.begin(), f);
  try {
    for (InterpFrame* f : frames) exit_->frames.push_back(rebuilder_->frame_state(*f, f == frame));
  } catch (Abandon& abandon) {
    restart_before_allocation(abandon);
    abandon.message += "; it ends in " + std::string(PyUnicode_AsUTF8(frame->info->code->co_qualname)) + ", line " +
                       std::to_string(frame->instr().line) + ", because of " + break_info(reason).name + ": " +
                       exit_->message;
    throw;
  }
  rebuilder_->handled_exception();
  throw SideExit{};
}

Trace Capture::finish(const Ref& value) {
  Trace trace;
  runtime::StageTime plan_time("compile.capture.plan");
  try {
    if (!plan_) {
      plan_ = std::make_unique<runtime::Plan>();
      rebuilder_ = std::make_unique<Rebuilder>(*this, *plan_);
      plan_->return_register = rebuilder_->build(value.get());
      rebuilder_->handled_exception();
    }
    rebuilder_->journal();
  } catch (const Abandon& abandon) {
    restart_before_allocation(abandon);
    throw;
  }
  rebuilder_->set_handled_exception();
  guards::GlobalState end = guards::GlobalState::read();
  if (rebuilder_->function_modes(thread_state_->modes, guards::function_modes())) {
    end.torch_function_modes = start_state_.torch_function_modes;
    end.torch_function_stack = start_state_.torch_function_stack;
  }
  rebuilder_->modes(start_state_, end, autocast_nesting() - thread_state_->nesting);
  rebuilder_->deferred_calls();
  flush_checks();
  graph::adopt_orphans(graph);
  trace.needs_grad = needs_grad();
  std::optional<autograd::JointTrace> joint;
  if (trace.needs_grad && !wants_backward) trace.no_joint = "magneto.config.joint_graph is off";
  if (trace.needs_grad && wants_backward) joint = trace_backward(&trace.no_joint);
  if (tries_data_sizes && !trace.no_joint.empty() && !graph.symbols_of(graph::ValueKind::Result).empty()) {
    end_at_data_sizes();
  }
  finish_sizes();
  if (joint) trace.joint = std::make_shared<autograd::Joint>(joint->take(partition));

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
    const Input& input = inputs_.at(id);
    guards.require(input.source);
    trace.example_inputs.push_back(input.real);
  }
  for (graph::ValueId id : session->read_inputs()) {
    if (const auto input = inputs_.find(id); input != inputs_.end()) {
      guards.tensor_data(input->second.source, input->second.real.get());
    }
  }
  rebuilder_->require_sources();
  guard_distinct();
  {
    const runtime::StageTime guard_time("compile.capture.guards");
    trace.guards = std::make_unique<guards::GuardProgram>(guards, sources);
  }
  rebuilder_->resolve_slots(*trace.guards);
  for (graph::ValueId id : graph.inputs) {
    const Input& input = inputs_.at(id);
    const auto position = static_cast<int32_t>(plan_->input_slots.size());
    if (input.number) {
      plan_->number_inputs.push_back(position);
      plan_->integers.push_back(graph::integers_that_fit(graph, id));
    }
    if (input.array) plan_->array_inputs.push_back(position);
    plan_->input_slots.push_back(trace.guards->slot_of(input.source));
  }
  const auto is_half = [](const graph::Value& value) { return value.meta.dtype == c10::ScalarType::Half; };
  if (std::ranges::any_of(graph.values, is_half)) plan_->most_of_numbers = std::numeric_limits<c10::Half>::max();
  plan_->undo = graph::undo_of(graph, last_guarded_);
  // What is written may share its memory with an operand, but not with a number.
  std::erase_if(plan_->undo.written, [&](const graph::Undo::Written& written) {
    return std::ranges::find(plan_->number_inputs, static_cast<int32_t>(written.input)) != plan_->number_inputs.end();
  });
  plan_->exclusive = makes_generators_;
  plan_->output_count = static_cast<int32_t>(graph.outputs.size());
  plan_->exit = std::move(exit_);
  rebuilder_.reset();
  trace.plan = std::move(plan_);
  trace.graph = std::move(graph);
  trace.counters = session->counters;
  trace.codes = std::move(codes_);
  trace.size_log = std::move(size_log_);
  trace.violation = std::move(violation_);
  return trace;
}

// -- callbacks -------------------------------------------------------------------------------------------------------

namespace {

/// A new frame that CPython makes for a signal: its arguments are the signal's number and the interrupted frame.
bool is_signal_handler(Frame* real) {
  PyCodeObject* code = frame_code(real);
  PyObject** slots = frame_localsplus(real);
  const auto is_pair = [](PyObject* number, PyObject* frame) {
    return number && frame && PyLong_CheckExact(number) && PyFrame_Check(frame);
  };
  const int count = code->co_argcount;
  if (count >= 2 && is_pair(slots[count - 2], slots[count - 1])) return true;
  if (!(code->co_flags & CO_VARARGS)) return false;
  PyObject* rest = slots[count + code->co_kwonlyargcount];
  return rest && PyTuple_CheckExact(rest) && PyTuple_GET_SIZE(rest) == 2 &&
         is_pair(PyTuple_GET_ITEM(rest, 0), PyTuple_GET_ITEM(rest, 1));
}

/// Code of PyTorch, which C code of PyTorch may call as it likes, and what it logs with.
bool is_torch_code(Frame* real) {
  const std::string_view name = module_of(frame_globals(real));
  return name == "torch" || name.starts_with("torch.") || name == "logging";
}

/// A function among the arguments of a Native function, or a method of a class or an object among them, which its
/// library calls; but for the library's own.
bool is_callback_of(std::span<PyObject* const> args, Frame* real) {
  PyObject* const function = frame_function(real);
  const bool has_self = frame_code(real)->co_argcount > 0;
  PyObject* const self = has_self ? frame_localsplus(real)[0] : nullptr;
  if (std::ranges::find(args, function) == args.end() && (!self || std::ranges::find(args, self) == args.end())) {
    return false;
  }
  if (is_native_function(function)) return false;  // it runs itself, or another one of its module
  static PyObject* const library = PySys_GetObject("stdlib_module_names");
  const std::string name(module_of(frame_globals(real)));
  if (is_torch_code(real) || name.empty()) return false;
  Ref package = Ref::steal(PyUnicode_FromString(name.substr(0, name.find('.')).c_str()));
  return package && library && PySet_Contains(library, package.get()) == 0;
}

/// The function of PyTorch whose only call of C code is that of autograd's engine.
bool runs_engine(Frame* real) {
  static constinit Imported function("torch.autograd.graph", "_engine_run_backward");
  return reinterpret_cast<PyObject*>(frame_code(real)) == PyFunction_GET_CODE(function.get());
}

}  // namespace

/// A frame of PyTorch's own code that is called while a torch call is recorded: it runs as it is, with all that it
/// calls.
PyObject* Capture::run_recorded(PyThreadState* thread, Frame* real, int throwflag) {
  const bool engine = runs_engine(real);
  const bool trusted = std::exchange(trusted_, true);
  const bool called_by_engine = std::exchange(engine_runs_, engine_runs_ || engine);
  const bool engine_ran = session->set_engine_runs(engine);
  PyObject* result = run_frame_plainly(thread, real, throwflag);
  session->set_engine_runs(engine_ran);
  engine_runs_ = called_by_engine;
  trusted_ = trusted;
  return result;
}

/// Ends a frame that will not be run.
void Capture::end_frame(PyThreadState* thread, Frame* real, const CodeInfo& info, int32_t instr, int32_t depth) {
  SavedError saved;
  frame_set(real, info, instr, depth);
  PyObject* none = frame_return(thread, real, info, Py_NewRef(Py_None));
  Py_XDECREF(none);
  PyErr_Clear();
}

/// What an object says when its last reference goes, between calls of C code: a generator is closed, or a weak
/// reference's callback is called. Nothing from outside dies meanwhile: the object is the capture's own. (Objects with
/// a __del__ are not made during captures: Finalizer.)
bool Capture::is_last_word(Frame* real, int throwflag) const {
  if (!frame || recording_ || plain_) return false;
  if (throwflag) return frame_is_generator(real);
  PyCodeObject* code = frame_code(real);
  if (code->co_argcount < 1) return false;
  PyObject* last = frame_localsplus(real)[code->co_argcount - 1];
  return last && PyWeakref_Check(last) && PyWeakref_GET_OBJECT(last) == Py_None;
}

/// What is raised in an object's last words is printed, and the program goes on: that has to happen in each run.
void Capture::mute_last_word() {
  if (!sticky_ && PyErr_ExceptionMatches(PyExc_GeneratorExit)) return;
  if (!sticky_) {
    sticky_ = std::make_exception_ptr(restart_before(*frame, "an exception is raised where an object dies"));
  }
  PyErr_SetNone(PyExc_GeneratorExit);  // a generator that is closed may raise it
}

namespace {

/// `__hash__`, `__len__`, `__index__`...: CPython wants a number of them, and nothing that stands for one.
bool is_special_method(const CodeInfo& info) {
  const char* name = PyUnicode_AsUTF8(info.code->co_name);
  return std::strncmp(name, "__", 2) == 0 && !(info.code->co_flags & CO_GENERATOR);
}

}  // namespace

/// C code goes straight to a special method in the class of its first argument: what it has found there is guarded.
/// Null: the function is not from there.
const guards::Source* Capture::method_found_by_c(PyObject* function, PyObject* self) {
  PyTypeObject* const type = self ? Py_TYPE(self) : nullptr;
  if (!type || !is_python_class(type)) return nullptr;
  bool found = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(type_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i))), &position, &name,
                       &value)) {
      if (value != function || !PyUnicode_CheckExact(name)) continue;
      type_lookup(type, name);
      found = true;
    }
  }
  if (!found) return nullptr;
  wrap(function, sources.constant(function));
  return source_of(function);
}

/// A frame that C code calls where no call back is awaited: it runs as it is. But code of the user (an operand's
/// __radd__, an argument's __index__, a hook or the backward of a custom function) must be interpreted: the segment
/// ends in front of the call of C code.
PyObject* Capture::run_uninterpreted(PyThreadState* thread, Frame* real, int throwflag) {
  if (Ref hash = hash_of_stand_in(real)) {
    const CodeInfo& info = decode(frame_code(real));
    frame_set(real, info, frame_next_instr(real, info), frame_stack_depth(real));
    return frame_return(thread, real, info, hash.release());
  }
  if (recording_ && ((trusted_ && !engine_runs_) || throwflag || is_torch_code(real))) {
    return run_recorded(thread, real, throwflag);
  }
  if (recording_ || is_callback_of(native_args_, real)) {
    const CodeInfo& info = decode(frame_code(real));
    end_frame(thread, real, info, frame_next_instr(real, info), frame_stack_depth(real));
    const std::string caller = recording_ ? "a torch function" : "a library function";
    return interrupt_c_code(
        std::make_exception_ptr(restart_before(*frame, caller + " calls " + PyUnicode_AsUTF8(info.code->co_qualname))));
  }
  const bool plain = std::exchange(plain_, true);
  PyObject* result = run_frame_plainly(thread, real, throwflag);
  plain_ = plain;
  return result;
}

PyObject* Capture::run_callback(PyThreadState* thread, Frame* real, int throwflag, bool* handled) {
  if (!throwflag && is_signal_handler(real)) {
    *handled = true;
    const Suspended suspended(*this);
    return run_frame_plainly(thread, real, throwflag);
  }
  if (sticky_) return nullptr;
  const bool last_word = !callbacks_allowed_ && is_last_word(real, throwflag);
  if ((!callbacks_allowed_ && !last_word) || is_operator_backward(real)) {
    *handled = true;
    const bool callbacks = std::exchange(callbacks_allowed_, false);
    PyObject* result = run_uninterpreted(thread, real, throwflag);
    callbacks_allowed_ = callbacks;
    return result;
  }
  const CodeInfo& info = decode(frame_code(real));
  const int flags = info.code->co_flags;
  PyObject* function = frame_function(real);
  if ((flags & (CO_COROUTINE | CO_ASYNC_GENERATOR)) || ((flags & CO_GENERATOR) && !frame_is_generator(real))) {
    register_closure(function, source_of(function));
    return nullptr;  // CPython makes the generator object; its body comes back here
  }
  *handled = true;
  InterpFrame f;
  f.info = &info;
  f.function = Ref::borrow(function);
  f.function_source = source_of(function);
  f.globals = frame_globals(real);
  f.builtins = frame_builtins(real);
  f.real = real;
  f.slots = frame_localsplus(real);
  f.depth = frame_stack_depth(real);
  f.pc = frame_next_instr(real, info);
  f.callback = true;
  const bool callbacks = std::exchange(callbacks_allowed_, false);
  // A loop over a generator is no C code between the two.
  const bool direct = frame && frame_is_generator(real) && frame->depth > 0 && PyGen_CheckExact(frame->top()) &&
                      generator_frame(frame->top()) == nullptr && frame->instr().op == Op::FOR_ITER;
  const InterpFrame* outer = called_back_from_;
  if (!outer) called_back_from_ = frame;
  Ref value;
  bool raised = false;
  try {
    if (!f.function_source && f.pc <= info.entry && !throwflag && info.code->co_argcount > 0) {
      f.function_source = method_found_by_c(function, f.slots[0]);
    }
    if (f.function_source) guards.function(f.function_source, function);
    register_closure(function, f.function_source);
    if (f.pc <= info.entry && !throwflag) wrap_defaults(f);
    if (throwflag) {
      f.pc = std::max(f.pc - 1, 0);
      if (!info.handler_of(f.pc)) {
        frame_set_running(real, info, f.pc, f.depth);
        callbacks_allowed_ = callbacks;
        called_back_from_ = outer;
        return frame_raise(thread, real);
      }
      value = run_frame(f, /*raise_first=*/true);
    } else {
      value = run_frame(f);
    }
    if (!direct && !last_word) value = returned_to_c(std::move(value), frame_is_generator(real));
    if (is_special_method(info)) value = known(value.get());
  } catch (const PythonError&) {
    raised = true;
  } catch (...) {
    interrupt_c_code(std::current_exception());
    raised = true;
  }
  callbacks_allowed_ = callbacks;
  called_back_from_ = outer;
  if (raised) {
    if (last_word) mute_last_word();
    end_frame(thread, real, info, f.pc, f.depth);
    if (!last_word || throwflag) return nullptr;
    PyErr_Clear();
    return Py_NewRef(Py_None);
  }
  frame_set(real, info, f.pc, f.depth);
  if (info.instrs[f.pc].op == Op::YIELD_VALUE) return frame_yield(thread, real, info, f.pc, value.release());
  return frame_return(thread, real, info, value.release());
}

}  // namespace magneto::capture
