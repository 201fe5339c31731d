#include "fake/weighed_sizes.h"

#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "fake/fake_impl.h"
#include "fake/session.h"
#include "fake/size_node.h"

namespace magneto::fake {

namespace {

using shapes::Expr;

/// A number, and some times a size. Without a state: a number alone.
class WeighedNode final : public c10::SymNodeImpl {
 public:
  WeighedNode(std::shared_ptr<SessionState> state, Expr size, double number, double factor)
      : state_(std::move(state)), size_(size), number_(number), factor_(factor) {}

  bool is_int() override { return false; }
  bool is_bool() override { return false; }
  bool is_float() override { return true; }
  bool has_hint() override { return true; }
  bool is_symbolic() override { return false; }
  c10::SymNode clone() override { return make(number_, factor_); }
  c10::SymNode wrap_float(double value) override { return c10::make_intrusive<WeighedNode>(nullptr, 0, value, 0); }
  c10::SymNode wrap_int(int64_t value) override { return wrap_float(static_cast<double>(value)); }
  c10::SymNode wrap_bool(bool value) override { return answer_node(value); }
  c10::SymNode sym_float() override { return clone(); }
  double guard_float(const char*, int64_t) override { return known(); }
  std::string str() override { return std::to_string(number_) + " + " + std::to_string(factor_) + "*size"; }
  std::string _graph_repr() override { return str(); }

  c10::SymNode add(const c10::SymNode& other) override { return sum(other, 1); }
  c10::SymNode sub(const c10::SymNode& other) override { return sum(other, -1); }
  c10::SymNode neg() override { return make(-number_, -factor_); }
  c10::SymNode mul(const c10::SymNode& other) override {
    const WeighedNode with = of(other);
    if (!with.is_sized()) return make(number_ * with.number_, factor_ * with.number_);
    return with.make(with.number_ * known(), with.factor_ * known());
  }
  c10::SymNode truediv(const c10::SymNode& other) override {
    const double by = of(other).known();
    return make(number_ / by, factor_ / by);
  }
  c10::SymNode float_truediv(const c10::SymNode& other) override { return truediv(other); }

  c10::SymNode eq(const c10::SymNode& other) override { return compare(other, std::equal_to<>()); }
  c10::SymNode ne(const c10::SymNode& other) override { return compare(other, std::not_equal_to<>()); }
  c10::SymNode lt(const c10::SymNode& other) override { return compare(other, std::less<>()); }
  c10::SymNode le(const c10::SymNode& other) override { return compare(other, std::less_equal<>()); }
  c10::SymNode gt(const c10::SymNode& other) override { return compare(other, std::greater<>()); }
  c10::SymNode ge(const c10::SymNode& other) override { return compare(other, std::greater_equal<>()); }

 private:
  bool is_sized() const { return state_ && factor_ != 0; }
  /// As it is in this run, assumed to be so in all.
  double known() const {
    return is_sized() ? number_ + factor_ * static_cast<double>(state_->number_of(size_)) : number_;
  }
  c10::SymNode make(double number, double factor) const {
    return c10::make_intrusive<WeighedNode>(state_, size_, number, factor);
  }
  static WeighedNode of(const c10::SymNode& other) {
    if (const auto* known = dynamic_cast<const WeighedNode*>(other.get())) return *known;
    return {nullptr, 0, other->guard_float(__FILE__, __LINE__), 0};
  }
  WeighedNode(const WeighedNode& other) : WeighedNode(other.state_, other.size_, other.number_, other.factor_) {}

  c10::SymNode sum(const c10::SymNode& other, double sign) const {
    const WeighedNode with = of(other);
    if (!with.is_sized()) return make(number_ + sign * with.number_, factor_);
    if (!is_sized()) return with.make(number_ + sign * with.number_, sign * with.factor_);
    if (size_ == with.size_) return make(number_ + sign * with.number_, factor_ + sign * with.factor_);
    return make(number_ + sign * with.known(), factor_);
  }

  template <typename Comparison>
  c10::SymNode compare(const c10::SymNode& other, const Comparison& comparison) const {
    const WeighedNode with = of(other);
    const std::optional<double> sign = sign_of_difference(with);
    return answer_node(sign ? comparison(*sign, 0.0) : comparison(known(), with.known()));
  }

  /// Nothing: it lies too near to zero to say, or more than one size tells.
  std::optional<double> sign_of_difference(const WeighedNode& with) const {
    const WeighedNode& sized = is_sized() ? *this : with;
    if (!sized.is_sized() || (is_sized() && with.is_sized() && size_ != with.size_)) return std::nullopt;
    const double number = number_ - with.number_;
    const double factor = (is_sized() ? factor_ : 0) - (with.is_sized() ? with.factor_ : 0);
    if (factor == 0 || !std::isfinite(number)) return number;
    if (std::abs(factor) < 1e-9 * (std::abs(factor_) + std::abs(with.factor_))) return std::nullopt;  // rounded
    // Where the difference is zero. Rounding moves that by less than one.
    const double root = -number / factor;
    const std::optional<int64_t> now = sized.state_->sizes.value(sized.size_);
    if (!now || !(std::abs(root) < 1e15)) return std::nullopt;
    const auto below = static_cast<int64_t>(std::floor(root)) - 1, above = static_cast<int64_t>(std::ceil(root)) + 1;
    if (*now >= above && sized.state_->answer(shapes::at_most(above, sized.size_))) return factor;
    if (*now <= below && sized.state_->answer(shapes::at_most(sized.size_, below))) return -factor;
    return std::nullopt;
  }

  const std::shared_ptr<SessionState> state_;
  const Expr size_;
  const double number_, factor_;
};

}  // namespace

c10::SymNode weighed_size(const std::shared_ptr<SessionState>& state, Expr size) {
  // 32*s0 and 64*s0 are times of one size.
  const bool is_multiple =
      size.kind() == shapes::ExprKind::Sum && size.number() == 0 && size.coefficients().size() == 1;
  const double factor = is_multiple ? static_cast<double>(size.coefficients()[0]) : 1;
  return c10::make_intrusive<WeighedNode>(state, is_multiple ? size.operands()[0] : size, 0, factor);
}

namespace {

/// PyTorch's code takes this key for a sign that it is traced. Excluded as well, nothing is dispatched there.
constexpr c10::DispatchKey kTraced = c10::DispatchKey::PythonDispatcher;

thread_local bool weighs = false;

}  // namespace

bool is_taken_for_traced() {
  return c10::impl::tls_is_dispatch_key_excluded(kTraced) && c10::impl::tls_is_dispatch_key_included(kTraced);
}

Traced::Traced(Session& session)
    : was_included_(c10::impl::tls_is_dispatch_key_included(kTraced)),
      was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kTraced)) {
  if (!session.impl().has_symbols) return;
  c10::impl::tls_set_dispatch_key_included(kTraced, true);
  c10::impl::tls_set_dispatch_key_excluded(kTraced, true);
}

Traced::~Traced() {
  c10::impl::tls_set_dispatch_key_included(kTraced, was_included_);
  c10::impl::tls_set_dispatch_key_excluded(kTraced, was_excluded_);
}

bool are_sizes_weighed() { return weighs; }

Planning::Planning(Session& session) : before_(std::exchange(weighs, true)), traced_(session) {}

Planning::~Planning() { weighs = before_; }

}  // namespace magneto::fake
