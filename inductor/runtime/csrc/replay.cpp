// What runs a recording again: `Slots` and `Replay` (runtime/cuda_graphs.py tells the rules).
//
// Slots: the results of recordings of one memory pool that somebody still holds. Each is a storage,
// known by a weak pointer, over memory of the pool; "owned" while the allocator knows its block
// as in use, too, as it is for the results of the call that recorded.
//
// Replay: one recording. A call compares the addresses of inputs that are read in place, moves what
// it would overwrite and somebody holds into memory of its own (the storage gets another data
// pointer, so tensors and views over it follow), copies the other inputs, runs, and gives tensors
// over the results where they lie.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "gpu.h"
#include "recorded.h"

namespace inductor {
namespace {

constexpr size_t kLarge = 1 << 20;  // bytes that are worth another recording
constexpr size_t kFewCopies = 3;

struct HeldSlot {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  Range range;
  uint64_t recording;
  bool kept;   // for a backward: never moved, the forward runs without its recording instead
  bool owned;

  // The storage, if somebody holds it and it has not been given other memory.
  StoragePtr lock() const {
    if (storage.expired()) return {};
    StoragePtr found = storage.lock();
    if (found && reinterpret_cast<uintptr_t>(found->data()) != range.begin) found.reset();
    return found;
  }
};

struct SlotsObject {
  PyObject_HEAD
  std::vector<HeldSlot>* live;
};

void prune(std::vector<HeldSlot>& live) {
  auto dead = [](const HeldSlot& slot) { return slot.storage.expired(); };
  live.erase(std::remove_if(live.begin(), live.end(), dead), live.end());
}

at::Tensor bytes_of(const StoragePtr& storage) {
  TensorMeta meta;
  meta.dtype = at::kByte;
  meta.size = {static_cast<int64_t>(storage->nbytes())};
  meta.stride = {1};
  return tensor_over(c10::Storage(storage), meta, 0);
}

// Gives a storage new memory with the same contents; the copy runs on the current stream.
void move_away(const StoragePtr& storage) {
  c10::InferenceMode normal(false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor old = bytes_of(storage);
  at::Tensor fresh = at::empty(old.sizes(), old.options());
  fresh.copy_(old);
  c10::StorageImpl* made = fresh.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(made->set_data_ptr(c10::DataPtr(nullptr, storage->device())));
}

struct ReplayObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  SlotsObject* slots;
  PyObject* run;
  Recorded* recorded;
};

std::atomic<uint64_t> next_recording{1};

bool is_moved(const Recorded& recorded, PyObject* object, size_t i) {
  const at::Tensor& tensor = unpack(object, i);
  return recorded.in_place[i] &&
         reinterpret_cast<uintptr_t>(tensor.data_ptr()) != recorded.addresses[i];
}

// Moves away what somebody holds and this recording writes; false where that must not be moved, or
// another recording may do.
bool make_room(ReplayObject* self) {
  Recorded& recorded = *self->recorded;
  std::vector<HeldSlot>& live = *self->slots->live;
  prune(live);
  std::vector<StoragePtr> moved;
  size_t bytes = 0, own_bytes = 0;
  bool busy = false, by_others = false;
  for (const HeldSlot& slot : live) {
    if (recorded.spares(slot.range)) continue;
    StoragePtr storage = slot.lock();
    if (!storage) continue;
    busy |= slot.kept;
    if (slot.recording != recorded.id) {
      by_others |= slot.kept;
      bytes += storage->nbytes();
    } else {
      own_bytes += storage->nbytes();
    }
    moved.push_back(std::move(storage));
  }
  if (by_others || bytes >= kLarge) ++recorded.crowded;
  if (busy || (recorded.patient && own_bytes >= kLarge)) return false;
  recorded.repeated += own_bytes >= kLarge;
  for (const StoragePtr& storage : moved) move_away(storage);
  return true;
}

void fill(const Recorded& recorded, PyObject* const* inputs) {
  if (recorded.filled.empty()) return;
  c10::InferenceMode normal(false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> targets, sources;
  for (const Filled& filled : recorded.filled) {
    at::Tensor source = THPVariable_Unpack(inputs[filled.input]);
    if (filled.span) source = at::as_strided(source, {*filled.span}, {1}, source.storage_offset());
    targets.push_back(filled.memory);
    sources.push_back(std::move(source));
  }
  if (targets.size() > kFewCopies) {
    at::_foreach_copy_(targets, sources);
    return;
  }
  for (size_t i = 0; i < targets.size(); ++i) targets[i].copy_(sources[i]);
}

c10::Storage storage_of(ReplayObject* self, Group& group, c10::Device device) {
  StoragePtr storage = std::move(group.pending);
  bool owned = static_cast<bool>(storage);
  size_t nbytes = group.range.end - group.range.begin;
  if (!owned) {
    storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), nbytes,
        c10::DataPtr(reinterpret_cast<void*>(group.range.begin), device),
        c10::GetAllocator(device.type()), /*resizable=*/true);
  }
  if (nbytes != 0) {
    self->slots->live->push_back(HeldSlot{c10::weak_intrusive_ptr<c10::StorageImpl>(storage),
                                       group.range, self->recorded->id, group.kept, owned});
  }
  return c10::Storage(std::move(storage));
}

at::Tensor result_over(const Result& result, c10::Storage storage, int64_t offset) {
  at::Tensor tensor = tensor_over(std::move(storage), result.meta, offset);
  if (!result.copied) return tensor;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor copy = at::empty_strided(result.meta.size, result.meta.stride, tensor.options());
  copy.copy_(tensor);
  return copy;
}

PyObject* wrap(const Result& result, PyObject* tuple, PyObject* const* inputs,
               std::vector<c10::Storage>& storages, std::vector<at::Tensor>& first) {
  if (result.kind == ResultKind::kObject) return Py_NewRef(result.object);
  if (result.kind == ResultKind::kSame) {
    return Py_NewRef(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(result.index)));
  }
  if (result.kind == ResultKind::kConstant) {
    c10::Storage storage = result.constant.storage();
    return THPVariable_Wrap(result_over(result, std::move(storage), result.offset));
  }
  if (result.kind == ResultKind::kInput) {
    const at::Tensor& input = THPVariable_Unpack(inputs[result.index]);
    int64_t bytes = result.offset + offset_in_bytes(input);
    auto item = static_cast<int64_t>(c10::elementSize(result.meta.dtype));
    return THPVariable_Wrap(result_over(result, input.storage(), bytes / item));
  }
  at::Tensor tensor = result_over(result, storages[result.index], result.offset);
  at::Tensor& other = first[result.index];
  if (result.copied) return THPVariable_Wrap(std::move(tensor));
  if (!other.defined()) {
    other = tensor;
  } else if (!tensor.is_inference() && !other.is_inference()) {  // as views of one tensor
    tensor.unsafeGetTensorImpl()->set_version_counter(
        other.unsafeGetTensorImpl()->version_counter());
  }
  return THPVariable_Wrap(std::move(tensor));
}

PyObject* take_results(ReplayObject* self, PyObject* const* inputs) {
  Recorded& recorded = *self->recorded;
  std::vector<c10::Storage> storages;
  storages.reserve(recorded.groups.size());
  for (Group& group : recorded.groups) storages.push_back(storage_of(self, group, recorded.device));
  std::vector<at::Tensor> first(recorded.groups.size());
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(recorded.results.size()));
  if (tuple == nullptr) throw python_error();
  for (size_t i = 0; i < recorded.results.size(); ++i) {
    PyObject* item = wrap(recorded.results[i], tuple, inputs, storages, first);
    if (item == nullptr) {
      Py_DECREF(tuple);
      throw python_error();
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), item);
  }
  return tuple;
}

template <class Body>
PyObject* guarded(Body body) {
  HANDLE_TH_ERRORS
  try {
    return body();
  } catch (const LaunchError& error) {
    PyErr_SetString(error.kind, error.what());
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

void check_count(const Recorded& recorded, size_t count) {
  REQUIRE(PyExc_TypeError, count == recorded.addresses.size(), "a recording takes ",
          recorded.addresses.size(), " inputs, got ", count);
}

// The results; None where an input has moved, False where a result that must stay is in the way.
PyObject* call_replay(PyObject* object, PyObject* const* args, size_t flags, PyObject*) {
  return guarded([&]() -> PyObject* {
    auto* self = reinterpret_cast<ReplayObject*>(object);
    const Recorded& recorded = *self->recorded;
    auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
    check_count(recorded, count);
    for (size_t i = 0; i < count; ++i) {
      if (is_moved(recorded, args[i], i)) Py_RETURN_NONE;
    }
    if (!make_room(self)) Py_RETURN_FALSE;
    fill(recorded, args);
    PyObject* done = PyObject_CallNoArgs(self->run);
    if (done == nullptr) throw python_error();
    Py_DECREF(done);
    ++self->recorded->runs;
    return take_results(self, args);
  });
}

PyObject* list_moved(PyObject* object, PyObject* inputs) {
  return guarded([&]() -> PyObject* {
    const Recorded& recorded = *reinterpret_cast<ReplayObject*>(object)->recorded;
    REQUIRE(PyExc_TypeError, PyTuple_Check(inputs), "a tuple of inputs was expected");
    check_count(recorded, static_cast<size_t>(PyTuple_GET_SIZE(inputs)));
    PyObject* found = PyList_New(0);
    if (found == nullptr) throw python_error();
    for (size_t i = 0; i < recorded.addresses.size(); ++i) {
      if (!is_moved(recorded, PyTuple_GET_ITEM(inputs, static_cast<Py_ssize_t>(i)), i)) continue;
      PyObject* position = PyLong_FromSize_t(i);
      int failed = position == nullptr ? -1 : PyList_Append(found, position);
      Py_XDECREF(position);
      if (failed != 0) {
        Py_DECREF(found);
        throw python_error();
      }
    }
    return found;
  });
}

extern PyTypeObject slots_type;

PyObject* make_replay(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"slots",  "run",     "inputs",    "copied", "given",
                                "outputs", "constants", "values", "keeps",  nullptr};
  PyObject *slots, *run, *inputs, *copied, *given, *outputs, *constants, *keeps;
  Py_ssize_t values = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!O!O!O!O!nO!", const_cast<char**>(names),
                                   &slots_type, &slots, &run, &PyTuple_Type, &inputs,
                                   &PyDict_Type, &copied, &PyTuple_Type, &given, &PyTuple_Type,
                                   &outputs, &PyTuple_Type, &constants, &values, &PyList_Type,
                                   &keeps)) {
    return nullptr;
  }
  auto recorded = std::make_unique<Recorded>();
  recorded->id = next_recording++;
  read_recorded(*recorded, inputs, copied, given, outputs, constants, static_cast<size_t>(values),
                keeps);
  c10::impl::VirtualGuardImpl guard(recorded->device.type());
  recorded->stream = guard.getStream(recorded->device);
  auto* self = reinterpret_cast<ReplayObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) throw python_error();
  self->vectorcall = &call_replay;
  self->slots = reinterpret_cast<SlotsObject*>(Py_NewRef(slots));
  self->run = Py_NewRef(run);
  self->recorded = recorded.release();
  return reinterpret_cast<PyObject*>(self);
}

PyObject* new_replay(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&] { return make_replay(type, args, kwargs); });
}

// The memory may go with the recording, so what somebody holds of it gets its own. False: it can't.
bool save_results(ReplayObject* self) {
  std::vector<StoragePtr> held;
  for (const HeldSlot& slot : *self->slots->live) {
    if (slot.recording != self->recorded->id || slot.owned) continue;
    if (StoragePtr storage = slot.lock()) held.push_back(std::move(storage));
  }
  if (held.empty()) return true;
  try {
    c10::StreamGuard same(self->recorded->stream);
    for (const StoragePtr& storage : held) move_away(storage);
    return true;
  } catch (...) {
    return false;
  }
}

void delete_replay(PyObject* object) {
  auto* self = reinterpret_cast<ReplayObject*>(object);
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  if (save_results(self)) {
    Py_XDECREF(self->run);  // else its memory is never given back
  }
  delete self->recorded;
  Py_XDECREF(reinterpret_cast<PyObject*>(self->slots));
  PyErr_Restore(kind, value, trace);
  Py_TYPE(object)->tp_free(object);
}

PyObject* get_crowded(PyObject* object, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<ReplayObject*>(object)->recorded->crowded);
}

PyObject* get_runs(PyObject* object, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<ReplayObject*>(object)->recorded->runs);
}

PyObject* get_repeated(PyObject* object, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<ReplayObject*>(object)->recorded->repeated);
}

PyObject* get_patient(PyObject* object, void*) {
  return PyBool_FromLong(reinterpret_cast<ReplayObject*>(object)->recorded->patient);
}

int set_patient(PyObject* object, PyObject* value, void*) {
  if (value == nullptr) {
    PyErr_SetString(PyExc_AttributeError, "patient can't be deleted");
    return -1;
  }
  int wanted = PyObject_IsTrue(value);
  if (wanted < 0) return -1;
  reinterpret_cast<ReplayObject*>(object)->recorded->patient = wanted != 0;
  return 0;
}

PyMethodDef replay_methods[] = {
    {"moved", list_moved, METH_O, "moved(inputs): those at other addresses than the recorded ones."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef replay_getters[] = {
    {"crowded", get_crowded, nullptr, "how often results of other recordings were in the way",
     nullptr},
    {"repeated", get_repeated, nullptr, "how often its own large results were moved", nullptr},
    {"patient", get_patient, set_patient, "whether a call rather returns False than moves these",
     nullptr},
    {"runs", get_runs, nullptr, "how often it has run", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef replay_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ReplayObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject replay_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// ---- Slots ----

PyObject* new_slots(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<SlotsObject*>(type->tp_alloc(type, 0));
  if (self != nullptr) self->live = new std::vector<HeldSlot>();
  return reinterpret_cast<PyObject*>(self);
}

void delete_slots(PyObject* object) {
  delete reinterpret_cast<SlotsObject*>(object)->live;
  Py_TYPE(object)->tp_free(object);
}

std::vector<HeldSlot>& live_of(PyObject* object) {
  auto& live = *reinterpret_cast<SlotsObject*>(object)->live;
  prune(live);
  return live;
}

// What somebody holds: (begin, end, owned, kept).
PyObject* list_slots(PyObject* object, PyObject*) {
  return guarded([&]() -> PyObject* {
    PyObject* found = PyList_New(0);
    if (found == nullptr) throw python_error();
    for (const HeldSlot& slot : live_of(object)) {
      if (!slot.lock()) continue;
      PyObject* row = Py_BuildValue("KKOO", static_cast<unsigned long long>(slot.range.begin),
                                    static_cast<unsigned long long>(slot.range.end),
                                    slot.owned ? Py_True : Py_False, slot.kept ? Py_True : Py_False);
      int failed = row == nullptr ? -1 : PyList_Append(found, row);
      Py_XDECREF(row);
      if (failed != 0) {
        Py_DECREF(found);
        throw python_error();
      }
    }
    return found;
  });
}

// Tensors over what is owned: as long as these live, it is.
PyObject* hold_slots(PyObject* object, PyObject*) {
  return guarded([&]() -> PyObject* {
    PyObject* found = PyList_New(0);
    if (found == nullptr) throw python_error();
    for (const HeldSlot& slot : live_of(object)) {
      StoragePtr storage = slot.owned ? slot.lock() : StoragePtr();
      if (!storage) continue;
      PyObject* item = THPVariable_Wrap(bytes_of(storage));
      int failed = item == nullptr ? -1 : PyList_Append(found, item);
      Py_XDECREF(item);
      if (failed != 0) {
        Py_DECREF(found);
        throw python_error();
      }
    }
    return found;
  });
}

// Gives what is not owned memory of its own.
PyObject* clear_slots(PyObject* object, PyObject*) {
  return guarded([&]() -> PyObject* {
    std::vector<StoragePtr> held;
    for (const HeldSlot& slot : live_of(object)) {
      StoragePtr storage = slot.owned ? StoragePtr() : slot.lock();
      if (storage) held.push_back(std::move(storage));
    }
    for (const StoragePtr& storage : held) move_away(storage);
    Py_RETURN_NONE;
  });
}

PyMethodDef slots_methods[] = {
    {"list", list_slots, METH_NOARGS, "list(): (begin, end, owned, kept) of what somebody holds."},
    {"hold", hold_slots, METH_NOARGS, "hold(): tensors that keep what is owned."},
    {"clear", clear_slots, METH_NOARGS, "clear(): what is not owned gets memory of its own."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject slots_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool prepare_replay_types() {
  replay_type.tp_name = "inductor.runtime._launch.Replay";
  replay_type.tp_doc =
      "Replay(slots, run, inputs, copied, given, outputs, constants, values, keeps): a recording; "
      "call it with its inputs. copied: memory of inputs that are not read in place; given: the "
      "tensors that were recorded for the inputs; values: how many outputs are not kept.";
  replay_type.tp_basicsize = sizeof(ReplayObject);
  replay_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  replay_type.tp_vectorcall_offset = offsetof(ReplayObject, vectorcall);
  replay_type.tp_call = PyVectorcall_Call;
  replay_type.tp_new = &new_replay;
  replay_type.tp_dealloc = &delete_replay;
  replay_type.tp_methods = replay_methods;
  replay_type.tp_getset = replay_getters;
  replay_type.tp_members = replay_members;
  slots_type.tp_name = "inductor.runtime._launch.Slots";
  slots_type.tp_doc = "Slots(): results of recordings of one pool that somebody holds.";
  slots_type.tp_basicsize = sizeof(SlotsObject);
  slots_type.tp_flags = Py_TPFLAGS_DEFAULT;
  slots_type.tp_new = &new_slots;
  slots_type.tp_dealloc = &delete_slots;
  slots_type.tp_methods = slots_methods;
  return PyType_Ready(&replay_type) == 0 && PyType_Ready(&slots_type) == 0;
}

}  // namespace

bool add_replay_types(PyObject* module) {
  return prepare_replay_types() &&
         PyModule_AddObjectRef(module, "Replay", reinterpret_cast<PyObject*>(&replay_type)) == 0 &&
         PyModule_AddObjectRef(module, "Slots", reinterpret_cast<PyObject*>(&slots_type)) == 0;
}

}  // namespace inductor
