// Graphs handed to Python as opaque objects.
#pragma once

#include <memory>
#include <utility>

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::graph {

inline constexpr const char* kGraphCapsule = "magneto.Graph";

inline Ref graph_capsule(Graph graph) {
  auto held = std::make_unique<Graph>(std::move(graph));
  Ref capsule = checked(PyCapsule_New(held.get(), kGraphCapsule, [](PyObject* self) {
    delete static_cast<Graph*>(PyCapsule_GetPointer(self, kGraphCapsule));
  }));
  (void)held.release();  // the capsule owns it
  return capsule;
}

/// Throws PythonError for another object.
inline const Graph& graph_in(PyObject* capsule) {
  void* pointer = PyCapsule_GetPointer(capsule, kGraphCapsule);
  if (!pointer) throw PythonError{};
  return *static_cast<Graph*>(pointer);
}

}  // namespace magneto::graph
