// A wrapper's calls as they are recorded and run without Python (program.cpp), and what these calls
// are made of (gpu.cpp, operator_call.cpp).
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "gpu.h"
#include "launcher.h"

namespace inductor {

constexpr size_t kMostParameters = 240;

struct KernelCallObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* slow;
  size_t tensors;
  std::vector<size_t>* unsure;
  std::vector<uint64_t>* numbers;
  LaunchKernel launch;
  void* function;
  unsigned grid[3];
  unsigned threads;
  unsigned shared;
  uint64_t version;  // how often `ready` gave it a kernel
};

struct AllocationObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  TensorMeta* meta;
  at::TensorOptions* options;
};

// Hands the kernel to the driver; false where `slow` must be called with the tensors. Errors:
// LaunchError.
bool start_kernel(KernelCallObject& call, void* stream, void** addresses);

// Starts a ListCall with the addresses of all its tensors. Errors: LaunchError, python_error.
void start_list(PyObject* call, void* stream, std::vector<uintptr_t> addresses);

// Calls the operator of an OperatorCall with as many tensors as it takes. Results nothing wants are
// undefined.
std::vector<at::Tensor> call_with_tensors(PyObject* call, const at::Tensor* const* given);

// Which results of an OperatorCall somebody wants. alone: whether it returns its one result itself.
std::vector<bool> wanted_results(PyObject* call, bool& alone);

// Whether this thread records a wrapper: then calls take and return `Placeholder`s in place of tensors.
bool is_recording();
PyObject* record_kernel(PyObject* call, PyObject* const* tensors, size_t count);
PyObject* record_list(PyObject* call, PyObject* const* tensors, size_t count);
// operand: a tensor whose memory the new one may have; null: none.
PyObject* record_allocation(PyObject* allocation, PyObject* operand);
PyObject* record_operator(PyObject* call, PyObject* const* tensors, size_t count);

// Adds the types `Placeholder` and `Program` to the module; false with a Python error set.
bool add_program_types(PyObject* module);

}  // namespace inductor
