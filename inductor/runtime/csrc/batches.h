// Consecutive kernels of a program that are handed to the driver in one go (batches.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "commands.h"

namespace inductor {

// The driver's functions that make and start CUDA graphs, as addresses.
struct GraphDriver {
  int (*create_stream)(void** stream, unsigned flags);
  int (*is_capturing)(void* stream, int* status);
  int (*exchange_mode)(int* mode);
  int (*begin)(void* stream, int mode);
  int (*end)(void* stream, void** graph);
  int (*instantiate)(void** made, void* graph, unsigned long long flags);
  int (*launch)(void* made, void* stream);
  int (*destroy_graph)(void* graph);
  int (*destroy)(void* made);
};

constexpr size_t kGraphFunctions = sizeof(GraphDriver) / sizeof(void*);

class Batch;

// Commands [begin, end) of a program: a batch, or what is done one by one.
struct Part {
  size_t begin, end;
  std::shared_ptr<Batch> batch;
};

// What `Program.batches` tells.
struct BatchFacts {
  size_t kernels, bytes, graphs, launches;
  int error;
};

std::vector<Part> parts_of(const std::vector<Command>& commands, int device, const GraphDriver* driver);
void run_batch(Batch& batch, Values& values, void* stream);
BatchFacts facts_of(const Batch& batch);

}  // namespace inductor
