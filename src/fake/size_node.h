// Dynamic sizes, as PyTorch sees them: a c10::SymInt whose node is a shapes::Expr.
//
// PyTorch's own code computes with them and asks questions; the session's Environment answers, and notes what was
// assumed. Code that wants a plain number gets the one of this run, which is then a guard.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/SymBool.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymNodeImpl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fake/fake_impl.h"
#include "shapes/environment.h"

namespace magneto::fake {

/// A number, where it is one; else a node of its own. The session's state outlives the node.
c10::SymInt to_symint(const std::shared_ptr<SessionState>& state, shapes::Expr expr);

/// What a SymInt stands for; one of somebody else's is asked for its number.
shapes::Expr expr_of(const c10::SymInt& size);

/// The answer to a question that has been decided.
c10::SymNode answer_node(bool answer);

/// A bool of an exported graph that is `now` in this run: false is taken for the general case, and noted.
c10::SymBool asked_later(const std::shared_ptr<SessionState>& state, bool now, std::function<bool()> ask);

/// A float that each run finds in a tensor of one element; `now` in this one.
c10::SymFloat to_symfloat(const std::shared_ptr<SessionState>& state, const at::Tensor& holder, double now);
/// That tensor; undefined: a plain number.
at::Tensor holder_of(const c10::SymFloat& number);
bool has_floats(std::span<const c10::IValue> args);
/// The arguments with the floats of this run, of which nothing is assumed.
std::vector<c10::IValue> with_floats_now(std::span<const c10::IValue> args);

/// Of a call's arguments: a size that PyTorch wrapped as a tensor has its number fixed, which the tensor then holds.
void fix_wrapped_sizes(std::span<c10::IValue> args);

std::vector<c10::SymInt> to_symints(const std::shared_ptr<SessionState>& state, std::span<const shapes::Expr> exprs);

}  // namespace magneto::fake
