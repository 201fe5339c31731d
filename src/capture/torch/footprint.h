// What some of the program has left behind that nobody knows to run: a branch, or a turn of a loop.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture.h"

namespace magneto::capture {

/// The objects that can be reached from some that the capture has made, and what each of them refers to: to see whether
/// anything there has been changed.
class Snapshot {
 public:
  Snapshot(const Capture& capture, std::vector<PyObject*> roots);
  /// Empty: all is as it was, as far as can be told. Else what is not.
  std::string change() const;

 private:
  std::vector<std::pair<Ref, std::vector<PyObject*>>> objects_;
  std::string unknown_;  // it can't be told
};

/// Where a capture was before it: what there is behind it is its own.
struct Footprint {
  explicit Footprint(const Capture& capture);
  /// Empty: it has changed no object, and the sizes of no tensor that was there before. Else what it has done.
  /// `before`: the objects that it can reach.
  std::string change(const Capture& capture, const Snapshot& before) const;
  /// The operators behind it draw numbers, or write what no schema says. Empty: they do not.
  std::string hidden_effect(const graph::Graph& graph) const;
  /// Was there before, or is from outside.
  bool was_before(const graph::Graph& graph, graph::ValueId id) const {
    return static_cast<size_t>(id) < session.values || graph.values[id].kind == graph::ValueKind::Input;
  }

  fake::Session::Mark session;
  size_t torch_nodes, symbols;
  int64_t writes;
  size_t deferred;
  size_t hooks;
  int switched;
  int64_t draws;
};

/// The tensors whose sizes operators like `squeeze_` change, from one operator on, one for each such operator.
std::vector<graph::ValueId> changed_in_place(const graph::Graph& graph, size_t from);

}  // namespace magneto::capture
