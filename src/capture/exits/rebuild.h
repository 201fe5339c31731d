// Turns the values that a segment hands on into plan instructions that make them anew at each run.
#pragma once

#include <unordered_map>

#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "runtime/plan/plan.h"

namespace magneto::capture {

class Rebuilder {
 public:
  Rebuilder(Capture& capture, runtime::Plan& plan) : c(capture), plan(plan) {}

  /// The register that holds `value` at run time; -1 for null. Equal objects share a register, so identity between
  /// values is kept. Throws Abandon for objects that no recipe exists for.
  int32_t build(PyObject* value);
  runtime::FrameState frame_state(InterpFrame& frame, bool innermost);
  /// Notes the exception that the program handles at the segment's end; then, with all else built, makes the thread
  /// handle it.
  void handled_exception();
  void set_handled_exception();
  /// Makes the calls that were put off, those that have not been made: the last instructions of the plan.
  void deferred_calls();
  /// Registers hooks on gradients of what is handed on. (torch/tensor_hooks.cpp)
  void gradient_hooks();
  /// Replays the writes to outside objects that the capture kept back.
  void journal();
  /// What the segment leaves changed of the thread's stack of torch function modes. False: contexts of torch.device
  /// among others.
  bool function_modes(const std::vector<PyObject*>& start, const std::vector<PyObject*>& end);
  /// What the segment leaves changed of the thread's torch modes; `nesting`: by how much autocast is nested deeper.
  void modes(const guards::GlobalState& start, const guards::GlobalState& end, int nesting);
  /// Tells the guard set which sources the plan loads; then, with the compiled program, fills in their slots.
  void require_sources();
  void resolve_slots(const guards::GuardProgram& program);
  /// A tensor handed on requires grad.
  bool needs_grad() const { return needs_grad_; }
  /// Stand-ins of what the graph gives, in the order of graph.outputs. Undefined where two stand for one value, and one
  /// of them alone requires gradients.
  const std::vector<at::Tensor>& outputs() const { return output_tensors_; }
  const at::Tensor& tensor_of(PyObject* object) const;

 private:
  static Abandon unbuildable(PyObject* value);
  int32_t emit(runtime::PlanOp op, std::vector<int32_t> args = {}, PyObject* object = nullptr, int32_t index = 0);
  void emit_to(int32_t dst, runtime::PlanOp op, std::vector<int32_t> args = {}, PyObject* object = nullptr);
  int32_t constant(PyObject* value);
  void draw_again(const Numbers::Drawn& drawn);
  int32_t load(const guards::Source* source);
  void fill_instance_dict(int32_t instance, PyObject* value);
  void fill_set(int32_t set, PyObject* contents);
  int32_t build_dead(PyObject* value);
  bool is_plain_data(PyObject* value, int depth);

  /// Kinds of what is handed on. (Table and small kinds: rebuild_kinds.cpp)
  struct Kind {
    using OfValue = bool (*)(PyObject* value);
    using OfCapture = bool (Rebuilder::*)(PyObject* value);  // what the capture knows of it
    using Build = int32_t (Rebuilder::*)(PyObject* value);
    constexpr Kind(const char* name, OfValue matches, Build build) : name(name), of_value(matches), build(build) {}
    constexpr Kind(const char* name, OfCapture matches, Build build) : name(name), of_capture(matches), build(build) {}
    bool matches(Rebuilder& rebuilder, PyObject* value) const;

    const char* name;
    OfValue of_value = nullptr;
    OfCapture of_capture = nullptr;
    Build build;
  };
  static const Kind kKinds[];
  int32_t build_tensor(PyObject* value);
  int32_t build_jagged_values(PyObject* jagged);
  int32_t build_distributed(PyObject* value);
  int32_t build_wrapper(PyObject* value, const ClassTensor& known);
  int32_t build_array(PyObject* value);
  bool is_of_made_class(PyObject* value);
  int32_t build_of_made_class(PyObject* value);
  int32_t build_made_class(PyObject* value);
  int32_t make_class_quietly(PyObject* value);
  int32_t build_maker(PyTypeObject* type, std::vector<int32_t> args);
  std::vector<PyObject*> reserve_cells(PyObject* entries);
  bool is_named_tuple(PyObject* value);
  int32_t build_named_tuple(PyObject* value);
  int32_t build_callback(PyObject* value);
  int32_t build_text(PyObject* value);
  int32_t build_truth(PyObject* value);
  int32_t build_data_float(PyObject* value);
  int32_t build_of_storage(PyObject* value);
  int32_t build_address(PyObject* value);
  bool is_nested_int(PyObject* value);
  int32_t build_nested_int(PyObject* value);
  bool is_made_size(PyObject* value);
  int32_t build_size(PyObject* value);
  bool is_from_outside(PyObject* value);
  int32_t build_outside(PyObject* value);
  bool is_handled_at_start(PyObject* value);
  int32_t build_handled(PyObject* value);
  int32_t build_bound_method(PyObject* value);
  int32_t build_method_by_name(PyObject* value, PyObject* self);
  int32_t build_torch_generator(PyObject* value);
  bool is_made_numpy_generator(PyObject* value);
  int32_t build_numpy_generator(PyObject* value);
  bool is_random_made(PyObject* value);
  int32_t build_random(PyObject* value);
  int32_t build_linear_mark(PyObject* value);
  bool is_context_token(PyObject* value);
  int32_t build_context_token(PyObject* value);
  int32_t build_hook_handle(PyObject* value);
  void check_copy(const Gradients::HookAtEnd& hook);
  int32_t build_generator(PyObject* value);
  int32_t build_function(PyObject* value);
  int32_t build_method(PyObject* value);
  int32_t build_slice(PyObject* value);
  bool is_compiled(PyObject* value);
  int32_t build_compiled(PyObject* value);
  int32_t build_weak_reference(PyObject* value);
  int32_t build_bound_builtin(PyObject* value);
  int32_t build_cell(PyObject* value);
  int32_t build_container(PyObject* value);
  int32_t build_super(PyObject* value);
  int32_t build_shape(PyObject* value);
  int32_t build_return_type(PyObject* value);
  int32_t build_instance(PyObject* value);
  int32_t build_dict_iterator(PyObject* value);
  int32_t build_reduced(PyObject* value);

  bool is_constant(PyObject* value);
  bool holds_constants(PyObject* set);
  std::vector<int32_t> build_items(PyObject* sequence);
  int32_t read_number(PyObject* tensor);
  std::vector<int32_t> build_entries(PyObject* dict);

  Capture& c;
  runtime::Plan& plan;
  std::unordered_map<PyObject*, int32_t> memo_;
  std::vector<std::pair<size_t, const guards::Source*>> loads_;  // instruction, source
  std::unordered_map<graph::ValueId, int32_t> outputs_;
  std::vector<at::Tensor> output_tensors_;
  size_t deferred_calls_ = 0;  // that are in the plan
  int32_t handled_ = -1;
  std::vector<std::pair<int32_t, int32_t>> places_;  // of iterators, and how far they are: set when lists are written
  bool needs_grad_ = false;
  std::vector<PyObject*> classes_being_made_;
};

}  // namespace magneto::capture
