// How many guesses are worth a pass; a part of `kernels.cpp`.
//
// `engine/budget.py` says what is done here, and why.

#pragma once

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>

namespace drafting {
namespace {

constexpr int kKnots = 8;
constexpr int64_t kAtKnot[kKnots] = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr int64_t kMost = kAtKnot[kKnots - 1];
constexpr double kTick = 1e-9;  // seconds of a pass at least

class PassCost {
 public:
  struct Numbers {  // what outlives a process
    double seconds[kKnots], seen[kKnots];
    int64_t passes;
  };

  Numbers numbers{};
  int64_t last_seen[kKnots] = {};
  double at_knots[kKnots] = {};
  int64_t measured = 0;  // or 1; a bool of a damaged file would be neither

  PassCost() {
    for (int i = 0; i < kKnots; ++i) numbers.seconds[i] = 1 + kPriorSlope * (kAtKnot[i] - 1);
    redraw();
  }

  explicit PassCost(const Numbers& given) : numbers(given) {
    measured = std::any_of(given.seen, given.seen + kKnots, [](double times) { return times != 0; });
    redraw();
  }

  PassCost for_others(int64_t passes) const {
    Numbers few = numbers;
    for (double& times : few.seen) times = std::min(times, kKnown);
    few.passes = passes;
    PassCost other(few);
    other.measured = 0;
    return other;
  }

  void observe(int64_t tokens, double seconds) {
    seconds = std::max(seconds, kTick);
    ++numbers.passes;
    if (tokens > kMost) return;
    if (!measured) {
      measured = 1;
      const double unit = seconds / on_line(curve_, tokens);
      for (double& each : numbers.seconds) each = unit * each;
      redraw();
    }
    const double error = std::min(seconds / on_line(curve_, tokens), kOutlier);
    const int right = knot_of(tokens);
    int beside[2] = {right, right};
    double shares[2] = {1, 0};
    int count = 1;
    if (kAtKnot[right] == tokens) {
      last_seen[right] = numbers.passes;
    } else {
      const int64_t low = kAtKnot[right - 1], high = kAtKnot[right];
      const double share = static_cast<double>(tokens - low) / (high - low);
      beside[0] = right - 1;
      shares[0] = 1 - share;
      shares[1] = share;
      count = 2;
    }
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < count; ++i) {
      const int knot = beside[i];
      const double before = numbers.seen[knot];
      if (before < kKnown) numbers.seconds[knot] = on_line(curve_, kAtKnot[knot]);
      numbers.seen[knot] += shares[i];
      numbers.seconds[knot] *= std::pow(error, shares[i] * rate(before, error));
      keep_rising(knot);
    }
    for (int i = 0; i < count; ++i) least = std::min(least, numbers.seen[beside[i]]);
    const double familiar = 1 - 1 / std::max(least, 1.0);
    const double drift = std::pow(error, kDriftRate * familiar * weight(error));
    for (double& each : numbers.seconds) each = drift * each;
    redraw();
  }

  double ratio(int64_t tokens) const { return on_line(at_knots, tokens); }

 private:
  static constexpr double kPriorSlope = 0.02, kLeastSlope = 0.001, kFew = 4, kKnown = 0.5;
  static constexpr double kLeastRate = 0.05, kDriftRate = 0.05, kSlowness = 0.3, kOutlier = 2;

  // Of the first knot that is not smaller.
  static int knot_of(int64_t tokens) {
    int knot = 0;
    while (kAtKnot[knot] < tokens) ++knot;
    return knot;
  }

  static double weight(double error) { return error > 1 ? kSlowness : 1.0; }

  static double rate(double seen, double error) {
    if (seen < 1 || (error < 1 && seen < kFew)) return 1;
    return std::max(1 / (seen + 1), kLeastRate) * weight(error);
  }

  static double on_line(const double (&curve)[kKnots], int64_t tokens) {
    const int right = knot_of(tokens);
    if (right == 0) return curve[0];
    const double start = curve[right - 1];
    const int64_t left = kAtKnot[right - 1];
    return start + (curve[right] - start) * (tokens - left) / left;
  }

  void keep_rising(int knot) {
    double* seconds = numbers.seconds;
    for (int larger = knot + 1; larger < kKnots; ++larger) {
      if (numbers.seen[larger] < kKnown || seconds[larger] >= seconds[knot]) continue;
      if (numbers.seen[knot] < kFew) {
        seconds[knot] = seconds[larger];
      } else {
        seconds[larger] = seconds[knot];
      }
    }
  }

  void redraw() {
    int seen[kKnots], count = 0;
    for (int i = 0; i < kKnots; ++i) {
      if (numbers.seen[i] >= kKnown) seen[count++] = i;
    }
    if (count == 0) seen[count++] = 0;
    const int last = seen[count - 1];
    double first = numbers.seconds[seen[0]];
    if (seen[0] != 0) first /= 1 + kPriorSlope * (kAtKnot[seen[0]] - 1);
    curve_[0] = first;
    for (int i = seen[0] != 0 ? 0 : 1; i < count; ++i) {
      const int left = i == 0 ? 0 : seen[i - 1], right = seen[i];
      const double start = curve_[left];
      const double rise = (numbers.seconds[right] - start) / (kAtKnot[right] - kAtKnot[left]);
      for (int k = left + 1; k <= right; ++k) {
        curve_[k] = start + rise * (kAtKnot[k] - kAtKnot[left]);
      }
    }
    const double end = curve_[last];
    double rise = kPriorSlope * first;
    if (last != 0) rise = std::max((end - first) / (kAtKnot[last] - 1), kLeastSlope * first);
    for (int k = last + 1; k < kKnots; ++k) curve_[k] = end + rise * (kAtKnot[k] - kAtKnot[last]);
    double rising[kKnots];
    for (int k = kKnots - 1; k >= 0; --k) {
      rising[k] = k == kKnots - 1 ? curve_[k] : std::min(rising[k + 1], curve_[k]);
    }
    for (int k = 0; k < kKnots; ++k) at_knots[k] = rising[k] / rising[0];
  }

  double curve_[kKnots] = {};
};

class Budget {
 public:
  static constexpr int kLengths = 64;  // of contexts: more than an int64 has

  int64_t lengths[kLengths] = {};
  PassCost costs[kLengths];
  int64_t count = 0;

  Budget() { start(0); }

  PassCost& cost() { return costs[cost_]; }
  int64_t trial() const { return trial_; }

  void restore(int64_t known, const int64_t* of, const PassCost::Numbers* numbers) {
    *this = {};
    count = known;
    for (int64_t i = 0; i < known; ++i) {
      lengths[i] = of[i];
      costs[i] = PassCost(numbers[i]);
    }
    start(0);
  }

  // Whether nothing in it, which may come from a damaged file, names what is not there.
  bool sound() const {
    const auto possible = [](const PassCost& cost) { return cost.numbers.passes >= 0; };
    if (count <= 0 || count >= kLengths || cost_ < 0 || cost_ >= count) return false;
    std::bitset<kLengths> known;  // each once, so that there is room for all others
    for (int64_t i = 0; i < count; ++i) {
      if (lengths[i] < 0 || lengths[i] >= kLengths || known[lengths[i]]) return false;
      known.set(lengths[i]);
    }
    return std::all_of(costs, costs + count, possible);
  }

  void start(int64_t context) {
    int64_t length = 0;
    for (int64_t rest = context / kShort; rest > 0; rest /= 2) ++length;
    cost_ = -1;
    int64_t nearest = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (lengths[i] == length) cost_ = i;
      if (!costs[i].measured) continue;
      if (nearest < 0 || std::abs(lengths[i] - length) < std::abs(lengths[nearest] - length)) {
        nearest = i;
      }
    }
    if (cost_ < 0 || !costs[cost_].measured) {
      if (cost_ < 0) cost_ = count++;
      lengths[cost_] = length;
      costs[cost_] = nearest < 0 ? PassCost() : costs[nearest].for_others(std::size(kFirst));
    }
    size_ = usual_ = tokens_ = 1;
    rate_ = std::max(committed_ / spent_, 1.0);
    expected_ = 1;
    best_ = best_usual_ = value(0, 0);
    sums_[0] = 0;
    trust_ = kWorth * came_ / promised_;
    learned_ = kLearned * foreseen_ / rejected_;
    trial_ = next_trial();
  }

  int64_t size() const { return best_usual_ >= best_ - kNearly * expected_ ? usual_ : size_; }

  double floor() {
    if (trial_) return 0;
    const double(&at)[kKnots] = cost().at_knots;
    double least = std::numeric_limits<double>::infinity();
    for (int k = 1; k < kKnots; ++k) {
      least = std::min(least, (at[k] - at[k - 1]) / (kAtKnot[k] - kAtKnot[k - 1]));
    }
    return std::max(rate_ * least - learned_, 0.0) / trust_;
  }

  bool wants(double probability) {
    if (tokens_ >= (trial_ ? trial_ : kMost)) return false;
    const double gain = probability * trust_ + learned_;
    const double reached = value(1, gain);
    if (!trial_ && reached <= best_ && !later(gain)) return false;
    ++tokens_;
    expected_ += gain;
    sums_[tokens_ - 1] = sums_[tokens_ - 2] + probability;
    if (reached > best_ || trial_) {
      best_ = reached;
      size_ = tokens_;
    }
    const bool usual = std::find(std::begin(kSizes), std::end(kSizes), tokens_) != std::end(kSizes);
    if (usual && (reached > best_usual_ || trial_)) {
      best_usual_ = reached;
      usual_ = tokens_;
    }
    return true;
  }

  void observe(int64_t tokens, int64_t committed, double seconds, int64_t foreseen) {
    if (cold_) {
      --cold_;
    } else if (ran_[tokens]) {
      cost().observe(tokens, seconds);
    }
    ran_[tokens] = true;
    const double spent = cost().ratio(std::min(tokens, kMost));
    committed_ = faded(committed_, committed, kRatePrior, kRateDecay);
    spent_ = faded(spent_, spent, kRatePrior, kRateDecay);
    if (1 < tokens && tokens <= tokens_) {
      promised_ = faded(promised_, sums_[tokens - 1], kPrior, kDecay);
      came_ = faded(came_, committed - 1, kPrior, kDecay);
    }
    foreseen_ = faded(foreseen_, foreseen, kForeseenPrior, kLearnedDecay);
    rejected_ = faded(rejected_, tokens - committed, kRejectedPrior, kLearnedDecay);
  }

 private:
  static constexpr int64_t kShort = 512;
  static constexpr double kDecay = 0.95, kPrior = 6, kWorth = 1.4, kLearned = 0.2;
  static constexpr double kForeseenPrior = 5, kRejectedPrior = 100, kLearnedDecay = 0.99;
  static constexpr int64_t kWarmUp = 2, kCold = 4;
  static constexpr int64_t kSizes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
  static constexpr double kNearly = 0.03;
  static constexpr int64_t kFirst[] = {1, 8, 1, 8};
  static constexpr int kLater = 5;
  static constexpr double kDear = 4, kFading = 0.75, kRatePrior = 6, kRateDecay = 0.98;
  static constexpr int64_t kAgain = 64;
  static constexpr int64_t kLargest = 1025;  // tokens of any tree, and one

  static double faded(double total, double more, double prior, double decay) {
    return decay * total + more + (1 - decay) * prior;
  }

  double value(int64_t more, double gain) const {
    return expected_ + gain - rate_ * costs[cost_].ratio(tokens_ + more);
  }

  bool later(double gain) {
    const double each = kFading * gain, expected = expected_ - each * tokens_;
    for (int k = 0; k < kKnots; ++k) {
      if (kAtKnot[k] > tokens_ &&
          expected + each * kAtKnot[k] - rate_ * cost().at_knots[k] > best_) {
        return true;
      }
    }
    return false;
  }

  int64_t next_trial() {
    const int64_t passes = cost().numbers.passes;
    if (cold_) return kCold;
    if (passes < static_cast<int64_t>(std::size(kFirst))) return kFirst[passes];
    if (passes % kAgain != 0 && passes != 8 && passes != 16 && passes != 32) return 0;
    int oldest = 0;  // which a pass over one token is never too dear for
    for (int k = 1; k < kLater; ++k) {
      const bool older = cost().last_seen[k] < cost().last_seen[oldest];
      if (older && cost().ratio(kAtKnot[k]) < kDear) oldest = k;
    }
    return kAtKnot[oldest];
  }

  int64_t cost_ = -1, cold_ = kWarmUp, size_ = 1, usual_ = 1, tokens_ = 1, trial_ = 0;
  std::bitset<kLargest + 1> ran_;
  double promised_ = kPrior, came_ = kPrior;
  double foreseen_ = kForeseenPrior, rejected_ = kRejectedPrior;
  double committed_ = kRatePrior, spent_ = kRatePrior;
  double rate_ = 1, expected_ = 1, best_ = 0, best_usual_ = 0, trust_ = 1, learned_ = 0;
  double sums_[kMost] = {};
};

}  // namespace
}  // namespace drafting
