// Programs that draw random numbers from generators of their own (torch.Generator).
//
// A generator from outside is a constant of the graph, under a guard on its identity; where captures have found two at
// one place, the segment ends in front of the draw instead. One that the segment makes belongs to the plan: the graph
// seeds it anew in each run, and what of it is alive at the segment's end is a copy, in the state that it has then.
// States are tensors of the graph, read and set in their place among the draws.
#include <ATen/Context.h>
#include <torch/csrc/Generator.h>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/world.h"
#include "graph/graph.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

const at::Generator& generator_of(PyObject* object) { return reinterpret_cast<THPGenerator*>(object)->cdata; }

/// The seed as Generator.manual_seed takes it: an unsigned number, or a signed one. Nothing: it raises.
std::optional<int64_t> seed_of(PyObject* number) {
  if (!PyLong_CheckExact(number)) return {};
  int overflow = 0;
  const int64_t seed = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (!overflow) return seed;
  const uint64_t large = PyLong_AsUnsignedLongLong(number);
  if (!PyErr_Occurred()) return static_cast<int64_t>(large);
  PyErr_Clear();
  return {};
}

void record_seed(Capture& capture, PyObject* generator, PyObject* seed) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("magneto::seed_generator", "")
                                    .typed<void(std::optional<at::Generator>, int64_t)>();
  PyObject* args[] = {generator, seed};
  capture.torch.record(graph::TorchNode::Kind::CallMethod, MAGNETO_STR("manual_seed"), args, nullptr, [&] {
    operation.call(generator_of(generator), *seed_of(seed));
    return Py_NewRef(Py_None);
  });
}

/// The generator that an operator seeds or sets: its first argument, or the default one.
at::Generator target_of(const graph::AtenNode& node) {
  const auto* constant = std::get_if<c10::IValue>(&node.args.at(0));
  return constant && constant->isGenerator() ? constant->toGenerator() : at::globalContext().defaultGenerator(at::kCPU);
}

/// The seed that the segment has given it last. Nothing: none, or it has its state from elsewhere.
std::optional<int64_t> last_seed(const graph::Graph& graph, const at::Generator& generator) {
  for (auto node = graph.aten_nodes.rbegin(); node != graph.aten_nodes.rend(); ++node) {
    const std::string& name = node->op.operator_name().name;
    const bool seeds = name == "magneto::manual_seed" || name == "magneto::seed_generator";
    if ((!seeds && name != "magneto::set_generator_state") || target_of(*node) != generator) continue;
    const auto* seed = seeds ? std::get_if<c10::IValue>(&node->args.back()) : nullptr;
    return seed && seed->isInt() ? std::optional(seed->toInt()) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

bool is_generator(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPGeneratorClass));
}

void TorchCalls::draw_from(PyObject* generator) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(generator)) != THPGeneratorClass ||
      !generator_of(generator).device().is_cpu()) {
    c.side_exit(BreakReason::OpaqueObject, std::string("a draw from an object of type ") + Py_TYPE(generator)->tp_name);
  }
  const guards::Source* source = c.world.source_of(generator);
  if (!source || source->kind == guards::SourceKind::Const) return;
  if (c.numbers.has_changed(source, generator, " as a generator")) {
    c.side_exit(BreakReason::OpaqueObject, source->name() + " is another generator from run to run");
  }
  c.guards.identity(source, generator);
}

Ref TorchCalls::make_generator(const CallArgs& args) {
  Ref made = checked(PyObject_Vectorcall(THPGeneratorClass, args.values.data(), args.positional(), args.kwnames));
  if (!generator_of(made.get()).device().is_cpu()) {
    c.side_exit(BreakReason::OpaqueCall, "a generator of another device than the CPU is made");
  }
  makes_generators = true;
  c.world.keep(made);
  Ref seed = checked(PyLong_FromUnsignedLongLong(generator_of(made.get()).current_seed()));
  record_seed(c, made.get(), seed.get());
  return made;
}

Ref seed_generator(Capture& capture, const CallArgs& args) {
  if (args.values.size() != 2 || args.kwnames || !seed_of(args.values[1])) {
    capture.side_exit(BreakReason::OpaqueCall, "call of torch._C.Generator.manual_seed");
  }
  capture.torch.draw_from(args.values[0]);
  record_seed(capture, args.values[0], args.values[1]);
  return Ref::borrow(args.values[0]);
}

Ref generator_state(Capture& capture, const CallArgs& args) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("magneto::generator_state", "")
                                    .typed<at::Tensor(std::optional<at::Generator>)>();
  check_count(args, 1, 1, "get_state");
  capture.torch.draw_from(args.values[0]);
  return capture.torch.record(graph::TorchNode::Kind::CallMethod, MAGNETO_STR("get_state"), args.values, nullptr,
                              [&] { return tensor_object(operation.call(generator_of(args.values[0]))); });
}

Ref set_generator_state(Capture& capture, const CallArgs& args) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("magneto::set_generator_state", "")
                                    .typed<void(std::optional<at::Generator>, const at::Tensor&)>();
  check_count(args, 2, 2, "set_state");
  const bool is_state = is_fake_tensor(args.values[1]) && unpack_tensor(args.values[1]).scalar_type() == at::kByte &&
                        unpack_tensor(args.values[1]).device().is_cpu();
  if (!is_state) capture.side_exit(BreakReason::OpaqueCall, "call of torch._C.Generator.set_state");
  capture.torch.draw_from(args.values[0]);
  capture.torch.record(graph::TorchNode::Kind::CallMethod, MAGNETO_STR("set_state"), args.values, nullptr, [&] {
    operation.call(generator_of(args.values[0]), unpack_tensor(args.values[1]));
    return Py_NewRef(Py_None);
  });
  return Ref::borrow(args.values[0]);
}

Ref seed_of_generator(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "initial_seed");
  capture.torch.draw_from(args.values[0]);
  const std::optional<int64_t> seed = last_seed(capture.graph, generator_of(args.values[0]));
  if (!seed) capture.side_exit(BreakReason::OpaqueCall, "call of torch._C.Generator.initial_seed");
  return checked(PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(*seed)));
}

}  // namespace magneto::capture
