// What is made on first use by code that may run Python's.
#pragma once

#include "python/abi/own_code.h"

namespace magneto {

/// A pointer that `make` gives on first use, kept for the process's life. Not a static with an initialiser: that holds
/// a lock while it is made, and an import or an attribute that Python code gives lets another thread run, which would
/// wait for the lock with the GIL in its hand. Here the other thread makes one too, and the first that is done is kept.
/// Called with the GIL held. Declare it `static constinit`.
template <typename T>
class MadeOnce {
 public:
  template <typename Make>
  T* get(Make&& make) {
    if (made_) return made_;
    const OwnCode own;
    T* made = make();
    if (!made_) made_ = made;
    return made_;
  }

 private:
  T* made_ = nullptr;
};

}  // namespace magneto
