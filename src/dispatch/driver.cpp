// A plan that ends in a side exit leaves its state in registers. The driver makes the user's frame for it: it calls the
// function for real, and the eval hook takes the new frame, fills it with that state, runs the instruction that could
// not be captured, and looks for the next segment; so it goes on, in the same frame, to the function's end. Frames of
// inlined callees are made the same way, called by the frame around them. Whatever we do not want to run is left to
// CPython, in the middle of the function.
#include "dispatch/driver.h"

#include <frameobject.h>

#include "dispatch/block.h"
#include "dispatch/eager.h"
#include "dispatch/rerun.h"
#include "dispatch/step.h"
#include "observe/profiler_range.h"
#include "observe/stats.h"
#include "python/abi/c_stack.h"
#include "python/abi/frame.h"
#include "python/bind.h"

namespace magneto::dispatch {

namespace {

/// A frame about to be made: its state, and the registers that hold it.
struct Resume {
  Context* context;
  const runtime::Exit* exit;
  runtime::Registers* registers;
  size_t index;
  FrameHook* hook = nullptr;
};

thread_local Resume* pending = nullptr;

/// Runs the plan of a capture. In profiles it has the name that torch.compile gives such a run.
void run_entry(const Context& context, const Entry& entry, PyObject* const* slots, runtime::Registers& registers) {
  const runtime::ProfilerRange range(
      [&] { return "Torch-Compiled Region: " + entry.id + (context.name.empty() ? "" : " (" + context.name + ")"); });
  run_plan(*entry.plan, slots, registers);
}

PyObject* drive(PyThreadState* thread, Frame* frame, Context& context, const CodeInfo& info, int32_t instr,
                int32_t depth, bool step_first);
PyObject* resume(PyThreadState* thread, Frame* frame, Resume& request);

PyObject* resume_hook(PyThreadState* thread, Frame* frame, int throwflag) {
  Resume* request = pending;
  if (!request || throwflag || frame_code(frame) != request->exit->frames[request->index].info->code) {
    return throwflag ? frame_throw(thread, frame) : frame_continue(thread, frame);
  }
  pending = nullptr;
  request->hook->end();
  return resume(thread, frame, *request);
}

/// Makes the call `call` so that its new frame is filled with the exit's state.
template <typename Call>
PyObject* call_resumed(Resume& request, const Call& call) {
  if (c_stack_is_low()) {
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded");
    return nullptr;
  }
  FrameHook hook(resume_hook);
  request.hook = &hook;
  pending = &request;
  PyObject* result = call();
  if (pending == &request) pending = nullptr;  // the frame was never made
  return result;
}

/// Calls an inlined callee: what it is called with does not matter, its frame is filled by the hook.
PyObject* call_inner(Context& context, const runtime::Exit& exit, runtime::Registers& registers, size_t index) {
  Resume request{&context, &exit, &registers, index};
  return call_resumed(request, [&] { return call_for_frame(registers.get(exit.frames[index].function)); });
}

/// Puts the state of one frame of an exit into a real frame; gives the stack's depth.
int32_t fill(Frame* frame, const CodeInfo& info, const runtime::FrameState& state, const runtime::Registers& registers,
             int32_t old_depth) {
  PyObject** slots = frame_localsplus(frame);
  std::vector<PyObject*> old(slots, slots + info.nlocals + old_depth);
  PyObject* closure = PyFunction_GET_CLOSURE(frame_function(frame));
  auto value = [&](int32_t reg) { return reg < 0 ? nullptr : Py_XNewRef(registers.get(reg)); };
  for (int32_t i = 0; i < info.nlocals; ++i) {
    if (i >= info.first_free && closure) {
      slots[i] = Py_NewRef(PyTuple_GET_ITEM(closure, i - info.first_free));
    } else {
      slots[i] = state.locals[i] == runtime::kUnchanged ? Py_XNewRef(slots[i]) : value(state.locals[i]);
    }
  }
  const auto depth = static_cast<int32_t>(state.stack.size());
  for (int32_t i = 0; i < depth; ++i) {
    PyObject*& slot = slots[info.nlocals + i];
    slot = state.stack[i] == runtime::kUnchanged ? Py_XNewRef(slot) : value(state.stack[i]);
  }
  for (int32_t i = depth; i < old_depth; ++i) slots[info.nlocals + i] = nullptr;
  frame_set_running(frame, info, state.instr, depth);
  for (PyObject* object : old) Py_XDECREF(object);
  return depth;
}

/// With the outermost frame of an exit filled: runs the frames inside it. True: go on at *instr (`*step_first`: run
/// that instruction for real first). False: the frame has to raise the current error.
bool enter(PyThreadState* thread, Frame* frame, Context& context, const CodeInfo& info, const runtime::Exit& exit,
           runtime::Registers& registers, size_t index, int32_t* instr, int32_t* depth, bool* step_first) {
  const runtime::FrameState& state = exit.frames[index];
  *instr = state.instr;
  *step_first = index + 1 == exit.frames.size();
  if (*step_first) {
    registers.clear();  // the frames hold all values now, and drop them when the program does
    return true;
  }
  const Ref instance = state.result < 0 ? Ref() : Ref::borrow(registers.get(state.result));
  PyObject* result;
  {
    CurrentFrame current(thread, frame, true);
    result = call_inner(context, exit, registers, index + 1);
  }
  if (!result) return false;
  if (instance) Py_SETREF(result, Py_NewRef(instance.get()));
  frame_localsplus(frame)[info.nlocals + (*depth)++] = result;
  *instr = info.instrs[state.instr].next;
  return true;
}

/// When it dies is noticed: it goes to its variable at once, for a frame's variables die in their order.
bool is_heard_of(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (PyWeakref_Check(object)) return reinterpret_cast<PyWeakReference*>(object)->wr_callback != nullptr;
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_finalize;
}

PyObject* resume(PyThreadState* thread, Frame* frame, Resume& request) {
  const runtime::FrameState& state = request.exit->frames[request.index];
  const CodeInfo& info = *state.info;
  int32_t depth = fill(frame, info, state, *request.registers, 0);
  int32_t instr;
  bool step_first;
  if (!enter(thread, frame, *request.context, info, *request.exit, *request.registers, request.index, &instr, &depth,
             &step_first)) {
    frame_set_running(frame, info, state.instr, depth);
    return frame_raise(thread, frame);
  }
  return drive(thread, frame, *request.context, info, instr, depth, step_first);
}

PyObject* drive(PyThreadState* thread, Frame* frame, Context& context, const CodeInfo& info, int32_t instr,
                int32_t depth, bool step_first) {
  while (true) {
    if (step_first) {
      frame_set_running(frame, info, instr, depth);
      int32_t next = instr;
      StepResult result;
      {
        CurrentFrame current(thread, frame, locals_of(info.instrs[instr].op) == Locals::None);
        const Stepping stepping(context);
        result = step(frame, info, instr, &next, &depth);
      }
      if (result == StepResult::Raised) {
        frame_set_running(frame, info, instr, depth);
        if (!PyErr_ExceptionMatches(PyExc_Exception) || !frame_enter_handler(thread, frame, info, &instr, &depth))
          return frame_raise(thread, frame);
        step_first = false;
        continue;
      }
      if (result == StepResult::NotOurs) {
        frame_set(frame, info, instr, depth);
        return frame_continue(thread, frame);
      }
      instr = next;
      if (std::exchange(leaves_frame(), false)) {
        frame_set(frame, info, instr, depth);
        return frame_continue(thread, frame);
      }
      if (depth > 0 && info.instrs[instr].op == Op::STORE_FAST &&
          is_heard_of(frame_localsplus(frame)[info.nlocals + depth - 1])) {
        continue;
      }
    }
    // The last step may have called breakpoint(), entered a dispatch mode...
    if (const Run run = how_to_run(thread, context.eager_calls); run != Run::Compiled) {
      if (run == Run::Refused) {
        frame_set_running(frame, info, instr, depth);
        return frame_raise(thread, frame);
      }
      frame_set(frame, info, instr, depth);
      return frame_continue(thread, frame);
    }
    frame_set_running(frame, info, instr, depth);
    Segment& segment = context.segment(info, instr);
    Entry* entry;
    PyObject* const* slots = nullptr;
    {
      CurrentFrame current(thread, frame);
      entry = entry_for(context, segment, {frame_function(frame), &info, instr, frame_localsplus(frame), depth, true},
                        &slots);
    }
    if (!entry) {
      if (PyErr_Occurred()) return frame_raise(thread, frame);
      ++segment.eager_runs;
      frame_set(frame, info, instr, depth);
      return check_raised(context, segment, info, instr, frame_continue(thread, frame));
    }
    runtime::Registers registers(entry->plan->register_count);
    try {
      CurrentFrame current(thread, frame);
      const OutsideBlocks outside;
      run_entry(context, *entry, slots, registers);
    } catch (const runtime::ComputationError&) {  // undone: CPython runs the segment, and raises at the right place
      return run_again(context, segment, {&info, instr}, [&] {
        frame_set(frame, info, instr, depth);
        return frame_continue(thread, frame);
      });
    } catch (const PythonError&) {
      frame_set_running(frame, info, instr, depth);
      return frame_raise(thread, frame);
    }
    if (!entry->plan->exit) {
      PyObject* result = registers.take(entry->plan->return_register);
      return frame_return(thread, frame, info, result);
    }
    const runtime::Exit& exit = *entry->plan->exit;
    depth = fill(frame, info, exit.frames[0], registers, depth);
    if (!enter(thread, frame, context, info, exit, registers, 0, &instr, &depth, &step_first)) {
      frame_set_running(frame, info, exit.frames[0].instr, depth);
      return frame_raise(thread, frame);
    }
  }
}

}  // namespace

bool& leaves_frame() {
  static thread_local bool leaves = false;
  return leaves;
}

PyObject* run_call(Context& context, Segment& first, PyObject* function, const CodeInfo& info,
                   PyObject* const* localsplus, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  PyObject* const* slots = nullptr;
  Entry* entry = entry_for(context, first, {function, &info, 0, localsplus, 0, false}, &slots);
  if (!entry) {
    if (PyErr_Occurred()) return nullptr;
    ++first.eager_runs;
    return check_raised(context, first, info, 0, PyObject_Vectorcall(function, args, nargs, kwnames));
  }
  runtime::Registers registers(entry->plan->register_count);
  try {
    run_entry(context, *entry, slots, registers);
  } catch (const runtime::ComputationError&) {
    return run_again(context, first, {&info, 0}, [&] { return PyObject_Vectorcall(function, args, nargs, kwnames); });
  } catch (const PythonError&) {
    return nullptr;
  }
  if (!entry->plan->exit) return registers.take(entry->plan->return_register);
  Resume request{&context, entry->plan->exit.get(), &registers, 0};
  return call_resumed(request, [&] { return PyObject_Vectorcall(function, args, nargs, kwnames); });
}

PyObject* run_frame(PyThreadState* thread, Frame* frame, Context& context) {
  const CodeInfo* info = nullptr;
  Entry* entry = nullptr;
  PyObject* const* slots = nullptr;
  Segment* segment = nullptr;
  try {
    info = &decode(frame_code(frame));
    segment = &context.segment(*info, 0);
    entry = entry_for(context, *segment, {frame_function(frame), info, 0, frame_localsplus(frame), 0, false}, &slots);
  } catch (const PythonError&) {
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  const auto raise = [&] {
    if (info) frame_set_running(frame, *info, 0, 0);
    return frame_raise(thread, frame);
  };
  if (!entry) {
    if (PyErr_Occurred()) return raise();
    ++segment->eager_runs;
    return check_raised(context, *segment, *info, 0, frame_continue(thread, frame));
  }
  runtime::Registers registers(entry->plan->register_count);
  try {
    const OutsideBlocks outside;
    run_entry(context, *entry, slots, registers);
  } catch (const runtime::ComputationError&) {
    return run_again(context, *segment, {info, 0}, [&] { return frame_continue(thread, frame); });
  } catch (const PythonError&) {
    return raise();
  }
  if (!entry->plan->exit) {
    frame_set_running(frame, *info, 0, 0);
    return frame_return(thread, frame, *info, registers.take(entry->plan->return_register));
  }
  Resume request{&context, entry->plan->exit.get(), &registers, 0};
  return resume(thread, frame, request);
}

}  // namespace magneto::dispatch
