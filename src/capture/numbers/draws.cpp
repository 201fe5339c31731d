// Python's random numbers, and NumPy's: what a generator gives is peeked at by the guards of each run, and drawn behind
// the run.
//
// A number that is drawn may be handed on, computed with, and be a size. Where the program asks for more, its value is
// guarded, as long as there are few outcomes: a capture for each of the four things that `random.choice` may give.
#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/numbers/draw_methods.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/places.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/unknown_number.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "guards/draw.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Draw;
using guards::Source;
using guards::SourceKind;

namespace {

/// More draws than this in one segment: peeking at the last one costs as many.
constexpr size_t kMostDraws = 32;
constexpr size_t kMostNumpyDraws = 8;  // which cost more
/// There is a capture for each outcome of draws that decide: as many as are kept by default.
constexpr int64_t kMostOutcomes = 8;
/// Larger bounds are drawn for real.
constexpr int64_t kLargestBound = int64_t{1} << 48;

/// Arrays are drawn twice, in front of a run and behind it: larger ones for real.
constexpr Py_ssize_t kMostBytes = 1 << 16;

bool is_small_array(PyObject* object) {
  if (!guards::is_array(object)) return false;
  const Ref bytes = Ref::steal(PyObject_GetAttrString(object, "nbytes"));
  return bytes && PyLong_AsSsize_t(bytes.get()) <= kMostBytes;
}

std::vector<const Source*> draws_in(const Source* source) {
  if (!source) return {};
  if (source->kind == SourceKind::Draw) return {source};
  if (source->kind != SourceKind::Number) return {};
  std::vector<const Source*> found = draws_in(source->base);
  for (const Source* other : draws_in(source->other)) found.push_back(other);
  return found;
}

/// Nothing: of a float.
std::optional<int64_t> outcomes_of(const Source* drawn) {
  const Draw draw = guards::draws_until(drawn->index).back();
  if (draw == 0 || guards::caller_of(draw)) return std::nullopt;
  return draw > 0 ? draw : int64_t{1} << -draw;
}

/// The number of bits or bound is none that can be drawn in a run's guards.
std::optional<int64_t> bound_of(PyObject* value, int64_t most) {
  if (!PyLong_CheckExact(value)) return std::nullopt;
  int overflow = 0;
  const int64_t bound = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow || bound <= 0 || bound > most ? std::nullopt : std::optional(bound);
}

}  // namespace

bool is_drawn(const Source* source) { return !draws_in(source).empty(); }

bool Numbers::is_drawable(PyObject* random) {
  static constinit Imported c_type("_random", "Random");
  if (!c.world.source_of(random) || !guards::is_random(random) || c.feedback.needs_all) return false;
  return c.attributes.type_lookup(Py_TYPE(random), MAGNETO_STR("getrandbits")) ==
         PyDict_GetItemString(type_dict(c_type.type()), "getrandbits");
}

/// Null: the segment has done nothing to it.
Numbers::Drawn* Numbers::drawn_from(PyObject* random) {
  const auto found = std::ranges::find(draws, random, [](const Drawn& drawn) { return drawn.random.get(); });
  return found == draws.end() ? nullptr : &*found;
}

Numbers::Drawn& Numbers::drawn_by(PyObject* random) {
  if (Drawn* known = drawn_from(random)) return *known;
  return draws.emplace_back(Drawn{Ref::borrow(random), {}, -1});
}

const Source* Numbers::base_of(PyObject* random) {
  const Drawn* const drawn = drawn_from(random);
  return c.world.source_of(drawn && drawn->start ? drawn->start.get() : random);
}

Ref Numbers::peek(PyObject* random, Py_ssize_t last) {
  const Drawn* const drawn = drawn_from(random);
  return guards::peek_random(drawn && drawn->start ? drawn->start.get() : random, last);
}

Ref Numbers::draw(PyObject* random, Draw draw) {
  Drawn* const drawn = drawn_from(random);
  const Py_ssize_t before = drawn ? drawn->last : -1;
  const bool of_numpy = guards::caller_of(draw) != nullptr;
  const bool many = guards::draws_until(before).size() == (of_numpy ? kMostNumpyDraws : kMostDraws);
  const Source* generator = c.world.source_of(random) ? base_of(random) : nullptr;
  const bool known = of_numpy ? guards::is_numpy_random(random) : guards::is_random(random);
  if (!generator || many || !known || c.feedback.needs_all) return {};
  const Py_ssize_t last = guards::draw_behind(before, draw);
  const Source* source = c.sources.draw(generator, last);
  if (c.feedback.needed.count(place_of(source))) return {};
  const Ref now = peek(random, last);
  if (!now && !of_numpy) throw PythonError{};
  const bool number = now && (PyFloat_CheckExact(now.get()) || PyLong_CheckExact(now.get()));
  const Ref layout = now && !number && is_small_array(now.get()) ? guards::layout_of(now.get()) : Ref();
  if (!number && !layout) {  // the call itself raises
    PyErr_Clear();
    return {};
  }
  drawn_by(random).last = last;
  if (layout) {
    c.guards.array(source, layout.get());
    return c.world.wrap(now.get(), source);
  }
  c.guards.type(source, Py_TYPE(now.get()));
  if (PyFloat_CheckExact(now.get()) || c.options.dynamic < Dynamic::Automatic)
    return unknown_number(now.get(), source, /*changes=*/true);
  return c.symbols.size_number(c.symbols.symbol_of_number(source, PyLong_AsLongLong(now.get())));
}

Ref Numbers::seed(PyObject* random, Draw draw) {
  Drawn* const drawn = drawn_from(random);
  const Py_ssize_t before = drawn ? drawn->last : -1;
  if (!c.world.source_of(random) || guards::draws_until(before).size() >= kMostNumpyDraws || c.feedback.needs_all)
    return {};
  drawn_by(random).last = guards::draw_behind(before, draw);
  return Ref::borrow(Py_None);
}

Ref Numbers::state_of(PyObject* random) {
  if (!c.world.source_of(random) || c.feedback.needs_all) return {};
  const Drawn* const drawn = drawn_from(random);
  const Py_ssize_t last = guards::draw_behind(drawn ? drawn->last : -1, guards::kStateDraw);
  const Source* source = c.sources.draw(base_of(random), last);
  if (const auto known = states_.find(source); known != states_.end()) {
    return guards::is_random(random) ? known->second : Ref();  // NumPy's are two tuples, with an array each
  }
  const Ref now = peek(random, last);
  if (!now || !PyTuple_CheckExact(now.get())) {
    PyErr_Clear();
    return {};
  }
  return states_[source] = c.world.wrap(now.get(), source);
}

/// The run's guards make the state that is set: what the program may have written in the meantime is not in it.
Ref Numbers::set_state(PyObject* random, PyObject* state) {
  const Source* given = c.world.source_of(state);
  if (!c.world.source_of(random) || !given || !PyTuple_CheckExact(state) || c.feedback.needs_all) return {};
  const auto items = std::span(&PyTuple_GET_ITEM(state, 0), PyTuple_GET_SIZE(state));
  if (std::ranges::any_of(items, [&](PyObject* item) { return is_array(item) && c.world.is_outside(item); })) return {};
  const bool is_draw = given->kind == SourceKind::Draw;
  if (is_draw && given->base == c.world.source_of(random)) {
    Drawn& drawn = drawn_by(random);
    drawn.start = {};
    drawn.last = guards::draw_in_front(given->index);
  } else {
    const Py_ssize_t last = guards::draw_behind(-1, guards::kStateDraw);
    const Ref now = guards::peek_random(state, last);
    if (!now || (PyTuple_GET_SIZE(now.get()) == 5) != guards::is_numpy_random(random)) {
      PyErr_Clear();
      return {};
    }
    const Source* source = c.sources.draw(given, last);
    Drawn& drawn = drawn_by(random);
    drawn.start = states_.contains(source) ? states_.at(source) : c.world.wrap(now.get(), source);
    drawn.last = -1;
  }
  ++c.overlays.writes;  // no branch may do so
  return Ref::borrow(Py_None);
}

bool Numbers::let_draws_decide(const Source* source, bool outcome, bool is_size) {
  std::vector<const Source*> open = draws_in(source);
  std::erase_if(open, [&](const Source* drawn) { return decisive_.contains(drawn); });
  if (open.empty()) return true;
  if (outcome) {
    if (comparison_decides_ || outcomes_ * 2 > kMostOutcomes) return false;
    outcomes_ *= 2;
    return comparison_decides_ = true;
  }
  int64_t outcomes = outcomes_;
  for (const Source* drawn : open) {
    const std::optional<int64_t> count = outcomes_of(drawn);
    if (!count) return is_size;  // an int made of it: few, or soon found to be many
    if (*count > kMostOutcomes || (outcomes *= *count) > kMostOutcomes) return false;
  }
  outcomes_ = outcomes;
  decisive_.insert(open.begin(), open.end());
  return true;
}

void Numbers::draws_decide(const shapes::Relation& question) {
  const shapes::Expr original = c.session->sizes().original(question.difference);
  shapes::any_leaf(original, [&](shapes::Expr leaf) {
    const auto symbol = std::ranges::find(c.symbols.assumed.symbols, leaf.id(), &guards::SizeAssumptions::Symbol::id);
    if (symbol == c.symbols.assumed.symbols.end() || symbol->place.kind != guards::SizePlace::Kind::Number)
      return false;
    const Source* source = symbol->place.source;
    if (c.frame && !let_draws_decide(source, /*outcome=*/true, /*is_size=*/true)) {
      c.side_exit(BreakReason::ChangingValue, source->name() + ", a random number, is needed");
    }
    return false;
  });
}

bool Numbers::may_decide(PyObject* random, std::span<PyObject* const> ranges) {
  if (is_made_random(c, random)) return true;
  if (!is_drawable(random) || c.options.exits_on_change) return false;
  const Drawn* const drawn = drawn_from(random);
  const size_t before = drawn ? guards::draws_until(drawn->last).size() : 0;
  int64_t outcomes = outcomes_;
  for (PyObject* range : ranges) {
    const std::optional<int64_t> count = bound_of(range, kMostOutcomes);
    if (!count || (outcomes *= *count) > kMostOutcomes) return false;
  }
  return before + ranges.size() <= kMostDraws;
}

bool is_made_random(Capture& capture, PyObject* object) {
  static constinit Imported type("random", "Random");
  return Py_TYPE(object) == type.type() && !capture.world.is_outside(object);
}

namespace {

/// What C code gives of a random.Random that the segment has made: it is real, and numbers that follow from its seed
/// are constants.
Ref call_made(PyObject* random, const char* method, PyObject* argument) {
  static constinit Imported c_type("_random", "Random");
  const Ref name = checked(PyUnicode_FromString(method));
  PyObject* const function = PyDict_GetItem(type_dict(c_type.type()), name.get());
  return checked(PyObject_CallFunctionObjArgs(function, random, argument, nullptr));
}

/// As Random._randbelow_with_getrandbits.
Ref draw_below(PyObject* random, int64_t below) {
  const Ref bits = checked(PyLong_FromLong(std::bit_width(static_cast<uint64_t>(below))));
  Ref drawn = call_made(random, "getrandbits", bits.get());
  while (PyLong_AsLongLong(drawn.get()) >= below) drawn = call_made(random, "getrandbits", bits.get());
  return drawn;
}

}  // namespace

Ref draw_number(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "random");
  if (is_made_random(capture, args.values[0])) return call_made(args.values[0], "random", nullptr);
  if (Ref drawn = capture.numbers.draw(args.values[0], 0)) return drawn;
  capture.side_exit(BreakReason::OpaqueCall, "call of the C function _random.Random.random");
}

Ref draw_bits(Capture& capture, const CallArgs& args) {
  constexpr int64_t most = 62;
  if (args.values.size() == 2 && !args.kwnames) {
    const Ref count = capture.numbers.known(args.values[1]);
    const std::optional<int64_t> bits = bound_of(count.get(), most);
    if (bits && is_made_random(capture, args.values[0])) return call_made(args.values[0], "getrandbits", count.get());
    if (Ref drawn = bits ? capture.numbers.draw(args.values[0], -*bits) : Ref()) return drawn;
  }
  capture.side_exit(BreakReason::OpaqueCall, "call of the C function _random.Random.getrandbits");
}

Ref seed_random(Capture& capture, const CallArgs& args) {
  if (args.values.size() == 2 && !args.kwnames && is_made_random(capture, args.values[0])) {
    const Ref known = constant_argument(capture, args.values[1]);  // None is the clock
    if (known && PyLong_CheckExact(known.get())) return call_made(args.values[0], "seed", known.get());
  }
  const bool plain = args.values.size() == 2 && !args.kwnames && capture.numbers.is_drawable(args.values[0]);
  const Ref seed = plain ? constant_argument(capture, args.values[1]) : Ref();
  if (seed && PyLong_CheckExact(seed.get())) {
    const Draw draw = guards::draw_of_call(MAGNETO_STR("seed"), {seed.get()}, nullptr);
    if (Ref done = capture.numbers.seed(args.values[0], draw)) return done;
  }
  capture.side_exit(BreakReason::OpaqueCall, "call of the C function _random.Random.seed");
}

Ref state_of_random(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "getstate");
  if (is_made_random(capture, args.values[0])) return call_made(args.values[0], "getstate", nullptr);
  if (Ref state = capture.numbers.state_of(args.values[0])) return state;
  capture.side_exit(BreakReason::OpaqueCall, "call of the C function _random.Random.getstate");
}

Ref set_state_of_random(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "setstate");
  if (Ref done = capture.numbers.set_state(args.values[0], args.values[1])) return done;
  capture.side_exit(BreakReason::OpaqueCall, "call of the C function _random.Random.setstate");
}

Ref draw_by_function(Capture& capture, PyObject* function, const CallArgs& args) {
  PyObject* name = reinterpret_cast<PyFunctionObject*>(function)->func_name;
  if (PyUnicode_CompareWithASCIIString(name, "may_draws_decide") == 0) {
    const auto ranges = std::span(args.values).subspan(1);
    return Ref::borrow(capture.numbers.may_decide(args.values[0], ranges) ? Py_True : Py_False);
  }
  if (args.values.size() != 2 || args.kwnames) return {};
  const bool made = is_made_random(capture, args.values[0]);
  if (!made && !capture.numbers.is_drawable(args.values[0])) return {};
  const Ref bound = capture.numbers.known(args.values[1]);
  const std::optional<int64_t> below = bound_of(bound.get(), kLargestBound);
  if (made) return below ? draw_below(args.values[0], *below) : Ref();
  return below ? capture.numbers.draw(args.values[0], *below) : Ref();
}

namespace {

/// Methods that give numbers, or arrays of them, and do nothing else.
constexpr std::string_view kDrawMethods[] = {
    "beta",
    "binomial",
    "chisquare",
    "choice",
    "dirichlet",
    "exponential",
    "f",
    "gamma",
    "geometric",
    "gumbel",
    "hypergeometric",
    "integers",
    "laplace",
    "logistic",
    "lognormal",
    "multinomial",
    "negative_binomial",
    "normal",
    "pareto",
    "permutation",
    "poisson",
    "power",
    "rand",
    "randint",
    "randn",
    "random",
    "random_sample",
    "rayleigh",
    "standard_cauchy",
    "standard_exponential",
    "standard_gamma",
    "standard_normal",
    "standard_t",
    "triangular",
    "uniform",
    "vonmises",
    "wald",
    "weibull",
    "zipf",
};

}  // namespace

bool only_draws(std::string_view method) { return std::ranges::count(kDrawMethods, method) != 0; }

Ref constant_argument(Capture& capture, PyObject* value) {
  if (is_unknown_number(value) && changes(unknown_of(value))) return {};
  Ref known = capture.numbers.known(value);
  PyTypeObject* const type = Py_TYPE(known.get());
  if (is_scalar(known.get()) || known.get() == Py_None || PyBool_Check(known.get())) return known;
  if (PyType_Check(known.get())) {
    const auto* named = reinterpret_cast<PyTypeObject*>(known.get());
    return PyType_HasFeature(const_cast<PyTypeObject*>(named), Py_TPFLAGS_HEAPTYPE) ? Ref() : known;
  }
  if (type != &PyTuple_Type && type != &PyList_Type && type != size_class()) return {};
  const bool outside = type == size_class() && capture.world.is_outside(known.get());
  const Ref items = outside ? capture.containers.contents_of(known.get()) : capture.containers.resolve(known.get());
  Ref made = checked(PyTuple_New(PySequence_Fast_GET_SIZE(items.get())));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made.get()); ++i) {
    Ref item = constant_argument(capture, PySequence_Fast_GET_ITEM(items.get(), i));
    if (!item) return {};
    PyTuple_SET_ITEM(made.get(), i, item.release());
  }
  return made;
}

namespace {

/// As NumPy takes it without asking the system for one.
bool is_seed(PyObject* value) {
  if (!PyLong_CheckExact(value)) return false;
  int overflow = 0;
  const long long seed = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow && seed >= 0 && seed <= UINT32_MAX;
}

}  // namespace

Ref draw_of_numpy(Capture& capture, PyObject* callable, const CallArgs& args) {
  if (!std::string_view(Py_TYPE(callable)->tp_name).ends_with(".cython_function_or_method")) return {};
  static constinit Imported seed_shared("numpy.random", "seed"), shared("numpy.random.mtrand", "_rand");
  static constinit Imported seed_own("numpy.random.mtrand", "RandomState.seed");
  if (callable == seed_shared.get() && callable != seed_own.get()) {  // a function of the module, and no method
    const Ref random = capture.world.wrap(shared.get(), capture.sources.constant(shared.get()));
    CallArgs of_method = args;
    of_method.values.insert(of_method.values.begin(), random.get());
    return draw_of_numpy(capture, seed_own.get(), of_method);
  }
  if (args.positional() == 0 || !guards::is_numpy_random(args.values[0])) return {};
  const Ref name = checked(PyObject_GetAttrString(callable, "__name__"));
  const Ref own = Ref::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(args.values[0])), name.get()));
  const auto is_named = [&](const char* text) { return PyUnicode_CompareWithASCIIString(name.get(), text) == 0; };
  const bool seeds = is_named("seed");
  if (own.get() == callable && !args.kwnames && guards::has_own_twister(args.values[0])) {
    if (is_named("get_state") && args.values.size() == 1) return capture.numbers.state_of(args.values[0]);
    if (is_named("set_state") && args.values.size() == 2)
      return capture.numbers.set_state(args.values[0], args.values[1]);
  }
  if (own.get() != callable || (!seeds && !only_draws(PyUnicode_AsUTF8(name.get())))) {
    PyErr_Clear();
    return {};
  }
  std::vector<Ref> known;
  std::vector<PyObject*> values;
  for (size_t i = 1; i < args.values.size(); ++i) {
    known.push_back(constant_argument(capture, args.values[i]));
    if (!known.back()) return {};
    values.push_back(known.back().get());
  }
  const bool seed = seeds && values.size() == 1 && is_seed(values[0]) && guards::has_own_twister(args.values[0]);
  if (seeds && !seed) return {};
  const Draw draw = guards::draw_of_call(name.get(), values, args.kwnames);
  return seed ? capture.numbers.seed(args.values[0], draw) : capture.numbers.draw(args.values[0], draw);
}

}  // namespace magneto::capture
