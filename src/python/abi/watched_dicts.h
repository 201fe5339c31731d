// Versions for dicts that have none: from CPython 3.14 on. Included once, by the version's cpython_3xx.cpp.
//
// A watcher is told of each change of a dict before it is made, and when the dict dies: it gives the dict's word a new
// number. Words live for ever and are given to other dicts: a number is never used again, so whoever remembers the word
// of a dict that is gone sees that it has changed.
#pragma once

#include <exception>
#include <new>
#include <unordered_map>
#include <vector>

#include "python/abi/layout.h"

namespace magneto {

namespace {

/// Under the GIL, like the rest. Never destroyed: at exit the interpreter lives longer.
struct WatchedDicts {
  std::unordered_map<PyObject*, uint64_t*> words;
  std::vector<uint64_t*> unused;
  size_t count = 0;  // of words, used or not
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
    dicts.unused.push_back(word);  // has room: see add_words
  }
  return 0;
}

/// Where CPython puts objects, too: a snapshot knows words by their distance from each other.
void add_words(WatchedDicts& dicts) {
  constexpr size_t added = 64;  // the most that lie there: 512 bytes
  auto* words = static_cast<uint64_t*>(PyObject_Malloc(added * sizeof(uint64_t)));
  if (!words) throw std::bad_alloc();
  try {
    dicts.unused.reserve(dicts.count + added);
  } catch (...) {
    PyObject_Free(words);
    throw;
  }
  for (size_t i = 0; i < added; ++i) dicts.unused.push_back(&words[i]);
  dicts.count += added;
}

uint64_t* word_for(WatchedDicts& dicts, PyObject* dict) {
  const auto [found, added] = dicts.words.try_emplace(dict);
  if (!added) return found->second;
  try {
    if (dicts.unused.empty()) add_words(dicts);
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
