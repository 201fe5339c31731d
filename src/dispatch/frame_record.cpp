#include "dispatch/frame_record.h"

#include <map>
#include <utility>

#include "dispatch/log.h"
#include "python/errors.h"
#include "python/imported.h"
#include "python/text.h"
#include "support/settings.h"

namespace magneto::dispatch {
namespace {

using Key = std::pair<const Context*, PyCodeObject*>;

std::map<Key, Ref>& remembered() {
  static auto* frames = new std::map<Key, Ref>;
  return *frames;
}

PyObject* recorder() {
  static constinit Imported module("magneto._debug.record");
  return module.get();
}

/// The parameters' values of a frame at its beginning.
Ref arguments_of(const capture::Start& start) {
  const PyCodeObject* code = start.info->code;
  const int count = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
                    ((code->co_flags & CO_VARKEYWORDS) != 0);
  Ref arguments = checked(PyTuple_New(count));
  for (int i = 0; i < count; ++i) {
    PyObject* value = start.slots[i] ? start.slots[i] : Py_None;
    PyTuple_SET_ITEM(arguments.get(), i, Py_NewRef(value));
  }
  return arguments;
}

Ref frame_at_beginning(const Context& context, const capture::Start& start) {
  return call_sink(recorder(), "remember", "OOO", start.function, arguments_of(start).get(),
                   context.options ? context.options : Py_None);
}

Ref remembered_frame(const Context& context, PyCodeObject* code) {
  const auto found = remembered().find({&context, code});
  return found == remembered().end() ? Ref() : found->second;
}

/// Calls `write(error)` with the error that is set, or None, out of the way.
template <typename Write>
void with_error(const Write& write) {
  PyObject* raised = PyErr_Occurred() ? take_error_with_traceback().release() : nullptr;
  try {
    write(raised ? raised : Py_None);
  } catch (const PythonError&) {
    PyErr_WriteUnraisable(nullptr);
  }
  if (!raised) return;
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(raised))), raised, PyException_GetTraceback(raised));
}

/// `frame`: null: it is not known how it began.
void write(const Ref& frame, PyCodeObject* code, PyObject* error, const std::string& failure) {
  call_sink(recorder(), "write", "OOOO", frame ? frame.get() : Py_None, code, error, text_object(failure).get());
}

}  // namespace

void remember_frame(const Context& context, const capture::Start& start, const runtime::Exit* exit) {
  if (!settings().replay_record_enabled) return;
  const SavedError saved;
  PyCodeObject* code = start.info->code;
  const Ref frame = start.instr == 0 ? frame_at_beginning(context, start) : remembered_frame(context, code);
  if (!frame) return;
  remembered()[{&context, code}] = frame;
  if (!exit) return;
  for (const runtime::FrameState& inlined : exit->frames) remembered()[{&context, inlined.info->code}] = frame;
}

void forget_frames(const Context& context) {
  auto& frames = remembered();
  if (frames.empty()) return;
  auto first = frames.lower_bound({&context, nullptr});
  std::map<Key, Ref> dropped;  // what dies may call back
  while (first != frames.end() && first->first.first == &context) dropped.insert(frames.extract(first++));
}

void record_frame(const Context& context, const capture::Start& start, const std::string& failure) {
  if (!settings().replay_record_enabled) return;
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return;  // an interrupt
  with_error([&](PyObject* error) {
    Ref frame = remembered_frame(context, start.info->code);
    if (start.instr == 0) frame = frame_at_beginning(context, start);  // nothing of it has run
    write(frame, start.info->code, error, failure);
  });
}

void record_remembered(const Context& context, PyCodeObject* code, const std::string& failure) {
  if (!settings().replay_record_enabled) return;
  with_error([&](PyObject* error) { write(remembered_frame(context, code), code, error, failure); });
}

}  // namespace magneto::dispatch
