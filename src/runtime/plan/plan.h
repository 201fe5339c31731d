// The plan of one captured segment: what runs on a guard hit.
//
// A plan computes the graph from the tensors in the guard program's slots, builds the Python objects that the segment
// hands on, replays the writes that the capture kept back, and ends: by returning a value, or at a side exit with the
// state of the user's frames. Printable (`print`); runs no Python code of the user before its end except what
// rebuilding an object needs.
#pragma once

#include <Python.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "capture/breaks.h"
#include "graph/graph.h"
#include "graph/undo.h"
#include "guards/guards.h"
#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto::runtime {

/// X(op, doc): `dst` is the register written (or written to), `args` are registers.
#define MAGNETO_PLAN_OPS(X)                                                                                            \
  X(Slot, "dst = guard slot `index`")                                                                                  \
  X(Const, "dst = object")                                                                                             \
  X(Output, "dst = graph output `index` as a Python tensor (object: the type to wrap it as, or null)")                 \
  X(InferenceOutput, "likewise, as a tensor that was made in inference mode")                                          \
  X(Tuple, "dst = tuple of args (object: the tuple subclass, or null)")                                                \
  X(FrozenSet, "dst = frozenset of args")                                                                              \
  X(Slice, "dst = slice(args)")                                                                                        \
  X(Method, "dst = bound method of args[0] (function) and args[1] (self)")                                             \
  X(Function,                                                                                                          \
    "dst = function: object is (code, globals, name, qualname); args: defaults, kwdefaults, annotations, closure; -1 " \
    "absent")                                                                                                          \
  X(NewList, "dst = []")                                                                                               \
  X(NewDict, "dst = {}")                                                                                               \
  X(NewSet, "dst = set()")                                                                                             \
  X(NewCell, "dst = empty cell")                                                                                       \
  X(NewInstance, "dst = instance of the class `object` with no state (its C-level tp_new)")                            \
  X(Call, "dst = args[0](*args[1:]) for a C callable (iterators and the like, from their __reduce__)")                 \
  X(ListFill, "list dst gets args appended (past any override)")                                                       \
  X(DictFill, "dict dst gets args as key, value, key, value... (past any override)")                                   \
  X(SetFill, "set dst gets args added")                                                                                \
  X(CellFill, "cell dst gets args[0]")                                                                                 \
  X(InstanceFill, "instance dst's __dict__ gets args as key, value...")                                                \
  X(SlotFill, "instance dst: slot descriptor `object` set to args[0]")                                                 \
  X(ExtendFrom, "dst.extend(args[0]) for a deque")                                                                     \
  X(SetState, "dst.__setstate__(args[0])")                                                                             \
  X(StoreAttr, "instance dict of dst: entry `object` = args[0]; no args: deleted")                                     \
  X(StoreItem, "dict dst: entry `object` = args[0]; no args: deleted")                                                 \
  X(StoreCell, "cell dst = args[0]; no args: emptied")                                                                 \
  X(ReplaceList, "list dst[:] = list args[0]")                                                                         \
  X(ReplaceDict, "dict dst: cleared, then updated from args[0]")                                                       \
  X(ReplaceSet, "set dst: cleared, then updated from args[0]")                                                         \
  X(NewGenerator, "dst = generator of the function args[0], whose frame GeneratorFill fills")                          \
  X(GeneratorFill,                                                                                                     \
    "generator dst: args are its locals (-1: as they are), then its stack; goes on at instruction index; object: it "  \
    "has begun")                                                                                                       \
  X(ExceptionState, "exception dst: context, cause, traceback; object: the context is suppressed")                     \
  X(Handled, "dst = the exception that the thread handles, or None")                                                   \
  X(SetHandled, "the thread handles the exception args[0], None: nothing")                                             \
  X(GradMode, "grad mode = index")

enum class PlanOp : uint8_t {
#define X(op, doc) op,
  MAGNETO_PLAN_OPS(X)
#undef X
};

struct PlanInstr {
  PlanOp op;
  int32_t dst = -1;
  int32_t index = 0;
  Ref object;
  std::vector<int32_t> args;
};

/// A local or stack entry of the frame that the plan was entered with that the segment did not touch.
constexpr int32_t kUnchanged = -2;

/// The state of one user frame at a side exit; registers, -1 for NULL slots.
struct FrameState {
  const CodeInfo* info = nullptr;
  int32_t function = -1;        // register of the function object; -1 for the frame that the plan was entered with
  int32_t instr = 0;            // the instruction that is about to run (innermost) or is calling (others)
  std::vector<int32_t> locals;  // info->nlocals entries
  std::vector<int32_t> stack;   // bottom first
  int32_t result = -1;          // outer frames: pushed instead of the callee's result (a class call's instance)
};

struct Exit {
  std::vector<FrameState> frames;  // outermost first
  BreakReason reason{};
  std::string message;  // the break's text for logs and fullgraph errors
};

/// In which state a computation that raises leaves what the graph writes.
enum class OnError : uint8_t {
  Untouched,  // inputs are as before the run; what was drawn is drawn
  AsEager,    // as the operators in front of the one that raised left them, which ran in the program's order
  Between,    // some writes are done
};

/// Runs a graph: the ATen level from C++, the torch level under autograd, or a backend's callable.
class Computation {
 public:
  virtual ~Computation() = default;
  /// Inputs: Python tensors in graph.inputs order, borrowed. Results: one new reference per graph output. Throws
  /// PythonError.
  virtual void run(PyObject* const* inputs, PyObject** outputs) const = 0;
  virtual std::string print() const = 0;
  /// The same where this keeps work on its weights for later runs, which it does for one set of weights: that of other
  /// weights is kept apart. Null: nothing is kept, and one computation serves all.
  virtual std::unique_ptr<Computation> for_other_weights() const { return nullptr; }
  virtual OnError on_error() const { return OnError::AsEager; }
  /// Calls what a user's backend made: what that raises is the backend's, where no operator could have raised it.
  virtual bool is_users() const { return false; }
};

/// A computation from tensors to tensors, without Python: autograd's engine can run it, too.
class TensorComputation : public Computation {
 public:
  void run(PyObject* const* inputs, PyObject** outputs) const final;
  std::unique_ptr<Computation> for_other_weights() const final { return tensors_for_other_weights(); }
  virtual std::unique_ptr<TensorComputation> tensors_for_other_weights() const { return nullptr; }
  /// `inputs` in graph.inputs order, borrowed and kept alive by the caller; room for the graph's outputs. Below
  /// autograd. Needs no GIL, which operators written in Python take themselves. Throws what the operators throw; some
  /// outputs may be set then.
  virtual void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const = 0;
  /// The same of inputs that nobody else needs: they may be dropped one by one while it runs.
  virtual void consume(std::vector<at::Tensor>& inputs, at::Tensor* outputs) const;
  virtual size_t input_count() const = 0;
  virtual size_t output_count() const = 0;
};

struct Plan {
  std::shared_ptr<const Computation> computation;  // null: the segment has no operators
  std::vector<int32_t> input_slots;                // guard slots of graph.inputs
  std::vector<int32_t> number_inputs;              // those of them that are Python's numbers
  std::vector<shapes::Range> integers;             // as many: what ints may be for the graph to do as eager does
  /// Of floats among them, the largest that all dtypes of the graph hold.
  double most_of_numbers = std::numeric_limits<float>::max();
  std::vector<int32_t> array_inputs;  // ...and those that are arrays of NumPy
  graph::Undo undo;                   // what the computation may have changed when it raises
  int32_t output_count = 0;
  std::vector<PlanInstr> instrs;
  int32_t register_count = 0;
  bool exclusive = false;        // it has generators of its own: one run at a time
  mutable bool running = false;  // ...and that one is under way
  int32_t return_register = -1;  // >= 0: the segment returns
  std::unique_ptr<Exit> exit;    // otherwise

  /// The same for other objects under the same guards; null: it has state that they can't share.
  std::unique_ptr<Plan> share() const;
  std::string print() const;
  /// For the cyclic garbage collector: the constants. What a computation holds is not visited.
  int traverse(visitproc visit, void* arg) const;
};

/// Owned registers of one run.
class Registers {
 public:
  explicit Registers(size_t count);
  ~Registers() { clear(); }
  Registers(const Registers&) = delete;
  PyObject* get(int32_t index) const { return values_[index]; }
  /// Steals.
  void set(int32_t index, PyObject* value);
  /// Drops all values.
  void clear();
  PyObject* take(int32_t index) { return std::exchange(values_[index], nullptr); }

 private:
  static constexpr size_t kInline = 16;
  PyObject* inline_[kInline];
  std::unique_ptr<PyObject*[]> heap_;
  PyObject** values_;
  size_t count_;
};

/// An int or float as PyTorch itself wraps the other operand of a tensor: without a say in the result's dtype.
Ref tensor_of_number(PyObject* number);

/// The computation raised. All is as it was before the run, so that CPython can run the segment, and raise as eager
/// does. Other errors leave tensors as eager does at the operator that raised.
struct ComputationError : PythonError {};
/// How the message begins where the program did nothing wrong: what the capture went on with is not so in this run.
inline constexpr char kNotSo[] = "magneto: not so in this run: ";

/// Computes, builds and replays; afterwards the return register or the exit's registers hold the results. `slots` are
/// the borrowed references of a successful guard check. Throws ComputationError or PythonError.
void run_plan(const Plan& plan, PyObject* const* slots, Registers& registers);

}  // namespace magneto::runtime
