// A program as bytes, for the cache on disk, and the bytes that tell one captured graph from another.
//
// Where the program came from (the user's lines, names of inputs) is left out: whoever wants to see a stage has the
// graph compiled anew.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lower/program.h"

namespace magneto::lower {

/// All of a captured graph that its program depends on: operators, arguments, geometry, the contents of constants.
/// Nothing if some of it can't be written down (a generator, a constant that is not a dense CPU tensor, or a very large
/// one).
std::optional<std::string> pack(const graph::Graph& captured);

/// The program that was made from `captured`. Nothing as above.
std::optional<std::string> pack(const LoopProgram& program, const graph::Graph& captured);

/// The other way; nothing if the bytes are no such program, or an operator is not known here.
std::optional<LoopProgram> unpack(std::string_view bytes, const graph::Graph& captured);

}  // namespace magneto::lower
