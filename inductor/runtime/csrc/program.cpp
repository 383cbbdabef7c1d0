// `Program`: what the wrapper of a graph on a GPU does, without Python.
//
// Program(of_list, inputs, stream, device, graphs) runs the Python function `of_list` once with a list of
// `Placeholder`s and records what it does with them: the calls of `KernelCall`s, `ListCall`s, `Allocation`s
// and `OperatorCall`s, views, and where the last reference to each value goes. It is called as `of_list`
// is, with a list of tensors that it empties, and does the same in C++: a launch costs little more
// than the driver's own time. `stream(device)` gives the current stream; None where there are none.
// graphs: addresses of the driver's functions for CUDA graphs, in the order of `GraphDriver`, with which
// consecutive kernels are started together (batches.cpp); None for one by one.
#include <Python.h>
#include <structmember.h>

#include <cstring>
#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "batches.h"
#include "commands.h"
#include "gpu.h"
#include "launcher.h"
#include "program.h"

namespace inductor {
namespace {

// An output: a value, or an object that is the same in each call.
struct Output {
  int64_t value;
  PyObject* object;
};

struct ProgramObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* stream;
  int device;
  size_t inputs;
  size_t values;
  std::vector<Command>* commands;
  std::vector<std::pair<int64_t, PyObject*>>* constants;
  std::vector<Output>* outputs;
  std::unordered_set<int64_t>* over;  // inputs whose memory an allocation may have
  std::vector<Part>* parts;           // of the commands
  GraphDriver* driver;                // null: kernels are started one by one
};

struct Recording {
  ProgramObject* program;
  unsigned long thread;
};

Recording* recorded_now = nullptr;

struct PlaceholderObject {
  PyObject_HEAD
  int64_t value;
};

PyTypeObject placeholder_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject program_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* new_placeholder(int64_t value) {
  auto* made = PyObject_New(PlaceholderObject, &placeholder_type);
  if (made != nullptr) made->value = value;
  return reinterpret_cast<PyObject*>(made);
}

void delete_placeholder(PyObject* object) {
  int64_t value = reinterpret_cast<PlaceholderObject*>(object)->value;
  if (is_recording()) {
    Command command{Command::kFree};
    command.values.push_back(value);
    recorded_now->program->commands->push_back(std::move(command));
  }
  PyObject_Free(object);
}

// The number of a value: a placeholder's, or a new one for a tensor that is the same in each call.
int64_t value_of(PyObject* object) {
  if (Py_TYPE(object) == &placeholder_type) return reinterpret_cast<PlaceholderObject*>(object)->value;
  REQUIRE(PyExc_TypeError, THPVariable_Check(object), "a program takes tensors only");
  ProgramObject* program = recorded_now->program;
  for (const auto& [value, constant] : *program->constants) {
    if (constant == object) return value;
  }
  program->constants->emplace_back(static_cast<int64_t>(program->values), Py_NewRef(object));
  return static_cast<int64_t>(program->values++);
}

Command& append(Command::Kind kind, PyObject* call, PyObject* const* tensors, size_t count) {
  Command command{kind};
  for (size_t i = 0; i < count; ++i) command.values.push_back(value_of(tensors[i]));
  command.object = Py_XNewRef(call);
  auto* commands = recorded_now->program->commands;
  commands->push_back(std::move(command));
  return commands->back();
}

int64_t new_value(Command& command) {
  auto value = static_cast<int64_t>(recorded_now->program->values++);
  command.made.push_back(value);
  return value;
}

// Placeholder.view(size, stride, offset, dtype): what `as_strided` gives, of the value as that dtype.
PyObject* view_placeholder(PyObject* object, PyObject* args) {
  return guarded([&]() -> PyObject* {
    REQUIRE(PyExc_RuntimeError, is_recording(), "a placeholder is used outside of its recording");
    PyObject *size = nullptr, *stride = nullptr, *dtype = nullptr;
    long long offset = 0;
    if (!PyArg_ParseTuple(args, "O!O!LO", &PyTuple_Type, &size, &PyTuple_Type, &stride, &offset, &dtype)) {
      throw python_error();
    }
    Command& command = append(Command::kView, nullptr, &object, 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(size); ++i) {
      command.size.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(size, i)));
      command.stride.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(stride, i)));
    }
    if (PyErr_Occurred()) throw python_error();
    command.offset = offset;
    if (THPDtype_Check(dtype)) command.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    return new_placeholder(new_value(command));
  });
}

void* stream_of(const ProgramObject& program) {
  if (program.stream == Py_None) return nullptr;
  THPObjectPtr device(PyLong_FromLong(program.device));
  THPObjectPtr stream(device ? PyObject_CallOneArg(program.stream, device) : nullptr);
  if (!stream) throw python_error();
  void* found = PyLong_AsVoidPtr(stream);
  if (found == nullptr && PyErr_Occurred()) throw python_error();
  return found;
}

// An input that may be written over, where nothing but the list holds it: its memory under a tensor that
// no Python object belongs to, so that the counts tell of all who hold it. As it is elsewhere.
at::Tensor taken_alone(PyObject* given) {
  const at::Tensor& tensor = THPVariable_Unpack(given);
  bool is_plain = tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg();
  if (Py_REFCNT(given) != 1 || tensor.use_count() != 1 || !is_plain) return tensor;
  at::Tensor alone = at::detail::make_tensor<at::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::computeDispatchKey(tensor.scalar_type(), c10::kStrided,
                                                                                tensor.device())),
      tensor.dtype());
  alone.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return alone;
}

// The inputs go out of the list, so that each dies at its last use.
Values take_inputs(const ProgramObject& program, PyObject* list) {
  Values values(program.values);
  for (size_t i = 0; i < program.inputs; ++i) {
    PyObject* given = PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i));
    REQUIRE(PyExc_TypeError, THPVariable_Check(given), "input ", i, " of a graph is no tensor");
    bool over = program.over->count(static_cast<int64_t>(i)) != 0;
    values[i] = over ? taken_alone(given) : THPVariable_Unpack(given);
  }
  if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) throw python_error();
  for (const auto& [value, constant] : *program.constants) {
    values[static_cast<size_t>(value)] = THPVariable_Unpack(constant);
  }
  return values;
}

PyObject* run_program(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const auto& program = *reinterpret_cast<ProgramObject*>(self);
  REQUIRE(PyExc_TypeError, PyVectorcall_NARGS(flags) == 1 && names == nullptr && PyList_CheckExact(args[0]),
          "a program takes a list of tensors");
  REQUIRE(PyExc_TypeError, static_cast<size_t>(PyList_GET_SIZE(args[0])) == program.inputs,
          "this program takes ", program.inputs, " tensors");
  Values values = take_inputs(program, args[0]);
  void* stream = stream_of(program);
  for (const Part& part : *program.parts) {
    if (part.batch != nullptr) {
      run_batch(*part.batch, values, stream);
      continue;
    }
    for (size_t i = part.begin; i < part.end; ++i) run_command((*program.commands)[i], values, stream);
  }
  THPObjectPtr results(PyTuple_New(static_cast<Py_ssize_t>(program.outputs->size())));
  if (!results) throw python_error();
  for (size_t i = 0; i < program.outputs->size(); ++i) {
    const Output& output = (*program.outputs)[i];
    PyObject* item = output.object != nullptr ? Py_NewRef(output.object)
                                              : THPVariable_Wrap(values[static_cast<size_t>(output.value)]);
    if (item == nullptr) throw python_error();
    PyTuple_SET_ITEM(results.get(), static_cast<Py_ssize_t>(i), item);
  }
  return results.release();
}

PyObject* call_program(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  return guarded([&] { return run_program(self, args, flags, names); });
}

void keep_outputs(ProgramObject& program, PyObject* results) {
  REQUIRE(PyExc_TypeError, PyTuple_CheckExact(results), "a wrapper returns a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
    PyObject* item = PyTuple_GET_ITEM(results, i);
    bool is_value = Py_TYPE(item) == &placeholder_type;
    program.outputs->push_back(is_value ? Output{value_of(item), nullptr} : Output{-1, Py_NewRef(item)});
  }
}

void record(ProgramObject& program, PyObject* of_list) {
  REQUIRE(PyExc_RuntimeError, recorded_now == nullptr, "another wrapper is being recorded");
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(program.inputs)));
  if (!list) throw python_error();
  program.values = program.inputs;
  for (size_t i = 0; i < program.inputs; ++i) {
    PyObject* given = new_placeholder(static_cast<int64_t>(i));
    if (given == nullptr) throw python_error();
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), given);
  }
  Recording recording{&program, PyThread_get_thread_ident()};
  recorded_now = &recording;
  THPObjectPtr results(PyObject_CallOneArg(of_list, list));
  if (results) keep_outputs(program, results);
  recorded_now = nullptr;  // what is let go of from here on is an output
  if (!results) throw python_error();
}

GraphDriver* driver_of(PyObject* addresses) {
  if (addresses == Py_None) return nullptr;
  REQUIRE(PyExc_TypeError, PyTuple_Check(addresses) && PyTuple_GET_SIZE(addresses) == kGraphFunctions,
          "a program takes ", kGraphFunctions, " addresses of functions for graphs");
  void* functions[kGraphFunctions];
  for (size_t i = 0; i < kGraphFunctions; ++i) {
    functions[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, static_cast<Py_ssize_t>(i)));
    if (PyErr_Occurred()) throw python_error();
    REQUIRE(PyExc_ValueError, functions[i] != nullptr, "function ", i, " for graphs has no address");
  }
  auto driver = std::make_unique<GraphDriver>();
  std::memcpy(driver.get(), functions, sizeof(GraphDriver));
  return driver.release();
}

PyObject* make_program(PyTypeObject* type, PyObject* args) {
  PyObject *of_list = nullptr, *stream = nullptr, *graphs = Py_None;
  Py_ssize_t inputs = 0;
  int device = 0;
  if (!PyArg_ParseTuple(args, "OnOi|O", &of_list, &inputs, &stream, &device, &graphs)) throw python_error();
  THPObjectPtr made(type->tp_alloc(type, 0));
  if (!made) throw python_error();
  auto* self = reinterpret_cast<ProgramObject*>(made.get());
  self->vectorcall = &call_program;
  self->stream = Py_NewRef(stream);
  self->device = device;
  self->inputs = static_cast<size_t>(inputs);
  self->commands = new std::vector<Command>();
  self->constants = new std::vector<std::pair<int64_t, PyObject*>>();
  self->outputs = new std::vector<Output>();
  self->over = new std::unordered_set<int64_t>();
  self->parts = new std::vector<Part>();
  self->driver = driver_of(graphs);
  try {
    record(*self, of_list);
  } catch (...) {
    recorded_now = nullptr;
    throw;
  }
  bool together = self->driver != nullptr;
  *self->parts = together ? parts_of(*self->commands, device, self->driver)
                          : std::vector<Part>{Part{0, self->commands->size(), nullptr}};
  return made.release();
}

PyObject* new_program(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded([&] { return make_program(type, args); });
}

int traverse_program(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<ProgramObject*>(object);
  Py_VISIT(self->stream);
  if (self->outputs == nullptr) return 0;
  for (const Command& command : *self->commands) Py_VISIT(command.object);
  for (const auto& constant : *self->constants) Py_VISIT(constant.second);
  for (const Output& output : *self->outputs) Py_VISIT(output.object);
  return 0;
}

int clear_program(PyObject* object) {
  auto* self = reinterpret_cast<ProgramObject*>(object);
  Py_CLEAR(self->stream);
  if (self->outputs == nullptr) return 0;
  for (Command& command : *self->commands) Py_CLEAR(command.object);
  for (auto& constant : *self->constants) Py_CLEAR(constant.second);
  for (Output& output : *self->outputs) Py_CLEAR(output.object);
  return 0;
}

void delete_program(PyObject* object) {
  auto* self = reinterpret_cast<ProgramObject*>(object);
  PyObject_GC_UnTrack(object);
  clear_program(object);
  delete self->commands;
  delete self->constants;
  delete self->outputs;
  delete self->over;
  delete self->parts;
  delete self->driver;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef placeholder_methods[] = {
    {"view", view_placeholder, METH_VARARGS, "view(size, stride, offset, dtype): a view of the value."},
    {nullptr, nullptr, 0, nullptr}};

// (kernels, bytes, graphs, launches, error) of each batch.
PyObject* list_batches(PyObject* object, void*) {
  return guarded([&]() -> PyObject* {
    THPObjectPtr found(PyList_New(0));
    if (!found) throw python_error();
    for (const Part& part : *reinterpret_cast<ProgramObject*>(object)->parts) {
      if (part.batch == nullptr) continue;
      BatchFacts facts = facts_of(*part.batch);
      THPObjectPtr row(Py_BuildValue("nnnni", facts.kernels, facts.bytes, facts.graphs, facts.launches, facts.error));
      if (!row || PyList_Append(found.get(), row.get()) != 0) throw python_error();
    }
    return found.release();
  });
}

PyGetSetDef program_getters[] = {
    {"batches", list_batches, nullptr,
     "Of the kernels that are started together: how many, bytes of memory for what they hand on, the CUDA\n"
     "graphs made, how often one was launched, and the driver's error behind which there are no more.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef program_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ProgramObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

bool is_recording() {
  return recorded_now != nullptr && recorded_now->thread == PyThread_get_thread_ident();
}

PyObject* record_kernel(PyObject* call, PyObject* const* tensors, size_t count) {
  append(Command::kKernel, call, tensors, count);
  Py_RETURN_NONE;
}

PyObject* record_list(PyObject* call, PyObject* const* tensors, size_t count) {
  append(Command::kList, call, tensors, count);
  Py_RETURN_NONE;
}

PyObject* record_allocation(PyObject* allocation, PyObject* operand) {
  const auto& facts = *reinterpret_cast<AllocationObject*>(allocation);
  Command& command = append(Command::kAllocate, allocation, &operand, operand != nullptr);
  recorded_now->program->over->insert(command.values.begin(), command.values.end());
  at::Tensor like = at::empty_strided(facts.meta->size, facts.meta->stride, facts.options->device(at::kMeta));
  command.dtype = like.scalar_type();
  command.bytes = like.storage().nbytes();
  at::Tensor real = at::empty_strided({1}, {1}, *facts.options);
  command.allocator = real.storage().allocator();
  command.keys = c10::DispatchKeySet(
      c10::computeDispatchKey(command.dtype, c10::kStrided, real.device()));
  return new_placeholder(new_value(command));
}

PyObject* record_operator(PyObject* call, PyObject* const* tensors, size_t count) {
  Command& command = append(Command::kOperator, call, tensors, count);
  bool alone = false;
  std::vector<bool> wanted = wanted_results(call, alone);
  if (alone) return new_placeholder(new_value(command));
  THPObjectPtr results(PyTuple_New(static_cast<Py_ssize_t>(wanted.size())));
  if (!results) throw python_error();
  for (size_t i = 0; i < wanted.size(); ++i) {
    PyObject* item = nullptr;
    if (wanted[i]) {
      item = new_placeholder(new_value(command));
    } else {
      command.made.push_back(-1);
      item = Py_NewRef(Py_None);
    }
    if (item == nullptr) throw python_error();
    PyTuple_SET_ITEM(results.get(), static_cast<Py_ssize_t>(i), item);
  }
  return results.release();
}

bool add_program_types(PyObject* module) {
  placeholder_type.tp_name = "inductor.runtime._launch.Placeholder";
  placeholder_type.tp_doc = "A tensor of a wrapper that is being recorded.";
  placeholder_type.tp_basicsize = sizeof(PlaceholderObject);
  placeholder_type.tp_flags = Py_TPFLAGS_DEFAULT;
  placeholder_type.tp_dealloc = &delete_placeholder;
  placeholder_type.tp_methods = placeholder_methods;
  program_type.tp_name = "inductor.runtime._launch.Program";
  program_type.tp_doc = "Program(of_list, inputs, stream, device, graphs=None): see program.cpp.";
  program_type.tp_basicsize = sizeof(ProgramObject);
  program_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  program_type.tp_vectorcall_offset = offsetof(ProgramObject, vectorcall);
  program_type.tp_call = PyVectorcall_Call;
  program_type.tp_new = &new_program;
  program_type.tp_dealloc = &delete_program;
  program_type.tp_traverse = &traverse_program;
  program_type.tp_clear = &clear_program;
  program_type.tp_members = program_members;
  program_type.tp_getset = program_getters;
  for (PyTypeObject* type : {&placeholder_type, &program_type}) {
    if (PyType_Ready(type) != 0) return false;
  }
  return PyModule_AddObjectRef(module, "Placeholder", reinterpret_cast<PyObject*>(&placeholder_type)) == 0 &&
         PyModule_AddObjectRef(module, "Program", reinterpret_cast<PyObject*>(&program_type)) == 0;
}

}  // namespace inductor
