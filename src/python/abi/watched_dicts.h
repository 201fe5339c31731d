// Versions for dicts that have none: from CPython 3.14 on. Included once, by the version's cpython_3xx.cpp.
//
// A watcher is told of each change of a dict before it is made, and when the dict dies: it gives the dict's word a new
// number. Words live for ever and are given to other dicts: a number is never used again, so whoever remembers the word
// of a dict that is gone sees that it has changed.
#pragma once

#include <deque>
#include <exception>
#include <unordered_map>
#include <vector>

#include "python/abi/layout.h"

namespace magneto {

namespace {

/// Under the GIL, like the rest. Never destroyed: at exit the interpreter lives longer.
struct WatchedDicts {
  std::unordered_map<PyObject*, uint64_t*> words;
  std::deque<uint64_t> all;
  std::vector<uint64_t*> unused;
  uint64_t last = 0;
  int watcher = -1;
};

WatchedDicts& watched() {
  static auto* dicts = new WatchedDicts;
  return *dicts;
}

int note_change(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
  WatchedDicts& dicts = watched();
  const auto found = dicts.words.find(dict);
  if (found == dicts.words.end()) return 0;
  uint64_t* word = found->second;
  *word = ++dicts.last;
  if (event == PyDict_EVENT_DEALLOCATED) {
    dicts.words.erase(found);
    dicts.unused.push_back(word);  // has room: see word_for
  }
  return 0;
}

uint64_t* word_for(WatchedDicts& dicts, PyObject* dict) {
  const auto [found, added] = dicts.words.try_emplace(dict);
  if (!added) return found->second;
  try {
    if (dicts.unused.empty()) {
      dicts.unused.reserve(dicts.all.size() + 1);
      dicts.unused.push_back(&dicts.all.emplace_back());
    }
  } catch (...) {
    dicts.words.erase(found);
    throw;
  }
  found->second = dicts.unused.back();
  dicts.unused.pop_back();
  *found->second = ++dicts.last;
  return found->second;
}

}  // namespace

const uint64_t* dict_version_place(PyObject* dict) {
  WatchedDicts& dicts = watched();
  try {
    if (dicts.watcher < 0) dicts.watcher = PyDict_AddWatcher(note_change);
    if (dicts.watcher >= 0) {
      const uint64_t* word = word_for(dicts, dict);
      if (PyDict_Watch(dicts.watcher, dict) == 0) return word;
    }
  } catch (const std::exception&) {
    return nullptr;
  }
  PyErr_Clear();
  return nullptr;
}

bool keeps_version(PyObject* dict) { return dict_version_place(dict) != nullptr; }

uint64_t dict_version(PyObject* dict) {
  const uint64_t* place = dict_version_place(dict);
  return place ? *place : 0;
}

}  // namespace magneto
