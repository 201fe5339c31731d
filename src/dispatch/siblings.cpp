#include "dispatch/siblings.h"

#include <algorithm>
#include <map>
#include <set>

#include "capture/marks.h"
#include "guards/constants.h"
#include "observe/stats.h"
#include "python/abi/dicts.h"
#include "runtime/program/prepacked.h"
#include "support/tensor_object.h"

namespace magneto::dispatch {

namespace {

/// So many captures are tried: of objects that all differ, each would try those of all others.
constexpr size_t kMostTried = 16;

using Key = std::pair<PyObject*, PyTypeObject*>;

std::multimap<Key, std::shared_ptr<Siblings>>& families() {
  static auto* known = new std::multimap<Key, std::shared_ptr<Siblings>>;
  return *known;
}

/// Dicts of constants and objects, compared without running Python code.
bool same_options(PyObject* a, PyObject* b) {
  if (!PyDict_CheckExact(a) || !PyDict_CheckExact(b)) return guards::constants_equal(a, b);
  if (PyDict_GET_SIZE(a) != PyDict_GET_SIZE(b)) return false;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(a, &position, &key, &value)) {
    PyObject* other = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(b, key) : nullptr;
    if (!other || !same_options(value, other)) return false;
  }
  return true;
}

/// The program says of a tensor how its sizes are to be captured: that is for a capture to see.
bool has_marks(PyObject* tensor) {
  static PyObject* const names[] = {MAGNETO_STR("_dynamo_dynamic_indices"), MAGNETO_STR("_dynamo_weak_dynamic_indices"),
                                    MAGNETO_STR("_dynamo_unbacked_indices"), MAGNETO_STR("_dynamo_static_indices")};
  PyObject* dict = instance_dict(tensor);
  return dict &&
         std::ranges::any_of(names, [&](PyObject* name) { return PyDict_GetItemWithError(dict, name) != nullptr; });
}

/// The entry for other roots, for which its guards hold; null: it does not fit them.
std::unique_ptr<Entry> copy_of(const Entry& entry, const Place& place, const guards::Roots& roots) {
  std::unique_ptr<guards::GuardProgram> guards = entry.guards->copy();
  PyObject* const* slots = guards->check(roots);
  if (!slots) return nullptr;
  std::vector<PyObject*> inputs;
  for (const int32_t slot : entry.plan->input_slots) inputs.push_back(slots[slot]);
  if (std::ranges::any_of(inputs, has_marks) || (!entry.watched.empty() && entry.watched != watched_weights(inputs)))
    return nullptr;
  auto copy = std::make_unique<Entry>(place, entry.id);
  copy->guards = std::move(guards);
  copy->plan = entry.plan->share();
  copy->circumstances = entry.circumstances;
  copy->watched = entry.watched;
  return copy->plan ? std::move(copy) : nullptr;
}

}  // namespace

void Siblings::join(Context& context, PyObject* function) {
  const Key key(function, context.subject);
  auto [family, last] = families().equal_range(key);
  while (family != last && !same_options(family->second->contexts_.front()->options, context.options)) ++family;
  if (family == last) {
    family = families().emplace(key, std::make_shared<Siblings>());
    family->second->key_ = key;
  }
  context.siblings = family->second;
  context.siblings->contexts_.push_back(&context);
}

void Siblings::leave(Context& context) {
  const std::shared_ptr<Siblings> siblings = std::move(context.siblings);
  if (!siblings) return;
  std::erase(siblings->contexts_, &context);
  if (!siblings->contexts_.empty()) return;
  auto [family, last] = families().equal_range(siblings->key_);
  while (family != last && family->second != siblings) ++family;
  if (family != last) families().erase(family);
}

Circumstances circumstances_of(const capture::Start& start) {
  Circumstances now{settings(), capture::marks_made(), PyFunction_GET_GLOBALS(start.function)};
  return now;
}

std::vector<bool> watched_weights(const std::vector<PyObject*>& inputs) {
  std::vector<bool> watched;
  int64_t room = runtime::Prepacked::room();
  for (PyObject* input : inputs) {
    const bool tensor = is_tensor_object(input);
    const bool convolution =
        tensor && unpack_tensor(input).dim() == 4 && runtime::Prepacked::can_watch(unpack_tensor(input));
    watched.push_back(convolution && (room -= static_cast<int64_t>(unpack_tensor(input).nbytes())) >= 0);
  }
  return watched;
}

Entry* adopt_entry(Context& context, Segment& segment, const capture::Start& start, PyObject* const** slots) {
  if (!context.siblings || context.siblings->contexts().size() < 2 || context.report || segment.given_up)
    return nullptr;
  const guards::Roots roots{start.function, start.slots, start.slots + start.info->nlocals};
  const Circumstances now = circumstances_of(start);
  std::set<const Circumstances*> tried;
  for (const auto& entry : segment.entries) tried.insert(entry->circumstances.get());
  const auto& contexts = context.siblings->contexts();
  for (auto sibling = contexts.rbegin(); sibling != contexts.rend(); ++sibling) {
    const Segment* other = *sibling == &context ? nullptr : (*sibling)->find_segment(start.info->code, start.instr);
    if (!other) continue;
    for (const auto& entry : other->entries) {
      if (!tried.insert(entry->circumstances.get()).second) continue;
      if (tried.size() > kMostTried) return nullptr;
      if (entry->plan->exit && capture::BreakRegions::is_error()) continue;
      if (*entry->circumstances != now || !entry->guards->would_hold(roots)) continue;
      std::unique_ptr<Entry> copy = copy_of(*entry, {start.info->code, start.instr, context.instance}, roots);
      if (!copy) continue;
      ++stats().shared_captures;
      segment.entries.insert(segment.entries.begin(), std::move(copy));
      *slots = segment.entries.front()->guards->check(roots);
      return *slots ? segment.entries.front().get() : nullptr;
    }
  }
  return nullptr;
}

}  // namespace magneto::dispatch
