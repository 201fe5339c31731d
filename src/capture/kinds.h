// What kinds of objects a capture tells apart, stand-ins and the program's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "python/abi/types.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::capture {

// -- stand-ins -------------------------------------------------------------------------------------------------------
/// A torch.Size with numbers in it that it does not know itself, and what is made of one. (sizes.cpp)
bool holds_unknown_size(PyObject* object);
/// Is a number that follows from sizes, or a dynamic float, or has some among its items.
bool holds_size(PyObject* object, int depth = 0);
/// torch.SymInt may be given to that function of torch: it has an operator's name, and that one takes sizes. (Others
/// would make numbers of it that are none; functions in Python would compute with it, which it does not do by itself.)
bool takes_symints(PyObject* callable);
/// Of a C function or method; empty: something else.
std::string_view c_function_name(PyObject* callable);
/// An operator, or all of a name: torch.ops.namespace.name and its overloads.
bool is_operator_type(PyTypeObject* type);
/// "aten::view", of such.
std::string operator_base_name(PyObject* callable);
Ref slice_of_shape(PyObject* shape, PyObject* slice);
Ref shape_of_items(PyObject* items);
/// What a torch.SymInt is; nothing for other objects. (sizes.cpp)
std::optional<shapes::Expr> symint_value(PyObject* object);
/// torch.SymInt past its own constructor, which is Python code. (sizes.cpp)
Ref symint_object(const c10::SymInt& size);
/// What a stand-in for a bool asks that only the data answers; null: it is none. (numbers.cpp)
const shapes::Relation* symbolic_bool_of(PyObject* object);
/// What such a number is that follows from sizes, or null.
const shapes::Expr* size_of_number(PyObject* object);
/// Such a stand-in that C code may read: what it asks is assumed. (numbers.cpp)
bool answers_by_itself(PyObject* object);
/// Stands for a float that operators may take without it being known: as torch.SymFloat.
bool is_symbolic_float(PyObject* object);
/// The tensor that holds a data-dependent float; null: something else. Borrowed. (numbers.cpp)
PyObject* holder_of_float(PyObject* object);
/// What holds the float that a torch.SymFloat is; undefined for other objects. (sizes.cpp)
at::Tensor symfloat_holder(PyObject* object);
/// Stands for a number that the capture goes on without knowing, or for a text (numbers.cpp).
bool is_unknown_number(PyObject* object);
bool is_symbolic_string(PyObject* object);
/// Stands for a tensor's storage. (handlers_tensors.cpp)
bool is_storage(PyObject* object);
Ref make_symbolic_string();
/// The value that such a number has in this run, for questions about its type; of all else the object itself. Borrowed.
PyObject* number_now(PyObject* object);
/// An array of NumPy from outside, or what stands for an array or a number of NumPy. (arrays.cpp)
bool is_array(PyObject* object);
bool is_array_stand_in(PyObject* object);
/// Something of the same type as what `object` stands for: itself, if for nothing. Borrowed.
PyObject* sample_of(PyObject* object);

// -- classification (values.cpp) -------------------------------------------------------------------------------------
/// None, bool, int, float, complex, str, bytes, Ellipsis, NotImplemented: guarded by value, no source after that.
bool is_scalar(PyObject* object);
/// An int, float, complex, str or bytes, also of a subclass, a number of NumPy, a range or a slice: guarded by value.
bool is_value(PyObject* object);
/// Attributes of its instances are read, or set, by C code in a way of its own (weakref.proxy).
bool has_own_getattr(PyTypeObject* type);
bool has_own_setattr(PyTypeObject* type);
/// Types, modules, C functions, descriptors, torch dtypes...: guarded by identity, constants after that.
bool is_identity_constant(PyObject* object);
/// Scalars, identity constants and tuples of those: hashed and compared without running the program's code.
bool is_constant_key(PyObject* key);
/// Instances of a class that neither hashes nor compares in its own way.
bool is_identity_key(PyObject* object);
/// A method of a C type bound to an object (`items.append`, `x.__add__`).
bool is_bound_builtin(PyObject* object);
/// The method or slot wrapper that a bound builtin is made from (borrowed), or null.
PyObject* descriptor_of(PyObject* bound_builtin);
/// Exact list, dict, set, frozenset, tuple, deque, OrderedDict, defaultdict.
bool is_builtin_container(PyObject* object);
/// Of a class derived from tuple, list, dict or set: a torch.Size, a named tuple.
bool is_derived_container(PyObject* object);
bool is_tensor(PyObject* object);
/// A torch.Generator.
bool is_generator(PyObject* object);
/// A Python object that stands for a fake tensor.
bool is_fake_tensor(PyObject* object);

/// What a compiled callable was made from (borrowed), or null for all others. Set by the stage that owns the type.
extern PyObject* (*original_of_compiled)(PyObject* callable);
/// What a function that Capture::callback made stands for (borrowed), or null for all others.
PyObject* callback_target(PyObject* function);
/// The objects that a C object refers to, in its own order. Borrowed.
std::vector<PyObject*> referents(PyObject* object);
/// The first of them that is of type `type`, or null.
PyObject* referent(PyObject* object, PyTypeObject* type);
/// "module.qualname", or what kind of object it is.
std::string callable_name(PyObject* callable);
/// Keeps an object for the process's life (keys of tables by address).
void keep_forever(PyObject* object);

/// An interned string constant, made once per call site.
#define MAGNETO_STR(text)                                               \
  ([]() -> PyObject* {                                                  \
    static PyObject* const interned = PyUnicode_InternFromString(text); \
    return interned;                                                    \
  }())

}  // namespace magneto::capture
