#include "observe/stats.h"

#include "python/ref.h"

namespace magneto::dispatch {

Stats& stats() {
  static Stats counters;
  return counters;
}

void raise(const char* exception, const std::string& text) {
  Ref module = Ref::steal(PyImport_ImportModule("magneto.exc"));
  Ref type = module ? Ref::steal(PyObject_GetAttrString(module.get(), exception)) : Ref();
  if (type) PyErr_SetString(type.get(), text.c_str());
}

}  // namespace magneto::dispatch
