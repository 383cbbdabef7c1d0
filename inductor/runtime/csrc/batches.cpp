// Consecutive kernels of a program, with what stands between them but no call of a library.
//
// The host's part of a batch is done first: memory for all that is seen behind it, and one block for what
// is made and let go of within, at offsets that are planned once. From then on nothing but a few addresses
// tells one call from another. Where the same ones come again, the kernels have become a CUDA graph by
// then, whose launch costs the host little more than that of one kernel; where they do not, kernels are
// started one by one. A graph holds no memory: its kernels get the addresses that this call has.
//
// What a batch lets go of is kept until its kernels are started, since the allocator may give memory back
// to the driver, which waits for kernels that it knows of only. So a batch makes few bytes in all.
#include "batches.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace inductor {

namespace {

constexpr size_t kFewestKernels = 4;         // chosen, not measured: a graph's launch costs as much as two
constexpr size_t kMostBytes = 16 << 20;      // chosen: of kernels that make more, four keep the GPU busy for longer
                                             // than the host takes to start them
constexpr size_t kPlacement = 256;           // bytes; what vectors and descriptors want, and caches like
constexpr size_t kRemembered = 4;            // addresses of so many calls; chosen
constexpr size_t kRepeats = 2;               // of the same addresses until a graph is made; chosen, so that
                                             // the calls before a recording of all make none
constexpr size_t kWorth = 8;                 // launches of each graph made so far, else a batch makes no more
                                             // than it remembers: making one costs some ten launches; chosen
constexpr int kNonBlocking = 1;
constexpr int kThreadLocal = 1;
constexpr int kRelaxed = 2;
constexpr int64_t kNone = -1;

// Where a value lies: bytes behind the address of a base. Base 0 is the block.
struct Place {
  size_t base, offset;
};

struct BatchKernel {
  const Command* command;
  std::vector<Place> places;
};

// The addresses of one call, and the graph of its kernels once they have come again.
struct Remembered {
  std::vector<uintptr_t> addresses;
  uint64_t version = 0;
  uint64_t used = 0;
  size_t repeats = 0;
  void* graph = nullptr;
};

}  // namespace

class Batch {
 public:
  std::vector<Command> before;  // what makes values that are seen behind it, or reads values from outside
  std::vector<int64_t> bases;   // values whose addresses tell all; base n + 1 is bases[n]
  std::vector<BatchKernel> kernels;
  std::vector<int64_t> freed;   // behind the kernels
  std::unordered_map<int64_t, const Command*> within;  // what makes each value of the block
  std::unordered_map<int64_t, Place> places;
  size_t bytes = 0;             // of the block
  c10::Allocator* allocator = nullptr;
  int device = 0;
  const GraphDriver* driver = nullptr;
  std::array<Remembered, kRemembered> remembered;
  uint64_t calls = 0;
  size_t graphs = 0, launches = 0;
  int error = 0;  // of the driver; no graphs from then on

  ~Batch() {
    for (Remembered& one : remembered) forget(one);
  }

  void forget(Remembered& one) {
    if (one.graph != nullptr) driver->destroy(one.graph);  // the driver waits for a launch that runs
    one = Remembered();
  }
};

namespace {

// ---- The plan ----

// Values that one allocation of the batch has made, and views of these.
struct Family {
  const Command* allocation;
  std::vector<int64_t> values;
  size_t freed = 0;
  size_t block = 0, offset = 0;
};

struct Block {
  size_t offset, bytes, users;
};

class Plan {
 public:
  Plan(const Command* begin, const Command* end) : begin_(begin), end_(end) {}

  std::shared_ptr<Batch> made() {
    batch_ = std::make_shared<Batch>();
    find_families();
    for (const Command* command = begin_; command != end_; ++command) place(*command);
    return batch_;
  }

 private:
  const Command *begin_, *end_;
  std::shared_ptr<Batch> batch_;
  std::vector<Family> families_;
  std::unordered_map<int64_t, size_t> family_of_;
  std::vector<Block> blocks_;
  std::vector<std::pair<size_t, size_t>> gaps_;  // free (offset, bytes) below `batch_->bytes`
  std::unordered_map<int64_t, size_t> bases_;

  void find_families() {
    for (const Command* command = begin_; command != end_; ++command) {
      if (command->kind == Command::kAllocate) {
        family_of_[command->made[0]] = families_.size();
        families_.push_back(Family{command, {command->made[0]}});
      } else if (command->kind == Command::kView) {
        auto found = family_of_.find(command->values[0]);
        if (found == family_of_.end()) continue;
        families_[found->second].values.push_back(command->made[0]);
        family_of_.emplace(command->made[0], found->second);
      } else if (command->kind == Command::kFree) {
        auto found = family_of_.find(command->values[0]);
        if (found != family_of_.end()) ++families_[found->second].freed;
      }
    }
  }

  // The family of a value that is made and let go of within, with all its views; null for others.
  Family* family_within(int64_t value) {
    auto found = family_of_.find(value);
    if (found == family_of_.end()) return nullptr;
    Family& family = families_[found->second];
    bool same = batch_->allocator == nullptr || batch_->allocator == family.allocation->allocator;
    return family.freed == family.values.size() && same ? &family : nullptr;
  }

  void place(const Command& command) {
    switch (command.kind) {
      case Command::kAllocate:
        return place_allocation(command);
      case Command::kView:
        return place_view(command);
      case Command::kKernel: {
        BatchKernel kernel{&command, {}};
        for (int64_t value : command.values) kernel.places.push_back(place_of(value));
        batch_->kernels.push_back(std::move(kernel));
        return;
      }
      default:
        place_free(command);
    }
  }

  Place place_of(int64_t value) {
    auto found = batch_->places.find(value);
    if (found != batch_->places.end()) return found->second;
    auto [base, is_new] = bases_.emplace(value, batch_->bases.size() + 1);
    if (is_new) batch_->bases.push_back(value);
    return Place{base->second, 0};
  }

  void place_allocation(const Command& command) {
    Family* family = family_within(command.made[0]);
    if (family == nullptr) {
      Command outside = command;
      if (!outside.values.empty() && family_within(outside.values[0]) != nullptr) outside.values.clear();
      batch_->before.push_back(std::move(outside));
      return;
    }
    batch_->allocator = command.allocator;
    family->block = block_for(command);
    family->offset = blocks_[family->block].offset;
    add_within(command, command.made[0], Place{0, family->offset});
  }

  void add_within(const Command& command, int64_t value, Place place) {
    batch_->places.emplace(value, place);
    batch_->within.emplace(value, &command);
  }

  // The block of what the new value may write over, if nothing else lies there; else a new one.
  size_t block_for(const Command& command) {
    Family* over = command.values.empty() ? nullptr : family_within(command.values[0]);
    if (over != nullptr && over->allocation->made[0] == command.values[0] &&
        over->allocation->dtype == command.dtype && over->allocation->bytes >= command.bytes &&
        blocks_[over->block].users == 1) {
      ++blocks_[over->block].users;
      return over->block;
    }
    size_t bytes = (std::max<size_t>(command.bytes, 1) + kPlacement - 1) / kPlacement * kPlacement;
    blocks_.push_back(Block{gap_for(bytes), bytes, 1});
    return blocks_.size() - 1;
  }

  // The smallest gap that is large enough; else more bytes at the end.
  size_t gap_for(size_t bytes) {
    auto best = gaps_.end();
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->second >= bytes && (best == gaps_.end() || gap->second < best->second)) best = gap;
    }
    if (best == gaps_.end()) {
      size_t offset = batch_->bytes;
      batch_->bytes += bytes;
      return offset;
    }
    size_t offset = best->first;
    best->first += bytes;
    best->second -= bytes;
    if (best->second == 0) gaps_.erase(best);
    return offset;
  }

  void give_back(const Block& block) {
    gaps_.emplace_back(block.offset, block.bytes);
    std::sort(gaps_.begin(), gaps_.end());
    std::vector<std::pair<size_t, size_t>> joined;
    for (const auto& gap : gaps_) {
      if (!joined.empty() && joined.back().first + joined.back().second == gap.first) {
        joined.back().second += gap.second;
      } else {
        joined.push_back(gap);
      }
    }
    gaps_ = std::move(joined);
  }

  void place_view(const Command& command) {
    Family* family = family_within(command.made[0]);
    if (family == nullptr) {
      batch_->before.push_back(command);
      return;
    }
    Place base = batch_->places.at(command.values[0]);
    bool same = command.dtype == at::ScalarType::Undefined;
    auto dtype = same ? dtype_of(command.values[0]) : command.dtype;
    base.offset += static_cast<size_t>(command.offset) * c10::elementSize(dtype);
    ++blocks_[family->block].users;
    add_within(command, command.made[0], base);
  }

  at::ScalarType dtype_of(int64_t value) {
    const Command& made = *batch_->within.at(value);
    return made.dtype == at::ScalarType::Undefined ? dtype_of(made.values[0]) : made.dtype;
  }

  void place_free(const Command& command) {
    int64_t value = command.values[0];
    Family* family = family_within(value);
    if (family == nullptr) {
      batch_->freed.push_back(value);
    } else if (--blocks_[family->block].users == 0) {
      give_back(blocks_[family->block]);
    }
  }
};

// ---- A call ----

uint64_t version_of(const Batch& batch) {
  uint64_t sum = 0;
  for (const BatchKernel& kernel : batch.kernels) {
    sum += reinterpret_cast<KernelCallObject*>(kernel.command->object)->version;
  }
  return sum;
}

// Starts kernels one by one until `slow` has to start one; how many were started.
size_t start_kernels(const Batch& batch, const std::vector<uintptr_t>& addresses, void* stream, size_t from) {
  for (size_t n = from; n < batch.kernels.size(); ++n) {
    const BatchKernel& kernel = batch.kernels[n];
    void* parameters[kMostParameters];
    for (size_t i = 0; i < kernel.places.size(); ++i) {
      const Place& place = kernel.places[i];
      parameters[i] = reinterpret_cast<void*>(addresses[place.base] + place.offset);
    }
    if (!start_kernel(*reinterpret_cast<KernelCallObject*>(kernel.command->object), stream, parameters)) return n;
  }
  return batch.kernels.size();
}

// A tensor of any value, for the slow way; one of the block does not keep it.
at::Tensor tensor_of(const Batch& batch, const Values& values, int64_t value, uintptr_t block) {
  auto found = batch.within.find(value);
  if (found == batch.within.end()) return values[static_cast<size_t>(value)];
  const Command& made = *found->second;
  if (made.kind == Command::kView) return viewed_tensor(made, tensor_of(batch, values, made.values[0], block));
  const auto& allocation = *reinterpret_cast<AllocationObject*>(made.object);
  void* place = reinterpret_cast<void*>(block + batch.places.at(value).offset);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), made.bytes, c10::DataPtr(place, allocation.options->device()),
      nullptr, /*resizable=*/false);
  return tensor_in(made, c10::Storage(std::move(storage)));
}

// Whether all were started without `slow`.
bool start_all(const Batch& batch, const Values& values, const std::vector<uintptr_t>& addresses, void* stream) {
  bool directly = true;
  for (size_t n = 0; (n = start_kernels(batch, addresses, stream, n)) < batch.kernels.size(); ++n) {
    directly = false;
    std::vector<at::Tensor> tensors;
    for (int64_t value : batch.kernels[n].command->values) {
      tensors.push_back(tensor_of(batch, values, value, addresses[0]));
    }
    start_slowly(*reinterpret_cast<KernelCallObject*>(batch.kernels[n].command->object), tensors);
  }
  return directly;
}

// The stream on which a device's graphs are made; it never runs anything.
int stream_for_graphs(const Batch& batch, void*& stream) {
  static std::map<int, void*> streams;
  void*& found = streams[batch.device];
  int code = found != nullptr ? 0 : batch.driver->create_stream(&found, kNonBlocking);
  stream = found;
  return code;
}

int make_graph(Batch& batch, Remembered& one) {
  const GraphDriver& driver = *batch.driver;
  void *stream = nullptr, *graph = nullptr;
  int code = stream_for_graphs(batch, stream);
  if (code == 0) code = driver.begin(stream, kThreadLocal);
  if (code != 0) return code;
  bool all = false;
  try {
    all = start_kernels(batch, one.addresses, stream, 0) == batch.kernels.size();
  } catch (const LaunchError&) {  // the driver refuses one in a graph; this call has started it already
  }
  code = driver.end(stream, &graph);
  if (code == 0 && all) code = driver.instantiate(&one.graph, graph, 0);
  if (graph != nullptr) driver.destroy_graph(graph);
  if (code != 0) one.graph = nullptr;
  return code == 0 && !all ? kNone : code;
}

// In the mode in which the memory that a graph takes does not end another thread's recording.
void make_graph_apart(Batch& batch, Remembered& one) {
  int mode = kRelaxed;
  batch.driver->exchange_mode(&mode);
  batch.error = make_graph(batch, one);
  batch.driver->exchange_mode(&mode);
  if (batch.error == 0) ++batch.graphs;
}

// Whether graphs that were made have been launched often enough for another one.
bool is_worth_it(const Batch& batch) {
  return batch.graphs < kRemembered || batch.launches >= kWorth * batch.graphs;
}

// A stream of which the driver does not tell is taken for one that is recorded.
bool is_recorded(const Batch& batch, void* stream) {
  int status = 0;
  return stream != nullptr && (batch.driver->is_capturing(stream, &status) != 0 || status != 0);
}

void start_batch(Batch& batch, const Values& values, std::vector<uintptr_t> addresses, void* stream) {
  if (batch.driver == nullptr || batch.error != 0 || is_recorded(batch, stream)) {
    start_all(batch, values, addresses, stream);
    return;
  }
  uint64_t version = version_of(batch);
  Remembered* oldest = &batch.remembered[0];
  for (Remembered& one : batch.remembered) {
    if (one.used != 0 && one.version == version && one.addresses == addresses) {
      one.used = ++batch.calls;
      if (one.graph != nullptr) {
        int code = batch.driver->launch(one.graph, stream);
        if (code == 0) {
          ++batch.launches;
          return;
        }
        bool without_context = code == kNotInitialised || code == kInvalidContext;
        if (!without_context) batch.error = code;
        start_all(batch, values, addresses, stream);
        return;
      }
      bool directly = start_all(batch, values, addresses, stream);
      if (directly && ++one.repeats >= kRepeats && is_worth_it(batch)) make_graph_apart(batch, one);
      return;
    }
    if (one.used < oldest->used) oldest = &one;
  }
  start_all(batch, values, addresses, stream);
  batch.forget(*oldest);
  oldest->version = version;
  oldest->used = ++batch.calls;
  oldest->addresses = std::move(addresses);
}

}  // namespace

void run_batch(Batch& batch, Values& values, void* stream) {
  for (const Command& command : batch.before) run_command(command, values, stream);
  c10::DataPtr block;
  if (batch.bytes != 0) block = batch.allocator->allocate(batch.bytes);
  std::vector<uintptr_t> addresses;
  addresses.reserve(batch.bases.size() + 1);
  addresses.push_back(reinterpret_cast<uintptr_t>(block.get()));
  for (int64_t value : batch.bases) {
    addresses.push_back(reinterpret_cast<uintptr_t>(values[static_cast<size_t>(value)].data_ptr()));
  }
  start_batch(batch, values, std::move(addresses), stream);
  for (int64_t value : batch.freed) values[static_cast<size_t>(value)].reset();
}

BatchFacts facts_of(const Batch& batch) {
  return BatchFacts{batch.kernels.size(), batch.bytes, batch.graphs, batch.launches, batch.error};
}

std::vector<Part> parts_of(const std::vector<Command>& commands, int device, const GraphDriver* driver) {
  std::vector<Part> parts;
  size_t begin = 0, kernels = 0, bytes = 0;
  auto end_batch = [&](size_t end) {
    Part part{begin, end, nullptr};
    if (kernels >= kFewestKernels) {
      part.batch = Plan(commands.data() + begin, commands.data() + end).made();
      part.batch->device = device;
      part.batch->driver = driver;
    }
    if (begin != end) parts.push_back(std::move(part));
    begin = end;
    kernels = bytes = 0;
  };
  for (size_t i = 0; i < commands.size(); ++i) {
    const Command& command = commands[i];
    if (command.kind == Command::kOperator || command.kind == Command::kList) {
      end_batch(i);
      parts.push_back(Part{i, i + 1, nullptr});
      begin = i + 1;
    } else if (command.kind == Command::kAllocate) {
      if (bytes + command.bytes > kMostBytes) end_batch(i);
      bytes += command.bytes;
    }
    kernels += command.kind == Command::kKernel;
  }
  end_batch(commands.size());
  return parts;
}

}  // namespace inductor
