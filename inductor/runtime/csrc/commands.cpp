// Runs the commands of a program.
#include "commands.h"

#include <ATen/ops/as_strided.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace inductor {

at::Tensor tensor_in(const Command& command, c10::Storage storage) {
  const TensorMeta& meta = *reinterpret_cast<AllocationObject*>(command.object)->meta;
  at::Tensor made = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), command.keys, c10::scalarTypeToTypeMeta(command.dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(meta.size, meta.stride, 0);
  return made;
}

at::Tensor viewed_tensor(const Command& command, at::Tensor base) {
  if (command.dtype != at::ScalarType::Undefined) base = base.view(command.dtype);
  return base.as_strided(command.size, command.stride, base.storage_offset() + command.offset);
}

void start_slowly(KernelCallObject& call, const std::vector<at::Tensor>& tensors) {
  std::vector<THPObjectPtr> owned;
  std::vector<PyObject*> given;
  for (const at::Tensor& tensor : tensors) {
    owned.emplace_back(THPVariable_Wrap(tensor));
    if (!owned.back()) throw python_error();
    given.push_back(owned.back().get());
  }
  THPObjectPtr done(PyObject_Vectorcall(call.slow, given.data(), given.size(), nullptr));
  if (!done) throw python_error();
}

namespace {

void run_kernel_command(const Command& command, const Values& values, void* stream) {
  auto& call = *reinterpret_cast<KernelCallObject*>(command.object);
  void* addresses[kMostParameters];
  for (size_t i = 0; i < command.values.size(); ++i) {
    addresses[i] = values[static_cast<size_t>(command.values[i])].data_ptr();
  }
  if (start_kernel(call, stream, addresses)) return;
  std::vector<at::Tensor> tensors;
  for (int64_t value : command.values) tensors.push_back(values[static_cast<size_t>(value)]);
  start_slowly(call, tensors);
}

// Whether an allocation may have the memory of `operand`: nothing but this call holds it, and it is
// aligned and large enough.
bool may_write_over(const Command& command, const at::Tensor& operand) {
  const c10::Storage& storage = operand.storage();
  return operand.use_count() == 1 && storage.use_count() == 1 && operand.storage_offset() == 0 &&
         operand.scalar_type() == command.dtype && storage.nbytes() >= command.bytes &&
         (reinterpret_cast<uintptr_t>(operand.data_ptr()) & kUnaligned) == 0;
}

at::Tensor allocate_tensor(const Command& command, const Values& values) {
  if (!command.values.empty()) {
    const at::Tensor& operand = values[static_cast<size_t>(command.values[0])];
    if (may_write_over(command, operand)) return tensor_in(command, operand.storage());
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), command.bytes, command.allocator->allocate(command.bytes),
      command.allocator, /*resizable=*/true);
  return tensor_in(command, c10::Storage(std::move(storage)));
}

void run_operator_command(const Command& command, Values& values) {
  std::vector<const at::Tensor*> given;
  for (int64_t value : command.values) given.push_back(&values[static_cast<size_t>(value)]);
  std::vector<at::Tensor> found = call_with_tensors(command.object, given.data());
  for (size_t i = 0; i < command.made.size(); ++i) {
    if (command.made[i] >= 0) values[static_cast<size_t>(command.made[i])] = std::move(found[i]);
  }
}

void run_list_command(const Command& command, const Values& values, void* stream) {
  std::vector<uintptr_t> addresses;
  addresses.reserve(command.values.size());
  for (int64_t value : command.values) {
    addresses.push_back(reinterpret_cast<uintptr_t>(values[static_cast<size_t>(value)].data_ptr()));
  }
  start_list(command.object, stream, std::move(addresses));
}

}  // namespace

void run_command(const Command& command, Values& values, void* stream) {
  switch (command.kind) {
    case Command::kKernel:
      return run_kernel_command(command, values, stream);
    case Command::kList:
      return run_list_command(command, values, stream);
    case Command::kAllocate:
      values[static_cast<size_t>(command.made[0])] = allocate_tensor(command, values);
      return;
    case Command::kOperator:
      return run_operator_command(command, values);
    case Command::kView: {
      at::Tensor base = values[static_cast<size_t>(command.values[0])];
      values[static_cast<size_t>(command.made[0])] = viewed_tensor(command, std::move(base));
      return;
    }
    case Command::kFree:
      values[static_cast<size_t>(command.values[0])].reset();
  }
}

}  // namespace inductor
