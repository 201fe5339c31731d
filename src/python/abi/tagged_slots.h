// The slots of CPython 3.14's frames. Included once, by cpython_314.cpp, after cpython_common.h.
//
// A slot is a reference with a tag in its lowest bits: 1, and it does not own its object (immortal objects always have
// that tag, and tests for None, True and False compare all bits); 1 alone, and it is empty; 3, and it is a number (the
// place that RERAISE goes back to). A frame that is ours holds plain owned pointers, null where a slot is empty: so all
// that looks at frames (tracebacks, f_locals, the garbage collector) can read them too. Before CPython goes on, they
// get their tags.
#pragma once

#include <cstdint>
#include <vector>

#include "python/abi/cpython_common.h"
#include "python/bytecode/raise_places.h"

namespace magneto {

namespace {

constexpr uintptr_t kBorrowed = 1;
constexpr uintptr_t kNumber = 3;
constexpr uintptr_t kTags = 3;

PyObject* object_of(_PyStackRef slot) { return reinterpret_cast<PyObject*>(slot.bits & ~kTags); }

Ref frame_number(_PyStackRef slot) { return checked(PyLong_FromSsize_t(static_cast<intptr_t>(slot.bits) >> 2)); }

void make_plain(_PyStackRef& slot) {
  const uintptr_t tag = slot.bits & kTags;
  if (tag == 0) return;
  if (tag == kNumber) {
    slot.bits = reinterpret_cast<uintptr_t>(frame_number(slot).release());
  } else {
    slot.bits = reinterpret_cast<uintptr_t>(Py_XNewRef(object_of(slot)));
  }
}

PyObject** plain_slots(Frame* frame) {
  for (_PyStackRef* slot = frame->localsplus; slot < frame->stackpointer; ++slot) make_plain(*slot);
  return reinterpret_cast<PyObject**>(frame->localsplus);
}

/// A plain number on the stack, where the frame goes on, is the place that a handler raises from.
bool is_raise_place(Frame* frame, const _PyStackRef* slot) {
  PyCodeObject* code = frame_code(frame);
  const auto depth = static_cast<int32_t>(slot - frame->localsplus) - code->co_nlocalsplus;
  if (depth < 0 || PyBytes_GET_SIZE(code->co_exceptiontable) == 0 || !PyLong_CheckExact(object_of(*slot))) return false;
  const int32_t unit = next_unit(frame);
  if (frame->instr_ptr != _PyCode_CODE(code) + unit || unit < 0 || unit >= Py_SIZE(code))
    return false;  // frame_return's
  const CodeInfo& info = decode(code);
  return holds_raise_place(info, frame_next_instr(frame, info), depth);
}

void give_back(Frame* frame) {
  for (_PyStackRef* slot = frame->localsplus; slot < frame->stackpointer; ++slot) {
    if (slot->bits & kTags) continue;
    PyObject* object = object_of(*slot);
    if (!object) {
      slot->bits = kBorrowed;
    } else if (object->ob_flags & kBorrowed) {
      slot->bits |= kBorrowed;
    } else if (is_raise_place(frame, slot)) {
      slot->bits = static_cast<uintptr_t>(PyLong_AsSsize_t(object)) << 2 | kNumber;
      Py_DECREF(object);
    }
  }
}

/// The collector of 3.14's first releases looks at the slots of running frames, up to the stack pointer, and knows no
/// null there.
struct HiddenSlots {
  Frame* frame;  // null: shown again
  int32_t count;
};
thread_local std::vector<HiddenSlots> hidden_slots;

void hide_slots(Frame* frame, bool locals_are_left) {
  plain_slots(frame);
  hidden_slots.push_back({frame, slot_count(frame)});
  set_slot_count(frame, 0);
  if (!locals_are_left) return;
  _PyStackRef* const locals = frame->localsplus;
  for (_PyStackRef* slot = locals; slot < locals + frame_code(frame)->co_nlocalsplus; ++slot) {
    if (!slot->bits) slot->bits = kBorrowed;  // whoever writes to f_locals drops what a slot held, unless it is this
  }
}

void show_slots(Frame* frame) {
  if (hidden_slots.empty() || hidden_slots.back().frame != frame) return;
  hidden_slots.back().frame = nullptr;
  set_slot_count(frame, hidden_slots.back().count);
  plain_slots(frame);  // f_locals may have been written to
}

void end_hiding() {
  if (Frame* frame = hidden_slots.back().frame) show_slots(frame);
  hidden_slots.pop_back();
}

int32_t slot_count(const Frame* frame) { return static_cast<int32_t>(frame->stackpointer - frame->localsplus); }
void set_slot_count(Frame* frame, int32_t count) { frame->stackpointer = frame->localsplus + count; }

}  // namespace

Ref frame_slot(Frame* frame, int32_t slot) {
  const _PyStackRef entry = frame->localsplus[slot];
  return (entry.bits & kTags) == kNumber ? frame_number(entry) : Ref::borrow(object_of(entry));
}

}  // namespace magneto
