// What can be handed on, kind by kind: an ordered table, and the plan instructions that make the small kinds anew.
#include <algorithm>
#include <cstring>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/exits/rebuild.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/unknown_number.h"
#include "capture/numpy/made_generators.h"
#include "capture/torch/gradients.h"
#include "capture/torch/linear_maps.h"
#include "capture/torch/nested_ints.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "guards/objects.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using runtime::PlanOp;

namespace {

/// What a method of C code is bound to (`x.sum`, `list.append` of a certain list); null for all else. Borrowed.
PyObject* bound_receiver(PyObject* value) {
  PyObject* self = nullptr;
  if (PyCFunction_CheckExact(value)) {
    self = PyCFunction_GET_SELF(value);
  } else if (Py_TYPE(value) == method_wrapper_type()) {
    self = Ref::steal(PyObject_GetAttrString(value, "__self__")).get();  // the wrapper keeps it alive
  }
  return self && !PyModule_Check(self) && !PyType_Check(self) && !PyCapsule_CheckExact(self) ? self : nullptr;
}

bool is_python_generator(PyObject* value) { return PyGen_CheckExact(value) || PyCoro_CheckExact(value); }
bool is_function(PyObject* value) { return PyFunction_Check(value); }
bool is_method(PyObject* value) { return PyMethod_Check(value); }
bool is_slice(PyObject* value) { return PySlice_Check(value); }
bool is_cell(PyObject* value) { return PyCell_Check(value); }
bool is_super(PyObject* value) { return Py_TYPE(value) == &PySuper_Type; }
bool is_data_float(PyObject* value) { return holder_of_float(value) != nullptr; }
bool is_of_storage(PyObject* value) { return meaning_of<OfStorage>(value) != nullptr; }
bool is_address(PyObject* value) { return meaning_of<Address>(value) != nullptr; }
bool is_symbolic_bool(PyObject* value) { return symbolic_bool_of(value) != nullptr; }
bool is_callback(PyObject* value) { return callback_target(value) != nullptr; }
bool has_receiver(PyObject* value) { return bound_receiver(value) != nullptr; }
bool is_instance(PyObject* value) {
  return is_python_class(Py_TYPE(value)) || PyExceptionInstance_Check(value) ||
         Py_TYPE(value) == guards::namespace_type();
}
bool is_weak_reference(PyObject* value) {
  return PyWeakref_CheckRefExact(value) && PyWeakref_GET_OBJECT(value) != Py_None;
}
bool is_any(PyObject*) { return true; }

bool is_return_type(PyObject* value) {
  return PyTuple_Check(value) && std::strncmp(Py_TYPE(value)->tp_name, "torch.return_types.", 19) == 0;
}

bool is_dict_iterator(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  return type == &PyDictIterKey_Type || type == &PyDictIterValue_Type || type == &PyDictIterItem_Type;
}

}  // namespace

/// In this order: the first that matches builds. What stands for a value of the run comes before what is from outside,
/// that before what one object can serve for all runs, and that before what is made anew.
constexpr Rebuilder::Kind Rebuilder::kKinds[] = {
    {"a scalar", is_scalar, &Rebuilder::constant},
    {"a tensor", is_tensor, &Rebuilder::build_tensor},
    {"an array", is_array_stand_in, &Rebuilder::build_array},
    {"a function that C code calls back", is_callback, &Rebuilder::build_callback},
    {"a string of values of the run", is_symbolic_string, &Rebuilder::build_text},
    {"a data-dependent bool", is_symbolic_bool, &Rebuilder::build_truth},
    {"a data-dependent float", is_data_float, &Rebuilder::build_data_float},
    {"a storage, or its size", is_of_storage, &Rebuilder::build_of_storage},
    {"where a tensor begins in memory", is_address, &Rebuilder::build_address},
    {"a number that follows from sizes", &Rebuilder::is_made_size, &Rebuilder::build_size},
    {"a class that the segment has made, a member of one, a method's wrapper", &Rebuilder::is_of_made_class,
     &Rebuilder::build_of_made_class},
    {"a class that namedtuple() has made", &Rebuilder::is_named_tuple, &Rebuilder::build_named_tuple},
    {"an object from outside", &Rebuilder::is_from_outside, &Rebuilder::build_outside},
    {"a size that differs from item to item", &Rebuilder::is_nested_int, &Rebuilder::build_nested_int},
    {"the exception handled at the start", &Rebuilder::is_handled_at_start, &Rebuilder::build_handled},
    {"a method of C code, bound", has_receiver, &Rebuilder::build_bound_method},
    {"a constant", &Rebuilder::is_constant, &Rebuilder::constant},
    {"a torch.Generator", is_generator, &Rebuilder::build_torch_generator},
    {"a generator of NumPy", &Rebuilder::is_made_numpy_generator, &Rebuilder::build_numpy_generator},
    {"a random.Random that the segment has made", &Rebuilder::is_random_made, &Rebuilder::build_random},
    {"a mark of a linear map", is_linear_mark, &Rebuilder::build_linear_mark},
    {"a token of a context variable", &Rebuilder::is_context_token, &Rebuilder::build_context_token},
    {"a handle of a hook on a gradient", is_hook_handle, &Rebuilder::build_hook_handle},
    {"a generator", is_python_generator, &Rebuilder::build_generator},
    {"a function", is_function, &Rebuilder::build_function},
    {"a method", is_method, &Rebuilder::build_method},
    {"a slice", is_slice, &Rebuilder::build_slice},
    {"what magneto.compile has made", &Rebuilder::is_compiled, &Rebuilder::build_compiled},
    {"a weak reference", is_weak_reference, &Rebuilder::build_weak_reference},
    {"another bound method of C code", is_bound_builtin, &Rebuilder::build_bound_builtin},
    {"a cell", is_cell, &Rebuilder::build_cell},
    {"a built-in container", is_builtin_container, &Rebuilder::build_container},
    {"super()", is_super, &Rebuilder::build_super},
    {"a torch.Size with unknown numbers", holds_unknown_size, &Rebuilder::build_shape},
    {"a named tuple of torch.return_types", is_return_type, &Rebuilder::build_return_type},
    {"an instance of a class in Python, an exception, a types.SimpleNamespace", is_instance,
     &Rebuilder::build_instance},
    {"an iterator of a dict", is_dict_iterator, &Rebuilder::build_dict_iterator},
    {"an object of C code", is_any, &Rebuilder::build_reduced},
};

bool Rebuilder::Kind::matches(Rebuilder& rebuilder, PyObject* value) const {
  return of_value ? of_value(value) : (rebuilder.*of_capture)(value);
}

int32_t Rebuilder::build(PyObject* value) {
  if (!value) return -1;
  if (const auto known = memo_.find(value); known != memo_.end()) return known->second;
  c.world.keep(Ref::borrow(value));  // keys of the memo stay alive
  if (PyCell_Check(value) && c.world.cell_contents.count(value)) c.world.adopt_cell(value);  // a fresh function has it
  const Kind* kind = std::ranges::find_if(kKinds, [&](const Kind& each) { return each.matches(*this, value); });
  return (this->*kind->build)(value);  // the last one matches all
}

int32_t Rebuilder::build_callback(PyObject* value) { return memo_[value] = build(callback_target(value)); }

int32_t Rebuilder::build_data_float(PyObject* value) {
  return memo_[value] = read_number(c.numbers.tensor_of_data_float(value).get());
}

int32_t Rebuilder::build_of_storage(PyObject* value) {
  static PyObject* const storage = PyObject_GetAttrString(tensor_class(), "untyped_storage");
  static constinit Imported bytes("torch", "UntypedStorage.nbytes");
  const OfStorage& of = *meaning_of<OfStorage>(value);
  const int32_t made = emit(PlanOp::Call, {constant(storage), build(of.tensor.get())});
  return memo_[value] = of.size ? emit(PlanOp::Call, {constant(bytes.get()), made}) : made;
}

int32_t Rebuilder::build_address(PyObject* value) {
  static constinit Imported of_tensor("torch", "Tensor.data_ptr"), of_storage("torch", "UntypedStorage.data_ptr"),
      storage("torch", "Tensor.untyped_storage");
  const Address& of = *meaning_of<Address>(value);
  const int32_t tensor = build(of.tensor.get());
  if (!of.of_storage) return memo_[value] = emit(PlanOp::Call, {constant(of_tensor.get()), tensor});
  const int32_t made = emit(PlanOp::Call, {constant(storage.get()), tensor});
  return memo_[value] = emit(PlanOp::Call, {constant(of_storage.get()), made});
}

bool Rebuilder::is_nested_int(PyObject* value) { return nested_int_of(value).has_value(); }

/// PyTorch knows it by a tensor, and tells it of the tensor of each run.
int32_t Rebuilder::build_nested_int(PyObject* value) {
  static constinit Imported multiply("operator", "mul");
  const NestedInt number = *nested_int_of(value);
  const auto known = c.tensors.nested_ints.find(number.id);
  if (known == c.tensors.nested_ints.end()) throw unbuildable(value);
  const auto& [function, tensor] = known->second;
  const int32_t made = emit(PlanOp::Call, {constant(function.get()), build(tensor.get())});
  if (number.factor == 1) return memo_[value] = made;
  const Ref factor = checked(PyLong_FromLongLong(number.factor));
  return memo_[value] = emit(PlanOp::Call, {constant(multiply.get()), made, constant(factor.get())});
}

bool Rebuilder::is_made_size(PyObject* value) { return size_of_number(value) && !c.world.source_of(value); }

int32_t Rebuilder::build_size(PyObject* value) {
  const shapes::Expr& size = *size_of_number(value);
  Ref number = c.symbols.size_number(size);
  if (!size_of_number(number.get())) return constant(number.get());
  return memo_[value] = read_number(c.symbols.tensor_of_data_number(size, /*wrapped=*/false).get());
}

bool Rebuilder::is_from_outside(PyObject* value) { return c.world.source_of(value) != nullptr; }

int32_t Rebuilder::build_outside(PyObject* value) {
  const guards::Source* source = c.world.source_of(value);
  if (source->kind != guards::SourceKind::Const) return memo_[value] = load(source);
  const auto original = c.containers.shadow_original.find(value);
  return constant(original == c.containers.shadow_original.end() ? value : original->second);
}

bool Rebuilder::is_handled_at_start(PyObject* value) {
  return value == c.errors.handled_at_start.get() || value == c.start_handled();
}

int32_t Rebuilder::build_handled(PyObject* value) { return memo_[value] = emit(PlanOp::Handled); }

int32_t Rebuilder::build_bound_method(PyObject* value) {
  // By its own descriptor: a class may have overridden the name (`super().__init__`).
  if (descriptor_of(value)) return build_bound_builtin(value);
  return build_method_by_name(value, bound_receiver(value));
}

int32_t Rebuilder::build_method_by_name(PyObject* value, PyObject* self) {
  std::vector<int32_t> args = {constant(PyDict_GetItemString(PyEval_GetBuiltins(), "getattr")), build(self)};
  Ref name = checked(PyObject_GetAttrString(value, "__name__"));
  args.push_back(build(name.get()));
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

/// `items.append` of a list that is made anew: the method of the new list.
int32_t Rebuilder::build_bound_builtin(PyObject* value) {
  Ref self = checked(PyObject_GetAttrString(value, "__self__"));
  c.world.keep(self);
  // What is made anew of an iterator may be of another type.
  if (PyIter_Check(self.get()) && !is_python_class(Py_TYPE(self.get()))) return build_method_by_name(value, self.get());
  PyObject* descriptor = descriptor_of(value);
  if (!descriptor) throw unbuildable(value);
  Ref bind = checked(PyObject_GetAttrString(descriptor, "__get__"));
  std::vector<int32_t> args = {emit(PlanOp::Const, {}, bind.get()), build(self.get())};
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

/// The plan's own.
int32_t Rebuilder::build_torch_generator(PyObject* value) {
  static constinit Imported copy("torch._C", "Generator.clone_state");
  return memo_[value] = emit(PlanOp::Call, {constant(copy.get()), emit(PlanOp::Const, {}, value)});
}

bool Rebuilder::is_made_numpy_generator(PyObject* value) { return is_made_generator(c, value); }

/// Each run gets a copy of what it is at the segment's end.
int32_t Rebuilder::build_numpy_generator(PyObject* value) {
  const Ref as_it_is = copy_of_generator(c, value);
  return memo_[value] = emit(PlanOp::Call, {constant(generator_copier()), emit(PlanOp::Const, {}, as_it_is.get())});
}

int32_t Rebuilder::build_linear_mark(PyObject* value) { refuse_linear_mark(c, value); }

bool Rebuilder::is_context_token(PyObject* value) { return c.deferred.contexts.has_made(value); }

/// What the call put off gives, which is made here with all those in front of it.
int32_t Rebuilder::build_context_token(PyObject* value) {
  if (c.deferred.contexts.is_left_out(value)) {
    static constinit Imported set("_contextvars", "ContextVar.set"), reset("_contextvars", "ContextVar.reset");
    const int32_t variable = constant(c.deferred.contexts.variable_of(value));
    const int32_t token = memo_[value] = emit(PlanOp::Call, {constant(set.get()), variable, constant(Py_None)});
    emit(PlanOp::Call, {constant(reset.get()), variable, token});
    return token;
  }
  deferred_calls();
  const auto made = memo_.find(value);
  if (made == memo_.end()) throw unbuildable(value);  // it is in what its own call is given
  return made->second;
}

int32_t Rebuilder::build_method(PyObject* value) {
  const int32_t function = build(PyMethod_GET_FUNCTION(value));
  const int32_t self = build(PyMethod_GET_SELF(value));
  return memo_[value] = emit(PlanOp::Method, {function, self});
}

bool Rebuilder::is_compiled(PyObject* value) { return c.calls.compiled.contains(value); }

int32_t Rebuilder::build_compiled(PyObject* value) {
  static constinit Imported compile("magneto._C", "compile");
  const int32_t original = build(original_of_compiled(value)), options = build(c.calls.compiled.at(value).get());
  return memo_[value] = emit(PlanOp::Call, {constant(compile.get()), original, options});
}

bool Rebuilder::is_random_made(PyObject* value) { return is_made_random(c, value); }

/// In the state that it has at the segment's end.
int32_t Rebuilder::build_random(PyObject* value) {
  static constinit Imported get("_random", "Random.getstate"), make("magneto._polyfills", "random_in_state");
  const Ref state = checked(PyObject_CallOneArg(get.get(), value));
  const int32_t made = memo_[value] = emit(PlanOp::Call, {constant(make.get()), constant(state.get())});
  fill_instance_dict(made, value);
  return made;
}

int32_t Rebuilder::build_weak_reference(PyObject* value) {
  PyObject* type = reinterpret_cast<PyObject*>(weakref_type());
  return memo_[value] = emit(PlanOp::Call, {constant(type), build(PyWeakref_GET_OBJECT(value))});
}

int32_t Rebuilder::build_slice(PyObject* value) {
  auto* slice = reinterpret_cast<PySliceObject*>(value);
  std::vector<int32_t> parts = {build(slice->start), build(slice->stop), build(slice->step)};
  return memo_[value] = emit(PlanOp::Slice, std::move(parts));
}

int32_t Rebuilder::build_cell(PyObject* value) {
  const int32_t cell = memo_[value] = emit(PlanOp::NewCell);
  if (PyObject* contents = PyCell_GET(value)) emit_to(cell, PlanOp::CellFill, {build(contents)});
  return cell;
}

int32_t Rebuilder::build_super(PyObject* value) {
  Ref type = checked(PyObject_GetAttrString(value, "__thisclass__"));
  Ref self = checked(PyObject_GetAttrString(value, "__self__"));
  std::vector<int32_t> args = {build(reinterpret_cast<PyObject*>(&PySuper_Type)), build(type.get()), build(self.get())};
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

int32_t Rebuilder::build_shape(PyObject* value) {
  return memo_[value] = emit(PlanOp::Tuple, build_items(value), reinterpret_cast<PyObject*>(Py_TYPE(value)));
}

bool Rebuilder::is_named_tuple(PyObject* value) {
  return std::ranges::find(c.calls.named_tuples, value, &Ref::get) != c.calls.named_tuples.end();
}

/// As the program has made it.
int32_t Rebuilder::build_named_tuple(PyObject* value) {
  static constinit Imported maker("magneto._polyfills", "make_named_tuple");
  std::vector<int32_t> args = {constant(maker.get())};
  for (const char* name : {"__name__", "_fields", "_field_defaults", "__module__"}) {
    args.push_back(constant(checked(PyObject_GetAttrString(value, name)).get()));
  }
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

int32_t Rebuilder::build_return_type(PyObject* value) {
  std::vector<int32_t> args = {constant(reinterpret_cast<PyObject*>(Py_TYPE(value))),
                               emit(PlanOp::Tuple, build_items(value))};
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

}  // namespace magneto::capture
