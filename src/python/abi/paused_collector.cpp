#include "python/abi/paused_collector.h"

#include <Python.h>
#include <pthread.h>

namespace magneto {

namespace {

// All under the GIL.
int alive = 0;
thread_local int alive_here = 0;
bool was_collecting = false;  // before the first of those alive

/// In a child, the forking thread alone lives on.
void forget_other_threads() {
  if (alive > 0 && alive_here == 0 && was_collecting) PyGC_Enable();
  alive = alive_here;
}

}  // namespace

PausedCollector::PausedCollector() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_other_threads);
  (void)registered;
  ++alive_here;
  if (alive++ == 0) was_collecting = PyGC_Disable() != 0;
}

PausedCollector::~PausedCollector() {
  --alive_here;
  if (--alive == 0 && was_collecting) PyGC_Enable();
}

}  // namespace magneto
