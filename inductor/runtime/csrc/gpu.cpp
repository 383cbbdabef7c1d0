// What generated wrappers for GPUs call for every kernel and buffer: `KernelCall` and `Allocation`.
//
// KernelCall(slow, tensors, unsure, numbers) is called with a stream and tensors. Until `ready` has told
// it of a compiled kernel, and for tensors at addresses that the kernel was not compiled for, it calls
// `slow` with the tensors; otherwise it hands their addresses to the driver, and the numbers after them
// (sizes that this call was bound to; 8 bytes each, of which an int32 is the first four). Nothing here
// is linked against CUDA: the driver's function comes as an address.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <memory>
#include <vector>

#include <ATen/ops/empty_strided.h>
#include <structmember.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "gpu.h"
#include "launcher.h"
#include "program.h"

namespace inductor {
namespace {

constexpr size_t kNumberBytes = 8;

PyObject* run_kernel(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<KernelCallObject*>(object);
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (count != self->tensors + 1 || names != nullptr) {
    return PyErr_Format(PyExc_TypeError, "this kernel takes a stream and %zu tensors", self->tensors);
  }
  PyObject* const* tensors = args + 1;
  if (is_recording()) return record_kernel(object, tensors, count - 1);
  void* stream = PyLong_AsVoidPtr(args[0]);
  if (stream == nullptr && PyErr_Occurred()) return nullptr;
  void* addresses[kMostParameters];
  for (size_t i = 0; i < self->tensors; ++i) {
    if (!THPVariable_Check(tensors[i])) {
      return PyErr_Format(PyExc_TypeError, "argument %zu of a kernel is no tensor", i);
    }
    addresses[i] = THPVariable_Unpack(tensors[i]).data_ptr();
  }
  if (!start_kernel(*self, stream, addresses)) {
    return PyObject_Vectorcall(self->slow, tensors, self->tensors, nullptr);
  }
  Py_RETURN_NONE;
}

PyObject* call_kernel(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  return guarded([&] { return run_kernel(object, args, flags, names); });
}

PyObject* new_kernel(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject* slow = nullptr;
  PyObject* unsure = nullptr;
  Py_ssize_t tensors = 0;
  const char* bytes = nullptr;
  Py_ssize_t length = 0;
  if (!PyArg_ParseTuple(args, "OnO!|y#", &slow, &tensors, &PyTuple_Type, &unsure, &bytes, &length)) {
    return nullptr;
  }
  size_t count = static_cast<size_t>(length) / kNumberBytes;
  if (tensors < 0 || static_cast<size_t>(tensors) + count > kMostParameters) {
    return PyErr_Format(PyExc_ValueError, "a kernel of %zd tensors and %zu numbers", tensors, count);
  }
  auto numbers = std::make_unique<std::vector<uint64_t>>(count);
  if (count != 0) std::memcpy(numbers->data(), bytes, count * kNumberBytes);
  auto positions = std::make_unique<std::vector<size_t>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(unsure); ++i) {
    size_t position = PyLong_AsSize_t(PyTuple_GET_ITEM(unsure, i));
    if (PyErr_Occurred()) return nullptr;
    if (position >= static_cast<size_t>(tensors)) {
      return PyErr_Format(PyExc_ValueError, "no tensor %zu", position);
    }
    positions->push_back(position);
  }
  auto* self = reinterpret_cast<KernelCallObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = &call_kernel;
  self->slow = Py_NewRef(slow);
  self->tensors = static_cast<size_t>(tensors);
  self->unsure = positions.release();
  self->numbers = numbers.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyObject* make_ready(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<KernelCallObject*>(object);
  unsigned long long launch = 0;
  unsigned long long function = 0;
  if (!PyArg_ParseTuple(args, "KK(III)II", &launch, &function, &self->grid[0], &self->grid[1],
                        &self->grid[2], &self->threads, &self->shared)) {
    return nullptr;
  }
  self->launch = reinterpret_cast<LaunchKernel>(launch);
  self->function = reinterpret_cast<void*>(function);
  ++self->version;
  Py_RETURN_NONE;
}

int traverse_kernel(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<KernelCallObject*>(object)->slow);
  return 0;
}

int clear_kernel(PyObject* object) {
  Py_CLEAR(reinterpret_cast<KernelCallObject*>(object)->slow);
  return 0;
}

void delete_kernel(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_kernel(object);
  delete reinterpret_cast<KernelCallObject*>(object)->unsure;
  delete reinterpret_cast<KernelCallObject*>(object)->numbers;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef kernel_methods[] = {
    {"ready", make_ready, METH_VARARGS,
     "ready(launch, function, grid, threads, shared): start this compiled kernel from now on."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelCallObject, vectorcall), READONLY, nullptr},
    {"slow", T_OBJECT, offsetof(KernelCallObject, slow), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject kernel_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* allocate(PyObject* object, PyObject* const*, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<AllocationObject*>(object);
  if (PyVectorcall_NARGS(flags) != 0 || names != nullptr) {
    return PyErr_Format(PyExc_TypeError, "an allocation takes no arguments");
  }
  if (is_recording()) return record_allocation(object, nullptr);
  return THPVariable_Wrap(at::empty_strided(self->meta->size, self->meta->stride, *self->options));
  END_HANDLE_TH_ERRORS
}

PyObject* allocate_over(PyObject* object, PyObject* operand) {
  HANDLE_TH_ERRORS
  if (is_recording()) return record_allocation(object, operand);
  return allocate(object, nullptr, 0, nullptr);
  END_HANDLE_TH_ERRORS
}

bool read_numbers(PyObject* tuple, std::vector<int64_t>& numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    if (PyErr_Occurred()) return false;
  }
  return true;
}

PyObject* new_allocation(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject* size = nullptr;
  PyObject* stride = nullptr;
  PyObject* dtype = nullptr;
  PyObject* device = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!OO", &PyTuple_Type, &size, &PyTuple_Type, &stride, &dtype, &device)) {
    return nullptr;
  }
  if (!THPDtype_Check(dtype) || !THPDevice_Check(device)) {
    return PyErr_Format(PyExc_TypeError, "an allocation needs a dtype and a device");
  }
  auto meta = std::make_unique<TensorMeta>();
  if (!read_numbers(size, meta->size) || !read_numbers(stride, meta->stride)) return nullptr;
  auto options = std::make_unique<at::TensorOptions>();
  *options = options->dtype(reinterpret_cast<THPDtype*>(dtype)->scalar_type)
                 .device(reinterpret_cast<THPDevice*>(device)->device);
  auto* self = reinterpret_cast<AllocationObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = &allocate;
  self->meta = meta.release();
  self->options = options.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

void delete_allocation(PyObject* object) {
  auto* self = reinterpret_cast<AllocationObject*>(object);
  delete self->meta;
  delete self->options;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef allocation_methods[] = {
    {"over", allocate_over, METH_O,
     "over(operand): a new tensor; in a recorded program it has the memory of the operand where\n"
     "nothing else holds that. The operand is let go of before somebody writes the new one, but for\n"
     "the kernel that reads the one where it writes the other."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef allocation_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(AllocationObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject allocation_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool prepare_kernel_types() {
  kernel_type.tp_name = "inductor.runtime._launch.KernelCall";
  kernel_type.tp_doc = "KernelCall(slow, tensors, unsure, numbers=b''): call it with a stream and tensors.";
  kernel_type.tp_basicsize = sizeof(KernelCallObject);
  kernel_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  kernel_type.tp_vectorcall_offset = offsetof(KernelCallObject, vectorcall);
  kernel_type.tp_call = PyVectorcall_Call;
  kernel_type.tp_new = &new_kernel;
  kernel_type.tp_dealloc = &delete_kernel;
  kernel_type.tp_traverse = &traverse_kernel;
  kernel_type.tp_clear = &clear_kernel;
  kernel_type.tp_methods = kernel_methods;
  kernel_type.tp_members = kernel_members;
  allocation_type.tp_name = "inductor.runtime._launch.Allocation";
  allocation_type.tp_doc = "Allocation(size, stride, dtype, device): each call gives a new tensor.";
  allocation_type.tp_basicsize = sizeof(AllocationObject);
  allocation_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  allocation_type.tp_vectorcall_offset = offsetof(AllocationObject, vectorcall);
  allocation_type.tp_call = PyVectorcall_Call;
  allocation_type.tp_new = &new_allocation;
  allocation_type.tp_dealloc = &delete_allocation;
  allocation_type.tp_members = allocation_members;
  allocation_type.tp_methods = allocation_methods;
  return PyType_Ready(&kernel_type) == 0 && PyType_Ready(&allocation_type) == 0;
}

}  // namespace

bool start_kernel(KernelCallObject& call, void* stream, void** addresses) {
  if (call.function == nullptr) return false;
  for (size_t position : *call.unsure) {
    if (reinterpret_cast<uintptr_t>(addresses[position]) & kUnaligned) return false;
  }
  // Two more than the kernel has of its own: Triton appends pointers to scratch memory, which is
  // empty for all kernels that come here.
  void* nothing = nullptr;
  void* parameters[kMostParameters + 2];
  for (size_t i = 0; i < call.tensors; ++i) parameters[i] = &addresses[i];
  void** next = parameters + call.tensors;
  for (uint64_t& number : *call.numbers) *next++ = &number;
  for (int i = 0; i < 2; ++i) *next++ = &nothing;
  int code = call.launch(call.function, call.grid[0], call.grid[1], call.grid[2], call.threads, 1, 1,
                         call.shared, stream, parameters, nullptr);
  if (code == kNotInitialised || code == kInvalidContext) return false;
  REQUIRE(PyExc_RuntimeError, code == 0, "a kernel did not start: CUDA error ",
          static_cast<int64_t>(code));
  return true;
}

bool add_gpu_types(PyObject* module) {
  return prepare_kernel_types() &&
         PyModule_AddObjectRef(module, "KernelCall", reinterpret_cast<PyObject*>(&kernel_type)) == 0 &&
         PyModule_AddObjectRef(module, "Allocation",
                               reinterpret_cast<PyObject*>(&allocation_type)) == 0;
}

}  // namespace inductor
