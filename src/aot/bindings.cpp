// What Python reaches of programs that were compiled ahead of time.
#include "api/bindings.h"

#include "aot/program.h"
#include "python/imported.h"
#include "python/ref.h"
#include "python/text.h"
#include "runtime/plan/torch_errors.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto {
namespace {

constexpr const char* kCapsule = "magneto.aot.Program";

const aot::Program& program_in(PyObject* capsule) {
  void* pointer = PyCapsule_GetPointer(capsule, kCapsule);
  if (!pointer) throw PythonError{};
  return *static_cast<const aot::Program*>(pointer);
}

PyObject* aot_open(PyObject*, PyObject* path) {
  return guarded([&]() -> PyObject* {
    try {
      auto program = std::make_unique<aot::Program>(std::string(text_argument(path)));
      const Ref text = text_object(program->text());
      const Ref capsule = checked(PyCapsule_New(program.release(), kCapsule, [](PyObject* self) {
        delete static_cast<aot::Program*>(PyCapsule_GetPointer(self, kCapsule));
      }));
      return PyTuple_Pack(2, capsule.get(), text.get());
    } catch (const aot::BadFile& error) {
      static constinit Imported invalid("magneto.exc", "InvalidProgram");
      PyErr_SetString(invalid.get(), error.what());
      return nullptr;
    }
  });
}

PyObject* aot_run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count < 1) throw std::invalid_argument("a program and its arguments");
    const aot::Program& program = program_in(args[0]);
    std::vector<at::Tensor> arguments, results;
    for (Py_ssize_t i = 1; i < count; ++i) arguments.push_back(unpack_tensor(args[i]));
    const bool ok = runtime::with_torch_errors([&] {
      const WithoutGil without;
      results = program.run(arguments);
    });
    if (!ok) throw PythonError{};
    Ref list = checked(PyList_New(static_cast<Py_ssize_t>(results.size())));
    for (size_t i = 0; i < results.size(); ++i) {
      PyList_SET_ITEM(list.get(), i, checked(tensor_object(results[i])).release());
    }
    return list.release();
  });
}

PyObject* aot_layout(PyObject*, PyObject*) {
  return guarded([] { return Py_BuildValue("ss", aot::packed_layout().c_str(), aot::machine_digest().c_str()); });
}

}  // namespace

PyMethodDef aot_methods[] = {
    {"aot_open", aot_open, METH_O, "(program, text) of a file of magneto.aot_compile."},
    {"aot_run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(aot_run)), METH_FASTCALL,
     "(program, *tensors): the results."},
    {"aot_layout", aot_layout, METH_NOARGS,
     "(layout, machine): equal where builds understand each other's programs and code."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
