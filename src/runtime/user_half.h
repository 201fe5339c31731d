// Half of a graph as a user's compiler has compiled it (aot_autograd): a Python callable from tensors to tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "python/ref.h"
#include "runtime/plan/plan.h"

namespace magneto::runtime {

struct UserHalf {
  /// Takes the numbers of the graph's symbols, then its inputs, and returns a tuple or list of tensors. `boxed`: takes
  /// one list of them.
  Ref callable;
  bool boxed = false, takes_symbols = true;
  /// For messages: "what fw (mine.py:3) gave for the forward".
  std::string name;
  /// So many it returns.
  size_t returned = 0;

  /// A result that becomes the contents of an input, whose version goes up by `versions`. No result (-1): the callable
  /// has written it.
  struct Write {
    size_t input;
    int32_t result, versions;
  };
  std::vector<Write> writes = {};
  /// By output of the computation: which result it is.
  std::vector<int32_t> outputs = {};
  /// By output, as many at its front: how much its version goes up.
  std::vector<int32_t> versions = {};
  /// Outputs from here on are saved for the backward, by an object that the ones before belong to. They may be numbers.
  size_t first_saved = 0;
  /// A number for each symbol, in a tensor, behind the outputs.
  bool gives_symbols = false;
  /// By input: how the callable is given it. Numbers, which tensors hold here, come first and as such.
  enum class Given : uint8_t { Tensor, Number, Not };
  std::vector<Given> given = {};
  /// Results may be None: there is no such gradient.
  bool may_be_none = false;
};

/// `graph`: its inputs and symbols are those of the half.
std::unique_ptr<TensorComputation> make_user_computation(UserHalf half, const graph::Graph& graph);

}  // namespace magneto::runtime
