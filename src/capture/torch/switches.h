// Switches of the process that the program sets: torch.backends.cuda.math_sdp_enabled() and the like.
//
// Invariant: while the capture runs, the process has what the program has set, since operators are chosen by it. When
// the capture ends, all is as it was, and the calls that are put off to the segment's end set what is to differ.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;

class Switches {
 public:
  explicit Switches(Capture& capture) : c(capture) {}
  Switches(const Switches&) = delete;

  /// What the getter says now, under a guard on what it says where the segment begins.
  Ref read(PyObject* getter, const CallArgs& args, const std::string& name);
  /// Calls the setter, whose last argument is what the getter gives for the others then. `steers_kernels`: operators
  /// look at it when they run, so that a change is a side exit.
  void set(PyObject* setter, PyObject* getter, const CallArgs& args, bool steers_kernels);
  /// At the segment's end.
  void leave();
  /// The process has what it had before the capture, or what the program has set of it.
  void put_back();
  void put_again();

  int sets = 0;  // changes by the program

 private:
  struct Switch {
    Ref setter;
    std::vector<Ref> args;  // all but the last
    Ref before, now;

    bool is_of(const Switch& other) const;  // one and the same switch
  };
  static void call(const Switch& of, PyObject* value);

  Capture& c;
  std::vector<Switch> changed_;
  bool is_set_ = true;
};

}  // namespace magneto::capture
