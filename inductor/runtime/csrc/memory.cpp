// The output pool and the arenas declared in memory.h.
#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_set>
#include <vector>

#include <sys/mman.h>

#include <c10/core/CPUAllocator.h>

namespace inductor {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// malloc itself keeps smaller blocks at hand.
constexpr size_t kSmallestPooled = size_t{32} << 10;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

char* allocate_pages(size_t nbytes, size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, nbytes) != 0) throw std::bad_alloc();
  if (nbytes >= kHugePage) madvise(memory, nbytes, MADV_HUGEPAGE);
  return static_cast<char*>(memory);
}

// Lies in front of every output block.
struct alignas(kAlignment) BlockHeader {
  size_t size;
};

struct State {
  std::mutex mutex;
  std::vector<BlockHeader*> cached;  // oldest first
  std::unordered_set<void*> pooled;  // handed out by the allocator
  MemoryReport report;
  std::vector<Arena*> free_arenas;
  uint64_t generation = 1;
  uint64_t last_serial = 0;
};

// Never destroyed: storages may die after the module's static destructors have run.
State& state() {
  static State* instance = new State;
  return *instance;
}

void evict_down_to_peak(State& s) {
  size_t dropped = 0;
  while (dropped < s.cached.size() &&
         s.report.live_bytes + s.report.cached_bytes > s.report.peak_live_bytes) {
    s.report.cached_bytes -= s.cached[dropped]->size;
    std::free(s.cached[dropped++]);
  }
  s.cached.erase(s.cached.begin(), s.cached.begin() + static_cast<std::ptrdiff_t>(dropped));
}

BlockHeader* take_block(size_t size) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.report.live_bytes += size;
  s.report.peak_live_bytes = std::max(s.report.peak_live_bytes, s.report.live_bytes);
  for (size_t i = s.cached.size(); i-- > 0;) {
    if (s.cached[i]->size != size) continue;
    BlockHeader* block = s.cached[i];
    s.cached.erase(s.cached.begin() + static_cast<std::ptrdiff_t>(i));
    s.report.cached_bytes -= size;
    ++s.report.reused_blocks;
    return block;
  }
  evict_down_to_peak(s);
  ++s.report.new_blocks;
  auto* block = reinterpret_cast<BlockHeader*>(
      allocate_pages(size + sizeof(BlockHeader), size >= kHugePage ? 4096 : kAlignment));
  block->size = size;
  return block;
}

void return_block(void* context) {
  auto* block = static_cast<BlockHeader*>(context);
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.report.live_bytes -= block->size;
  s.report.cached_bytes += block->size;
  s.cached.push_back(block);
}

c10::Storage wrap_memory(c10::DataPtr data, size_t nbytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data), c10::GetCPUAllocator(),
      /*resizable=*/true));
}

void free_arena_memory(void* context) { std::free(context); }

void fill_arena(State& s, Arena* arena, size_t nbytes) {
  arena->views.clear();
  arena->view_count = 0;
  arena->storage = c10::Storage();
  if (arena->base != nullptr) s.report.arena_bytes -= arena->capacity;
  arena->capacity = round_up(nbytes, nbytes >= kHugePage ? kHugePage : 4096);
  arena->base = allocate_pages(arena->capacity, nbytes >= kHugePage ? kHugePage : 4096);
  arena->storage = wrap_memory(
      c10::DataPtr(arena->base, arena->base, &free_arena_memory, c10::DeviceType::CPU),
      arena->capacity);
  arena->generation = s.generation;
  arena->serial = ++s.last_serial;
  s.report.arena_bytes += arena->capacity;
}

void forget_arena(State& s, Arena* arena) {
  s.report.arena_bytes -= arena->capacity;
  --s.report.arenas;
  delete arena;
}

// Set while this thread runs the library calls of a compiled graph.
thread_local int calls_in_progress = 0;

c10::Allocator* allocator_before = nullptr;

void return_pooled(void* data) {
  {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.pooled.erase(data);
  }
  return_block(static_cast<BlockHeader*>(data) - 1);
}

// For users of the raw interface, who keep no deleter.
void free_raw(void* data) {
  State& s = state();
  s.mutex.lock();
  bool pooled = s.pooled.count(data) != 0;
  s.mutex.unlock();
  pooled ? return_pooled(data) : allocator_before->raw_deleter()(data);
}

// What library calls of a compiled graph allocate comes from the pool of outputs, everything else
// from the allocator that was there before.
class PoolingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (calls_in_progress == 0 || nbytes < kSmallestPooled) {
      return allocator_before->allocate(nbytes);
    }
    void* data = take_block(round_up(nbytes, 4096)) + 1;
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.pooled.insert(data);
    return c10::DataPtr(data, data, &return_pooled, c10::DeviceType::CPU);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return allocator_before->raw_deleter() == nullptr ? nullptr : &free_raw;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

void install_pooling_allocator() {
  if (allocator_before != nullptr) return;
  allocator_before = c10::GetCPUAllocator();
  // Never destroyed, as the pool.
  c10::SetCPUAllocator(new PoolingAllocator, /*priority=*/1);
}

PooledCalls::PooledCalls() { ++calls_in_progress; }
PooledCalls::~PooledCalls() { --calls_in_progress; }

c10::Storage make_output_storage(size_t nbytes) {
  if (nbytes < kSmallestPooled) {
    return wrap_memory(c10::GetCPUAllocator()->allocate(nbytes), nbytes);
  }
  BlockHeader* block = take_block(round_up(nbytes, 4096));
  return wrap_memory(
      c10::DataPtr(block + 1, block, &return_block, c10::DeviceType::CPU), nbytes);
}

Arena* take_arena(size_t nbytes, uint64_t preferred) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  size_t best = s.free_arenas.size();
  for (size_t i = 0; i < s.free_arenas.size(); ++i) {
    Arena* candidate = s.free_arenas[i];
    if (candidate->serial == preferred && candidate->capacity >= nbytes) {
      best = i;
      break;
    }
    if (best == s.free_arenas.size()) {
      best = i;
      continue;
    }
    // The smallest that suffices; if none does, the largest, which then grows.
    size_t have = candidate->capacity, now = s.free_arenas[best]->capacity;
    bool better = now >= nbytes ? (have >= nbytes && have < now) : have > now;
    if (better) best = i;
  }
  if (best == s.free_arenas.size()) {
    auto arena = std::make_unique<Arena>();
    fill_arena(s, arena.get(), nbytes);
    ++s.report.arenas;
    return arena.release();
  }
  Arena* arena = s.free_arenas[best];
  if (arena->capacity < nbytes) fill_arena(s, arena, nbytes);
  s.free_arenas.erase(s.free_arenas.begin() + static_cast<std::ptrdiff_t>(best));
  return arena;
}

void return_arena(Arena* arena) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  bool kept_by_others = arena->storage.use_count() > 1 + arena->view_count;
  if (kept_by_others || arena->generation != s.generation) {
    forget_arena(s, arena);
  } else {
    s.free_arenas.push_back(arena);
  }
}

void forget_views(uint64_t launcher_id) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  for (Arena* arena : s.free_arenas) {
    auto found = arena->views.find(launcher_id);
    if (found == arena->views.end()) continue;
    for (const at::Tensor& view : found->second) arena->view_count -= view.defined();
    arena->views.erase(found);
  }
}

void release_memory() {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  for (BlockHeader* block : s.cached) std::free(block);
  s.cached.clear();
  s.report.cached_bytes = 0;
  s.report.peak_live_bytes = s.report.live_bytes;
  for (Arena* arena : s.free_arenas) forget_arena(s, arena);
  s.free_arenas.clear();
  ++s.generation;
}

MemoryReport report_memory() {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  return s.report;
}

}  // namespace inductor
