// Making a node of a call that Python has recorded.
#include "replay.h"

#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/python_variable.h>

namespace lazy {
namespace {

// A call of this kind can't be followed; the trace is recorded by Python to its end.
struct Unfollowable {};

struct Learner {
  Run& run;
  Step& step;
  const Note& note;
  size_t operand = 0, made = 0;

  void argument(const IValue& given, int place, int item);
  void tensor(const at::Tensor& given);
  void outer(const TensorImpl& given);
  void free(const TensorImpl& given);
  void enter(const at::Tensor& given, int value);
  void result(const IValue& given);
  void make(const at::Tensor& given);
  void move(const at::Tensor& given);
  void drawn();
  Argument& add(Argument::Kind kind) {
    step.arguments.emplace_back();
    step.arguments.back().kind = kind;
    return step.arguments.back();
  }
  bool lifted(int place, int item) const {
    for (const auto& pair : note.lifted)
      if (pair.first == place && pair.second == item) return true;
    return false;
  }
};

bool is_constant(const IValue& value) { return same(value, value); }

void Learner::argument(const IValue& value, int place, int item) {
  const IValue given = number_in(value);
  if (given.isTensor() && given.toTensor().defined()) return tensor(given.toTensor());
  if (given.isList()) {
    const auto items = given.toListRef();
    add(Argument::List).length = items.size();
    int at = 0;
    for (const auto& part : items) argument(part, place, at++);
    return;
  }
  if (!is_constant(given)) throw Unfollowable();
  const bool number = lifted(place, item);
  add(number ? Argument::Number : Argument::Constant).constant = given;
  if (number) run.numbers.push_back(given);
}

void Learner::tensor(const at::Tensor& given) {
  const TensorImpl& impl = *given.unsafeGetTensorImpl();
  const auto found = run.names.find(&impl);
  if (note.deed == Deed::Outside) {
    if (found != run.names.end()) throw Unfollowable();
    return outer(impl);
  }
  if (found == run.names.end()) {
    if (note.deed == Deed::Like || (note.deed == Deed::Alias && note.operands.empty()))
      return free(impl);
    if (operand >= note.operands.size()) throw Unfollowable();
    return enter(given, note.operands[operand++]);
  }
  operand++;
  const Handle& handle = run.handles[found->second];
  if (handle.storage && (impl.unsafe_storage().unsafeGetStorageImpl() != handle.storage ||
                         impl.unsafe_storage().data() != handle.data))
    throw Unfollowable();  // `x.data = ...` since then
  Argument& argument = add(Argument::Handle);
  argument.handle = found->second;
  argument.value = handle.value;
  if (handle.storage) argument.meta = std::make_shared<Meta>(impl);
}

void Learner::outer(const TensorImpl& given) {
  if (given.key_set().has(c10::DispatchKey::Python)) throw Unfollowable();
  Argument& argument = add(Argument::Outer);
  argument.meta = std::make_shared<Meta>(given);
  argument.length = given.numel();
}

void Learner::free(const TensorImpl& given) {
  Object value = attribute_of(given, "_lazy");
  if (!is_lazy(given) || !value.object) throw Unfollowable();
  add(Argument::Free).facts = Object::steal(PyObject_GetAttrString(value.object, "facts"));
}

void Learner::enter(const at::Tensor& given, int value) {
  const TensorImpl& impl = *given.unsafeGetTensorImpl();
  const bool lazy = is_lazy(impl), fresh = value == static_cast<int>(run.input_of.size());
  if (!fresh && (value > static_cast<int>(run.input_of.size()) || run.input_of[value] < 0))
    throw Unfollowable();
  if (!lazy && (impl.key_set().has(c10::DispatchKey::Python) || !is_private(impl)))
    throw Unfollowable();
  Argument& argument = add(lazy ? Argument::Known : Argument::Ordinary);
  argument.handle = static_cast<int>(run.handles.size());
  argument.value = value;
  run.names[&impl] = argument.handle;
  if (fresh) run.input_of.push_back(static_cast<int>(run.inputs.size()));
  if (!lazy) {
    argument.meta = std::make_shared<Meta>(impl);
    if (fresh) run.inputs.push_back({value, given});
    return run.add(given, value);
  }
  Object known = attribute_of(impl, "_lazy");
  if (!known.object) throw Unfollowable();
  argument.facts = Object::steal(PyObject_GetAttrString(known.object, "facts"));
  Object real = Object::steal(PyObject_GetAttrString(known.object, "real"));
  if (fresh) run.inputs.push_back({value, {}, false, known, real});
  run.handles.push_back({given.unsafeGetTensorImpl(), WeakTensor(given.getIntrusivePtr()), {}, value});
}

// What a call draws is an input, after its operand.
void Learner::drawn() {
  if (note.operands.size() != 2 || note.operands[1] != static_cast<int>(run.input_of.size()))
    throw Unfollowable();
  run.inputs.push_back({note.operands[1], THPVariable_Unpack(note.drawn.object), true});
  run.input_of.push_back(static_cast<int>(run.inputs.size()) - 1);
}

void Learner::make(const at::Tensor& given) {
  const TensorImpl& impl = *given.unsafeGetTensorImpl();
  if (!is_lazy(impl) || made >= note.made.size()) throw Unfollowable();
  Result result;
  result.kind = Result::Made;
  result.handle = static_cast<int>(run.handles.size());
  result.value = note.made[made++];
  result.meta = std::make_shared<Meta>(impl);
  const int values = static_cast<int>(run.input_of.size());
  if (result.value > values || (note.deed == Deed::Record && result.value != values))
    throw Unfollowable();
  if (result.value == values) run.input_of.push_back(-1);
  run.names[&impl] = result.handle;
  run.handles.push_back({given.unsafeGetTensorImpl(), WeakTensor(given.getIntrusivePtr()), {},
                         result.value});
  step.results.push_back(std::move(result));
}

// A tensor that the trace has made gets other sizes, and stands for another value from now on.
void Learner::move(const at::Tensor& given) {
  const auto found = run.names.find(given.unsafeGetTensorImpl());
  const int values = static_cast<int>(run.input_of.size());
  if (found == run.names.end() || note.made.size() != 1 || note.made[0] != values ||
      step.arguments[0].kind != Argument::Handle || step.arguments[0].handle != found->second)
    throw Unfollowable();
  Handle& handle = run.handles[found->second];
  if (handle.storage || run.input_of[handle.value] >= 0) throw Unfollowable();
  Result result;
  result.kind = Result::Made;
  result.handle = found->second;
  result.value = handle.value = note.made[made++];
  result.meta = std::make_shared<Meta>(*given.unsafeGetTensorImpl());
  run.input_of.push_back(-1);
  step.results.push_back(std::move(result));
}

void Learner::result(const IValue& given) {
  if (given.isTensor() && given.toTensor().defined()) {
    const auto found = run.names.find(given.toTensor().unsafeGetTensorImpl());
    if (found == run.names.end()) return make(given.toTensor());
    step.results.emplace_back();
    step.results.back().kind = Result::Handle;
    step.results.back().handle = found->second;
    return;
  }
  step.results.emplace_back();
  if (given.isTensorList()) {
    const auto items = given.toListRef();
    step.results.back().kind = Result::List;
    step.results.back().length = items.size();
    for (const auto& item : items) result(item);
    return;
  }
  if (!is_constant(given)) throw Unfollowable();
  step.results.back().constant = given;
}

std::unique_ptr<Step> step_of(Run& run, const std::optional<c10::OperatorHandle>& op,
                              const std::vector<IValue>& given, Arguments results,
                              const Note& note) {
  auto step = std::make_unique<Step>();
  step->op = op;
  step->deed = note.deed;
  step->default_dtype = c10::get_default_dtype();
  step->inference = c10::InferenceMode::is_enabled();
  step->payload = note.payload;
  step->writes = note.writes;
  step->writes_ordinary = note.writes_ordinary;
  Learner learner{run, *step, note};
  int place = 0;
  for (const auto& argument : given) learner.argument(argument, place++, -1);
  if (note.deed == Deed::Fill) {
    learner.drawn();
    learner.operand++;
  }
  if (learner.operand < note.operands.size()) throw Unfollowable();
  if (note.deed == Deed::Move) {
    learner.move(results[0].toTensor());
    return step;
  }
  const bool plain = note.deed == Deed::Record || note.deed == Deed::Fill ||
                     (note.deed == Deed::Alias && !note.operands.empty());
  if (!plain) return step;
  for (const auto& result : results) learner.result(result);
  if (learner.made != note.made.size()) throw Unfollowable();
  return step;
}

}  // namespace

// Appends a node for the call at the present place, or notes that there is no way on.
void learn(const std::optional<c10::OperatorHandle>& op, const std::vector<IValue>& given,
           Arguments results, const Note& note) {
  Run& run = state.run;
  try {
    auto step = step_of(run, op, given, results, note);
    run.at->children.push_back(std::move(step));
    run.at = run.at->children.back().get();
    run.path.push_back(run.at);
    run.script->steps++;
  } catch (const Unfollowable&) {
    run.at = nullptr;
  }
}

}  // namespace lazy
