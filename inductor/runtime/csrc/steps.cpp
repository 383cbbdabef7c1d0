// Who looks at the steps of a call: `keep_times` counts and times them, a profiler of torch's gets a
// range for each. Where neither is on, a graph's steps cost one test of a pointer each.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "launcher.h"

namespace inductor {
namespace {

std::atomic<int> keepers{0};

int64_t now() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

std::unique_ptr<at::RecordFunction> make_range(at::RecordScope scope, const std::string& name) {
  auto range = std::make_unique<at::RecordFunction>(scope);
  if (range->isActive()) range->before(name);
  return range;
}

// Closes and opens ranges of the user's until those are open that are wanted.
void change_ranges(CallState& state, const std::vector<std::string>& wanted) {
  auto& open = state.ranges;
  size_t same = 0;
  while (same < open.size() && same < wanted.size() && *open[same].first == wanted[same]) ++same;
  while (open.size() > same) open.pop_back();  // the innermost first
  for (; same < wanted.size(); ++same) {
    open.emplace_back(&wanted[same], make_range(at::RecordScope::USER_SCOPE, wanted[same]));
  }
}

void begin_step(Runtime* runtime, int64_t index) {
  static const std::vector<std::string> none;
  CallState& state = *runtime->state;
  if (state.keeps_times) state.stamps.push_back({index, now()});
  state.range.reset();
  const auto& steps = state.graph->steps;
  bool is_step = index >= 0 && static_cast<size_t>(index) < steps.size() && at::hasCallbacks();
  change_ranges(state, is_step ? steps[index].ranges : none);
  if (is_step) state.range = make_range(at::RecordScope::FUNCTION, steps[index].name);
}

}  // namespace

// What the dispatcher asks for each operator: `hasCallbacks` takes a lock.
bool is_watched() {
  return keepers.load(std::memory_order_relaxed) > 0 ||
         at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

void begin_steps(CallState& state) {
  state.keeps_times = keepers.load(std::memory_order_relaxed) > 0;
  state.runtime.step = &begin_step;
  state.stamps.clear();
}

void end_steps(CallState& state, Graph& graph) {
  state.range.reset();
  change_ranges(state, {});
  state.runtime.step = nullptr;
  if (!state.keeps_times) return;
  if (state.stamps.empty() || state.stamps.back().index >= 0) state.stamps.push_back({-1, now()});
  std::lock_guard<std::mutex> lock(graph.mutex);
  for (size_t i = 0; i + 1 < state.stamps.size(); ++i) {
    auto index = static_cast<size_t>(state.stamps[i].index);
    if (state.stamps[i].index < 0 || index >= graph.steps.size()) continue;
    Step& step = graph.steps[index];
    int64_t taken = state.stamps[i + 1].nanoseconds - state.stamps[i].nanoseconds;
    step.least = step.calls == 0 ? taken : std::min(step.least, taken);
    step.nanoseconds += taken;
    ++step.calls;
  }
  graph.last_call.swap(state.stamps);
}

PyObject* py_keep_times(PyObject*, PyObject* on) {
  int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  keepers += truth ? 1 : -1;
  Py_RETURN_NONE;
}

PyObject* show_times(Graph& graph) {
  std::lock_guard<std::mutex> lock(graph.mutex);
  pybind11::list steps;
  for (const Step& step : graph.steps) {
    steps.append(pybind11::make_tuple(step.calls, step.nanoseconds, step.least));
  }
  pybind11::list stamps;
  for (const Stamp& stamp : graph.last_call) {
    stamps.append(pybind11::make_tuple(stamp.index, stamp.nanoseconds));
  }
  return pybind11::make_tuple(steps, stamps).release().ptr();
}

void clear_times(Graph& graph) {
  std::lock_guard<std::mutex> lock(graph.mutex);
  for (Step& step : graph.steps) step.calls = step.nanoseconds = step.least = 0;
  graph.last_call.clear();
}

}  // namespace inductor
