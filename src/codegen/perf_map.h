// Names for generated code, for the profiler `perf`: a line for each function in /tmp/perf-<process>.map.
#pragma once

#include <cstddef>
#include <string>

namespace magneto::codegen {

/// Whether code that is loaded from here on is named there.
bool& writes_perf_map();

/// Code has been loaded. Thread-safe.
void note_code(const void* begin, size_t size, const std::string& name);

}  // namespace magneto::codegen
