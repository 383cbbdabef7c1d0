// Callables for the wrappers of graphs on a GPU: see gpu.cpp, lists.cpp, operator_call.cpp, philox.cpp and
// replay.cpp.
#pragma once

#include <cstdint>

#include <Python.h>

namespace inductor {

inline constexpr uintptr_t kUnaligned = 15;
inline constexpr int kNotInitialised = 3;    // this thread has not talked to the driver yet, or has
inline constexpr int kInvalidContext = 201;  // no context

// The driver's function that starts a kernel.
using LaunchKernel = int (*)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, void* stream, void** parameters, void** extra);

// Adds the types `KernelCall` and `Allocation` to the module; false with a Python error set.
bool add_gpu_types(PyObject* module);

// Adds the type `ListCall` (lists.cpp); as above.
bool add_list_type(PyObject* module);

// Adds the type `OperatorCall` (operator_call.cpp); as above.
bool add_operator_type(PyObject* module);

// Adds the function `draw_state` (philox.cpp) in the same way.
bool add_draws(PyObject* module);

// Adds the types `Slots` and `Replay` (replay.cpp) in the same way.
bool add_replay_types(PyObject* module);

}  // namespace inductor
