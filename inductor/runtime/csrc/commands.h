// One thing that a recorded wrapper does (program.cpp), and how it is done.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "program.h"

namespace inductor {

// One thing that a program does. `values` are what it reads (an allocation: what it may write over), `made` what
// it makes (-1: nothing wants it).
struct Command {
  enum Kind { kAllocate, kKernel, kList, kOperator, kView, kFree } kind;
  PyObject* object = nullptr;  // the call; it belongs to the program
  std::vector<int64_t> values;
  std::vector<int64_t> made;
  std::vector<int64_t> size, stride;  // of a view
  int64_t offset = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  // Of an allocation.
  size_t bytes = 0;
  c10::Allocator* allocator = nullptr;
  c10::DispatchKeySet keys;
};

// What one call of a program holds.
using Values = std::vector<at::Tensor>;

void run_command(const Command& command, Values& values, void* stream);

// The tensor of an allocation, in such memory.
at::Tensor tensor_in(const Command& command, c10::Storage storage);

// What a view's command makes of the value that it reads.
at::Tensor viewed_tensor(const Command& command, at::Tensor base);

// Has `slow` start a kernel. Errors: python_error.
void start_slowly(KernelCallObject& call, const std::vector<at::Tensor>& tensors);

}  // namespace inductor
