#include "guards/draw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
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

struct NumpyCall {
  std::string text;
  Ref caller;
  Ref seed;  // of a call that sets the state, and gives nothing; else null
};
constexpr Draw kFirstCall = -1000;

/// By `kFirstCall - draw`. Under the GIL.
std::vector<NumpyCall>& known_calls() {
  static auto* known = new std::vector<NumpyCall>;
  return *known;
}

/// No other thread draws while it lives, which would be undone. False: one does.
class Reserved {
 public:
  explicit Reserved(PyObject* generator) : lock_(Ref::steal(PyObject_GetAttrString(generator, "lock"))) {
    if (!lock_) return;
    recursive_ = std::string_view(Py_TYPE(lock_.get())->tp_name).ends_with("RLock");  // else its methods would wait
    const Ref answer = Ref::steal(recursive_ ? PyObject_CallMethod(lock_.get(), "acquire", "O", Py_False)
                                             : PyObject_CallMethod(lock_.get(), "locked", nullptr));
    held_ = answer.get() == (recursive_ ? Py_True : Py_False);
  }
  ~Reserved() {
    if (!held_ || !recursive_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Ref::steal(PyObject_CallMethod(lock_.get(), "release", nullptr));
    PyErr_Restore(type, value, trace);
  }
  Reserved(const Reserved&) = delete;
  explicit operator bool() const { return held_; }

 private:
  Ref lock_;
  bool recursive_ = false, held_ = false;
};

/// The fields of a C object, which are put back with it.
class SavedFields {
 public:
  explicit SavedFields(PyObject* object) : object_(object), bytes_(begin(), begin() + size()) {}
  ~SavedFields() { std::memcpy(begin(), bytes_.data(), size()); }
  SavedFields(const SavedFields&) = delete;

 private:
  char* begin() const { return reinterpret_cast<char*>(object_) + sizeof(PyObject); }
  size_t size() const { return static_cast<size_t>(Py_TYPE(object_)->tp_basicsize) - sizeof(PyObject); }

  PyObject* const object_;
  const std::vector<char> bytes_;
};

/// A generator in that state. Null: it is none; an error may be set.
Ref generator_in(PyObject* state) {
  constexpr Py_ssize_t words = 625;
  static constinit Imported python("_random", "Random"), set_python("_random", "Random.setstate");
  static constinit Imported numpy("numpy.random.mtrand", "RandomState"),
      set_numpy("numpy.random.mtrand", "RandomState.set_state");
  if (!PyTuple_CheckExact(state) || PyTuple_GET_SIZE(state) == 0) return {};
  const bool of_python = PyTuple_GET_SIZE(state) == words && PyLong_CheckExact(PyTuple_GET_ITEM(state, 0));
  if (!of_python && !PyUnicode_CheckExact(PyTuple_GET_ITEM(state, 0))) return {};
  Ref made = Ref::steal(PyObject_CallFunction((of_python ? python : numpy).get(), "i", 0));
  if (!made) return {};
  PyObject* const set = (of_python ? set_python : set_numpy).get();
  return Ref::steal(PyObject_CallFunctionObjArgs(set, made.get(), state, nullptr)) ? std::move(made) : Ref();
}

Ref state_of_numpy(PyObject* random) { return Ref::steal(PyObject_CallMethod(random, "get_state", nullptr)); }

template <typename Draws>
Ref draw_each(PyObject* random, const Draws& draws) {
  Ref drawn;
  for (const Draw draw : draws) {
    drawn = draw == kStateDraw ? state_of_numpy(random) : Ref::steal(PyObject_CallOneArg(caller_of(draw), random));
    if (!drawn) break;
  }
  return drawn;
}

Ref draw_all(PyObject* random, Py_ssize_t last) { return draw_each(random, draws_until(last)); }

/// What follows from a seed alone. Null (no error set): none of the draws sets one.
Ref draw_from_seed(Py_ssize_t last) {
  static constinit Imported type("numpy.random.mtrand", "RandomState");
  const std::vector<Draw> draws = draws_until(last);
  const auto seeded = std::ranges::find_if(draws.rbegin(), draws.rend(), seed_of);
  if (seeded == draws.rend()) return {};
  const Ref random = Ref::steal(PyObject_CallOneArg(type.get(), seed_of(*seeded)));
  return random ? draw_each(random.get(), std::ranges::subrange(seeded.base(), draws.end())) : Ref();
}

Ref draw_with_fields(PyObject* random, PyObject* generator, Py_ssize_t last) {
  const SavedFields own(random), of_generator(generator);
  return draw_all(random, last);
}

/// As NumPy itself reads and sets a state, which takes long.
Ref draw_with_state(PyObject* random, PyObject* generator, bool of_own, Py_ssize_t last) {
  const Ref saved = of_own ? Ref::steal(PyObject_CallMethod(random, "get_state", "O", Py_False))
                           : Ref::steal(PyObject_GetAttrString(generator, "state"));
  if (!saved) return {};
  Ref drawn = draw_all(random, last);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const bool restored = of_own
                            ? static_cast<bool>(Ref::steal(PyObject_CallMethod(random, "set_state", "O", saved.get())))
                            : PyObject_SetAttrString(generator, "state", saved.get()) == 0;
  if (!restored) drawn = Ref();
  if (type) PyErr_Restore(type, value, trace);
  return drawn;
}

/// All that a RandomState knows, of its generator too, as text.
std::string state_of(PyObject* random) {
  const Ref state = Ref::steal(PyObject_CallMethod(random, "get_state", "O", Py_True));
  std::string text;
  for (Py_ssize_t i = 0; state && PyTuple_Check(state.get()) && i < PyTuple_GET_SIZE(state.get()); ++i) {
    PyObject* part = PyTuple_GET_ITEM(state.get(), i);
    const Ref bytes = Ref::steal(i == 1 ? PyObject_CallMethod(part, "tobytes", nullptr) : PyObject_Repr(part));
    const Ref shown = Ref::steal(bytes ? PyObject_Repr(bytes.get()) : nullptr);
    text += shown ? PyUnicode_AsUTF8(shown.get()) : "";
  }
  return text;
}

/// This NumPy has the states of a RandomState and of its usual generator in the objects: an odd number of normal draws,
/// of which one stays behind, leaves no trace where the fields are put back.
bool has_states_in_fields() {
  static constinit Imported type("numpy.random.mtrand", "RandomState");
  const Ref random = Ref::steal(PyObject_CallFunction(type.get(), "i", 3));
  const Ref generator = Ref::steal(random ? PyObject_GetAttrString(random.get(), "_bit_generator") : nullptr);
  if (!generator) return false;
  const Ref name = Ref::steal(PyUnicode_FromString("standard_normal"));
  Py_ssize_t last = draw_behind(-1, draw_of_call(name.get(), {}, nullptr));
  for (int i = 0; i < 2; ++i) last = draw_behind(last, draw_of_call(name.get(), {}, nullptr));
  const std::string before = state_of(random.get());
  if (!draw_with_fields(random.get(), generator.get(), last) || state_of(random.get()) != before) return false;
  draw_all(random.get(), last);
  return state_of(random.get()) != before && !before.empty();
}

/// From a RandomState, whose state has more than that of its bit generator, or a Generator.
Ref peek_numpy(PyObject* random, Py_ssize_t last) {
  if (Ref drawn = draw_from_seed(last); drawn || PyErr_Occurred()) return drawn;
  const bool of_own = PyObject_HasAttrString(random, "get_state");
  const Ref generator = Ref::steal(PyObject_GetAttrString(random, of_own ? "_bit_generator" : "bit_generator"));
  if (!generator) return {};
  const Reserved reserved(generator.get());
  if (!reserved) return {};
  if (of_own && std::string_view(Py_TYPE(generator.get())->tp_name) == "numpy.random._mt19937.MT19937") {
    static const bool in_fields = has_states_in_fields();
    PyErr_Clear();
    if (in_fields) return draw_with_fields(random, generator.get(), last);
  }
  return draw_with_state(random, generator.get(), of_own, last);
}

/// As Random._randbelow does it: so many bits as the bound has, until they are below it.
Ref draw_now(PyObject* random, Draw draw) {
  static constinit Imported method("_random", "Random.random"), seeds("_random", "Random.seed"),
      state("_random", "Random.getstate");
  if (PyObject* seed = seed_of(draw))
    return Ref::steal(PyObject_CallFunctionObjArgs(seeds.get(), random, seed, nullptr));
  if (draw == 0) return Ref::steal(PyObject_CallOneArg(method.get(), random));
  if (draw == kStateDraw) return Ref::steal(PyObject_CallOneArg(state.get(), random));
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

bool is_numpy_random(PyObject* object) {
  const std::string_view name = Py_TYPE(object)->tp_name;
  return name == "numpy.random.mtrand.RandomState" || name == "numpy.random._generator.Generator";
}

Draw draw_of_call(PyObject* name, const std::vector<PyObject*>& values, PyObject* kwnames) {
  const size_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0, positional = values.size() - keywords;
  const Ref args = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(positional + 1)));
  const Ref named = Ref::steal(PyDict_New());
  PyTuple_SET_ITEM(args.get(), 0, Py_NewRef(name));
  std::string text = std::string(PyUnicode_AsUTF8(name)) + "(";
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* keyword = i < positional ? nullptr : PyTuple_GET_ITEM(kwnames, i - positional);
    if (keyword) PyDict_SetItem(named.get(), keyword, values[i]);
    if (!keyword) PyTuple_SET_ITEM(args.get(), i + 1, Py_NewRef(values[i]));
    const Ref shown = Ref::steal(PyObject_Repr(values[i]));
    text += (i ? ", " : "") + (keyword ? std::string(PyUnicode_AsUTF8(keyword)) + "=" : "");
    text += PyUnicode_AsUTF8(shown.get());
  }
  text += ")";
  const auto found = std::ranges::find(known_calls(), text, &NumpyCall::text);
  const Draw draw = kFirstCall - (found - known_calls().begin());
  if (found == known_calls().end()) {
    static constinit Imported maker("operator", "methodcaller");
    const bool sets_seed = PyUnicode_CompareWithASCIIString(name, "seed") == 0;
    known_calls().push_back({text, Ref::steal(PyObject_Call(maker.get(), args.get(), named.get())),
                             sets_seed ? Ref::borrow(values.front()) : Ref()});
  }
  return draw;
}

PyObject* caller_of(Draw draw) { return draw > kFirstCall ? nullptr : known_calls()[kFirstCall - draw].caller.get(); }

PyObject* seed_of(Draw draw) { return draw > kFirstCall ? nullptr : known_calls()[kFirstCall - draw].seed.get(); }

bool has_own_twister(PyObject* random) {
  if (std::string_view(Py_TYPE(random)->tp_name) != "numpy.random.mtrand.RandomState") return false;
  const Ref generator = Ref::steal(PyObject_GetAttrString(random, "_bit_generator"));
  PyErr_Clear();
  return generator && std::string_view(Py_TYPE(generator.get())->tp_name) == "numpy.random._mt19937.MT19937";
}

Py_ssize_t draw_behind(Py_ssize_t before, Draw draw) {
  const std::pair key(before, draw);
  const auto found = std::ranges::find(known_draws(), key);
  const Py_ssize_t place = found - known_draws().begin();
  if (found == known_draws().end()) known_draws().push_back(key);
  return place;
}

Py_ssize_t draw_in_front(Py_ssize_t last) { return known_draws()[last].first; }

std::vector<Draw> draws_until(Py_ssize_t last) {
  std::vector<Draw> draws;
  for (Py_ssize_t at = last; at >= 0; at = known_draws()[at].first) draws.push_back(known_draws()[at].second);
  std::ranges::reverse(draws);
  return draws;
}

std::string draw_text(Py_ssize_t last) {
  const std::vector<Draw> draws = draws_until(last);
  const Draw draw = draws.back();
  const std::string call = draw <= kFirstCall   ? known_calls()[kFirstCall - draw].text
                           : draw == kStateDraw ? "getstate()"
                           : draw == 0          ? "random()"
                           : draw > 0           ? "randrange(" + std::to_string(draw) + ")"
                                                : "getrandbits(" + std::to_string(-draw) + ")";
  return call + "[" + std::to_string(draws.size() - 1) + "]";
}

Ref peek_random(PyObject* random, Py_ssize_t last) {
  if (is_numpy_random(random)) return peek_numpy(random, last);
  if (!is_random(random)) {
    const Ref made = generator_in(random);
    if (!made) return {};
    if (is_random(made.get())) return peek_random(made.get(), last);
    return draw_all(made.get(), last);
  }
  char* state = reinterpret_cast<char*>(random) + sizeof(PyObject);
  std::array<char, kStateBytes> saved;
  std::memcpy(saved.data(), state, saved.size());
  Ref drawn;
  for (const Draw draw : draws_until(last)) drawn = draw_now(random, draw);
  std::memcpy(state, saved.data(), saved.size());
  return drawn;
}

}  // namespace magneto::guards
