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
struct NumpyRow;

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
  /// `array.real = value`. (array_writes.cpp)
  void set_attribute(PyObject* array, PyObject* name, PyObject* value);
  /// As lookup_attr.
  Ref attribute(PyObject* array, PyObject* name, bool* unbound);
  /// tensor.numpy() and torch.from_numpy(array).
  Ref array_of_tensor(PyObject* tensor);
  Ref tensor_of_array(PyObject* array);
  /// A tensor with its contents, which may be its own.
  Ref contents_of(PyObject* array);
  /// The segment writes its memory, through a tensor.
  bool is_written(const ArrayStandIn& array) const;
  /// C code looks at a stand-in: the segment ends in front of the call.
  void array_is_read();

  std::unordered_map<PyObject*, Ref> array_by_tensor;  // tensor made of an array -> the array

 private:
  /// Its contents follow from constants: the sample's are the array's.
  bool is_known(PyObject* array);
  /// As an index it selects as many items as it holds true ones.
  bool is_unknown_mask(PyObject* array);
  /// Ends the segment, unless the array may be written as what follows computes.
  void require_writable(PyObject* array);
  /// The array is written by the call, in which it is `v`.
  void write(PyObject* array, NumpyCall call);
  /// What has been computed for it is what it holds from here on.
  void overwrite(PyObject* array, PyObject* fresh);
  /// The views of an array that NumPy has made show what it holds now.
  void update_views(PyObject* array);
  /// Gives a view its tensor, if one can show it.
  void show(ArrayStandIn& view);
  Ref view_of(const NumpyCall& call, PyObject* function, Ref sample);
  Ref tensor_of_view(PyObject* array);
  /// The same call, of arrays that have tensors.
  NumpyCall with_tensors(const NumpyCall& call);
  Ref call_row(const NumpyRow& row, const CallArgs& args);
  /// False: it is nothing that a call of that row may have.
  bool write_arguments(const NumpyRow& row, const CallArgs& args, NumpyCall& call, PyObject*& written);
  Ref fact(const NumpyCall& call);
  std::vector<Ref> samples_of(const NumpyCall& call);
  /// Writes a value down as an argument of a call of NumPy. False: it can't be one.
  bool write_argument(PyObject* value, NumpyCall& call, bool arrays);
  /// "$ + $" of the operands.
  NumpyCall as_call(std::initializer_list<PyObject*> operands, const std::string& form);
  Ref run(const NumpyCall& call);
  /// `result`: what NumPy gave for the samples of the arrays; `known`: it gives the same in each run.
  Ref result_of(const NumpyCall& call, PyObject* function, PyObject* result, const std::vector<Ref>& samples,
                bool known);
  Ref result_in_graph(const NumpyCall& call, Ref sample, bool number);

  Capture& c;
  std::unordered_map<PyObject*, Ref> arrays_;              // from outside -> its stand-in
  std::unordered_map<PyObject*, std::vector<Ref>> views_;  // of one that NumPy has made -> those made of it
};

}  // namespace magneto::capture
