// The turns of loops over the places of a mask, and of `if`s, while they are interpreted. (mask_loops.h)
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "capture/capture.h"
#include "capture/torch/footprint.h"
#include "capture/torch/mask_loops.h"
#include "support/tensor_object.h"

namespace magneto::capture {

inline bool is_plain_tensor(PyObject* object) {
  return is_fake_tensor(object) && is_exact_tensor_type(Py_TYPE(object));
}

/// A number that the run chooses between two floats, or two ints. Null: they are none. (chosen_branches.cpp)
Ref chosen_number(Capture& c, PyObject* hit, PyObject* behind, PyObject* before);

/// One entry of the mask.
struct MaskLoops::Turn {
  Turn(Capture& capture, std::vector<PyObject*> roots) : from(capture), objects(capture, std::move(roots)) {}

  Footprint from;
  Snapshot objects;
  guards::GlobalState state = guards::GlobalState::read();
  Ref hit;
  std::vector<Ref> slots;  // of the frame, in front of it
  std::vector<uint8_t> raw;
  std::map<int32_t, Ref> copies;  // of tensors that it writes, by slot
  bool general = false;           // what the session was set to
};

struct MaskLoops::Loop {
  InterpFrame* frame;
  BreakSite site;  // of FOR_ITER
  int32_t depth;
  int64_t entries;
  int64_t dims;  // of a row
  graph::ValueId rows;
  Ref iterator, hits;
  int64_t turns = 0;
  std::unique_ptr<Turn> turn;
  // Of an `if`, which is one turn: its instructions, and the stack in front of them.
  int32_t first = -1, end = -1;
  std::vector<PyObject*> stack;
  // Of one with an `else`, which is a second turn behind the first: its instructions, whether each ends where it gives
  // a value, wherever that is, whether the second is under way, and what the first one left of local variables and on
  // the stack.
  int32_t other_first = -1, other_end = -1;
  bool returns = false;
  std::vector<Ref> held_stack;  // where each gives a value
  bool is_other = false;
  std::vector<Ref> behind_first;
  Ref value_of_first;
};

}  // namespace magneto::capture
