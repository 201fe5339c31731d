#include "python/abi/c_stack.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace magneto {

namespace {

/// How far the thread's stack may grow: to its end, but for what nested calls need; half of it where it is small.
uintptr_t limit() {
  constexpr size_t reserve = 1 << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* address = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &address, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<uintptr_t>(address) + std::min(reserve, size / 2);
}

}  // namespace

bool c_stack_is_low() {
  thread_local const uintptr_t lowest = limit();
  // Not the address of a local: under AddressSanitizer those may live elsewhere.
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < lowest;
}

}  // namespace magneto
