// One compiled graph, ready to be called: what `load` hands to Python as `Launcher`.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "memory.h"

namespace inductor {

// An error of ours on its way to Python. Its text is put together without streams: where torch brings
// parts of the standard library along, streams of another compiler's do not work.
struct LaunchError : std::exception {
  PyObject* kind;
  std::string text;

  LaunchError(PyObject* k, std::string t) : kind(k), text(std::move(t)) {}
  const char* what() const noexcept override { return text.c_str(); }
};

inline std::string text_of(const char* text) { return text; }
inline std::string text_of(const std::string& text) { return text; }
inline std::string text_of(std::string_view text) { return std::string(text); }
inline std::string text_of(int64_t number) { return std::to_string(number); }
inline std::string text_of(size_t number) { return std::to_string(number); }
inline std::string text_of(c10::IntArrayRef numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

template <class... Parts>
std::string join_text(const Parts&... parts) {
  std::string text;
  ((text += text_of(parts)), ...);
  return text;
}

#define REQUIRE(kind, condition, ...)                                                \
  do {                                                                               \
    if (C10_UNLIKELY(!(condition))) throw LaunchError(kind, join_text(__VA_ARGS__)); \
  } while (0)

struct CallState;

// What the generated function `run` sees. `codegen/prelude` declares the same struct; keep them equal.
struct Runtime {
  void** data;                                 // first byte of every slot
  int (*call)(Runtime*, int64_t index);        // makes extern call `index`
  void (*drop)(Runtime*, int64_t slot);        // frees what an extern call put into `slot`
  void (*sgemm)(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                const float* beta, float* c, const int* ldc);
  int64_t error_code;                          // set by a kernel: see `raise_kernel_error`
  int64_t error_value;
  int64_t error_bound;
  CallState* state;
  void (*step)(Runtime*, int64_t index);       // step `index` begins; null where nobody asks
};

// A kernel or a call of a library: its name, and how often and how long it ran while times were kept
// (in all, and the fastest time).
struct Step {
  std::string name;
  std::vector<std::string> ranges;  // of the user's `record_function`s around it, outermost first
  int64_t calls = 0;
  int64_t nanoseconds = 0;
  int64_t least = 0;
};

// When a step of a call began; `index` is that of the step, -1 for the end of the call.
struct Stamp {
  int64_t index;
  int64_t nanoseconds;
};

using RunFunction = int (*)(Runtime*);

enum class SlotKind : uint8_t { kInput, kConstant, kArena, kOutput, kExtern };

struct TensorMeta {
  at::ScalarType dtype;
  std::vector<int64_t> size;
  std::vector<int64_t> stride;
  int64_t elements = 0;  // product of size
  size_t span_bytes = 0;  // from the first to the last element
};

// A place that holds one buffer. `position`: of the input, constant or arena byte.
struct Slot {
  SlotKind kind;
  int64_t position;
  TensorMeta meta;
  bool packed = false;  // an input in an order that only its library knows: it has no address
};

// A buffer seen with other sizes and strides; offset counts elements of `meta.dtype`.
struct View {
  int64_t slot;
  int64_t offset;
  bool whole;  // same metadata as the slot
  TensorMeta meta;
};

// One operand of an extern call that is a tensor, or one element of a list operand.
struct TensorOperand {
  size_t argument;
  int64_t element;  // -1: the argument itself, otherwise the index in its list
  int64_t view;     // -1: None in a list of optional tensors
};

enum class ListKind : uint8_t { kTensors, kOptionalTensors };

struct ListArgument {
  size_t argument;
  size_t length;
  ListKind kind;
};

struct ExternCall {
  c10::OperatorHandle op;
  bool keeps_no_operand;  // of ATen's own: it never stores a tensor that it is given
  bool by_fake;           // of the program: what compilation knows of its results is its fake's word
  torch::jit::Stack prototype;
  std::vector<TensorOperand> operands;
  std::vector<ListArgument> lists;
  std::vector<int64_t> results;  // slot of every returned tensor, -1: not wanted
};

struct GraphOutput {
  enum class Kind : uint8_t { kView, kInput, kObject } kind;
  int64_t index;     // of the view or input
  PyObject* object;  // owned, for kObject
};

// Everything that one running call owns; kept and used again by the next call.
struct CallState {
  Runtime runtime{};
  const struct Graph* graph = nullptr;
  std::vector<void*> data;
  std::vector<const at::Tensor*> inputs;
  std::vector<at::Tensor> tensors;  // by slot: constants, outputs, extern results
  Arena* arena = nullptr;
  uint64_t arena_serial = 0;
  std::vector<at::Tensor>* views = nullptr;  // over the arena, by view index
  torch::jit::Stack stack;
  std::exception_ptr error;
  int failed = 0;  // the number of the step that failed, from 1 on; 0: none did
  bool keeps_times = false;
  std::vector<Stamp> stamps;
  // For a profiler of torch's: the range of the step that runs, and the user's around it.
  std::unique_ptr<at::RecordFunction> range;
  std::vector<std::pair<const std::string*, std::unique_ptr<at::RecordFunction>>> ranges;
};

struct Graph {
  std::string name;
  uint64_t id = 0;
  RunFunction run = nullptr;
  bool release_gil = false;
  size_t arena_bytes = 0;
  std::vector<int64_t> input_slots;
  std::vector<int64_t> output_slots;
  std::vector<int64_t> arena_slots;
  std::vector<Slot> slots;
  std::vector<View> views;
  std::vector<at::Tensor> constants;
  std::vector<ExternCall> externs;
  std::vector<GraphOutput> outputs;
  std::vector<Step> steps;
  std::vector<Stamp> last_call;  // of those whose times were kept
  std::mutex mutex;              // of all below, and of times
  std::vector<std::unique_ptr<CallState>> idle;

  ~Graph();
};

// Fills `graph` from the Python description; throws python_error or c10::Error.
void parse_graph(PyObject* spec, Graph& graph);

// The two functions of `Runtime` that call back into the library.
int call_extern(Runtime* runtime, int64_t index);
void drop_slot(Runtime* runtime, int64_t slot);

// Times and ranges of the steps of one call (steps.cpp). `begin_steps` before it, `end_steps` behind.
void begin_steps(CallState& state);
void end_steps(CallState& state, Graph& graph);

// Whether somebody looks at this thread's calls: `keep_times` or a profiler of torch's.
bool is_watched();

// Functions for Python: (on: bool) -> None; and a launcher's times, see `Launcher.times`.
PyObject* py_keep_times(PyObject* module, PyObject* on);
PyObject* show_times(Graph& graph);
void clear_times(Graph& graph);

// A tensor for a view of a slot of the running call.
at::Tensor make_view(CallState& state, const View& view);

// A tensor over `storage` with the given metadata.
at::Tensor make_tensor(c10::Storage storage, const TensorMeta& meta, int64_t offset);

// Parts of a call of an operator, which the wrappers for GPUs make as well (operator_call.cpp).
ListKind list_kind(const c10::Argument& argument);
c10::IValue parse_constant(const c10::Argument& argument, const pybind11::handle& value);
void push_lists(const std::vector<ListArgument>& lists, torch::jit::Stack& stack);
void set_operand(c10::IValue& argument, int64_t element, at::Tensor tensor);
bool same_strides(const TensorMeta& meta, c10::IntArrayRef strides);

// Runs `body`; what it throws becomes Python's exception.
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

}  // namespace inductor
