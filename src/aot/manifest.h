// The manifest of a file: what a program takes, keeps and gives, one line each. Words are between spaces; a name, or
// what messages call an argument, is the rest of its line.
//
//     made_by torch 2.8.0, Magneto 0.1.0       for messages
//     layout 1f3a...                           of what is packed: equal in builds that understand each other
//     torch 2.8.0                              the release whose operators the program calls
//     machine 80ab...                          whose code the kernels have
//     storage PLACE BYTES                      among the tensors' bytes
//     tensor DTYPE GRAD STORAGE OFFSET RANK SIZE... STRIDE... NAME    a weight, a buffer, a constant
//     symbol LOW HIGH                          a size that varies; HIGH -1: no limit
//     argument DTYPE RANK SIZE... WHERE        a size: a number, or s0
//     condition WORD... # TEXT                 what holds of sizes: postfix, a0.1 is size 1 of argument 0
//     input argument N | input tensor N        of the program, in order
//     written N                                an input that the program writes
//     result output N | result argument N | result tensor N
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace magneto::aot {

struct Manifest {
  enum class Kind : uint8_t { Output, Argument, Tensor };
  struct Place {
    Kind kind;
    size_t index;
  };
  struct Storage {
    size_t place, bytes;
  };
  struct State {
    c10::ScalarType dtype;
    bool requires_grad;
    size_t storage;
    int64_t offset;
    std::vector<int64_t> sizes, strides;
    std::string name;
  };
  struct Symbol {
    int64_t low, high;
  };
  /// A size: a number, or if it is less than 0 the symbol -1 - size.
  struct Argument {
    c10::ScalarType dtype;
    std::vector<int64_t> sizes;
    std::string where;
  };
  struct Condition {
    std::vector<std::string> words;
    std::string text;
  };

  std::string made_by, layout, torch, machine;
  std::vector<Storage> storages;
  std::vector<State> states;
  std::vector<Symbol> symbols;
  std::vector<Argument> arguments;
  std::vector<Condition> conditions;
  std::vector<Place> inputs, results;
  std::vector<size_t> written;
};

/// Throws std::invalid_argument with the line.
Manifest parse_manifest(std::string_view text);

}  // namespace magneto::aot
