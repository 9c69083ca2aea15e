// Rows of numbers by the weights of linear layers; a part of `kernels.cpp`.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "registry.h"

namespace products {
namespace {

// ---- few rows --------------------------------------------------------------------------------
//
// In bfloat16, by weights as PyTorch keeps them, [outputs][inputs]. A lane of a sum gets pair after
// pair of numbers, in whatever pieces they come, so that a row's product does not depend, bit by bit,
// on how many rows there are.
//
// Few rows wait for weights, above all. Each weight is read from memory once for all rows, and asked
// for while others are worked on: evenly, as a core can wait for a few dozen lines at once. Inputs are
// taken in pieces of which all rows fit into the innermost cache; sums are put aside between pieces.

constexpr int64_t kFew = 64;  // more rows are the library's, which is as fast or faster then

#ifdef __AVX512BF16__

constexpr bool kServed = true;

using Number = c10::BFloat16;
constexpr int64_t kStep = 32;             // numbers of a vector
constexpr int64_t kLanes = 16;            // sums of a vector, of pairs
constexpr int64_t kLeast = 4;             // outputs
constexpr int64_t kUnit = 16;             // outputs are divided among threads in so many
constexpr int64_t kTogether = 64;         // outputs, at most, whose sums are completed together
constexpr int64_t kAhead = 12 << 10;      // bytes of weights from those used to those asked for
constexpr int64_t kNearBytes = 20 << 10;  // of rows
constexpr int64_t kRowsNear = 18;         // more rows take turns
constexpr int64_t kAlone = 2;             // rows, at most, of a tile that is alone

template <typename T>
struct Aligned {  // to lines of a cache
  std::unique_ptr<char[]> room;
  T* data;

  explicit Aligned(int64_t count) : room(new char[count * sizeof(T) + 63]) {
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(room.get()) + 63) / 64 * 64);
  }
};

struct Piece {  // of all inputs
  const Number* weights;  // of the first of some outputs
  const Number* asked;    // those that are asked for meanwhile
  int64_t inputs;         // between the weights of neighbouring outputs
  const Number* rows;     // filled up with zeros
  int64_t apart;          // between neighbouring rows
  int64_t width;          // inputs of this piece
  float* aside;           // sums, [rows][outputs][lanes]
  bool first, last;
  bool in_order;          // whether lines are asked for as they lie, whatever outputs they are of
};

// Totals of the lanes of N sums, each added up in the same order.
template <int N>
C10_ALWAYS_INLINE void total(const __m512 (&sums)[N], float* totals) {
  static_assert(N == 2 || N == 4);
  __m512 all[N / 2];
#pragma GCC unroll 2
  for (int i = 0; i < N / 2; ++i) {
    const __m512 left = sums[2 * i], right = sums[2 * i + 1];
    all[i] = _mm512_add_ps(_mm512_unpacklo_ps(left, right), _mm512_unpackhi_ps(left, right));
  }
  constexpr int kLow = 0x44, kHigh = 0xee;
  const __m512 last = all[N / 2 - 1];
  const __m512 quads =
      _mm512_add_ps(_mm512_shuffle_ps(all[0], last, kLow), _mm512_shuffle_ps(all[0], last, kHigh));
  const __m256 half =
      _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
  const __m128 quarter =
      _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  std::memcpy(totals, &quarter, N * sizeof(float));
}

// To sums of M rows by N outputs, those inputs from the k-th on that are `there`.
template <int N, int M>
C10_ALWAYS_INLINE void add(const Piece& piece, const Number* rows, int64_t k, __mmask32 there,
                           int from, int to, __m512 (&sums)[M][N]) {
  __m512i weights[N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    weights[j] = _mm512_maskz_loadu_epi16(there, piece.weights + j * piece.inputs + k);
    const int64_t at = piece.in_order ? k * N + j * kStep : j * piece.inputs + k;
    if (j >= from && j < to) __builtin_prefetch(piece.asked + at, 0, 0);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const __m512i row = _mm512_load_si512(rows + m * piece.apart + k);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      sums[m][j] = _mm512_dpbf16_ps(sums[m][j], (__m512bh)weights[j], (__m512bh)row);
    }
  }
}

// Sums of M rows by N outputs. Of what is asked for meanwhile, the outputs from `from` to `to`.
template <int N, int M>
C10_ALWAYS_INLINE void tile(const Piece& piece, const Number* rows, float* aside, float* totals,
                            int from, int to) {
  __m512 sums[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sums[m][j] = _mm512_setzero_ps();
  }
  if (!piece.first) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sums[m][j] = _mm512_load_ps(aside + (m * N + j) * kLanes);
    }
  }
  int64_t k = 0;
  for (; k + kStep <= piece.width; k += kStep) {
    add<N, M>(piece, rows, k, ~__mmask32{0}, from, to, sums);
  }
  if (k < piece.width) {
    add<N, M>(piece, rows, k, (__mmask32{1} << (piece.width - k)) - 1, from, to, sums);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    if (piece.last) {
      total<N>(sums[m], totals + m * kTogether);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) _mm512_store_ps(aside + (m * N + j) * kLanes, sums[m][j]);
    }
  }
}

// Outputs and rows of a tile: registers hold the sums of four for six. A few rows take two outputs at a
// time and, from three rows on, two tiles, so that one computes with what the other has waited for.
// Each of them asks for the weights of one output; a tile that is alone would ask for those of two in
// turn, which takes a fifth longer than line after line.
constexpr int64_t kByTwo = 8;  // so many rows or fewer
template <int N>
constexpr int kLeastRows = N == 4 ? 4 : 1;
template <int N>
constexpr int kMostRows = N == 4 ? 6 : 4;

template <int N, int M = kMostRows<N>>
C10_ALWAYS_INLINE void tile_of(int64_t count, const Piece& piece, const Number* rows, float* aside,
                               float* totals, int from, int to) {
  if constexpr (M > kLeastRows<N>) {
    if (count < M) return tile_of<N, M - 1>(count, piece, rows, aside, totals, from, to);
  }
  tile<N, M>(piece, rows, aside, totals, from, to);
}

// Sums of any number of rows by N outputs.
template <int N>
void tiles(const Piece& piece, int64_t count, float* totals) {
  constexpr int64_t kMost = kMostRows<N>;
  const int64_t parts = std::max(at::divup(count, kMost), count > kAlone ? int64_t{2} : int64_t{1});
  int64_t done = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t some = at::divup(count - done, parts - part);
    tile_of<N>(some, piece, piece.rows + done * piece.apart, piece.aside + done * N * kLanes,
               totals + done * kTogether, static_cast<int>(N * part / parts),
               static_cast<int>(N * (part + 1) / parts));
    done += some;
  }
}

struct Shape {
  int64_t rows, inputs, outputs;
  int64_t turn;    // rows that are near at a time
  int64_t width;   // inputs of a piece
  int64_t pieces;
  int64_t apart;   // between rows of a piece; a power of two would put all into one set of a cache

  Shape(int64_t rows, int64_t inputs, int64_t outputs)
      : rows(rows), inputs(inputs), outputs(outputs) {
    turn = at::divup(rows, at::divup(rows, kRowsNear));
    const int64_t most = std::max(kNearBytes / (turn * int64_t{sizeof(Number)}), kStep);
    width = at::divup(at::divup(inputs, at::divup(inputs, most)), kStep) * kStep;
    pieces = at::divup(inputs, width);
    apart = width + kStep;
    if ((apart & (apart - 1)) == 0) apart += kStep;
  }
};

// Rows in pieces, [pieces][rows][apart].
Aligned<Number> in_pieces(const Number* rows, const Shape& of) {
  Aligned<Number> all(of.pieces * of.rows * of.apart);
  for (int64_t piece = 0; piece < of.pieces; ++piece) {
    const int64_t first = piece * of.width, count = std::min(of.width, of.inputs - first);
    for (int64_t row = 0; row < of.rows; ++row) {
      Number* target = all.data + (piece * of.rows + row) * of.apart;
      std::memcpy(target, rows + row * of.inputs + first, count * sizeof(Number));
      std::fill(target + count, target + of.width, Number(0.f));
    }
  }
  return all;
}

void finish(const float* totals, const Number* bias, int64_t count, Number* outputs) {
  using Lanes = at::vec::Vectorized<float>;
  using Narrow = at::vec::Vectorized<Number>;
  for (int64_t i = 0; i < count; i += Narrow::size()) {
    const int64_t some = std::min<int64_t>(count - i, Narrow::size());
    Lanes low = Lanes::loadu(totals + i), high = Lanes::loadu(totals + i + Lanes::size());
    if (bias) {
      const auto [left, right] = at::vec::convert_to_float<Number>(Narrow::loadu(bias + i, some));
      low = low + left;
      high = high + right;
    }
    at::vec::convert_from_float<Number>(low, high).store(outputs + i, some);
  }
}

// Outputs from `begin` to `end`, at least `kLeast`; N at a time.
template <int N>
void multiply(const Number* given, const Number* weights, const Number* bias, const Shape& of,
              int64_t begin, int64_t end, Number* outputs) {
  const Aligned<Number> pieces = in_pieces(given, of);
  const Aligned<float> aside(of.pieces > 1 ? of.rows * (kTogether + N) * kLanes : 0);
  const Aligned<float> totals(of.rows * kTogether);
  const int64_t bytes = N * of.width * int64_t{sizeof(Number)};
  const int64_t ahead = at::divup(kAhead, bytes) * N;
  const int64_t groups = at::divup(end - begin, kTogether);
  const auto start = [&](int64_t group) {
    return std::min(end, begin + at::divup((end - begin) * group / groups, N) * N);
  };
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = start(group), last = start(group + 1);
    for (int64_t at = 0; at < of.pieces; ++at) {
      const int64_t k = at * of.width;
      const bool complete = at + 1 == of.pieces;
      for (int64_t row = 0; row < of.rows; row += of.turn) {
        const int64_t count = std::min(of.turn, of.rows - row);
        int64_t place = 0;
        for (int64_t output = first; output < last; output += N, place += N) {
          const int64_t from = std::min(output, last - N);  // once more, rather than by fewer
          const int64_t next = from + ahead;
          const Number* asked = weights + next * of.inputs + k;
          if (next >= last && !complete) asked += (first - last) * of.inputs + of.width;
          if (next >= last && complete) asked -= k;
          const Piece piece{weights + from * of.inputs + k, asked, of.inputs,
                            pieces.data + (at * of.rows + row) * of.apart, of.apart,
                            std::min(of.width, of.inputs - k),
                            aside.data + (row * (kTogether + N) + place * count) * kLanes,
                            at == 0, complete, of.pieces == 1 && count <= kAlone};
          tiles<N>(piece, count, totals.data + row * kTogether + from - first);
        }
      }
    }
    for (int64_t row = 0; row < of.rows; ++row) {
      finish(totals.data + row * kTogether, bias ? bias + first : nullptr, last - first,
             outputs + row * of.outputs + first);
    }
  }
}

at::Tensor multiplied(const at::Tensor& given, const at::Tensor& weights,
                      const std::optional<at::Tensor>& bias) {
  const at::Tensor rows = given.contiguous();
  const Shape of(rows.numel() / rows.size(-1), rows.size(-1), weights.size(0));
  auto sizes = rows.sizes().vec();
  sizes.back() = of.outputs;
  at::Tensor outputs = at::empty(sizes, rows.options());
  const Number* all_rows = rows.const_data_ptr<Number>();
  const Number* all_weights = weights.const_data_ptr<Number>();
  const Number* all_bias = bias ? bias->const_data_ptr<Number>() : nullptr;
  Number* all_outputs = outputs.mutable_data_ptr<Number>();
  const int64_t units = std::max<int64_t>(of.outputs / kUnit, 1);
  at::parallel_for(0, units, 1, [&](int64_t begin, int64_t end) {
    const int64_t last = end == units ? of.outputs : end * kUnit;
    const auto multiply_some = of.rows > kByTwo ? multiply<4> : multiply<2>;
    multiply_some(all_rows, all_weights, all_bias, of, begin * kUnit, last, all_outputs);
  });
  return outputs;
}

bool serves(const at::Tensor& rows, const at::Tensor& weights) {
  return rows.scalar_type() == at::kBFloat16 && weights.scalar_type() == at::kBFloat16 &&
         rows.numel() > 0 && rows.numel() <= kFew * rows.size(-1) && weights.is_contiguous() &&
         weights.size(0) >= kLeast && weights.size(1) == rows.size(-1);
}

#else

constexpr bool kServed = false;

#endif

// ---- linear layers ---------------------------------------------------------------------------
//
// A compiler cannot see a weight in oneDNN's layout as a tensor, so that a number stands for it. Where
// a row that is alone is summed in another way than rows together (`lonely`), it gets company there.

struct Layer {
  at::Tensor weights;
  std::optional<at::Tensor> bias;
  bool lonely;
};

void hold(int64_t key, const at::Tensor& weights, const std::optional<at::Tensor>& bias,
          bool lonely) {
  Registry<Layer>::it().hold(key, {weights, bias, lonely});
}

void release(int64_t key) { Registry<Layer>::it().release(key); }

at::Tensor by_onednn(const at::Tensor& rows, const Layer& layer) {
  using Product = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                             std::string_view, c10::List<std::optional<at::Scalar>>,
                             std::optional<std::string_view>);
  static const auto product = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                  .typed<Product>();
  const c10::List<std::optional<at::Scalar>> no_numbers;
  const auto of = [&](const at::Tensor& given) {
    return product.call(given, layer.weights, layer.bias, "none", no_numbers, "");
  };
  if (layer.lonely && rows.numel() == rows.size(-1)) {
    return of(at::cat({rows, rows}, -2)).narrow(-2, 0, 1);
  }
  return of(rows);
}

at::Tensor linear(const at::Tensor& rows, int64_t key, int64_t /*out_features*/) {
  const Layer layer = Registry<Layer>::it().at(key);
  if (layer.weights.is_mkldnn()) return by_onednn(rows, layer);
#ifdef __AVX512BF16__
  if (serves(rows, layer.weights)) return multiplied(rows, layer.weights, layer.bias);
#endif
  return at::linear(rows, layer.weights, layer.bias);
}

}  // namespace
}  // namespace products
