#include "dispatch/rerun.h"

#include "dispatch/report.h"
#include "python/abi/frame.h"
#include "python/imported.h"
#include "python/text.h"
#include "runtime/plan/failed_call.h"
#include "runtime/plan/issued_collectives.h"
#include "runtime/program/promise.h"

namespace magneto::dispatch {
namespace {

/// Notes whether an exception of a type (null: of any type) is raised on this thread while it lives.
class Watch {
 public:
  Watch(PyThreadState* thread, PyTypeObject* type) : thread_(thread), type_(type), outer_(current()) {
    if (is_traced(thread)) return;  // a debugger's: it stays
    current() = this;
    PyEval_SetTrace(&Watch::see, nullptr);
    watches_ = true;
  }
  ~Watch() {
    if (!watches_) return;
    if (thread_->c_tracefunc == &Watch::see) {  // the program has not set its own
      SavedError saved;
      PyEval_SetTrace(nullptr, nullptr);
    }
    current() = outer_;
  }
  Watch(const Watch&) = delete;

  static Watch*& current() {
    static thread_local Watch* watch = nullptr;
    return watch;
  }
  static bool is_tracer_of(PyThreadState* thread) { return current() && thread->c_tracefunc == &Watch::see; }

  /// Nothing that could be seen was.
  bool saw_none() const { return watches_ && !seen_; }

 private:
  static int see(PyObject*, PyFrameObject*, int what, PyObject* argument) {
    Watch* watch = current();
    if (!watch || what != PyTrace_EXCEPTION || !argument || !PyTuple_Check(argument)) return 0;
    PyObject* type = PyTuple_GET_ITEM(argument, 0);
    watch->seen_ |=
        PyType_Check(type) && (!watch->type_ || PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), watch->type_));
    return 0;
  }

  PyThreadState* thread_;
  PyTypeObject* type_;
  Watch* outer_;
  bool watches_ = false, seen_ = false;
};

/// Memory that the first run lacked the second one may find.
bool is_out_of_memory(PyObject* raised, std::string_view message) {
  static constinit Imported of_devices("torch", "OutOfMemoryError");
  if (PyErr_GivenExceptionMatches(raised, PyExc_MemoryError)) return true;
  if (PyErr_GivenExceptionMatches(raised, of_devices.get())) return true;
  return message.find("can't allocate memory") != message.npos || message.find("bad_alloc") != message.npos;
}

void capture_anew(Segment& segment) {
  for (auto& entry : segment.entries) segment.replaced.push_back(std::move(entry));
  segment.entries.clear();
}

/// An operator has asked of a size what the data of this call answer otherwise than the capture. True: nobody needs to
/// hear of it, and where it comes often, the next capture ends in front of what makes such sizes. What a module has
/// noted (`of_state`) stays so as a rule: once, the next capture goes on with what it has noted by now.
bool answers_otherwise(Segment& segment, const Context& context, bool of_state) {
  constexpr int kOften = 4;
  if (of_state && !std::exchange(segment.state_changed, true)) {
    capture_anew(segment);
    return true;
  }
  if (context.fullgraph || !segment.memory.checks_data_sizes || segment.memory.ends_at_data_sizes) return false;
  if (++segment.data_failures == kOften) {
    segment.memory.ends_at_data_sizes = true;
    capture_anew(segment);
  }
  return true;
}

}  // namespace

bool is_watched_rerun(PyThreadState* thread) { return Watch::is_tracer_of(thread); }

PyObject* run_again(Context& context, Segment& segment, const CodePlace& place,
                    const std::function<PyObject*()>& again) {
  const Ref raised = take_error();
  PyTypeObject* type = Py_TYPE(raised.get());
  const Ref words = Ref::steal(PyObject_Str(raised.get()));
  if (!words) PyErr_Clear();
  const std::string_view message = words ? text_argument(words.get()) : "";
  Fault fault = Fault::Programs;
  PyObject* result;
  const bool is_assumption = message.starts_with(runtime::kNotSo);
  const bool skips_step = message.find(runtime::kSteps) != message.npos;
  const bool of_state = message.find(runtime::kNoted) != message.npos;
  const bool is_promise = message.find(runtime::kPromised) != message.npos;
  const bool is_expected =
      is_assumption && (skips_step || (!is_promise && answers_otherwise(segment, context, of_state)));
  std::optional<runtime::RaiseAgain> raise_again(std::in_place, is_assumption ? nullptr : raised.get());
  std::pair<Ref, int> called_at;  // the operator that broke its promise
  std::optional<runtime::IssuedAgain> issued_again(std::in_place);
  if (is_assumption) {
    fault = Fault::Assumption;
    result = again();
    called_at = raise_again->place();
  } else if (is_out_of_memory(raised.get(), message)) {
    result = again();
  } else if (const auto known = segment.raises.find(type->tp_name); known != segment.raises.end()) {
    fault = known->second;
    result = again();
  } else {
    // The check of an assertion stands for an exception of any type, and lookups raise now one, now the other.
    const bool is_check = message.starts_with("Expected Tensor with single nonzero value");
    const bool is_lookup = PyErr_GivenExceptionMatches(raised.get(), PyExc_IndexError);
    const Watch watch(PyThreadState_Get(), is_check || is_lookup ? nullptr : type);
    result = again();
    if (watch.saw_none() && result) fault = Fault::Ours;
    segment.raises.emplace(type->tp_name, fault);
  }
  issued_again.reset();
  raise_again.reset();
  {
    SavedError saved;
    report_undone(place, raised.get(), fault);
  }
  if (result && fault != Fault::Programs && !is_expected &&
      !allow_undone(context, place, raised.get(), fault, called_at)) {
    Py_CLEAR(result);
  }
  return result;
}

}  // namespace magneto::dispatch
