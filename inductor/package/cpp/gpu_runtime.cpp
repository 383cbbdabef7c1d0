// Runs the graph of a package on a GPU. No Python, no libtorch, no CUDA runtime: the driver alone.
//
// A call puts copies and launches into one stream. What it needs (memory of intermediates, copies of inputs) is kept in
// a `State`; a later call in the same stream may take it while the first still runs, since work of a stream is done in
// order. So it is with memory of results, which comes from a pool of the model.
#include <atomic>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "common.h"
#include "driver.h"
#include "gpu_tables.h"

namespace packaged {
namespace {

constexpr Address kStep = 16;  // bytes; kernels expect addresses that are multiples
constexpr size_t kHostLine = 64;

struct Failed {
  std::string text;
};

// -- device -----------------------------------------------------------------------------------------------------------

// The driver, a device and a context, as long as somebody needs them.
struct Device {
  Driver driver;
  int number = 0;
  void* context = nullptr;
  bool is_primary = false;

  void check(Code code, const char* what) const {
    if (code == 0) return;
    std::string text = std::string(what) + ": " + driver.described(code);
    if (code == kAssert) {
      text = "an assertion of a kernel failed, as where an index is out of range; this process can't use the GPU any more";
    }
    throw Failed{text};
  }

  // The device of the thread's context, else the first one.
  void find() {
    std::string wrong = driver.find();
    if (!wrong.empty()) throw Failed{wrong};
    check(driver.current(&context), "the context");
    if (context != nullptr) {
      check(driver.current_device(&number), "the context's device");
      return;
    }
    check(driver.device_get(&number, 0), "the device");
    check(driver.retain(&context, number), "the context of the device");
    is_primary = true;
  }

  int attribute(int which) const {
    int found = 0;
    check(driver.device_attribute(&found, which, number), "an attribute of the device");
    return found;
  }

  // Code for one kind of device runs on no other.
  void check_kind() const {
    int here = 10 * attribute(kMajor) + attribute(kMinor);
    if (here == capability) return;
    char name[256] = "a GPU";
    driver.device_name(name, sizeof(name), number);
    throw Failed{"the package was compiled for GPUs of kind sm_" + std::to_string(capability) + ", this is " + name +
                 ", sm_" + std::to_string(here) + "; package the model with target=\"sm_" + std::to_string(here) + "\""};
  }

  ~Device() {
    if (is_primary) driver.release(number);
  }
};

// The device's context is this thread's for a while.
struct Inside {
  const Device& device;
  explicit Inside(const Device& d) : device(d) { device.check(device.driver.push(device.context), "the context"); }
  Inside(const Inside&) = delete;
  ~Inside() {
    void* before = nullptr;
    device.driver.pop(&before);
  }
};

// -- memory of results ------------------------------------------------------------------------------------------------

struct Pool;

// uses: of the tensors over it. Memory of the host has no pool.
struct Block {
  std::shared_ptr<Pool> pool;
  Address begin;
  size_t bytes;
  void* stream;
  std::atomic<int> uses;
};

// Blocks that nothing uses, by stream; at most as many bytes as were once in use at the same time.
struct Pool : std::enable_shared_from_this<Pool> {
  std::shared_ptr<Device> device;
  std::mutex mutex;
  std::vector<Block*> free;
  size_t live = 0, cached = 0, most = 0;

  explicit Pool(std::shared_ptr<Device> d) : device(std::move(d)) {}

  // In the context. Errors: Failed.
  Block* take(size_t bytes, void* stream) {
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = free.size(); i-- > 0;) {
      if (free[i]->bytes != bytes || free[i]->stream != stream) continue;
      Block* found = free[i];
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
      cached -= bytes;
      return start(found);
    }
    while (!free.empty() && live + bytes + cached > most) drop_oldest();
    Address begin = 0;
    Code code = device->driver.allocate(&begin, std::max<size_t>(bytes, 1));
    while (code == kOutOfMemory && !free.empty()) {
      drop_oldest();
      code = device->driver.allocate(&begin, std::max<size_t>(bytes, 1));
    }
    device->check(code, "there is no memory for a result");
    return start(new Block{nullptr, begin, bytes, stream, {0}});
  }

  Block* start(Block* block) {
    live += block->bytes;
    most = std::max(most, live);
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

  void destroy(Block* block) const {
    device->driver.free(block->begin);
    delete block;
  }

  static void give_back(Block* block) {
    if (--block->uses > 0) return;
    std::shared_ptr<Pool> pool = std::move(block->pool);  // it may end here
    if (pool == nullptr) {
      ::free(reinterpret_cast<void*>(block->begin));
      delete block;
      return;
    }
    std::lock_guard<std::mutex> lock(pool->mutex);
    pool->live -= block->bytes;
    pool->cached += block->bytes;
    pool->free.push_back(block);
  }

  ~Pool() {
    if (device->driver.push(device->context) != 0) return;  // CUDA has ended before
    for (Block* block : free) destroy(block);
    void* before = nullptr;
    device->driver.pop(&before);
  }
};

Block* host_block(size_t bytes) {
  void* memory = allocate((bytes + kHostLine - 1) / kHostLine * kHostLine);
  if (memory == nullptr) throw Failed{"there is no memory for a result"};
  return new Block{nullptr, reinterpret_cast<Address>(memory), bytes, nullptr, {1}};
}

// -- the model --------------------------------------------------------------------------------------------------------

// Everything that one call in a stream needs.
struct State {
  void* stream = nullptr;
  std::vector<Address> data;    // by slot
  std::vector<Block*> blocks;   // of output slots
  std::vector<Address> copies;  // by argument, on the device; 0 where there was none yet
  Address arena = 0;
};

struct Model {
  std::shared_ptr<Device> device = std::make_shared<Device>();
  std::shared_ptr<Pool> pool;
  std::mutex mutex;
  std::vector<std::vector<std::unique_ptr<State>>> idle;  // by variant
  std::vector<void*> modules, functions;
  Address weights = 0;

  // Errors: Failed.
  void open(const std::string& folder) {
    std::string wrong = check_machine();
    if (!wrong.empty()) throw Failed{wrong};
    device->find();
    device->check_kind();
    pool = std::make_shared<Pool>(device);
    idle.resize(static_cast<size_t>(package.variant_count));
    Inside inside(*device);
    load_kernels();
    load_weights(folder + "/weights.bin");
  }

  void load_kernels() {
    const Driver& driver = device->driver;
    int most = device->attribute(kMostShared);
    for (int i = 0; i < kernel_count; ++i) {
      const Kernel& kernel = kernels[i];
      std::string what = std::string("the kernel ") + kernel.name;
      if (kernel.shared > static_cast<unsigned>(most)) {
        throw Failed{what + " needs " + std::to_string(kernel.shared) + " bytes of shared memory, and this GPU has " +
                     std::to_string(most)};
      }
      void *module = nullptr, *function = nullptr;
      device->check(driver.load(&module, dynamo_package_cubins + kernel.at), what.c_str());
      modules.push_back(module);
      device->check(driver.function(&function, module, kernel.name), what.c_str());
      if (kernel.shared > 0) {
        device->check(driver.set(function, kDynamicShared, static_cast<int>(kernel.shared)), what.c_str());
      }
      functions.push_back(function);
    }
  }

  void load_weights(const std::string& path) {
    WeightsFile file;
    std::string wrong = read_weights(file, path);
    if (!wrong.empty()) throw Failed{wrong};
    if (package.weight_bytes == 0) return;
    auto bytes = static_cast<size_t>(package.weight_bytes);
    device->check(device->driver.allocate(&weights, bytes), "there is no memory for the weights");
    device->check(device->driver.to_device(weights, file.weights, bytes, nullptr), "the weights");
    device->check(device->driver.synchronize(nullptr), "the weights");
  }

  ~Model() {
    if (device->context == nullptr || device->driver.push(device->context) != 0) return;
    const Driver& driver = device->driver;
    for (auto& states : idle) {
      for (auto& state : states) {
        if (state->arena) driver.free(state->arena);
        for (Address copy : state->copies) {
          if (copy) driver.free(copy);
        }
      }
    }
    if (weights) driver.free(weights);
    for (void* module : modules) driver.unload(module);
    void* before = nullptr;
    driver.pop(&before);
  }
};

// -- one call ---------------------------------------------------------------------------------------------------------

// Gives the state back to its model, and what is no result to the pool.
struct Running {
  Model& model;
  const Tables& tables;
  const Work& work;
  const DynamoTensor* inputs;
  std::unique_ptr<State> state;
  std::vector<Block*> on_host;  // copies of slots, for results there
  bool waits = false;           // memory of the host takes part

  Running(Model& m, const Tables& t, const DynamoTensor* given, void* stream)
      : model(m), tables(t), work(works[&t - package.variants]), inputs(given) {
    std::lock_guard<std::mutex> lock(model.mutex);
    auto& idle = states();
    for (size_t i = idle.size(); i-- > 0 && state == nullptr;) {
      if (idle[i]->stream != stream) continue;
      state = std::move(idle[i]);
      idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(i));
    }
    auto count = static_cast<size_t>(tables.slot_count);
    on_host.resize(count);
    if (state != nullptr) return;
    state = std::make_unique<State>();
    state->stream = stream;
    state->data.resize(count);
    state->blocks.resize(count);
    state->copies.resize(static_cast<size_t>(package.argument_count));
  }

  std::vector<std::unique_ptr<State>>& states() { return model.idle[static_cast<size_t>(&tables - package.variants)]; }
  const Driver& driver() const { return model.device->driver; }
  void check(Code code, const char* what) const { model.device->check(code, what); }
  size_t bytes_of_slot(size_t i) const { return static_cast<size_t>(span(tables.slots[i].meta, tables.numbers)); }

  ~Running() {
    for (auto* blocks : {&state->blocks, &on_host}) {
      for (Block*& block : *blocks) {
        if (block != nullptr) Pool::give_back(block);
        block = nullptr;
      }
    }
    std::lock_guard<std::mutex> lock(model.mutex);
    states().push_back(std::move(state));
  }

  bool is_on_device(const DynamoTensor& input, const char* name) const {
    unsigned kind = 0;
    auto address = reinterpret_cast<Address>(input.data);
    if (driver().pointer(&kind, kMemoryType, address) != 0 || kind != kOnDevice) return false;
    int ordinal = 0;
    check(driver().pointer(&ordinal, kOrdinal, address), "the device of an input");
    if (ordinal != model.device->number) {
      throw Failed{std::string("input ") + name + " lies on GPU " + std::to_string(ordinal) + ", the model on GPU " +
                   std::to_string(model.device->number)};
    }
    return true;
  }

  // Where kernels find an argument: where it is, or a copy on the device at a better address.
  Address place_argument(int i) {
    const Argument& argument = tables.arguments[i];
    auto bytes = static_cast<size_t>(span(argument.meta, tables.numbers));
    auto given = reinterpret_cast<Address>(inputs[i].data);
    bool there = bytes == 0 || is_on_device(inputs[i], argument.name);
    if (there && given % kStep == 0) return given;
    Address& copy = state->copies[static_cast<size_t>(i)];
    if (copy == 0) check(driver().allocate(&copy, bytes), "there is no memory for a copy of an input");
    if (there) {
      check(driver().on_device(copy, given, bytes, state->stream), argument.name);
    } else {
      waits = true;
      check(driver().to_device(copy, inputs[i].data, bytes, state->stream), argument.name);
    }
    return copy;
  }

  void place() {
    if (tables.arena_bytes > 0 && state->arena == 0) {
      auto bytes = static_cast<size_t>(tables.arena_bytes);
      check(driver().allocate(&state->arena, bytes), "there is no memory for intermediate results");
    }
    std::vector<Address> arguments;
    for (int i = 0; i < package.argument_count; ++i) arguments.push_back(place_argument(i));
    for (size_t i = 0; i < state->data.size(); ++i) {
      const Slot& slot = tables.slots[i];
      if (slot.kind == Kind::kArgument) {
        state->data[i] = arguments[static_cast<size_t>(slot.position)];
      } else if (slot.kind == Kind::kWeight) {
        state->data[i] = model.weights + static_cast<Address>(slot.position);
      } else if (slot.kind == Kind::kArena) {
        state->data[i] = state->arena + static_cast<Address>(tables.numbers[slot.position]);
      } else if (slot.kind == Kind::kOutput) {
        state->blocks[i] = model.pool->take((bytes_of_slot(i) + 255) / 256 * 256, state->stream);
        state->data[i] = state->blocks[i]->begin;
      }
    }
  }

  void launch() {
    std::vector<Address> addresses;
    std::vector<void*> parameters;
    Address nothing = 0;
    for (int i = 0; i < work.launch_count; ++i) {
      const Launch& one = work.launches[i];
      const Kernel& kernel = kernels[one.kernel];
      auto count = static_cast<size_t>(one.count);
      addresses.resize(count);
      parameters.resize(count);
      for (size_t j = 0; j < count; ++j) {
        const Operand& operand = work.operands[static_cast<size_t>(one.first) + j];
        addresses[j] = state->data[static_cast<size_t>(operand.slot)] + static_cast<Address>(operand.offset);
        parameters[j] = &addresses[j];
      }
      for (int j = 0; j < 2; ++j) parameters.push_back(&nothing);  // Triton's own, for memory that no kernel here needs
      check(driver().launch(model.functions[static_cast<size_t>(one.kernel)], one.grid[0], one.grid[1], one.grid[2],
                            kernel.threads, 1, 1, kernel.shared, state->stream, parameters.data(), nullptr),
            kernel.name);
    }
  }

  // Arguments of which kernels have written a copy.
  void write_back() {
    for (int i = 0; i < package.argument_count; ++i) {
      Address copy = state->copies[static_cast<size_t>(i)];
      auto given = reinterpret_cast<Address>(inputs[i].data);
      auto bytes = static_cast<size_t>(span(tables.arguments[i].meta, tables.numbers));
      if (!tables.arguments[i].written || copy == 0 || bytes == 0) continue;
      bool there = is_on_device(inputs[i], tables.arguments[i].name);
      if (there && given % kStep == 0) continue;  // the copy is of an earlier call
      if (there) {
        check(driver().on_device(given, copy, bytes, state->stream), tables.arguments[i].name);
      } else {
        check(driver().to_host(inputs[i].data, copy, bytes, state->stream), tables.arguments[i].name);
      }
    }
  }

  // A result's first byte, and the block in which it lies, if it lies in one.
  void find(const View& view, bool host, char*& begin, Block*& block) {
    auto slot = static_cast<size_t>(view.slot);
    Address base = state->data[slot];
    block = state->blocks[slot];
    if (tables.slots[slot].kind == Kind::kArgument) {
      base = reinterpret_cast<Address>(inputs[tables.slots[slot].position].data);
    } else if (host) {
      if (on_host[slot] == nullptr) {
        size_t bytes = bytes_of_slot(slot);
        on_host[slot] = host_block(bytes);
        if (bytes) check(driver().to_host(reinterpret_cast<void*>(on_host[slot]->begin), base, bytes, state->stream), "a result");
        waits = true;
      }
      block = on_host[slot];
      base = block->begin;
    }
    begin = reinterpret_cast<char*>(base) + tables.numbers[view.offset] * bytes_of(view.meta.dtype);
  }

  void fill(DynamoTensor* outputs, bool host) {
    std::vector<Block*> blocks(static_cast<size_t>(package.result_count));
    for (int i = 0; i < package.result_count; ++i) {
      const View& view = tables.results[i];
      const int64_t* sizes = tables.numbers + view.meta.at;
      char* begin = nullptr;
      find(view, host, begin, blocks[static_cast<size_t>(i)]);
      outputs[i] = {begin, view.meta.dtype, view.meta.dims, sizes, sizes + view.meta.dims, nullptr};
    }
    if (host || waits) check(driver().synchronize(state->stream), "the kernels");
    for (int i = 0; i < package.result_count; ++i) {
      Block* block = blocks[static_cast<size_t>(i)];
      if (block != nullptr) ++block->uses;
      outputs[i].owner = block;
    }
  }
};

int run(void* handle, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs, bool host, void* stream,
        char* error, size_t room) {
  std::string wrong;
  const Tables* tables = checked(inputs, count, wrong);
  if (tables == nullptr) return fail(error, room, wrong, kInputs);
  Model& model = *static_cast<Model*>(handle);
  try {
    Inside inside(*model.device);
    Running running(model, *tables, inputs, stream);
    running.place();
    running.launch();
    running.write_back();
    running.fill(outputs, host);
  } catch (const Failed& why) {
    return fail(error, room, why.text);
  }
  return 0;
}

}  // namespace
}  // namespace packaged

using namespace packaged;

EXPORT void* dynamo_package_open(const char* folder, char* error, size_t room) {
  auto model = std::make_unique<Model>();
  try {
    model->open(folder);
    return model.release();
  } catch (const Failed& why) {
    fail(error, room, why.text);
    return nullptr;
  }
}

EXPORT void dynamo_package_close(void* model) { delete static_cast<Model*>(model); }

EXPORT int dynamo_package_run(void* model, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs, char* error,
                              size_t room) {
  return run(model, inputs, count, outputs, true, nullptr, error, room);
}

EXPORT int dynamo_package_run_on(void* model, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs,
                                 void* stream, char* error, size_t room) {
  return run(model, inputs, count, outputs, false, stream, error, room);
}

EXPORT int dynamo_package_device(void* model) { return static_cast<Model*>(model)->device->number; }

EXPORT void dynamo_package_release(void* owner) {
  if (owner != nullptr) Pool::give_back(static_cast<Block*>(owner));
}
