// The functions of a package's library, in C: `model.h` and the loader in Python call them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A tensor: strides count elements. owner: what `dynamo_package_release` gets once for each tensor that `run` has
// given, when it is no longer wanted; null where the memory is the caller's or the model's.
typedef struct {
  void* data;
  int32_t dtype;
  int32_t dims;
  const int64_t* sizes;
  const int64_t* strides;
  void* owner;
} DynamoTensor;

// Errors are sentences, written to `error`, which has room for `room` bytes.
void* dynamo_package_open(const char* folder, char* error, size_t room);
void dynamo_package_close(void* model);
// 0, or for an error 2 (an index out of range), 3 (inputs that the package was not made for) or 1. `outputs` has room for as many as `dynamo_package_counts` says; their sizes and strides
// are the library's, valid for ever. Any thread may call, several at once.
int dynamo_package_run(void* model, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs, char* error,
                       size_t room);
void dynamo_package_release(void* owner);
// Of packages for a GPU alone. `run_on` works in order of a CUDA stream, and returns before the results are there: these
// lie on the device. Inputs lie there or on the host. `run` takes the same inputs, and gives results on the host.
int dynamo_package_run_on(void* model, const DynamoTensor* inputs, size_t count, DynamoTensor* outputs, void* stream,
                          char* error, size_t room);
int dynamo_package_device(void* model);  // its number
void dynamo_package_counts(size_t* inputs, size_t* outputs);
const char* dynamo_package_input_name(size_t index);
uint64_t dynamo_package_checksum(const void* bytes, size_t count);

#ifdef __cplusplus
}
#endif
