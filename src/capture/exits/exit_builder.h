// The end of a segment: its exit, its plan, and where a new capture has to end instead.
//
// Invariant: at most one exit is built, of frames all of which can be cut; a value that no plan can make leads back to
// the instruction that made it.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "capture/exits/control_flow.h"
#include "capture/feedback.h"
#include "capture/interpreter/interp_frame.h"
#include "python/ref.h"

namespace magneto::runtime {
struct Exit;
struct Plan;
}  // namespace magneto::runtime

namespace magneto::capture {

class Capture;
class Rebuilder;

class ExitBuilder {
 public:
  explicit ExitBuilder(Capture& capture);
  ~ExitBuilder();
  ExitBuilder(const ExitBuilder&) = delete;

  /// Notes what the current instruction made, should it turn out that no plan can make it: the segment then ends here.
  void note_allocation_site(PyObject* object);
  void restart_before_allocation(const Abandon& abandon);
  /// Where the object was made during this capture; null: not noted.
  const BreakSite* allocation_site(PyObject* object) const;
  /// To be thrown: the segment is captured again, to end in front of the instruction.
  Restart restart_before(const BreakSite& site, std::string message, BreakReason reason = BreakReason::Callback);
  Restart restart_before(const InterpFrame& f, std::string message, BreakReason reason = BreakReason::Callback) {
    return restart_before(BreakSite(f.info->code, f.pc), std::move(message), reason);
  }

  std::pair<BreakSite, KnownBreak> restart;
  std::unique_ptr<runtime::Exit> exit;
  std::unique_ptr<runtime::Plan> plan;
  std::unique_ptr<Rebuilder> rebuilder;

 private:
  Capture& c;
  std::unordered_map<PyObject*, BreakSite> allocation_sites_;  // by address: the instruction that gave the fresh object
};

}  // namespace magneto::capture
