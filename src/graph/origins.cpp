#include "graph/origins.h"

#include <algorithm>
#include <string_view>

#include "python/imported.h"
#include "python/text.h"

namespace magneto::graph {
namespace {

void set_entry(PyObject* meta, const char* key, const Ref& value) {
  if (PyObject_SetItem(meta, text_object(key).get(), value.get()) < 0) throw PythonError{};
}

std::string text_attribute(PyObject* object, const char* name) {
  const Ref text = Ref::steal(PyObject_GetAttrString(object, name));
  PyErr_Clear();
  return text && PyUnicode_Check(text.get()) ? std::string(text_argument(text.get())) : std::string();
}

/// Of what calls modules and stands between the program's lines: PyTorch's module, and functions that were made for the
/// capture.
bool is_between(std::string_view file) {
  return file.ends_with("/torch/nn/modules/module.py") || file.ends_with("/magneto/_control_flow.py") ||
         file.starts_with("<torch.export ");
}

/// "forward" of "Model.forward".
std::string_view last_name(std::string_view qualified) { return qualified.substr(qualified.rfind('.') + 1); }

}  // namespace

const Origins::Call* Origins::call_of(const CallSite& site) {
  if (!site.module) return nullptr;
  const auto [found, is_new] = calls_.try_emplace(&site);
  Call& call = found->second;
  if (is_new) {
    const Ref address = checked(PyLong_FromVoidPtr(const_cast<void*>(site.module)));
    PyObject* known = PyDict_GetItemWithError(modules_, address.get());
    if (!known && PyErr_Occurred()) throw PythonError{};
    if (known) {
      call.path = text_argument(PyTuple_GET_ITEM(known, 0));
      call.type = text_argument(PyTuple_GET_ITEM(known, 1));
      call.key = "L__self__" + call.path;
      if (const int before = times_[call.path]++) call.key += "@" + std::to_string(before);
    }
  }
  return call.type.empty() ? nullptr : &call;
}

Ref Origins::module_stack(const CallSite* site) {
  if (const auto known = stacks_.find(site); known != stacks_.end()) return known->second;
  std::vector<const CallSite*> outermost_first;
  for (const CallSite* at = site; at; at = at->outer.get()) outermost_first.push_back(at);
  std::ranges::reverse(outermost_first);
  Ref stack = checked(PyDict_New());
  for (const CallSite* at : outermost_first) {
    const Call* call = call_of(*at);
    if (!call) continue;
    const Ref entry = checked(PyTuple_Pack(2, text_object(call->path).get(), text_object(call->type).get()));
    if (PyDict_SetItem(stack.get(), text_object(call->key).get(), entry.get()) < 0) throw PythonError{};
  }
  return stacks_[site] = stack;
}

Ref Origins::trace(const TorchNode& node) {
  static constinit Imported getline("linecache", "getline");
  std::vector<std::string> lines;
  const auto add = [&](const std::string& file, int32_t line, const std::string& function) {
    if (is_between(file)) return;
    const Ref code = checked(PyObject_CallFunction(getline.get(), "Oi", text_object(file).get(), line));
    const Ref stripped = checked(PyObject_CallMethod(code.get(), "strip", nullptr));
    lines.push_back("File \"" + file + "\", line " + std::to_string(line) + ", in " + std::string(last_name(function)) +
                    "\n    " + std::string(text_argument(stripped.get())));
  };
  add(node.file, node.line, node.function);
  for (const CallSite* at = node.called_from.get(); at; at = at->outer.get()) add(at->file, at->line, at->function);
  std::string text;
  for (size_t i = lines.size(); i-- > 0;) text += lines[i] + (i > 0 ? "\n  " : "");
  return text_object(text);
}

/// "linear", of the next such call of the program "linear_1".
const std::string& Origins::name_of(const TorchNode& node) {
  std::string& name = names_[{node.called_from.get(), node.origin_index}];
  if (name.empty()) {
    name = PyUnicode_Check(node.origin.get()) ? std::string(text_argument(node.origin.get()))
                                              : text_attribute(node.origin.get(), "__name__");
    if (name.empty()) name = "call";
    if (const int before = name_counts_[name]++) name += "_" + std::to_string(before);
  }
  return name;
}

void Origins::describe(PyObject* meta, const TorchNode& node) {
  if (node.file.empty()) return;
  set_entry(meta, "stack_trace", trace(node));
  set_entry(meta, "place", checked(Py_BuildValue("(Oi)", text_object(node.file).get(), node.line)));
  const Ref stack = module_stack(node.called_from.get());
  // One of its own for each node: who has the graph may change it.
  if (PyDict_GET_SIZE(stack.get())) set_entry(meta, "nn_module_stack", checked(PyDict_Copy(stack.get())));
  if (!node.origin) return;
  const Ref name = text_object(name_of(node));
  const Ref source = checked(PyTuple_Pack(2, name.get(), node.origin.get()));
  const Ref sources = checked(PyList_New(0));
  if (PyList_Append(sources.get(), source.get()) < 0) throw PythonError{};
  set_entry(meta, "source_fn_stack", sources);
  const bool is_method = PyUnicode_Check(node.origin.get());
  const std::string kind(is_method ? "method_descriptor" : last_name(Py_TYPE(node.origin.get())->tp_name));
  const std::string called =
      kind + "." +
      (is_method ? std::string(text_argument(node.origin.get())) : text_attribute(node.origin.get(), "__name__"));
  set_entry(meta, "torch_fn", checked(PyTuple_Pack(2, name.get(), text_object(called).get())));
}

}  // namespace magneto::graph
