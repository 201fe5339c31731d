// Operations of NumPy in a capture.
//
// Invariant: an array from outside has one stand-in, a tensor over its memory that is an input of the graph; what NumPy
// makes is a stand-in that says how each run has NumPy make it again. No code but this looks into one.
#pragma once

#include <Python.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;
struct ArrayStandIn;
struct NumpyCall;

class NumpyCapture {
 public:
  explicit NumpyCapture(Capture& capture) : c(capture) {}
  NumpyCapture(const NumpyCapture&) = delete;

  /// What stands for an array: of one from outside, which is itself elsewhere, the input of the graph.
  Ref stand_in_for(PyObject* array);
  /// The call of a function or method of NumPy that numpy.def has, on what it is captured for; else null.
  Ref call_function(PyObject* callable, const CallArgs& args);
  /// A call as text, up to its arguments: these are arrays and constants.
  Ref call_of(const std::string& start, const CallArgs& args);
  /// An operation of NumPy on an array: "$ + $".
  Ref operation(std::initializer_list<PyObject*> operands, const std::string& form);
  Ref item(PyObject* array, PyObject* key);
  Ref items(PyObject* array);
  /// `array[key] = value`, and `array += other` ("iadd"), which gives the array. (array_writes.cpp)
  void write_item(PyObject* array, PyObject* key, PyObject* value);
  Ref write_operator(PyObject* array, const std::string& method, PyObject* other);
  /// The array holds from here on what is computed for it, with it as it was.
  void replace(PyObject* array, const std::function<Ref()>& compute);
  /// As lookup_attr.
  Ref attribute(PyObject* array, PyObject* name, bool* unbound);
  /// tensor.numpy() and torch.from_numpy(array).
  Ref array_of_tensor(PyObject* tensor);
  Ref tensor_of_array(PyObject* array);
  /// The segment writes its memory, through a tensor.
  bool is_written(const ArrayStandIn& array) const;
  /// C code looks at a stand-in: the segment ends in front of the call.
  void array_is_read();

  std::unordered_map<PyObject*, Ref> array_by_tensor;  // tensor made of an array -> the array

 private:
  /// Ends the segment, unless the array may be written as what follows computes.
  void require_writable(PyObject* array);
  /// NumPy has made it in the segment, and it is no view.
  bool is_own(const ArrayStandIn& array) const;
  /// What has been computed for it is what it holds from here on.
  void overwrite(PyObject* array, PyObject* fresh);
  /// Writes a value down as an argument of a call of NumPy. False: it can't be one.
  bool write_argument(PyObject* value, NumpyCall& call, bool arrays);
  Ref run(const NumpyCall& call);
  /// `result`: what NumPy gave for the samples of the arrays.
  Ref result_of(const NumpyCall& call, PyObject* function, PyObject* result, const std::vector<Ref>& samples);

  Capture& c;
  std::unordered_map<PyObject*, Ref> arrays_;  // from outside -> its stand-in
  std::unordered_map<PyObject*, std::vector<Ref>> views_;
};

}  // namespace magneto::capture
