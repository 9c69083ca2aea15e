// Numbers that products multiply, and the vectors that hold them; a part of `kernels.cpp`.
//
// Of products of rows by weights there are kinds: of what numbers they are, and how many of them a
// vector and the registers of this CPU hold.

#pragma once

#include <ATen/Parallel.h>
#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#define RECAP_VECTORS
#include <immintrin.h>
#endif

namespace products {
namespace {

#ifdef RECAP_VECTORS
constexpr bool kWidens = true;
#else
constexpr bool kWidens = false;
#endif

#ifdef __AVX512BF16__
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif

#ifdef RECAP_VECTORS

// Totals of the lanes of N sums, each added up in the same order.
#ifdef __AVX512F__

template <int N>
C10_ALWAYS_INLINE void total(const __m512* sums, float* totals) {
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

#else

template <int N>
C10_ALWAYS_INLINE void total(const __m256* sums, float* totals) {
  static_assert(N == 2 || N == 4);
  const __m256 first = _mm256_hadd_ps(sums[0], sums[1]);
  const __m256 last = N == 4 ? _mm256_hadd_ps(sums[N - 2], sums[N - 1]) : first;
  const __m256 quads = _mm256_hadd_ps(first, last);
  const __m128 quarter =
      _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
  std::memcpy(totals, &quarter, N * sizeof(float));
}

#endif

#ifdef __AVX512BF16__

// Numbers in bfloat16 by such weights, two of each at a time.
struct Pairs {
  using Row = c10::BFloat16;
  using Weight = c10::BFloat16;
  using Sum = __m512;
  static constexpr int64_t kStep = 32;             // numbers of a step
  static constexpr int64_t kLanes = 16;            // of a sum
  static constexpr int64_t kFew = 64;              // more rows are the library's, which is as fast then
  static constexpr int64_t kNearBytes = 20 << 10;  // of rows
  static constexpr int kMostByFour = 6;            // rows of a tile by four outputs
  static constexpr int64_t kNotedFrom = 0;         // tiles for which widened weights are noted

  static C10_ALWAYS_INLINE Sum zero() { return _mm512_setzero_ps(); }
  static C10_ALWAYS_INLINE Sum load(const float* from) { return _mm512_load_ps(from); }
  static C10_ALWAYS_INLINE void store(float* to, Sum sum) { _mm512_store_ps(to, sum); }

  // To sums of M rows by N outputs, a step.
  template <int N, int M, bool kNoted>
  static C10_ALWAYS_INLINE void add(const Weight* weights, int64_t between, const Row* rows,
                                    int64_t apart, Sum (&sums)[M][N], float* /*notes*/,
                                    int64_t /*notes_apart*/) {
    static_assert(!kNoted);
    __m512i some[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) some[j] = _mm512_loadu_si512(weights + j * between);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512i row = _mm512_load_si512(rows + m * apart);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        sums[m][j] = _mm512_dpbf16_ps(sums[m][j], (__m512bh)some[j], (__m512bh)row);
      }
    }
  }
};

#endif

#ifdef __AVX512F__

using Floats = __m512;
C10_ALWAYS_INLINE Floats zeros() { return _mm512_setzero_ps(); }
C10_ALWAYS_INLINE Floats load(const float* from) { return _mm512_load_ps(from); }
C10_ALWAYS_INLINE void store(float* to, Floats all) { _mm512_store_ps(to, all); }
C10_ALWAYS_INLINE Floats wide(const c10::BFloat16* from) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}
C10_ALWAYS_INLINE Floats wide(const c10::Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

#else

using Floats = __m256;
C10_ALWAYS_INLINE Floats zeros() { return _mm256_setzero_ps(); }
C10_ALWAYS_INLINE Floats load(const float* from) { return _mm256_load_ps(from); }
C10_ALWAYS_INLINE void store(float* to, Floats all) { _mm256_store_ps(to, all); }
C10_ALWAYS_INLINE Floats wide(const c10::BFloat16* from) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
C10_ALWAYS_INLINE Floats wide(const c10::Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

#endif

C10_ALWAYS_INLINE Floats wide(const float* from) { return load(from); }

// In a register. A compiler would rather load what is used more than once each time, and put sums
// into other registers than they were in, until it has too few.
C10_ALWAYS_INLINE Floats kept(Floats all) {
  asm volatile("" : "+v"(all));
  return all;
}
C10_ALWAYS_INLINE Floats added(Floats left, Floats right, Floats sum) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
  return sum;
}

// Floats by weights in half precision, which are widened as they are read: the products that floats
// as wide would have, out of half the memory.
template <typename W>
struct Widened {
  using Row = float;
  using Weight = W;
  using Sum = Floats;
  static constexpr int64_t kStep = 64 / sizeof(W);
  static constexpr int64_t kLanes = sizeof(Floats) / sizeof(float);
  static constexpr int64_t kFew = 96;
  static constexpr int64_t kNearBytes = 40 << 10;  // of the second cache
  static constexpr int kMostByFour = kLanes == 16 ? 6 : 3;
  static constexpr int64_t kNotedFrom = 3;

  static C10_ALWAYS_INLINE Sum zero() { return zeros(); }
  static C10_ALWAYS_INLINE Sum load(const float* from) { return products::load(from); }
  static C10_ALWAYS_INLINE void store(float* to, Sum sum) { products::store(to, sum); }

  // Widened weights may be noted, for the tiles that follow.
  template <int N, int M, bool kNoted, typename From>
  static C10_ALWAYS_INLINE void add(const From* weights, int64_t between, const Row* rows,
                                    int64_t apart, Sum (&sums)[M][N], float* notes,
                                    int64_t notes_apart) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < kStep; k += kLanes) {
      const auto weight = [&](int j) {
        const Floats widened = kept(wide(weights + j * between + k));
        if constexpr (kNoted) products::store(notes + j * notes_apart + k, widened);
        return widened;
      };
      const auto row = [&](int m) { return kept(products::load(rows + m * apart + k)); };
      if constexpr (M <= N) {
        Floats some[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) some[m] = row(m);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
          const Floats one = weight(j);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) sums[m][j] = added(one, some[m], sums[m][j]);
        }
      } else {
        Floats some[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) some[j] = weight(j);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Floats one = row(m);
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) sums[m][j] = added(one, some[j], sums[m][j]);
        }
      }
    }
  }
};

#endif

}  // namespace
}  // namespace products
