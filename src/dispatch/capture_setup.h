// What a compiled callable, and the settings, say of a capture before it begins.
#pragma once

#include <Python.h>

#include <map>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "dispatch/context.h"

namespace magneto::dispatch {

/// Where the user sees a segment begin. Of a module, whose call is PyTorch's code, at its `forward`.
CodePlace place_of(const Context& context, const capture::Start& start);

/// Captures kept of a segment.
int64_t entry_limit(const Context& context);

/// Sets the capture's options.
void set_up(capture::Capture& capture, const Context& context, const Segment& segment, const capture::Start& start);

/// Under the stance "eager_then_compile" a first call is captured for what it reads alone; whether this is one. From
/// the next one on it is none.
bool is_only_looked_at(Segment& segment);

/// The sizes that compile(shapes_spec=...) declares: marks on the arguments, as magneto.mark_dynamic and its like make,
/// while it lives. The specification is that of magneto/_shapes_spec.py.
class DeclaredShapes {
 public:
  DeclaredShapes(const Context& context, const capture::Start& start);
  ~DeclaredShapes();
  DeclaredShapes(const DeclaredShapes&) = delete;
  /// What an argument is that it was not to be; empty: all are as declared.
  const std::string& violation() const { return violation_; }

 private:
  struct Before {
    Ref tensor;
    const char* name;
    Ref value;  // null: none
  };
  void add(const std::string& parameter, PyObject* argument, PyObject* dimensions);
  void mark(PyObject* tensor, const char* name, PyObject* value);

  std::string violation_;
  std::map<std::string, int64_t> named_;  // dimensions of one name have one size
  std::vector<Before> before_;
};

}  // namespace magneto::dispatch
