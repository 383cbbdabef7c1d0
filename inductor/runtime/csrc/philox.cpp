// `draw_state`: what a random operator of ours draws from a generator of a GPU, as ATen's kernels do.
//
// The generator's own function gives seed and offset, and moves the offset on. While a CUDA graph is
// recorded it gives their places on the device, which each replay writes before it runs, and how far
// the recording has drawn until here. Nothing here is linked against CUDA: the function comes as an
// address (`at::CUDAGeneratorImpl::philox_cuda_state`, whose `this` is its first argument).
#include <Python.h>

#include <mutex>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include "gpu.h"

namespace inductor {
namespace {

using DrawState = at::PhiloxCudaState (*)(c10::GeneratorImpl* generator, uint64_t increment);

at::Tensor on_device(const at::PhiloxCudaState& state, at::Device device) {
  auto options = at::TensorOptions().dtype(at::kLong);
  if (!state.captured_) {
    at::Tensor numbers = at::empty({2}, options.device(at::kCPU));
    auto* data = numbers.mutable_data_ptr<int64_t>();
    data[0] = static_cast<int64_t>(state.seed_.val);
    data[1] = static_cast<int64_t>(state.offset_.val);
    return numbers.to(device, /*non_blocking=*/true);
  }
  auto number_at = [&](int64_t* place) {  // on a device that is told: the driver is not asked
    return at::for_blob(place, {1}).options(options.device(device)).target_device(device).make_tensor();
  };
  at::Tensor seed = number_at(state.seed_.ptr);
  at::Tensor offset = number_at(state.offset_.ptr);
  std::vector<at::Tensor> parts = {seed, offset.add(static_cast<int64_t>(state.offset_intragraph_))};
  return at::cat(parts);
}

PyObject* draw_state(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned long long address = 0;
  unsigned long long increment = 0;
  PyObject* generator = nullptr;
  PyObject* device = nullptr;
  if (!PyArg_ParseTuple(args, "KOKO", &address, &generator, &increment, &device)) return nullptr;
  if (!THPGenerator_Check(generator) || !THPDevice_Check(device)) {
    return PyErr_Format(PyExc_TypeError, "draw_state takes a generator and a device");
  }
  at::Generator& source = reinterpret_cast<THPGenerator*>(generator)->cdata;
  auto draw = reinterpret_cast<DrawState>(static_cast<uintptr_t>(address));
  at::PhiloxCudaState state;
  {
    std::lock_guard<std::mutex> lock(source.mutex());
    state = draw(source.unsafeGetGeneratorImpl(), increment);
  }
  return THPVariable_Wrap(on_device(state, reinterpret_cast<THPDevice*>(device)->device));
  END_HANDLE_TH_ERRORS
}

PyMethodDef draw_methods[] = {
    {"draw_state", draw_state, METH_VARARGS,
     "draw_state(function, generator, increment, device): a tensor of seed and offset, and the offset\n"
     "of the generator is moved on. function: see philox.cpp."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_draws(PyObject* module) { return PyModule_AddFunctions(module, draw_methods) == 0; }

}  // namespace inductor
