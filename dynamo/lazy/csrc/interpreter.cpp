// Where calls arrive: torch's table of what the dispatcher asks Python, with two entries of our own.
//
// While a mode is on, the table is this one: it hands all on, but calls that our dispatch mode would
// get, and that fit a known trace, never reach Python.
#include "replay.h"

#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace lazy {
namespace {

using c10::impl::PyInterpreter;
using c10::impl::PyInterpreterVTable;

struct Gil {
  PyGILState_STATE before = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(before); }
};

// What a call was given, kept while Python records it.
struct Recorded {
  const std::optional<c10::OperatorHandle>& op;
  bool wanted, finished = false;
  std::vector<IValue> given;

  Recorded(const std::optional<c10::OperatorHandle>& op, Arguments arguments)
      : op(op), wanted(state.run.on || state.run.at != nullptr) {
    pending.waiting = true;
    pending.op = op;
    state.note = Note();
    if (wanted) given.assign(arguments.begin(), arguments.end());
  }

  ~Recorded() {
    pending = Pending();
    if (!finished && !state.run.on) state.run.at = nullptr;  // the call has failed
  }

  void done(Arguments results) {
    Run& run = state.run;
    Note note = std::move(state.note);
    state.note = Note();
    finished = true;
    if (!run.at || run.on) return;
    if (!wanted || !note.given || note.thread != PyThread_get_thread_ident()) run.at = nullptr;
    else if (note.deed != Deed::Skip) learn(op, given, results, note);
  }
};

struct Table final : PyInterpreterVTable {
  const PyInterpreterVTable* torch = nullptr;

  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    if (!is_ours()) return torch->dispatch(op, stack);
    Gil gil;
    const std::optional<c10::OperatorHandle> handle(op);
    if (state.run.on && follow(handle, *stack)) return;
    const auto& schema = op.schema();
    Recorded recorded(handle, torch::jit::last(*stack, schema.arguments().size()));
    const size_t below = stack->size() - schema.arguments().size();
    torch->dispatch(op, stack);
    recorded.done(Arguments(*stack).slice(below));
  }

  c10::intrusive_ptr<TensorImpl> detach(const TensorImpl* self) const override {
    if (!is_ours()) return torch->detach(self);
    Gil gil;
    const std::optional<c10::OperatorHandle> none;
    auto* impl = const_cast<TensorImpl*>(self);
    torch::jit::Stack stack{at::Tensor(
        c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl))};
    if (!state.run.on || !follow(none, stack)) {
      Recorded recorded(none, stack);
      auto result = torch->detach(self);
      stack[0] = at::Tensor(result);
      recorded.done(stack);
    }
    return c10::intrusive_ptr<TensorImpl>::reclaim_copy(stack[0].toTensor().unsafeGetTensorImpl());
  }

  std::string name() const override { return torch->name(); }
  void incref(PyObject* object) const override { torch->incref(object); }
  void decref(PyObject* object) const override { torch->decref(object); }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const override {
    return torch->try_incref(slot);
  }
  size_t refcnt(PyObject* object) const override { return torch->refcnt(object); }
  void reportErrorCallback(PyObject* callback, c10::DispatchKey key) const override {
    torch->reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(
      const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
      torch::jit::Stack* stack, bool with_keyset, bool with_op) const override {
    torch->python_op_registration_trampoline(op, key, keys, stack, with_keyset, with_op);
  }
  void throw_abstract_impl_not_imported_error(
      std::string name, const char* module, const char* context) const override {
    torch->throw_abstract_impl_not_imported_error(std::move(name), module, context);
  }
  void python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) const override {
    torch->python_dispatcher(op, keys, stack);
  }
  bool is_contiguous(const TensorImpl* self, at::MemoryFormat format) const override {
    return torch->is_contiguous(self, format);
  }
  c10::SymBool sym_is_contiguous(const TensorImpl* self, at::MemoryFormat format) const override {
    return torch->sym_is_contiguous(self, format);
  }
  bool is_strides_like(const TensorImpl* self, at::MemoryFormat format) const override {
    return torch->is_strides_like(self, format);
  }
  bool is_non_overlapping_and_dense(const TensorImpl* self) const override {
    return torch->is_non_overlapping_and_dense(self);
  }
  c10::Device device(const TensorImpl* self) const override { return torch->device(self); }
  int64_t dim(const TensorImpl* self) const override { return torch->dim(self); }
  c10::IntArrayRef strides(const TensorImpl* self) const override { return torch->strides(self); }
  c10::IntArrayRef sizes(const TensorImpl* self) const override { return torch->sizes(self); }
  c10::SymIntArrayRef sym_sizes(const TensorImpl* self) const override {
    return torch->sym_sizes(self);
  }
  c10::Layout layout(const TensorImpl* self) const override { return torch->layout(self); }
  int64_t numel(const TensorImpl* self) const override { return torch->numel(self); }
  c10::SymInt sym_numel(const TensorImpl* self) const override { return torch->sym_numel(self); }
  c10::SymIntArrayRef sym_strides(const TensorImpl* self) const override {
    return torch->sym_strides(self);
  }
  c10::SymInt sym_storage_offset(const TensorImpl* self) const override {
    return torch->sym_storage_offset(self);
  }
  void trace_gpu_event_creation(c10::DeviceType kind, uintptr_t event) const override {
    torch->trace_gpu_event_creation(kind, event);
  }
  void trace_gpu_event_deletion(c10::DeviceType kind, uintptr_t event) const override {
    torch->trace_gpu_event_deletion(kind, event);
  }
  void trace_gpu_event_record(c10::DeviceType kind, uintptr_t event, uintptr_t stream) const override {
    torch->trace_gpu_event_record(kind, event, stream);
  }
  void trace_gpu_event_wait(c10::DeviceType kind, uintptr_t event, uintptr_t stream) const override {
    torch->trace_gpu_event_wait(kind, event, stream);
  }
  void trace_gpu_memory_allocation(c10::DeviceType kind, uintptr_t address) const override {
    torch->trace_gpu_memory_allocation(kind, address);
  }
  void trace_gpu_memory_deallocation(c10::DeviceType kind, uintptr_t address) const override {
    torch->trace_gpu_memory_deallocation(kind, address);
  }
  void trace_gpu_stream_creation(c10::DeviceType kind, uintptr_t stream) const override {
    torch->trace_gpu_stream_creation(kind, stream);
  }
  void trace_gpu_device_synchronization(c10::DeviceType kind) const override {
    torch->trace_gpu_device_synchronization(kind);
  }
  void trace_gpu_stream_synchronization(c10::DeviceType kind, uintptr_t stream) const override {
    torch->trace_gpu_stream_synchronization(kind, stream);
  }
  void trace_gpu_event_synchronization(c10::DeviceType kind, uintptr_t event) const override {
    torch->trace_gpu_event_synchronization(kind, event);
  }
  void reset_backward_hooks(const TensorImpl* self) const override {
    torch->reset_backward_hooks(self);
  }
};

Table* table() {
  static Table* made = new Table;  // calls may still be on their way at the end of the process
  return made;
}

}  // namespace

// Whether the calls of this thread go to our mode, and to no other.
bool is_ours() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  return Modes::stack_len() == 1 && state.mode &&
         Modes::get_stack_at(0)->ptr(c10::impl::getGlobalPyInterpreter()) == state.mode;
}

void install() {
  PyInterpreter* interpreter = c10::impl::getGlobalPyInterpreter();
  if (interpreter->vtable_ == table()) return;
  table()->torch = interpreter->vtable_;
  interpreter->vtable_ = table();
}

void uninstall() {
  PyInterpreter* interpreter = c10::impl::getGlobalPyInterpreter();
  if (interpreter->vtable_ == table()) interpreter->vtable_ = table()->torch;
}

}  // namespace lazy
