// Runs the model that `make.py` has packaged. No Python, no libtorch.
#include <cstdio>

#include "model.h"

int main(int, char** words) {
  try {
    auto model = dynamo_package::Model::load(words[1]);
    std::vector<float> values(16);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 16;
    auto x = dynamo_package::Tensor::of(values, {2, 8});
    std::vector<dynamo_package::Tensor> results = model.run({x});
    const float* rows = results[0].data<float>();
    for (int i = 0; i < 2; ++i) std::printf("%.4f %.4f %.4f\n", rows[3 * i], rows[3 * i + 1], rows[3 * i + 2]);
  } catch (const dynamo_package::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
