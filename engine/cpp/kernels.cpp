// Operators of passes on a CPU; `engine/kernels.py` builds them and says what they are.
//
// Vectors and threads are PyTorch's (at::vec, at::parallel_for): AVX2, AVX-512, NEON, SVE or none.

// PyTorch's threads are GCC's there. Clang's begin as many, of which each takes itself for the only one
// and does all of the work: into the same sums, or beside one that has not finished.
#if defined(__linux__) && defined(__clang__) && defined(_OPENMP)
#error "on Linux operators need GCC, as clang's threads are not PyTorch's; name it in CXX"
#endif

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/macros/Export.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <vector>

#include "attention.h"
#include "drafter_calls.h"
#include "layers.h"
#include "norms.h"
#include "products.h"

namespace {

// ---- predictions ------------------------------------------------------------------------------

constexpr int64_t kBlock = 256;  // numbers of which the largest is noted, when the top k are sought
constexpr int64_t kSmall = 16;   // blocks of a vocabulary whose exponentials are all computed
constexpr float kNear = 8;       // in a larger one, those of blocks whose largest is so near the best
constexpr float kMass = 2;       // times the exponential of their largest is what others count

// The k largest of a row and their softmax, the best first, of equal ones the lowest id. Where a
// number is not one, or infinite, all probabilities are zero. With large vocabularies they are
// within 3 % (SmolLM2-135M on Spec-Bench, half of them within 0.2 %), in a third of the time.
void top_of_row(const float* row, int64_t vocab, int64_t k, std::vector<float>& largest,
                int64_t* ids, float* probs) {
  largest.clear();
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t end = std::min(vocab, first + kBlock);
    Lanes most(-std::numeric_limits<float>::infinity());
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) most = at::vec::maximum(most, Lanes::loadu(row + i));
    if (i < end) {
      const Lanes rest = Lanes::set(most, Lanes::loadu(row + i, end - i), end - i);
      most = at::vec::maximum(most, rest);
    }
    largest.push_back(at::vec::vec_reduce_all<float>(
        [](Lanes& a, Lanes& b) { return at::vec::maximum(a, b); }, most));
    if (std::isnan(largest.back())) return;
  }
  const int64_t blocks = static_cast<int64_t>(largest.size());
  std::vector<float> order(largest);
  float least = -std::numeric_limits<float>::infinity();
  if (k < blocks) {
    std::nth_element(order.begin(), order.begin() + k - 1, order.end(), std::greater<>());
    least = order[k - 1];
  }
  // There are k blocks with a number of at least `least`.
  int64_t found = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    if (largest[block] < least) continue;
    const int64_t end = std::min(vocab, (block + 1) * kBlock);
    for (int64_t id = block * kBlock; id < end; ++id) {
      if (row[id] < least || (found == k && !(row[id] > probs[k - 1]))) continue;
      int64_t at = found < k ? found++ : k - 1;
      for (; at > 0 && row[id] > probs[at - 1]; --at) {
        probs[at] = probs[at - 1];
        ids[at] = ids[at - 1];
      }
      probs[at] = row[id];
      ids[at] = id;
    }
  }
  const float best = probs[0];
  Lanes sums(0.f);
  float total = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    if (blocks > kSmall && largest[block] < best - kNear) {
      total += kMass * std::exp(largest[block] - best);
      continue;
    }
    const int64_t end = std::min(vocab, (block + 1) * kBlock);
    int64_t i = block * kBlock;
    for (; i + kLanes <= end; i += kLanes) {
      sums = sums + (Lanes::loadu(row + i) - Lanes(best)).exp();
    }
    for (; i < end; ++i) total += std::exp(row[i] - best);
  }
  total += summed(sums);
  for (int64_t j = 0; j < k; ++j) {
    probs[j] = std::isfinite(total) ? std::exp(probs[j] - best) / total : 0.f;
  }
}

std::tuple<at::Tensor, at::Tensor> top(const at::Tensor& given, int64_t k) {
  const at::Tensor logits = given.contiguous();
  const int64_t n = logits.size(0), vocab = logits.size(1);
  TORCH_CHECK(logits.scalar_type() == at::kFloat && k > 0 && k <= vocab);
  at::Tensor ids = at::zeros({n, k}, logits.options().dtype(at::kLong));
  at::Tensor probs = at::zeros({n, k}, logits.options());
  const float* rows = logits.const_data_ptr<float>();
  int64_t* all_ids = ids.mutable_data_ptr<int64_t>();
  float* all_probs = probs.mutable_data_ptr<float>();
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> largest;
    for (int64_t i = begin; i < end; ++i) {
      top_of_row(rows + i * vocab, vocab, k, largest, all_ids + i * k, all_probs + i * k);
    }
  });
  return {ids, probs};
}

// As `engine.states.states_of`, [n][words].
at::Tensor states(const at::Tensor& given) {
  constexpr int64_t kWords = sizeof(drafting::State) / sizeof(int64_t), kWord = 64;
  const at::Tensor hidden = given.contiguous();
  const int64_t n = hidden.size(0), width = hidden.size(1);
  at::Tensor result = at::empty({n, kWords}, hidden.options().dtype(at::kLong));
  int64_t* words = result.mutable_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, hidden.scalar_type(), "states", [&] {
        const scalar_t* row = hidden.const_data_ptr<scalar_t>();
        for (int64_t i = 0; i < n; ++i, row += width) {
          for (int64_t first = 0; first < kWords * kWord; first += kWord) {
            uint64_t word = 0;
            for (int64_t bit = 0; bit < std::min(kWord, width - first); ++bit) {
              word |= uint64_t{row[first + bit] > scalar_t(0)} << bit;
            }
            *words++ = static_cast<int64_t>(word);
          }
        }
      });
  return result;
}

}  // namespace

// No operator: whoever is tracing when weights are let go would take it for a part of the model.
extern "C" C10_EXPORT void recap_release(int64_t key) { products::release(key); }

extern "C" C10_EXPORT void recap_release_layer(int64_t key) { layers::release(key); }

// Whether `linear` multiplies few rows in bfloat16 itself, and floats by weights in half precision.
extern "C" C10_EXPORT bool recap_multiplies() { return products::kPairs; }

extern "C" C10_EXPORT bool recap_widens() { return products::kWidens; }

TORCH_LIBRARY_IMPL(recap, CompositeExplicitAutograd, library) {
  library.impl("hold", &products::hold);
  library.impl("hold_layer", &layers::hold);
}

TORCH_LIBRARY_IMPL(recap, CPU, library) {
  library.impl("attend_by_key", &attend_by_key);
  library.impl("decode", &layers::decode);
  library.impl("rms_norm", &rms_norm);
  library.impl("packed_linear", &products::linear);
  library.impl("write", &write_states);
  library.impl("states", &states);
  library.impl("top", &top);
}
