// Loads and runs a packaged model. The only header that a program needs; no Python, no library to link but libdl.
//
//     #include "model.h"
//     auto model = dynamo_package::Model::load("folder");
//     auto x = dynamo_package::Tensor::of<float>({1.0f, 2.0f}, {1, 2});
//     std::vector<dynamo_package::Tensor> results = model.run({x});
//     const float* values = results[0].data<float>();
//
// Errors are `dynamo_package::Error` with a sentence. A model may be copied, and `run` called from several threads at
// once. What is loaded holds native code: load only what you trust.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dynamo_package {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The numbers are torch's.
enum class Type : int32_t {
  kUInt8 = 0, kInt8 = 1, kInt16 = 2, kInt32 = 3, kInt64 = 4, kFloat16 = 5, kFloat32 = 6, kFloat64 = 7,
  kComplex64 = 9, kComplex128 = 10, kBool = 11, kBFloat16 = 15,
};

inline int64_t bytes_of(Type type) {
  switch (type) {
    case Type::kInt16: case Type::kFloat16: case Type::kBFloat16: return 2;
    case Type::kInt32: case Type::kFloat32: return 4;
    case Type::kInt64: case Type::kFloat64: case Type::kComplex64: return 8;
    case Type::kComplex128: return 16;
    default: return 1;
  }
}

template <class T> struct TypeOf;
template <> struct TypeOf<uint8_t> { static constexpr Type value = Type::kUInt8; };
template <> struct TypeOf<int8_t> { static constexpr Type value = Type::kInt8; };
template <> struct TypeOf<int16_t> { static constexpr Type value = Type::kInt16; };
template <> struct TypeOf<int32_t> { static constexpr Type value = Type::kInt32; };
template <> struct TypeOf<int64_t> { static constexpr Type value = Type::kInt64; };
template <> struct TypeOf<float> { static constexpr Type value = Type::kFloat32; };
template <> struct TypeOf<double> { static constexpr Type value = Type::kFloat64; };
template <> struct TypeOf<bool> { static constexpr Type value = Type::kBool; };

// Elements somewhere in memory; strides count elements. memory: keeps them alive, null where that is the caller's.
// `begin` may be an address on a GPU, where a package is for one.
struct Tensor {
  void* begin = nullptr;
  Type type = Type::kFloat32;
  std::vector<int64_t> sizes, strides;
  std::shared_ptr<void> memory;

  // A dense tensor over memory of the caller, which has to live as long as it.
  static Tensor over(void* begin, Type type, std::vector<int64_t> sizes) {
    Tensor made;
    made.begin = begin;
    made.type = type;
    made.strides.resize(sizes.size());
    int64_t step = 1;
    for (size_t i = sizes.size(); i-- > 0; step *= sizes[i]) made.strides[i] = step;
    made.sizes = std::move(sizes);
    return made;
  }

  // A dense tensor with memory of its own.
  static Tensor empty(Type type, std::vector<int64_t> sizes) {
    int64_t count = 1;
    for (int64_t size : sizes) count *= size;
    std::shared_ptr<void> memory(new char[static_cast<size_t>(count * bytes_of(type) + 64)],
                                 [](void* bytes) { delete[] static_cast<char*>(bytes); });
    auto place = reinterpret_cast<uintptr_t>(memory.get());
    Tensor made = over(reinterpret_cast<void*>((place + 63) / 64 * 64), type, std::move(sizes));
    made.memory = std::move(memory);
    return made;
  }

  // A dense tensor with a copy of these values.
  template <class T>
  static Tensor of(const std::vector<T>& values, std::vector<int64_t> sizes) {
    Tensor made = empty(TypeOf<T>::value, std::move(sizes));
    if (made.elements() != static_cast<int64_t>(values.size())) throw Error("the values are not as many as the sizes say");
    std::memcpy(made.begin, values.data(), values.size() * sizeof(T));
    return made;
  }

  template <class T>
  T* data() const {
    if (TypeOf<T>::value != type) throw Error("the elements of a tensor are of another type");
    return static_cast<T*>(begin);
  }

  int64_t elements() const {
    int64_t count = 1;
    for (int64_t size : sizes) count *= size;
    return count;
  }

  bool is_dense() const {
    int64_t step = 1;
    for (size_t i = sizes.size(); i-- > 0; step *= sizes[i]) {
      if (sizes[i] != 1 && strides[i] != step) return elements() == 0;
    }
    return true;
  }
};

namespace detail {

// As `interface.h` has it.
struct Plain {
  void* data;
  int32_t dtype, dims;
  const int64_t *sizes, *strides;
  void* owner;
};

constexpr size_t kRoom = 2000;  // of the text of an error

inline uint64_t turn_left(uint64_t word, int by) { return word << by | word >> (64 - by); }

// As `runtime.cpp` has it.
inline uint64_t checksum(const std::string& bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  uint64_t lanes[4] = {1, 2, 3, 4};
  size_t at = 0, count = bytes.size();
  auto add = [&](const char* from) {
    uint64_t words[4];
    std::memcpy(words, from, sizeof(words));
    for (int i = 0; i < 4; ++i) lanes[i] = turn_left((lanes[i] ^ words[i]) * kFactor, 29);
  };
  for (; at + 32 <= count; at += 32) add(bytes.data() + at);
  char rest[32] = {};
  if (at < count) std::memcpy(rest, bytes.data() + at, count - at);
  add(rest);
  uint64_t sum = count;
  for (uint64_t lane : lanes) sum = turn_left((sum ^ lane) * kFactor, 31);
  return sum;
}

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path + " can't be read; the package is not whole");
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// The checksum of the library. Errors: Error where it is not what was written. Lines of `package.sum`: name, checksum, bytes, SHA-256.
inline uint64_t check_library(const std::string& folder) {
  std::istringstream sums(content_of(folder + "/package.sum"));
  std::string name, digest;
  uint64_t sum = 0;
  size_t bytes = 0;
  while (sums >> name >> std::hex >> sum >> std::dec >> bytes >> digest) {
    if (name != "libmodel.so") continue;
    std::string content = content_of(folder + "/libmodel.so");
    if (content.size() == bytes && checksum(content) == sum) return sum;
    throw Error(folder + "/libmodel.so is damaged: its contents are not what was written");
  }
  throw Error(folder + "/package.sum is damaged");
}

// Where the library is. A path that `dlopen` has seen stands for what was there then, whatever is there now: so this one
// tells the checksum, by its slashes.
inline std::string path_of_library(const std::string& folder, uint64_t sum) {
  std::string path = folder[0] == '/' ? folder : "./" + folder;
  for (int bit = 0; bit < 32; ++bit) path += sum >> bit & 1 ? "//." : "/.";
  return path + "/libmodel.so";
}

struct Library {
  void* model = nullptr;
  void (*close)(void*) = nullptr;
  void (*release)(void*) = nullptr;
  int (*run)(void*, const Plain*, size_t, Plain*, char*, size_t) = nullptr;
  int (*run_on)(void*, const Plain*, size_t, Plain*, void*, char*, size_t) = nullptr;  // null where it is for a CPU
  void (*counts)(size_t*, size_t*) = nullptr;
  const char* (*input_name)(size_t) = nullptr;
  size_t inputs = 0, outputs = 0;

  explicit Library(const std::string& folder) {
    std::string path = path_of_library(folder, check_library(folder));
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: threads of OpenMP may be in it
    if (library == nullptr) throw Error(std::string("can't load ") + dlerror());
    void* (*open)(const char*, char*, size_t) = nullptr;
    find(library, "dynamo_package_open", open);
    find(library, "dynamo_package_close", close);
    find(library, "dynamo_package_release", release);
    find(library, "dynamo_package_run", run);
    run_on = reinterpret_cast<decltype(run_on)>(dlsym(library, "dynamo_package_run_on"));
    find(library, "dynamo_package_counts", counts);
    find(library, "dynamo_package_input_name", input_name);
    char error[kRoom] = {};
    model = open(folder.c_str(), error, sizeof(error));
    if (model == nullptr) throw Error(error);
    counts(&inputs, &outputs);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (model != nullptr) close(model);
  }

  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw Error(std::string("libmodel.so has no function ") + name);
  }
};

}  // namespace detail

class Model {
 public:
  // Errors: Error where the folder is not a whole package for this machine.
  static Model load(const std::string& folder) {
    Model made;
    made.library_ = std::make_shared<detail::Library>(folder);
    return made;
  }

  size_t input_count() const { return library_->inputs; }
  size_t output_count() const { return library_->outputs; }
  std::string input_name(size_t index) const { return library_->input_name(index); }

  // The tensors of the result, in order. Errors: Error where an input has another type, sizes or strides than the
  // package was made for, and where eager would raise (an index out of range). A result that is an input, or a view of
  // one, shares its memory.
  //
  // Of a package for a GPU: inputs lie on the host, or on the device (then what writes them has to be done, or to be in
  // the default stream); results lie on the host.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs) const {
    return results_of(inputs, [&](const detail::Plain* given, detail::Plain* got, char* error) {
      return library_->run(library_->model, given, inputs.size(), got, error, detail::kRoom);
    });
  }

  // The same of a package for a GPU, in order of a stream of CUDA's (a `CUstream` or `cudaStream_t`): results lie on the
  // device, and may not have been computed yet. Their memory is used again by later calls in that stream.
  std::vector<Tensor> run_on_device(const std::vector<Tensor>& inputs, void* stream = nullptr) const {
    if (library_->run_on == nullptr) throw Error("the package is for a CPU");
    return results_of(inputs, [&](const detail::Plain* given, detail::Plain* got, char* error) {
      return library_->run_on(library_->model, given, inputs.size(), got, stream, error, detail::kRoom);
    });
  }

 private:
  Model() = default;

  template <class Call>
  std::vector<Tensor> results_of(const std::vector<Tensor>& inputs, const Call& call) const {
    std::vector<detail::Plain> given, got(library_->outputs);
    for (const Tensor& input : inputs) {
      given.push_back({input.begin, static_cast<int32_t>(input.type), static_cast<int32_t>(input.sizes.size()),
                       input.sizes.data(), input.strides.data(), nullptr});
    }
    char error[detail::kRoom] = {};
    if (call(given.data(), got.data(), error)) throw Error(error);
    std::vector<Tensor> results(got.size());
    for (size_t i = 0; i < got.size(); ++i) results[i].memory = owner_of(got[i], inputs);
    for (size_t i = 0; i < got.size(); ++i) {
      const detail::Plain& plain = got[i];
      results[i].begin = plain.data;
      results[i].type = static_cast<Type>(plain.dtype);
      results[i].sizes.assign(plain.sizes, plain.sizes + plain.dims);
      results[i].strides.assign(plain.strides, plain.strides + plain.dims);
    }
    return results;
  }

  // What keeps a result alive: its own memory, that of the input whose memory it shows, or the model.
  std::shared_ptr<void> owner_of(const detail::Plain& plain, const std::vector<Tensor>& inputs) const {
    if (plain.owner != nullptr) {
      auto library = library_;
      return std::shared_ptr<void>(plain.owner, [library](void* owner) { library->release(owner); });
    }
    for (const Tensor& input : inputs) {
      const char *begin = static_cast<const char*>(input.begin), *at = static_cast<const char*>(plain.data);
      int64_t last = 0;
      for (size_t i = 0; i < input.sizes.size(); ++i) last += (input.sizes[i] - 1) * input.strides[i];
      if (at >= begin && at <= begin + last * bytes_of(input.type)) return input.memory;
    }
    return library_;
  }

  std::shared_ptr<detail::Library> library_;
};

}  // namespace dynamo_package
