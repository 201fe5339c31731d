#include "dispatch/stats.h"

#include "python/ref.h"

namespace magneto::dispatch {

Stats& stats() {
  static Stats counters;
  return counters;
}

bool warn(const std::string& text) { return PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) == 0; }

void raise(const char* exception, const std::string& text) {
  Ref module = Ref::steal(PyImport_ImportModule("magneto.exc"));
  Ref type = module ? Ref::steal(PyObject_GetAttrString(module.get(), exception)) : Ref();
  if (type) PyErr_SetString(type.get(), text.c_str());
}

std::string break_text(const runtime::Exit& exit) {
  const BreakInfo& info = break_info(exit.reason);
  std::string text = std::string(info.name) + ": " + exit.message + "\n  Explanation: " + info.explanation + "\n";
  if (*info.hint) text += std::string("  Hint: ") + info.hint + "\n";
  text += std::string("  Page: docs/breaks/") + info.name + ".md\n";
  text += "\nfrom user code:\n";
  for (const runtime::FrameState& frame : exit.frames) {
    PyCodeObject* code = frame.info->code;
    text += std::string("  File \"") + PyUnicode_AsUTF8(code->co_filename) + "\", line " +
            std::to_string(frame.info->instrs[frame.instr].line) + ", in " + PyUnicode_AsUTF8(code->co_name) + "\n";
    SavedError saved;
    Ref linecache = Ref::steal(PyImport_ImportModule("linecache"));
    Ref line = linecache ? Ref::steal(PyObject_CallMethod(linecache.get(), "getline", "Oi", code->co_filename,
                                                          frame.info->instrs[frame.instr].line))
                         : Ref();
    Ref stripped = line ? Ref::steal(PyObject_CallMethod(line.get(), "strip", nullptr)) : Ref();
    if (stripped && PyUnicode_GET_LENGTH(stripped.get()))
      text += std::string("    ") + PyUnicode_AsUTF8(stripped.get()) + "\n";
    PyErr_Clear();
  }
  return text;
}

}  // namespace magneto::dispatch
