#include "guards/draw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "python/imported.h"

namespace magneto::guards {

namespace {

/// RandomObject of CPython's _randommodule.c: an int and 624 words behind the head.
constexpr size_t kStateBytes = sizeof(int) + 624 * sizeof(uint32_t);

PyTypeObject* random_type() {
  static constinit Imported type("_random", "Random");
  return type.type();
}

/// By their numbers; what was drawn before, and what then. Under the GIL.
std::vector<std::pair<Py_ssize_t, Draw>>& known_draws() {
  static auto* known = new std::vector<std::pair<Py_ssize_t, Draw>>;
  return *known;
}

Ref bits_of(PyObject* random, int count) {
  static constinit Imported method("_random", "Random.getrandbits");
  const Ref number = Ref::steal(PyLong_FromLong(count));
  return Ref::steal(PyObject_CallFunctionObjArgs(method.get(), random, number.get(), nullptr));
}

/// As Random._randbelow does it: so many bits as the bound has, until they are below it.
Ref draw_now(PyObject* random, Draw draw) {
  static constinit Imported method("_random", "Random.random");
  if (draw == 0) return Ref::steal(PyObject_CallOneArg(method.get(), random));
  if (draw < 0) return bits_of(random, static_cast<int>(-draw));
  const int bits = std::bit_width(static_cast<uint64_t>(draw));
  for (;;) {
    Ref number = bits_of(random, bits);
    if (!number || PyLong_AsLongLong(number.get()) < draw) return number;
  }
}

}  // namespace

bool is_random(PyObject* object) {
  constexpr size_t least = sizeof(PyObject) + kStateBytes;
  const auto size = static_cast<size_t>(random_type()->tp_basicsize);
  return PyObject_TypeCheck(object, random_type()) && size >= least && size < least + alignof(PyObject);
}

Py_ssize_t draw_behind(Py_ssize_t before, Draw draw) {
  const std::pair key(before, draw);
  const auto found = std::ranges::find(known_draws(), key);
  const Py_ssize_t place = found - known_draws().begin();
  if (found == known_draws().end()) known_draws().push_back(key);
  return place;
}

std::vector<Draw> draws_until(Py_ssize_t last) {
  std::vector<Draw> draws;
  for (Py_ssize_t at = last; at >= 0; at = known_draws()[at].first) draws.push_back(known_draws()[at].second);
  std::ranges::reverse(draws);
  return draws;
}

std::string draw_text(Py_ssize_t last) {
  const std::vector<Draw> draws = draws_until(last);
  const Draw draw = draws.back();
  const std::string call = draw == 0  ? "random()"
                           : draw > 0 ? "randrange(" + std::to_string(draw) + ")"
                                      : "getrandbits(" + std::to_string(-draw) + ")";
  return call + "[" + std::to_string(draws.size() - 1) + "]";
}

Ref peek_random(PyObject* random, Py_ssize_t last) {
  char* state = reinterpret_cast<char*>(random) + sizeof(PyObject);
  std::array<char, kStateBytes> saved;
  std::memcpy(saved.data(), state, saved.size());
  Ref drawn;
  for (const Draw draw : draws_until(last)) drawn = draw_now(random, draw);
  std::memcpy(state, saved.data(), saved.size());
  return drawn;
}

}  // namespace magneto::guards
