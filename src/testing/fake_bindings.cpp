// Test access to fakes: runs a Python callable on fakes of real tensors.

#include <sstream>

#include "api/bindings.h"
#include "fake/fake.h"
#include "fake/meta_kernel.h"
#include "fake/rules.h"
#include "fake/symbolic.h"
#include "ops/operator.h"
#include "python/ref.h"
#include "support/tensor_object.h"

namespace magneto {

namespace {

Ref text(const std::string& string) { return checked(PyUnicode_FromStringAndSize(string.data(), string.size())); }

Ref int_tuple(at::IntArrayRef values) {
  Ref tuple = checked(PyTuple_New(values.size()));
  for (size_t i = 0; i < values.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), i, checked(PyLong_FromLongLong(values[i])).release());
  return tuple;
}

/// Rebuilds lists, tuples and dicts (as plain ones) around what `leaf` makes of the other objects.
template <typename Leaf>
Ref map_nested(PyObject* object, Leaf&& leaf) {
  if (PyTuple_Check(object) || PyList_Check(object)) {
    Ref items = checked(PyList_New(0));
    for (Py_ssize_t i = 0, size = PySequence_Fast_GET_SIZE(object); i < size; ++i) {
      Ref item = map_nested(PySequence_Fast_GET_ITEM(object, i), leaf);
      if (PyList_Append(items.get(), item.get()) < 0) throw PythonError{};
    }
    return PyTuple_Check(object) ? checked(PyList_AsTuple(items.get())) : items;
  }
  if (PyDict_Check(object)) {
    Ref dict = checked(PyDict_New());
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(object, &position, &key, &value);) {
      if (PyDict_SetItem(dict.get(), key, map_nested(value, leaf).get()) < 0) throw PythonError{};
    }
    return dict;
  }
  return leaf(object);
}

/// (dtype, sizes, strides, offset, requires_grad)
Ref describe(const at::Tensor& tensor) {
  Ref wrapped = checked(tensor_object(tensor));
  Ref dtype = checked(PyObject_GetAttrString(wrapped.get(), "dtype"));
  return checked(Py_BuildValue("(OOOLO)", dtype.get(), int_tuple(tensor.sizes()).get(),
                               int_tuple(tensor.strides()).get(), static_cast<long long>(tensor.storage_offset()),
                               tensor.requires_grad() ? Py_True : Py_False));
}

/// "%2 = aten.add.Scalar(%0, 1, 1)"
std::string print_node(const graph::AtenNode& node) {
  std::ostringstream out;
  auto ids = [&](const std::vector<graph::ValueId>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      out << (i ? ", " : "");
      values[i] == graph::kNoValue ? out << "None" : out << '%' << values[i];
    }
  };
  ids(node.results);
  out << (node.results.empty() ? "" : " = ") << node.op.operator_name() << '(';
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (i) out << ", ";
    if (auto* value = std::get_if<graph::ValueId>(&node.args[i])) {
      ids({*value});
    } else if (auto* list = std::get_if<std::vector<graph::ValueId>>(&node.args[i])) {
      out << '[';
      ids(*list);
      out << ']';
    } else {
      out << std::get<c10::IValue>(node.args[i]);
    }
  }
  out << ')';
  return out.str();
}

Ref print_nodes(const graph::Graph& graph) {
  Ref lines = checked(PyList_New(0));
  for (const graph::AtenNode& node : graph.aten_nodes) {
    if (PyList_Append(lines.get(), text(print_node(node)).get()) < 0) throw PythonError{};
  }
  return lines;
}

Ref counters_dict(const fake::Session& session) {
  Ref meta_ops = checked(PyList_New(0));
  for (const std::string& name : session.counters.meta_ops) {
    if (PyList_Append(meta_ops.get(), text(name).get()) < 0) throw PythonError{};
  }
  return checked(Py_BuildValue("{s:L,s:L,s:O}", "native", static_cast<long long>(session.counters.native), "meta",
                               static_cast<long long>(session.counters.meta), "meta_ops", meta_ops.get()));
}

const char* kind_name(fake::Refusal::Kind kind) {
  switch (kind) {
    case fake::Refusal::Kind::DataDependent:
      return "data_dependent";
    case fake::Refusal::Kind::Unsupported:
      return "unsupported";
    case fake::Refusal::Kind::DataAccess:
      return "data_access";
  }
  return "";
}

PyObject* fake_run(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *callable, *real_args;
    if (!PyArg_ParseTuple(args, "OO!", &callable, &PyTuple_Type, &real_args)) throw PythonError{};
    graph::Graph graph;
    Ref metas, lines, counters, error;
    std::shared_ptr<const int64_t> alive;
    {
      fake::Session session(graph);
      alive = session.alive_count();
      std::unordered_map<PyObject*, Ref> fakes;
      auto to_fake = [&](PyObject* object) {
        if (!is_tensor_object(object)) return Ref::borrow(object);
        Ref& fake = fakes[object];
        if (!fake) {
          const at::Tensor& real = unpack_tensor(object);
          fake = checked(tensor_object(session.make_input(real, "L[" + std::to_string(graph.inputs.size()) + "]")));
          PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
          if (PyObject_SetAttrString(fake.get(), "__class__", type) < 0) throw PythonError{};
        }
        return fake;
      };
      Ref fake_args = map_nested(real_args, to_fake);
      Ref result = Ref::steal(PyObject_CallObject(callable, fake_args.get()));
      fakes.clear();
      fake_args = Ref();
      if (result) {
        metas = map_nested(result.get(), [&](PyObject* object) {
          return is_tensor_object(object) ? describe(unpack_tensor(object)) : Ref::borrow(object);
        });
        result = Ref();
      } else {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyErr_NormalizeException(&type, &value, &traceback);
        PyException_SetTraceback(value, Py_None);  // its frames hold fakes
        Py_XDECREF(traceback);
        error = checked(Py_BuildValue("(NN)", type, checked(PyObject_Str(value)).release()));
        Py_DECREF(value);
      }
      lines = print_nodes(graph);
      counters = counters_dict(session);
      Ref refusal = Ref::borrow(Py_None);
      if (auto found = session.take_refusal()) {
        refusal = checked(Py_BuildValue("(sss)", kind_name(found->kind), found->op.c_str(), found->message.c_str()));
      }
      if (PyDict_SetItemString(counters.get(), "refusal", refusal.get()) < 0) throw PythonError{};
      if (PyDict_SetItemString(counters.get(), "error", error ? error.get() : Py_None) < 0) throw PythonError{};
    }
    if (PyDict_SetItemString(counters.get(), "alive", checked(PyLong_FromLongLong(*alive)).get()) < 0)
      throw PythonError{};
    return Py_BuildValue("(OOO)", metas ? metas.get() : Py_None, lines.get(), counters.get());
  });
}

template <typename Rows>
void add_names(const Ref& names, const Rows& rows) {
  for (const auto& row : rows) {
    if (PyList_Append(names.get(), text(std::string(row.op)).get()) < 0) throw PythonError{};
  }
}

PyObject* fake_rules(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Ref names = checked(PyList_New(0));
#define X(family) add_names(names, fake::family##_rules());
    MAGNETO_RULE_FAMILIES(X)
#undef X
    return names.release();
  });
}

/// Each row of the operators as a tuple of its columns' text: "(none)" where there is none.
PyObject* operator_rows(PyObject*, PyObject*) {
  struct Row {
    const char *op, *facts, *shape, *symbolic, *lowering, *call;
  };
  static constexpr Row rows[] = {
#define ROW_all(op, facts, shape, symbolic, lowering, call) {op, #facts, #shape, #symbolic, #lowering, #call},
#include "ops/rows.def"
  };
  return guarded([&]() -> PyObject* {
    Ref list = checked(PyList_New(0));
    for (const Row& row : rows) {
      const Ref columns =
          checked(Py_BuildValue("(ssssss)", row.op, row.facts, row.shape, row.symbolic, row.lowering, row.call));
      if (PyList_Append(list.get(), columns.get()) < 0) throw PythonError{};
    }
    return list.release();
  });
}

/// The bits of facts (ops/operator.h) that hold for an operator, with or without a row.
PyObject* operator_facts(PyObject*, PyObject* name) {
  return guarded([&]() -> PyObject* {
    const char* text = PyUnicode_AsUTF8(name);
    if (!text) throw PythonError{};
    return checked(PyLong_FromUnsignedLong(ops::facts_of(ops::parsed(text)))).release();
  });
}

PyObject* fake_python_meta_kernels(PyObject*, PyObject*) {
  return guarded([] {
    Ref names = checked(PyList_New(0));
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op || !fake::has_python_meta_kernel(*op)) continue;
      if (PyList_Append(names.get(), text(c10::toString(name)).get()) < 0) throw PythonError{};
    }
    return names.release();
  });
}

PyObject* fake_symbolic_rules(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Ref names = checked(PyList_New(0));
#define X(family) add_names(names, fake::symbolic_##family##_rules());
    MAGNETO_SYMBOLIC_FAMILIES(X)
#undef X
    return names.release();
  });
}

}  // namespace

PyMethodDef fake_test_methods[] = {
    {"operator_rows", operator_rows, METH_NOARGS,
     "operator_rows() -> (name, facts, shape, symbolic, lowering, call) of each row of src/ops, as they stand there"},
    {"operator_facts", operator_facts, METH_O, "operator_facts(name) -> its facts as bits, in the order of operator.h"},
    {"fake_rules", fake_rules, METH_NOARGS, "fake_rules() -> the operators that have a native rule, by schema name"},
    {"fake_python_meta_kernels", fake_python_meta_kernels, METH_NOARGS,
     "fake_python_meta_kernels() -> the operators whose results Python code of PyTorch's may be asked for"},
    {"fake_symbolic_rules", fake_symbolic_rules, METH_NOARGS,
     "fake_symbolic_rules() -> those that have one for dynamic sizes"},
    {"fake_run", fake_run, METH_VARARGS,
     "fake_run(callable, args) -> (results, nodes, facts)\n\n"
     "Runs callable(*args) with each tensor in args replaced by a fake. Results: nested like the callable's, each "
     "tensor "
     "as (dtype, sizes, strides, offset, requires_grad); None if it raised. Nodes: the recorded operators as text. "
     "Facts: "
     "native, meta, meta_ops (counters), refusal ((kind, op, message) or None), error ((type, message) or None), "
     "alive (fakes that outlived the session)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
