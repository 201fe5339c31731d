#include "python/c_stack.h"

#include <pthread.h>

#include <cstddef>
#include <cstdint>

namespace magneto {

namespace {

/// The lowest address that the thread's stack may grow to.
uintptr_t lowest_address() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* address = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &address, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<uintptr_t>(address);
}

}  // namespace

bool c_stack_is_low() {
  constexpr uintptr_t reserve = 1 << 20;
  thread_local const uintptr_t lowest = lowest_address();
  // Not the address of a local: under AddressSanitizer those may live elsewhere.
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < lowest + reserve;
}

}  // namespace magneto
