// What the generated `tables.cpp` of a package tells of its model, and what kernels see of a call.
//
// All sizes, strides, offsets and places in the arena stand in one list of numbers, to which the rows of the other
// tables point. Where sizes are known at a call only, `fill` writes the list.
#pragma once

#include <cstddef>
#include <cstdint>

namespace package {

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

enum class Kind : char { kArgument, kWeight, kArena, kOutput, kExtern, kSizes, kNone };

// A place of a buffer. position: of the argument, the byte among the weights, or for the arena the index of its byte
// among the numbers. kSizes: the values of the symbols. kNone: a weight of
// which kernels read a prepared copy.
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

// A buffer in the arena whose size is known at a call: first and last step; numbers[bytes], numbers[place].
struct Life {
  int first, last, bytes, place;
};

// Where the value of a symbol is read: size `dim` of an argument.
struct Symbol {
  int argument, dim;
};

// A constant operand of an operator of libtorch; see `aten.cpp`.
struct Value {
  enum class Kind : char { kNone, kBool, kInt, kReal, kText, kList } kind;
  int64_t number;
  double real;
  const char* text;
  int first, count;  // of a list: among `values`
};

// kView: views[index]; kViews: views[view_lists[index .. index + count]], -1 for None; kConstant: values[index].
struct Operand {
  enum class Kind : char { kView, kViews, kConstant } kind;
  int index, count;
};

struct Extern {
  const char *name, *overload;
  int operand, operands;  // among `operands`
  int result, results;    // among `result_slots`: a slot, or -1 for what nobody wants
};

struct Tables {
  const char *id, *name, *machine, *processor;  // processor: flags of /proc/cpuinfo that it needs
  int64_t weight_bytes, arena_bytes;
  const Argument* arguments;
  int argument_count;
  const Slot* slots;
  int slot_count;
  const View* views;
  int view_count;
  const View* results;
  int result_count;
  const int64_t* numbers;
  int number_count;
  const Symbol* symbols;
  int symbol_count;
  const Life* lives;
  int life_count;
  void (*fill)(const int64_t* sizes, int64_t* numbers);  // null where all are known
  const char* (*broken)(const int64_t* sizes);           // what is assumed of sizes and does not hold, or null
  const Extern* externs;
  int extern_count;
  const Operand* operands;
  const Value* values;
  const int* view_lists;
  const int* result_slots;
  const char* torch;  // version of libtorch that it needs; "" for none
};

extern const Tables tables;

// What one running call owns.
struct Call {
  Runtime runtime{};
  void** data = nullptr;               // by slot
  const int64_t* numbers = nullptr;
  const void* const* arguments = nullptr;  // data
  void* externs = nullptr;             // of `aten.cpp`
  const char* error = nullptr;         // what failed, as text that lives until the next call
};

}  // namespace package

// The graph's own function.
extern "C" __attribute__((visibility("hidden"))) int package_graph(package::Runtime*);

// In packages with operators of libtorch (`aten.cpp`), else null.
extern "C" {
__attribute__((weak, visibility("hidden"))) int package_call_extern(package::Runtime*, int64_t);
__attribute__((weak, visibility("hidden"))) void package_drop_extern(package::Runtime*, int64_t);
__attribute__((weak, visibility("hidden"))) const char* package_open_externs();  // an error, or null
__attribute__((weak, visibility("hidden"))) void* package_take_result(package::Call*, int slot);  // an owner
__attribute__((weak, visibility("hidden"))) void package_free_result(void* owner);
__attribute__((weak, visibility("hidden"))) void package_end_call(package::Call*);
}
