// runner FOLDER INPUTS OUTPUTS [REPEATS [THREADS]]: runs a package on tensors of a file and writes what it gives.
// With repeats it prints the median of their seconds; with threads, each of them runs the model, and all must agree.
//
// A file: the number of tensors, then of each its type, its dimensions, sizes, strides, bytes, and these, as int64.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "model.h"

using namespace dynamo_package;

static int64_t number(std::ifstream& file) {
  int64_t value = 0;
  if (!file.read(reinterpret_cast<char*>(&value), sizeof(value))) throw Error("the file of inputs is too short");
  return value;
}

static std::vector<Tensor> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Tensor> made(static_cast<size_t>(number(file)));
  for (Tensor& tensor : made) {
    auto type = static_cast<Type>(number(file));
    auto dims = static_cast<size_t>(number(file));
    std::vector<int64_t> sizes(dims), strides(dims);
    for (int64_t& size : sizes) size = number(file);
    for (int64_t& stride : strides) stride = number(file);
    int64_t bytes = number(file);
    tensor = Tensor::empty(Type::kUInt8, {bytes});
    file.read(static_cast<char*>(tensor.begin), bytes);
    tensor.type = type;
    tensor.sizes = sizes;
    tensor.strides = strides;
  }
  return made;
}

static void write(const char* path, const std::vector<Tensor>& tensors) {
  std::ofstream file(path, std::ios::binary);
  auto put = [&](int64_t value) { file.write(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(static_cast<int64_t>(tensors.size()));
  for (const Tensor& tensor : tensors) {
    int64_t span = tensor.elements() ? 1 : 0;
    for (size_t i = 0; i < tensor.sizes.size() && span; ++i) span += (tensor.sizes[i] - 1) * tensor.strides[i];
    put(static_cast<int64_t>(tensor.type));
    put(static_cast<int64_t>(tensor.sizes.size()));
    for (int64_t size : tensor.sizes) put(size);
    for (int64_t stride : tensor.strides) put(stride);
    put(span * bytes_of(tensor.type));
    file.write(static_cast<const char*>(tensor.begin), span * bytes_of(tensor.type));
  }
}

static bool same(const std::vector<Tensor>& left, const std::vector<Tensor>& right) {
  for (size_t i = 0; i < left.size(); ++i) {
    auto bytes = static_cast<size_t>(left[i].elements() * bytes_of(left[i].type));
    if (!left[i].is_dense() || std::memcmp(left[i].begin, right[i].begin, bytes) != 0) return false;
  }
  return left.size() == right.size();
}

int main(int count, char** words) {
  try {
    Model model = Model::load(words[1]);
    std::vector<Tensor> inputs = read(words[2]), results = model.run(inputs);
    write(words[3], results);
    int repeats = count > 4 ? std::atoi(words[4]) : 0, threads = count > 5 ? std::atoi(words[5]) : 0;
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
      auto begin = std::chrono::steady_clock::now();
      model.run(inputs);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(seconds.begin(), seconds.end());
    if (repeats) std::printf("%.6f\n", seconds[seconds.size() / 2]);
    std::vector<std::thread> running;
    std::vector<int> wrong(static_cast<size_t>(threads));
    for (int& flag : wrong) {
      running.emplace_back([&] {
        for (int i = 0; i < 20; ++i) flag |= !same(model.run(inputs), results);
      });
    }
    for (std::thread& one : running) one.join();
    if (std::count(wrong.begin(), wrong.end(), 0) != threads) throw Error("threads disagree");
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
