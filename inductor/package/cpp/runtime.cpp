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
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interface.h"
#include "tables.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace package {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kHeader = 4096;  // bytes in front of the weights
constexpr size_t kMostBound = 256;
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

// What `DynamoTensor.owner` points to.
struct Owner {
  Block* block;  // or null: `result` is of `aten.cpp`
  void* result;
};

// -- sizes known at a call --------------------------------------------------------------------------------------------

// The numbers at some sizes, and how large the arena is. sizes: what kernels read.
struct Bound {
  std::vector<int64_t> sizes, filled;
  const int64_t* numbers = tables.numbers;
  int64_t arena_bytes = tables.arena_bytes;
};

// Places in the arena: the largest first, each at the lowest byte at which it meets no other that lives at the same
// time. As `scheduler/memory.py: pack_arena`.
int64_t pack_arena(int64_t* numbers) {
  struct Placed {
    int64_t begin, end;
    int first, last;
  };
  std::vector<int> order(static_cast<size_t>(tables.life_count));
  for (int i = 0; i < tables.life_count; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return numbers[tables.lives[a].bytes] > numbers[tables.lives[b].bytes];
  });
  std::vector<Placed> placed;
  int64_t total = 0;
  for (int at : order) {
    const Life& life = tables.lives[at];
    int64_t size = std::max<int64_t>(numbers[life.bytes], 1);
    size = (size + 63) / 64 * 64;
    int64_t begin = 0;
    for (const Placed& other : placed) {  // by their begins
      if (other.last < life.first || other.first > life.last) continue;
      if (begin + size <= other.begin) break;
      begin = std::max(begin, other.end);
    }
    Placed made{begin, begin + size, life.first, life.last};
    auto before = [](const Placed& a, const Placed& b) { return a.begin < b.begin; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), made, before), made);
    numbers[life.place] = begin;
    total = std::max(total, begin + size);
  }
  return total;
}

std::shared_ptr<Bound> bind(std::vector<int64_t> sizes) {
  auto made = std::make_shared<Bound>();
  made->filled.assign(tables.numbers, tables.numbers + tables.number_count);
  tables.fill(sizes.data(), made->filled.data());
  made->arena_bytes = pack_arena(made->filled.data());
  made->numbers = made->filled.data();
  made->sizes = std::move(sizes);
  return made;
}

// -- the model --------------------------------------------------------------------------------------------------------

struct State {
  Call call;
  std::vector<void*> data;
  std::vector<const void*> arguments;
  std::vector<Block*> blocks;  // of output slots
  char* arena = nullptr;
  size_t arena_bytes = 0;

  ~State() { free(arena); }
};

struct Model {
  std::mutex mutex;
  std::vector<std::unique_ptr<State>> idle;
  std::map<std::vector<int64_t>, std::shared_ptr<Bound>> bound;
  std::shared_ptr<Bound> fixed = std::make_shared<Bound>();
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
  if (strcmp(id, tables.id) != 0) return path + " holds the weights of another package";
  if (bytes != tables.weight_bytes || size != kHeader + bytes) {
    return path + " is damaged: it has " + std::to_string(size) + " bytes, not " +
           std::to_string(kHeader + tables.weight_bytes);
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
  if (strcmp(system.machine, tables.machine) != 0) {
    return std::string("the package was made for processors of kind ") + tables.machine + ", this is " + system.machine;
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
  std::string missing, wanted(tables.processor);
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

std::string check_input(int at, const DynamoTensor& tensor, const int64_t* numbers) {
  const Argument& argument = tables.arguments[at];
  const Meta& meta = argument.meta;
  const int64_t *sizes = numbers + meta.at, *strides = sizes + meta.dims;
  bool fits = tensor.dtype == meta.dtype && tensor.dims == meta.dims;
  bool empty = false;
  for (int i = 0; fits && i < meta.dims; ++i) {
    fits = tensor.sizes[i] == sizes[i];
    empty |= sizes[i] == 0;
  }
  for (int i = 0; fits && !empty && i < meta.dims; ++i) fits = sizes[i] == 1 || tensor.strides[i] == strides[i];
  std::string name = "input " + std::to_string(at) + " (" + argument.name + ")";
  if (!fits) {
    return name + " is " + told(tensor) + "; the package was made for " + told(meta, numbers);
  }
  if (empty) return "";
  if (tensor.data == nullptr) return name + " has no data";
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(std::min(bytes_of(meta.dtype), 8))) {
    return name + " does not begin at a multiple of its elements' size";
  }
  return "";
}

// Inputs that the model writes share no memory with others.
std::string check_written(const DynamoTensor* inputs, const int64_t* numbers) {
  for (int i = 0; i < tables.argument_count; ++i) {
    if (!tables.arguments[i].written) continue;
    auto begin = reinterpret_cast<uintptr_t>(inputs[i].data);
    auto end = begin + static_cast<uintptr_t>(span(tables.arguments[i].meta, numbers));
    for (int j = 0; j < tables.argument_count; ++j) {
      auto other = reinterpret_cast<uintptr_t>(inputs[j].data);
      auto other_end = other + static_cast<uintptr_t>(span(tables.arguments[j].meta, numbers));
      if (i != j && begin < other_end && other < end) {
        return std::string("input ") + tables.arguments[i].name + ", which the model writes, shares memory with " +
               tables.arguments[j].name;
      }
    }
  }
  return "";
}

std::shared_ptr<Bound> bound_for(Model& model, const DynamoTensor* inputs, std::string& wrong) {
  if (tables.symbol_count == 0) return model.fixed;
  std::vector<int64_t> sizes;
  for (int i = 0; i < tables.symbol_count; ++i) {
    const Symbol& symbol = tables.symbols[i];
    const DynamoTensor& tensor = inputs[symbol.argument];
    if (tensor.dims <= symbol.dim) {
      wrong = std::string("input ") + tables.arguments[symbol.argument].name + " has too few dimensions";
      return nullptr;
    }
    sizes.push_back(tensor.sizes[symbol.dim]);
  }
  {
    std::lock_guard<std::mutex> lock(model.mutex);
    auto found = model.bound.find(sizes);
    if (found != model.bound.end()) return found->second;
  }
  if (const char* broken = tables.broken(sizes.data())) {
    wrong = std::string("the package does not hold for these sizes: it needs ") + broken;
    return nullptr;
  }
  auto made = bind(sizes);
  std::lock_guard<std::mutex> lock(model.mutex);
  if (model.bound.size() >= kMostBound) model.bound.clear();
  model.bound[std::move(sizes)] = made;
  return made;
}

// Gives the state back to its model, and what is not a result to the pool.
struct Running {
  Model& model;
  std::unique_ptr<State> state;

  explicit Running(Model& m) : model(m) {
    std::lock_guard<std::mutex> lock(model.mutex);
    if (model.idle.empty()) return;
    state = std::move(model.idle.back());
    model.idle.pop_back();
  }

  void make() {
    if (state != nullptr) return;
    state = std::make_unique<State>();
    state->data.resize(static_cast<size_t>(tables.slot_count));
    state->arguments.resize(static_cast<size_t>(tables.argument_count));
    state->blocks.resize(static_cast<size_t>(tables.slot_count));
    for (int i = 0; i < tables.slot_count; ++i) {
      const Slot& slot = tables.slots[i];
      if (slot.kind == Kind::kWeight) state->data[i] = const_cast<char*>(model.weights + slot.position);
    }
  }

  ~Running() {
    if (state == nullptr) return;
    for (Block*& block : state->blocks) {
      if (block != nullptr) Pool::give_back(block);
      block = nullptr;
    }
    if (package_end_call) package_end_call(&state->call);
    std::lock_guard<std::mutex> lock(model.mutex);
    model.idle.push_back(std::move(state));
  }
};

int call_nothing(Runtime* runtime, int64_t) {
  static_cast<Call*>(runtime->state)->error = "there is no memory for a matrix product or attention";
  return 1;
}

void drop_nothing(Runtime*, int64_t) {}

// Pointers of all slots. Errors: false where there is no memory.
bool place_slots(Model& model, State& state, const Bound& bound, const DynamoTensor* inputs) {
  auto wanted = static_cast<size_t>(bound.arena_bytes);
  if (wanted > state.arena_bytes) {
    free(state.arena);
    state.arena = static_cast<char*>(allocate(wanted));
    state.arena_bytes = state.arena ? wanted : 0;
    if (state.arena == nullptr) return false;
  }
  for (int i = 0; i < tables.argument_count; ++i) state.arguments[i] = inputs[i].data;
  for (int i = 0; i < tables.slot_count; ++i) {
    const Slot& slot = tables.slots[i];
    if (slot.kind == Kind::kArgument) {
      state.data[i] = inputs[slot.position].data;
    } else if (slot.kind == Kind::kArena) {
      state.data[i] = state.arena + bound.numbers[slot.position];
    } else if (slot.kind == Kind::kOutput) {
      auto bytes = static_cast<size_t>(span(slot.meta, bound.numbers));
      state.blocks[i] = model.pool->take((bytes + 63) / 64 * 64);
      if (state.blocks[i] == nullptr) return false;
      state.data[i] = state.blocks[i] + 1;
    } else if (slot.kind == Kind::kSizes) {
      state.data[i] = const_cast<int64_t*>(bound.sizes.data());
    }
  }
  return true;
}

std::string kernel_error(const Call& call) {
  const Runtime& runtime = call.runtime;
  if (call.error != nullptr) return call.error;
  auto value = std::to_string(runtime.error_value), limit = std::to_string(runtime.error_bound);
  if (runtime.error_code == 2) return "index out of range in self";
  if (runtime.error_code == 4) return "INDICES element is out of DATA bounds, id=" + value + " axis_dim=" + limit;
  if (runtime.error_code == 1 || runtime.error_code == 3) {
    return "index " + value + " is out of bounds for dimension with size " + limit;
  }
  return "a kernel failed with code " + std::to_string(runtime.error_code);
}

std::string run_graph(State& state, const Bound& bound) {
  Call& call = state.call;
  void* externs = call.externs;
  call = Call{};
  call.externs = externs;
  call.data = state.data.data();
  call.numbers = bound.numbers;
  call.arguments = state.arguments.data();
  call.runtime.data = state.data.data();
  call.runtime.call = package_call_extern ? package_call_extern : &call_nothing;
  call.runtime.drop = package_drop_extern ? package_drop_extern : &drop_nothing;
  call.runtime.state = &call;
  return package_graph(&call.runtime) == 0 ? "" : kernel_error(call);
}

void fill_results(State& state, const Bound& bound, DynamoTensor* outputs) {
  for (int i = 0; i < tables.result_count; ++i) {
    const View& view = tables.results[i];
    const Meta& meta = view.meta;
    const int64_t* sizes = bound.numbers + meta.at;
    char* begin = static_cast<char*>(state.data[view.slot]);
    DynamoTensor& output = outputs[i];
    output = {begin + bound.numbers[view.offset] * bytes_of(meta.dtype), meta.dtype, meta.dims, sizes,
              sizes + meta.dims, nullptr};
    Block* block = state.blocks[view.slot];
    if (block != nullptr) {
      ++block->uses;
      output.owner = new Owner{block, nullptr};
    } else if (tables.slots[view.slot].kind == Kind::kExtern) {
      output.owner = new Owner{nullptr, package_take_result(&state.call, view.slot)};
    }
  }
}

}  // namespace
}  // namespace package

using namespace package;

EXPORT uint64_t dynamo_package_checksum(const void* bytes, size_t count) {
  return checksum(static_cast<const char*>(bytes), count);
}

EXPORT void dynamo_package_counts(size_t* inputs, size_t* outputs) {
  *inputs = static_cast<size_t>(tables.argument_count);
  *outputs = static_cast<size_t>(tables.result_count);
}

EXPORT const char* dynamo_package_input_name(size_t index) { return tables.arguments[index].name; }

EXPORT void* dynamo_package_open(const char* folder, char* error, size_t room) {
  std::string wrong = check_processor();
  auto model = std::make_unique<Model>();
  if (wrong.empty()) wrong = read_weights(*model, std::string(folder) + "/weights.bin");
  if (wrong.empty() && package_open_externs) {
    const char* text = package_open_externs();
    if (text != nullptr) wrong = text;
  }
  if (wrong.empty()) return model.release();
  fail(error, room, wrong);
  return nullptr;
}

EXPORT void dynamo_package_close(void* model) { delete static_cast<Model*>(model); }

EXPORT int dynamo_package_run(void* handle, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs,
                              char* error, size_t room) {
  Model& model = *static_cast<Model*>(handle);
  thread_local std::shared_ptr<Bound> last;  // results point to its numbers
  if (count != static_cast<size_t>(tables.argument_count)) {
    return fail(error, room, std::string(tables.name) + " takes " + std::to_string(tables.argument_count) +
                                 " inputs, not " + std::to_string(count), kInputs);
  }
  std::string wrong;
  std::shared_ptr<Bound> bound = bound_for(model, inputs, wrong);
  if (bound == nullptr) return fail(error, room, wrong, kInputs);
  for (int i = 0; i < tables.argument_count && wrong.empty(); ++i) wrong = check_input(i, inputs[i], bound->numbers);
  if (wrong.empty()) wrong = check_written(inputs, bound->numbers);
  if (!wrong.empty()) return fail(error, room, wrong, kInputs);
  Running running(model);
  running.make();
  if (!place_slots(model, *running.state, *bound, inputs)) return fail(error, room, "there is no memory for a call");
  wrong = run_graph(*running.state, *bound);
  if (!wrong.empty()) {
    int64_t code = running.state->call.runtime.error_code;
    return fail(error, room, wrong, code == 1 || code == 2 ? kIndex : kFailed);
  }
  fill_results(*running.state, *bound, outputs);
  last = std::move(bound);
  return 0;
}

EXPORT void dynamo_package_release(void* handle) {
  auto* owner = static_cast<Owner*>(handle);
  if (owner == nullptr) return;
  if (owner->block != nullptr) {
    Pool::give_back(owner->block);
  } else if (owner->result != nullptr) {
    package_free_result(owner->result);
  }
  delete owner;
}
