#include "guards/draw.h"

#include <array>
#include <cstring>

#include "python/imported.h"

namespace magneto::guards {

namespace {

/// RandomObject of CPython's _randommodule.c: an int and 624 words behind the head.
constexpr size_t kStateBytes = sizeof(int) + 624 * sizeof(uint32_t);

PyTypeObject* random_type() {
  static constinit Imported type("_random", "Random");
  return type.type();
}

}  // namespace

bool is_random(PyObject* object) {
  constexpr size_t least = sizeof(PyObject) + kStateBytes;
  const auto size = static_cast<size_t>(random_type()->tp_basicsize);
  return PyObject_TypeCheck(object, random_type()) && size >= least && size < least + alignof(PyObject);
}

Ref peek_random(PyObject* random, Py_ssize_t index) {
  static constinit Imported method("_random", "Random.random");
  char* state = reinterpret_cast<char*>(random) + sizeof(PyObject);
  std::array<char, kStateBytes> saved;
  std::memcpy(saved.data(), state, saved.size());
  Ref drawn;
  for (Py_ssize_t i = 0; i <= index; ++i) drawn = Ref::steal(PyObject_CallOneArg(method.get(), random));
  std::memcpy(state, saved.data(), saved.size());
  return drawn;
}

}  // namespace magneto::guards
