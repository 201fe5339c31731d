// C functions that are interpreted specially: the handlers that rows of effects.def name with "Handler".
//
// Each family of handlers is a file with a table of its own; effects.cpp looks a name up in all of them.
#pragma once

#include <span>
#include <string_view>

#include "capture/capture.h"

namespace magneto::capture {

using HandlerFunction = Ref (*)(Capture&, const CallArgs&);

struct HandlerRow {
  const char* name;  // as in effects.def
  HandlerFunction function;
};

std::span<const HandlerRow> builtin_handlers();  // functions of `builtins`
std::span<const HandlerRow> class_handlers();    // isinstance, issubclass
std::span<const HandlerRow> text_handlers();     // repr, str, format
std::span<const HandlerRow> tensor_handlers();
std::span<const HandlerRow> memory_handlers();        // where tensors lie
std::span<const HandlerRow> class_tensor_handlers();  // of classes with a __torch_dispatch__
std::span<const HandlerRow> torch_function_handlers();
std::span<const HandlerRow> array_handlers();   // between tensors and arrays of NumPy
std::span<const HandlerRow> sized_handlers();   // functions of torch that take plain numbers only, given sizes
std::span<const HandlerRow> object_handlers();  // methods of object, type, dict and the `__new__` of built-in types

std::span<const HandlerRow> warning_handlers();
std::span<const HandlerRow> context_handlers();  // contextvars.ContextVar

/// Such a C function is arithmetic on numbers: what it gives of some that differ from run to run. Null: these are none,
/// or their values are needed. (number_functions.cpp)
bool is_number_function(std::string_view name);
Ref number_function(Capture& capture, std::string_view name, const CallArgs& args);

/// types.MappingProxyType, and what the methods keys, values and items of a dict give. (containers.cpp)
bool is_dict_view(PyObject* object);

/// torch.manual_seed. Null: a seed that is not to be had now.
Ref seed_generators(Capture& capture, PyObject* function, const CallArgs& args);

/// torch.Generator.manual_seed, get_state, set_state and initial_seed. (generators.cpp)
Ref seed_generator(Capture& capture, const CallArgs& args);
Ref generator_state(Capture& capture, const CallArgs& args);
Ref set_generator_state(Capture& capture, const CallArgs& args);
Ref seed_of_generator(Capture& capture, const CallArgs& args);

/// random.Random.random and getrandbits. (draws.cpp)
Ref draw_number(Capture& capture, const CallArgs& args);
Ref draw_bits(Capture& capture, const CallArgs& args);
Ref seed_random(Capture& capture, const CallArgs& args);
Ref state_of_random(Capture& capture, const CallArgs& args);
Ref set_state_of_random(Capture& capture, const CallArgs& args);
/// It is one that the segment has made, of the class itself: real, its seed a constant.
bool is_made_random(Capture& capture, PyObject* object);
/// Its _randbelow, and magneto._polyfills.may_draws_decide. Null: not to be drawn by each run.
Ref draw_by_function(Capture& capture, PyObject* function, const CallArgs& args);

/// A method of NumPy's random generators that gives a number. Null: another callable, or one that CPython calls.
Ref draw_of_numpy(Capture& capture, PyObject* callable, const CallArgs& args);

/// torch.tensor and its like, called with numbers only, or with what `call_torch` is to take care of. `self`: of
/// new_tensor. (sized_calls.cpp)
Ref tensor_of_numbers(Capture& capture, PyObject* function, PyObject* self, const CallArgs& args);

/// The function itself, or the one of ours that does the same and takes sizes where that one takes plain numbers.
/// Borrowed; `args` are then as that one takes them, and `made` holds what is new in them. (sized_calls.cpp)
PyObject* with_sizes(PyObject* callable, CallArgs& args, std::vector<Ref>& made);
/// A transform of torch.func or forward-mode autograd works on the tensor; they know no operators of ours. (Under
/// autograd they run one by one, and what they call has a derivative.)
bool is_transformed(PyObject* object);

/// eval. (evaluated.cpp)
Ref handle_eval(Capture& capture, const CallArgs& args);

/// magneto._C.copied_alone. (copied_tensors.cpp)
Ref handle_copied_alone(Capture& capture, const CallArgs& args);
/// Tensor.set_. (made_parameters.cpp)
Ref set_memory(Capture& capture, const CallArgs& args);
Ref handle_copied_plainly(Capture& capture, const CallArgs& args);
/// Raises TypeError unless there are `least` to `most` positional arguments and no others.
void check_count(const CallArgs& args, size_t least, size_t most, const char* name);
inline Ref boolean(bool value) { return Ref::borrow(value ? Py_True : Py_False); }
/// magneto._C.comptime. (comptime.cpp)
Ref call_comptime(Capture& capture, const CallArgs& args);
/// str(value), for one argument.
Ref text_of(Capture& capture, const CallArgs& args);

}  // namespace magneto::capture
