// Settings as Python objects.
#pragma once

#include "python/ref.h"
#include "support/settings.h"

namespace magneto {

/// Throws PythonError if the setting can't have that value.
void assign(Settings& settings, const SettingRow& row, PyObject* value);

/// [(name, default, minimum or None, "process" | "callable" | "tests", environment, torch, doc)]
Ref setting_table();

}  // namespace magneto
