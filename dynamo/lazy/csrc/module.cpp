// `dynamo.lazy._C`: what Python tells and asks of the trace that is followed; see `dynamo.lazy.replay`.
#include "replay.h"

#include <future>
#include <thread>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

namespace lazy {
namespace {

constexpr const char* SCRIPT = "dynamo.lazy._C.script";

Script* script_of(PyObject* capsule) {
  return capsule == Py_None ? nullptr
                            : static_cast<Script*>(PyCapsule_GetPointer(capsule, SCRIPT));
}

PyObject* setup(PyObject*, PyObject* args) {
  PyObject *lazy, *parameter, *exposed, *wrap, *known;
  if (!PyArg_ParseTuple(args, "OOO!OO", &lazy, &parameter, &PyDict_Type, &exposed, &wrap, &known))
    return nullptr;
  for (PyObject* kept : {lazy, parameter, exposed, wrap, known}) Py_INCREF(kept);
  state.parameter = parameter;
  state.lazy = reinterpret_cast<PyTypeObject*>(lazy);
  state.exposed = exposed;
  state.wrap = wrap;
  state.known = known;
  Py_RETURN_NONE;
}

PyObject* script(PyObject*, PyObject*) {
  return PyCapsule_New(new Script, SCRIPT, [](PyObject* capsule) {
    delete static_cast<Script*>(PyCapsule_GetPointer(capsule, SCRIPT));
  });
}

PyObject* steps_of(PyObject*, PyObject* capsule) {
  Script* script = script_of(capsule);
  return script ? PyLong_FromSize_t(script->steps) : nullptr;
}

PyObject* set_mode(PyObject*, PyObject* mode) {
  state.run.clear();
  Py_XDECREF(state.mode);
  state.mode = mode == Py_None ? nullptr : Py_NewRef(mode);
  if (state.mode) install();
  else uninstall();
  Py_RETURN_NONE;
}

PyObject* start(PyObject*, PyObject* args) {
  PyObject* capsule;
  int follow;
  if (!PyArg_ParseTuple(args, "Op", &capsule, &follow)) return nullptr;
  Script* script = script_of(capsule);
  if (PyErr_Occurred()) return nullptr;
  state.run.start(script, follow);
  Py_RETURN_NONE;
}

PyObject* on(PyObject*, PyObject*) { return PyBool_FromLong(state.run.on); }

// -1: what follows can't be followed later.
PyObject* length(PyObject*, PyObject*) {
  return PyLong_FromSsize_t(state.run.at ? static_cast<Py_ssize_t>(state.run.path.size()) : -1);
}

PyObject* writes(PyObject*, PyObject*) {
  const Step* at = state.run.at;
  return Py_BuildValue("NN", PyBool_FromLong(at && at->writes),
                       PyBool_FromLong(at && at->writes_ordinary));
}

PyObject* reads(PyObject*, PyObject* tensor) {
  return PyBool_FromLong(state.run.reads(*THPVariable_Unpack(tensor).unsafeGetTensorImpl()));
}

PyObject* take(PyObject*, PyObject*) {
  if (state.note.given) state.run.at = state.run.on ? state.run.at : nullptr;  // another thread's
  return PyBool_FromLong(std::exchange(pending.waiting, false));
}

PyObject* poison(PyObject*, PyObject*) {
  if (!state.run.on) state.run.at = nullptr;
  Py_RETURN_NONE;
}

PyObject* expected_cut(PyObject*, PyObject*) {
  if (pending.op && state.run.at)
    for (const auto& cut : state.run.at->cuts)
      if (cut.first == *pending.op) return Py_NewRef(cut.second.object);
  Py_RETURN_NONE;
}

PyObject* note_cut(PyObject*, PyObject* why) {
  Step* at = state.run.at;
  if (at && pending.op && !state.run.path.empty())
    at->cuts.emplace_back(*pending.op, Object(why));
  Py_RETURN_NONE;
}

bool read_numbers(PyObject* tuple, std::vector<int>& numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    numbers.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(tuple, i))));
  return !PyErr_Occurred();
}

PyObject* note(PyObject*, PyObject* args) {
  Note note;
  int deed, writes, writes_ordinary;
  PyObject *payload, *operands, *made, *lifted, *drawn;
  if (!PyArg_ParseTuple(args, "iOO!O!O!Opp", &deed, &payload, &PyTuple_Type, &operands,
                        &PyTuple_Type, &made, &PyTuple_Type, &lifted, &drawn, &writes,
                        &writes_ordinary))
    return nullptr;
  note.given = true;
  note.deed = static_cast<Deed>(deed);
  note.payload = Object(payload);
  note.drawn = Object(drawn);
  note.writes = writes;
  note.writes_ordinary = writes_ordinary;
  note.thread = PyThread_get_thread_ident();
  std::vector<int> pairs;
  if (!read_numbers(operands, note.operands) || !read_numbers(made, note.made) ||
      !read_numbers(lifted, pairs))
    return nullptr;
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) note.lifted.emplace_back(pairs[i], pairs[i + 1]);
  state.note = std::move(note);
  Py_RETURN_NONE;
}

PyObject* number_of(const IValue& number) {
  return number.isInt() ? PyLong_FromLongLong(number.toInt()) : PyFloat_FromDouble(number.toDouble());
}

Object numbers_of(const Run& run) {
  Object list = Object::steal(PyList_New(0));
  for (const auto& number : run.numbers)
    PyList_Append(list.object, Object::steal(number_of(number)).object);
  return list;
}

// The tensors that calls have made and that somebody still holds: [(value, tensor)].
Object live_of(const Run& run) {
  Object list = Object::steal(PyList_New(0));
  for (const auto& handle : run.handles) {
    if (handle.storage || run.input_of[handle.value] >= 0) continue;
    const auto tensor = handle.weak.lock();
    if (!tensor) continue;
    Object row = Object::steal(Py_BuildValue("iN", handle.value, THPVariable_Wrap(at::Tensor(tensor))));
    PyList_Append(list.object, row.object);
  }
  return list;
}

// `tensor.data`, without the dispatcher.
at::Tensor data_of(const at::Tensor& tensor) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::Python);
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false));
}

PyObject* data(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  return THPVariable_Wrap(data_of(THPVariable_Unpack(tensor)));
  END_HANDLE_TH_ERRORS
}

// What a thread that has done nothing yet includes and excludes of keys.
c10::impl::LocalDispatchKeySet usual_keys() {
  std::promise<c10::impl::LocalDispatchKeySet> found;
  std::thread([&found] { found.set_value(c10::impl::tls_local_dispatch_key_set()); }).join();
  return found.get_future().get();
}

// No `__torch_function__` is called.
struct NoFunctions {
  using Functions = at::impl::PythonTorchFunctionTLS;
  at::impl::TorchFunctionDisabledState before = Functions::get_disabled_state();
  NoFunctions() {
    if (Functions::stack_len())
      Functions::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoFunctions() { Functions::set_disabled_state(before); }
};

// `with lazy.program.below(): return function(*args)`, with nothing of it in Python.
PyObject* below(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  static const c10::impl::LocalDispatchKeySet usual = usual_keys();
  if (PyTuple_GET_SIZE(args) == 0) {
    PyErr_SetString(PyExc_TypeError, "below() takes a function");
    return nullptr;
  }
  Object given = Object::steal(PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)));
  if (!given.object) return nullptr;
  torch::torch_dispatch_mode::StashTorchDispatchStackGuard no_modes;
  NoFunctions no_functions;
  std::optional<c10::InferenceMode> no_inference;
  if (c10::InferenceMode::is_enabled()) no_inference.emplace(false);
  c10::impl::ForceDispatchKeyGuard keys(usual);
  c10::NoGradGuard no_grad;
  return PyObject_CallObject(PyTuple_GET_ITEM(args, 0), given.object);
  END_HANDLE_TH_ERRORS
}

// None where what to run is not known; else (end, live, numbers). Its inputs are there until the next
// trace begins.
PyObject* look(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Run& run = state.run;
  run.on = false;
  if (!run.at || !run.at->end.object || run.sharing() != run.at->sharing) Py_RETURN_NONE;
  return Py_BuildValue("OOO", run.at->end.object, live_of(run).object, numbers_of(run).object);
  END_HANDLE_TH_ERRORS
}

// Whose memory the input of that value is: a `Value`, an ordinary tensor, or False for what was drawn.
PyObject* owner(PyObject*, PyObject* value) {
  HANDLE_TH_ERRORS
  const Run& run = state.run;
  const long number = PyLong_AsLong(value);
  if (PyErr_Occurred()) return nullptr;
  TORCH_CHECK_INDEX(number >= 0 && number < static_cast<long>(run.input_of.size()) &&
                    run.input_of[number] >= 0, "no input has the number ", number);
  const Input& input = run.inputs[run.input_of[number]];
  if (input.known.object) return Py_NewRef(input.known.object);
  if (input.drawn) Py_RETURN_FALSE;
  return THPVariable_Wrap(input.tensor);
  END_HANDLE_TH_ERRORS
}

bool is_ordinary(const Object& tensor) {
  return Py_TYPE(tensor.object) == reinterpret_cast<PyTypeObject*>(THPVariableClass) ||
         Py_TYPE(tensor.object) == reinterpret_cast<PyTypeObject*>(state.parameter);
}

// The inputs as a graph takes them: ordinary tensors themselves at the places of weights, elsewhere
// aliases of them.
PyObject* inputs(PyObject*, PyObject* weights) {
  HANDLE_TH_ERRORS
  const Run& run = state.run;
  std::vector<bool> is_weight(run.inputs.size(), false);
  Object places = Object::steal(PySequence_Tuple(weights));
  std::vector<int> numbers;
  if (!places.object || !read_numbers(places.object, numbers)) return nullptr;
  for (const int number : numbers) is_weight.at(number) = true;
  Object list = Object::steal(PyList_New(static_cast<Py_ssize_t>(run.inputs.size())));
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    const Input& input = run.inputs[i];
    Object real = input.real;
    if (!real.object && (input.drawn || is_weight[i])) {
      real = Object::steal(THPVariable_Wrap(input.tensor));
      if (real.object && !input.drawn && !is_ordinary(real)) real = Object();
    }
    if (!real.object) real = Object::steal(THPVariable_Wrap(data_of(input.tensor)));
    if (!real.object) return nullptr;
    PyList_SET_ITEM(list.object, static_cast<Py_ssize_t>(i), std::exchange(real.object, nullptr));
  }
  return std::exchange(list.object, nullptr);
  END_HANDLE_TH_ERRORS
}

// What Python has to record to be where the run is: (payloads, inputs, live, numbers). An input is
// (`Value`, None), (tensor, its data), or (None, what was drawn). From now on Python records, and the nodes follow those of the run.
PyObject* leave(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Run& run = state.run;
  run.on = false;
  Object payloads = Object::steal(PyList_New(0)), inputs = Object::steal(PyList_New(0));
  for (const Step* step : run.path) PyList_Append(payloads.object, step->payload.object);
  for (const auto& input : run.inputs) {
    Object row = Object::steal(input.known.object
        ? Py_BuildValue("OO", input.known.object, Py_None)
        : input.drawn ? Py_BuildValue("ON", Py_None, THPVariable_Wrap(input.tensor))
                      : Py_BuildValue("NN", THPVariable_Wrap(input.tensor),
                                      THPVariable_Wrap(data_of(input.tensor))));
    PyList_Append(inputs.object, row.object);
  }
  run.names.clear();
  for (size_t i = 0; i < run.handles.size(); ++i)
    run.names[run.handles[i].tensor] = static_cast<int>(i);
  return Py_BuildValue("OOOO", payloads.object, inputs.object, live_of(run).object,
                       numbers_of(run).object);
  END_HANDLE_TH_ERRORS
}

// Whether the trace was learnt as Python has recorded it: places of its inputs, number of values.
PyObject* attach(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *end, *tuple;
  Py_ssize_t values;
  if (!PyArg_ParseTuple(args, "OO!n", &end, &PyTuple_Type, &tuple, &values)) return nullptr;
  Run& run = state.run;
  std::vector<int> places, known;
  if (!read_numbers(tuple, places)) return nullptr;
  for (const auto& input : run.inputs) known.push_back(input.value);
  if (!run.at || run.on || run.path.empty() || places != known ||
      static_cast<Py_ssize_t>(run.input_of.size()) != values)
    Py_RETURN_FALSE;
  run.at->end = Object(end);
  run.at->sharing = run.sharing();
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, "The class of lazy tensors, and what makes them."},
    {"script", script, METH_NOARGS, "An empty tree of known traces."},
    {"steps_of", steps_of, METH_O, "How many nodes a tree has."},
    {"set_mode", set_mode, METH_O, "The dispatch mode whose calls are followed; None: no one."},
    {"start", start, METH_VARARGS, "A trace begins: (script or None, whether to follow it)."},
    {"on", on, METH_NOARGS, "Whether the trace is followed without Python."},
    {"length", length, METH_NOARGS, "How many calls were followed or learnt."},
    {"writes", writes, METH_NOARGS, "Whether the trace writes into inputs; into ordinary tensors."},
    {"reads", reads, METH_O, "Whether the trace has an ordinary tensor of that memory."},
    {"take", take, METH_NOARGS, "Whether the call that Python gets now has come from here."},
    {"poison", poison, METH_NOARGS, "The trace can't be followed later."},
    {"expected_cut", expected_cut, METH_NOARGS, "Why a trace ended here before this operator."},
    {"note_cut", note_cut, METH_O, "The trace ends here before this operator."},
    {"note", note, METH_VARARGS, "What a recorded call has done."},
    {"data", data, METH_O, "`x.data`, which no mode sees."},
    {"below", below, METH_VARARGS, "Calls a function as `lazy.program.below` would have it."},
    {"look", look, METH_NOARGS, "What a followed trace needs to run."},
    {"owner", owner, METH_O, "Whose memory an input of the followed trace is."},
    {"inputs", inputs, METH_O, "The inputs of the followed trace, weights as they are."},
    {"leave", leave, METH_NOARGS, "What was followed, for Python to record."},
    {"attach", attach, METH_VARARGS, "What runs where a trace ends here."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "dynamo.lazy._C", nullptr, -1, methods};

}  // namespace
}  // namespace lazy

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&lazy::definition); }
