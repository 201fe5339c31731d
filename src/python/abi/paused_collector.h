// The garbage collector, kept from starting.
#pragma once

namespace magneto {

/// No garbage is collected while one of these is alive, on any thread: callbacks of the collector and finalisers are no
/// part of the program that is captured, and what is made of many objects that live on would be gone through for
/// nothing. A child that was forked beside another thread's collects again. Needs the GIL.
class PausedCollector {
 public:
  PausedCollector();
  ~PausedCollector();
  PausedCollector(const PausedCollector&) = delete;
};

}  // namespace magneto
