// Calls from a compiled graph into the operators of the library, through the dispatcher.
//
// An extern call is a stack of operands prepared once, with holes for tensors. Results land in slots
// and must have the sizes that compilation saw; other strides are copied into the expected ones.
#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "launcher.h"

namespace inductor {

at::Tensor make_tensor(c10::Storage storage, const TensorMeta& meta, int64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(meta.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.size, meta.stride, offset);
  return tensor;
}

namespace {

const at::Tensor& base_tensor(CallState& state, int64_t slot_index) {
  const Slot& slot = state.graph->slots[slot_index];
  if (slot.kind == SlotKind::kInput) return *state.inputs[slot.position];
  return state.tensors[slot_index];
}

at::Tensor make_arena_view(CallState& state, const Slot& slot, const View& view) {
  auto item = static_cast<int64_t>(c10::elementSize(view.meta.dtype));
  REQUIRE(PyExc_RuntimeError, slot.position % item == 0, "a view of the arena is not aligned");
  return make_tensor(state.arena->storage, view.meta, slot.position / item + view.offset);
}

// Arena tensors are made once and kept, unless the operator may hold on to what it gets.
at::Tensor operand_tensor(CallState& state, int64_t view_index, bool may_be_kept) {
  const View& view = state.graph->views[view_index];
  const Slot& slot = state.graph->slots[view.slot];
  if (slot.kind != SlotKind::kArena) return make_view(state, view);
  if (may_be_kept) return make_arena_view(state, slot, view);
  at::Tensor& kept = (*state.views)[view_index];
  if (!kept.defined()) {
    kept = make_arena_view(state, slot, view);
    ++state.arena->view_count;
  }
  return kept;
}

}  // namespace

void push_lists(const std::vector<ListArgument>& lists, torch::jit::Stack& stack) {
  for (const ListArgument& list : lists) {
    if (list.kind == ListKind::kTensors) {
      c10::List<at::Tensor> values;
      values.resize(list.length);
      stack[list.argument] = std::move(values);
    } else {
      c10::List<std::optional<at::Tensor>> values;
      values.resize(list.length);
      stack[list.argument] = std::move(values);
    }
  }
}

void set_operand(c10::IValue& argument, int64_t element, at::Tensor tensor) {
  if (element < 0) {
    argument = std::move(tensor);
  } else if (argument.isTensorList()) {
    argument.toTensorList().set(static_cast<size_t>(element), std::move(tensor));
  } else {
    argument.toOptionalTensorList().set(static_cast<size_t>(element), std::move(tensor));
  }
}

bool same_strides(const TensorMeta& meta, c10::IntArrayRef strides) {
  if (meta.elements <= 1) return true;
  for (size_t i = 0; i < meta.size.size(); ++i) {
    if (meta.size[i] > 1 && meta.stride[i] != strides[i]) return false;
  }
  return true;
}

namespace {

// New memory, with the strides that compilation saw. Elements may share memory (an expanded tensor),
// where a copy by elements is refused: the same strides take the memory as it lies.
at::Tensor copied(const TensorMeta& meta, const at::Tensor& result) {
  at::Tensor copy = at::empty_strided(meta.size, meta.stride, meta.dtype, c10::kStrided, c10::kCPU, false);
  if (!same_strides(meta, result.strides()) || meta.elements == 0) return copy.copy_(result);
  auto span = static_cast<int64_t>(meta.span_bytes / c10::elementSize(meta.dtype));
  copy.as_strided({span}, {1}, 0).copy_(result.as_strided({span}, {1}, result.storage_offset()));
  return copy;
}

void store_result(CallState& state, const ExternCall& call, int64_t slot_index, at::Tensor result) {
  const Slot& slot = state.graph->slots[slot_index];
  REQUIRE(PyExc_RuntimeError, result.defined(), "compiled graph ", state.graph->name,
          ": operator ", call.op.schema().name(), " returned nothing");
  bool expected = result.sizes() == c10::IntArrayRef(slot.meta.size) &&
                  result.scalar_type() == slot.meta.dtype;
  REQUIRE(PyExc_RuntimeError, expected, "compiled graph ", state.graph->name, ": operator ",
          call.op.schema().name(), " returned ", result.sizes(), " ", result.dtype().name(),
          " where compilation saw ", c10::IntArrayRef(slot.meta.size), " ",
          c10::toString(slot.meta.dtype));
  REQUIRE(PyExc_RuntimeError, !call.by_fake || same_strides(slot.meta, result.strides()),
          "operator ", call.op.schema().name(), " returned strides ", result.strides(),
          " where its fake kernel says ", c10::IntArrayRef(slot.meta.stride));
  // The arena is overwritten, so a result that looks into it can't stay there.
  bool in_arena = state.arena != nullptr && result.storage().is_alias_of(state.arena->storage);
  bool special = result.layout() != c10::kStrided || result.is_conj() || result.is_neg();
  if (in_arena || special || !same_strides(slot.meta, result.strides())) {
    result = copied(slot.meta, result);
  }
  state.data[slot_index] = const_cast<void*>(result.const_data_ptr());
  state.tensors[slot_index] = std::move(result);
}

size_t returned(const torch::jit::Stack& stack) {
  size_t count = 0;
  for (const c10::IValue& value : stack) count += value.isTensorList() ? value.toTensorList().size() : 1;
  return count;
}

void store_results(CallState& state, const ExternCall& call, torch::jit::Stack& stack) {
  size_t next = 0;
  auto store = [&](at::Tensor tensor) {
    if (next >= call.results.size()) return;
    int64_t slot = call.results[next++];
    if (slot >= 0) store_result(state, call, slot, std::move(tensor));
  };
  REQUIRE(PyExc_RuntimeError, !call.by_fake || returned(stack) >= call.results.size(), "operator ",
          call.op.schema().name(), " returned ", returned(stack), " values where its fake kernel says ",
          call.results.size());
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      store(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      for (at::Tensor tensor : value.toTensorVector()) store(std::move(tensor));
    } else {
      ++next;
    }
  }
}

std::vector<const void*> storages(const torch::jit::Stack& stack) {
  std::vector<const void*> found;
  auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage() && tensor.storage().nbytes() > 0) {
      found.push_back(tensor.storage().unsafeGetStorageImpl());
    }
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    }
  }
  return found;
}

// A result that shares memory with an operand, where the schema does not say so, would be taken for
// a tensor of its own.
void require_fresh(const ExternCall& call, const std::vector<const void*>& given, const torch::jit::Stack& stack) {
  for (const c10::Argument& result : call.op.schema().returns()) {
    if (result.alias_info() != nullptr) return;
  }
  for (const void* storage : storages(stack)) {
    REQUIRE(PyExc_RuntimeError, std::find(given.begin(), given.end(), storage) == given.end(), "operator ",
            call.op.schema().name(), " returned a tensor that shares memory with what it was given, "
            "which neither its schema nor its fake kernel says");
  }
}

}  // namespace

at::Tensor make_view(CallState& state, const View& view) {
  const Slot& slot = state.graph->slots[view.slot];
  if (slot.kind == SlotKind::kArena) return make_arena_view(state, slot, view);
  const at::Tensor& base = base_tensor(state, view.slot);
  if (view.whole) return base;
  auto item = static_cast<int64_t>(c10::elementSize(view.meta.dtype));
  int64_t base_bytes = base.storage_offset() * static_cast<int64_t>(base.element_size());
  return make_tensor(base.storage(), view.meta, base_bytes / item + view.offset);
}

int call_extern(Runtime* runtime, int64_t index) {
  CallState& state = *runtime->state;
  const ExternCall& call = state.graph->externs[index];
  try {
    torch::jit::Stack& stack = state.stack;
    stack.assign(call.prototype.begin(), call.prototype.end());
    push_lists(call.lists, stack);
    for (const TensorOperand& operand : call.operands) {
      if (operand.view < 0) continue;
      set_operand(stack[operand.argument], operand.element,
                  operand_tensor(state, operand.view, !call.keeps_no_operand));
    }
    std::vector<const void*> given;
    if (call.by_fake) given = storages(stack);
    call.op.callBoxed(&stack);
    if (call.by_fake) require_fresh(call, given, stack);
    store_results(state, call, stack);
    stack.clear();
    return 0;
  } catch (...) {
    state.stack.clear();
    state.error = std::current_exception();
    return 1;
  }
}

void drop_slot(Runtime* runtime, int64_t slot) { runtime->state->tensors[slot].reset(); }

}  // namespace inductor
