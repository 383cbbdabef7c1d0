// Operators on many numbers, tensors without dimensions on the CPU: see operators/device_numbers.py.
//
// numbers_on(Tensor[] numbers, Device device) -> Tensor[] writes them into one piece of memory that one
// copy brings over. It does not wait for the device: memory that is not pinned is read before the
// copy's call returns. add_to_numbers_(Tensor(a!)[] numbers, Scalar number) -> () is torch's
// `_foreach_add_`. Through torch's own operators each number takes about a microsecond.
#include <cstring>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

namespace inductor {
namespace {

constexpr int64_t kAligned = 16;  // bytes, from one number to the next

void check_number(const at::Tensor& number) {
  TORCH_CHECK(number.is_cpu() && number.dim() == 0 && number.element_size() <= kAligned,
              "numbers on the CPU were expected");
}

std::vector<at::Tensor> numbers_on(at::TensorList numbers, c10::Device device) {
  const auto count = static_cast<int64_t>(numbers.size());
  at::Tensor here = at::zeros({count * kAligned}, at::TensorOptions().dtype(at::kByte));
  auto* goal = static_cast<char*>(here.data_ptr());
  for (const at::Tensor& number : numbers) {
    check_number(number);
    std::memcpy(goal, number.const_data_ptr(), number.element_size());
    goal += kAligned;
  }
  at::Tensor there = here.to(here.options().device(device), /*non_blocking=*/true);
  std::vector<at::Tensor> results;
  results.reserve(numbers.size());
  for (int64_t i = 0; i < count; ++i) {
    auto one = c10::make_intrusive<c10::TensorImpl>(
        c10::Storage(there.storage()), there.key_set(), numbers[i].dtype());
    one->set_sizes_contiguous({});
    one->set_storage_offset(i * kAligned / static_cast<int64_t>(numbers[i].element_size()));
    results.emplace_back(std::move(one));
  }
  return results;
}

void add_to_numbers(at::TensorList numbers, const at::Scalar& number) {
  TORCH_CHECK(!numbers.empty(), "add_to_numbers_ needs numbers");
  const auto type = numbers[0].scalar_type();
  AT_DISPATCH_ALL_TYPES(type, "add_to_numbers_", [&] {
    const auto more = number.to<scalar_t>();
    for (const at::Tensor& one : numbers) {
      check_number(one);
      TORCH_CHECK(one.scalar_type() == type, "numbers of one dtype were expected");
      *one.mutable_data_ptr<scalar_t>() += more;
    }
  });
}

TORCH_LIBRARY_FRAGMENT(dynamo_jit, library) {
  library.def("numbers_on(Tensor[] numbers, Device device) -> Tensor[]");
  library.impl("numbers_on", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(numbers_on));
  library.def("add_to_numbers_(Tensor(a!)[] numbers, Scalar number) -> ()");
  library.impl("add_to_numbers_", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(add_to_numbers));
}

}  // namespace
}  // namespace inductor
