// Variables of the thread's context (contextvars.ContextVar): what the program reads of them, and what it sets.
//
// Invariant: the thread's context stays as it is while a capture runs. What is read of it has left a guard; what the
// program sets is known here, and set by the calls that are put off to the segment's end, in the program's order.
#pragma once

#include <unordered_map>

#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct DeferredCall;

class ContextVariables {
 public:
  explicit ContextVariables(Capture& capture) : c(capture) {}
  ContextVariables(const ContextVariables&) = delete;

  /// What the variable has; else `otherwise`, or its default. Null: none of these.
  Ref get(PyObject* variable, PyObject* otherwise);
  /// Gives the token.
  Ref set(PyObject* variable, PyObject* value);
  void reset(PyObject* variable, PyObject* token);
  /// The call put off sets or resets a variable.
  static bool is_change(const DeferredCall& call);
  /// A token that the segment has made.
  bool has_made(PyObject* token) const { return tokens_.contains(token); }
  /// It was used, and none of the calls put off makes it.
  bool is_left_out(PyObject* token) const { return tokens_.at(token).left_out; }
  PyObject* variable_of(PyObject* token) const { return tokens_.at(token).variable.get(); }

 private:
  struct Token {
    Ref variable;
    bool was_set = false;  // in this segment, to:
    Ref before;
    bool used = false;
    bool left_out = false;
  };

  Capture& c;
  std::unordered_map<PyObject*, Ref> values_;  // of what the segment has set
  std::unordered_map<PyObject*, Token> tokens_;
};

}  // namespace magneto::capture
