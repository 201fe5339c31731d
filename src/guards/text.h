// How guards, and objects in them, are written in logs and messages. Runs no Python code.
#pragma once

#include <Python.h>

#include <string>

#include "guards/checks.h"

namespace magneto::guards {

/// Constants as Python writes them; classes, functions and modules by name; others by their type. No addresses.
std::string object_text(PyObject* object);
/// The class's name without its module.
std::string type_name(PyTypeObject* type);

/// "EQUALS_MATCH: L['n'] == 3".
std::string check_line(const Check& check);
/// "L['n'] == 3: expected 3, actual 4", for the value (null: missing) that its source has now.
std::string check_failure(const Check& check, PyObject* value, PyObject* other);

/// "hasattr(L['self'], 'scale')", or its negation.
std::string presence_text(const Source& source, bool present);
/// "HASATTR: hasattr(L['self'], 'scale')".
std::string presence_line(const Source& source, bool present);

std::string global_state_line(const GlobalState& state);

}  // namespace magneto::guards
