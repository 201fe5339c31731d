// Compiled autograd: a backward over several compiled segments and eager operators between them as one program.
#pragma once

#include <Python.h>

namespace magneto::dispatch {

/// Backwards of this thread are compiled from here on, by `compiler`: it makes a callable of a torch.fx.GraphModule.
/// A str: Magneto's backend of that name does, interned. None: its default backend does. False: they are not. Such
/// blocks nest. `dynamic`: sizes are symbols from the first capture on (1), never (0), or as the settings say (-1).
void enter_compiled_autograd(PyObject* compiler, int dynamic);
/// Ends the innermost block. False with an error set if there is none.
bool leave_compiled_autograd();
/// Those of all threads that are in no block are, by the default backend, or are not.
void compile_all_backwards(bool on);
/// This thread's are.
bool compiles_backwards();

/// What stands in the place of the engine's own function in Python, `engine`, and takes what that takes. New reference,
/// or null with an error set.
PyObject* run_backward(PyObject* engine, PyObject* args, PyObject* kwargs);

}  // namespace magneto::dispatch
