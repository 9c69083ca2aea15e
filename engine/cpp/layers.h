// Decoder layers, each as one operator; a part of `kernels.cpp`.
//
// Norm, attention and sum, norm, gated products and sum, as of Llama and Qwen; `engine/layers.py`
// finds the layers that are. Numbers are rounded where transformers' operators round them.

#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention.h"
#include "norms.h"
#include "products.h"
#include "registry.h"

namespace layers {
namespace {

struct Norm {
  at::Tensor scale;
  double eps;
  bool rounded;

  at::Tensor operator()(const at::Tensor& rows) const { return rms_norm(rows, scale, eps, rounded); }
};

struct Layer {
  int64_t heads, kv_heads;
  double scale;                                  // of attention's products
  int64_t into_heads, out_of_heads, wider, back;  // products, by which `products` knows them
  Norm before_heads, before_wider;
  std::optional<Norm> of_queries, of_keys;
};

// Norms come in the order of `Layer`; of queries and keys they may be missing.
void hold(int64_t key, at::IntArrayRef linears, at::TensorList scales, at::ArrayRef<double> eps,
          const c10::List<bool>& rounded, int64_t heads, int64_t kv_heads, double scale) {
  TORCH_CHECK(linears.size() == 4 && (scales.size() == 2 || scales.size() == 4));
  TORCH_CHECK(eps.size() == scales.size() && rounded.size() == scales.size());
  const auto norm = [&](size_t i) { return Norm{scales[i], eps[i], rounded[i]}; };
  Layer layer{heads,      kv_heads,   scale,   linears[0], linears[1],
              linears[2], linears[3], norm(0), norm(1),    {},         {}};
  if (scales.size() == 4) {
    layer.of_queries = norm(2);
    layer.of_keys = norm(3);
  }
  Registry<Layer>::it().hold(key, std::move(layer));
}

void release(int64_t key) { Registry<Layer>::it().release(key); }

// A head's numbers, turned by the angles of a position.
template <typename T>
void turn(const T* from, const T* cos, const T* sin, int64_t dims, T* to) {
  using Numbers = at::vec::Vectorized<T>;
  const int64_t half = dims / 2;
  for (int64_t d = 0; d < half; d += Numbers::size()) {
    const int64_t count = std::min<int64_t>(half - d, Numbers::size());
    const auto some = [&](const T* numbers) { return Numbers::loadu(numbers + d, count); };
    const Numbers low = some(from), high = some(from + half);
    (low * some(cos) + high.neg() * some(sin)).store(to + d, count);
    (high * some(cos + half) + low * some(sin + half)).store(to + half + d, count);
  }
}

struct States {  // of some heads, [tokens][heads * dims]
  at::Tensor numbers;
  int64_t stride;  // between tokens

  States(const at::Tensor& together, int64_t first, int64_t heads, int64_t dims,
         const std::optional<Norm>& norm)
      : numbers(together.narrow(-1, first * dims, heads * dims)), stride(together.size(-1)) {
    if (norm) {
      numbers = (*norm)(numbers.unflatten(-1, {heads, dims}));
      stride = heads * dims;
    }
  }
};

// Queries of some tokens, [1, tokens, heads, dims]; their keys and values go to the cache.
template <typename T>
at::Tensor turned(const Layer& layer, const at::Tensor& together, const at::Tensor& cos,
                  const at::Tensor& sin, const at::Tensor& keys, const at::Tensor& values,
                  const int64_t* slots) {
  const int64_t tokens = together.size(1), dims = keys.size(3), kv_heads = layer.kv_heads;
  const States query(together, 0, layer.heads, dims, layer.of_queries);
  const States key(together, layer.heads, kv_heads, dims, layer.of_keys);
  const States value(together, layer.heads + kv_heads, kv_heads, dims, {});
  at::Tensor queries = at::empty({1, tokens, layer.heads, dims}, together.options());
  T* to = queries.mutable_data_ptr<T>();
  T* all_keys = static_cast<T*>(keys.mutable_data_ptr());
  T* all_values = static_cast<T*>(values.mutable_data_ptr());
  for (int64_t i = 0; i < tokens; ++i) {
    TORCH_CHECK(slots[i] >= 0 && slots[i] < keys.size(2));
    const T* token_cos = cos.const_data_ptr<T>() + i * dims;
    const T* token_sin = sin.const_data_ptr<T>() + i * dims;
    const T* from = query.numbers.const_data_ptr<T>() + i * query.stride;
    for (int64_t head = 0; head < layer.heads; ++head) {
      turn(from + head * dims, token_cos, token_sin, dims, to + (i * layer.heads + head) * dims);
    }
    for (int64_t head = 0; head < kv_heads; ++head) {
      turn(key.numbers.const_data_ptr<T>() + i * key.stride + head * dims, token_cos, token_sin,
           dims, all_keys + head * keys.stride(1) + slots[i] * keys.stride(2));
      std::memcpy(all_values + head * values.stride(1) + slots[i] * values.stride(2),
                  value.numbers.const_data_ptr<T>() + i * value.stride + head * dims,
                  dims * sizeof(T));
    }
  }
  return queries;
}

// To `sums`, of as many numbers.
template <typename T>
void add(const at::Tensor& numbers, const at::Tensor& sums) {
  using Numbers = at::vec::Vectorized<T>;
  const T* from = numbers.const_data_ptr<T>();
  T* to = sums.mutable_data_ptr<T>();
  at::parallel_for(0, sums.numel(), kAlone, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += Numbers::size()) {
      const int64_t count = std::min<int64_t>(end - i, Numbers::size());
      (Numbers::loadu(to + i, count) + Numbers::loadu(from + i, count)).store(to + i, count);
    }
  });
}

Lanes silu(const Lanes& numbers) { return numbers / (Lanes(1.f) + numbers.neg().exp()); }

// [..., 2 * dims] -> [..., dims]: the sigmoid linear units of one half by the other.
template <typename T>
at::Tensor gated(const at::Tensor& both) {
  using Numbers = at::vec::Vectorized<T>;
  constexpr int64_t kChunk = 512;  // of a row; a row alone is not worth two threads
  const int64_t dims = both.size(-1) / 2, rows = both.numel() / (2 * dims);
  const int64_t chunks = at::divup(dims, kChunk);
  auto sizes = both.sizes().vec();
  sizes.back() = dims;
  at::Tensor output = at::empty(sizes, both.options());
  const T* all = both.const_data_ptr<T>();
  T* outputs = output.mutable_data_ptr<T>();
  at::parallel_for(0, rows * chunks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / chunks, first = task % chunks * kChunk;
      const T* gate = all + row * 2 * dims;
      for (int64_t d = first; d < std::min(dims, first + kChunk); d += Numbers::size()) {
        const int64_t count = std::min<int64_t>(dims - d, Numbers::size());
        Numbers open = Numbers::loadu(gate + d, count);
        if constexpr (std::is_same_v<T, float>) {
          open = silu(open);
        } else {
          const auto [low, high] = at::vec::convert_to_float<T>(open);
          open = at::vec::convert_from_float<T>(silu(low), silu(high));
        }
        (open * Numbers::loadu(gate + dims + d, count)).store(outputs + row * dims + d, count);
      }
    }
  });
  return output;
}

template <typename T>
at::Tensor computed(const Layer& layer, const at::Tensor& hidden, const at::Tensor& cos,
                    const at::Tensor& sin, const at::Tensor& mask, const at::Tensor& keys,
                    const at::Tensor& values, const at::Tensor& slots) {
  const at::Tensor together = products::linear(layer.before_heads(hidden), layer.into_heads, 0);
  const at::Tensor queries =
      turned<T>(layer, together, cos, sin, keys, values, slots.const_data_ptr<int64_t>());
  const at::Tensor attended =
      attend_by_key(queries.transpose(1, 2), keys, values, mask, layer.scale, {});
  const at::Tensor between = products::linear(attended.flatten(2), layer.out_of_heads, 0);
  add<T>(hidden, between);
  const at::Tensor wide = products::linear(layer.before_wider(between), layer.wider, 0);
  const at::Tensor output = products::linear(gated<T>(wide), layer.back, 0);
  add<T>(between, output);
  return output;
}

// Hidden states of some tokens, [1, tokens, dims], behind one more layer. Where their keys and
// values go, and what is attended to, is as of `write` and `attend_by_key`; `cos` and `sin` are
// [1, tokens, dims of a head].
at::Tensor decode(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin,
                  const at::Tensor& mask, const at::Tensor& all_keys, const at::Tensor& all_values,
                  int64_t keys_row, int64_t values_row, const at::Tensor& slots, int64_t key) {
  const Layer layer = Registry<Layer>::it().at(key);
  const at::Tensor hidden = given.contiguous(), keys = all_keys.select(0, keys_row);
  const at::Tensor values = all_values.select(0, values_row);
  const int64_t tokens = hidden.size(1), dims = keys.size(3);
  const auto type = hidden.scalar_type();
  TORCH_CHECK(hidden.dim() == 3 && hidden.size(0) == 1 && dims % 2 == 0);
  TORCH_CHECK(keys.size(1) == layer.kv_heads && values.size(1) == layer.kv_heads);
  TORCH_CHECK(values.size(3) == dims && keys.size(2) == values.size(2));
  TORCH_CHECK(keys.stride(3) == 1 && values.stride(3) == 1);
  TORCH_CHECK(slots.numel() == tokens && slots.scalar_type() == at::kLong);
  for (const at::Tensor& angles : {cos, sin}) {
    TORCH_CHECK(angles.numel() == tokens * dims && angles.scalar_type() == type);
  }
  TORCH_CHECK(keys.scalar_type() == type && values.scalar_type() == type);
  at::Tensor output;
  const auto compute = [&](auto number) {
    output = computed<decltype(number)>(layer, hidden, cos.contiguous(), sin.contiguous(), mask, keys,
                                        values, slots.contiguous());
  };
  AT_DISPATCH_SWITCH(
      type, "decode", AT_DISPATCH_CASE(at::kFloat, [&] { compute(scalar_t{}); })
                          AT_DISPATCH_CASE(at::kBFloat16, [&] { compute(scalar_t{}); }));
  return output;
}

}  // namespace
}  // namespace layers
