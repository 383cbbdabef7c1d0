// Memory that compiled graphs keep between calls: a pool of output blocks and a set of arenas.
//
// Fresh pages cost more than the arithmetic on them, so memory goes back to these two instead of to
// the system. Both are bounded by what the program has had alive at one time, and `release_memory`
// empties them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace inductor {

// A new storage of `nbytes` for an output; its block comes back to the pool when the storage dies.
c10::Storage make_output_storage(size_t nbytes);

// Makes library calls of compiled graphs allocate from the pool too; once for each process.
void install_pooling_allocator();

// While one lives, what this thread allocates on the CPU comes from the pool.
struct PooledCalls {
  PooledCalls();
  ~PooledCalls();
  PooledCalls(const PooledCalls&) = delete;
  PooledCalls& operator=(const PooledCalls&) = delete;
};

// One arena: the intermediates of one running call. `storage` spans the whole of it and owns the
// memory, so that a tensor that somebody kept stays valid after the arena is given up.
struct Arena {
  char* base = nullptr;
  size_t capacity = 0;
  uint64_t serial = 0;  // a new number whenever the memory is another
  uint64_t generation = 0;
  c10::Storage storage;
  // Tensors over this memory, kept between calls, by the launcher that uses them.
  std::unordered_map<uint64_t, std::vector<at::Tensor>> views;
  size_t view_count = 0;
};

// An arena of at least `nbytes`, if possible the one with the serial number `preferred`.
Arena* take_arena(size_t nbytes, uint64_t preferred);

// The call is over. An arena that somebody else still looks at is given up to them.
void return_arena(Arena* arena);

// The launcher dies: drops the tensors that it kept over arenas.
void forget_views(uint64_t launcher_id);

// Frees everything that no running call or living output uses.
void release_memory();

struct MemoryReport {
  size_t live_bytes = 0;       // output blocks whose storages live
  size_t cached_bytes = 0;     // output blocks that wait for reuse
  size_t peak_live_bytes = 0;  // bound of live + cached
  size_t reused_blocks = 0;
  size_t new_blocks = 0;
  size_t arenas = 0;
  size_t arena_bytes = 0;
};

MemoryReport report_memory();

}  // namespace inductor
