// What the generated `tables.cpp` of a package tells of its model, and what kernels see of a call.
//
// All sizes, strides, offsets and places in the arena stand in one list of numbers, to which the rows of the other
// tables point.
#pragma once

#include <cstddef>
#include <cstdint>

namespace packaged {

// `codegen/cpp/prelude.py` declares the same struct; keep them equal.
struct Runtime {
  void** data;
  int (*call)(Runtime*, int64_t index);
  void (*drop)(Runtime*, int64_t slot);
  void* unused;
  int64_t error_code;
  int64_t error_value;
  int64_t error_bound;
  void* state;
  void (*step)(Runtime*, int64_t index);
};

// `dtype` as torch numbers them. numbers[at..]: `dims` sizes, then as many strides, in elements.
struct Meta {
  int dtype, dims, at;
};

enum class Kind : char { kArgument, kWeight, kArena, kOutput, kNone };

// A place of a buffer. position: of the argument, the byte among the weights, or for the arena the index of its byte
// among the numbers. kNone: a weight of which kernels read a prepared copy.
struct Slot {
  Kind kind;
  int64_t position;
  Meta meta;
};

// A buffer seen as a tensor. numbers[offset]: where it begins, in elements.
struct View {
  int slot, offset;
  Meta meta;
};

// written: the model changes it, as eager does.
struct Argument {
  const char* name;
  Meta meta;
  bool written;
};

// The model for one set of sizes.
struct Tables {
  int (*graph)(Runtime*);
  int64_t arena_bytes;
  const Argument* arguments;
  const Slot* slots;
  int slot_count;
  const View* results;
  const int64_t* numbers;
};

// processor: flags of /proc/cpuinfo that the kernels need.
struct Package {
  const char *id, *name, *machine, *processor;
  int64_t weight_bytes;
  int argument_count, result_count;
  const Tables* variants;
  int variant_count;
};

extern const Package package;

}  // namespace packaged
