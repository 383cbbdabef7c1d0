// What the runtimes of packages for a CPU and for a GPU share: errors, types, weights, checks of inputs. Each library
// includes it once.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

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

void* allocate(size_t bytes) {
  void* memory = nullptr;
  bool huge = bytes >= kHugePage;
  if (posix_memalign(&memory, huge ? kHugePage : kAlignment, std::max<size_t>(bytes, 1))) return nullptr;
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

// -- weights ----------------------------------------------------------------------------------------------------------

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

// A file of weights, mapped into memory.
struct WeightsFile {
  void* mapped = MAP_FAILED;
  size_t mapped_bytes = 0;
  const char* weights = nullptr;

  WeightsFile() = default;
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  ~WeightsFile() {
    if (mapped != MAP_FAILED) munmap(mapped, mapped_bytes);
  }
};

// The first line of the weights' file: magic, id, bytes, checksum.
std::string read_weights(WeightsFile& to, const std::string& path) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return path + ": " + strerror(errno) + "; the package is not whole";
  struct stat facts {};
  fstat(file, &facts);
  std::string wrong;
  auto size = static_cast<int64_t>(facts.st_size);
  if (size >= kHeader) {
    to.mapped_bytes = static_cast<size_t>(size);
    to.mapped = mmap(nullptr, to.mapped_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (to.mapped == MAP_FAILED) wrong = path + ": it can't be mapped into memory: " + strerror(errno);
  }
  close(file);
  if (!wrong.empty()) return wrong;
  const char* text = static_cast<const char*>(to.mapped);
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
  to.weights = text + kHeader;
  if (checksum(to.weights, static_cast<size_t>(bytes)) != sum) {
    return path + " is damaged: its contents are not what was written";
  }
  return "";
}

// "" where this processor is of the kind that the package was made for.
std::string check_machine() {
  struct utsname system {};
  uname(&system);
  if (strcmp(system.machine, package.machine) == 0) return "";
  return std::string("the package was made for processors of kind ") + package.machine + ", this is " + system.machine;
}

// -- inputs -----------------------------------------------------------------------------------------------------------

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

std::string described(const DynamoTensor& tensor) {
  return type_name(tensor.dtype) + " " + list_of(tensor.sizes, tensor.dims) + " with strides " +
         list_of(tensor.strides, tensor.dims);
}

std::string described(const Meta& meta, const int64_t* numbers) {
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
          described(inputs[best]) + "; the package was made for ";
  for (int v = 0; v < package.variant_count; ++v) {
    const Tables& tables = package.variants[v];
    wrong += (v ? ", or " : "") + described(tables.arguments[best].meta, tables.numbers);
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

// The variant that runs these inputs. Errors: null, and `wrong` tells what is not as it has to be.
const Tables* checked(const DynamoTensor* inputs, size_t count, std::string& wrong) {
  if (count != static_cast<size_t>(package.argument_count)) {
    wrong = std::string(package.name) + " takes " + std::to_string(package.argument_count) + " inputs, not " +
            std::to_string(count);
    return nullptr;
  }
  const Tables* tables = variant_for(inputs, wrong);
  if (tables != nullptr) wrong = check_memory(*tables, inputs);
  return wrong.empty() ? tables : nullptr;
}

}  // namespace
}  // namespace packaged

// -- what both export alike -------------------------------------------------------------------------------------------

EXPORT uint64_t dynamo_package_checksum(const void* bytes, size_t count) {
  return packaged::checksum(static_cast<const char*>(bytes), count);
}

EXPORT void dynamo_package_counts(size_t* inputs, size_t* outputs) {
  *inputs = static_cast<size_t>(packaged::package.argument_count);
  *outputs = static_cast<size_t>(packaged::package.result_count);
}

EXPORT const char* dynamo_package_input_name(size_t index) { return packaged::package.variants[0].arguments[index].name; }
