// A step of a program that was seen before is followed operator by operator, without Python.
//
// `Script` is a tree of what traces have done: each path from its root is the calls of one trace, in
// their order. The first time, Python records (`lazy.record`) and each call becomes a node. Later,
// while the calls are those of a path, `Run` goes along it: a call that fits a node needs no rule, no
// shapes and no names, as the node has them. A call that fits none ends the run: Python takes the
// calls over (`lazy.replay`), and goes on recording from there.
//
// Tensors of a run are numbered in the order in which they are met (`handle`), and so are the values
// of its trace (`value`); several tensors may stand for one value. All state belongs to the GIL.
#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

namespace lazy {

using c10::IValue;
using c10::TensorImpl;
using WeakTensor = c10::weak_intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>;
using Arguments = c10::ArrayRef<IValue>;

// A Python object that is kept; to be destroyed with the GIL.
struct Object {
  PyObject* object = nullptr;
  Object() = default;
  explicit Object(PyObject* borrowed) : object(borrowed) { Py_XINCREF(object); }
  static Object steal(PyObject* owned) {
    Object made;
    made.object = owned;
    return made;
  }
  Object(const Object& other) : Object(other.object) {}
  Object(Object&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Object& operator=(Object other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Object() { Py_XDECREF(object); }
};

// What a tensor has to be like.
struct Meta {
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::Device device{c10::kCPU};
  int64_t offset = 0;
  size_t bytes = 0;
  bool resizable = false;
  c10::Allocator* allocator = nullptr;
  std::vector<int64_t> sizes, strides;

  explicit Meta(const TensorImpl& tensor);
  bool fits(const TensorImpl& tensor) const;
};

// One argument, or one item of a list; a list stands before its items.
struct Argument {
  enum Kind : uint8_t {
    Constant,  // equal to `constant`
    Number,    // any number of the kind of `constant` but 0 and 1: an input of the graph
    List,      // of `length` items
    Handle,    // a tensor of the run
    Ordinary,  // an ordinary tensor that becomes an input
    Known,     // a lazy tensor that has its value, and becomes an input
    Outer,     // an ordinary tensor of a call that runs at once
    Free,      // a lazy tensor that has its value, and stays outside of the trace
  };
  Kind kind = Constant;
  int handle = -1, value = -1;
  size_t length = 0;
  IValue constant;
  std::shared_ptr<Meta> meta;
  Object facts;
};

// One result, or one item of a list.
struct Result {
  enum Kind : uint8_t { Constant, List, Handle, Made };
  Kind kind = Constant;
  int handle = -1, value = -1;
  size_t length = 0;
  IValue constant;
  std::shared_ptr<Meta> meta;
};

// What a call does; the names are those of `lazy.replay`.
enum class Deed : uint8_t { Record, Alias, Outside, Fill, Like, Skip, Move };

// One call. payload: what Python needs to put it into a trace. writes: the path up to here writes
// into inputs; writes_ordinary: into ordinary tensors.
struct Step {
  std::optional<c10::OperatorHandle> op;  // none: `TensorImpl::detach`, which is no operator
  Deed deed = Deed::Record;
  std::vector<Argument> arguments;
  std::vector<Result> results;
  caffe2::TypeMeta default_dtype;
  bool inference = false, writes = false, writes_ordinary = false;
  Object payload;
  std::vector<std::unique_ptr<Step>> children;
  // Operators before which the trace ended here, with (reason, whether it is a look).
  std::vector<std::pair<c10::OperatorHandle, Object>> cuts;
  // What is run at the end of a trace that ends here, and which of its inputs share memory.
  Object end;
  std::vector<int> sharing;
};

struct Script {
  Step root;
  size_t steps = 0;
};

// A tensor of the run. weak: of lazy ones; strong: of ordinary ones, whose memory is read at the end.
struct Handle {
  TensorImpl* tensor;
  WeakTensor weak;
  at::Tensor strong;
  int value;
  const c10::StorageImpl* storage = nullptr;
  const void* data = nullptr;
};

// An input of the trace: an ordinary tensor, or what was drawn, or a Python `Value`.
struct Input {
  int value;
  at::Tensor tensor;
  bool drawn = false;
  Object known, real;
};

// Where the present trace is. on: it is followed here; otherwise Python records it, and `at` is
// where new nodes go; null where that can't be followed later.
struct Run {
  Step* at = nullptr;
  Script* script = nullptr;
  bool on = false;
  std::vector<Step*> path;
  std::vector<Handle> handles;
  std::vector<Input> inputs;
  std::vector<int> input_of;  // by value: its place in inputs, or -1
  std::vector<IValue> numbers;
  std::unordered_map<const TensorImpl*, int> names;  // while Python records
  // Of the ordinary tensors among the first `counted` handles: few runs are asked for them.
  std::unordered_set<const void*> storages;
  size_t counted = 0;

  void clear();
  void add(const at::Tensor& ordinary, int value);
  void drop(size_t handles);
  void start(Script* of, bool follow);
  bool reads(const TensorImpl& tensor);
  std::vector<int> sharing() const;
};

// What Python said of the call that it has recorded.
struct Note {
  bool given = false;
  Deed deed = Deed::Skip;
  Object payload, drawn;
  std::vector<int> operands, made;
  std::vector<std::pair<int, int>> lifted;
  bool writes = false, writes_ordinary = false;
  unsigned long thread = 0;
};

struct State {
  Run run;
  Note note;
  PyObject* mode = nullptr;       // the dispatch mode whose calls are followed
  PyTypeObject* lazy = nullptr;   // the class of lazy tensors
  PyObject* parameter = nullptr;  // torch.nn.Parameter
  PyObject* exposed = nullptr;    // dict: storages that others see, by address
  PyObject* wrap = nullptr;       // Value -> lazy tensor
  PyObject* known = nullptr;      // tensor -> lazy tensor that has it as its value
};

extern State state;

// The call of this thread that is on its way to Python. taken: Python has it.
struct Pending {
  bool waiting = false;
  std::optional<c10::OperatorHandle> op;
};

extern thread_local Pending pending;

// replay.cpp
bool follow(const std::optional<c10::OperatorHandle>& op, torch::jit::Stack& stack);
at::Tensor wrapped(const Meta& meta);
bool is_lazy(const TensorImpl& tensor);
Object attribute_of(const TensorImpl& tensor, const char* name);
bool is_private(const TensorImpl& tensor);
bool same(const IValue& one, const IValue& other);
IValue number_in(const IValue& given);

// learn.cpp
void learn(const std::optional<c10::OperatorHandle>& op, const std::vector<IValue>& given,
           Arguments results, const Note& note);

// interpreter.cpp
void install();
void uninstall();
bool is_ours();

}  // namespace lazy
