// Callables for the wrappers of graphs on a GPU: see gpu.cpp, operator_call.cpp, philox.cpp and
// replay.cpp.
#pragma once

#include <Python.h>

namespace inductor {

// Adds the types `KernelCall` and `Allocation` to the module; false with a Python error set.
bool add_gpu_types(PyObject* module);

// Adds the type `OperatorCall` (operator_call.cpp); as above.
bool add_operator_type(PyObject* module);

// Adds the function `draw_state` (philox.cpp) in the same way.
bool add_draws(PyObject* module);

// Adds the types `Slots` and `Replay` (replay.cpp) in the same way.
bool add_replay_types(PyObject* module);

}  // namespace inductor
