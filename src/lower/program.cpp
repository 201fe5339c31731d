#include "lower/program.h"

namespace magneto::lower {

shapes::Size LoopProgram::span(BufferId buffer) const {
  const Buffer& info = buffers[buffer];
  shapes::Size span = 1;
  for (size_t i = 0; i < info.sizes.size(); ++i) {
    if (info.sizes[i] == 0) return 0;
    span += (info.sizes[i] - 1) * info.strides[i];
  }
  return span;
}

}  // namespace magneto::lower
