// Fake tensors: real `torch.Tensor` objects with metadata and autograd state but no data.
//
// During a capture each tensor is a fake. PyTorch's own Python bindings, composite operators and autograd run on it
// unchanged; below autograd, a boxed kernel on the `Fake` dispatch key (on while a session is active) catches every
// ATen operator, appends it to the session's graph and infers the results' metadata, with a native rule (rules.def) or,
// counted, with the dispatcher's meta kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "shapes/environment.h"

namespace torch::autograd {
struct Edge;
}

namespace magneto::fake {

/// Why an operator could not be run on fakes. The session keeps the first one: it is sticky, so that Python code which
/// swallows the exception can't hide it.
struct Refusal {
  enum class Kind : uint8_t {
    DataDependent,  // .item(), bool(t), nonzero...: needs the tensor's data
    Unsupported,    // no rule and no meta kernel, or a dispatch key that fakes do not model (sparse, quantised...)
    DataAccess,     // data_ptr(), numpy(): storage of a fake was touched
  };
  Kind kind;
  std::string op;       // "aten._local_scalar_dense.default"
  std::string message;  // what happened, for the break's explanation
};

struct Counters {
  int64_t native = 0;                        // operators inferred by a native rule
  int64_t meta = 0;                          // operators inferred by the dispatcher's meta kernels (a fallback)
  std::vector<std::string> meta_ops;         // their names, in order of first use, no duplicates
  std::vector<std::string> specialised_ops;  // had the sizes that they were given fixed, having no symbolic rule
};

/// One capture's fake world. While a Session is alive and active on a thread, every operator called on that thread is
/// recorded into `graph` (factories too, whatever their arguments). Sessions do not nest. RAII: the destructor restores
/// the dispatcher's thread state, exceptions included. Needs the GIL.
class Session {
 public:
  explicit Session(graph::Graph& graph);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The session active on this thread, or null.
  static Session* current();

  /// The fake that stands for the real tensor `real`, as graph input `name`. The caller keeps the mapping from real to
  /// fake (one fake per real tensor). Carries dtype, device, sizes, strides, offset, requires_grad, is_leaf and, for
  /// views of one storage, a shared fake storage. A `Parameter` is made by the caller (see `wrap_like`).
  at::Tensor make_input(const at::Tensor& real, std::string name);

  /// Where gradients that reach an input before it is written end. `fake`: its stand-in.
  torch::autograd::Edge history_of(graph::ValueId input, const at::Tensor& fake) const;

  /// The same for a tensor whose sizes are dynamic: an expression for each.
  at::Tensor make_input(const at::Tensor& real, std::string name, const std::vector<shapes::Expr>& sizes);

  /// What is known of such sizes.
  shapes::Environment& sizes();
  /// There are some.
  void use_symbols();
  /// As operators take them.
  c10::SymInt symint(shapes::Expr size) const;
  /// A float that a tensor of one element holds in each run, and is `now` in this one. What looks at it has `assume`
  /// called, which says whether it can be assumed.
  c10::SymFloat symfloat(const at::Tensor& holder, double now) const;
  void assume_floats(std::function<bool(const at::Tensor& holder)> assume);
  std::vector<shapes::Expr> sizes_of(const at::Tensor& tensor) const;
  std::vector<shapes::Expr> strides_of(const at::Tensor& tensor) const;
  /// The sizes of this run are those of all runs. False: they were before.
  bool fix_sizes(const at::Tensor& tensor);

  /// The input holds what it holds now at each run, as far as `read_inputs` names it: its contents are known.
  void know_input(const at::Tensor& fake, const at::Tensor& real);
  /// The inputs whose contents the capture went on with (`.item()`, a mask): their values need guards.
  const std::set<graph::ValueId>& read_inputs() const;

  /// A fake for the gradient of the fake `output`, as a further input of the graph: dtype, device and sizes are those
  /// of the output; strides too where it is dense and does not overlap, else it is contiguous.
  at::Tensor make_tangent(const at::Tensor& output, std::string name);

  /// The fake that stands for a real tensor made during the capture (torch.tensor([1, 2])): a graph constant.
  at::Tensor make_constant(const at::Tensor& real);

  /// Autocast keeps the casts of leaves that require gradients until its outermost block ends, for the next operator
  /// that takes the same leaf. Not of this fake: a cast of it must not outlive the capture.
  void leave_out_of_autocast_cache(const at::Tensor& fake);

  /// The value a fake stands for; kNoValue if `tensor` is not a fake of this session.
  graph::ValueId value_of(const at::Tensor& tensor) const;

  /// Records an operator that has regions, which no kernel runs on fakes. Its results, which are new tensors, are like
  /// `results`: fakes, whose own values may have been taken back.
  std::vector<at::Tensor> add_call(graph::AtenNode node, const std::vector<at::Tensor>& results);

  /// Set: gets the tensors that operators take, by value.
  std::map<graph::ValueId, at::Tensor>* operands = nullptr;

  /// A state of the graph to go back to. Take it between operators.
  struct Mark {
    size_t values, inputs, aten_nodes, metadata_changes;
    /// Of these changes, those for which the graph has a view.
    size_t as_views;
  };
  Mark mark() const;

  /// Takes back everything recorded since `mark`: nodes, values, inputs, and metadata that in-place operators
  /// (`resize_`, `t_`) changed. Fakes made since then stay harmless: using one is an error. Torch nodes are the
  /// caller's.
  void rollback(const Mark& mark);

  /// The torch node that operators recorded from now on belong to (-1 between torch calls).
  int32_t torch_node = -1;

  /// The first refusal since the last `take_refusal`.
  std::optional<Refusal> take_refusal();
  bool refused() const;

  /// Autograd's engine itself runs, or no longer: it asks gradients for their storage before it adds to them, and reads
  /// nothing. Gives what was set before.
  bool set_engine_runs(bool runs);

  Counters counters;

  /// What only the data says may be a symbol without a value: what `.item()` gives, and sizes.
  struct {
    bool numbers = false, sizes = false;
  } takes;
  /// What such symbols are in examples, in the order in which they are made (others: some number).
  std::vector<int64_t> examples;
  /// A symbol for a size that is `now`, of which nothing is to be assumed: `what` it is, for messages.
  shapes::Expr make_unbacked(int64_t now, shapes::Range range, std::string what);
  /// Where the program is, for messages.
  std::function<std::string()> place;
  /// Which operators gave the symbols without a value that are in the expression: "u0 is what Tensor.item gives at
  /// ...".
  std::string origins(shapes::Expr expr) const;
  /// What was assumed of such symbols since the last call: to be checked in each run.
  std::vector<shapes::Relation> take_checks();
  bool has_checks() const;
  /// Until it is set back: questions about such sizes are asked only where there is no general case. Gives what it was.
  bool set_in_general(bool on);
  /// Whether the graph is for export: operators are whole there whose gradients are others for plain sizes, and a size
  /// of an input may be one.
  bool exports() const;
  void set_exports();
  /// Functions take operators apart: what they compute of sizes as floats are operators, and no numbers of this run.
  void set_decomposes();
  /// Gives a function that forgets what will have been assumed of sizes by then.
  std::function<void()> remember_sizes() const;
  /// Takes it for granted, to be checked. False: it contradicts what is known.
  bool assume_checked(const shapes::Relation& relation);

  /// Fakes made by this session that are still alive (for the leak check after a capture; works after destruction of
  /// the session through the returned counter).
  std::shared_ptr<const int64_t> alive_count() const;

  /// Turns recording off on this thread for a scope: operators run for real on real tensors (constant folding,
  /// reading constants). Fakes must not be passed to operators inside.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  /// This thread has no session in a scope: code of the program that is no part of what is captured runs there, and may
  /// be captured itself.
  class Aside {
   public:
    Aside();
    ~Aside();
    Aside(const Aside&) = delete;

   private:
    Session* const session_;
  };

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::vector<shapes::Expr> exprs_of(c10::SymIntArrayRef numbers) const;

  std::unique_ptr<Impl> impl_;

 public:
  /// What examples have to satisfy, so that the operator that was refused can run on fakes.
  std::vector<shapes::Relation> wanted;
};

/// True for tensors made by a Session.
bool is_fake(const at::Tensor& tensor);

/// What a fake holds where that follows from the code (torch.tensor([1, 2])), or null, to go on with. Not to be
/// changed.
const at::Tensor* known_value(const at::Tensor& tensor);

/// Registers the boxed kernel on the Fake key. The first Session does it by itself (it rebuilds a column of the
/// dispatch table of every operator, a few milliseconds that `import magneto` need not pay); further calls do nothing.
void register_kernels();

}  // namespace magneto::fake
