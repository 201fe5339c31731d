// What tests and benchmarks reach of the code generator: kernels as text, tensors as buffers.
#include <ATen/core/Tensor.h>

#include "api/bindings.h"
#include "codegen/kernel.h"
#include "loops/interpreter.h"
#include "python/text.h"
#include "support/tensor_object.h"

namespace magneto {
namespace {

using Compiled = std::shared_ptr<const codegen::CompiledKernel>;
constexpr const char* kKernelCapsule = "magneto.kernel";

std::vector<int64_t> numbers(PyObject* tuple) {
  std::vector<int64_t> result;
  for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(tuple); ++i) {
    result.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    if (PyErr_Occurred()) throw PythonError{};
  }
  return result;
}

/// The tensors' first elements, for a kernel with as many arguments.
std::vector<void*> pointers(const loops::Kernel& kernel, PyObject* tensors, const std::vector<int64_t>& symbols) {
  std::vector<void*> result;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    PyObject* item = PyTuple_GET_ITEM(tensors, i);
    if (!is_tensor_object(item)) throw std::invalid_argument("a buffer is no tensor");
    result.push_back(unpack_tensor(item).data_ptr());
  }
  size_t wanted = 0;
  for (const loops::Buffer& buffer : kernel.buffers) wanted += buffer.role != loops::Role::Scratch;
  if (result.size() != wanted || symbols.size() != kernel.symbols.size()) {
    throw std::invalid_argument("the kernel takes " + std::to_string(wanted) + " buffers and " +
                                std::to_string(kernel.symbols.size()) + " symbols");
  }
  return result;
}

codegen::Target target_argument(PyObject* name) {
  if (!name) return codegen::Target::Host;
  if (const auto target = codegen::target_called(text_argument(name))) return *target;
  throw std::invalid_argument("there is no target " + std::string(text_argument(name)));
}

/// (text, target="host") -> a compiled kernel.
PyObject* kernel_compile(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* text = nullptr;
    PyObject* target = nullptr;
    if (!PyArg_ParseTuple(args, "U|U", &text, &target)) return nullptr;
    const loops::Kernel kernel = loops::parse(text_argument(text));
    auto* holder = new Compiled(codegen::compile({&kernel, 1}, {.target = target_argument(target)})[0]);
    return PyCapsule_New(holder, kKernelCapsule, [](PyObject* capsule) {
      delete static_cast<Compiled*>(PyCapsule_GetPointer(capsule, kKernelCapsule));
    });
  });
}

/// (compiled, tensors, symbols=()) runs it.
PyObject* kernel_run(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* capsule = nullptr;
    PyObject* tensors = nullptr;
    PyObject* symbols = nullptr;
    if (!PyArg_ParseTuple(args, "OO!|O!", &capsule, &PyTuple_Type, &tensors, &PyTuple_Type, &symbols)) return nullptr;
    auto* holder = static_cast<Compiled*>(PyCapsule_GetPointer(capsule, kKernelCapsule));
    if (!holder) return nullptr;
    const std::vector<int64_t> values = numbers(symbols);
    codegen::run(**holder, pointers((*holder)->kernel, tensors, values), values.data());
    Py_RETURN_NONE;
  });
}

/// (compiled, symbols=()) -> (units, grain).
PyObject* kernel_range(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* capsule = nullptr;
    PyObject* symbols = nullptr;
    if (!PyArg_ParseTuple(args, "O|O!", &capsule, &PyTuple_Type, &symbols)) return nullptr;
    auto* holder = static_cast<Compiled*>(PyCapsule_GetPointer(capsule, kKernelCapsule));
    if (!holder) return nullptr;
    const std::vector<int64_t> values = numbers(symbols);
    return Py_BuildValue("LL", static_cast<long long>((*holder)->units_of(values.data())),
                         static_cast<long long>((*holder)->grain_of(values.data())));
  });
}

/// (text, tensors, symbols=()) runs it by the interpreter.
PyObject* kernel_interpret(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* text = nullptr;
    PyObject* tensors = nullptr;
    PyObject* symbols = nullptr;
    if (!PyArg_ParseTuple(args, "UO!|O!", &text, &PyTuple_Type, &tensors, &PyTuple_Type, &symbols)) return nullptr;
    const loops::Kernel kernel = loops::parse(text_argument(text));
    if (const auto violations = loops::verify(kernel); !violations.empty()) throw std::invalid_argument(violations[0]);
    const std::vector<int64_t> values = numbers(symbols);
    try {
      loops::interpret(kernel, pointers(kernel, tensors, values), values);
    } catch (const loops::BoundsError& error) {
      PyErr_SetString(PyExc_IndexError, error.what());
      return nullptr;
    }
    Py_RETURN_NONE;
  });
}

/// (text, target="host") -> (object, units, cost): what LLVM makes of it now, and a cache keeps.
PyObject* kernel_generate(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* text = nullptr;
    PyObject* target = nullptr;
    if (!PyArg_ParseTuple(args, "U|U", &text, &target)) return nullptr;
    const codegen::FinishedCode code =
        codegen::generate(loops::parse(text_argument(text)), {.target = target_argument(target)});
    Ref units = checked(text_result(code.units)), cost = checked(text_result(code.cost));
    Ref object = checked(PyBytes_FromStringAndSize(code.object.data(), static_cast<Py_ssize_t>(code.object.size())));
    return PyTuple_Pack(3, object.get(), units.get(), cost.get());
  });
}

/// (text, object, units, cost) -> a compiled kernel, without LLVM.
PyObject* kernel_adopt(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *text = nullptr, *object = nullptr, *units = nullptr, *cost = nullptr;
    if (!PyArg_ParseTuple(args, "USUU", &text, &object, &units, &cost)) return nullptr;
    const loops::Kernel kernel = loops::parse(text_argument(text));
    codegen::FinishedCode code{{}, std::string(text_argument(units)), std::string(text_argument(cost))};
    code.object.assign(PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object)));
    auto* holder = new Compiled(codegen::adopt(kernel, code));
    return PyCapsule_New(holder, kKernelCapsule, [](PyObject* capsule) {
      delete static_cast<Compiled*>(PyCapsule_GetPointer(capsule, kKernelCapsule));
    });
  });
}

/// -> (kernels asked for, kernels compiled, nanoseconds).
PyObject* kernel_stats(PyObject*, PyObject*) {
  const codegen::CompileStats stats = codegen::compile_stats();
  return Py_BuildValue("LLL", static_cast<long long>(stats.requested), static_cast<long long>(stats.compiled),
                       static_cast<long long>(stats.nanoseconds));
}

}  // namespace

PyMethodDef codegen_test_methods[] = {
    {"kernel_compile", kernel_compile, METH_VARARGS, "(text, target='host'): machine code for a kernel in text form."},
    {"kernel_run", kernel_run, METH_VARARGS, "(compiled, tensors, symbols=()): runs a kernel on the tensors' data."},
    {"kernel_range", kernel_range, METH_VARARGS, "(compiled, symbols=()): how many units it has, and its grain."},
    {"kernel_interpret", kernel_interpret, METH_VARARGS,
     "(text, tensors, symbols=()): runs a kernel by the interpreter."},
    {"kernel_generate", kernel_generate, METH_VARARGS, "(text, target='host'): object code, units and cost from LLVM."},
    {"kernel_adopt", kernel_adopt, METH_VARARGS, "(text, object, units, cost): a kernel with finished code."},
    {"kernel_stats", kernel_stats, METH_NOARGS, "Kernels asked for, kernels compiled, nanoseconds."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
