// How deep a thread is in regions of autocast, which PyTorch says only where one is entered or left.
#pragma once

#include <ATen/autocast_mode.h>

namespace magneto {

/// The regions around, whether autocast is on or off in them. Costs two reads of a thread-local word.
inline int autocast_depth() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

}  // namespace magneto
