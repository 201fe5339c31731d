// What tests reach of the sizes: text in, text out.
#include "api/bindings.h"

#include <stdexcept>

#include "python/text.h"
#include "shapes/environment.h"

namespace magneto {
namespace {

using shapes::Environment;

const char* answer_text(std::optional<bool> answer) { return !answer ? "unknown" : *answer ? "true" : "false"; }

int64_t take_number(std::string_view& text) {
  size_t position = 0;
  const shapes::Expr number = shapes::parse_expr(text, position);
  if (!number.is_constant()) throw std::invalid_argument("expected a number");
  text.remove_prefix(position);
  return number.number();
}

/// `7 in 2..100`, or `? in 0..` for an unbacked symbol.
shapes::Expr add_symbol(Environment& environment, std::string_view text) {
  std::optional<int64_t> value;
  if (text.starts_with('?')) {
    text.remove_prefix(1);
  } else {
    value = take_number(text);
  }
  shapes::Range range;
  if (text.starts_with(" in ")) {
    text.remove_prefix(4);
    range.low = take_number(text);
    if (!text.starts_with("..")) throw std::invalid_argument("expected '..'");
    text.remove_prefix(2);
    if (!text.empty()) range.high = take_number(text);
  }
  return value ? environment.symbol(*value, range) : environment.unbacked(range);
}

/// One line of a session, and its answer.
std::string run_line(Environment& environment, std::string_view line) {
  const size_t space = line.find(' ');
  const std::string_view verb = line.substr(0, space);
  const std::string_view rest = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  if (verb == "symbol") return shapes::text(add_symbol(environment, rest));
  if (verb == "decide") return answer_text(environment.decide(shapes::parse_relation(rest)));
  if (verb == "evaluate") return answer_text(environment.evaluate(shapes::parse_relation(rest)));
  if (verb == "assume") return environment.assume(shapes::parse_relation(rest)) ? "true" : "false";
  if (verb == "simplify" || verb == "specialise" || verb == "range") {
    size_t position = 0;
    const shapes::Expr expr = shapes::parse_expr(rest, position);
    if (position != rest.size()) throw std::invalid_argument("text after the expression's end");
    if (verb == "simplify") return shapes::text(environment.original(environment.simplified(expr)));
    if (verb == "specialise") {
      const std::optional<int64_t> value = environment.specialise(expr);
      return value ? std::to_string(*value) : "unknown";
    }
    const shapes::Range range = environment.range(environment.simplified(expr));
    const auto bound = [](int64_t number) {
      return number == INT64_MIN || number == INT64_MAX ? std::string() : std::to_string(number);
    };
    return bound(range.low) + ".." + bound(range.high);
  }
  if (verb == "guards") {
    std::string guards;
    for (const shapes::Relation& guard : environment.guards()) {
      guards += (guards.empty() ? "" : "; ") + shapes::text(guard);
    }
    return guards;
  }
  throw std::invalid_argument("no such verb: " + std::string(verb));
}

/// shapes_session([line...]) -> [answer...]; see run_line.
PyObject* shapes_session(PyObject*, PyObject* lines) {
  return guarded([&] {
    Environment environment;
    Ref items = checked(PySequence_List(lines));
    Ref answers = checked(PyList_New(PyList_GET_SIZE(items.get())));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      const std::string answer = run_line(environment, text_argument(PyList_GET_ITEM(items.get(), i)));
      PyList_SET_ITEM(answers.get(), i, text_object(answer).release());
    }
    return answers.release();
  });
}

}  // namespace

PyMethodDef shapes_methods[] = {
    {"shapes_session", shapes_session, METH_O, "shapes_session([line...]) -> [answer...]"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
