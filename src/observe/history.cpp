#include "observe/history.h"

#include "python/text.h"

namespace magneto::dispatch {
namespace {

constexpr const char* kNames[] = {
#define X(event, doc) #event,
    MAGNETO_EVENTS(X)
#undef X
};

std::string file_of(const CodePlace& place) { return PyUnicode_AsUTF8(place.info->code->co_filename); }
std::string function_of(const CodePlace& place) { return PyUnicode_AsUTF8(place.info->code->co_qualname); }

}  // namespace

History& history() {
  static auto* instance = new History;
  return *instance;
}

std::string place_text(const CodePlace& place) {
  return function_of(place) + " (" + file_of(place) + ":" + std::to_string(place.line()) + ")";
}

int64_t History::note(Event event, const CodePlace& place, const std::string& cause, std::string example,
                      std::string needed_at) {
  Row row{event, file_of(place), function_of(place), place.info->code->co_firstlineno, place.line(), cause, {}, {}};
  const auto [found, is_new] = index_.try_emplace({event, row.file, row.line, row.function, cause}, rows_.size());
  if (is_new) rows_.push_back(std::move(row));
  Row& counted = rows_[found->second];
  if (event == Event::recompile && !counted.example.empty()) {
    counted.example += "\n" + example;  // each is of interest, and they are few
  } else {
    counted.example = std::move(example);
  }
  counted.needed_at = std::move(needed_at);
  return ++counted.count;
}

void History::captured(const CodePlace& start, const std::set<const CodeInfo*>& codes) {
  note(Event::capture, start, "");
  const std::string root = place_text(start);
  for (const CodeInfo* info : codes) {
    auto& [count, last] = captured_[info];
    ++count;
    last = root;
  }
}

Ref History::rows() const {
  const std::vector<Row> rows = rows_;  // making an object may run code of the program, which adds to them
  Ref list = checked(PyList_New(0));
  for (const Row& row : rows) {
    Ref item =
        checked(Py_BuildValue("(sOiiOOOLO)", kNames[static_cast<size_t>(row.event)], text_object(row.file).get(),
                              row.first_line, row.line, text_object(row.function).get(), text_object(row.cause).get(),
                              text_object(row.example).get(), row.count, text_object(row.needed_at).get()));
    if (PyList_Append(list.get(), item.get()) < 0) throw PythonError{};
  }
  return list;
}

Ref History::captured_in(const CodeInfo* info) const {
  const auto found = captured_.find(info);
  if (found == captured_.end()) return Ref::borrow(Py_None);
  return checked(Py_BuildValue("(LO)", found->second.first, text_object(found->second.second).get()));
}

}  // namespace magneto::dispatch
