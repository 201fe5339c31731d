// Gradients: custom autograd functions, checkpoints, and the backward of what a segment hands on.
//
// Invariant: the user's code that autograd's engine would call in a backward is interpreted, for its guards, before a
// joint graph is made of it; where that fails, the segment is captured again without.
#pragma once

#include <Python.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "python/abi/frame.h"
#include "python/ref.h"

namespace magneto::autograd {
class JointTrace;
}  // namespace magneto::autograd

namespace magneto::capture {

class Capture;
struct CallArgs;

/// What stands for the handle of a hook that each run registers. (tensor_hooks.cpp)
bool is_hook_handle(PyObject* object);

class Gradients {
 public:
  explicit Gradients(Capture& capture) : c(capture) {}
  Gradients(const Gradients&) = delete;
  ~Gradients();

  /// torch.autograd.grad, torch.autograd.backward and Tensor.backward.
  Ref call_gradient(PyObject* function, const CallArgs& args);
  /// Each run gives the tensor, at the segment's end, the gradient that it has in the segment (`grads`).
  void set_at_end(PyObject* tensor);
  /// `tensor.data = value` of one from outside: each run does it at the segment's end. False: it can't wait until then.
  /// (tensor_data.cpp)
  bool set_data(PyObject* tensor, PyObject* value);
  /// The same of a parameter that the segment has made and not used yet, whatever the value looks like: another one is
  /// made of it, for which the object stands from then on. (made_parameters.cpp)
  bool take_data(PyObject* parameter, PyObject* value);
  /// What the segment has set it to. Null: nothing.
  PyObject* data_of(PyObject* tensor) const;
  /// A torch call with such tensors among its arguments, or in lists of these. Null: there are none, or it is not to be
  /// made here.
  Ref call_with_data(PyObject* callable, const CallArgs& args);
  Ref with_data(std::span<PyObject* const> args, const std::function<Ref(std::span<PyObject* const>)>& call);
  /// A side exit where the segment has set the data of one of these, which the graph still has as it was.
  void check_data(std::span<PyObject* const> values);
  /// The segment hands on nothing whose gradients go to what was read behind `tensor.data = value`. Else throws Retry.
  void check_read_data();
  /// Operators of the graph, from this one on, read such a tensor (and not only for its memory, as `tensor.data`).
  bool reads_set_data(size_t first_operator) const;
  bool needs_grad();
  std::optional<autograd::JointTrace> trace_backward(std::string* no_joint);
  Ref apply_autograd_function(const CallArgs& args);
  bool is_operator_backward(Frame* real) const;
  Ref checkpoint(const CallArgs& args);
  /// Tensor.register_hook, `remove` of a handle that it gave, torch.autograd.graph.register_multi_grad_hook, or
  /// magneto._hooks.register_of_module. Null: a side exit. (tensor_hooks.cpp)
  Ref register_hook(const CallArgs& args);
  /// Tensor.retain_grad. False: a side exit.
  bool retain_gradient(PyObject* tensor);
  /// `tensor.requires_grad = value` of a leaf from outside. False: a side exit. (frozen_leaves.cpp)
  bool set_requires_grad(PyObject* tensor, PyObject* value);
  /// The segment sets back what it has frozen. Else throws Retry, to end in front of that.
  void check_frozen();
  /// Autograd calls these functions for what it saves, until they are popped. False: a side exit. (saved_hooks.cpp)
  bool push_saved_hooks(PyObject* pack, PyObject* unpack);
  bool pop_saved_hooks();
  /// None are on. Else throws Retry, to end in front of them.
  void check_saved_hooks();
  /// Autograd calls one. Null: an error is set. What is packed is in a list of one, which the capture empties.
  PyObject* pack_saved(PyObject* function, PyObject* saved);
  PyObject* call_saved_hook(PyObject* function, PyObject* saved);
  /// Gradients are needed beside this tensor, whose class says what operators do. Where they can't be: a side exit.
  void pass_class(PyObject* tensor);
  bool has_passed(PyObject* type) const;
  /// They can't be captured beside those that were passed.
  [[noreturn]] void retry_without_classes(const std::string& why);

  /// Of inputs, and of leaves that the segment has made, as it has set them: None, or a tensor.
  std::map<graph::ValueId, Ref> grads;
  std::vector<std::pair<Ref, Ref>> hooks;  // that are interpreted, as they are known in later captures, and on what
  /// Each run registers them on what is then in the tensor's place.
  struct HookAtEnd {
    /// With their versions when the program registered it.
    std::vector<std::pair<Ref, int64_t>> tensors;
    Ref site;              // where that was, as it is known in later captures
    Ref function = {};     // null: retain_grad()
    Ref handle = {};       // what stands for it
    bool several = false;  // register_multi_grad_hook
    bool any = false;      // ...with mode="any"
    bool removed = false;
    /// Of a module: what the tensor is a copy of, where eager has a view.
    std::optional<std::pair<Ref, int64_t>> original = {};
  };
  std::vector<HookAtEnd> hooks_at_end;
  std::set<graph::ValueId> hooked;  // results that are given hooks then

  /// What autograd's engine is asked for. No tangents: ones.
  struct EngineCall {
    std::vector<at::Tensor> roots, ends, tangents;
    std::optional<bool> retains = {};  // none: as `differentiable`
    bool differentiable = false, allows_unused = true;
  };

  /// The segment is captured again, and does not interpret the backward, or hook.
  [[noreturn]] void retry_without(PyObject* function, std::string why);
  /// It is captured again, to end in front of the hook's registration.
  [[noreturn]] void break_at_hook(const HookAtEnd& hook, std::string why);
  /// Likewise, where that result has one.
  void break_at_hook(graph::ValueId result, const std::string& why);

 private:
  Ref interpret_hook(PyObject* tensor, PyObject* hook);
  bool hook_at_end(HookAtEnd hook);
  /// By what the place that is interpreted is known in later captures, which may end in front of it.
  Ref site() const;
  bool is_opaque(const Ref& site) const;
  bool may_be_hooked(PyObject* tensor, bool of_module) const;
  void note_beside_hook();
  bool hand_on_beside_hooks();
  std::optional<autograd::JointTrace> run_backward(std::string* no_joint);
  std::optional<autograd::JointTrace> trace_joint(std::string* no_joint);
  std::string why_no_joint();
  /// The segment reads these numbers, which its backward asks for. False: it has done so, or they can't be read.
  bool read_for_backward(const graph::Graph& numbers);
  /// What torch.autograd sees to in front of the engine.
  bool fits(const EngineCall& call) const;
  /// The engine calls code of the program on its way. A side exit where that is not to be interpreted.
  bool calls_code(PyObject* function, const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& ends);
  /// Records `target`, as which graphs have that call, and interprets the code. (interpreted_engine.cpp)
  Ref record_engine(PyObject* target, std::span<PyObject* const> values, PyObject* kwnames, const EngineCall& call);
  PyObject* interpret_engine(const EngineCall& call);
  Ref call_backward(PyObject* function, const CallArgs& args);
  Ref in_place_of(PyObject* argument, std::vector<std::pair<PyObject*, Ref>>& read);
  std::string retain_ends(const Ref& ends);
  void refuse_way(PyObject* function, std::vector<at::Tensor> roots, std::vector<at::Tensor> ends);
  void accumulate(PyObject* leaf, const Ref& grad, PyObject* gradient, bool is_own);
  void accumulate_differentiable(PyObject* leaf, const Ref& grad, PyObject* gradient);
  void set_gradient(PyObject* leaf, Ref gradient);
  Ref record_autograd_function(const CallArgs& args);
  /// Why the backward of a custom function can't be run on stand-ins; empty: it can, or that is not known yet.
  std::string why_opaque(PyObject* function) const;
  /// Interprets the backward of a custom function's call, for its guards. Throws Retry where it can't be.
  void rehearse_backward(PyObject* function, PyObject* result);
  /// Runs the backward of what made `results`, as often as it asks for new inputs. Why that failed; empty: it did not.
  std::string rehearse(const std::vector<at::Tensor>& results);
  /// Runs autograd's engine, by which backwards are interpreted. Why that failed; empty: it did not. Throws Retry.
  std::string interpret_backwards(const std::function<void()>& run);

  [[noreturn]] void break_at_saved_hooks(const std::string& why);

  Capture& c;
  struct SavedHooks {
    Ref site;          // where the program turned them on, as it is known in later captures
    size_t operators;  // in front of that
    bool on;
  };
  std::vector<SavedHooks> saved_hooks_;
  std::vector<Ref> packed_;
  std::set<PyObject*> classes_;  // stand-ins that were passed
  bool has_read_numbers_ = false;
  /// torch.autograd.grad has failed on stand-ins, which may lack what it has freed.
  bool frees_unseen_ = false;
  std::set<PyObject*> rehearsed_;            // contexts of custom functions; autograd's graph has them
  std::vector<std::pair<Ref, Ref>> frozen_;  // leaves from outside, and where
  struct SetData {
    Ref data;
    Ref tensor = {}, leaf = {};  // what calls read of it: without a history, and with that of what it is the data of
    int64_t version = 0;         // of these, as far as each run has been told
    bool was_leaf = false;       // with data that was set before, it was read as a leaf
  };
  std::map<graph::ValueId, SetData> data_;  // of inputs, as the segment has set it
  std::set<graph::ValueId> former_data_;    // what was read of data that was set before
  uint64_t data_set_at_ = 0;                // nodes of autograd's graph that are older may have saved other data
  std::vector<Ref> beside_hooks_;  // tensors that were at hand when a hook was registered, until they are handed on
};

}  // namespace magneto::capture
