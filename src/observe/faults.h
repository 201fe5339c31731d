// For tests: faults planted in the compiler, so that the tools that find faults have some to find. A place in the
// compiler asks by its name whether a fault is planted there, and what it is to happen to.
#pragma once

#include <string>
#include <string_view>

namespace magneto::observe {

/// Of a place: what a test wants to go wrong there (an operator, a pass); null: nothing.
const std::string* fault_at(std::string_view place);
/// Plants a fault; with an empty `subject` takes it out again.
void plant_fault(const std::string& place, const std::string& subject);
/// Takes all out.
void clear_faults();

}  // namespace magneto::observe
