// How a capture leaves what it interprets, as C++ exceptions (capture.h says what each means).
#pragma once

#include <Python.h>

#include <string>

#include "capture/breaks.h"

namespace magneto::capture {

struct SideExit {};
struct Restart {};
struct Retry {};
struct Interrupted {};
struct Abandon {
  BreakReason reason;
  std::string message;
  PyObject* object = nullptr;  // Rebuild: what can't be made anew; the capture keeps it
};

}  // namespace magneto::capture
