// What tests reach of the sizes: text in, text out.
#include <chrono>
#include <stdexcept>

#include "api/bindings.h"
#include "python/text.h"
#include "shapes/environment.h"
#include "shapes/index_knowledge.h"
#include "shapes/size_program.h"

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

shapes::Expr take_expr(std::string_view& text) {
  size_t position = 0;
  const shapes::Expr expr = shapes::parse_expr(text, position);
  text.remove_prefix(std::min(position + 1, text.size()));
  return expr;
}

/// What lowering knows of index expressions. `symbol LOW VALUE`: the next one. `variable EXTENT`: the next one.
/// `simplify EXPR`, `natural EXPR`, `quotient EXPR EXPR`; `compute EXPR`: as programs do at entry.
class IndexSession {
 public:
  std::string run(std::string_view line) {
    const size_t space = line.find(' ');
    const std::string_view verb = line.substr(0, space);
    std::string_view rest = line.substr(space + 1);
    if (verb == "symbol") {
      const int64_t low = take_number(rest);
      rest.remove_prefix(1);
      symbols_.add(symbol_count_, {{low, INT64_MAX}, take_number(rest)});
      return "s" + std::to_string(symbol_count_++);
    }
    const shapes::Expr expr = take_expr(rest);
    if (verb == "variable") {
      extents_.push_back(symbols_.size(expr));
      return "i" + std::to_string(extents_.size() - 1);
    }
    shapes::IndexKnowledge known(extent_, symbols_);
    if (verb == "simplify") return shapes::text(known.simplified(expr));
    if (verb == "natural") return known.is_natural(expr) ? "true" : "unknown";
    if (verb == "quotient") {
      const auto quotient = exact_quotient(symbols_.size(expr), symbols_.size(take_expr(rest)));
      return quotient ? shapes::text(*quotient) : "unknown";
    }
    if (verb == "compute") {
      shapes::SizeProgram program;
      const int32_t result = program.add(expr);
      std::vector<int64_t> numbers, results(program.size());
      for (int32_t id = 0; id < symbol_count_; ++id) {
        numbers.insert(numbers.end(), {symbols_.size(shapes::Expr::symbol(id)).hint(), 0});
      }
      program.run(numbers.data(), results.data());
      return std::to_string(results[result]);
    }
    throw std::invalid_argument("no such verb: " + std::string(verb));
  }

 private:
  shapes::SymbolFacts symbols_;
  int32_t symbol_count_ = 0;
  shapes::Sizes extents_;
  const shapes::IndexKnowledge::Extent extent_ = [this](int32_t variable) {
    return static_cast<size_t>(variable) < extents_.size() ? &extents_[variable] : nullptr;
  };
};

/// The answers of a session, line by line.
template <typename Run>
PyObject* answers_of(PyObject* lines, Run run) {
  Ref items = checked(PySequence_List(lines));
  Ref answers = checked(PyList_New(PyList_GET_SIZE(items.get())));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    const std::string answer = run(text_argument(PyList_GET_ITEM(items.get(), i)));
    PyList_SET_ITEM(answers.get(), i, text_object(answer).release());
  }
  return answers.release();
}

/// index_session([line...]) -> [answer...]; see IndexSession.
PyObject* index_session(PyObject*, PyObject* lines) {
  return guarded([&] {
    IndexSession session;
    return answers_of(lines, [&](std::string_view line) { return session.run(line); });
  });
}

/// shapes_session([line...]) -> [answer...]; see run_line.
PyObject* shapes_session(PyObject*, PyObject* lines) {
  return guarded([&] {
    Environment environment;
    return answers_of(lines, [&](std::string_view line) { return run_line(environment, line); });
  });
}

std::vector<std::string> lines_of(PyObject* lines) {
  std::vector<std::string> result;
  Ref items = checked(PySequence_List(lines));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    result.emplace_back(text_argument(PyList_GET_ITEM(items.get(), i)));
  }
  return result;
}

/// shapes_decide([symbol...], [relation...]) -> (seconds for all, [answer...]): reading the lines takes none of them.
PyObject* shapes_decide(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *symbols, *questions;
    if (!PyArg_ParseTuple(args, "OO", &symbols, &questions)) return nullptr;
    Environment environment;
    for (const std::string& line : lines_of(symbols)) add_symbol(environment, line);
    std::vector<shapes::Relation> relations;
    for (const std::string& line : lines_of(questions)) relations.push_back(shapes::parse_relation(line));
    std::vector<std::optional<bool>> found(relations.size());
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < relations.size(); ++i) found[i] = environment.decide(relations[i]);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    Ref answers = checked(PyList_New(static_cast<Py_ssize_t>(found.size())));
    for (size_t i = 0; i < found.size(); ++i) {
      PyObject* answer = !found[i] ? Py_None : *found[i] ? Py_True : Py_False;
      PyList_SET_ITEM(answers.get(), i, Py_NewRef(answer));
    }
    return Py_BuildValue("(dO)", seconds.count(), answers.get());
  });
}

}  // namespace

PyMethodDef shapes_test_methods[] = {
    {"index_session", index_session, METH_O, "index_session([line...]) -> [answer...]"},
    {"shapes_session", shapes_session, METH_O, "shapes_session([line...]) -> [answer...]"},
    {"shapes_decide", shapes_decide, METH_VARARGS,
     "shapes_decide([symbol...], [relation...]) -> (seconds, [answer...])"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
