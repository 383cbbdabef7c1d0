// The Python face: the type `Launcher`, and what Python may ask about kept memory.
#include <Python.h>
#include <structmember.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "gpu.h"
#include "program.h"
#include "launcher.h"

namespace py = pybind11;

namespace inductor {

Graph::~Graph() {
  for (GraphOutput& output : outputs) Py_XDECREF(output.object);
  forget_views(id);
}

namespace {

// Tensors with any of these keys are not plain memory, or have somebody who must see each operator.
constexpr c10::DispatchKeySet kSpecialKeys({
    c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
    c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched});

struct LauncherObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Graph* graph;
  PyObject* path;
  PyObject* spec;
};

std::atomic<uint64_t> next_graph_id{1};

// Those that live, by number: who holds the GIL may look.
std::map<uint64_t, PyObject*>& living() {
  static auto* launchers = new std::map<uint64_t, PyObject*>;  // outlives the last of them
  return *launchers;
}

// The library is loaded, but not into the global scope. Null where it has no such product.
decltype(Runtime::sgemm) find_sgemm() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<decltype(Runtime::sgemm)>(dlsym(library, "sgemm_"));
}

// Gives the state back to its graph and the arena to its pool, whatever happens.
struct RunningCall {
  Graph& graph;
  std::unique_ptr<CallState> state;

  explicit RunningCall(Graph& g) : graph(g) {
    {
      std::lock_guard<std::mutex> lock(graph.mutex);
      if (!graph.idle.empty()) {
        state = std::move(graph.idle.back());
        graph.idle.pop_back();
      }
    }
    if (state == nullptr) state = make_state(graph);
  }

  ~RunningCall() {
    for (int64_t slot : graph.output_slots) state->tensors[slot].reset();
    for (size_t i = 0; i < graph.slots.size() && !graph.externs.empty(); ++i) {
      if (graph.slots[i].kind == SlotKind::kExtern) state->tensors[i].reset();
    }
    state->error = nullptr;
    state->failed = 0;
    if (state->arena != nullptr) return_arena(state->arena);
    state->arena = nullptr;
    std::lock_guard<std::mutex> lock(graph.mutex);
    graph.idle.push_back(std::move(state));
  }

  static std::unique_ptr<CallState> make_state(Graph& graph) {
    static auto sgemm = find_sgemm();
    auto made = std::make_unique<CallState>();
    made->graph = &graph;
    made->data.resize(graph.slots.size());
    made->inputs.resize(graph.input_slots.size());
    made->tensors.resize(graph.slots.size());
    for (size_t i = 0; i < graph.slots.size(); ++i) {
      if (graph.slots[i].kind != SlotKind::kConstant) continue;
      made->tensors[i] = graph.constants.at(graph.slots[i].position);
      made->data[i] = const_cast<void*>(made->tensors[i].const_data_ptr());
    }
    made->runtime = Runtime{made->data.data(), &call_extern, &drop_slot, sgemm, 0, 0, 0, made.get(),
                            nullptr};
    return made;
  }
};

void check_input(const Graph& graph, size_t index, const at::Tensor& tensor) {
  const Slot& slot = graph.slots[graph.input_slots[index]];
  const TensorMeta& meta = slot.meta;
  if (slot.packed) {
    bool same = tensor.defined() && tensor.is_mkldnn() && tensor.scalar_type() == meta.dtype &&
                tensor.sizes() == c10::IntArrayRef(meta.size);
    REQUIRE(PyExc_TypeError, same, "compiled graph ", graph.name, ": input ", index,
            " is not the packed weight that it was compiled for");
    return;
  }
  bool fits = tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::kStrided &&
              tensor.scalar_type() == meta.dtype && tensor.sizes() == c10::IntArrayRef(meta.size);
  if (fits && meta.elements > 1) {
    c10::IntArrayRef strides = tensor.strides();
    for (size_t i = 0; i < meta.size.size(); ++i) {
      fits &= meta.size[i] == 1 || meta.stride[i] == strides[i];
    }
  }
  REQUIRE(PyExc_TypeError, fits, "compiled graph ", graph.name, ": input ", index, " is a ",
          tensor.dtype().name(), " tensor of sizes ", tensor.sizes(), " and strides ",
          tensor.strides(), " on ", tensor.device().str(), "; it was compiled for ",
          c10::toString(meta.dtype), " ", c10::IntArrayRef(meta.size), " with strides ",
          c10::IntArrayRef(meta.stride), " on cpu");
  REQUIRE(PyExc_TypeError, !tensor.key_set().has_any(kSpecialKeys), "compiled graph ", graph.name,
          ": input ", index, " is not a plain tensor: ", c10::toString(tensor.key_set()));
}

void bind_inputs(CallState& state, PyObject* const* args) {
  const Graph& graph = *state.graph;
  for (size_t i = 0; i < graph.input_slots.size(); ++i) {
    REQUIRE(PyExc_TypeError, THPVariable_Check(args[i]), "compiled graph ", graph.name,
            ": input ", i, " is not a tensor but a ", Py_TYPE(args[i])->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(args[i]);
    check_input(graph, i, tensor);
    state.inputs[i] = &tensor;
    if (graph.slots[graph.input_slots[i]].packed) continue;
    state.data[graph.input_slots[i]] = tensor.mutable_data_ptr();  // a lazy clone becomes a real one
  }
}

void bind_memory(CallState& state) {
  const Graph& graph = *state.graph;
  for (int64_t index : graph.output_slots) {
    const TensorMeta& meta = graph.slots[index].meta;
    state.tensors[index] = make_tensor(make_output_storage(meta.span_bytes), meta, 0);
    state.data[index] = state.tensors[index].mutable_data_ptr();
  }
  if (graph.arena_bytes == 0) return;
  state.arena = take_arena(graph.arena_bytes, state.arena_serial);
  if (state.arena->serial == state.arena_serial) return;
  state.arena_serial = state.arena->serial;
  state.views = &state.arena->views[graph.id];
  state.views->resize(graph.views.size());
  for (int64_t index : graph.arena_slots) {
    state.data[index] = state.arena->base + graph.slots[index].position;
  }
}

[[noreturn]] void raise_kernel_error(const Runtime& runtime, const Graph& graph) {
  REQUIRE(PyExc_IndexError, runtime.error_code != 1, "index ", runtime.error_value,
          " is out of bounds for dimension with size ", runtime.error_bound);
  REQUIRE(PyExc_IndexError, runtime.error_code != 2, "index out of range in self");
  REQUIRE(PyExc_RuntimeError, runtime.error_code != 3, "index ", runtime.error_value,
          " is out of bounds for dimension with size ", runtime.error_bound);
  REQUIRE(PyExc_RuntimeError, runtime.error_code != 4,
          "INDICES element is out of DATA bounds, id=", runtime.error_value,
          " axis_dim=", runtime.error_bound);
  throw LaunchError(PyExc_RuntimeError, join_text("compiled graph ", graph.name,
                                                  " failed with code ", runtime.error_code));
}

// What a profiler sees of a call: a range of the graph, and its steps.
struct WatchedCall {
  CallState& state;
  Graph& graph;
  at::RecordFunction range{at::RecordScope::USER_SCOPE};

  WatchedCall(CallState& s, Graph& g) : state(s), graph(g) {
    if (range.isActive()) range.before(graph.name);
    begin_steps(state);
  }
  ~WatchedCall() { end_steps(state, graph); }
};

void run_graph(CallState& state, Graph& graph) {
  std::optional<WatchedCall> watched;
  if (C10_UNLIKELY(is_watched())) watched.emplace(state, graph);
  auto run = [&]() -> int {
    if (graph.externs.empty()) return graph.run(&state.runtime);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    PooledCalls pooled;
    return graph.run(&state.runtime);
  };
  int failed;
  if (graph.release_gil) {
    pybind11::gil_scoped_release released;
    failed = run();
  } else {
    failed = run();
  }
  if (failed == 0) return;
  state.failed = failed;
  if (state.error) std::rethrow_exception(std::exchange(state.error, nullptr));
  raise_kernel_error(state.runtime, graph);
}

PyObject* wrap_output(CallState& state, const GraphOutput& output, PyObject* const* args) {
  switch (output.kind) {
    case GraphOutput::Kind::kView:
      return THPVariable_Wrap(make_view(state, state.graph->views[output.index]));
    case GraphOutput::Kind::kInput:
      return Py_NewRef(args[output.index]);
    default:
      return Py_NewRef(output.object);
  }
}

// The lines of a step's operations, each with its whole stack where that is known.
PyObject* lines_of_step(PyObject* spec, Py_ssize_t index) {
  constexpr Py_ssize_t kLines = 4;  // of a row, see `codegen/step_facts.py`
  auto known = py::reinterpret_borrow<py::dict>(spec);
  auto steps = known["steps"].cast<py::sequence>();
  auto row = steps[static_cast<size_t>(index)].cast<py::sequence>();
  py::list found;
  for (auto line : row[kLines].cast<py::sequence>()) {
    bool is_number = PyLong_Check(line.ptr());
    auto text = py::reinterpret_borrow<py::object>(line);
    if (is_number) text = known["traces"].cast<py::sequence>()[line.cast<size_t>()];
    found.append(text);
  }
  return found.release().ptr();
}

// Notes in the error that is set which step has failed: see `dynamo/base/failing_lines.py`.
void note_step(PyObject* spec, int failed) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject* lines = guarded([&] { return lines_of_step(spec, failed - 1); });
  if (lines == nullptr || PyObject_SetAttrString(error, "dynamo_lines", lines) < 0) PyErr_Clear();
  Py_XDECREF(lines);
  PyErr_Restore(type, error, traceback);
}

PyObject* run_launcher(PyObject* self, PyObject* const* args, size_t flags, PyObject* names,
                       int& failed) {
  Graph& graph = *reinterpret_cast<LauncherObject*>(self)->graph;
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  REQUIRE(PyExc_TypeError, count == graph.input_slots.size() && names == nullptr,
          "compiled graph ", graph.name, " takes ", graph.input_slots.size(),
          " positional inputs, got ", count);
  RunningCall call(graph);
  bind_inputs(*call.state, args);
  bind_memory(*call.state);
  try {
    run_graph(*call.state, graph);
  } catch (...) {
    failed = call.state->failed;
    throw;
  }
  PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(graph.outputs.size()));
  if (results == nullptr) throw python_error();
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    PyObject* item = wrap_output(*call.state, graph.outputs[i], args);
    if (item == nullptr) {
      Py_DECREF(results);
      throw python_error();
    }
    PyTuple_SET_ITEM(results, static_cast<Py_ssize_t>(i), item);
  }
  return results;
}

PyObject* call_launcher(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  int failed = 0;
  PyObject* results = guarded([&] { return run_launcher(self, args, flags, names, failed); });
  if (C10_UNLIKELY(failed != 0)) note_step(reinterpret_cast<LauncherObject*>(self)->spec, failed);
  return results;
}

PyObject* make_launcher(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  const char* path = nullptr;
  PyObject* spec = nullptr;
  static const char* names[] = {"path", "spec", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!", const_cast<char**>(names), &path,
                                   &PyDict_Type, &spec)) {
    return nullptr;
  }
  auto graph = std::make_unique<Graph>();
  graph->id = next_graph_id++;
  parse_graph(spec, *graph);
  if (*path != '\0') {
    // Never closed: frames of a compiled graph may still be on some thread's stack.
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(PyExc_RuntimeError, library != nullptr, "can't load ", path, ": ", dlerror());
    graph->run = reinterpret_cast<RunFunction>(dlsym(library, "run"));
    REQUIRE(PyExc_RuntimeError, graph->run != nullptr, path, " has no function `run`");
  }
  auto* self = reinterpret_cast<LauncherObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) throw python_error();
  self->vectorcall = &call_launcher;
  self->graph = graph.release();
  self->path = PyUnicode_FromString(path);
  self->spec = Py_NewRef(spec);
  living()[self->graph->id] = reinterpret_cast<PyObject*>(self);
  return reinterpret_cast<PyObject*>(self);
}

PyObject* new_launcher(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&] { return make_launcher(type, args, kwargs); });
}

void delete_launcher(PyObject* object) {
  auto* self = reinterpret_cast<LauncherObject*>(object);
  living().erase(self->graph->id);
  delete self->graph;
  Py_XDECREF(self->path);
  Py_XDECREF(self->spec);
  Py_TYPE(object)->tp_free(object);
}

PyObject* launcher_times(PyObject* self, PyObject*) {
  return guarded([&] { return show_times(*reinterpret_cast<LauncherObject*>(self)->graph); });
}

PyObject* launcher_clear_times(PyObject* self, PyObject*) {
  clear_times(*reinterpret_cast<LauncherObject*>(self)->graph);
  Py_RETURN_NONE;
}

PyMethodDef launcher_methods[] = {
    {"times", launcher_times, METH_NOARGS,
     "times() -> [(calls, nanoseconds, those of the fastest)] of the steps, and of the last call [(step's index, when it began)], "
     "which ends with (-1, when the call ended): what `keep_times` has kept."},
    {"clear_times", launcher_clear_times, METH_NOARGS, "Forgets them."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* show_launcher(PyObject* self) {
  const Graph& graph = *reinterpret_cast<LauncherObject*>(self)->graph;
  return PyUnicode_FromFormat("<Launcher %s: %zd inputs, %zd outputs, %zd extern calls>",
                              graph.name.c_str(), graph.input_slots.size(), graph.outputs.size(),
                              graph.externs.size());
}

PyMemberDef launcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LauncherObject, vectorcall), READONLY, nullptr},
    {"path", T_OBJECT, offsetof(LauncherObject, path), READONLY, "Of the library."},
    {"spec", T_OBJECT, offsetof(LauncherObject, spec), READONLY, "What it was made of."},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject launcher_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool prepare_launcher_type() {
  launcher_type.tp_name = "inductor.runtime._launch.Launcher";
  launcher_type.tp_doc = "Launcher(path, spec): a compiled graph; call it with its flat inputs.";
  launcher_type.tp_basicsize = sizeof(LauncherObject);
  launcher_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  launcher_type.tp_vectorcall_offset = offsetof(LauncherObject, vectorcall);
  launcher_type.tp_call = PyVectorcall_Call;
  launcher_type.tp_new = &new_launcher;
  launcher_type.tp_dealloc = &delete_launcher;
  launcher_type.tp_repr = &show_launcher;
  launcher_type.tp_members = launcher_members;
  launcher_type.tp_methods = launcher_methods;
  return PyType_Ready(&launcher_type) == 0;
}

PyObject* py_release_memory(PyObject*, PyObject*) {
  release_memory();
  Py_RETURN_NONE;
}

PyObject* py_report_memory(PyObject*, PyObject*) {
  MemoryReport report = report_memory();
  return Py_BuildValue(
      "{s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "live_bytes", report.live_bytes, "cached_bytes",
      report.cached_bytes, "peak_live_bytes", report.peak_live_bytes, "reused_blocks",
      report.reused_blocks, "new_blocks", report.new_blocks, "arenas", report.arenas,
      "arena_bytes", report.arena_bytes);
}

// Some words of a tensor's memory, from the first to the last, mixed into `mixed`.
uint64_t sample_tensor(const at::Tensor& tensor, uint64_t mixed) {
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided || tensor.numel() == 0) return mixed;
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  auto bytes = (last + 1) * static_cast<int64_t>(tensor.element_size());
  const char* start = static_cast<const char*>(tensor.const_data_ptr());
  constexpr int64_t kWords = 32;
  auto length = std::min<int64_t>(bytes, sizeof(uint64_t));
  for (int64_t i = 0; i < kWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, start + (bytes - length) * i / (kWords - 1), static_cast<size_t>(length));
    mixed = (mixed ^ word) * 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 29;
  }
  return mixed;
}

PyObject* py_sample(PyObject*, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    REQUIRE(PyExc_TypeError, PyList_Check(tensors), "a list of tensors was expected");
    uint64_t mixed = 1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
      PyObject* item = PyList_GET_ITEM(tensors, i);
      REQUIRE(PyExc_TypeError, THPVariable_Check(item), "a list of tensors was expected");
      mixed = sample_tensor(THPVariable_Unpack(item), mixed);
    }
    return PyLong_FromUnsignedLongLong(mixed);
  });
}

PyObject* py_launchers(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (auto& [id, launcher] : living()) {
    if (list != nullptr && PyList_Append(list, launcher) < 0) Py_CLEAR(list);
  }
  return list;
}

PyMethodDef methods[] = {
    {"launchers", py_launchers, METH_NOARGS, "All launchers that live, oldest first."},
    {"keep_times", py_keep_times, METH_O,
     "keep_times(True): launchers count and time their steps, until as many calls with False."},
    {"sample", py_sample, METH_O, "A number that tells contents of tensors apart, by some of them."},
    {"release_memory", py_release_memory, METH_NOARGS, "Frees the memory kept between calls."},
    {"report_memory", py_report_memory, METH_NOARGS, "How much memory is kept between calls."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_launch", "Calls compiled graphs.", -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace inductor

PyMODINIT_FUNC PyInit__launch() {
  if (!inductor::prepare_launcher_type()) return nullptr;
  inductor::install_pooling_allocator();
  PyObject* result = PyModule_Create(&inductor::module);
  if (result == nullptr) return nullptr;
  Py_INCREF(&inductor::launcher_type);
  if (PyModule_AddObject(result, "Launcher",
                         reinterpret_cast<PyObject*>(&inductor::launcher_type)) < 0) {
    Py_DECREF(&inductor::launcher_type);
    Py_DECREF(result);
    return nullptr;
  }
  // What generated code expects of `Runtime`; see `codegen/cpp/prelude.py`.
  if (PyModule_AddIntConstant(result, "runtime_version", 2) < 0) {
    Py_DECREF(result);
    return nullptr;
  }
  if (!inductor::add_gpu_types(result) || !inductor::add_operator_type(result) ||
      !inductor::add_replay_types(result) || !inductor::add_draws(result) ||
      !inductor::add_list_type(result) || !inductor::add_program_types(result)) {
    Py_DECREF(result);
    return nullptr;
  }
  return result;
}
