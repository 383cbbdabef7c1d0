// What the generated `tables.cpp` of a package for a GPU tells beside `tables.h`: kernels and their launches.
#pragma once

#include <cstdint>

#include "tables.h"

namespace packaged {

// A kernel's code is `bytes` of `dynamo_package_cubins` from `at` on. shared: bytes of shared memory.
struct Kernel {
  const char* name;
  int64_t at, bytes;
  unsigned threads, shared;
};

// An address that a kernel takes: `offset` bytes behind the beginning of a slot.
struct Operand {
  int slot;
  int64_t offset;
};

// operands[first..] are the kernel's, `count` of them.
struct Launch {
  int kernel;
  unsigned grid[3];
  int first, count;
};

// The launches for one set of sizes, in order.
struct Work {
  const Launch* launches;
  int launch_count;
  const Operand* operands;
};

extern const Work works[];  // as many as `package.variants`
extern const Kernel kernels[];
extern const int kernel_count;
extern const int capability;  // 90 stands for compute capability 9.0

}  // namespace packaged

extern "C" const char dynamo_package_cubins[];
