// Where the operators of an exported graph come from, as PyTorch's export says it in the `meta` of torch.fx nodes.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::graph {

class Origins {
 public:
  /// `modules`: from the addresses of the program's modules to (path, name of the class). Borrowed.
  explicit Origins(PyObject* modules) : modules_(modules) {}

  /// Sets, as far as they are known: `nn_module_stack` (the modules whose calls the operator is made in), `torch_fn`
  /// and `source_fn_stack` (what the program called), `stack_trace` (the program's lines), and `place`, (file, line) of
  /// the last one.
  void describe(PyObject* meta, const TorchNode& node);

 private:
  struct Call {
    std::string key, path, type;
  };
  const Call* call_of(const CallSite& site);
  Ref module_stack(const CallSite* site);
  Ref trace(const TorchNode& node);
  const std::string& name_of(const TorchNode& node);

  PyObject* modules_;
  std::unordered_map<const CallSite*, Call> calls_;
  std::unordered_map<std::string, int> times_;  // a module was called, by path
  std::unordered_map<const CallSite*, Ref> stacks_;
  std::map<std::pair<const CallSite*, int32_t>, std::string> names_;  // of the program's calls
  std::unordered_map<std::string, int> name_counts_;                  // so often such a name was given
};

}  // namespace magneto::graph
