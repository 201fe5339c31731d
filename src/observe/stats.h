// Counters and errors: what happened, for `magneto.stats()`. Messages: dispatch/log.h.
#pragma once

#include <Python.h>

#include <cstdint>
#include <map>
#include <string>

namespace magneto::dispatch {

/// The counters of stats.def.
struct Stats {
#define COUNT(name, meaning) int64_t name = 0;
#define TALLY(name, meaning) std::map<std::string, int64_t> name;
#define FIGURE(name, expression, meaning)
#include "observe/stats.def"
#undef COUNT
#undef TALLY
#undef FIGURE
  int32_t frame_ids = 0;  // places of captures that have a number
};
Stats& stats();

/// Raises an exception class of magneto.exc.
void raise(const char* exception, const std::string& text);

}  // namespace magneto::dispatch
