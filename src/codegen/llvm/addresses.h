// Addresses in the form that loops want.
#pragma once

#include <llvm/IR/Function.h>

namespace magneto::codegen {

/// Writes each address as steps from its buffer's start, one for each loop that it depends on, the outermost first and
/// a constant last: what an inner loop does not change can leave it, and an instruction holds the rest. LLVM's own way,
/// loop strength reduction, searches among all ways to compute all addresses of a loop, and took half of a compile.
void split_addresses(llvm::Function& function);

/// Turns loop strength reduction off, for this copy of LLVM.
void leave_addresses_alone();

}  // namespace magneto::codegen
