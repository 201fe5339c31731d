#include "capture/numpy/made_generators.h"

#include <string>
#include <string_view>
#include <vector>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/kinds.h"
#include "capture/numbers/draw_methods.h"
#include "capture/numbers/numbers.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "guards/draw.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

/// The method of a generator that is called: its name; null: it is no such call.
Ref method_of_generator(PyObject* callable, const CallArgs& args) {
  if (!std::string_view(Py_TYPE(callable)->tp_name).ends_with(".cython_function_or_method")) return {};
  if (args.positional() == 0 || !guards::is_numpy_random(args.values[0])) return {};
  Ref name = checked(PyObject_GetAttrString(callable, "__name__"));
  const Ref own = Ref::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(args.values[0])), name.get()));
  PyErr_Clear();
  return own.get() == callable ? std::move(name) : Ref();
}

/// Code of NumPy's, some of it in Python, that is none of the program.
template <typename Call>
Ref call_apart(Capture& c, const Call& call) {
  Ref result;
  c.run_suspended([&] { result = Ref::steal(call()); });
  if (!result) c.errors.check_interrupt();
  return checked(result.release());
}

bool is_named(const Ref& name, const char* text) { return PyUnicode_CompareWithASCIIString(name.get(), text) == 0; }

/// What each run calls in place of the method: "drawn('Generator', {...}, 'normal', ".
std::string start_of_call(Capture& c, PyObject* generator, const Ref& name) {
  static constinit Imported state("magneto._numpy", "state_text");
  const Ref text = call_apart(c, [&] { return PyObject_CallOneArg(state.get(), generator); });
  return "drawn(" + std::string(PyUnicode_AsUTF8(text.get())) + ", '" + PyUnicode_AsUTF8(name.get()) + "', ";
}

/// What a method that draws may be given: constants, and an array whose items it puts in another order.
bool known_arguments(Capture& c, const Ref& name, const CallArgs& args, CallArgs& rest, CallArgs& now,
                     std::vector<Ref>& held) {
  static constinit Imported as_array("numpy", "array");
  rest.kwnames = now.kwnames = args.kwnames;
  const bool orders = is_named(name, "permutation");  // choice() may give one of the items, which only a run knows
  for (size_t i = 1; i < args.values.size(); ++i) {
    PyObject* value = args.values[i];
    if (i == 1 && orders && is_array(value)) {
      const Ref stand_in = c.numpy.stand_in_for(value);
      rest.values.push_back(value);
      held.push_back(checked(PyObject_CallOneArg(as_array.get(), stand_in_of(stand_in.get()).sample)));
    } else {
      held.push_back(constant_argument(c, value));
      if (!held.back()) return false;
      rest.values.push_back(held.back().get());
    }
    now.values.push_back(held.back().get());
  }
  return true;
}

}  // namespace

Ref NumpyCapture::call_of(const std::string& start, const CallArgs& args) {
  NumpyCall call{start, {}};
  for (size_t i = 0; i < args.values.size(); ++i) {
    if (PyObject* keyword = args.keyword(i)) call.text += std::string(PyUnicode_AsUTF8(keyword)) + "=";
    if (!write_argument(args.values[i], call, /*arrays=*/true)) {
      c.side_exit(BreakReason::OpaqueObject,
                  "NumPy is given an object of type " + std::string(Py_TYPE(args.values[i])->tp_name));
    }
    call.text += ", ";
  }
  call.text += ")";
  return run(call);
}

bool is_made_generator(const Capture& c, PyObject* object) {
  return guards::is_numpy_random(object) && !c.world.source_of(object);
}

/// Asked of each call: numpy.random is not imported for the sake of those that have nothing to do with it.
static bool may_make_generator(PyObject* callable) {
  if (PyType_Check(callable)) {
    const char* const name = reinterpret_cast<PyTypeObject*>(callable)->tp_name;
    return std::string_view(name) == "numpy.random.mtrand.RandomState";
  }
  return std::string_view(Py_TYPE(callable)->tp_name).ends_with("cython_function_or_method") &&
         PyDict_GetItemString(PyImport_GetModuleDict(), "numpy.random");
}

Ref make_generator(Capture& c, PyObject* callable, const CallArgs& args) {
  if (!may_make_generator(callable)) return {};
  static constinit Imported usual("numpy.random", "default_rng"), legacy("numpy.random.mtrand", "RandomState");
  if (callable != usual.get() && callable != legacy.get()) return {};
  if (args.values.size() != 1) return {};
  PyObject* const given = args.values[0];
  const bool same = callable == usual.get() && std::string_view(Py_TYPE(given)->tp_name).ends_with(".Generator");
  if (same && guards::is_numpy_random(given)) return Ref::borrow(given);
  const Ref seed = constant_argument(c, given);
  if (!seed || !PyLong_CheckExact(seed.get())) return {};  // none at all is asked of the system
  PyObject* const values[] = {seed.get()};
  return call_apart(c, [&] { return PyObject_Vectorcall(callable, values, args.kwnames ? 0 : 1, args.kwnames); });
}

Ref draw_of_made(Capture& c, PyObject* callable, const CallArgs& args) {
  const Ref name = method_of_generator(callable, args);
  if (!name || !is_made_generator(c, args.values[0]) || !only_draws(PyUnicode_AsUTF8(name.get()))) return {};
  CallArgs rest, now;
  std::vector<Ref> held;
  if (!known_arguments(c, name, args, rest, now, held)) return {};
  const std::string call = start_of_call(c, args.values[0], name);
  now.values.insert(now.values.begin(), args.values[0]);
  const Ref drawn =
      call_apart(c, [&] { return PyObject_Vectorcall(callable, now.values.data(), now.positional(), now.kwnames); });
  ++c.overlays.writes;  // no branch may do so
  return guards::is_array(drawn.get()) ? c.numpy.call_of(call, rest) : drawn;
}

Ref shuffle_array(Capture& c, PyObject* callable, const CallArgs& args) {
  const Ref name = method_of_generator(callable, args);
  if (!name || !is_named(name, "shuffle") || args.values.size() != 2 || args.kwnames) return {};
  PyObject *const generator = args.values[0], *const items = args.values[1];
  const bool made = is_made_generator(c, generator);
  if (made && PyList_CheckExact(items) && !c.world.is_outside(items)) {
    Ref nothing = call_apart(c, [&] { return PyObject_Vectorcall(callable, args.values.data(), 2, nullptr); });
    ++c.overlays.writes;
    return nothing;
  }
  if (!is_array(items)) return {};
  const Ref stand_in = c.numpy.stand_in_for(items);
  const Py_ssize_t count = PyObject_Length(stand_in_of(stand_in.get()).sample);
  if (count < 0) {  // without dimensions: an error
    PyErr_Clear();
    return {};
  }
  // A shuffle is the permutation of as many numbers: NumPy draws the same for both.
  static constinit Imported of_own("numpy.random", "Generator.permutation"),
      of_legacy("numpy.random.mtrand", "RandomState.permutation");
  const bool own = std::string_view(Py_TYPE(generator)->tp_name).ends_with(".Generator");
  const Ref number = checked(PyLong_FromSsize_t(count));
  Ref order;
  c.numpy.replace(items, [&] {
    order = c.calls.call((own ? of_own : of_legacy).get(), {generator, number.get()});
    return c.numpy.item(items, order.get());
  });
  return Ref::borrow(Py_None);
}

PyObject* generator_copier() {
  static constinit Imported copy("magneto._numpy", "copied");
  return copy.get();
}

Ref copy_of_generator(Capture& c, PyObject* generator) {
  return call_apart(c, [&] { return PyObject_CallOneArg(generator_copier(), generator); });
}

}  // namespace magneto::capture
