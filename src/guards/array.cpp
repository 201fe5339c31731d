#include "guards/array.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace magneto::guards {

namespace {

/// As numpy/ndarraytypes.h has it, in NumPy 1 and 2.
struct Array {
  PyObject_HEAD char* data;
  int rank;
  Py_ssize_t* sizes;
  Py_ssize_t* strides;  // in bytes
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kAligned = 0x100, kWritable = 0x400;

/// The beginning of PyArray_Descr.
struct DType {
  PyObject_HEAD PyTypeObject* scalar;
  char kind, letter, byte_order, flags;
  int number;
};

/// NumPy's numbers of dtypes that PyTorch computes with. (Its `longlong` is another one than `long`, and left out.)
struct DTypeRow {
  int number;
  at::ScalarType type;
  const char* name;
};
constexpr DTypeRow kDTypes[] = {
    {0, at::kBool, "bool"},
    {1, at::kChar, "int8"},
    {2, at::kByte, "uint8"},
    {3, at::kShort, "int16"},
    {5, at::kInt, "int32"},
    {7, at::kLong, "int64"},
    {11, at::kFloat, "float32"},
    {12, at::kDouble, "float64"},
    {14, at::kComplexFloat, "complex64"},
    {23, at::kHalf, "float16"},
    {15, at::kComplexDouble, "complex128"},
};

const DTypeRow* row_of(const Array& array) {
  const auto& dtype = *reinterpret_cast<const DType*>(array.dtype);
  if (dtype.byte_order != '=' && dtype.byte_order != '|') return nullptr;
  const auto row = std::ranges::find(kDTypes, dtype.number, &DTypeRow::number);
  return row == std::end(kDTypes) ? nullptr : row;
}

constexpr int kMostDims = 32;

/// What is kept of an array; compared byte by byte.
struct Layout {
  int32_t number, writable, rank, unused;
  Py_ssize_t extents[2 * kMostDims];  // the sizes, then the strides, in bytes

  size_t bytes() const { return offsetof(Layout, extents) + 2 * rank * sizeof(Py_ssize_t); }
};

bool read_layout(const Array& array, Layout& layout) {
  const DTypeRow* row = row_of(array);
  if (!row || array.rank > kMostDims || !(array.flags & kAligned)) return false;
  const auto item = static_cast<Py_ssize_t>(c10::elementSize(row->type));
  layout = {row->number, (array.flags & kWritable) != 0, array.rank, 0, {}};
  for (int i = 0; i < array.rank; ++i) {
    if (array.strides[i] < 0 || array.strides[i] % item != 0) return false;
    layout.extents[i] = array.sizes[i];
    layout.extents[array.rank + i] = array.strides[i];
  }
  return true;
}

Array& array_of(PyObject* object) { return *reinterpret_cast<Array*>(object); }

/// Whoever drops the last tensor over an array may do it without the GIL.
void release_array(void* array) {
  if (!Py_IsInitialized()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  Py_DECREF(static_cast<PyObject*>(array));
  PyGILState_Release(state);
}

}  // namespace

bool is_array(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && std::strcmp(type->tp_name, "numpy.ndarray") == 0;
}

Ref layout_of(PyObject* array) {
  Layout layout;
  if (!read_layout(array_of(array), layout)) return {};
  return checked(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&layout), layout.bytes()));
}

bool has_layout(PyObject* object, PyObject* layout) {
  Layout found;
  if (!is_array(object) || !read_layout(array_of(object), found)) return false;
  return found.bytes() == static_cast<size_t>(PyBytes_GET_SIZE(layout)) &&
         std::memcmp(&found, PyBytes_AS_STRING(layout), found.bytes()) == 0;
}

std::string layout_text(PyObject* layout) {
  const auto& found = *reinterpret_cast<const Layout*>(PyBytes_AS_STRING(layout));
  const auto row = std::ranges::find(kDTypes, found.number, &DTypeRow::number);
  const auto item = static_cast<Py_ssize_t>(c10::elementSize(row->type));
  std::ostringstream text;
  text << row->name;
  for (const auto& [name, first, unit] :
       {std::tuple{"size", 0, Py_ssize_t{1}}, std::tuple{"stride", found.rank, item}}) {
    text << ", " << name << "=[";
    for (int i = 0; i < found.rank; ++i) text << (i ? ", " : "") << found.extents[first + i] / unit;
    text << "]";
  }
  if (!found.writable) text << ", read-only";
  return text.str();
}

at::Tensor tensor_of_array(PyObject* object) {
  const Array& array = array_of(object);
  const DTypeRow* row = row_of(array);
  const auto item = static_cast<int64_t>(c10::elementSize(row->type));
  at::DimVector sizes(array.sizes, array.sizes + array.rank), strides;
  for (int i = 0; i < array.rank; ++i) strides.push_back(array.strides[i] / item);
  Py_INCREF(object);
  return at::for_blob(array.data, sizes)
      .strides(strides)
      .context(object, release_array)
      .target_device(at::kCPU)
      .options(at::dtype(row->type))
      .make_tensor();
}

bool shares_memory(PyObject* view, PyObject* of) {
  const Array& array = array_of(of);
  const char *first = array.data, *last = array.data;
  for (int i = 0; i < array.rank; ++i) {
    if (array.sizes[i] == 0) continue;
    (array.strides[i] < 0 ? first : last) += (array.sizes[i] - 1) * array.strides[i];
  }
  const char* const start = array_of(view).data;
  return start >= first && start <= last;
}

int64_t offset_between(PyObject* array, PyObject* other) { return array_of(array).data - array_of(other).data; }

PyObject* array_under(const at::Tensor& tensor) {
  const at::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != release_array) return nullptr;
  auto* object = static_cast<PyObject*>(memory.get_context());
  const Array& array = array_of(object);
  // Of a tensor without items, whose address is null, the first array over its memory is as good as any.
  if (tensor.numel() != 0 && array.data != tensor.const_data_ptr()) return nullptr;
  if (row_of(array)->type != tensor.scalar_type() || array.rank != tensor.dim()) return nullptr;
  const auto item = static_cast<int64_t>(tensor.element_size());
  for (int i = 0; i < array.rank; ++i) {
    if (array.sizes[i] != tensor.size(i) || array.strides[i] != tensor.stride(i) * item) return nullptr;
  }
  return object;
}

}  // namespace magneto::guards
