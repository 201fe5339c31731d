#include "python/setting_values.h"

#include "python/text.h"

namespace magneto {
namespace {

void read(std::string& setting, PyObject* value) {
  const char* text = PyUnicode_AsUTF8(value);
  if (!text) throw PythonError{};
  setting = text;
}

void read(double& setting, PyObject* value) {
  setting = PyFloat_AsDouble(value);
  if (PyErr_Occurred()) throw PythonError{};
}

template <typename Number>
void read(Number& setting, PyObject* value) {
  const int64_t number = PyLong_AsLongLong(value);
  if (PyErr_Occurred()) throw PythonError{};
  setting = static_cast<Number>(number);
}

Ref object(bool value) { return Ref::borrow(value ? Py_True : Py_False); }
Ref object(int64_t value) { return checked(PyLong_FromLongLong(value)); }
Ref object(double value) { return checked(PyFloat_FromDouble(value)); }
Ref object(const std::string& value) { return text_object(value); }

const char* name_of(SettingUse use) {
  switch (use) {
    case SettingUse::Process:
      return "process";
    case SettingUse::Callable:
      return "callable";
    case SettingUse::Tests:
      break;
  }
  return "tests";
}

}  // namespace

void assign(Settings& settings, const SettingRow& row, PyObject* value) {
  std::visit([&](auto member) { read(settings.*member, value); }, row.member);
}

Ref setting_table() {
  const Settings defaults;
  Ref table = checked(PyList_New(0));
  for (const SettingRow& row : setting_rows()) {
    const Ref initial = std::visit([&](auto member) { return object(defaults.*member); }, row.member);
    const Ref minimum = row.minimum ? object(*row.minimum) : Ref::borrow(Py_None);
    const Ref name = text_object(row.name);
    const Ref item = checked(Py_BuildValue("(OOOssss)", name.get(), initial.get(), minimum.get(), name_of(row.use),
                                           row.environment, row.torch, row.doc));
    if (PyList_Append(table.get(), item.get()) < 0) throw PythonError{};
  }
  return table;
}

}  // namespace magneto
