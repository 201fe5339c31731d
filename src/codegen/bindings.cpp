// What the report shows of generated code: kernels as text.
#include "api/bindings.h"

#include "codegen/kernel.h"
#include "python/text.h"

namespace magneto {
namespace {

codegen::Target target_argument(PyObject* name) {
  if (!name) return codegen::Target::Host;
  if (const auto target = codegen::target_called(text_argument(name))) return *target;
  throw std::invalid_argument("there is no target " + std::string(text_argument(name)));
}

/// (text, target="host", variant=0, lines=False) -> (schedule, LLVM IR, assembly).
PyObject* kernel_texts(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* text = nullptr;
    PyObject* target = nullptr;
    int variant = 0, lines = 0;
    if (!PyArg_ParseTuple(args, "U|Uip", &text, &target, &variant, &lines)) return nullptr;
    if (variant < 0 || static_cast<size_t>(variant) >= std::size(codegen::kVariants)) {
      throw std::invalid_argument("there is no variant " + std::to_string(variant));
    }
    const codegen::KernelTexts texts =
        codegen::texts_of(loops::parse(text_argument(text)),
                          {.target = target_argument(target), .variant = variant, .lines = lines != 0});
    Ref schedule = checked(text_result(texts.schedule)), ir = checked(text_result(texts.llvm_ir)),
        assembly = checked(text_result(texts.assembly));
    return PyTuple_Pack(3, schedule.get(), ir.get(), assembly.get());
  });
}

}  // namespace

PyMethodDef codegen_methods[] = {
    {"kernel_texts", kernel_texts, METH_VARARGS,
     "(text, target='host', variant=0, lines=False): schedule, LLVM IR and assembly of a kernel."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
