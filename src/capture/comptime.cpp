// `comptime`: code of the user that runs while a function is captured, and sees the capture as texts.

#include <set>

#include "capture/calls/handlers.h"
#include "capture/interpreter/errors.h"
#include "fake/size_node.h"
#include "graph/gm.h"
#include "guards/checks.h"
#include "guards/text.h"
#include "python/imported.h"
#include "python/text.h"
#include "support/tensor_object.h"

namespace magneto::capture {
namespace {

Imported& context_type() {
  static constinit Imported type("magneto._comptime", "ComptimeContext");
  return type;
}

std::string value_text(PyObject* value) {
  value = sample_of(value);
  if (!value) return "NULL";
  if (!is_tensor_object(value)) return guards::object_text(value);
  std::string sizes;
  const at::Tensor& tensor = unpack_tensor(value);
  for (const c10::SymInt& size : tensor.sym_sizes()) sizes += shapes::text(fake::expr_of(size)) + ", ";
  if (tensor.dim() > 1) sizes.resize(sizes.size() - 2);
  if (tensor.dim() == 1) sizes.pop_back();
  return "FakeTensor(..., size=(" + sizes + "))";
}

/// A frame, which calls another one: (code, offset of the instruction, line, {local: text}, [text of a stack entry],
/// [local whose value differs from run to run]).
Ref describe(const InterpFrame& frame) {
  Ref locals = checked(PyDict_New()), dynamic = checked(PyList_New(0));
  for (int32_t i = 0; i < frame.info->nlocals; ++i) {
    PyObject* value = frame.slots[i];
    if (value && PyCell_Check(value)) value = PyCell_GET(value);
    if (!value) continue;
    PyObject* name = PyTuple_GET_ITEM(frame.info->localsplus_names.get(), i);
    if (PyDict_SetItem(locals.get(), name, text_object(value_text(value)).get()) < 0) throw PythonError{};
    if (sample_of(value) != value && PyList_Append(dynamic.get(), name) < 0) throw PythonError{};
  }
  Ref stack = checked(PyList_New(0));
  for (int32_t i = 0; i < frame.depth - frame.pops; ++i) {  // without the call's own operands
    Ref text = text_object(value_text(frame.slots[frame.info->nlocals + i]));
    if (PyList_Append(stack.get(), text.get()) < 0) throw PythonError{};
  }
  return checked(Py_BuildValue("(OiiOOO)", frame.info->code, frame.instr().offset * 2, frame.instr().line, locals.get(),
                               stack.get(), dynamic.get()));
}

/// The guards so far, without those that are there because `comptime` itself is called.
std::string guards_text(const guards::GuardSet& set) {
  using guards::Source;
  static constinit Imported module("magneto._comptime"), core("magneto._C");
  static constinit Imported comptime_type("magneto._comptime", "Comptime");
  const auto is_own = [](PyObject* object) {
    if (object && PyFunction_Check(object)) object = PyFunction_GET_GLOBALS(object);
    return object && (object == PyModule_GetDict(module.get()) || object == PyModule_GetDict(core.get()) ||
                      object == comptime_type.get() || object == context_type().get());
  };
  const std::vector<guards::Check>& checks = set.impl().checks;
  std::set<const Source*> objects;  // that are a Comptime
  for (const guards::Check& check : checks) {
    if (check.source && is_own(check.type.get())) objects.insert(check.source);
  }
  const auto hangs_on_own = [&](const Source* source) {
    for (; source; source = source->base) {
      if (objects.contains(source)) return true;
      if (source->kind == guards::SourceKind::Const && is_own(source->key.get())) return true;
    }
    return false;
  };
  guards::GuardSet shown(*set.impl().sources);
  shown.impl().global_state = set.impl().global_state;
  for (const guards::Check& check : checks) {
    if (!is_own(check.type.get()) && !hangs_on_own(check.source)) shown.impl().checks.push_back(check);
  }
  return shown.print();
}

}  // namespace

Ref Capture::comptime(PyObject* callback) {
  run_suspended([&] {
    Ref frames = checked(PyList_New(0));
    for (const InterpFrame* f = frame; f; f = f->caller) {
      if (PyList_Insert(frames.get(), 0, describe(*f).get()) < 0) throw PythonError{};
    }
    Ref module = graph::graph_module(graph, /*annotated=*/true);
    Ref guard_text = text_object(guards_text(guards));
    Ref context = checked(
        PyObject_CallFunctionObjArgs(context_type().get(), frames.get(), module.get(), guard_text.get(), nullptr));
    Ref done = Ref::steal(PyObject_CallOneArg(callback, context.get()));
    if (done) return;
    errors.interrupt = take_error();  // raised by what is no part of the program: it reaches the caller
    throw Interrupted{};
  });
  return Ref::borrow(Py_True);
}

Ref call_comptime(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "comptime");
  return capture.comptime(args.values[0]);
}

}  // namespace magneto::capture
