// The Python type of what stands for an array: nothing may read it, and C code that does ends the segment.
#include <structmember.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <initializer_list>

#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "guards/array.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

/// A text as an argument of a template.
struct FixedText {
  char text[8] = {};
  template <size_t size>
  consteval FixedText(const char (&from)[size]) {  // NOLINT(google-explicit-constructor): a literal is one
    std::copy_n(from, size, text);
  }
};

void dealloc(PyObject* self) {
  const ArrayStandIn& array = stand_in_of(self);
  for (PyObject* part : {array.tensor, array.sample, array.maker, array.parents, array.text}) Py_XDECREF(part);
  PyObject_Free(self);
}

/// C code looks at one, past all that refuses it first.
void look() {
  if (Capture* capture = Capture::current()) return capture->numpy.array_is_read();
  PyErr_SetString(PyExc_RuntimeError, "an array's value was asked for while no capture ran");
}

PyObject* look_1(PyObject*) { return look(), nullptr; }
PyObject* look_2(PyObject*, PyObject*) { return look(), nullptr; }
PyObject* look_3(PyObject*, PyObject*, PyObject*) { return look(), nullptr; }

/// An operator that C code applies: sum(), functools.reduce().
PyObject* apply(const char* form, std::initializer_list<PyObject*> operands) {
  Capture* capture = Capture::current();
  if (!capture) return look(), nullptr;
  try {
    return capture->numpy.operation(operands, form).release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (...) {
    return capture->errors.interrupt_c_code(std::current_exception());
  }
}

template <FixedText form>
PyObject* apply_1(PyObject* array) {
  return apply(form.text, {array});
}

template <FixedText form>
PyObject* apply_2(PyObject* left, PyObject* right) {
  return apply(form.text, {left, right});
}

PyObject* apply_power(PyObject* left, PyObject* right, PyObject* modulus) {
  return modulus == Py_None ? apply("$ ** $", {left, right}) : (look(), nullptr);
}

PyObject* apply_compared(PyObject* left, PyObject* right, int operation) {
  static constexpr const char* forms[] = {"$ < $", "$ <= $", "$ == $", "$ != $", "$ > $", "$ >= $"};
  return apply(forms[operation], {left, right});
}

/// What C code may have of one without dimensions: the array itself, if its contents are known.
PyObject* known_contents(PyObject* array) {
  const ArrayStandIn& stand_in = stand_in_of(array);
  // A number of one with dimensions comes with a warning.
  return stand_in.known && PyObject_Size(stand_in.sample) < 0 ? (PyErr_Clear(), stand_in.sample) : nullptr;
}

template <PyObject* (*read)(PyObject*)>
PyObject* read_known(PyObject* array) {
  PyObject* const contents = known_contents(array);
  return contents ? read(contents) : look_1(array);
}

int truth(PyObject* array) {
  const ArrayStandIn& stand_in = stand_in_of(array);
  return stand_in.known && PyObject_Size(stand_in.sample) != 0 ? (PyErr_Clear(), PyObject_IsTrue(stand_in.sample))
                                                               : (look(), -1);
}

/// What the iterator of an array asks for.
PyObject* look_item(PyObject* array, Py_ssize_t index) {
  constexpr Py_ssize_t most = 64;
  Capture* capture = Capture::current();
  if (!capture) return look(), nullptr;
  if (index >= PyObject_Size(stand_in_of(array).sample)) return PyErr_SetNone(PyExc_IndexError), nullptr;
  try {
    if (index >= most) capture->side_exit(BreakReason::OpaqueIterator, "a long array is iterated over");
    return capture->numpy.item(array, checked(PyLong_FromSsize_t(index)).get()).release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (...) {
    return capture->errors.interrupt_c_code(std::current_exception());
  }
}
int look_stored(PyObject*, PyObject*, PyObject*) { return look(), -1; }
Py_ssize_t length(PyObject* array) { return PyObject_Size(stand_in_of(array).sample); }
Py_hash_t look_hash(PyObject*) { return look(), -1; }
int look_buffer(PyObject*, Py_buffer* view, int) {
  view->obj = nullptr;
  return look(), -1;
}

PyObject* iterate(PyObject* array) {
  const ArrayStandIn& stand_in = stand_in_of(array);
  if (!stand_in.is_number && PyObject_Size(stand_in.sample) >= 0) return PySeqIter_New(array);
  PyErr_Clear();
  return look(), nullptr;
}

PyTypeObject* stand_in_type() {
  // In place they stay the interpreter's: `x += y` without such a slot would make a new array.
  static PyNumberMethods number{
      .nb_add = apply_2<"$ + $">,
      .nb_subtract = apply_2<"$ - $">,
      .nb_multiply = apply_2<"$ * $">,
      .nb_remainder = apply_2<"$ % $">,
      .nb_divmod = look_2,
      .nb_power = apply_power,
      .nb_negative = apply_1<"-$">,
      .nb_positive = apply_1<"+$">,
      .nb_absolute = apply_1<"abs($)">,
      .nb_bool = truth,
      .nb_invert = apply_1<"~$">,
      .nb_lshift = apply_2<"$ << $">,
      .nb_rshift = apply_2<"$ >> $">,
      .nb_and = apply_2<"$ & $">,
      .nb_xor = apply_2<"$ ^ $">,
      .nb_or = apply_2<"$ | $">,
      .nb_int = read_known<PyNumber_Long>,
      .nb_float = read_known<PyNumber_Float>,
      .nb_inplace_add = look_2,
      .nb_inplace_subtract = look_2,
      .nb_inplace_multiply = look_2,
      .nb_inplace_remainder = look_2,
      .nb_inplace_power = look_3,
      .nb_inplace_lshift = look_2,
      .nb_inplace_rshift = look_2,
      .nb_inplace_and = look_2,
      .nb_inplace_xor = look_2,
      .nb_inplace_or = look_2,
      .nb_floor_divide = apply_2<"$ // $">,
      .nb_true_divide = apply_2<"$ / $">,
      .nb_inplace_floor_divide = look_2,
      .nb_inplace_true_divide = look_2,
      .nb_index = read_known<PyNumber_Index>,
      .nb_matrix_multiply = apply_2<"$ @ $">,
      .nb_inplace_matrix_multiply = look_2,
  };
  static PySequenceMethods sequence{.sq_length = length, .sq_item = look_item};
  static PyMappingMethods mapping{.mp_length = length, .mp_subscript = look_2, .mp_ass_subscript = look_stored};
  static PyBufferProcs buffer{.bf_getbuffer = look_buffer};
  static PyTypeObject type{
      .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "magneto._C.ArrayStandIn",
      .tp_basicsize = sizeof(ArrayStandIn),
      .tp_dealloc = dealloc,
      .tp_repr = look_1,
      .tp_as_number = &number,
      .tp_as_sequence = &sequence,
      .tp_as_mapping = &mapping,
      .tp_hash = look_hash,
      .tp_call = look_3,
      .tp_str = look_1,
      .tp_getattro = look_2,
      .tp_setattro = look_stored,
      .tp_as_buffer = &buffer,
      .tp_flags = Py_TPFLAGS_DEFAULT,
      .tp_doc = "Stands for an array or a number that NumPy gives at each run.",
      .tp_richcompare = apply_compared,
      .tp_iter = iterate,
  };
  static const bool ready = PyType_Ready(&type) == 0;
  if (!ready) throw PythonError{};
  return &type;
}

}  // namespace

Ref make_stand_in(Ref tensor, Ref sample, PyObject* maker, Ref parents) {
  auto* made = PyObject_New(ArrayStandIn, stand_in_type());
  if (!made) throw PythonError{};
  made->is_number = !guards::is_array(sample.get());
  made->tensor = tensor.release();
  made->sample = sample.release();
  made->maker = Py_XNewRef(maker);
  made->parents = parents.release();
  made->text = nullptr;
  made->known = false;
  made->exposed = false;
  auto* object = reinterpret_cast<PyObject*>(made);
  Capture::current()->exits.note_allocation_site(object);
  return Ref::steal(object);
}

Ref sample_like(const at::Tensor& tensor, bool writable) {
  static constinit Imported make("magneto._numpy", "array_like");
  const auto tuple = [&](at::IntArrayRef numbers, int64_t unit) {
    Ref made = checked(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
    for (size_t i = 0; i < numbers.size(); ++i) {
      PyTuple_SET_ITEM(made.get(), i, checked(PyLong_FromLongLong(numbers[i] * unit)).release());
    }
    return made;
  };
  Ref sizes = tuple(tensor.sizes(), 1), strides = tuple(tensor.strides(), static_cast<int64_t>(tensor.element_size()));
  Ref made =
      Ref::steal(PyObject_CallFunction(make.get(), "OOsO", sizes.get(), strides.get(),
                                       torch::getTHPDtype(tensor.scalar_type())->name, writable ? Py_True : Py_False));
  if (!made) PyErr_Clear();
  return made;
}

bool is_writable(PyObject* array) {
  Ref flags = checked(PyObject_GetAttrString(array, "flags"));
  return checked(PyObject_GetAttrString(flags.get(), "writeable")).get() == Py_True;
}

bool is_array_stand_in(PyObject* object) { return object && Py_TYPE(object) == stand_in_type(); }

ArrayStandIn& stand_in_of(PyObject* object) { return *reinterpret_cast<ArrayStandIn*>(object); }

bool is_array(PyObject* object) { return object && (is_array_stand_in(object) || guards::is_array(object)); }

PyObject* sample_of(PyObject* object) {
  return is_array_stand_in(object) ? stand_in_of(object).sample : number_now(object);
}

}  // namespace magneto::capture
