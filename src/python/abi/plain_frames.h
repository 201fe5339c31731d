// Up to CPython 3.13 the slots of frames are plain pointers, and functions have their annotations. Included once, by
// the version's cpython_3xx.cpp, after cpython_common.h.
#pragma once

#include "python/abi/cpython_common.h"

namespace magneto {

namespace {

PyObject** plain_slots(Frame* frame) { return frame->localsplus; }
void give_back(Frame*) {}
void hide_slots(Frame*, bool) {}
void show_slots(Frame*) {}
void end_hiding() {}
int32_t slot_count(const Frame* frame) { return frame->stacktop; }
void set_slot_count(Frame* frame, int32_t count) { frame->stacktop = count; }

}  // namespace

PyObject** annotate_place(PyFunctionObject*) { return nullptr; }

Ref frame_slot(Frame* frame, int32_t slot) { return Ref::borrow(frame->localsplus[slot]); }

}  // namespace magneto
