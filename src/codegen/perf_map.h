// Names for generated code, for the profiler `perf`: a line for each function in /tmp/perf-<process>.map.
#pragma once

#include <cstddef>
#include <string>

namespace magneto::codegen {

/// Code has been loaded; it is named there, if config.perf_map asks for that. Thread-safe.
void note_code(const void* begin, size_t size, const std::string& name);

}  // namespace magneto::codegen
