// Guards: everything that a capture assumed, checked natively before each run of its plan.
//
// A capture fills a GuardSet. `GuardProgram` compiles it into a flat list in which each source is loaded once, into a
// slot, after its base; the plan then reads its inputs from the same slots. A check that once passed is remembered by
// version (dict version tags, type version tags), so that a hit costs a few nanoseconds per object and no hash look-up.
// No check runs Python code.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "guards/sizes.h"
#include "guards/source.h"
#include "guards/user_place.h"

namespace magneto::guards {

/// The interpreter-wide and thread-wide switches that change what torch code does; compared as a whole.
struct GlobalState {
  bool grad_mode = true;
  bool inference_mode = false;
  bool autocast_cpu = false;
  bool autocast_cuda = false;
  bool autocast_cache = true;
  bool autocast_region = false;  // it is in one, on or off
  bool deterministic = false;
  bool deterministic_warn_only = false;
  bool torch_function_enabled = true;        // for subclasses
  bool torch_function_modes_enabled = true;  // for modes
  int64_t torch_function_modes = 0;          // number of modes on the stack
  uint64_t torch_function_stack = 0;         // which modes; of torch.device contexts, which devices
  c10::ScalarType default_dtype = c10::ScalarType::Float;
  c10::ScalarType autocast_cpu_dtype = c10::ScalarType::BFloat16;
  c10::ScalarType autocast_cuda_dtype = c10::ScalarType::Half;
  int32_t num_threads = 1;
  // The thread's own dispatch keys, raw: dispatch modes, functorch transforms and whatever else hooks the dispatcher.
  uint64_t dispatch_included = 0;
  uint64_t dispatch_excluded = 0;

  /// Reads the state of the current thread. Cheap (tens of nanoseconds).
  static GlobalState read();
  bool operator==(const GlobalState&) const = default;
  /// "grad mode changed: was True, is False"; empty when equal.
  std::string difference(const GlobalState& now) const;
};

/// The torch function modes of the thread, the outermost first; borrowed.
std::vector<PyObject*> function_modes();
/// The device of a mode that `with torch.device(...)` has entered; nothing for other modes.
std::optional<c10::Device> device_of_context(PyObject* mode);

/// What a tensor guard compares besides the exact Python type.
struct TensorGuard {
  PyTypeObject* type;  // exact Python type (Tensor, Parameter)
  c10::ScalarType dtype;
  c10::Device device;
  uint64_t dispatch_keys;  // raw key set
  bool requires_grad;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  /// By dimension: the size is checked elsewhere, and the stride; empty: all here.
  std::vector<bool> free_sizes = {}, free_strides = {};
  /// Sizes differ from item to item where they are free.
  bool nested = false;
};

/// Checks that hang on sources. Adding the same check twice keeps one.
class GuardSet {
 public:
  explicit GuardSet(SourceTable& sources);

  /// The value's exact type. Also implied by every other check below except `identity`, `alias` and `absent`.
  void type(const Source* source, PyTypeObject* type);
  /// The value is this very object, which is kept alive, if it is not an instance of a class of Python's that can be
  /// referred to weakly: programs notice when those go.
  void identity(const Source* source, PyObject* object);
  /// Exact type and equal value, for None, bool, int, float (bitwise: nan equals nan, 0.0 differs from -0.0), complex,
  /// str, bytes, their subclasses, NumPy's real numbers, and tuples, sets and frozensets of exact ones; sets may hold
  /// objects that are equal to themselves alone, too.
  void equals(const Source* source, PyObject* constant);
  /// The source can't be loaded: no such dict entry or attribute, or an empty cell.
  void absent(const Source* source);
  /// Exact type and length, for list, tuple, dict, set, frozenset and their subclasses.
  void length(const Source* source, PyTypeObject* type, Py_ssize_t length);
  /// The dict's keys, in order (keys as in SourceTable::dict_item).
  void dict_keys(const Source* source, PyTypeObject* type, const std::vector<PyObject*>& keys);
  /// A tensor with this metadata; `tensor` is the real one seen by the capture.
  void tensor(const Source* source, PyObject* tensor);
  /// The same, but for the sizes and strides of some dimensions.
  void tensor(const Source* source, PyObject* tensor, std::vector<bool> free_sizes, std::vector<bool> free_strides);
  /// What was assumed of those.
  void sizes(SizeAssumptions assumptions);
  /// A small CPU tensor holds these bytes; its metadata is guarded too.
  void tensor_data(const Source* source, PyObject* tensor);
  /// An array of NumPy with this layout (array.h); its contents may differ.
  void array(const Source* source, PyObject* layout);
  /// A method of a C type bound to an object: this method. What it is bound to is a source of its own.
  void builtin_method(const Source* source, PyObject* method);
  /// Both sources load the same object.
  void alias(const Source* source, const Source* same_as);
  /// The two sources load different objects.
  void distinct(const Source* source, const Source* other);
  /// No two of the sources load the same object (absent ones aside). Linear in their number, unlike all pairs.
  void distinct(const std::vector<const Source*>& sources);
  /// A Python function (or the Function root): its __code__, __defaults__ and __kwdefaults__ are those objects.
  void function(const Source* source, PyObject* function);
  /// `_PyType_Lookup(type, name)` gives this object (null: nothing). Holds for instances whose type is guarded.
  void type_lookup(PyTypeObject* type, PyObject* name, PyObject* found);
  /// The type's method resolution order is as it is now.
  void bases(PyTypeObject* type);
  /// No class has been registered with an abstract base class since.
  void abc_registrations();
  /// The C function, which only reads a state of the process, gives this constant for these constants.
  void state(PyObject* function, const std::vector<PyObject*>& args, PyObject* constant);
  /// Makes the source loadable as a slot of the program even if nothing is checked on it.
  void require(const Source* source);

  void set_global_state(const GlobalState& state);
  /// From here on, each new check is noted with the place that `place` gives.
  void note_places(std::function<UserPlace()> place);

  /// One guard per line, in the order of checking, as TORCH_LOGS=guards shows them.
  std::string print() const;

  struct Impl;
  Impl& impl() const { return *impl_; }
  ~GuardSet();
  GuardSet(GuardSet&&) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Where the roots are, for one check. All borrowed.
struct Roots {
  PyObject* function;       // may be null when no Function source is used
  PyObject* const* locals;  // localsplus: locals, cells, free variables
  PyObject* const* stack;   // value stack, bottom first
};

class GuardProgram {
 public:
  /// Compiles a set. Keeps alive every object that a check compares with or a source names; after that the set and its
  /// table may go. Inserts the memo versions by running the checks once against `roots` if they hold.
  GuardProgram(const GuardSet& set, const SourceTable& sources);
  ~GuardProgram();

  /// Number of slots that `check` gives.
  int32_t slot_count() const;
  /// The slot a source is loaded into; -1 if the program does not load it.
  int32_t slot_of(const Source* source) const;

  /// Runs all checks, cheapest and most failing first. On success gives the slots, slot_count() borrowed references,
  /// valid until Python code runs or the program checks again (absent sources: null); null if a check fails. Never
  /// raises, runs no Python code. Not reentrant for one thread, safe under the GIL.
  PyObject* const* check(const Roots& roots);

  /// Whether `check` would pass: leaves what it has learned of its own roots alone.
  bool would_hold(const Roots& roots);

  /// The same checks, with nothing learned: for roots of its own.
  std::unique_ptr<GuardProgram> copy() const;

  /// The last check failed because a tensor holds other data than the capture read.
  bool failed_on_data() const;

  /// Why `check` fails for these roots, as the recompile log words it, e.g.
  /// "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"; empty when it holds. May allocate; not hot.
  std::string explain(const Roots& roots);

  /// All checks that fail for these roots and can be looked at, each as `explain` words it.
  std::vector<std::string> explain_all(const Roots& roots);

  /// The checks as text, one per line.
  std::string print() const;
  /// The checks below the sources that they hang on, with the user's lines if they were noted, as TORCH_LOGS=guards
  /// shows them.
  std::string print_tree() const;

  /// For the cyclic garbage collector: the objects that it keeps alive, each as often as it owns it.
  int traverse(visitproc visit, void* arg) const;

  /// Called when the program ends, while it is still whole.
  std::function<void()> on_end;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  explicit GuardProgram(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace magneto::guards
