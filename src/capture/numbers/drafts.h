// Drafts of exported programs: what the program asks of data is answered as in the call that is captured. The graph
// checks each answer, and the report of the draft lists them (Capture::assumptions).
//
// But for the first, each gives nothing where no draft is made, or the answer is not to be had.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>
#include <string>

#include "capture/breaks.h"
#include "graph/assumption.h"
#include "guards/number.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::capture {

class Capture;

namespace drafts {

/// The capture is one for a draft.
void begin(Capture& capture);
/// Which way the program goes by a tensor.
std::optional<bool> truth(Capture& capture, PyObject* tensor);
/// By a data-dependent size or int.
std::optional<bool> answer(Capture& capture, const shapes::Relation& question);
/// The size or int itself.
std::optional<int64_t> number(Capture& capture, shapes::Expr size);
/// How data-dependent floats compare. Null: as above, or no comparison.
Ref comparison(Capture& capture, guards::Arithmetic operation, PyObject* left, PyObject* right);
/// The float in that tensor itself. Null: as above.
Ref number_in(Capture& capture, PyObject* holder);
/// For the report: here, in the program.
void note(Capture& capture, BreakReason reason, std::string question, std::string answer);

}  // namespace drafts
}  // namespace magneto::capture
