// Names of places for what captures remember of them (SpecializationFeedback).
#pragma once

#include <string>

#include "guards/source.h"

namespace magneto::capture {

/// Tells places apart, for all captures of a segment. (Printing a source would run the `__repr__` of dict keys.)
std::string place_of(const guards::Source* source);

/// Behind the name of a place whose value differs from run to run: what was found there first.
inline constexpr char kFirstFound[] = " first";

}  // namespace magneto::capture
