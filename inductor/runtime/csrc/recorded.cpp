// What Python tells of a recording, read into `Recorded`.
#define PY_SSIZE_T_CLEAN
#include "recorded.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>

namespace inductor {

namespace {

c10::DispatchKeySet keys_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

}  // namespace

at::Tensor tensor_over(c10::Storage storage, const TensorMeta& meta, int64_t offset) {
  c10::DispatchKeySet keys = keys_of(storage.device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys, c10::scalarTypeToTypeMeta(meta.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.size, meta.stride, offset);
  return tensor;
}

namespace {

TensorMeta meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  meta.size = tensor.sizes().vec();
  meta.stride = tensor.strides().vec();
  return meta;
}

void read_inputs(Recorded& recorded, PyObject* inputs, PyObject* copied) {
  auto count = static_cast<size_t>(PyTuple_GET_SIZE(inputs));
  recorded.addresses.resize(count);
  recorded.in_place.assign(count, true);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(copied, &at, &key, &value);) {
    size_t position = PyLong_AsSize_t(key);
    if (PyErr_Occurred()) throw python_error();
    REQUIRE(PyExc_ValueError, position < count, "no input ", position);
    at::Tensor memory = unpack(value, position);
    const at::Tensor& input = unpack(PyTuple_GET_ITEM(inputs, static_cast<Py_ssize_t>(position)), position);
    Filled filled{position, {}, {}};
    TensorMeta meta = meta_of(memory);
    if (memory.sizes() != input.sizes()) filled.span = memory.numel();
    StoragePtr storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), memory.storage().nbytes(),
        c10::DataPtr(const_cast<void*>(memory.storage().data()), memory.device()), nullptr, false);
    c10::InferenceMode normal(false);
    filled.memory = tensor_over(c10::Storage(std::move(storage)), meta, memory.storage_offset());
    recorded.filled.push_back(std::move(filled));
    recorded.in_place[position] = false;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!recorded.in_place[i]) continue;
    const at::Tensor& tensor = unpack(PyTuple_GET_ITEM(inputs, static_cast<Py_ssize_t>(i)), i);
    recorded.addresses[i] = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  }
}

size_t group_of(Recorded& recorded, const at::Tensor& tensor, bool kept) {
  StoragePtr storage = StoragePtr::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
  for (size_t i = 0; i < recorded.groups.size(); ++i) {
    if (recorded.groups[i].pending != storage) continue;
    recorded.groups[i].kept &= kept;
    return i;
  }
  auto begin = reinterpret_cast<uintptr_t>(storage->data());
  recorded.groups.push_back(Group{{begin, begin + storage->nbytes()}, kept, storage});
  return recorded.groups.size() - 1;
}

// Whether a result lies in memory of one of the tensors; which.
std::optional<size_t> owner_of(const at::Tensor& tensor, PyObject* tensors) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    const at::Tensor& other = unpack(PyTuple_GET_ITEM(tensors, i), static_cast<size_t>(i));
    if (tensor.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl()) {
      return static_cast<size_t>(i);
    }
  }
  return std::nullopt;
}

Result read_result(Recorded& recorded, PyObject* outputs, size_t i, PyObject* given,
                   PyObject* constants, size_t values) {
  PyObject* object = PyTuple_GET_ITEM(outputs, static_cast<Py_ssize_t>(i));
  Result result{ResultKind::kObject};
  if (!THPVariable_Check(object)) {
    result.object = Py_NewRef(object);
    return result;
  }
  for (size_t before = 0; before < i; ++before) {
    if (PyTuple_GET_ITEM(outputs, static_cast<Py_ssize_t>(before)) != object) continue;
    result.kind = ResultKind::kSame;
    result.index = before;
    return result;
  }
  const at::Tensor& tensor = THPVariable_Unpack(object);
  REQUIRE(PyExc_RuntimeError,
          tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg(), "result ", i,
          " is no plain tensor");
  result.meta = meta_of(tensor);
  result.offset = tensor.storage_offset();
  if (auto input = owner_of(tensor, given)) {
    result.kind = ResultKind::kInput;
    result.index = *input;
    PyObject* item = PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(*input));
    result.offset = offset_in_bytes(tensor) - offset_in_bytes(THPVariable_Unpack(item));
  } else if (tensor.device() != recorded.device || owner_of(tensor, constants)) {
    result.kind = ResultKind::kConstant;
    result.constant = tensor;
  } else {
    result.kind = ResultKind::kPool;
    result.index = group_of(recorded, tensor, i >= values);
  }
  return result;
}

// A value that ends in a view of what another result is too: its own memory (aot/training.py).
void separate(Recorded& recorded, PyObject* outputs, size_t values) {
  std::vector<size_t> users(recorded.groups.size());
  for (const Result& result : recorded.results) {
    if (result.kind == ResultKind::kPool) ++users[result.index];
  }
  for (size_t i = 0; i < values && values < recorded.results.size(); ++i) {
    Result& result = recorded.results[i];
    if (result.kind != ResultKind::kPool || users[result.index] < 2) continue;
    PyObject* object = PyTuple_GET_ITEM(outputs, static_cast<Py_ssize_t>(i));
    result.copied = THPVariable_Unpack(object).is_view();
  }
}

void read_keeps(Recorded& recorded, PyObject* keeps) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keeps); ++i) {
    unsigned long long begin = 0, end = 0;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(keeps, i), "KK", &begin, &end)) throw python_error();
    recorded.keeps.push_back(Range{begin, end});
  }
  std::sort(recorded.keeps.begin(), recorded.keeps.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
}

void find_device(Recorded& recorded, PyObject* tensors) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    PyObject* item = PyTuple_GET_ITEM(tensors, i);
    if (!THPVariable_Check(item)) continue;
    if (recorded.device.is_cpu()) recorded.device = THPVariable_Unpack(item).device();
  }
}

}  // namespace

void read_recorded(Recorded& recorded, PyObject* inputs, PyObject* copied, PyObject* given,
                   PyObject* outputs, PyObject* constants, size_t values, PyObject* keeps) {
  find_device(recorded, inputs);
  find_device(recorded, outputs);
  read_inputs(recorded, inputs, copied);
  auto count = static_cast<size_t>(PyTuple_GET_SIZE(outputs));
  for (size_t i = 0; i < count; ++i) {
    recorded.results.push_back(read_result(recorded, outputs, i, given, constants, values));
  }
  separate(recorded, outputs, values);
  read_keeps(recorded, keeps);
}

}  // namespace inductor
