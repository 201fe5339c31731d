// Objects of one class, each compiled for itself in the same way, as `for block in blocks: block.compile()` does: what
// was captured for one serves all for which its guards hold.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

#include "dispatch/context.h"

namespace magneto::dispatch {

/// The contexts of such objects. Under the GIL.
class Siblings {
 public:
  /// Joins those of the same function, class and options. `function` is what the context's owner keeps alive.
  static void join(Context& context, PyObject* function);
  static void leave(Context& context);

  const std::vector<Context*>& contexts() const { return contexts_; }

 private:
  std::pair<PyObject*, PyTypeObject*> key_;
  std::vector<Context*> contexts_;  // in the order of their making
};

/// What captures depend on now.
Circumstances circumstances_of(const capture::Start& start);

/// By input: a convolution's weight that may be watched (runtime::CompileWay). `inputs` are Python tensors.
std::vector<bool> watched_weights(const std::vector<PyObject*>& inputs);

/// A copy of a sibling's entry whose guards hold here, new in the segment: no capture, no code. Null: there is none.
/// `*slots`: what the guards loaded. No Python code runs.
Entry* adopt_entry(Context& context, Segment& segment, const capture::Start& start, PyObject* const** slots);

}  // namespace magneto::dispatch
