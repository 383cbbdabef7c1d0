// A recording, as `Replay` runs it (replay.cpp) and `read_recorded` makes it (recorded.cpp).
#pragma once

#include <Python.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/python_variable.h>

#include "launcher.h"

namespace inductor {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool holds(const Range& other) const { return begin <= other.begin && other.end <= end; }
};

// A storage that results lie in. `pending`: what the recording itself made, for its first run.
struct Group {
  Range range;
  bool kept;
  StoragePtr pending;
};

enum class ResultKind : uint8_t { kObject, kPool, kInput, kConstant, kSame };

struct Result {
  ResultKind kind;
  size_t index = 0;  // of the group, the input, or the result that it is
  TensorMeta meta;
  int64_t offset = 0;  // in elements; kInput: in bytes from the input's first element
  bool copied = false;
  at::Tensor constant;
  PyObject* object = nullptr;
};

struct Filled {
  size_t input;
  at::Tensor memory;
  std::optional<int64_t> span;  // elements, where these do not fill their memory
};

struct Recorded {
  uint64_t id = 0;
  c10::Device device{c10::kCPU};
  c10::Stream stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
  std::vector<uintptr_t> addresses;  // 0: copied
  std::vector<bool> in_place;
  std::vector<Filled> filled;
  std::vector<Group> groups;
  std::vector<Result> results;
  std::vector<Range> keeps;  // not written, sorted
  bool patient = false;  // does not move its own large results
  uint64_t crowded = 0;
  uint64_t repeated = 0;
  uint64_t runs = 0;

  ~Recorded() {
    for (Result& result : results) Py_XDECREF(result.object);
  }

  bool spares(const Range& range) const {
    auto after = std::upper_bound(keeps.begin(), keeps.end(), range.begin,
                                  [](uintptr_t at, const Range& kept) { return at < kept.begin; });
    return after != keeps.begin() && std::prev(after)->holds(range);
  }
};

inline const at::Tensor& unpack(PyObject* object, size_t position) {
  REQUIRE(PyExc_TypeError, THPVariable_Check(object), "input ", position, " of a recording is no tensor");
  return THPVariable_Unpack(object);
}

at::Tensor tensor_over(c10::Storage storage, const TensorMeta& meta, int64_t offset);

inline int64_t offset_in_bytes(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

// Reads what Python tells of a recording, see `replay_type`.
void read_recorded(Recorded& recorded, PyObject* inputs, PyObject* copied, PyObject* given,
                   PyObject* outputs, PyObject* constants, size_t values, PyObject* keeps);

}  // namespace inductor
