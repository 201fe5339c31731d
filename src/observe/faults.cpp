#include "observe/faults.h"

#include <functional>
#include <map>

namespace magneto::observe {
namespace {

std::map<std::string, std::string, std::less<>>& faults() {
  static auto* faults = new std::map<std::string, std::string, std::less<>>;
  return *faults;
}

}  // namespace

const std::string* fault_at(std::string_view place) {
  if (faults().empty()) return nullptr;
  const auto found = faults().find(place);
  return found == faults().end() ? nullptr : &found->second;
}

void plant_fault(const std::string& place, const std::string& subject) {
  faults().erase(place);
  if (!subject.empty()) faults().emplace(place, subject);
}

void clear_faults() { faults().clear(); }

}  // namespace magneto::observe
