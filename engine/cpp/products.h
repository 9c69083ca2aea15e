// Rows of numbers by the weights of linear layers; a part of `kernels.cpp`.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "numbers.h"
#include "registry.h"

namespace products {
namespace {

// ---- few rows --------------------------------------------------------------------------------
//
// By weights as PyTorch keeps them, [outputs][inputs]. A lane of a sum gets number after number, or
// pair after pair, in whatever pieces they come, so that a row's product does not depend, bit by bit,
// on how many rows there are.
//
// Few rows wait for weights, above all. Each weight is read from memory once for all rows, and asked
// for while others are worked on: evenly, as a core can wait for a few dozen lines at once. Inputs are
// taken in pieces of which all rows fit into the innermost cache; sums are put aside between pieces.

#ifdef RECAP_VECTORS

constexpr int64_t kLeast = 4;         // outputs
constexpr int64_t kUnit = 16;         // outputs are divided among threads in so many
constexpr int64_t kTogether = 64;     // outputs, at most, whose sums are completed together
constexpr int64_t kAhead = 12 << 10;  // bytes of weights from those used to those asked for
constexpr int64_t kRowsNear = 18;     // more rows take turns
constexpr int64_t kAlone = 2;         // rows, at most, of a tile that is alone

template <typename T>
struct Aligned {  // to lines of a cache
  std::unique_ptr<char[]> room;
  T* data;

  explicit Aligned(int64_t count) : room(new char[count * sizeof(T) + 63]) {
    data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(room.get()) + 63) / 64 * 64);
  }
};

template <typename K>
constexpr int64_t whole_steps(int64_t width) {
  return at::divup(width, K::kStep) * K::kStep;
}

template <typename K>
struct Piece {  // of all inputs
  using Weight = typename K::Weight;

  const Weight* weights;        // of the first of some outputs
  const Weight* asked;          // those that are asked for meanwhile
  int64_t inputs;               // between the weights of neighbouring outputs
  const typename K::Row* rows;  // filled up with zeros
  int64_t apart;                // between neighbouring rows
  int64_t width;                // inputs of this piece
  float* aside;                 // sums, [rows][outputs][lanes]
  float* totals;
  float* notes;                 // room for widened weights, [outputs][width in whole steps]
  bool first, last;
  bool in_order;                // whether lines are asked for as they lie, whatever outputs they are of
};

template <typename K, int N, int P>
struct Tile {  // some rows of a piece
  const typename K::Row* rows;
  float* aside;
  float* totals;
  const typename K::Weight* asked[P];

  // The part-th of some, with so many rows before it. Together they ask for the weights of N outputs;
  // those that have none to ask for ask for what is there.
  Tile(const Piece<K>& piece, int64_t part, int64_t parts, int64_t done)
      : rows(piece.rows + done * piece.apart),
        aside(piece.aside + done * N * K::kLanes),
        totals(piece.totals + done * kTogether) {
    const int64_t from = N * part / parts, to = N * (part + 1) / parts;
    for (int64_t i = 0; i < P; ++i) {
      const int64_t between = piece.in_order ? K::kStep : piece.inputs;
      asked[i] = from + i < to ? piece.asked + (from + i) * between : piece.weights;
    }
  }
};

// Sums of M rows by N outputs, with weights that are `between` apart.
template <typename K, int N, int M, int P, bool kNoted, typename From>
C10_ALWAYS_INLINE void multiply_tile(const Piece<K>& piece, const Tile<K, N, P>& tile,
                                     const From* weights, int64_t between) {
  typename K::Sum sums[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      sums[m][j] = piece.first ? K::zero() : K::load(tile.aside + (m * N + j) * K::kLanes);
    }
  }
  const int64_t stride = piece.in_order ? N : 1, whole = whole_steps<K>(piece.width);
  const auto add = [&](int64_t k, const From* some, int64_t apart) {
    K::template add<N, M, kNoted>(some, apart, tile.rows + k, piece.apart, sums, piece.notes + k,
                                  whole);
  };
  int64_t k = 0;
  for (; k + K::kStep <= piece.width; k += K::kStep) {
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i) __builtin_prefetch(tile.asked[i] + k * stride, 0, 0);
    add(k, weights + k, between);
  }
  if (k < piece.width) {  // what is left, filled up with zeros
    alignas(64) From rest[N][K::kStep] = {};
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      std::memcpy(rest[j], weights + j * between + k, (piece.width - k) * sizeof(From));
    }
    add(k, rest[0], K::kStep);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    if (piece.last) {
      total<N>(sums[m], tile.totals + m * kTogether);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) K::store(tile.aside + (m * N + j) * K::kLanes, sums[m][j]);
    }
  }
}

// Outputs and rows of a tile are as many as registers hold the sums of. A few rows take two outputs at
// a time and, from three rows on, two tiles, so that one computes with what the other has waited for.
// Each of them asks for the weights of one output; a tile that is alone would ask for those of two in
// turn, which takes a fifth longer than line after line.
constexpr int64_t kByTwo = 8;  // so many rows or fewer
template <typename K, int N>
constexpr int kLeastRows = N == 4 ? K::kMostByFour / 2 + 1 : 1;
template <typename K, int N>
constexpr int kMostRows = N == 4 ? K::kMostByFour : 4;

template <bool kNoted, typename K, int N, int P, typename From, int M = kMostRows<K, N>>
C10_ALWAYS_INLINE void multiply_rows(int64_t count, const Piece<K>& piece, const Tile<K, N, P>& tile,
                                     const From* weights, int64_t between) {
  if constexpr (M > kLeastRows<K, N>) {
    if (count < M) {
      return multiply_rows<kNoted, K, N, P, From, M - 1>(count, piece, tile, weights, between);
    }
  }
  multiply_tile<K, N, M, P, kNoted>(piece, tile, weights, between);
}

// Sums of any number of rows by N outputs, in so many tiles, each of which asks for P lines at a time.
// Where they are many, the first of them widens weights for all.
template <typename K, int N, int P>
void multiply_in(int64_t parts, const Piece<K>& piece, int64_t count) {
  int64_t done = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t some = at::divup(count - done, parts - part);
    const Tile<K, N, P> tile(piece, part, parts, done);
    done += some;
    if constexpr (K::kNotedFrom > 0) {
      if (parts >= K::kNotedFrom) {
        if (part == 0) {
          multiply_rows<true>(some, piece, tile, piece.weights, piece.inputs);
        } else {
          multiply_rows<false>(some, piece, tile, const_cast<const float*>(piece.notes),
                               whole_steps<K>(piece.width));
        }
        continue;
      }
    }
    multiply_rows<false>(some, piece, tile, piece.weights, piece.inputs);
  }
}

template <typename K, int N>
void multiply_piece(const Piece<K>& piece, int64_t count) {
  constexpr int64_t kMost = kMostRows<K, N>;
  const int64_t parts = std::max(at::divup(count, kMost), count > kAlone ? int64_t{2} : int64_t{1});
  if (parts >= N) {
    multiply_in<K, N, 1>(parts, piece, count);
  } else {  // four outputs are for rows of two tiles at least
    multiply_in<K, N, 2>(parts, piece, count);
  }
}

template <typename K>
struct Shape {
  int64_t rows, inputs, outputs;
  int64_t turn;    // rows that are near at a time
  int64_t width;   // inputs of a piece
  int64_t pieces;
  int64_t apart;   // between rows of a piece; a power of two would put all into one set of a cache

  Shape(int64_t rows, int64_t inputs, int64_t outputs)
      : rows(rows), inputs(inputs), outputs(outputs) {
    turn = at::divup(rows, at::divup(rows, kRowsNear));
    const int64_t bytes = turn * int64_t{sizeof(typename K::Row)};
    const int64_t most = std::max(K::kNearBytes / bytes, K::kStep);
    width = whole_steps<K>(at::divup(inputs, at::divup(inputs, most)));
    pieces = at::divup(inputs, width);
    apart = width + K::kStep;
    if ((apart & (apart - 1)) == 0) apart += K::kStep;
  }
};

// Rows in pieces, [pieces][rows][apart].
template <typename K, typename Row = typename K::Row>
Aligned<Row> in_pieces(const Row* rows, const Shape<K>& of) {
  Aligned<Row> all(of.pieces * of.rows * of.apart);
  for (int64_t piece = 0; piece < of.pieces; ++piece) {
    const int64_t first = piece * of.width, count = std::min(of.width, of.inputs - first);
    for (int64_t row = 0; row < of.rows; ++row) {
      Row* target = all.data + (piece * of.rows + row) * of.apart;
      std::memcpy(target, rows + row * of.inputs + first, count * sizeof(Row));
      std::fill(target + count, target + of.width, Row(0.f));
    }
  }
  return all;
}

template <typename Row>
void finish(const float* totals, const Row* bias, int64_t count, Row* outputs) {
  using Lanes = at::vec::Vectorized<float>;
  using Numbers = at::vec::Vectorized<Row>;
  for (int64_t i = 0; i < count; i += Numbers::size()) {
    const int64_t some = std::min<int64_t>(count - i, Numbers::size());
    Lanes low = Lanes::loadu(totals + i);
    if constexpr (std::is_same_v<Row, float>) {
      if (bias) low = low + Lanes::loadu(bias + i, some);
      low.store(outputs + i, some);
    } else {
      Lanes high = Lanes::loadu(totals + i + Lanes::size());
      if (bias) {
        const auto [left, right] = at::vec::convert_to_float<Row>(Numbers::loadu(bias + i, some));
        low = low + left;
        high = high + right;
      }
      at::vec::convert_from_float<Row>(low, high).store(outputs + i, some);
    }
  }
}

// Outputs from `begin` to `end`, at least `kLeast`; N at a time.
template <typename K, int N>
void multiply(const typename K::Row* given, const typename K::Weight* weights,
              const typename K::Row* bias, const Shape<K>& of, int64_t begin, int64_t end,
              typename K::Row* outputs) {
  const auto pieces = in_pieces<K>(given, of);
  const Aligned<float> aside(of.pieces > 1 ? of.rows * (kTogether + N) * K::kLanes : 0);
  const Aligned<float> totals(of.rows * kTogether);
  const Aligned<float> notes(K::kNotedFrom > 0 ? N * of.width : 0);
  const int64_t bytes = N * of.width * int64_t{sizeof(typename K::Weight)};
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
          const auto* asked = weights + next * of.inputs + k;
          if (next >= last && !complete) asked += (first - last) * of.inputs + of.width;
          if (next >= last && complete) asked -= k;
          const Piece<K> piece{weights + from * of.inputs + k, asked, of.inputs,
                               pieces.data + (at * of.rows + row) * of.apart, of.apart,
                               std::min(of.width, of.inputs - k),
                               aside.data + (row * (kTogether + N) + place * count) * K::kLanes,
                               totals.data + row * kTogether + from - first, notes.data, at == 0,
                               complete, of.pieces == 1 && count <= kAlone};
          multiply_piece<K, N>(piece, count);
        }
      }
    }
    for (int64_t row = 0; row < of.rows; ++row) {
      finish(totals.data + row * kTogether, bias ? bias + first : nullptr, last - first,
             outputs + row * of.outputs + first);
    }
  }
}

template <typename K>
at::Tensor multiplied(const at::Tensor& given, const at::Tensor& weights,
                      const std::optional<at::Tensor>& bias) {
  using Row = typename K::Row;
  const at::Tensor rows = given.contiguous();
  const Shape<K> of(rows.numel() / rows.size(-1), rows.size(-1), weights.size(0));
  auto sizes = rows.sizes().vec();
  sizes.back() = of.outputs;
  at::Tensor outputs = at::empty(sizes, rows.options());
  const Row* all_rows = rows.const_data_ptr<Row>();
  const auto* all_weights = weights.const_data_ptr<typename K::Weight>();
  const Row* all_bias = bias ? bias->const_data_ptr<Row>() : nullptr;
  Row* all_outputs = outputs.mutable_data_ptr<Row>();
  const int64_t units = std::max<int64_t>(of.outputs / kUnit, 1);
  at::parallel_for(0, units, 1, [&](int64_t begin, int64_t end) {
    const int64_t last = end == units ? of.outputs : end * kUnit;
    const auto multiply_some = of.rows > kByTwo ? multiply<K, 4> : multiply<K, 2>;
    multiply_some(all_rows, all_weights, all_bias, of, begin * kUnit, last, all_outputs);
  });
  return outputs;
}

template <typename K>
bool serves(const at::Tensor& rows, const at::Tensor& weights) {
  return rows.numel() > 0 && rows.numel() <= K::kFew * rows.size(-1) && weights.is_contiguous() &&
         weights.size(0) >= kLeast && weights.size(1) == rows.size(-1);
}

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

#ifdef RECAP_VECTORS

constexpr int64_t kBlock = 4 << 20;  // bytes of widened weights, which a cache holds

// Any number of floats by weights in half precision. Many rows are the library's, with the weights of
// some outputs at a time.
template <typename W>
at::Tensor by_widened(const at::Tensor& rows, const Layer& layer) {
  using K = Widened<W>;
  if (serves<K>(rows, layer.weights)) return multiplied<K>(rows, layer.weights, layer.bias);
  const int64_t outputs = layer.weights.size(0), inputs = layer.weights.size(1);
  const at::Tensor flat = rows.reshape({-1, inputs}), weights = layer.weights.contiguous();
  const int64_t most = std::min(outputs, std::max(kBlock / (4 * inputs), kUnit));
  const at::Tensor wide = at::empty({most, inputs}, rows.options());
  at::Tensor product = at::empty({flat.size(0), outputs}, rows.options());
  for (int64_t first = 0; first < outputs; first += most) {
    const int64_t count = std::min(most, outputs - first);
    const W* from = weights.const_data_ptr<W>() + first * inputs;
    float* to = wide.mutable_data_ptr<float>();
    at::parallel_for(0, count, kUnit, [&](int64_t begin, int64_t end) {
      at::vec::convert(from + begin * inputs, to + begin * inputs, (end - begin) * inputs);
    });
    const at::Tensor some = wide.narrow(0, 0, count).t();
    at::Tensor part = product.narrow(1, first, count);
    if (layer.bias) {
      at::addmm_out(part, layer.bias->narrow(0, first, count), flat, some);
    } else {
      at::mm_out(part, flat, some);
    }
  }
  auto sizes = rows.sizes().vec();
  sizes.back() = outputs;
  return product.view(sizes);
}

#endif

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
#ifdef RECAP_VECTORS
  const auto type = rows.scalar_type(), of = layer.weights.scalar_type();
  if (type == at::kFloat && of == at::kBFloat16) return by_widened<c10::BFloat16>(rows, layer);
  if (type == at::kFloat && of == at::kHalf) return by_widened<c10::Half>(rows, layer);
#ifdef __AVX512BF16__
  if (type == at::kBFloat16 && of == type && serves<Pairs>(rows, layer.weights)) {
    return multiplied<Pairs>(rows, layer.weights, layer.bias);
  }
#endif
#endif
  return at::linear(rows, layer.weights, layer.bias);
}

}  // namespace
}  // namespace products
