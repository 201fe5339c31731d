// What C code asks of the classes of its operands, and thereby of the program, which may define a special method,
// replace it and take it away: each that is asked for is guarded, also where there is none.
#pragma once

#include <Python.h>

#include <cstdint>

namespace magneto::capture {

class Capture;

enum class Question : uint8_t {
  Text,       // repr, str and format
  Equality,   // == and !=, `in`, list.index
  Order,      // <, sorted; ties are found by ==
  Hash,       // a key or a member is looked for: its hash, then ==
  Truth,      // bool, if, not
  Call,       // callable
  Iteration,  // items one after the other
  Anything,   // by code that is not known
};

/// Guards the special methods that answer the question, of the value's class and, as it is a built-in container, of the
/// classes of what is in it, so many levels down. Classes that no program can change have none.
void guard_classes(Capture& capture, PyObject* value, Question question, int depth);

/// The same where texts are made; of classes themselves their names.
void guard_class_text(Capture& capture, PyObject* value, int depth);

/// The same of what the C function or class `callable` asks of an argument.
void guard_classes_asked(Capture& capture, PyObject* callable, PyObject* value, int depth);

}  // namespace magneto::capture
