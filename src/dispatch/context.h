// What one compiled callable keeps: its options and the segments captured for it.
#pragma once

#include <Python.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "capture/capture.h"
#include "compiler/backends.h"
#include "dispatch/eager.h"
#include "guards/guards.h"
#include "runtime/plan/plan.h"
#include "support/settings.h"

namespace magneto::dispatch {

/// Where captures start: code object, instruction, and the address of the instance that was compiled (all modules share
/// the code of Module.__call__) or null.
using Place = std::tuple<PyCodeObject*, int32_t, const void*>;

/// All captures that start at one place, over all compiled callables of a function or of one instance: what
/// accumulated_cache_size_limit bounds.
int64_t& captures_at(const Place& place);

/// What a capture depends on and no guard checks: the same in copies of one capture.
struct Circumstances {
  Settings settings;
  uint64_t marks;           // capture::marks_made()
  const PyObject* globals;  // of the frame's function; an address only
  bool operator==(const Circumstances&) const = default;
};

/// A captured segment: guards, and the plan that holds under them.
struct Entry {
  Entry(const Place& place, std::string id)
      : id(std::move(id)),
        place_(place),
        code_(Ref::borrow(reinterpret_cast<PyObject*>(std::get<PyCodeObject*>(place)))) {
    ++captures_at(place_);
  }
  ~Entry() { --captures_at(place_); }
  Entry(const Entry&) = delete;

  std::string id;  // "0/1", as logs name its compile
  std::unique_ptr<guards::GuardProgram> guards;
  std::unique_ptr<runtime::Plan> plan;
  std::shared_ptr<const Circumstances> circumstances;
  std::vector<bool> watched;  // runtime::CompileWay

 private:
  Place place_;
  Ref code_;  // an address in use
};

/// Why a run of compiled code raised (dispatch/rerun.h).
enum class Fault : uint8_t { Programs, Assumption, Ours };

/// All captures that start at one instruction of one code object.
struct Segment {
  std::vector<std::unique_ptr<Entry>> entries;
  int32_t frame_id = -1;  // what logs call it, from its first compile on
  int32_t compiles = 0;
  capture::KnownBreaks known_breaks;
  std::string raised;  // what the program raised in the last capture, until it is known that it does so for real
  bool raised_as_compiled = false;      // ...when it had heard that it is being compiled
  bool given_up = false;                // runs under CPython from here on; said and counted when it was decided
  bool has_learnt = false;              // under the stance "eager_then_compile": a first call was looked at
  int64_t eager_runs = 0;               // under CPython, because no capture served
  std::map<std::string, Fault> raises;  // by type of exception: why runs of compiled code ended with it
  capture::SpecializationFeedback memory;
  /// Runs of entries that went on over data-dependent sizes, for which an answer did not hold.
  /// After some, other captures take the place of such entries, which calls may still run.
  int data_failures = 0;
  bool state_changed = false;  // what a module had noted was otherwise once
  std::vector<std::unique_ptr<Entry>> replaced;
  bool data_changes = false;  // of buffers whose values a capture went on with: the next captures end there

  /// The entries as they are now, for readers that may run Python: another thread adds to `entries` meanwhile. They
  /// themselves stay as long as a call is in flight.
  std::vector<Entry*> snapshot() const {
    std::vector<Entry*> all;
    for (const auto& entry : entries) all.push_back(entry.get());
    return all;
  }
};

/// One graph break or capture, for `explain`.
struct Report {
  struct Break {
    std::string reason;
    std::vector<std::tuple<std::string, int, std::string>> stack;  // file, line, function; outermost first
  };
  std::vector<Ref> graphs;  // torch.fx.GraphModule
  std::vector<std::vector<Ref>> ops;
  std::vector<Break> breaks;
  std::vector<std::string> guards;
  std::vector<std::string> graph_texts, plan_texts;
  /// For each graph what its stages are, by name; only if asked for.
  bool wants_stages = false;
  std::vector<std::vector<std::pair<std::string, std::string>>> stages;
  std::vector<int64_t> planned_peaks;  // of compiled programs: a graph's, or its forward's and backwards'
  double capture_seconds = 0, backend_seconds = 0;
};

/// Counts resets; contexts notice on their next call.
uint64_t& reset_generation();

class Siblings;

struct Context {
  Context() = default;
  ~Context();
  Context(const Context&) = delete;

  PyObject* owner = nullptr;        // the CompiledFunction; borrowed
  PyObject* options = nullptr;      // a dict: what it was compiled with; the owner's
  PyTypeObject* subject = nullptr;  // the class of the instance that was compiled; an address only
  const void* instance = nullptr;   // ...and its own
  bool fullgraph = false;
  std::string name;            // what the program calls it, for profilers and dumps; may be empty
  PyObject* shapes = nullptr;  // of compile(shapes_spec=...): a dict, the options'; null: none
  const compiler::Backend* backend = &compiler::backends().front();
  Ref backend_callable;  // of callable_backend()
  OwnSettings settings;
  int dynamic = -1;  // of torch.compile; -1: None
  Report* report = nullptr;
  EagerCalls eager_calls;
  std::shared_ptr<Siblings> siblings;  // null: it was compiled for no instance

  /// The captures that start at that instruction. Valid while an InFlight lives.
  Segment& segment(const CodeInfo& info, int32_t instr) {
    if (instr != 0) return segments_[{info.code, instr}];
    if (first_info_ != &info) {
      first_ = &segments_[{info.code, 0}];
      first_info_ = &info;
    }
    return *first_;
  }

  /// The same, if anything has started there since the last reset.
  const Segment* find_segment(PyCodeObject* code, int32_t instr) const {
    if (generation_ != reset_generation()) return nullptr;
    const auto found = segments_.find({code, instr});
    return found == segments_.end() ? nullptr : &found->second;
  }

  /// Calls `visit(place, segment)` for all places where captures start.
  template <typename Visit>
  void for_each_segment(const Visit& visit) const {
    for (const auto& [place, segment] : segments_) visit(place, segment);
  }

  /// Takes over what the captures of another context have found of the values that they read.
  void learn_from(const Context& other) {
    if (other.generation_ != generation_) return;
    for (const auto& [place, segment] : other.segments_) segments_[place].memory = segment.memory;
  }

  /// For the cyclic garbage collector: a callable that its own captures reach (by a module's globals, by a closure)
  /// goes when nothing else has it.
  int traverse(visitproc visit, void* arg) const;

  /// One call. Captures from before the last reset are dropped at a call's start; those that other calls (of other
  /// threads, or around this one) still run are kept until these end.
  class InFlight {
   public:
    explicit InFlight(Context& context);
    ~InFlight();

   private:
    Context& context_;
  };

 private:
  using Segments = std::map<std::pair<PyCodeObject*, int32_t>, Segment>;
  Segments segments_;
  const CodeInfo* first_info_ = nullptr;  // the last code whose first segment was asked for
  Segment* first_ = nullptr;
  uint64_t generation_ = reset_generation();
  int calls_ = 0;
  std::vector<Segments> retired_;
};

/// Python callables that are told of the id of each compile when it begins and when it ends; null: nobody is.
struct CompileHooks {
  Ref start, end;
};
CompileHooks& compile_hooks();

/// The entry whose guards hold, captured if there is none yet; `*slots` are what they loaded. Null: CPython runs the
/// frame from here (no error set), or, with an error set, the call fails (Unsupported under fullgraph, strict mode, a
/// backend's error, Ctrl-C).
Entry* entry_for(Context& context, Segment& segment, const capture::Start& start, PyObject* const** slots);

/// After CPython has run what a capture saw raise (Segment::raised): an ordinary result means that the capture was
/// wrong, which is said like any failure of ours. Gives the result, or null when the user asked for an error.
PyObject* check_raised(Context& context, Segment& segment, const CodeInfo& info, int32_t instr, PyObject* result);

}  // namespace magneto::dispatch
