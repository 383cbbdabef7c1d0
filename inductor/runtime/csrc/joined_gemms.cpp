// GEMMs of one left operand as one, where their weights lie in order: see operators/joined_gemms.py.
//
// joined_gemms(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor. Whether the weights, and the biases,
// lie one behind another is looked at in each call; a tensor over all of them owns nothing, and is
// right as long as the parts are there, which the caller holds.
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

namespace inductor {
namespace {

// A tensor over the memory of parts, or nothing where it would be none of theirs.
std::optional<at::Tensor> over_all(at::TensorList parts) {
  const at::Tensor& first = parts[0];
  const auto* begin = static_cast<const char*>(first.const_data_ptr());
  const char* end = begin;
  int64_t rows = 0;
  for (const at::Tensor& part : parts) {
    if (part.const_data_ptr() != end || !part.is_contiguous() || part.scalar_type() != first.scalar_type() ||
        part.sizes().slice(1) != first.sizes().slice(1)) {
      return std::nullopt;
    }
    end += part.nbytes();
    rows += part.size(0);
  }
  // Only read, but a storage has no way to say so.
  c10::DataPtr memory(const_cast<char*>(begin), first.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), end - begin, std::move(memory));
  const auto key = first.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto all = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), first.dtype());
  if (first.dim() == 1) {
    all->set_sizes_contiguous({rows});
  } else {
    all->set_sizes_contiguous({rows, first.size(1)});
  }
  return at::Tensor(std::move(all));
}

at::Tensor one_for_each(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  std::vector<at::Tensor> results;
  results.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    results.push_back(biases.empty() ? at::linear(x, weights[i]) : at::linear(x, weights[i], biases[i]));
  }
  return at::cat(results, 1);
}

at::Tensor joined_gemms(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  TORCH_CHECK(!weights.empty() && (biases.empty() || biases.size() == weights.size()),
              "joined_gemms: a bias for each weight, or none, was expected");
  const std::optional<at::Tensor> weight = over_all(weights);
  if (!weight) {
    return one_for_each(x, weights, biases);
  }
  if (biases.empty()) {
    return at::mm(x, weight->t());
  }
  const std::optional<at::Tensor> bias = over_all(biases);
  return at::addmm(bias ? *bias : at::cat(biases), x, weight->t());
}

TORCH_LIBRARY_FRAGMENT(dynamo_jit, library) {
  library.def("joined_gemms(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor");
  library.impl("joined_gemms", c10::DispatchKey::CPU, TORCH_FN(joined_gemms));
  library.impl("joined_gemms", c10::DispatchKey::CUDA, TORCH_FN(joined_gemms));
}

}  // namespace
}  // namespace inductor
