#include "fake/size_node.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

#include "fake/weighed_sizes.h"
#include "support/symbol_object.h"

namespace magneto::fake {

namespace {

using shapes::Expr;

/// The answer to a question that has been decided.
class AnswerNode final : public c10::SymNodeImpl {
 public:
  explicit AnswerNode(bool value) : value_(value) {}
  bool is_int() override { return false; }
  bool is_bool() override { return true; }
  bool is_float() override { return false; }
  bool guard_bool(const char*, int64_t) override { return value_; }
  bool guard_size_oblivious(const char*, int64_t) override { return value_; }
  bool guard_or_false(const char*, int64_t) override { return value_; }
  bool guard_or_true(const char*, int64_t) override { return value_; }
  bool statically_known_true(const char*, int64_t) override { return value_; }
  bool expect_true(const char*, int64_t) override { return value_; }
  bool bool_() override { return value_; }
  bool has_hint() override { return true; }
  std::optional<bool> constant_bool() override { return value_; }
  c10::SymNode wrap_bool(bool value) override { return c10::make_intrusive<AnswerNode>(value); }
  c10::SymNode sym_not() override { return wrap_bool(!value_); }
  c10::SymNode sym_or(const c10::SymNode& other) override { return wrap_bool(value_ || other->bool_()); }
  c10::SymNode sym_and(const c10::SymNode& other) override { return wrap_bool(value_ && other->bool_()); }
  std::string str() override { return value_ ? "True" : "False"; }
  std::string _graph_repr() override { return str(); }

 private:
  const bool value_;
};

/// A question about data-dependent sizes, or those of an exported graph, which nothing decides: asked once
/// somebody needs the answer. Code of PyTorch's that is right either way takes the general case; with sizes of an
/// exported graph where the example is one, so that a size of 1 is none of its own.
class QuestionNode final : public c10::SymNodeImpl {
 public:
  QuestionNode(std::shared_ptr<SessionState> state, shapes::Relation question)
      : state_(std::move(state)), question_(question) {}
  bool is_int() override { return false; }
  bool is_bool() override { return true; }
  bool is_float() override { return false; }
  bool is_symbolic() override { return true; }
  bool has_hint() override { return true; }
  bool guard_bool(const char*, int64_t) override { return state_->answer(question_); }
  bool guard_size_oblivious(const char*, int64_t) override { return state_->answer(question_); }
  bool guard_or_false(const char*, int64_t) override { return general(false); }
  bool guard_or_true(const char*, int64_t) override { return general(true); }
  bool statically_known_true(const char*, int64_t) override { return known().value_or(false); }
  bool expect_true(const char*, int64_t) override { return state_->answer(question_); }
  bool bool_() override { return state_->answer(question_); }
  std::optional<bool> constant_bool() override { return known(); }
  c10::SymNode wrap_bool(bool value) override { return c10::make_intrusive<AnswerNode>(value); }
  c10::SymNode sym_not() override { return c10::make_intrusive<QuestionNode>(state_, !question_); }
  c10::SymNode sym_or(const c10::SymNode& other) override {
    if (const auto answer = other->constant_bool(); answer && !*answer) return clone();
    return wrap_bool(other->constant_bool().value_or(false) || bool_() || other->bool_());
  }
  c10::SymNode sym_and(const c10::SymNode& other) override {
    if (const auto answer = other->constant_bool(); answer && *answer) return clone();
    return wrap_bool(other->constant_bool().value_or(true) && bool_() && other->bool_());
  }
  c10::SymNode clone() override { return c10::make_intrusive<QuestionNode>(state_, question_); }
  std::string str() override { return shapes::text(question_); }
  std::string _graph_repr() override { return str(); }

 private:
  std::optional<bool> known() const { return state_->sizes.decide(question_); }
  bool general(bool answer) const {
    if (const auto answer_known = known()) return *answer_known;
    const bool of_data = state_->sizes.is_unbacked(question_.difference);
    const bool is_now = of_data || shapes::holds(question_.kind, state_->sizes.example(question_.difference)) == answer;
    if (!is_now) return state_->answer(question_);
    if (!of_data) state_->leave_unasked([state = state_.get(), asked = question_] { return state->answer(asked); });
    return answer;
  }

  const std::shared_ptr<SessionState> state_;
  const shapes::Relation question_;
};

class AskedLaterNode final : public c10::SymNodeImpl {
 public:
  AskedLaterNode(std::shared_ptr<SessionState> state, bool now, std::function<bool()> ask)
      : state_(std::move(state)), now_(now), ask_(std::move(ask)) {}
  bool is_int() override { return false; }
  bool is_bool() override { return true; }
  bool is_float() override { return false; }
  bool is_symbolic() override { return true; }
  bool has_hint() override { return true; }
  bool guard_bool(const char*, int64_t) override { return answer(); }
  bool guard_size_oblivious(const char*, int64_t) override { return answer(); }
  bool guard_or_false(const char*, int64_t) override { return answer(); }
  bool guard_or_true(const char*, int64_t) override { return answer(); }
  bool statically_known_true(const char*, int64_t) override { return false; }
  bool expect_true(const char*, int64_t) override { return answer(); }
  bool bool_() override { return answer(); }
  c10::SymNode wrap_bool(bool value) override { return c10::make_intrusive<AnswerNode>(value); }
  c10::SymNode sym_not() override { return wrap_bool(!answer()); }
  c10::SymNode sym_or(const c10::SymNode& other) override { return wrap_bool(answer() || other->bool_()); }
  c10::SymNode sym_and(const c10::SymNode& other) override { return wrap_bool(answer() && other->bool_()); }
  std::string str() override { return now_ ? "True" : "False"; }
  std::string _graph_repr() override { return str(); }

 private:
  bool answer() const {
    if (now_) return ask_();
    state_->leave_unasked(ask_);
    return false;
  }

  const std::shared_ptr<SessionState> state_;
  const bool now_;
  const std::function<bool()> ask_;
};

/// What a float of sizes is made of, and the size that it is, if it is a whole number.
struct FloatSizes {
  std::vector<Expr> from = {};
  std::optional<Expr> whole = {};
};

/// A float that a tensor holds in each run, or that C++ code made of sizes: the number of this run. Code that looks at
/// it has it assumed. What formulas of gradients (the variance's) and decompositions compute of sizes are operators of
/// the graph.
class FloatNode final : public c10::SymNodeImpl {
 public:
  explicit FloatNode(double value) : value_(value) {}
  FloatNode(std::shared_ptr<SessionState> state, at::Tensor holder, double value, FloatSizes sizes = {})
      : state_(std::move(state)), holder_(std::move(holder)), value_(value), sizes_(std::move(sizes)) {}
  static c10::SymNode of_size(const std::shared_ptr<SessionState>& state, Expr size) {
    at::Tensor holder = at::full({}, at::Scalar(to_symint(state, size)), at::kDouble);
    const auto now = static_cast<double>(state->sizes.value(size).value());
    return c10::make_intrusive<FloatNode>(state, std::move(holder), now, FloatSizes{{size}, size});
  }

  const at::Tensor& holder() const { return holder_; }
  double now() const { return value_; }

  bool is_int() override { return false; }
  bool is_bool() override { return false; }
  bool is_float() override { return true; }
  bool has_hint() override { return true; }
  bool is_symbolic() override { return holder_.defined(); }
  double guard_float(const char*, int64_t) override { return value(); }
  c10::SymNode clone() override { return c10::make_intrusive<FloatNode>(state_, holder_, value_, sizes_); }
  c10::SymNode wrap_float(double value) override { return c10::make_intrusive<FloatNode>(value); }
  c10::SymNode wrap_int(int64_t value) override { return wrap_float(static_cast<double>(value)); }
  c10::SymNode wrap_bool(bool value) override { return c10::make_intrusive<AnswerNode>(value); }
  c10::SymNode sym_float() override { return clone(); }
  c10::SymNode add(const c10::SymNode& other) override { return compute(other, std::plus<>()); }
  c10::SymNode sub(const c10::SymNode& other) override { return compute(other, std::minus<>()); }
  c10::SymNode mul(const c10::SymNode& other) override { return compute(other, std::multiplies<>()); }
  c10::SymNode truediv(const c10::SymNode& other) override { return compute(other, std::divides<>()); }
  c10::SymNode float_truediv(const c10::SymNode& other) override { return truediv(other); }
  c10::SymNode pow(const c10::SymNode& other) override { return wrap_float(std::pow(value(), of(other))); }
  c10::SymNode float_pow(const c10::SymNode& other) override { return pow(other); }
  c10::SymNode neg() override { return wrap_float(0)->sub(clone()); }
  c10::SymNode eq(const c10::SymNode& other) override { return compare(other, std::equal_to<>(), shapes::equal); }
  c10::SymNode ne(const c10::SymNode& other) override {
    return compare(other, std::not_equal_to<>(), shapes::not_equal);
  }
  c10::SymNode lt(const c10::SymNode& other) override { return compare(other, std::less<>(), shapes::less); }
  c10::SymNode le(const c10::SymNode& other) override { return compare(other, std::less_equal<>(), shapes::at_most); }
  c10::SymNode gt(const c10::SymNode& other) override {
    const auto less = [](Expr a, Expr b) { return shapes::less(b, a); };
    return compare(other, std::greater<>(), less);
  }
  c10::SymNode ge(const c10::SymNode& other) override {
    const auto at_most = [](Expr a, Expr b) { return shapes::at_most(b, a); };
    return compare(other, std::greater_equal<>(), at_most);
  }
  std::string str() override { return std::to_string(value_); }
  std::string _graph_repr() override { return str(); }

 private:
  static double of(const c10::SymNode& node) { return node->guard_float(__FILE__, __LINE__); }
  double value() const {
    for (const Expr size : sizes_.from) state_->number_of(size);
    if (holder_.defined() && sizes_.from.empty()) state_->fix_float(holder_);
    return value_;
  }

  bool is_of_data() const { return holder_.defined() && sizes_.from.empty(); }
  std::optional<Expr> whole() const {
    const bool whole = !holder_.defined() && std::nearbyint(value_) == value_ && std::abs(value_) < 1e15;
    return whole ? std::optional(Expr(static_cast<int64_t>(value_))) : sizes_.whole;
  }
  /// What this is computed with, if one of the two is of sizes, and none of data.
  const FloatNode* beside(const c10::SymNode& other) const {
    const auto* with = dynamic_cast<const FloatNode*>(other.get());
    if (!with || is_of_data() || with->is_of_data()) return nullptr;
    return sizes_.from.empty() && with->sizes_.from.empty() ? nullptr : with;
  }
  const std::shared_ptr<SessionState>& state_with(const FloatNode& other) const {
    return state_ ? state_ : other.state_;
  }
  at::Tensor tensor() const { return holder_.defined() ? holder_ : at::full({}, value_, at::kDouble); }

  /// `operation`: of two floats, of two sizes, and of two tensors of one element.
  template <typename Operation>
  c10::SymNode compute(const c10::SymNode& other, const Operation& operation) const {
    const FloatNode* with = beside(other);
    if (!with) return c10::make_intrusive<FloatNode>(operation(value(), of(other)));
    if constexpr (!std::is_same_v<Operation, std::divides<>>) {
      const auto a = whole(), b = with->whole();
      if (a && b) return of_size(state_with(*with), operation(*a, *b));
    }
    FloatSizes sizes{sizes_.from};
    sizes.from.insert(sizes.from.end(), with->sizes_.from.begin(), with->sizes_.from.end());
    return c10::make_intrusive<FloatNode>(state_with(*with), operation(tensor(), with->tensor()),
                                          operation(value_, with->value_), std::move(sizes));
  }

  template <typename Operation>
  c10::SymNode compare(const c10::SymNode& other, const Operation& operation, SizeQuestion question) {
    const FloatNode* with = beside(other);
    const auto a = with ? whole() : std::nullopt, b = with ? with->whole() : std::nullopt;
    return wrap_bool(a && b ? state_with(*with)->answer(question(*a, *b)) : operation(value(), of(other)));
  }

  const std::shared_ptr<SessionState> state_;
  const at::Tensor holder_;
  const double value_ = 0;
  const FloatSizes sizes_;
};

class SizeNode final : public c10::SymNodeImpl {
 public:
  SizeNode(std::shared_ptr<SessionState> state, Expr expr) : state_(std::move(state)), expr_(expr) {}

  Expr expr() const { return expr_; }

  bool is_int() override { return true; }
  bool is_bool() override { return false; }
  bool is_float() override { return false; }
  bool has_hint() override { return true; }
  /// PyTorch's Python code that takes it for traced would look for an expression of its own.
  bool is_symbolic() override { return !is_taken_for_traced(); }
  std::string str() override { return shapes::text(expr_); }
  std::string _graph_repr() override { return str(); }
  c10::SymNode clone() override { return make(expr_); }
  c10::SymNode wrap_int(int64_t number) override { return make(number); }
  c10::SymNode wrap_bool(bool value) override { return c10::make_intrusive<AnswerNode>(value); }

  c10::SymNode add(const c10::SymNode& other) override { return make(expr_ + of(other)); }
  c10::SymNode sub(const c10::SymNode& other) override { return make(expr_ - of(other)); }
  c10::SymNode mul(const c10::SymNode& other) override { return make(expr_ * of(other)); }
  c10::SymNode floordiv(const c10::SymNode& other) override { return make(shapes::floor_div(expr_, divisor(other))); }
  c10::SymNode int_floordiv(const c10::SymNode& other) override { return floordiv(other); }
  c10::SymNode mod(const c10::SymNode& other) override { return make(shapes::mod(expr_, divisor(other))); }
  c10::SymNode neg() override { return make(Expr(0) - expr_); }
  c10::SymNode sym_min(const c10::SymNode& other) override { return make(shapes::min(expr_, of(other))); }
  c10::SymNode sym_max(const c10::SymNode& other) override { return make(shapes::max(expr_, of(other))); }
  c10::SymNode sym_float() override {
    if (are_sizes_weighed() && !maybe_as_int()) return weighed_size(state_, expr_);
    const bool stays = (state_->engine_runs || state_->purpose.decomposes) && !state_->hinting && !maybe_as_int();
    if (stays && state_->sizes.value(expr_)) return FloatNode::of_size(state_, expr_);
    return c10::make_intrusive<FloatNode>(static_cast<double>(state_->number_of(expr_)));
  }
  c10::SymNode truediv(const c10::SymNode& other) override { return sym_float()->truediv(other); }
  c10::SymNode int_truediv(const c10::SymNode& other) override { return truediv(other); }
  c10::SymNode pow(const c10::SymNode& other) override { return sym_float()->pow(other); }
  c10::SymNode wrap_float(double value) override { return c10::make_intrusive<FloatNode>(value); }
  c10::SymNode ceil() override { return make(expr_); }
  c10::SymNode floor() override { return make(expr_); }

  c10::SymNode eq(const c10::SymNode& other) override { return ask(shapes::equal, expr_, of(other)); }
  c10::SymNode ne(const c10::SymNode& other) override { return ask(shapes::not_equal, expr_, of(other)); }
  c10::SymNode lt(const c10::SymNode& other) override { return ask(shapes::less, expr_, of(other)); }
  c10::SymNode le(const c10::SymNode& other) override {
    if (of(other).is_constant(INT64_MAX)) return wrap_bool(true);  // the end of a slice that has none
    return ask(shapes::at_most, expr_, of(other));
  }
  c10::SymNode gt(const c10::SymNode& other) override { return ask(shapes::less, of(other), expr_); }
  c10::SymNode ge(const c10::SymNode& other) override { return ask(shapes::at_most, of(other), expr_); }

  int64_t guard_int(const char*, int64_t) override { return state_->number_of(expr_); }
  int64_t int_() override { return state_->number_of(expr_); }
  bool guard_bool(const char*, int64_t) override { return state_->number_of(expr_) != 0; }
  bool bool_() override { return state_->number_of(expr_) != 0; }
  double guard_float(const char*, int64_t) override { return static_cast<double>(state_->number_of(expr_)); }
  std::optional<int64_t> maybe_as_int() override {
    const Expr known = state_->sizes.simplified(expr_);
    // PyTorch divides plain numbers by the machine. A zero that turned out to be one stays a node, which does not.
    if (known.is_constant(0) && !expr_.is_constant()) return std::nullopt;
    return known.is_constant() ? std::optional(known.number()) : std::nullopt;
  }
  std::optional<int64_t> constant_int() override { return maybe_as_int(); }

 private:
  static Expr of(const c10::SymNode& node) {
    if (auto* size = dynamic_cast<SizeNode*>(node.get())) return size->expr_;
    return node->guard_int(__FILE__, __LINE__);
  }
  Expr divisor(const c10::SymNode& other) const {
    const Expr by = of(other);
    TORCH_CHECK(!state_->sizes.simplified(by).is_constant(0), "division of a size by zero");
    return by;
  }
  /// Divisions are simplified at once: what is made of the result would hold them nested.
  c10::SymNode make(Expr expr) const {
    return c10::make_intrusive<SizeNode>(state_, expr.is_polynomial() ? expr : state_->sizes.simplified(expr));
  }
  c10::SymNode ask(SizeQuestion question, Expr a, Expr b) {
    if (state_->in_general && !state_->hinting) {
      const shapes::Relation asked = question(a, b);
      const auto known = state_->purpose.exports ? state_->sizes.decide(asked) : state_->sizes.evaluate(asked);
      if (!known) return c10::make_intrusive<QuestionNode>(state_, asked);
    }
    return wrap_bool(state_->answer(question, a, b));
  }

  const std::shared_ptr<SessionState> state_;
  const Expr expr_;
};

}  // namespace

c10::SymNode answer_node(bool answer) { return c10::make_intrusive<AnswerNode>(answer); }

c10::SymBool asked_later(const std::shared_ptr<SessionState>& state, bool now, std::function<bool()> ask) {
  return c10::SymBool(c10::SymNode(c10::make_intrusive<AskedLaterNode>(state, now, std::move(ask))));
}

c10::SymInt to_symint(const std::shared_ptr<SessionState>& state, shapes::Expr expr) {
  if (expr.is_constant()) return c10::SymInt(expr.number());
  return c10::SymInt(c10::SymNode(c10::make_intrusive<SizeNode>(state, expr)));
}

c10::SymFloat to_symfloat(const std::shared_ptr<SessionState>& state, const at::Tensor& holder, double now) {
  return c10::SymFloat(c10::SymNode(c10::make_intrusive<FloatNode>(state, holder, now)));
}

/// Null: somebody else's, or a plain number. (PyTorch puts the Python object of a float's node into a node of its own.)
static const FloatNode* node_of(const c10::SymFloat& number) {
  if (!number.is_symbolic()) return nullptr;
  return dynamic_cast<const FloatNode*>(innermost_node(number.toSymNodeImplUnowned()));
}

at::Tensor holder_of(const c10::SymFloat& number) {
  const FloatNode* node = node_of(number);
  return node ? node->holder() : at::Tensor();
}

bool has_floats(std::span<const c10::IValue> args) {
  return std::ranges::any_of(args, [](const c10::IValue& arg) { return arg.isSymFloat(); });
}

std::vector<c10::IValue> with_floats_now(std::span<const c10::IValue> args) {
  std::vector<c10::IValue> plain(args.begin(), args.end());
  for (c10::IValue& arg : plain) {
    if (!arg.isSymFloat()) continue;
    const c10::SymFloat number = arg.toSymFloat();
    const FloatNode* node = node_of(number);
    arg = node ? node->now() : number.guard_float(__FILE__, __LINE__);
  }
  return plain;
}

shapes::Expr expr_of(const c10::SymInt& size) {
  if (const auto number = size.maybe_as_int()) return *number;
  if (auto* node = dynamic_cast<SizeNode*>(size.toSymNodeImplUnowned())) return node->expr();
  return size.guard_int(__FILE__, __LINE__);
}

std::vector<c10::SymInt> to_symints(const std::shared_ptr<SessionState>& state, std::span<const shapes::Expr> exprs) {
  std::vector<c10::SymInt> sizes;
  sizes.reserve(exprs.size());
  for (const shapes::Expr expr : exprs) sizes.push_back(to_symint(state, expr));
  return sizes;
}

}  // namespace magneto::fake
