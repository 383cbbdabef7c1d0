// Operators on many numbers, tensors without dimensions on the CPU: see operators/device_numbers.py.
//
// numbers_on(Tensor[] numbers, Device device) -> Tensor[] writes them into one piece of memory that one
// copy brings over. It does not wait for the device: memory that is not pinned is read before the
// copy's call returns. add_to_numbers_(Tensor(a!)[] numbers, Scalar number) -> () is torch's
// `_foreach_add_`. Through torch's own operators each number takes about a microsecond.
//
// compute_numbers_(Tensor(a!)[] written, Tensor[] read, float[] constants, int[] steps, int[] ends) -> ()
// runs a program over float32 and float64 with the arithmetic of ATen's kernels, and then writes: into
// each of `written` the value that `ends` names. Values are numbered: what is read, the constants, then
// the result of each step, which is four integers: the operation, whether it is float64, its operands.
#include <algorithm>
#include <cmath>
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

constexpr size_t kStep = 4;  // integers

template <class T>
T operate(int64_t operation, T a, T b) {
  switch (operation) {
    case 0: return a;
    case 1: return a + b;
    case 2: return a - b;
    case 3: return a * b;
    case 4: return a / b;
    case 5: return std::pow(a, b);
    case 6: return -a;
    case 7: return std::sqrt(a);
    case 8: return T(1) / a;
    case 9: return std::max(a, b);
    case 10: return std::min(a, b);
  }
  TORCH_CHECK(false, "no such operation: ", operation);
}

double value_of(const at::Tensor& number) {
  check_number(number);
  return number.scalar_type() == at::kDouble ? *number.const_data_ptr<double>()
                                             : static_cast<double>(*number.const_data_ptr<float>());
}

void compute_numbers(at::TensorList written, at::TensorList read, at::ArrayRef<double> constants,
                     at::IntArrayRef steps, at::IntArrayRef ends) {
  TORCH_CHECK(steps.size() % kStep == 0 && ends.size() == written.size(), "compute_numbers_: a broken program");
  std::vector<double> values;
  values.reserve(read.size() + constants.size() + steps.size() / kStep);
  for (const at::Tensor& number : read) {
    values.push_back(value_of(number));
  }
  values.insert(values.end(), constants.begin(), constants.end());
  const auto at = [&](int64_t place) {
    TORCH_CHECK(place >= 0 && static_cast<size_t>(place) < values.size(), "compute_numbers_: no value ", place);
    return values[place];
  };
  for (size_t i = 0; i < steps.size(); i += kStep) {
    const double a = at(steps[i + 2]);
    const double b = at(steps[i + 3]);
    values.push_back(steps[i + 1] != 0 ? operate(steps[i], a, b)
                                       : operate(steps[i], static_cast<float>(a), static_cast<float>(b)));
  }
  for (size_t i = 0; i < written.size(); ++i) {
    check_number(written[i]);
    if (written[i].scalar_type() == at::kDouble) {
      *written[i].mutable_data_ptr<double>() = at(ends[i]);
    } else {
      *written[i].mutable_data_ptr<float>() = static_cast<float>(at(ends[i]));
    }
  }
}

TORCH_LIBRARY_FRAGMENT(dynamo_jit, library) {
  library.def(
      "compute_numbers_(Tensor(a!)[] written, Tensor[] read, float[] constants, int[] steps, int[] ends) -> ()");
  library.impl("compute_numbers_", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(compute_numbers));
  library.def("numbers_on(Tensor[] numbers, Device device) -> Tensor[]");
  library.impl("numbers_on", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(numbers_on));
  library.def("add_to_numbers_(Tensor(a!)[] numbers, Scalar number) -> ()");
  library.impl("add_to_numbers_", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(add_to_numbers));
}

}  // namespace
}  // namespace inductor
