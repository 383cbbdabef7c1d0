// The tensors and inputs of the trace that is followed or learnt.
#include "replay.h"

#include <torch/csrc/autograd/python_variable.h>

namespace lazy {

void Run::clear() {
  on = false;
  at = nullptr;
  script = nullptr;
  path.clear();
  handles.clear();
  inputs.clear();
  input_of.clear();
  numbers.clear();
  names.clear();
  storages.clear();
  counted = 0;
}

// One more ordinary tensor of the run.
void Run::add(const at::Tensor& ordinary, int value) {
  const auto& storage = ordinary.unsafeGetTensorImpl()->unsafe_storage();
  handles.push_back({ordinary.unsafeGetTensorImpl(), WeakTensor(at::Tensor().getIntrusivePtr()),
                     ordinary, value, storage.unsafeGetStorageImpl(), storage.data()});
}

// Forgets the tensors from that one on.
void Run::drop(size_t first) {
  if (handles.size() == first) return;
  handles.erase(handles.begin() + first, handles.end());
  if (counted <= first) return;
  storages.clear();
  counted = 0;
}

void Run::start(Script* of, bool follow) {
  clear();
  script = of;
  at = of ? &of->root : nullptr;
  on = follow && of;
}

bool Run::reads(const TensorImpl& tensor) {
  for (; counted < handles.size(); ++counted)
    if (handles[counted].storage) storages.insert(handles[counted].storage);
  return tensor.has_storage() && storages.count(tensor.unsafe_storage().unsafeGetStorageImpl());
}

// For each input the first one that has the same memory.
std::vector<int> Run::sharing() const {
  size_t room = 16;  // a power of two: a table of twice as many places as it needs
  while (room < 2 * inputs.size()) room *= 2;
  std::vector<std::pair<const void*, int>> first(room);
  std::vector<int> found;
  found.reserve(inputs.size());
  for (const auto& input : inputs) {
    const TensorImpl* tensor = input.tensor.unsafeGetTensorImpl();
    if (input.real.object) tensor = THPVariable_Unpack(input.real.object).unsafeGetTensorImpl();
    const void* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
    size_t at = std::hash<const void*>()(storage) / 16 * 0x9E3779B97F4A7C15 >> 32 & (room - 1);
    while (first[at].first && first[at].first != storage) at = (at + 1) & (room - 1);
    if (!first[at].first) first[at] = {storage, static_cast<int>(found.size())};
    found.push_back(first[at].second);
  }
  return found;
}

}  // namespace lazy
