// What Python shows of autograd's nodes that compiled segments make.
#pragma once

#include <typeinfo>

namespace magneto::autograd {

/// `type(result.grad_fn).__name__` of nodes of that class is `CompiledFunctionBackward`, as with torch.compile. Once
/// for each class, with the GIL.
void show_as_compiled_function(const std::type_info& node);

}  // namespace magneto::autograd
