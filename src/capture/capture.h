// One capture: a segment of a user's frame, interpreted on real objects.
//
// The interpreter executes the function's own bytecode. Values are plain `PyObject*`: tensors are fakes, objects made
// during the capture are real and fresh, and objects from outside are the user's own. What is known of an outside
// object hangs on its identity: its source, its overlay (attribute writes kept back), its shadow (the canonical
// stand-in of a built-in container). Nothing outside changes during a capture, so it can be abandoned at any
// instruction.
//
// Control flow inside the capture uses C++ exceptions:
//   PythonError  the interpreted program raised; handled by the frame's exception table
//   SideExit     the segment ends here; `exit` holds the frames' state
//   Restart      a break was found where frames can't be cut (inside a callback of C code): `known_breaks` has the
//                call site, and the segment is captured again, to end in front of it
//   Retry        the segment's memory has grown, and it is captured again
//   Abandon      the segment can't be captured; CPython runs it
//   Interrupted  Ctrl-C while capturing: the capture is dropped, and the current error is the interrupt
#pragma once

#include <Python.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/partition.h"
#include "capture/breaks.h"
#include "capture/feedback.h"
#include "capture/kinds.h"
#include "fake/fake.h"
#include "graph/graph.h"
#include "guards/guards.h"
#include "guards/source.h"
#include "python/abi/frame.h"
#include "python/bytecode/code.h"
#include "python/ref.h"
#include "runtime/plan/plan.h"

namespace magneto::autograd {
struct Joint;
class JointTrace;
}  // namespace magneto::autograd

namespace magneto::capture {

class Rebuilder;
struct ArrayStandIn;
struct RedispatchedCall;
struct NumpyCall;

struct SideExit {};
struct Restart {};
struct Retry {};
struct Interrupted {};
struct Abandon {
  BreakReason reason;
  std::string message;
  PyObject* object = nullptr;  // Rebuild: what can't be made anew; the capture keeps it
};

/// The set of functions whose calls may be put off to the segment's end. (deferred.cpp)
void set_reorderable_functions(PyObject* functions);

/// A user's frame as the interpreter runs it. Slots are laid out as CPython's localsplus: locals, cells, free
/// variables, then the value stack; each owns its reference.
struct InterpFrame {
  const CodeInfo* info = nullptr;
  Ref function;
  const guards::Source* function_source = nullptr;  // null: a fresh function
  PyObject* globals = nullptr;
  PyObject* builtins = nullptr;
  Frame* real = nullptr;           // frames that C code called back keep their slots in the real frame
  std::vector<PyObject*> storage;  // the slots of all others
  PyObject** slots = nullptr;
  int32_t depth = 0;         // entries on the value stack
  int32_t pc = 0;            // instruction being executed
  std::vector<uint8_t> raw;  // root frame: slots not read yet, still the user's own values
  int32_t raw_stack = 0;     // root frame: entries from here to the start's depth have not been read either
  bool callback = false;     // entered from C code: can't be cut
  // While this frame calls another one: how it goes on when the callee returns.
  bool result_is_pushed = false;  // pop `pops` entries, push the result, next instruction; else can't be cut
  int32_t pops = 0;
  Ref result_override;  // pushed instead of the result (the instance, after __init__)
  InterpFrame* caller = nullptr;

  PyObject** stack() { return slots + info->nlocals; }
  PyObject* top(int32_t below = 0) { return stack()[depth - 1 - below]; }
  void push(Ref value) { stack()[depth++] = value.release(); }
  Ref pop() { return Ref::steal(std::exchange(stack()[--depth], nullptr)); }
  void drop(int32_t count) {
    while (count-- > 0) pop();
  }
  void set_local(int32_t slot, Ref value) {
    PyObject* old = std::exchange(slots[slot], value.release());
    Py_XDECREF(old);
  }
  const Instr& instr() const { return info->instrs[pc]; }
  /// Drops the values, as the frame does at its end.
  void clear();
  ~InterpFrame() { clear(); }
};

/// Arguments in vectorcall layout: positional ones, then the values of `kwnames` (a tuple, or null). Borrowed.
struct CallArgs {
  std::vector<PyObject*> values;
  PyObject* kwnames = nullptr;
  size_t positional() const { return values.size() - keywords(); }
  size_t keywords() const { return kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(kwnames)) : 0; }
  /// The name under which values[i] is given, borrowed; null: by position.
  PyObject* keyword(size_t i) const { return i < positional() ? nullptr : PyTuple_GET_ITEM(kwnames, i - positional()); }
};

/// Attribute and item writes to an outside object, in order of first write.
struct Overlay {
  PyObject* object;
  bool items = false;                        // dict entries instead of attributes
  std::vector<std::pair<Ref, Ref>> entries;  // name, value (null: deleted)
  std::pair<Ref, Ref>* find(PyObject* name);
  void set(PyObject* name, PyObject* value);
  /// `in_original`: the object itself has the entry, so that replaying has something to delete.
  void erase(PyObject* name, bool in_original);
};

/// The canonical stand-in of a built-in container from outside.
struct Shadow {
  Ref original;
  Ref object;
  bool dirty = false;
};

/// A part of a data-dependent text: `function(value, format)`; no function: the value itself, a text.
struct StringPart {
  Ref value, function, format;
};
struct SymbolicString {
  std::vector<StringPart> parts;
  std::vector<BreakSite> sites;  // where its parts are made
};

/// What a finished capture hands to the plan builder.
struct Trace {
  std::unique_ptr<runtime::Plan> plan;
  std::unique_ptr<guards::GuardProgram> guards;
  graph::Graph graph;
  std::vector<Ref> example_inputs;         // real tensors of graph.inputs
  std::set<const CodeInfo*> codes;         // of all functions that were interpreted
  bool needs_grad = false;                 // a result requires grad
  std::shared_ptr<autograd::Joint> joint;  // ...and what its gradients are
  std::string no_joint;                    // ...or why the torch level has to run under autograd
  fake::Counters counters;
  std::vector<std::string> size_log;  // what happened to dynamic sizes, for TORCH_LOGS=dynamic
  std::string violation;              // not empty: how the program contradicts a mark
};

/// Watches a capture: it is called in front of each instruction, outside of the capture.
class Tracer {
 public:
  virtual ~Tracer() = default;
  virtual void instruction(const InterpFrame& frame) = 0;
};

/// Where a segment starts.
struct Start {
  PyObject* function;  // the function object
  const CodeInfo* info;
  int32_t instr = 0;
  PyObject* const* slots;      // localsplus, then the stack; borrowed
  int32_t depth = 0;           // stack entries
  bool prologue_done = false;  // cells are made, free variables filled
};

class Capture {
 public:
  Capture(const Start& start, const KnownBreaks& known_breaks, SpecializationFeedback& memory);
  ~Capture();
  Capture(const Capture&) = delete;

  /// Ends the segment after so many instructions (tests); 0: never.
  int64_t exit_every = 0;
  /// The values of small integer buffers of modules may be read, under guards.
  bool knows_buffers = true;
  /// Sizes that only the data says are captured where nothing is asked of them; nobody told to take them in any case.
  bool tries_data_sizes = false;
  /// Results that require gradients get a joint graph.
  bool wants_backward = false;
  /// ...whose backwards are given what this says.
  autograd::PartitionWay partition;
  /// There are nearly as many captures as are kept: the segment ends where it needs what differs from run to run.
  bool exits_on_change = false;
  Tracer* tracer = nullptr;
  /// Notes the user's line beside each guard.
  void note_guard_places();

  /// Runs the segment to its return or side exit. Throws Restart, Abandon, or PythonError when the program itself
  /// raises out of the frame.
  Trace run();

  /// The capture running on this thread, or null.
  static Capture* current();
  /// The eval hook's entry for frames that C code calls back; null pointer result with `handled` false: not ours.
  PyObject* run_callback(PyThreadState* thread, Frame* frame, int throwflag, bool* handled);

  /// Where the capture was when an exception of the program or an error of ours left it: the interpreted frames,
  /// outermost first.
  const std::vector<CodePlace>& site() const { return site_; }
  /// Notes what the current instruction made, should it turn out that no plan can make it: the segment then ends here.
  void note_allocation_site(PyObject* object);
  /// The break that a Restart is for.
  const std::pair<BreakSite, std::string>& restart() const { return restart_; }
  /// Calls the user's `callback` with a view of the capture, as it is at this instruction. (comptime.cpp)
  Ref comptime(PyObject* callback);
  /// The exception of an Interrupted.
  Ref take_interrupt() { return std::move(interrupt_); }
  std::shared_ptr<const int64_t> alive_fakes() const { return alive_fakes_; }
  /// The program has asked whether it is being compiled, and heard that it is.
  bool has_said_compiling() const { return has_said_compiling_; }

  // -- values (values.cpp, containers.cpp, overlays.cpp, identity.cpp) -------------------------------------------
  /// The interpreter's value for an object read from outside at `source`; leaves the guards that reading implies.
  Ref wrap(PyObject* raw, const guards::Source* source);
  /// The source of an outside object; null for fresh objects and constants.
  const guards::Source* source_of(PyObject* object) const;
  bool is_outside(PyObject* object) const { return source_of(object) != nullptr; }
  /// The object itself, or its shadow when it is a built-in container from outside: what C code may read.
  Ref resolve(PyObject* object, bool will_mutate = false);
  /// An object from outside with state that no guard sees; only handing it on is safe.
  bool is_opaque(PyObject* object) const;
  /// C code is about to read the value of `object`, or of what is in it (containers and iterators, so many levels
  /// deep): an opaque one ends the segment, and a container from outside is guarded with all that is in it.
  /// (c_readers.cpp)
  void refuse_opaque(PyObject* object, int depth = 0);
  /// What C code gets in place of `callable` to call back: a function that the capture runs, whatever it is.
  Ref callback(PyObject* callable);
  /// What C code gets as the result of a function that it has called back: a stand-in for a container from outside.
  /// `yielded`: of a generator, whose values C code mostly only hands on.
  Ref returned_to_c(Ref value, bool yielded);
  /// Such a function is called. Null: with the Python error set.
  PyObject* call_from_c(PyObject* callable, PyObject* const* args, Py_ssize_t count, PyObject* kwnames);
  /// C code is about to iterate over `value`: an iterator or view from outside ends the segment.
  void refuse_opaque_iterable(PyObject* value);
  /// C code compares what is in `value`, also in containers in it: guards all of it.
  void guard_contents(PyObject* value);
  /// A container inside `value` has been changed: C code sees nested ones as they were.
  bool holds_changed(PyObject* value, int depth);
  /// The object for C code to read, and perhaps to give back: itself, or its stand-in, with stand-ins in it at all
  /// levels.
  Ref resolve_deep(PyObject* object, int depth = 0);
  /// What PyTorch may read as an argument: of a container its contents, guarded, all the way down.
  Ref readable(PyObject* argument, int depth = 0);
  bool has_shadow(PyObject* object) const { return shadows_.count(object) != 0 || find_tail(object) != nullptr; }
  /// list.append. What is appended to a list from outside that nobody has read is kept apart: the list needs no guards.
  void append(PyObject* list, PyObject* item);
  /// The dict has been read or written as a dict: its entries are looked up there.
  bool is_written(PyObject* dict) { return has_shadow(dict) || find_overlay(dict, true); }
  bool is_shadow(PyObject* object) const { return shadow_original_.count(object) != 0; }
  void keep(Ref object) { kept_.push_back(std::move(object)); }
  Overlay& overlay(PyObject* object, bool items);
  Overlay* find_overlay(PyObject* object, bool items);
  /// The user's own object that `object` is or stands for, under a guard on its identity; a fresh object itself.
  PyObject* pinned(PyObject* object);
  /// The key as an outside dict knows it, under guards that pin it, or null: a look-up with it could run Python code.
  PyObject* original_key(PyObject* key);
  /// The wrapped entry of an outside dict (overlay and shadow respected); null: no such key.
  Ref dict_lookup(PyObject* dict, PyObject* key);
  /// A cell from outside is about to be written, or handed on: it becomes an outside object itself, not only what it
  /// holds.
  void adopt_cell(PyObject* cell);
  /// The program drops a reference to an outside object. Were it the last one, and had the object a finaliser or a weak
  /// reference with a callback, that would have to run here: the segment ends.
  void check_finalizer(PyObject* dropped);
  /// An entry of an outside dict is written; null value: deleted (it exists).
  void store_entry(PyObject* dict, PyObject* key, PyObject* value);

  // -- dynamic numbers (numbers.cpp) ---------------------------------------------------------
  /// The value itself: of a number that is not known yet, under a guard.
  Ref known(PyObject* value);
  /// The same for the arguments in front of `end`, but for numbers that follow from sizes, if those are `kept`.
  void specialize_all(CallArgs& args, size_t end = SIZE_MAX, bool sizes_kept = false);
  /// All sizes of the tensors and all sizes among the arguments of a call are those of this run. False: they were.
  bool fix_sizes(std::span<PyObject* const> args);
  bool has_unknown_numbers() const {
    return !unknown_numbers_.empty() || !size_numbers_.empty() || !symbolic_bools_.empty() || !data_floats_.empty() ||
           !texts_.empty();
  }
  /// The result, if one of the operands is an unknown number and the other one a number; else null.
  Ref unknown_operation(guards::Arithmetic operation, PyObject* left, PyObject* right);
  /// The same for a C function of one number, or two.
  Ref unknown_function(PyObject* function, const CallArgs& args);
  /// The next number of a random.Random: peeked at by the guards of each run, and drawn with the run's writes.
  Ref draw(PyObject* random);
  /// The other operand of a tensor: a number that has been found different becomes an input of the graph.
  Ref beside_tensor(PyObject* value);
  /// `real`: the tensor that holds its value now.
  Ref add_number_input(const guards::Source* source, const Ref& real);
  /// `thrown` is to be thrown, but C code stands in between: it gets a Python error to hand on. Null.
  PyObject* interrupt_c_code(std::exception_ptr thrown);

  // -- data-dependent numbers (data_numbers.cpp) --------------------------------------------------------
  /// torch._check and its like. Null: to be interpreted.
  Ref check(PyObject* function, const CallArgs& args);
  /// A tensor of the number; `wrapped`: beside tensors what a Python number is.
  Ref tensor_of_data_number(const shapes::Expr& size, bool wrapped);
  /// What stands for a float that the tensor holds, and only the data says.
  Ref data_float(const at::Tensor& holder);
  /// `item()` of a tensor whose one float is taken as a data-dependent one. Null: it is not.
  Ref float_item(PyObject* callable, const std::vector<PyObject*>& values);
  /// It as a tensor to be handed on.
  Ref tensor_of_data_float(PyObject* value);
  /// A float that is computed of such numbers. Null: the value is needed.
  Ref data_operation(guards::Arithmetic operation, PyObject* left, PyObject* right);
  /// Numbers that a torch call has given since there were so many, where the torch level finds them: in its result.
  void bind_symbols(PyObject* result, size_t before, graph::TorchNode& node);
  /// Makes operators of the graph of what was assumed of them.
  /// `of_program`: it made them itself, by torch._check.
  void flush_checks(bool of_program = false);
  /// Throws Retry.
  [[noreturn]] void end_at_data_sizes();
  /// It holds, or each run checks it. False: it is not true.
  bool check_questions(const std::vector<shapes::Relation>& relations);
  bool check_condition(PyObject* condition);
  [[noreturn]] void exit_at_question(const shapes::Relation& relation);
  [[noreturn]] void exit_for_number(shapes::Expr size);
  [[noreturn]] void exit_for_float();
  /// True, False, or the question, of an unknown number.
  Ref is_not_zero(PyObject* value);

  // -- data-dependent strings (strings.cpp) -----------------------------------------------------------------
  /// format(value, format) of a tensor or such a number, or function(value), unless the program reads the text; null:
  /// made as any other.
  Ref text_of_data(PyObject* value, PyObject* format, PyObject* function = nullptr);
  Ref join_texts(std::span<PyObject* const> parts);
  /// The program reads the text: throws Retry.
  [[noreturn]] void need_text(PyObject* text);
  /// It is alive at the segment's end, where the run makes it of these. Throws Retry if it can't yet.
  const std::vector<StringPart>& parts_to_hand_on(PyObject* text);

  // -- dynamic sizes (sizes.cpp) -------------------------------------------------------------
  /// The number that a size is: an unknown one, unless it is known after all.
  Ref size_number(shapes::Expr size);
  /// torch.Size, where one of the sizes is such a number; null: all are plain.
  Ref shape_of(const at::Tensor& tensor);
  /// The object for operators of torch: with torch.SymInt in place of such numbers, also in containers.
  Ref with_symints(PyObject* object);
  /// The same with the numbers themselves, which are assumed from here on.
  Ref with_known_sizes(PyObject* object);
  /// What torch gave, with such numbers in place of torch.SymInt: one, or a tuple.
  Ref with_size_numbers(PyObject* result);
  /// What is not a size of its own here is one: dynamic=True, False, or None.
  enum class Dynamic : uint8_t { Never, Marked, Automatic, Always };
  Dynamic dynamic = Dynamic::Never;
  /// Equal sizes are one symbol.
  bool use_duck_shape = true;

  /// C code looks at an unknown number.
  void unknown_is_read();
  /// Guards a length, or ends the segment where it keeps changing.
  void guard_length(const guards::Source* source, PyTypeObject* type, Py_ssize_t length);

  // -- attributes (attributes.cpp) -------------------------------------------------------------------------------
  /// Null: no such attribute (no error set); an AttributeError that a hook raises is thrown. `unbound`: a function or
  /// method descriptor found on the type is returned itself and *unbound set, instead of making a bound method.
  Ref lookup_attr(PyObject* owner, PyObject* name, bool* unbound = nullptr);
  Ref load_attr(PyObject* owner, PyObject* name, bool* unbound = nullptr);  // throws AttributeError
  void store_attr(PyObject* owner, PyObject* name, PyObject* value);        // null value: delete
  /// `_PyType_Lookup` under a guard; borrowed, null: nothing.
  PyObject* type_lookup(PyTypeObject* type, PyObject* name);
  PyObject* type_lookup(PyTypeObject* type, const char* name);

  /// object.__getattribute__ and object.__setattr__: the protocol past the class's own overrides.
  Ref generic_getattr(PyObject* owner, PyObject* name) { return lookup_instance_attr(owner, name, nullptr); }
  void generic_setattr(PyObject* owner, PyObject* name, PyObject* value);

  // -- what functions and classes say of themselves (metadata.cpp) -----------------------------------------------
  /// `__name__` and its like, of one from outside; null: not among what it keeps itself.
  Ref function_fact(PyObject* function, PyObject* name);
  /// The same of a class: guards what it says. Null: it may be asked then.
  Ref class_fact(PyTypeObject* type, PyObject* name);
  /// Null: the cell is empty.
  Ref read_cell(PyObject* cell);

  // -- special methods of torch.Tensor (special_methods.cpp) -----------------------------------------------------
  /// Guards those that the C function goes to for tensors among the arguments.
  void guard_special_methods(PyObject* function, std::span<PyObject* const> args);
  /// Calls the program's own method, if it has put one in the place of PyTorch's, or PyTorch's, if a class or a mode
  /// says what that means; else null.
  Ref call_replaced_method(PyObject* tensor, PyObject* name);

  // -- calls (calls.cpp, effects.cpp, classes.cpp) ---------------------------------------------------------------
  Ref call(PyObject* callable, CallArgs args);
  Ref call(PyObject* callable, std::initializer_list<PyObject*> args);
  Ref inline_function(PyObject* function, const CallArgs& args);
  Ref call_gradient(PyObject* function, const CallArgs& args);
  /// CPython runs the function (functions.def: Native). `members`: what it gives are members of its argument's class.
  /// (native_functions.cpp)
  Ref run_native_function(PyObject* function, const CallArgs& args, bool members);
  /// The function of that name of magneto._polyfills, interpreted.
  Ref call_polyfill(const char* name, const CallArgs& args);
  /// The call may be put off to the segment's end; then: puts it off. Null: not with these arguments.
  bool defers(PyObject* callable, const CallArgs& args);
  Ref defer(PyObject* callable, const CallArgs& args);
  /// Each run calls the function at the segment's end, in the order of these.
  void call_at_end(Ref function) { deferred_.push_back({std::move(function), {}, {}}); }
  /// `past_metaclass`: as type.__call__ does it.
  Ref call_type(PyTypeObject* type, const CallArgs& args, bool past_metaclass = false);
  /// Runs a torch call (or any C code that may run torch operators) and records it at the torch level if it did, or
  /// `always`.
  Ref record(graph::TorchNode::Kind kind, PyObject* target, std::span<PyObject* const> args, PyObject* kwnames,
             const std::function<PyObject*()>& run, bool always = false);
  /// A class among the arguments, or a mode, says what a torch call with them means. (torch_function.cpp)
  bool is_overridden(std::span<PyObject* const> args);
  /// ...which is this call. Such a call is a side exit where none takes it.
  Ref call_override(const RedispatchedCall& call);
  /// The interpreter's value for an entry of the thread's stack of modes.
  Ref function_mode(PyObject* mode);
  /// The graph is about to draw from the generator, or to seed it. (generators.cpp)
  void draw_from(PyObject* generator);
  /// The tensor is one from outside.
  bool is_input(PyObject* tensor) const;
  Ref call_torch(PyObject* callable, const CallArgs& args);
  /// An operator of torch.profiler.record_function, while nothing records. Null: something else. (profiler_labels.cpp)
  Ref profiler_label(PyObject* callable, const CallArgs& args);
  Ref call_script_function(PyObject* function, const CallArgs& args);
  /// C code that reads its arguments' contents and may call Python functions back.
  Ref call_native(const std::function<PyObject*()>& run);
  /// A key that can't be hashed raises; a `__hash__` in Python is interpreted.
  void check_hashable(PyObject* key);
  bool truth(PyObject* value);
  /// The same where the program raises otherwise (`assert`): a tensor that is not known becomes a check in the graph.
  /// If that fails, the run is undone, and CPython raises what is to be raised.
  bool assume_true(PyObject* value);
  Ref iterate(PyObject* value);
  /// A fresh exact dict, list or tuple with the wrapped contents of an outside instance of a subclass of one.
  Ref contents_of(PyObject* object);
  /// All items of an iterable, as a fresh list.
  Ref list_of(PyObject* iterable);
  bool is_identical(PyObject* a, PyObject* b);
  /// Objects that were different ones must stay so: tensors, instances, and containers if one of their kind is written.
  void guard_distinct();
  /// container[key]; `past_override`: as dict.__getitem__ does it.
  Ref subscript(PyObject* container, PyObject* key, bool past_override = false);
  void store_subscript(PyObject* container, PyObject* key, PyObject* value);  // null value: delete
  bool contains(PyObject* container, PyObject* item);

  // -- arrays of NumPy (arrays.cpp) ------------------------------------------------------------------------------
  /// What stands for an array: of one from outside, which is itself elsewhere, the input of the graph.
  Ref array_stand_in(PyObject* array);
  /// The call of a function or method of NumPy that numpy.def has, on what it is captured for; else null.
  Ref call_numpy_function(PyObject* callable, const CallArgs& args);
  /// An operation of NumPy on an array: "$ + $".
  Ref numpy_operation(std::initializer_list<PyObject*> operands, const std::string& form);
  Ref numpy_item(PyObject* array, PyObject* key);
  Ref numpy_items(PyObject* array);
  /// As lookup_attr.
  Ref numpy_attribute(PyObject* array, PyObject* name, bool* unbound);
  /// tensor.numpy() and torch.from_numpy(array).
  Ref array_of_tensor(PyObject* tensor);
  Ref tensor_of_array(PyObject* array);
  /// C code looks at a stand-in: the segment ends in front of the call.
  void array_is_read();

  // -- exits (exits.cpp) -----------------------------------------------------------------------------------------
  [[noreturn]] void side_exit(BreakReason reason, std::string message);
  [[noreturn]] void abandon(BreakReason reason, std::string message);

  /// A function of PyTorch in Python is interpreted in this scope, for the sizes that it was given.
  class OfTorch {
   public:
    OfTorch(Capture& capture, bool on) : capture_(capture), on_(on) { capture_.of_torch_ += on_; }
    ~OfTorch() { capture_.of_torch_ -= on_; }
    OfTorch(const OfTorch&) = delete;

   private:
    Capture& capture_;
    const bool on_;
  };
  /// A tensor is to hold what follows from sizes. False: it has to hold a constant.
  bool makes_tensor_of_sizes() { return makes_tensors_of_sizes_ = !memory_.plain_sizes; }

  graph::Graph graph;
  guards::SourceTable sources;
  guards::GuardSet guards;
  std::unique_ptr<fake::Session> session;
  InterpFrame* frame = nullptr;  // the innermost frame

  /// The continuation of a call made by the current frame's instruction is not "push the result" for this scope.
  class NonResumable {
   public:
    explicit NonResumable(Capture& capture)
        : frame_(capture.frame), saved_(std::exchange(capture.frame->result_is_pushed, false)) {}
    ~NonResumable() { frame_->result_is_pushed = saved_; }

   private:
    InterpFrame* frame_;
    bool saved_;
  };

  /// What is wrapped meanwhile goes into a container that C code may read.
  class InContainer {
   public:
    explicit InContainer(Capture& capture) : flag_(capture.in_container_), saved_(std::exchange(flag_, true)) {}
    ~InContainer() { flag_ = saved_; }

   private:
    bool& flag_;
    bool saved_;
  };

 private:
  friend class Rebuilder;
  friend class Branch;
  friend class Interpreter;
  /// `raise_first`: the current error is raised at the frame's instruction. (interpreter.cpp)
  Ref run_frame(InterpFrame& frame, bool raise_first = false);
  Ref wrap_tensor(PyObject* raw, const guards::Source* source);
  Ref wrap_scalar(PyObject* raw, const guards::Source* source);
  Ref unknown_number(PyObject* now, const guards::Source* source, bool changes);
  Ref size_operation(guards::Arithmetic operation, PyObject* left, PyObject* right);
  /// What is computed of such operands, and is `now` in this run. An int that changes may be a size again.
  Ref computed_number(const Ref& now, const guards::Source* source, std::initializer_list<PyObject*> operands);
  const guards::Source* source_of_operand(PyObject* operand);
  /// The float in that input is what it is now. False: in no input.
  bool assume_float(const at::Tensor& holder);
  shapes::Expr symbol_of_number(const guards::Source* source, int64_t now);
  Ref question(const shapes::Relation& relation);
  Ref unknown_text(SymbolicString text);
  /// What is known to become of the text that the current instruction makes; null: it is read.
  SpecializationFeedback::Text* demand_string();
  /// Expressions for a tensor's sizes; empty: all are plain numbers.
  std::vector<shapes::Expr> symbolic_sizes(PyObject* raw, const guards::Source* source);
  void note_assumptions();
  shapes::Expr symbol_at(const guards::SizePlace& place, int64_t now, shapes::Range range);
  void guard_symbolic(const guards::Source* source, PyObject* raw, const std::vector<shapes::Expr>& sizes,
                      const std::vector<shapes::Expr>& strides);
  const guards::Source* source_of_size(shapes::Expr size);
  void check_required_sizes();
  /// "user.py:4 in forward"; empty where no frame runs.
  std::string user_place() const;
  /// "at user.py:4 in forward".
  std::string user_line() const;
  /// Puts the graph's sizes in terms of symbols that inputs tell, and leaves the guards.
  void finish_sizes();
  // -- gradients.cpp
  bool needs_grad();
  std::string why_no_joint();
  std::optional<autograd::JointTrace> trace_backward(std::string* no_joint);
  std::optional<autograd::JointTrace> run_backward(std::string* no_joint);
  /// The value of this unknown number is needed where no guard can be left any more: throws Retry.
  [[noreturn]] void need(PyObject* unknown);
  /// Notes what was found; true: captures have found something else there. `what`: of the source.
  bool has_changed(const guards::Source* source, PyObject* found, const char* what);
  void exit_on_change(const guards::Source* source, PyObject* found, const char* what);
  /// What a method of a C type is bound to.
  Ref receiver_of(PyObject* method);
  Ref resolve_bound_builtin(PyObject* method);
  Ref make_shadow(PyObject* original, const guards::Source* source);
  Ref stand_in_of_sequence(PyObject* original, const guards::Source* source);
  Ref stand_in_of_dict(PyObject* original, const guards::Source* source);
  Ref stand_in_of_set(PyObject* original, const guards::Source* source);
  /// A dict's key or a set's item, which the guard on the container pins: what is read of it is read as of a constant.
  Ref wrap_member(PyObject* item);
  const std::vector<Ref>* find_tail(PyObject* list) const;
  void guard_protocol(PyObject* descriptor);
  Ref lookup_instance_attr(PyObject* owner, PyObject* name, bool* unbound);
  Ref lookup_type_attr(PyTypeObject* owner, PyObject* name);
  Ref lookup_module_attr(PyObject* owner, PyObject* name);
  Ref lookup_tensor_attr(PyObject* owner, PyObject* name, bool* unbound);
  Ref lookup_super_attr(PyObject* owner, PyObject* name);
  Ref module_getattr(PyObject* owner, PyObject* name);
  void store_class_attr(PyTypeObject* owner, PyObject* name, PyObject* value);
  const std::pair<Ref, Ref>* find_class_write(PyTypeObject* type, PyObject* name);
  void move_writes_to_dict(PyObject* owner, PyObject* dict);
  Ref instance_dict_entry(PyObject* owner, PyObject* name);
  Ref bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type, bool* unbound);
  Ref call_c_function(PyObject* callable, const CallArgs& args);
  /// What the function says of the process, under a guard.
  Ref read_state(PyObject* function, const CallArgs& args, const std::string& name);
  void wrap_defaults(InterpFrame& frame);
  Ref call_numpy_scalar_function(PyObject* function, const CallArgs& args);
  /// Writes a value down as an argument of a call of NumPy. False: it can't be one.
  bool write_numpy(PyObject* value, NumpyCall& call, bool arrays);
  Ref call_numpy(const NumpyCall& call);
  /// The segment writes its memory, through a tensor.
  bool is_written(const ArrayStandIn& array) const;
  /// `result`: what NumPy gave for the samples of the arrays.
  Ref numpy_result(const NumpyCall& call, PyObject* function, PyObject* result, const std::vector<Ref>& samples);
  Ref make_generator(const CallArgs& args);
  Ref apply_autograd_function(const CallArgs& args);
  Ref record_autograd_function(const CallArgs& args);
  /// Why the backward of a custom function can't be run on stand-ins; empty: it can, or that is not known yet.
  std::string why_opaque(PyObject* function) const;
  /// Interprets the backward of a custom function's call, for its guards. Throws Retry where it can't be.
  void rehearse_backward(PyObject* function, PyObject* result);
  /// Inputs from `first` on, which have been taken out of the graph, become inputs again. False: one can't.
  bool add_again(size_t first);
  /// Runs autograd's engine, by which backwards are interpreted. Why that failed; empty: it did not. Throws Retry.
  std::string interpret_backwards(const std::function<void()>& run);
  [[noreturn]] void retry_without(PyObject* function, std::string why);
  bool is_operator_backward(Frame* real) const;
  Ref checkpoint(const CallArgs& args);
  /// C code calls Python code back, which is interpreted on stand-ins, as long as this lives: its torch calls are none
  /// that C code makes.
  class CalledBack {
   public:
    explicit CalledBack(Capture& capture)
        : capture_(capture),
          callbacks_(std::exchange(capture.callbacks_allowed_, true)),
          recording_(std::exchange(capture.recording_, false)),
          trusted_(std::exchange(capture.trusted_, false)) {}
    ~CalledBack() {
      capture_.callbacks_allowed_ = callbacks_;
      capture_.recording_ = recording_;
      capture_.trusted_ = trusted_;
    }
    CalledBack(const CalledBack&) = delete;

   private:
    Capture& capture_;
    const bool callbacks_, recording_, trusted_;
  };
  void register_closure(PyObject* function, const guards::Source* source);
  Ref make_super(const CallArgs& args);
  Ref read_raw(int32_t slot);
  /// The exception being handled, as PUSH_EXC_INFO puts it on the stack: `handled_at_start_` stands for what the thread
  /// handles when the segment begins (mostly nothing), which differs between runs.
  Ref handled_exception();
  void set_handled_exception(PyObject* exception);
  PyObject* start_handled() const;
  void add_traceback(const InterpFrame& f);
  void note_site();
  void close_generators();
  void check_refusal();
  const std::vector<PyObject*>& modes_at_start() const;
  Ref call_getter(PyObject* getter, const CallArgs& args);
  Ref call_cached(PyObject* callable, const CallArgs& args);
  Ref find_cached(PyObject* callable, const CallArgs& args);
  Ref check_tensor_all(const CallArgs& args);
  Ref kept_result(PyObject* callable, const CallArgs& args);
  /// The current error, raised by the frame's instruction, is no Ctrl-C; throws Interrupted if it is.
  void check_interrupt();
  /// Runs the handlers of signals that have arrived, outside of the capture.
  void handle_signals();
  class Suspended;
  /// As if there were no capture.
  void run_suspended(const std::function<void()>& run);
  bool is_last_word(Frame* real, int throwflag) const;
  void mute_last_word();
  PyObject* run_recorded(PyThreadState* thread, Frame* real, int throwflag);
  PyObject* run_uninterpreted(PyThreadState* thread, Frame* real, int throwflag);
  Ref hash_of_stand_in(Frame* real) const;
  const guards::Source* method_found_by_c(PyObject* function, PyObject* self);
  static void end_frame(PyThreadState* thread, Frame* real, const CodeInfo& info, int32_t instr, int32_t depth);
  void check_sticky();
  void force_exit();
  void trace_instruction();
  void restart_before_allocation(const Abandon& abandon);
  /// To be thrown: the segment is captured again, to end in front of the instruction.
  Restart restart_before(const BreakSite& site, std::string reason);
  Restart restart_before(const InterpFrame& f, std::string reason) {
    return restart_before({f.info->code, f.pc}, std::move(reason));
  }
  graph::PyArg py_arg(PyObject* object);
  /// What an operator raises now is not all that the caller would see: a handler, or a write that is kept back, comes
  /// in between.
  bool is_guarded() const;
  /// A local variable holds the value now: if that is a result, it is called so where people read the graph.
  void name_result(PyObject* value, PyObject* variable);
  void collect_results(PyObject* result, std::vector<int32_t>& path, std::vector<graph::TorchResult>& results,
                       int depth);
  Trace finish(const Ref& result);

  const KnownBreaks& known_breaks_;
  SpecializationFeedback& memory_;
  const bool resumed_;         // behind a side exit
  bool in_container_ = false;  // what is wrapped goes into a container that C code may read
  std::unordered_map<const guards::Source*, Ref> unknown_numbers_, number_inputs_;
  std::vector<Ref> data_floats_;
  std::unordered_map<PyObject*, SymbolicString> texts_;  // by stand-in
  std::vector<std::pair<Ref, Py_ssize_t>> draws_;        // random.Random objects, and how often they are drawn from
  std::set<PyObject*> members_;                          // of dicts and sets: objects that these know by identity
  std::unordered_map<PyObject*, Ref> arrays_;            // from outside -> its stand-in
  std::unordered_map<PyObject*, Ref> array_of_;          // tensor made of an array -> the array
  struct DeferredCall {
    Ref function;
    std::vector<Ref> args;
    std::vector<int64_t> versions;              // of the tensors among them, when it was made
    static constexpr int64_t kAnyVersion = -1;  // their data is not looked at
  };
  std::vector<DeferredCall> deferred_;
  std::set<graph::ValueId> cleared_grads_;  // inputs whose gradients the segment sets to None
  bool has_said_compiling_ = false;
  bool draw_decides_ = false;  // the outcome of a comparison of a drawn number is guarded
  int of_torch_ = 0;           // functions of PyTorch that are interpreted
  bool makes_tensors_of_sizes_ = false;
  std::unordered_map<const void*, Ref> size_numbers_;  // by expression
  std::vector<Ref> symbolic_bools_;
  guards::SizeAssumptions sizes_;
  std::vector<std::pair<guards::SizePlace, shapes::Expr>> required_;        // marked as dynamic
  std::vector<std::pair<shapes::Relation, std::string>> size_assumptions_;  // with the user's line
  std::vector<std::string> size_log_;
  std::string violation_;
  std::unordered_map<int64_t, shapes::Expr> duck_sizes_;  // equal sizes are one symbol
  std::pair<BreakSite, std::string> restart_;
  std::vector<CodePlace> site_;
  std::set<const CodeInfo*> codes_;
  InterpFrame root_;
  std::unordered_map<PyObject*, const guards::Source*> outside_;
  std::unordered_map<PyObject*, Ref> fake_of_;  // real tensor -> its fake's Python object
  struct Input {
    Ref real;
    const guards::Source* source;
    bool number = false;  // `real` wraps it
    bool array = false;   // `real` lies over its memory
  };
  std::unordered_map<graph::ValueId, Input> inputs_;
  std::unordered_map<PyObject*, Shadow> shadows_;                       // by original
  std::unordered_map<PyObject*, PyObject*> shadow_original_;            // shadow -> original
  std::vector<std::pair<PyObject*, std::vector<Ref>>> tails_;           // list without a shadow -> what was appended
  std::vector<std::unique_ptr<Overlay>> overlays_;                      // in order of first write
  std::unordered_map<PyObject*, Overlay*> overlay_of_[2];               // [items]
  std::unordered_map<PyObject*, const guards::Source*> cell_contents_;  // outside cell -> source of what it holds
  std::vector<std::pair<const guards::Source*, const guards::Source*>> cell_aliases_;  // one cell, read in two ways
  bool classes_written_ = false;
  bool makes_generators_ = false;
  std::set<PyObject*> class_values_;                                 // fresh objects written to classes
  std::vector<std::unique_ptr<std::pair<Ref, Ref>>> overlay_reads_;  // what deleted class attributes uncover
  std::vector<std::shared_ptr<graph::Region>> regions_;              // of the graph's operators, until it is finished
  int32_t region_calls_ = 0;                                         // operators with regions so far
  int64_t writes_ = 0;                                               // to outside objects so far
  int32_t last_guarded_ = -1;        // the last node of the graph that is_guarded() was true for
  bool handled_from_start_ = false;  // a handler waits for what the first instruction raises
  std::vector<Ref> kept_;
  Ref handled_at_start_;
  std::set<PyObject*> tracebacks_;  // made by us; kept_ has them
  std::unordered_map<PyObject*, BreakSite>
      allocation_sites_;         // address of a fresh object -> the instruction that gave it
  std::vector<Ref> generators_;  // weak references to those made during the capture
  std::unique_ptr<runtime::Exit> exit_;
  std::unique_ptr<runtime::Plan> plan_;
  std::unique_ptr<Rebuilder> rebuilder_;
  uint32_t steps_ = 0;         // instructions executed
  Ref program_interrupt_;      // a KeyboardInterrupt that the program itself raised
  Ref interrupt_;              // one that came from outside
  std::exception_ptr sticky_;  // what a callback threw; rethrown after the C call, or the instruction
  bool callbacks_allowed_ = false;
  const InterpFrame* called_back_from_ = nullptr;  // C code called from there has called back: it can't be cut
  bool plain_ = false;                             // Python code runs that is no part of the program (an import)
  std::span<PyObject* const> native_args_;         // of the Native function that runs
  bool recording_ = false;                         // a torch call runs
  bool trusted_ = false;                           // ...and is in Python code that may call whatever it likes
  bool backwards_run_ = false;                     // user's code is interpreted for gradients: nothing can be cut
  std::set<PyObject*> rehearsed_;                  // contexts of custom functions; autograd's graph has them
  bool engine_runs_ = false;                       // ...but for autograd's engine, which calls the user's code back
  guards::GlobalState start_state_;
  int64_t executed_ = 0;  // instructions, counted for exit_every
  int32_t start_depth_ = 0;
  bool reading_start_ = true;  // the stack that the segment starts with is being read
  struct ThreadState;
  std::unique_ptr<ThreadState> thread_state_;
  std::shared_ptr<const int64_t> alive_fakes_;
};

}  // namespace magneto::capture
