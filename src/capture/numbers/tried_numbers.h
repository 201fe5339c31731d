// Data-dependent numbers over which a segment goes on by default, as their values might not matter.
#pragma once

namespace magneto::capture {

class Capture;

/// They matter after all, or something was raised, perhaps because of what stands for them: if there are any, the
/// segment is captured again, to end in front of what makes them (throws Retry).
void end_at_data_numbers(Capture& capture);

}  // namespace magneto::capture
