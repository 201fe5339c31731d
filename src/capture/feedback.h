// What captures have found at one place, which the next one goes by.
#pragma once

#include <Python.h>

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/breaks.h"
#include "python/ref.h"

namespace magneto::capture {

/// (code, instruction index) of a call that a segment must end in front of.
using BreakSite = std::pair<PyCodeObject*, int32_t>;
/// ...with what was found in the functions that it calls.
struct KnownBreak {
  std::string message;
  BreakReason reason = BreakReason::Callback;
};
using KnownBreaks = std::map<BreakSite, KnownBreak>;

/// What the captures that started at one place have found there: what they found different is assumed no longer.
struct SpecializationFeedback {
  /// By the name of its source: a value or a length; null: it differs from run to run.
  std::unordered_map<std::string, Ref> found;
  /// Names of numbers whose values C code looks at: they are guarded by value, or all are.
  std::set<std::string> needed;
  bool needs_all = false;
  /// What the program does with a data-dependent text, by the place where it is made.
  enum class Text : uint8_t { Dropped, Forwarded, Read };
  std::map<BreakSite, Text> texts;
  /// A tensor was written after a call that was to be put off.
  bool defers_nothing = false;
  /// Functions of PyTorch get the numbers of sizes: with what stands for them, the segment ended inside, or needed what
  /// a tensor made of them holds.
  bool plain_sizes = false;
  /// PyTorch asks tensors of a transform for their sizes as numbers, which they have not where these are symbols: none
  /// is.
  bool fixed_sizes = false;
  /// The segment asks what it can't know of data-dependent sizes: it ends in front of what makes them, and of
  /// bools that the data says.
  bool ends_at_data_sizes = false;
  /// Operators have asked something of such sizes, or the program of such bools, and each run checks the answer.
  bool checks_data_sizes = false;
  /// Calls of torch.cond whose branches can't be captured as graphs, and why.
  std::map<BreakSite, std::string> unconditional;
  /// Loops over the places where a mask holds: those that are not captured as such, and why; of the others, the local
  /// variables (slots) whose tensors they write.
  std::map<BreakSite, std::string> plain_loops;
  std::map<BreakSite, std::set<int32_t>> loop_writes;
  /// The turns of such a loop that raise an exception: that their entries are not hit is checked by each run.
  std::map<BreakSite, std::set<int64_t>> raising_turns;
  /// The program asks what it can't know of the numbers that `tolist()` gives: the segment ends in front of it.
  bool ends_at_data_numbers = false;
  /// Examples of data-dependent numbers, in the order in which they are made; -1: whatever.
  std::vector<int64_t> examples;
  int example_changes = 0;
  /// Custom autograd functions, and classes of tensors, whose backwards can't be run on stand-ins, and why.
  std::vector<std::pair<Ref, std::string>> opaque_backwards;
  /// Calls of functions under an lru_cache that compute tensors from constants, and of those that prepare an object
  /// once: each is made in front of the next capture, which then finds what it has left; a few times, where a cache has
  /// been emptied.
  struct FirstCall {
    Ref function, args;
    int calls = 0;
    bool wanted = true;
  };
  std::vector<FirstCall> first_calls;
};

/// Makes those that are wanted. What they raise, they raise again when the program calls.
void make_first_calls(SpecializationFeedback& feedback);

}  // namespace magneto::capture
