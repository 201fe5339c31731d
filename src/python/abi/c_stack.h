// How much of the thread's C stack is left: interpreted and resumed frames nest in C++.
#pragma once

namespace magneto {

/// True when less than what a few hundred nested calls need is left (1 MiB, half of a small stack). Cheap after the
/// first call on a thread.
bool c_stack_is_low();

}  // namespace magneto
