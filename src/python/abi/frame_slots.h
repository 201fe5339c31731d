// Reading a frame that is not ours.
#pragma once

#include "python/abi/frame.h"

namespace magneto {

/// What lies in a slot (frame_localsplus) of a frame that CPython goes on with as it is. frame_localsplus is for frames
/// that are ours: those that the hook got, until they go on under CPython (frame_continue, frame_return...), and a
/// generator's that is about to be set (generator_set).
Ref frame_slot(Frame* frame, int32_t slot);

}  // namespace magneto
