// What autograd's engine leaves on a thread when a backward raises.
#pragma once

namespace magneto::autograd {

/// Drops the tasks of this thread's queue whose backward has raised: the engine keeps them, and the gradients that they
/// wait with, until the thread's next backward has no other task with a higher priority. Needs the GIL.
void drop_leftover_tasks();

}  // namespace magneto::autograd
