// Strings that depend on data.
//
// Invariant: one is known by its stand-in and the parts that it is made of; nobody reads it while capturing. Where one
// is read or handed on after all, the segment is captured again, and ends where it is made.
#pragma once

#include <Python.h>

#include <span>
#include <unordered_map>
#include <vector>

#include "capture/feedback.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// A part of a data-dependent text: `function(value, format)`; no function: the value itself, a text.
struct StringPart {
  Ref value, function, format;
};
struct SymbolicString {
  std::vector<StringPart> parts;
  std::vector<BreakSite> sites;  // where its parts are made
};

class Strings {
 public:
  explicit Strings(Capture& capture) : c(capture) {}
  Strings(const Strings&) = delete;

  /// format(value, format) of a tensor or such a number, or function(value), unless the program reads the text; null:
  /// made as any other.
  Ref text_of_data(PyObject* value, PyObject* format, PyObject* function = nullptr);
  Ref join_texts(std::span<PyObject* const> parts);
  /// The program reads the text: throws Retry.
  [[noreturn]] void need_text(PyObject* text);
  /// It is alive at the segment's end, where the run makes it of these. Throws Retry if it can't yet.
  const std::vector<StringPart>& parts_to_hand_on(PyObject* text);

  std::unordered_map<PyObject*, SymbolicString> made;  // by stand-in

 private:
  Ref unknown_text(SymbolicString text);
  /// What is known to become of the text that the current instruction makes; null: it is read.
  SpecializationFeedback::Text* demand_string();

  Capture& c;
};

}  // namespace magneto::capture
