// Runs the graph of a package: weights, memory, checks of inputs. No Python, no libtorch.
//
// Everything that one call needs (arena, pointers) is kept in a `State`; a model has as many as calls have run at once.
// Memory of results comes from a pool of the model, to which it returns; the pool lives as long as its last block.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interface.h"
#include "tables.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace packaged {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kHeader = 4096;  // bytes in front of the weights
const char kMagic[] = "dynamo package weights 1\n";

// -- errors -----------------------------------------------------------------------------------------------------------

enum : int { kFailed = 1, kIndex = 2, kInputs = 3 };  // as `interface.h` tells

int fail(char* error, size_t room, const std::string& text, int code = kFailed) {
  if (room > 0) {
    size_t length = std::min(room - 1, text.size());
    memcpy(error, text.data(), length);
    error[length] = 0;
  }
  return code;
}

std::string list_of(const int64_t* numbers, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

struct Type {
  const char* name;
  int bytes;
};

// In torch's order.
const Type kTypes[] = {
    {"uint8", 1},     {"int8", 1},        {"int16", 2},        {"int32", 4},      {"int64", 8}, {"float16", 2},
    {"float32", 4},   {"float64", 8},     {"complex32", 4},    {"complex64", 8},  {"complex128", 16},
    {"bool", 1},      {"qint8", 1},       {"quint8", 1},       {"qint32", 4},     {"bfloat16", 2}};
constexpr int kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]);

std::string type_name(int dtype) {
  return dtype >= 0 && dtype < kTypeCount ? kTypes[dtype].name : "type " + std::to_string(dtype);
}

int bytes_of(int dtype) { return kTypes[dtype].bytes; }

// -- memory -----------------------------------------------------------------------------------------------------------

void* allocate(size_t bytes) {
  void* memory = nullptr;
  bool huge = bytes >= kHugePage;
  if (posix_memalign(&memory, huge ? kHugePage : kAlignment, std::max<size_t>(bytes, 1))) return nullptr;
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

struct Pool;

// Lies in front of the memory of each result. uses: of the tensors over it.
struct alignas(kAlignment) Block {
  std::shared_ptr<Pool> pool;
  size_t bytes;
  std::atomic<int> uses;
};

// Blocks that nobody uses, at most as many bytes as were once in use at the same time.
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
  void* mapped = MAP_FAILED;
  size_t mapped_bytes = 0;
  const char* weights = nullptr;

  ~Model() {
    if (mapped != MAP_FAILED) munmap(mapped, mapped_bytes);
  }
};

uint64_t turn_left(uint64_t word, int by) { return word << by | word >> (64 - by); }

uint64_t checksum(const char* bytes, size_t count) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  uint64_t lanes[4] = {1, 2, 3, 4};
  size_t at = 0;
  auto add = [&](const char* from) {
    uint64_t words[4];
    memcpy(words, from, sizeof(words));
    for (int i = 0; i < 4; ++i) lanes[i] = turn_left((lanes[i] ^ words[i]) * kFactor, 29);
  };
  for (; at + 32 <= count; at += 32) add(bytes + at);
  char rest[32] = {};
  if (at < count) memcpy(rest, bytes + at, count - at);
  add(rest);
  uint64_t sum = count;
  for (uint64_t lane : lanes) sum = turn_left((sum ^ lane) * kFactor, 31);
  return sum;
}

// The first line of the weights' file: magic, id, bytes, checksum.
std::string read_weights(Model& model, const std::string& path) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return path + ": " + strerror(errno) + "; the package is not whole";
  struct stat facts {};
  fstat(file, &facts);
  std::string wrong;
  auto size = static_cast<int64_t>(facts.st_size);
  if (size >= kHeader) {
    model.mapped_bytes = static_cast<size_t>(size);
    model.mapped = mmap(nullptr, model.mapped_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (model.mapped == MAP_FAILED) wrong = path + ": it can't be mapped into memory: " + strerror(errno);
  }
  close(file);
  if (!wrong.empty()) return wrong;
  const char* text = static_cast<const char*>(model.mapped);
  if (size < kHeader || memcmp(text, kMagic, sizeof(kMagic) - 1) != 0) {
    return path + " is no file of weights of a package, or it is damaged";
  }
  char id[65] = {};
  long long bytes = 0;
  unsigned long long sum = 0;
  std::string head(text + sizeof(kMagic) - 1, 256);
  if (sscanf(head.c_str(), "%64s %lld %llx", id, &bytes, &sum) != 3) return path + " is damaged: its first lines are";
  if (strcmp(id, package.id) != 0) return path + " holds the weights of another package";
  if (bytes != package.weight_bytes || size != kHeader + bytes) {
    return path + " is damaged: it has " + std::to_string(size) + " bytes, not " +
           std::to_string(kHeader + package.weight_bytes);
  }
  model.weights = text + kHeader;
  if (checksum(model.weights, static_cast<size_t>(bytes)) != sum) {
    return path + " is damaged: its contents are not what was written";
  }
  return "";
}

// "" where this processor has what the kernels were compiled for.
std::string check_processor() {
  struct utsname system {};
  uname(&system);
  if (strcmp(system.machine, package.machine) != 0) {
    return std::string("the package was made for processors of kind ") + package.machine + ", this is " + system.machine;
  }
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

// From the first to the last byte of a tensor.
int64_t span(const Meta& meta, const int64_t* numbers) {
  const int64_t *sizes = numbers + meta.at, *strides = sizes + meta.dims;
  int64_t last = 0;
  for (int i = 0; i < meta.dims; ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * bytes_of(meta.dtype);
}

std::string told(const DynamoTensor& tensor) {
  return type_name(tensor.dtype) + " " + list_of(tensor.sizes, tensor.dims) + " with strides " +
         list_of(tensor.strides, tensor.dims);
}

std::string told(const Meta& meta, const int64_t* numbers) {
  return type_name(meta.dtype) + " " + list_of(numbers + meta.at, meta.dims) + " with strides " +
         list_of(numbers + meta.at + meta.dims, meta.dims);
}

bool fits(const DynamoTensor& tensor, const Meta& meta, const int64_t* numbers) {
  const int64_t *sizes = numbers + meta.at, *strides = sizes + meta.dims;
  if (tensor.dtype != meta.dtype || tensor.dims != meta.dims) return false;
  bool empty = false, dense = true;
  for (int i = 0; i < meta.dims; ++i) {
    if (tensor.sizes[i] != sizes[i]) return false;
    empty |= sizes[i] == 0;
    dense &= sizes[i] == 1 || tensor.strides[i] == strides[i];
  }
  return empty || dense;
}

// The variant for these inputs. Errors: null, and `wrong` tells which input fits none.
const Tables* variant_for(const DynamoTensor* inputs, std::string& wrong) {
  int best = -1;  // the first input that does not fit the variant that fits most
  for (int v = 0; v < package.variant_count; ++v) {
    const Tables& tables = package.variants[v];
    int i = 0;
    while (i < package.argument_count && fits(inputs[i], tables.arguments[i].meta, tables.numbers)) ++i;
    if (i == package.argument_count) return &tables;
    best = std::max(best, i);
  }
  wrong = "input " + std::to_string(best) + " (" + package.variants[0].arguments[best].name + ") is " +
          told(inputs[best]) + "; the package was made for ";
  for (int v = 0; v < package.variant_count; ++v) {
    const Tables& tables = package.variants[v];
    wrong += (v ? ", or " : "") + told(tables.arguments[best].meta, tables.numbers);
  }
  return nullptr;
}

// Data is there, aligned, and inputs that the model writes share no memory with others.
std::string check_memory(const Tables& tables, const DynamoTensor* inputs) {
  for (int i = 0; i < package.argument_count; ++i) {
    const Argument& argument = tables.arguments[i];
    auto begin = reinterpret_cast<uintptr_t>(inputs[i].data);
    auto end = begin + static_cast<uintptr_t>(span(argument.meta, tables.numbers));
    std::string name = std::string("input ") + argument.name;
    if (end == begin) continue;
    if (begin == 0) return name + " has no data";
    if (begin % static_cast<uintptr_t>(std::min(bytes_of(argument.meta.dtype), 8))) {
      return name + " does not begin at a multiple of its elements' size";
    }
    for (int j = 0; j < package.argument_count && argument.written; ++j) {
      auto other = reinterpret_cast<uintptr_t>(inputs[j].data);
      auto other_end = other + static_cast<uintptr_t>(span(tables.arguments[j].meta, tables.numbers));
      if (i != j && begin < other_end && other < end) {
        return name + ", which the model writes, shares memory with " + tables.arguments[j].name;
      }
    }
  }
  return "";
}

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
      if (slot.kind == Kind::kWeight) state->data[i] = const_cast<char*>(model.weights + slot.position);
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
    if (state->lacks_memory) return "there is no memory for a matrix product or attention";
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

EXPORT uint64_t dynamo_package_checksum(const void* bytes, size_t count) {
  return checksum(static_cast<const char*>(bytes), count);
}

EXPORT void dynamo_package_counts(size_t* inputs, size_t* outputs) {
  *inputs = static_cast<size_t>(package.argument_count);
  *outputs = static_cast<size_t>(package.result_count);
}

EXPORT const char* dynamo_package_input_name(size_t index) { return package.variants[0].arguments[index].name; }

EXPORT void* dynamo_package_open(const char* folder, char* error, size_t room) {
  std::string wrong = check_processor();
  auto model = std::make_unique<Model>();
  model->idle.resize(static_cast<size_t>(package.variant_count));
  if (wrong.empty()) wrong = read_weights(*model, std::string(folder) + "/weights.bin");
  if (wrong.empty()) return model.release();
  fail(error, room, wrong);
  return nullptr;
}

EXPORT void dynamo_package_close(void* model) { delete static_cast<Model*>(model); }

EXPORT int dynamo_package_run(void* handle, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs,
                              char* error, size_t room) {
  if (count != static_cast<size_t>(package.argument_count)) {
    return fail(error, room, std::string(package.name) + " takes " + std::to_string(package.argument_count) +
                                 " inputs, not " + std::to_string(count), kInputs);
  }
  std::string wrong;
  const Tables* tables = variant_for(inputs, wrong);
  if (tables != nullptr) wrong = check_memory(*tables, inputs);
  if (!wrong.empty()) return fail(error, room, wrong, kInputs);
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
