#include "dispatch/log.h"

#include <algorithm>
#include <utility>

#include "fake/size_node.h"
#include "graph/graph.h"
#include "guards/text.h"
#include "python/imported.h"
#include "python/text.h"
#include "support/tensor_object.h"

namespace magneto::dispatch {
namespace {

thread_local CompileLog* current_log = nullptr;

PyObject* log_module() {
  static constinit Imported module("magneto._log");
  return module.get();
}

template <typename... Arguments>
Ref call_log(const char* function, const char* format, Arguments... arguments) {
  return call_sink(log_module(), function, format, arguments...);
}

/// The compile's id as an argument: a tuple, or None outside of compiles.
Ref id_argument() { return current_log ? current_log->id().tuple() : Ref::borrow(Py_None); }

/// An entry of the value stack. Runs no Python code.
std::string entry_text(PyObject* value) {
  if (!value) return "NULL";
  if (capture::is_unknown_number(value)) return "unknown number";
  if (is_tensor_object(value)) {
    const at::Tensor& tensor = unpack_tensor(value);
    std::string text =
        guards::type_name(Py_TYPE(value)) + "(" + std::string(graph::dtype_name(tensor.scalar_type())) + "[";
    const char* separator = "";  // as expressions: to ask for numbers would fix the sizes
    for (const c10::SymInt& size : tensor.sym_sizes()) {
      text += std::exchange(separator, ", ") + shapes::text(fake::expr_of(size));
    }
    return text + "])";
  }
  return guards::object_text(value);
}

}  // namespace

CompileLog::CompileLog(CompileId id) : id_(id), outer_(current_log) {
  const Ref names = call_log("wanted", nullptr);
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names.get()); ++i) {
    wanted_.insert(PyUnicode_AsUTF8(PyTuple_GET_ITEM(names.get(), i)));
  }
  current_log = this;
}

CompileLog::~CompileLog() { current_log = outer_; }

CompileLog* CompileLog::current() { return current_log; }

bool CompileLog::wants_any(std::initializer_list<std::string_view> artifacts) const {
  return std::ranges::any_of(artifacts, [this](std::string_view artifact) { return wants(artifact); });
}

bool log_enabled(const char* artifact) {
  if (current_log) return current_log->wants(artifact);
  const Ref enabled = call_log("enabled", "s", artifact);
  return enabled.get() == Py_True;
}

void log(const char* artifact, const std::string& text) {
  call_log("emit", "sOO", artifact, text_object(text).get(), id_argument().get());
}

void announce(const std::string& text) { call_log("announce", "O", text_object(text).get()); }

void log_error(const std::string& text) { call_log("error", "O", text_object(text).get()); }

bool warn(const std::string& text) {
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) == 0) return true;
  if (!PyErr_ExceptionMatches(PyExc_Warning)) return false;
  PyErr_Clear();
  announce(text);
  return true;
}

void log_graph(const std::string& name, PyObject* module) {
  call_log("emit_graph", "sOO", name.c_str(), module, id_argument().get());
}

void log_bytecode(PyCodeObject* code, const std::string& plan) {
  call_log("emit_bytecode", "OsO", code, plan.c_str(), id_argument().get());
}

void InstructionLog::source(const capture::InterpFrame& frame) {
  size_t depth = 0;
  for (const capture::InterpFrame* outer = frame.caller; outer; outer = outer->caller) ++depth;
  lines_.resize(depth + 1);
  const int32_t line = frame.instr().line;
  if (line < 0 || lines_.back() == std::pair(&frame, line)) return;
  lines_.back() = {&frame, line};
  call_log("emit_line", "OiiO", frame.info->code, line, static_cast<int>(depth), id_argument().get());
}

void InstructionLog::instruction(const capture::InterpFrame& frame) {
  if (sources_) source(frame);
  if (!instructions_) return;
  std::string stack;
  for (int32_t i = 0; i < frame.depth; ++i) {
    stack += (i ? ", " : "") + entry_text(frame.slots[frame.info->nlocals + i]);
  }
  call_log("emit_instruction", "OisO", frame.info->code, frame.instr().offset * 2, stack.c_str(), id_argument().get());
}

}  // namespace magneto::dispatch
