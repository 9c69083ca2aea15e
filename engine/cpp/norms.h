// Norms of rows; a part of `kernels.cpp`.

#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attention.h"

namespace {

constexpr int64_t kAlone = 1 << 15;  // numbers for which a second thread does not pay

// Numbers by `factor`, rounded if asked, by `scale`; a vector of T at most.
template <typename T>
void scaled(const float* numbers, float factor, const float* scale, int64_t count, bool rounded,
            T* to) {
  using Narrow = at::vec::Vectorized<T>;
  Lanes low = Lanes::loadu(numbers) * Lanes(factor);
  if constexpr (std::is_same_v<T, float>) {
    (low * Lanes::loadu(scale)).store(to, count);
  } else {
    Lanes high = Lanes::loadu(numbers + kLanes) * Lanes(factor);
    if (rounded) {
      std::tie(low, high) =
          at::vec::convert_to_float<T>(at::vec::convert_from_float<T>(low, high));
    }
    low = low * Lanes::loadu(scale);
    high = high * Lanes::loadu(scale + kLanes);
    static_cast<Narrow>(at::vec::convert_from_float<T>(low, high)).store(to, count);
  }
}

template <typename T>
void norm_rows(const T* rows, const float* scale, int64_t count, int64_t dims, float eps,
               bool rounded, T* outputs) {
  constexpr int64_t kWidth = at::vec::Vectorized<T>::size();
  const int64_t whole = at::divup(dims, kWidth) * kWidth;
  at::parallel_for(0, count, std::max<int64_t>(1, kAlone / dims), [&](int64_t begin, int64_t end) {
    std::vector<float> wide(whole), scales(whole);
    std::copy_n(scale, dims, scales.begin());
    for (int64_t row = begin; row < end; ++row) {
      const T* from = rows + row * dims;
      const auto [same, stride] = widened(from, dims, 1, dims, wide.data());
      if (same != wide.data()) std::copy_n(same, dims, wide.begin());
      Lanes squares(0.f);
      for (int64_t d = 0; d < whole; d += kLanes) {
        const Lanes numbers = Lanes::loadu(wide.data() + d);
        squares = at::vec::fmadd(numbers, numbers, squares);
      }
      const float factor = 1 / std::sqrt(summed(squares) / dims + eps);
      for (int64_t d = 0; d < dims; d += kWidth) {
        scaled(wide.data() + d, factor, scales.data() + d, std::min(kWidth, dims - d), rounded,
               outputs + row * dims + d);
      }
    }
  });
}

// The last dim by the root of its mean square, and by `scale`; in half precision rounded before, too,
// if a model does it so.
at::Tensor rms_norm(const at::Tensor& given, const at::Tensor& scale, double eps, bool rounded) {
  const at::Tensor rows = given.contiguous();
  const int64_t dims = rows.size(-1);
  TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.is_contiguous() && scale.numel() == dims);
  at::Tensor output = at::empty(rows.sizes(), rows.options());
  const auto norm = [&](auto* outputs) {
    using T = std::remove_pointer_t<decltype(outputs)>;
    norm_rows<T>(rows.const_data_ptr<T>(), scale.const_data_ptr<float>(), rows.numel() / dims, dims,
                 static_cast<float>(eps), rounded, outputs);
  };
  AT_DISPATCH_SWITCH(
      rows.scalar_type(), "rms_norm",
      AT_DISPATCH_CASE(at::kFloat, [&] { norm(output.mutable_data_ptr<scalar_t>()); })
      AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] { norm(output.mutable_data_ptr<scalar_t>()); }));
  return output;
}

}  // namespace
