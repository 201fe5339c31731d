// Instructions that C code has done in part when the segment ends.
#pragma once

namespace magneto::capture {

class Capture;

/// The current instruction can't be run again as from its start: C code that it calls has gone on over an iterator of
/// the capture's (`all(x < y for ...)` has asked for an item, whose truth only data say), or is in the midst of what
/// may change a container (`heapq.heappush` has put a tensor into the list, and compares it now).
bool is_half_done(Capture& c);

}  // namespace magneto::capture
