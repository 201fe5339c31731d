// Typed calls for the operators where boxing arguments would cost more than a few percent of the work.
#include "runtime/program_steps.h"

namespace magneto::runtime {

TypedCall find_typed_call(const Step&) { return nullptr; }

}  // namespace magneto::runtime
