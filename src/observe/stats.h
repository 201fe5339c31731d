// Counters and errors: what happened, for `magneto.stats()`. Messages: dispatch/log.h.
#pragma once

#include <Python.h>

#include <cstdint>
#include <map>
#include <string>

namespace magneto::dispatch {

struct Stats {
  int64_t frames = 0;  // segments captured
  int64_t graphs = 0;  // of these, those with operators
  int64_t ops = 0;     // torch calls in them
  int64_t breaks = 0;
  std::map<std::string, int64_t> break_reasons;
  std::map<std::string, int64_t> other_exits;  // that are no graph breaks of their own, by reason
  int64_t recompiles = 0;
  int64_t cache_entries = 0;
  std::map<std::string, int64_t> fallbacks;     // captures that failed by our own fault, by cause
  std::map<std::string, int64_t> meta_kernels;  // operators inferred by the dispatcher's meta kernels
  int64_t kernels = 0;                          // fused kernels generated
  int64_t instructions = 0;                     // of the loops of these kernels
  int64_t cut = 0;                              // expressions kept out of a kernel that they would make too large
  std::map<std::string, int64_t> externs;       // operators called by compiled programs, by name
  int64_t shared_captures = 0;                  // that served another object of the class, compiled for itself
  int64_t cached_programs = 0;                  // graphs whose programs were found in the cache on disk
  int64_t tuned = 0;                            // kernels and products that measuring made otherwise
  int64_t specialised = 0;                      // sizes of a graph for many that got code of their own
  std::map<std::string, int64_t> uncompiled;    // graphs whose operators run one by one after all, by cause
  std::map<std::string, int64_t> undone;        // runs of plans that an operator ended by raising, by exception
  int32_t frame_ids = 0;                        // places of captures that have a number
  int64_t joint_graphs = 0;                     // graphs whose gradients are compiled, too
  int64_t saved_bytes = 0;                      // that their forwards keep for their backwards, for one run of each
  int64_t eager_saved_bytes = 0;                // that eager would
  int64_t recomputed = 0;                       // operators of forwards that backwards run again
  std::map<std::string, int64_t> partitions;    // of graphs with gradients that save otherwise than asked, by cause
  int64_t autograd_graphs = 0;                  // graphs run at the torch level, under autograd
  std::map<std::string, int64_t> no_joint;      // why these have no joint graph
};
Stats& stats();

/// Raises an exception class of magneto.exc.
void raise(const char* exception, const std::string& text);

}  // namespace magneto::dispatch
