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

/// What texts call a source, and its base.
struct Names {
  explicit Names(const Source* source)
      : own(source ? source->name() : ""), base(source && source->base ? source->base->name() : "") {}
  Names(std::string own, std::string base) : own(std::move(own)), base(std::move(base)) {}
  std::string own, base;
};

/// "EQUALS_MATCH: L['n'] == 3".
std::string check_line(const Check& check, const Names& names);
/// "L['n'] == 3: expected 3, actual 4", for the value (null: missing) that its source has now.
std::string check_failure(const Check& check, PyObject* value, PyObject* other);

/// "hasattr(L['self'], 'scale')", or its negation.
std::string presence_text(const Source& source, bool present, const Names& names);
/// "HASATTR: hasattr(L['self'], 'scale')".
std::string presence_line(const Source& source, bool present, const Names& names);

std::string global_state_line(const GlobalState& state);
/// Two parts of the global state by themselves, under the names that TORCH_LOGS=guards is known for. The device is that
/// of now.
std::string default_device_line(const GlobalState& state);
std::string mode_stack_line(const GlobalState& state);

}  // namespace magneto::guards
