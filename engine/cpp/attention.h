// Attention for few queries behind many keys, and the cache that they are in; a part of `kernels.cpp`.

#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace {

// With the numbers of a head side by side.
at::Tensor dense(const at::Tensor& states) {
  return states.stride(3) == 1 ? states : states.contiguous();
}

using Lanes = at::vec::Vectorized<float>;
constexpr int64_t kLanes = Lanes::size();

float summed(const Lanes& numbers) {
  return at::vec::vec_reduce_all<float>([](Lanes& a, Lanes& b) { return a + b; }, numbers);
}

// ---- attention -------------------------------------------------------------------------------
//
// A lane of a vector is a query. What a query gets is one sum after another over dims, then over
// keys in their order, so that it does not depend, bit by bit, on how many others there are, nor
// on keys that it does not see: those add zeros.

constexpr int kKeys = 8;       // sums made at once, as many as hide a multiplication's latency
constexpr int kDims = 16;
constexpr int64_t kTile = 32;  // keys widened at once, which the innermost cache holds

// Asks for up to a tile of rows before they are needed: memory looks ahead to the end of a page only.
template <typename T>
void fetch(const T* from, int64_t stride, int64_t count, int64_t dims) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t row = 0; row < std::min(kTile, count); ++row) {
    for (int64_t d = 0; d < dims; d += kLine) __builtin_prefetch(from + row * stride + d);
  }
}

// `count` rows of numbers as floats, and the stride of these; floats are taken where they are.
template <typename T>
std::pair<const float*, int64_t> widened(const T* from, int64_t stride, int64_t count,
                                         int64_t dims, float* room) {
  if constexpr (std::is_same_v<T, float>) {
    return {from, stride};
  } else {
    using Narrow = at::vec::Vectorized<T>;
    static_assert(Narrow::size() == 2 * kLanes);
    for (int64_t row = 0; row < count; ++row) {
      const T* source = from + row * stride;
      float* target = room + row * dims;
      int64_t d = 0;
      for (; d + Narrow::size() <= dims; d += Narrow::size()) {
        auto [low, high] = at::vec::convert_to_float<T>(Narrow::loadu(source + d));
        low.store(target + d);
        high.store(target + d + kLanes);
      }
      for (; d < dims; ++d) {
        target[d] = static_cast<float>(source[d]);
      }
    }
    return {room, dims};
  }
}

// Adds to N sums at once; as `accumulate`.
template <int N>
C10_ALWAYS_INLINE void accumulate_at_once(const float* factors, const float* numbers, int64_t apart,
                                          int64_t step, int64_t count, float* sums) {
  Lanes held[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) held[i] = Lanes::loadu(sums + i * kLanes);
  for (int64_t k = 0; k < count; ++k) {
    const Lanes factor = Lanes::loadu(factors + k * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      held[i] = at::vec::fmadd(factor, Lanes(numbers[i * apart + k * step]), held[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) held[i].store(sums + i * kLanes);
}

// sums[many][lanes] get, one after another, `count` numbers each, by factors[count][lanes]. Numbers
// of a sum are `step` apart, and the first ones of neighbouring sums `apart`.
template <int N>
C10_ALWAYS_INLINE void accumulate(const float* factors, const float* numbers, int64_t apart,
                                  int64_t step, int64_t count, int64_t many, float* sums) {
  int64_t i = 0;
  for (; i + N <= many; i += N) {
    accumulate_at_once<N>(factors, numbers + i * apart, apart, step, count, sums + i * kLanes);
  }
  for (; i < many; ++i) {
    accumulate_at_once<1>(factors, numbers + i * apart, apart, step, count, sums + i * kLanes);
  }
}

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

constexpr bool kPairs = true;
static_assert(kLanes == 16);

// Products of N keys with queries, [dims / 2][lanes][2].
template <int N>
C10_ALWAYS_INLINE void multiply_pairs(const float* queries, const c10::BFloat16* keys,
                                      int64_t apart, int64_t dims, float* products) {
  __m512 sums[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) sums[i] = _mm512_setzero_ps();
  for (int64_t d = 0; d < dims; d += 2) {
    const __m512bh query = (__m512bh)_mm512_loadu_ps(queries + d / 2 * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      int32_t pair;
      std::memcpy(&pair, keys + i * apart + d, sizeof(pair));
      sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_set1_epi32(pair), query);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) _mm512_storeu_ps(products + i * kLanes, sums[i]);
}

void multiply_pairs(const float* queries, const c10::BFloat16* keys, int64_t apart, int64_t dims,
                    int64_t count, float* products) {
  int64_t i = 0;
  for (; i + kKeys <= count; i += kKeys) {
    multiply_pairs<kKeys>(queries, keys + i * apart, apart, dims, products + i * kLanes);
  }
  for (; i < count; ++i) {
    multiply_pairs<1>(queries, keys + i * apart, apart, dims, products + i * kLanes);
  }
}

#else

constexpr bool kPairs = false;

#endif

// Whether numbers are multiplied two at a time as they are, not one as floats.
template <typename T>
bool in_pairs(int64_t dims) {
  return kPairs && std::is_same_v<T, c10::BFloat16> && dims % 2 == 0;
}

template <typename T>
struct Head {  // of keys and values
  const T* keys;
  const T* values;
  int64_t key_stride, value_stride;
  int64_t length, key_dims, value_dims;
};

struct Room {  // of a thread
  float* queries;  // [key dims][lanes], or as pairs
  float* weights;  // [length][lanes]
  float* wide;     // [tile][dims]
  float* sums;     // [value dims][lanes]
};

// Products of some keys with the queries in `room`.
template <typename T>
void multiply(const Head<T>& head, int64_t first, int64_t count, const Room& room,
              float* products) {
  const T* keys = head.keys + first * head.key_stride;
  if constexpr (kPairs && std::is_same_v<T, c10::BFloat16>) {
    if (in_pairs<T>(head.key_dims)) {
      multiply_pairs(room.queries, keys, head.key_stride, head.key_dims, count, products);
      return;
    }
  }
  const auto [wide, stride] = widened(keys, head.key_stride, count, head.key_dims, room.wide);
  std::fill_n(products, count * kLanes, 0.f);
  accumulate<kKeys>(room.queries, wide, stride, 1, head.key_dims, count, products);
}

// What the queries in `room` get, into room.sums; `scale` is of products.
template <typename T>
void attend(const Head<T>& head, const float* mask, int64_t mask_stride, float scale,
            std::optional<double> softcap, const Room& room) {
  Lanes most(-std::numeric_limits<float>::infinity());
  for (int64_t first = 0; first < head.length; first += kTile) {
    const int64_t count = std::min(kTile, head.length - first), next = first + kTile;
    fetch(head.keys + next * head.key_stride, head.key_stride, head.length - next,
          head.key_dims);
    float* products = room.weights + first * kLanes;
    multiply(head, first, count, room, products);
    for (int64_t key = 0; key < count; ++key) {
      Lanes product = Lanes::loadu(products + key * kLanes) * Lanes(scale);
      if (softcap) {
        const float cap = static_cast<float>(*softcap);
        product = Lanes(cap) * (product / Lanes(cap)).tanh();
      }
      product = product + Lanes::loadu(mask + (first + key) * mask_stride);
      product.store(products + key * kLanes);
      most = at::vec::maximum(most, product);
    }
  }
  Lanes total(0.f);
  for (int64_t key = 0; key < head.length; ++key) {
    float* weight = room.weights + key * kLanes;
    const Lanes exponential = (Lanes::loadu(weight) - most).exp();
    exponential.store(weight);
    total = total + exponential;
  }
  std::fill_n(room.sums, head.value_dims * kLanes, 0.f);
  for (int64_t first = 0; first < head.length; first += kTile) {
    const int64_t count = std::min(kTile, head.length - first), next = first + kTile;
    fetch(head.values + next * head.value_stride, head.value_stride, head.length - next,
          head.value_dims);
    const auto [values, stride] = widened(head.values + first * head.value_stride,
                                          head.value_stride, count, head.value_dims, room.wide);
    accumulate<kDims>(room.weights + first * kLanes, values, 1, stride, count, head.value_dims,
                      room.sums);
  }
  for (int64_t d = 0; d < head.value_dims; ++d) {
    (Lanes::loadu(room.sums + d * kLanes) / total).store(room.sums + d * kLanes);
  }
}

template <typename T>
void attend_all(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const at::Tensor& mask, double scale, std::optional<double> softcap,
                at::Tensor& output) {
  const int64_t heads = query.size(1), n = query.size(2), dims = query.size(3);
  const int64_t kv_heads = key.size(1), length = mask.size(1), value_dims = value.size(3);
  const int64_t group = heads / kv_heads, rows = group * n;
  const int64_t blocks = at::divup(rows, kLanes);
  const int64_t head_stride = query.stride(1), node_stride = query.stride(2);
  const T* queries = query.const_data_ptr<T>();
  const T* keys = key.const_data_ptr<T>();
  const T* values = value.const_data_ptr<T>();
  const float* masks = mask.const_data_ptr<float>();
  T* outputs = output.mutable_data_ptr<T>();
  // Row r of a key-value head is node r % n of its query head r / n.
  at::parallel_for(0, kv_heads * blocks, 1, [&](int64_t begin, int64_t end) {
    const int64_t wide = kTile * std::max(dims, value_dims);
    const std::unique_ptr<float[]> all(new float[(dims + length + value_dims) * kLanes + wide]);
    Room room;
    room.queries = all.get();
    room.weights = room.queries + dims * kLanes;
    room.sums = room.weights + length * kLanes;
    room.wide = room.sums + value_dims * kLanes;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / blocks, first = task % blocks * kLanes;
      const int64_t count = std::min(kLanes, rows - first);
      std::fill_n(room.queries, dims * kLanes, 0.f);
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t row = first + lane;
        const T* source = queries + (head * group + row / n) * head_stride + row % n * node_stride;
        if (in_pairs<T>(dims)) {
          for (int64_t d = 0; d < dims; d += 2) {
            std::memcpy(room.queries + d / 2 * kLanes + lane, source + d, sizeof(float));
          }
        } else {
          for (int64_t d = 0; d < dims; ++d) {
            room.queries[d * kLanes + lane] = static_cast<float>(source[d]);
          }
        }
      }
      const Head<T> of{keys + head * key.stride(1), values + head * value.stride(1),
                       key.stride(2),  value.stride(2), length, dims, value_dims};
      attend(of, masks + first, mask.stride(1), static_cast<float>(scale), softcap, room);
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t row = first + lane;
        T* target = outputs + (row % n * heads + head * group + row / n) * value_dims;
        for (int64_t d = 0; d < value_dims; ++d) {
          target[d] = static_cast<T>(room.sums[d * kLanes + lane]);
        }
      }
    }
  });
}

at::Tensor attend_by_key(const at::Tensor& given, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& mask, double scale, std::optional<double> softcap) {
  const at::Tensor query = dense(given);
  const int64_t heads = query.size(1), kv_heads = key.size(1), keys = mask.size(1);
  const int64_t rows = heads / kv_heads * query.size(2);
  TORCH_CHECK(query.size(0) == 1 && mask.size(0) == 1 && mask.size(2) == 1);
  TORCH_CHECK(heads % kv_heads == 0 && value.size(1) == kv_heads && query.size(3) == key.size(3));
  TORCH_CHECK(key.size(2) >= keys && value.size(2) >= keys);
  TORCH_CHECK(key.scalar_type() == query.scalar_type() &&
              value.scalar_type() == query.scalar_type());
  TORCH_CHECK(key.stride(3) == 1 && value.stride(3) == 1);
  TORCH_CHECK(mask.scalar_type() == at::kFloat && mask.stride(3) == 1);
  TORCH_CHECK(mask.size(3) >= at::divup(rows, kLanes) * kLanes);
  at::Tensor output =
      at::empty({1, query.size(2), query.size(1), value.size(3)}, query.options());
  AT_DISPATCH_SWITCH(
      query.scalar_type(), "attend_by_key",
      AT_DISPATCH_CASE(at::kFloat, [&] {
        attend_all<scalar_t>(query, key, value, mask, scale, softcap, output);
      })
      AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] {
        attend_all<scalar_t>(query, key, value, mask, scale, softcap, output);
      }));
  return output;
}

// ---- the cache -------------------------------------------------------------------------------

void write_one(const at::Tensor& buffer, int64_t row, const at::Tensor& slots,
               const at::Tensor& given) {
  const at::Tensor states = dense(given), places = slots.contiguous();
  const int64_t heads = states.size(1), n = states.size(2), dims = states.size(3);
  TORCH_CHECK(row >= 0 && row < buffer.size(0) && buffer.stride(4) == 1);
  TORCH_CHECK(states.size(0) == 1 && buffer.size(2) == heads && buffer.size(4) == dims);
  TORCH_CHECK(buffer.scalar_type() == states.scalar_type() && places.numel() == n);
  const int64_t size = states.element_size();
  const int64_t* place = places.const_data_ptr<int64_t>();
  char* target = static_cast<char*>(buffer.mutable_data_ptr()) + row * buffer.stride(0) * size;
  const char* source = static_cast<const char*>(states.const_data_ptr());
  for (int64_t i = 0; i < n; ++i) {
    TORCH_CHECK(place[i] >= 0 && place[i] < buffer.size(3));
    for (int64_t head = 0; head < heads; ++head) {
      std::memcpy(target + (head * buffer.stride(2) + place[i] * buffer.stride(3)) * size,
                  source + (head * states.stride(1) + i * states.stride(2)) * size, dims * size);
    }
  }
}

void write_states(const at::Tensor& keys, const at::Tensor& values, int64_t keys_row,
                  int64_t values_row, const at::Tensor& slots, const at::Tensor& key_states,
                  const at::Tensor& value_states) {
  write_one(keys, keys_row, slots, key_states);
  write_one(values, values_row, slots, value_states);
}

}  // namespace
