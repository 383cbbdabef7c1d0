// Following a known trace: does a call fit, and what does it return.
#include "replay.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace lazy {

State state;
thread_local Pending pending;

Meta::Meta(const TensorImpl& tensor)
    : keys(tensor.key_set()), dtype(tensor.dtype()), device(tensor.device()),
      offset(tensor.storage_offset()), sizes(tensor.sizes().vec()), strides(tensor.strides().vec()) {
  if (!tensor.has_storage()) return;
  const auto& storage = tensor.unsafe_storage();
  bytes = storage.nbytes();
  resizable = storage.resizable();
  allocator = storage.allocator();
}

bool Meta::fits(const TensorImpl& tensor) const {
  return tensor.key_set() == keys && tensor.dtype() == dtype && tensor.device() == device &&
         !tensor.has_symbolic_sizes_strides() && tensor.storage_offset() == offset &&
         tensor.sizes() == c10::IntArrayRef(sizes) && tensor.strides() == c10::IntArrayRef(strides);
}

bool is_lazy(const TensorImpl& tensor) {
  if (!tensor.key_set().has(c10::DispatchKey::Python)) return false;
  PyObject* object = tensor.pyobj_slot()->load_pyobj();
  return object != nullptr && Py_TYPE(object) == state.lazy;
}

Object attribute_of(const TensorImpl& tensor, const char* name) {
  PyObject* object = tensor.pyobj_slot()->load_pyobj();
  Object found = Object::steal(object ? PyObject_GetAttrString(object, name) : nullptr);
  if (!found.object) PyErr_Clear();
  return found;
}

// False for memory that others may write without an operation; see `lazy.values.is_private`.
bool is_private(const TensorImpl& tensor) {
  if (!tensor.has_storage() || !tensor.unsafe_storage().resizable()) return false;
  if (PyDict_GET_SIZE(state.exposed) == 0) return true;
  Object key = Object::steal(
      PyLong_FromVoidPtr(tensor.unsafe_storage().unsafeGetStorageImpl()));
  return key.object && PyDict_Contains(state.exposed, key.object) == 0;
}

bool same(const IValue& one, const IValue& other) {
  if (one.isInt()) return other.isInt() && one.toInt() == other.toInt();
  if (one.isDouble()) {  // bits: 0.0 and -0.0 are not the same, a NaN is itself
    if (!other.isDouble()) return false;
    const double first = one.toDouble(), second = other.toDouble();
    return std::memcmp(&first, &second, sizeof first) == 0;
  }
  if (one.isBool()) return other.isBool() && one.toBool() == other.toBool();
  if (one.isNone()) return other.isNone();
  if (one.isString()) return other.isString() && one.toStringRef() == other.toStringRef();
  if (one.isDevice()) return other.isDevice() && one.toDevice() == other.toDevice();
  if (one.isTensor())
    return other.isTensor() && !one.toTensor().defined() && !other.toTensor().defined();
  return false;
}

// `x * 2` comes as a tensor with a number in it, which Python gets as a number; other values are
// returned as they are.
IValue number_in(const IValue& given) {
  if (!given.isTensor() || !given.toTensor().defined()) return given;
  const TensorImpl& tensor = *given.toTensor().unsafeGetTensorImpl();
  if (!tensor.is_wrapped_number() || tensor.device() != c10::kCPU) return given;
  const void* data = tensor.data();
  if (tensor.dtype() == caffe2::TypeMeta::Make<double>()) return *static_cast<const double*>(data);
  if (tensor.dtype() == caffe2::TypeMeta::Make<int64_t>()) return *static_cast<const int64_t*>(data);
  if (tensor.dtype() == caffe2::TypeMeta::Make<bool>()) return *static_cast<const bool*>(data);
  return given;
}

namespace {

// Goes through the arguments of a call beside those of a step.
struct Matcher {
  Run& run;
  const Step& step;
  size_t place = 0;

  bool value(const IValue& given);
  bool handle(const Argument& wanted, const TensorImpl* tensor);
  bool enter(const Argument& wanted, const at::Tensor& tensor);
  bool ordinary(const Argument& wanted, const at::Tensor& tensor);
  bool known(const Argument& wanted, const at::Tensor& tensor);
  bool outer(const Argument& wanted, const TensorImpl& tensor);
};

bool Matcher::handle(const Argument& wanted, const TensorImpl* tensor) {
  const Handle& handle = run.handles[wanted.handle];
  if (handle.tensor != tensor) return false;
  if (!handle.storage) return true;
  // `x.data = ...` changes an ordinary tensor without an operation.
  return wanted.meta->fits(*tensor) &&
         tensor->unsafe_storage().unsafeGetStorageImpl() == handle.storage &&
         tensor->unsafe_storage().data() == handle.data;
}

bool Matcher::ordinary(const Argument& wanted, const at::Tensor& tensor) {
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number() || !wanted.meta->fits(*impl) || !is_private(*impl)) return false;
  const auto& storage = impl->unsafe_storage();
  if (wanted.value < static_cast<int>(run.input_of.size())) {  // other tensors of that memory
    const int place = run.input_of[wanted.value];
    if (place < 0 || !run.inputs[place].tensor.defined()) return false;
    const TensorImpl* first = run.inputs[place].tensor.unsafeGetTensorImpl();
    if (first->unsafe_storage().unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) return false;
  } else {
    run.input_of.push_back(static_cast<int>(run.inputs.size()));
    run.inputs.push_back({wanted.value, tensor});
  }
  run.add(tensor, wanted.value);
  return true;
}

bool Matcher::known(const Argument& wanted, const at::Tensor& tensor) {
  const TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!is_lazy(impl)) return false;
  Object value = attribute_of(impl, "_lazy");
  if (!value.object) return false;
  Object facts = Object::steal(PyObject_GetAttrString(value.object, "facts"));
  Object real = Object::steal(PyObject_GetAttrString(value.object, "real"));
  if (facts.object != wanted.facts.object || !real.object || real.object == Py_None) return false;
  if (wanted.kind == Argument::Free) return true;
  if (!is_private(*THPVariable_Unpack(real.object).unsafeGetTensorImpl())) return false;
  if (wanted.value < static_cast<int>(run.input_of.size())) {
    const int place = run.input_of[wanted.value];
    if (place < 0 || run.inputs[place].known.object != value.object) return false;
  } else {
    run.input_of.push_back(static_cast<int>(run.inputs.size()));
    run.inputs.push_back({wanted.value, {}, false, value, real});
  }
  run.handles.push_back({tensor.unsafeGetTensorImpl(), WeakTensor(tensor.getIntrusivePtr()), {},
                         wanted.value});
  return true;
}

bool Matcher::outer(const Argument& wanted, const TensorImpl& tensor) {
  return tensor.key_set() == wanted.meta->keys && tensor.device() == wanted.meta->device &&
         (tensor.numel() <= 1) == (wanted.length <= 1) && !run.reads(tensor);
}

bool Matcher::enter(const Argument& wanted, const at::Tensor& tensor) {
  switch (wanted.kind) {
    case Argument::Handle: return handle(wanted, tensor.unsafeGetTensorImpl());
    case Argument::Ordinary: return ordinary(wanted, tensor);
    case Argument::Known:
    case Argument::Free: return known(wanted, tensor);
    case Argument::Outer: return outer(wanted, *tensor.unsafeGetTensorImpl());
    default: return false;
  }
}

bool Matcher::value(const IValue& value) {
  if (place >= step.arguments.size()) return false;
  const Argument& wanted = step.arguments[place++];
  if (wanted.kind != Argument::Constant && wanted.kind != Argument::Number && value.isTensor())
    return value.toTensor().defined() && enter(wanted, value.toTensor());
  const IValue given = number_in(value);
  if (wanted.kind == Argument::Constant) return same(given, wanted.constant);
  if (wanted.kind == Argument::List) {
    if (!given.isList()) return false;
    const auto items = given.toListRef();
    if (items.size() != wanted.length) return false;
    for (const auto& item : items)
      if (!this->value(item)) return false;
    return true;
  }
  if (wanted.kind != Argument::Number) return false;
  if (given.isDouble() ? !wanted.constant.isDouble() : !(given.isInt() && wanted.constant.isInt()))
    return false;
  const double number = given.isDouble() ? given.toDouble() : static_cast<double>(given.toInt());
  if (number == 0 || number == 1) return false;
  run.numbers.push_back(given);
  return true;
}

bool fits(Run& run, const Step& step, Arguments given) {
  if (step.inference != c10::InferenceMode::is_enabled()) return false;
  if (step.default_dtype != c10::get_default_dtype()) return false;
  const size_t handles = run.handles.size(), inputs = run.inputs.size();
  const size_t values = run.input_of.size(), numbers = run.numbers.size();
  Matcher matcher{run, step};
  bool good = true;
  for (size_t i = 0; good && i < given.size(); ++i) good = matcher.value(given[i]);
  if (good && matcher.place == step.arguments.size()) return true;
  run.drop(handles);
  run.inputs.erase(run.inputs.begin() + inputs, run.inputs.end());
  run.input_of.resize(values);
  run.numbers.erase(run.numbers.begin() + numbers, run.numbers.end());
  return false;
}

at::Tensor tensor_of(const Handle& handle) {
  return at::Tensor(c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(handle.tensor));
}

IValue result(Run& run, const Step& step, size_t& place) {
  const Result& wanted = step.results[place++];
  switch (wanted.kind) {
    case Result::Constant: return wanted.constant;
    case Result::Handle: return tensor_of(run.handles[wanted.handle]);
    case Result::Made: {
      at::Tensor made = wrapped(*wanted.meta);
      if (wanted.value == static_cast<int>(run.input_of.size())) run.input_of.push_back(-1);
      run.handles.push_back({made.unsafeGetTensorImpl(), WeakTensor(made.getIntrusivePtr()), {},
                             wanted.value});
      return made;
    }
    case Result::List: break;
  }
  c10::List<at::Tensor> list;
  for (size_t i = 0; i < wanted.length; ++i) list.push_back(result(run, step, place).toTensor());
  return list;
}

// Runs an operator as it is, below our mode.
void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  c10::impl::ExcludeDispatchKeyGuard below(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  op.callBoxed(stack);
}

// An operator that draws: it runs at once, on memory of its own.
void draw(Run& run, const Step& step, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const at::Tensor operand = stack[stack.size() - count].toTensor();
  at::Tensor empty;
  {
    c10::impl::ExcludeDispatchKeyGuard below(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    empty = at::empty_strided(operand.sizes(), operand.strides(),
                              at::TensorOptions(operand.dtype()).device(operand.device()));
  }
  stack[stack.size() - count] = std::move(empty);
  call(op, stack);
  at::Tensor drawn = stack.back().toTensor();
  stack.pop_back();
  if (step.deed == Deed::Fill) {
    run.inputs.push_back({static_cast<int>(run.input_of.size()), drawn, true});
    run.input_of.push_back(static_cast<int>(run.inputs.size()) - 1);
    stack.emplace_back(operand);
    return;
  }
  Object real = Object::steal(THPVariable_Wrap(drawn));
  Object made = Object::steal(PyObject_CallOneArg(state.known, real.object));
  if (!made.object) throw python_error();
  stack.emplace_back(THPVariable_Unpack(made.object));
}

// A second lazy tensor of a value that is no part of the trace.
void alias_of_known(torch::jit::Stack& stack, size_t count) {
  const at::Tensor operand = stack[stack.size() - count].toTensor();
  Object value = attribute_of(*operand.unsafeGetTensorImpl(), "_lazy");
  Object made = Object::steal(PyObject_CallOneArg(state.wrap, value.object));
  if (!made.object) throw python_error();
  torch::jit::drop(stack, count);
  stack.emplace_back(THPVariable_Unpack(made.object));
}

// A tensor of the run gets other sizes, and stands for another value from now on.
void move(Run& run, const Result& wanted, torch::jit::Stack& stack, size_t count) {
  Handle& handle = run.handles[wanted.handle];
  const Meta& meta = *wanted.meta;
  handle.tensor->set_sizes_and_strides(meta.sizes, meta.strides, meta.offset);
  handle.value = wanted.value;
  run.input_of.push_back(-1);
  at::Tensor moved = tensor_of(handle);
  torch::jit::drop(stack, count);
  stack.emplace_back(std::move(moved));
}

// `TensorImpl::detach` of an ordinary tensor that is no part of the trace.
void detach(torch::jit::Stack& stack) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::Python);
  const at::Tensor operand = stack.back().toTensor();
  stack.back() = at::Tensor(operand.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

void perform(Run& run, Step& step, torch::jit::Stack& stack, size_t count) {
  if (step.deed == Deed::Outside && !step.op) {
    detach(stack);
  } else if (step.deed == Deed::Outside) {
    call(*step.op, stack);
  } else if (step.deed == Deed::Fill || step.deed == Deed::Like) {
    draw(run, step, *step.op, stack);
  } else if (step.deed == Deed::Move) {
    move(run, step.results[0], stack, count);
  } else if (step.arguments.size() && step.arguments[0].kind == Argument::Free) {
    alias_of_known(stack, count);
  } else {
    const size_t first = stack.size() - count;
    std::vector<IValue> results;
    for (size_t place = 0; place < step.results.size();) results.push_back(result(run, step, place));
    stack.erase(stack.begin() + first, stack.end());
    for (auto& item : results) stack.push_back(std::move(item));
  }
  run.path.push_back(&step);
  run.at = &step;
}

bool passes(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  static const auto fresh = c10::Dispatcher::singleton().findSchemaOrThrow("aten::lift_fresh", "");
  if (op == fresh)  // its result is its operand
    return !stack.back().toTensor().key_set().has(c10::DispatchKey::Python);
  if (op.operator_name().name.rfind("profiler::", 0) != 0) return false;
  call(op, stack);
  return true;
}

}  // namespace

// A lazy tensor without a Python value.
at::Tensor wrapped(const Meta& meta) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), meta.bytes,
                       c10::DataPtr(nullptr, meta.device), meta.allocator, meta.resizable);
  auto made = at::Tensor(c10::make_intrusive<TensorImpl>(std::move(storage), meta.keys, meta.dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, meta.offset);
  PyObject* object = THPVariable_Wrap(made, state.lazy);
  if (!object) throw python_error();
  Py_DECREF(object);
  made.unsafeGetTensorImpl()->set_python_dispatch(true);
  TORCH_CHECK(made.key_set() == meta.keys, "lazy: a followed call has made another kind of tensor");
  return made;
}

// Does what a known call does. False where no node fits: the stack is as it was.
bool follow(const std::optional<c10::OperatorHandle>& op, torch::jit::Stack& stack) {
  Run& run = state.run;
  if (op && passes(*op, stack)) return true;
  const size_t count = op ? op->schema().arguments().size() : 1;
  const Arguments given = torch::jit::last(stack, count);
  for (auto& child : run.at->children) {
    if (child->op != op || !fits(run, *child, given)) continue;
    perform(run, *child, stack, count);
    return true;
  }
  return false;
}

}  // namespace lazy
