// What generated wrappers call for a list of kernels that are one launch: `ListCall`.
//
// ListCall(prepare, aligned, unaligned, places, width, vectors) is called with a stream and the tensors
// of all kernels, `width` of each. The launch reads their addresses from a table on the device, which
// is a new one whenever an address or the stream is another: nothing is written over that a running
// launch may still read, and memory of a table that is gone is used again in the order of its stream.
// A table is filled by a kernel that gets the addresses as its parameters, so that no memory of the
// host has to wait for the device, and a CUDA graph holds them. While a stream records, each launch has
// a table of its own, which is part of the recording. `vectors`: which of the `width` tensors have to
// lie at multiples of 16 bytes for `aligned`, the faster one of the two kernels. `prepare` is called
// without arguments until `ready` has told of the driver's functions, and for a thread that has no
// context yet. Nothing here is linked against CUDA.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <ATen/ops/empty.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/autograd/python_variable.h>

#include "gpu.h"
#include "launcher.h"
#include "program.h"

namespace inductor {
namespace {

constexpr size_t kOfAFill = 480;     // addresses, as `FILL` in runtime/list_launches.py has them
constexpr unsigned kFillThreads = 96;
using IsCapturing = int (*)(void* stream, int* status);

struct ListCallObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* prepare;
  PyObject* kernels[2];  // for tensors at multiples of 16 bytes, and for others
  PyObject* places;
  PyObject* table;  // null: there is none yet
  size_t width;
  std::vector<bool>* vectors;
  std::vector<uintptr_t>* addresses;  // that the table holds
  void* stream;                       // on which it was filled
  LaunchKernel launch;
  IsCapturing is_capturing;
  void* fill;
};

// A new table; null with a Python error set.
PyObject* new_table(ListCallObject* self, const std::vector<uintptr_t>& addresses, void* stream) {
  const at::Tensor& places = THPVariable_Unpack(self->places);
  auto count = static_cast<int64_t>(addresses.size());
  at::Tensor table = at::empty({count}, at::TensorOptions().dtype(at::kLong).device(places.device()));
  auto* memory = static_cast<int64_t*>(table.data_ptr());
  if (table.is_cpu()) {
    std::memcpy(memory, addresses.data(), addresses.size() * sizeof(uintptr_t));
    return THPVariable_Wrap(table);
  }
  uintptr_t values[kOfAFill];
  for (size_t done = 0; done < addresses.size();) {
    auto part = static_cast<uint32_t>(std::min(kOfAFill, addresses.size() - done));
    std::copy_n(addresses.data() + done, part, values);
    void* goal = memory + done;
    void* parameters[] = {&goal, &part, values};
    unsigned blocks = (part + kFillThreads - 1) / kFillThreads;
    int code = self->launch(self->fill, blocks, 1, 1, kFillThreads, 1, 1, 0, stream, parameters, nullptr);
    if (code == kNotInitialised || code == kInvalidContext) {
      PyObject* nothing = PyObject_CallNoArgs(self->prepare);
      if (nothing == nullptr) return nullptr;
      Py_DECREF(nothing);
      code = self->launch(self->fill, blocks, 1, 1, kFillThreads, 1, 1, 0, stream, parameters, nullptr);
    }
    if (code != 0) return PyErr_Format(PyExc_RuntimeError, "a table of addresses is not filled: CUDA error %d", code);
    done += part;
  }
  return THPVariable_Wrap(table);
}

bool need_driver(ListCallObject* self) {
  if (self->launch != nullptr || THPVariable_Unpack(self->places).is_cpu()) return true;
  PyObject* nothing = PyObject_CallNoArgs(self->prepare);
  Py_XDECREF(nothing);
  if (nothing == nullptr) return false;
  if (self->launch != nullptr) return true;
  PyErr_SetString(PyExc_RuntimeError, "a list of kernels is not ready");
  return false;
}

// What cannot be asked is taken for a recording, in which nothing is kept.
bool records(ListCallObject* self, void* stream) {
  if (stream == nullptr || self->is_capturing == nullptr) return false;
  int status = 0;
  return self->is_capturing(stream, &status) != 0 || status != 0;
}

void start_listed(PyObject* kernel, void* stream, PyObject* table, PyObject* places) {
  auto* call = reinterpret_cast<KernelCallObject*>(kernel);
  PyObject* arguments[] = {table, places};
  void* addresses[] = {THPVariable_Unpack(table).data_ptr(), THPVariable_Unpack(places).data_ptr()};
  if (start_kernel(*call, stream, addresses)) return;
  THPObjectPtr done(PyObject_Vectorcall(call->slow, arguments, 2, nullptr));
  if (!done) throw python_error();
}

PyObject* run_list(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  auto* self = reinterpret_cast<ListCallObject*>(object);
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  REQUIRE(PyExc_TypeError, count != 0 && (count - 1) % self->width == 0 && names == nullptr,
          "a list takes a stream and ", self->width, " tensors of each kernel");
  if (is_recording()) return record_list(object, args + 1, count - 1);
  std::vector<uintptr_t> addresses(count - 1);
  for (size_t i = 0; i < addresses.size(); ++i) {
    REQUIRE(PyExc_TypeError, THPVariable_Check(args[i + 1]), "argument ", i, " of a list is no tensor");
    addresses[i] = reinterpret_cast<uintptr_t>(THPVariable_Unpack(args[i + 1]).data_ptr());
  }
  void* stream = PyLong_AsVoidPtr(args[0]);
  if (stream == nullptr && PyErr_Occurred()) throw python_error();
  start_list(object, stream, std::move(addresses));
  Py_RETURN_NONE;
}

PyObject* call_list(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  return guarded([&] { return run_list(object, args, flags, names); });
}

PyObject* new_list(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *prepare = nullptr, *aligned = nullptr, *unaligned = nullptr, *places = nullptr;
  PyObject* vectors = nullptr;
  Py_ssize_t width = 0;
  if (!PyArg_ParseTuple(args, "OOOOnO!", &prepare, &aligned, &unaligned, &places, &width, &PyTuple_Type,
                        &vectors)) {
    return nullptr;
  }
  if (width <= 0 || !THPVariable_Check(places)) {
    return PyErr_Format(PyExc_TypeError, "a list takes a tensor of places, and kernels of some tensors");
  }
  auto found = std::make_unique<std::vector<bool>>(static_cast<size_t>(width));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(vectors); ++i) {
    size_t position = PyLong_AsSize_t(PyTuple_GET_ITEM(vectors, i));
    if (PyErr_Occurred()) return nullptr;
    if (position >= found->size()) return PyErr_Format(PyExc_ValueError, "no tensor %zu", position);
    (*found)[position] = true;
  }
  auto* self = reinterpret_cast<ListCallObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = &call_list;
  self->prepare = Py_NewRef(prepare);
  self->kernels[0] = Py_NewRef(aligned);
  self->kernels[1] = Py_NewRef(unaligned);
  self->places = Py_NewRef(places);
  self->width = static_cast<size_t>(width);
  self->vectors = found.release();
  self->addresses = new std::vector<uintptr_t>();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyObject* make_list_ready(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<ListCallObject*>(object);
  unsigned long long launch = 0, fill = 0, is_capturing = 0;
  if (!PyArg_ParseTuple(args, "KKK", &launch, &fill, &is_capturing)) return nullptr;
  self->launch = reinterpret_cast<LaunchKernel>(launch);
  self->fill = reinterpret_cast<void*>(fill);
  self->is_capturing = reinterpret_cast<IsCapturing>(is_capturing);
  Py_RETURN_NONE;
}

int traverse_list(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<ListCallObject*>(object);
  Py_VISIT(self->prepare);
  for (PyObject* kernel : self->kernels) Py_VISIT(kernel);
  Py_VISIT(self->places);
  Py_VISIT(self->table);
  return 0;
}

int clear_list(PyObject* object) {
  auto* self = reinterpret_cast<ListCallObject*>(object);
  Py_CLEAR(self->prepare);
  for (PyObject*& kernel : self->kernels) Py_CLEAR(kernel);
  Py_CLEAR(self->places);
  Py_CLEAR(self->table);
  return 0;
}

void delete_list(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_list(object);
  delete reinterpret_cast<ListCallObject*>(object)->vectors;
  delete reinterpret_cast<ListCallObject*>(object)->addresses;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef list_methods[] = {
    {"ready", make_list_ready, METH_VARARGS,
     "ready(launch, fill, is_capturing): the driver's functions, and the kernel that fills tables."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef list_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ListCallObject, vectorcall), READONLY, nullptr},
    {"table", T_OBJECT, offsetof(ListCallObject, table), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject list_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace

void start_list(PyObject* object, void* stream, std::vector<uintptr_t> addresses) {
  auto* self = reinterpret_cast<ListCallObject*>(object);
  uintptr_t seen = 0;
  size_t column = 0;
  for (uintptr_t address : addresses) {
    if ((*self->vectors)[column]) seen |= address;
    if (++column == self->width) column = 0;
  }
  if (!need_driver(self)) throw python_error();
  PyObject* kernel = self->kernels[(seen & kUnaligned) != 0];
  bool recording = records(self, stream);
  THPObjectPtr table;
  if (!recording && self->table != nullptr && self->stream == stream && *self->addresses == addresses) {
    table = THPObjectPtr(Py_NewRef(self->table));
  } else {
    table = THPObjectPtr(new_table(self, addresses, stream));
    if (!table) throw python_error();
    if (!recording) {
      Py_XSETREF(self->table, Py_NewRef(table.get()));
      self->addresses->swap(addresses);
      self->stream = stream;
    }
  }
  start_listed(kernel, stream, table, self->places);
}

bool add_list_type(PyObject* module) {
  list_type.tp_name = "inductor.runtime._launch.ListCall";
  list_type.tp_doc =
      "ListCall(prepare, aligned, unaligned, places, width, vectors): call it with a stream and tensors.";
  list_type.tp_basicsize = sizeof(ListCallObject);
  list_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  list_type.tp_vectorcall_offset = offsetof(ListCallObject, vectorcall);
  list_type.tp_call = PyVectorcall_Call;
  list_type.tp_new = &new_list;
  list_type.tp_dealloc = &delete_list;
  list_type.tp_traverse = &traverse_list;
  list_type.tp_clear = &clear_list;
  list_type.tp_methods = list_methods;
  list_type.tp_members = list_members;
  return PyType_Ready(&list_type) == 0 &&
         PyModule_AddObjectRef(module, "ListCall", reinterpret_cast<PyObject*>(&list_type)) == 0;
}

}  // namespace inductor
