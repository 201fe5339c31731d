#include "python/imported.h"

#include <string>

#include "python/abi/own_code.h"
#include "python/ref.h"

namespace magneto {

PyObject* Imported::find() {
  const OwnCode own;
  Ref found = checked(PyImport_ImportModule(module_));
  std::string rest = attribute_ ? attribute_ : "";
  while (!rest.empty()) {
    const size_t dot = rest.find('.');
    found = checked(PyObject_GetAttrString(found.get(), rest.substr(0, dot).c_str()));
    rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
  }
  if (!object_) object_ = found.release();
  return object_;
}

}  // namespace magneto
