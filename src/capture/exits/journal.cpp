// What a plan does behind all else: the writes that were kept back, and what is changed of the thread's modes.
#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>

#include "capture/exits/rebuild.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/strings.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "fake/session.h"
#include "observe/faults.h"
#include "python/abi/sets.h"
#include "python/abi/types.h"
#include "python/bytecode/liveness.h"
#include "python/imported.h"
#include "runtime/program/numpy_calls.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using runtime::PlanInstr;
using runtime::PlanOp;

namespace {

/// A test wants writes of that kind to be lost.
bool is_lost(std::string_view kind) {
  const std::string* fault = observe::fault_at("capture.write");
  return fault && *fault == kind;
}

std::string_view kind_of(const Overlay& written) {
  return PyCell_Check(written.object) ? "cell" : written.items ? "item" : "attribute";
}

}  // namespace

/// What the segment has done to a generator of random numbers.
void Rebuilder::draw_again(const Numbers::Drawn& drawn) {
  static constinit Imported number("_random", "Random.random"), bits("_random", "Random.getrandbits");
  static constinit Imported below("random", "Random._randbelow_with_getrandbits");
  PyObject* const random = drawn.random.get();
  if (drawn.start) {
    static constinit Imported of_python("_random", "Random.setstate"),
        of_numpy("numpy.random.mtrand", "RandomState.set_state");
    PyObject* const set = (guards::is_random(random) ? of_python : of_numpy).get();
    emit(PlanOp::Call, {constant(set), build(random), build(drawn.start.get())});
  }
  for (const guards::Draw draw : guards::draws_until(drawn.last)) {
    if (PyObject* value = guards::is_random(random) ? guards::seed_of(draw) : nullptr) {
      static constinit Imported seed("_random", "Random.seed");
      emit(PlanOp::Call, {constant(seed.get()), build(random), constant(value)});
      continue;
    }
    if (PyObject* caller = guards::caller_of(draw)) {
      emit(PlanOp::Call, {constant(caller), build(random)});
      continue;
    }
    Imported& method = draw == 0 ? number : draw > 0 ? below : bits;
    std::vector<int32_t> call = {constant(method.get()), build(random)};
    if (draw != 0) call.push_back(constant(checked(PyLong_FromLongLong(std::abs(draw))).get()));
    emit(PlanOp::Call, std::move(call));
  }
}

void Rebuilder::journal() {
  for (const auto& written : c.overlays.all) {
    if (is_lost(kind_of(*written))) continue;
    const auto stand_in = c.tensors.fake_of.find(written->object);
    const int32_t target = build(stand_in == c.tensors.fake_of.end() ? written->object : stand_in->second.get());
    for (const auto& [name, value] : written->entries) {
      std::vector<int32_t> args;
      if (value) args.push_back(build(value.get()));
      if (PyCell_Check(written->object)) {
        emit_to(target, PlanOp::StoreCell, std::move(args));
      } else {
        emit_to(target, written->items ? PlanOp::StoreItem : PlanOp::StoreAttr, std::move(args),
                c.world.pinned(name.get()));
      }
    }
  }
  for (const Numbers::Drawn& drawn : c.numbers.draws) draw_again(drawn);
  for (const auto& [list, tail] : c.containers.tails) {
    if (is_lost("list")) continue;
    std::vector<int32_t> items;
    for (const Ref& item : tail) items.push_back(build(item.get()));
    emit_to(build(list), PlanOp::ListFill, std::move(items));
  }
  for (const auto& [original, shadow] : c.containers.shadows) {
    if (!shadow.dirty || is_lost(Py_TYPE(shadow.object.get())->tp_name)) continue;
    const int32_t target = build(original);
    PyObject* contents = shadow.object.get();
    PyTypeObject* type = Py_TYPE(contents);
    if (type == &PyList_Type) {
      const int32_t list = emit(PlanOp::NewList);
      emit_to(list, PlanOp::ListFill, build_items(contents));
      emit_to(target, PlanOp::ReplaceList, {list});
    } else if (PyDict_Check(contents)) {
      const int32_t dict = emit(PlanOp::NewDict);
      emit_to(dict, PlanOp::DictFill, build_entries(contents));
      emit_to(target, PlanOp::ReplaceDict, {dict});
    } else if (type == &PySet_Type) {
      const int32_t set = emit(PlanOp::NewSet);
      fill_set(set, contents);
      emit_to(target, PlanOp::ReplaceSet, {set});
    } else if (PyAnySet_Check(contents)) {
      throw Abandon{BreakReason::Mutation, std::string("a ") + type->tp_name + " from outside is changed"};
    } else {
      static constinit Imported clear("collections", "deque.clear"), extend("collections", "deque.extend");
      const Ref all = checked(PySequence_List(contents));
      c.world.keep(all);
      const int32_t items = build(all.get());
      emit(PlanOp::Call, {emit(PlanOp::Const, {}, clear.get()), target});
      emit(PlanOp::Call, {emit(PlanOp::Const, {}, extend.get()), target, items});
    }
  }
  for (const auto& [iterator, place] : places_) emit_to(iterator, PlanOp::SetState, {place});
}

bool Rebuilder::function_modes(const std::vector<PyObject*>& start, const std::vector<PyObject*>& end) {
  const auto [left, entered] = std::mismatch(start.begin(), start.end(), end.begin(), end.end());
  const auto is_context = [](PyObject* mode) { return guards::device_of_context(mode).has_value(); };
  if (std::none_of(left, start.end(), is_context) && std::none_of(entered, end.end(), is_context)) {
    static constinit Imported pop("torch._C", "_pop_torch_function_stack"),
        push("torch._C", "_push_on_torch_function_stack");
    for (auto mode = start.end(); mode != left; --mode) emit(PlanOp::Call, {constant(pop.get())});
    for (auto mode = entered; mode != end.end(); ++mode) {
      const int32_t built = build(*mode);
      emit(PlanOp::Call, {constant(push.get()), built});
    }
    return true;
  }
  if (!std::all_of(left, start.end(), is_context) || !std::all_of(entered, end.end(), is_context)) return false;
  const auto call = [&](PyObject* mode, const char* name, int nones) {
    Ref device = checked(THPDevice_New(*guards::device_of_context(mode)));
    Ref method = checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(device.get())), name));
    std::vector<int32_t> args = {emit(PlanOp::Const, {}, method.get()), emit(PlanOp::Const, {}, device.get())};
    while (nones-- > 0) args.push_back(emit(PlanOp::Const, {}, Py_None));
    emit(PlanOp::Call, std::move(args));
  };
  for (auto mode = start.end(); mode != left;) call(*--mode, "__exit__", 3);
  for (auto mode = entered; mode != end.end(); ++mode) call(*mode, "__enter__", 0);
  return true;
}

/// Modes of the thread that the segment leaves changed are set by the torch functions that users set them with.
void Rebuilder::modes(const guards::GlobalState& start, const guards::GlobalState& end, int nesting) {
  guards::GlobalState rest = end;
  rest.dispatch_included = start.dispatch_included;  // the session's own keys
  rest.dispatch_excluded = start.dispatch_excluded;
  if (end.grad_mode != start.grad_mode) {
    PlanInstr instr{PlanOp::GradMode};
    instr.index = end.grad_mode;
    plan.instrs.push_back(std::move(instr));
    rest.grad_mode = start.grad_mode;
  }
  auto set = [&](const char* function_name, std::initializer_list<PyObject*> values) {
    Ref torch = checked(PyImport_ImportModule("torch"));
    Ref function = checked(PyObject_GetAttrString(torch.get(), function_name));
    std::vector<int32_t> args = {emit(PlanOp::Const, {}, function.get())};
    for (PyObject* value : values) args.push_back(emit(PlanOp::Const, {}, value));
    emit(PlanOp::Call, std::move(args));
  };
  auto boolean = [](bool value) { return value ? Py_True : Py_False; };
  struct Device {
    const char* name;
    bool guards::GlobalState::* enabled;
    at::ScalarType guards::GlobalState::* dtype;
  };
  static constexpr Device devices[] = {
      {"cpu", &guards::GlobalState::autocast_cpu, &guards::GlobalState::autocast_cpu_dtype},
      {"cuda", &guards::GlobalState::autocast_cuda, &guards::GlobalState::autocast_cuda_dtype},
  };
  for (const Device& device : devices) {
    Ref name = checked(PyUnicode_FromString(device.name));
    if (end.*device.enabled != start.*device.enabled) {
      set("set_autocast_enabled", {name.get(), boolean(end.*device.enabled)});
      rest.*device.enabled = start.*device.enabled;
    }
    if (end.*device.dtype != start.*device.dtype) {
      set("set_autocast_dtype", {name.get(), reinterpret_cast<PyObject*>(torch::getTHPDtype(end.*device.dtype))});
      rest.*device.dtype = start.*device.dtype;
    }
  }
  if (end.autocast_cache != start.autocast_cache) {
    set("set_autocast_cache_enabled", {boolean(end.autocast_cache)});
    rest.autocast_cache = start.autocast_cache;
  }
  for (; nesting > 0; --nesting) set("autocast_increment_nesting", {});
  for (; nesting < 0; ++nesting) set("autocast_decrement_nesting", {});
  rest.autocast_region = start.autocast_region;
  if (c.session->impl().casts.has_left_outer()) set("clear_autocast_cache", {});
  if (!(rest == start)) {
    throw Abandon{BreakReason::Mutation, "a torch mode of the thread differs at the end: " + start.difference(rest)};
  }
}

}  // namespace magneto::capture
