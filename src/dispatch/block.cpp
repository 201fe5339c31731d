// A block is a scope of the eval hook: each new frame that belongs to the program is run as a call of a compiled
// callable would be, with the difference that the frame is there already.
#include "dispatch/block.h"

#include <unordered_map>
#include <vector>

#include "dispatch/compiled.h"
#include "dispatch/context.h"
#include "dispatch/driver.h"
#include "dispatch/eager.h"
#include "dispatch/report.h"
#include "python/abi/frame.h"

namespace magneto::dispatch {

namespace {

PyObject* block_hook(PyThreadState* thread, Frame* frame, int throwflag);

struct Block {
  Block(PyObject* compiled, PyObject* skipped, PyObject* left_alone)
      : compiled(Ref::borrow(compiled)),
        skipped(Ref::borrow(skipped)),
        left_alone(Ref::borrow(left_alone)),
        hook(block_hook) {}

  /// Whether the code is the program's. Asked once for each code object, which is kept alive by that.
  bool takes(PyCodeObject* code) {
    const auto found = taken.find(code);
    if (found != taken.end()) return found->second.second;
    bool take = reinterpret_cast<PyObject*>(code) != left_alone.get();
    for (Py_ssize_t i = 0; take && i < PyTuple_GET_SIZE(skipped.get()); ++i) {
      PyObject* prefix = PyTuple_GET_ITEM(skipped.get(), i);
      take = PyUnicode_Tailmatch(code->co_filename, prefix, 0, PY_SSIZE_T_MAX, -1) == 0;
    }
    if (const char* why = !take ? nullptr : is_named(code) ? unfit(code) : kNotNamed) {
      report_skipped({&decode(code), 0}, why);
      take = false;
    }
    taken.emplace(code, std::pair(Ref::borrow(reinterpret_cast<PyObject*>(code)), take));
    return take;
  }

  /// Why a frame of the code is not captured by itself; null: it is.
  static const char* unfit(const PyCodeObject* code) {
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE))
      return "a generator or coroutine is captured as part of what iterates over it";
    if (!(code->co_flags & CO_OPTIMIZED)) return "the body of a class or of a module";
    return nullptr;
  }

  Ref compiled, skipped, left_alone;
  std::unordered_map<PyCodeObject*, std::pair<Ref, bool>> taken;
  FrameHook hook;
};

// Pointers: a thread that ends inside a block has no GIL any more to free it with.
thread_local std::vector<Block*> blocks;
thread_local int outside = 0;
thread_local const Context* stepped = nullptr;

PyObject* block_hook(PyThreadState* thread, Frame* frame, int throwflag) {
  if (throwflag) return frame_throw(thread, frame);
  if (outside || blocks.empty() || !blocks.back()->takes(frame_code(frame))) return frame_continue(thread, frame);
  const Ref alive = Ref::borrow(blocks.back()->compiled.get());  // the frame may leave the block
  Context& context = *context_of(alive.get());
  switch (how_to_run(thread, context.eager_calls)) {
    case Run::Eager:
      return frame_continue(thread, frame);
    case Run::Refused:
      return frame_raise(thread, frame);
    case Run::Compiled:
      break;
  }
  const Context::InFlight in_flight(context);
  return run_frame(thread, frame, context);
}

}  // namespace

bool is_named(const PyCodeObject* code) {
  const std::string& name = settings().debug_function;
  return name.empty() || name == PyUnicode_AsUTF8(code->co_name) || name == PyUnicode_AsUTF8(code->co_qualname);
}

void enter_block(PyObject* compiled, PyObject* skipped, PyObject* left_alone) {
  blocks.push_back(new Block(compiled, skipped, left_alone));
}

bool leave_block() {
  if (blocks.empty()) {
    PyErr_SetString(PyExc_RuntimeError, "no block was entered on this thread");
    return false;
  }
  delete blocks.back();
  blocks.pop_back();
  return true;
}

Stepping::Stepping(const Context& context) : outer_(std::exchange(stepped, &context)) {}
Stepping::~Stepping() { stepped = outer_; }
PyObject* Stepping::compiled() { return stepped ? stepped->owner : nullptr; }

OutsideBlocks::OutsideBlocks() { ++outside; }
OutsideBlocks::~OutsideBlocks() { --outside; }

}  // namespace magneto::dispatch
