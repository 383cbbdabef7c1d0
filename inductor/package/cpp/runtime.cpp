// Runs the graph of a package on a CPU. No Python, no libtorch.
//
// Everything that one call needs (arena, pointers) is kept in a `State`; a model has as many as calls have run at once.
// Memory of results comes from a pool of the model, to which it returns; the pool lives as long as its last block.
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "common.h"

namespace packaged {
namespace {

// -- memory -----------------------------------------------------------------------------------------------------------

struct Pool;

// Lies in front of the memory of each result. uses: of the tensors over it.
struct alignas(kAlignment) Block {
  std::shared_ptr<Pool> pool;
  size_t bytes;
  std::atomic<int> uses;
};

// Blocks that nothing uses, at most as many bytes as were once in use at the same time.
struct Pool : std::enable_shared_from_this<Pool> {
  std::mutex mutex;
  std::vector<Block*> free;
  size_t live = 0, cached = 0, most = 0;

  Block* take(size_t bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      live += bytes;
      most = std::max(most, live);
      for (size_t i = free.size(); i-- > 0;) {
        if (free[i]->bytes != bytes) continue;
        Block* found = free[i];
        free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
        cached -= bytes;
        return start(found);
      }
      while (!free.empty() && live + cached > most) drop_oldest();
    }
    void* memory = allocate(sizeof(Block) + bytes);
    if (memory == nullptr) {
      std::lock_guard<std::mutex> lock(mutex);
      live -= bytes;
      return nullptr;
    }
    Block* made = new (memory) Block;
    made->bytes = bytes;
    return start(made);
  }

  Block* start(Block* block) {
    block->pool = shared_from_this();
    block->uses = 1;
    return block;
  }

  void drop_oldest() {
    Block* oldest = free.front();
    free.erase(free.begin());
    cached -= oldest->bytes;
    destroy(oldest);
  }

  static void destroy(Block* block) {
    block->~Block();
    ::free(block);
  }

  static void give_back(Block* block) {
    if (--block->uses > 0) return;
    std::shared_ptr<Pool> pool = std::move(block->pool);  // it may end here
    block->pool = nullptr;
    std::lock_guard<std::mutex> lock(pool->mutex);
    pool->live -= block->bytes;
    pool->cached += block->bytes;
    pool->free.push_back(block);
  }

  ~Pool() {
    for (Block* block : free) destroy(block);
  }
};

// -- the model --------------------------------------------------------------------------------------------------------

// Everything that one running call needs.
struct State {
  Runtime runtime{};
  std::vector<void*> data;     // by slot
  std::vector<Block*> blocks;  // of output slots
  bool lacks_memory = false;
  char* arena = nullptr;

  ~State() { free(arena); }
};

struct Model {
  std::mutex mutex;
  std::vector<std::vector<std::unique_ptr<State>>> idle;  // by variant
  std::shared_ptr<Pool> pool = std::make_shared<Pool>();
  WeightsFile file;
};

// "" where this processor has what the kernels were compiled for.
std::string check_processor() {
  std::string other = check_machine();
  if (!other.empty()) return other;
  std::string flags = " ";
  if (FILE* file = fopen("/proc/cpuinfo", "r")) {
    char* line = nullptr;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
      if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) {
        const char* begin = strchr(line, ':');
        flags += begin ? begin + 1 : "";
        break;
      }
    }
    free(line);
    fclose(file);
  }
  for (char& letter : flags) letter = letter == '\n' || letter == '\t' ? ' ' : letter;
  flags += " ";
  std::string missing, wanted(package.processor);
  for (size_t at = 0; at < wanted.size();) {
    size_t end = std::min(wanted.find(' ', at), wanted.size());
    std::string word = wanted.substr(at, end - at);
    if (!word.empty() && flags.find(" " + word + " ") == std::string::npos) missing += " " + word;
    at = end + 1;
  }
  if (missing.empty()) return "";
  return "this processor lacks instructions that the package was compiled for:" + missing +
         "; package the model on a machine like this one, or with processor=\"x86-64-v3\" or less";
}

// -- one call ---------------------------------------------------------------------------------------------------------

// Kernels call it where they find no memory for their copies; there is no library that could do without.
int tell_lack(Runtime* runtime, int64_t) {
  static_cast<State*>(runtime->state)->lacks_memory = true;
  return 1;
}

// Gives the state back to its model, and what is no result to the pool.
struct Running {
  Model& model;
  const Tables& tables;
  std::unique_ptr<State> state;

  Running(Model& m, const Tables& t) : model(m), tables(t) {
    {
      std::lock_guard<std::mutex> lock(model.mutex);
      auto& idle = model.idle[static_cast<size_t>(&tables - package.variants)];
      if (!idle.empty()) {
        state = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (state == nullptr) make();
  }

  void make() {
    state = std::make_unique<State>();
    auto count = static_cast<size_t>(tables.slot_count);
    state->data.resize(count);
    state->blocks.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Slot& slot = tables.slots[i];
      if (slot.kind == Kind::kWeight) state->data[i] = const_cast<char*>(model.file.weights + slot.position);
    }
  }

  ~Running() {
    for (Block*& block : state->blocks) {
      if (block != nullptr) Pool::give_back(block);
      block = nullptr;
    }
    std::lock_guard<std::mutex> lock(model.mutex);
    model.idle[static_cast<size_t>(&tables - package.variants)].push_back(std::move(state));
  }

  // Pointers of all slots. False where there is no memory.
  bool place(const DynamoTensor* inputs) {
    if (tables.arena_bytes > 0 && state->arena == nullptr) {
      state->arena = static_cast<char*>(allocate(static_cast<size_t>(tables.arena_bytes)));
      if (state->arena == nullptr) return false;
    }
    for (size_t i = 0; i < state->data.size(); ++i) {
      const Slot& slot = tables.slots[i];
      if (slot.kind == Kind::kArgument) {
        state->data[i] = inputs[slot.position].data;
      } else if (slot.kind == Kind::kArena) {
        state->data[i] = state->arena + tables.numbers[slot.position];
      } else if (slot.kind == Kind::kOutput) {
        auto bytes = static_cast<size_t>(span(slot.meta, tables.numbers));
        state->blocks[i] = model.pool->take((bytes + 63) / 64 * 64);
        if (state->blocks[i] == nullptr) return false;
        state->data[i] = state->blocks[i] + 1;
      }
    }
    return true;
  }

  // Errors: a sentence.
  std::string run() {
    Runtime& runtime = state->runtime;
    runtime = Runtime{};
    runtime.data = state->data.data();
    runtime.call = &tell_lack;
    runtime.state = state.get();
    state->lacks_memory = false;
    if (tables.graph(&runtime) == 0) return "";
    if (state->lacks_memory) return "there is no memory for a GEMM or attention";
    auto value = std::to_string(runtime.error_value), limit = std::to_string(runtime.error_bound);
    if (runtime.error_code == 2) return "index out of range in self";
    if (runtime.error_code == 4) return "INDICES element is out of DATA bounds, id=" + value + " axis_dim=" + limit;
    if (runtime.error_code == 1 || runtime.error_code == 3) {
      return "index " + value + " is out of bounds for dimension with size " + limit;
    }
    return "a kernel failed with code " + std::to_string(runtime.error_code);
  }

  void fill(DynamoTensor* outputs) {
    for (int i = 0; i < package.result_count; ++i) {
      const View& view = tables.results[i];
      const Meta& meta = view.meta;
      const int64_t* sizes = tables.numbers + meta.at;
      auto* begin = static_cast<char*>(state->data[static_cast<size_t>(view.slot)]);
      Block* block = state->blocks[static_cast<size_t>(view.slot)];
      if (block != nullptr) ++block->uses;
      begin += tables.numbers[view.offset] * bytes_of(meta.dtype);
      outputs[i] = {begin, meta.dtype, meta.dims, sizes, sizes + meta.dims, block};
    }
  }
};

}  // namespace
}  // namespace packaged

using namespace packaged;

EXPORT void* dynamo_package_open(const char* folder, char* error, size_t room) {
  std::string wrong = check_processor();
  auto model = std::make_unique<Model>();
  model->idle.resize(static_cast<size_t>(package.variant_count));
  if (wrong.empty()) wrong = read_weights(model->file, std::string(folder) + "/weights.bin");
  if (wrong.empty()) return model.release();
  fail(error, room, wrong);
  return nullptr;
}

EXPORT void dynamo_package_close(void* model) { delete static_cast<Model*>(model); }

EXPORT int dynamo_package_run(void* handle, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs,
                              char* error, size_t room) {
  std::string wrong;
  const Tables* tables = checked(inputs, count, wrong);
  if (tables == nullptr) return fail(error, room, wrong, kInputs);
  Running running(*static_cast<Model*>(handle), *tables);
  if (!running.place(inputs)) return fail(error, room, "there is no memory for a call");
  wrong = running.run();
  if (!wrong.empty()) {
    int64_t code = running.state->runtime.error_code;
    return fail(error, room, wrong, code == 1 || code == 2 ? kIndex : kFailed);
  }
  running.fill(outputs);
  return 0;
}

EXPORT void dynamo_package_release(void* owner) {
  if (owner != nullptr) Pool::give_back(static_cast<Block*>(owner));
}
