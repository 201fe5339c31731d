// Generators of NumPy that the segment makes with a seed: np.random.default_rng(0), np.random.RandomState(0).
//
// Invariant: such a generator is real, and what the program draws while capturing it draws for real. So numbers are
// constants, and its state is that of each run. An array is drawn anew by each run, from the state that the generator
// had, which is a constant, too.
#pragma once

#include <Python.h>

#include "capture/calls/call_args.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// The segment has made it, with a seed.
bool is_made_generator(const Capture& capture, PyObject* object);
/// A call that makes one. Null: it is none, or asks the system for a seed.
Ref make_generator(Capture& capture, PyObject* callable, const CallArgs& args);
/// A call of a method of one that draws. Null: it is none of these.
Ref draw_of_made(Capture& capture, PyObject* callable, const CallArgs& args);
/// `generator.shuffle(array)`, of one from outside, too. Null: it is none.
Ref shuffle_array(Capture& capture, PyObject* callable, const CallArgs& args);
/// What gives another one in the same state. Borrowed.
PyObject* generator_copier();
Ref copy_of_generator(Capture& capture, PyObject* generator);

}  // namespace magneto::capture
