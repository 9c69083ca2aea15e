// What RECAP drafts and learns; a part of `kernels.cpp`.
//
// `engine/drafters/recap.py` says what is done here, and why, and `engine/drafters/recap_native.py`
// calls it. Results are the same to the last bit: sums are made in the same order, in double
// precision. What differs is where things lie: a pass pushes them out of the caches, so that
// drafting takes as long as it takes to bring them back.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "budget.h"
#include "memories.h"

namespace drafting {
namespace {

constexpr int kStations = 65;  // steps of a claimed probability, and its end
constexpr int kTrusts = 65;    // lengths of a match
constexpr int kNearness = 25;  // steps of it, a bit each, and none

// Python's, in the order of `_Settings`.
struct Settings {
  int64_t k, nodes, adaptive, max_depth;
  double min_probability;
  double one, two, three, states;  // specificity of keys, and of states
  double nearness[kNearness];      // of states, by bits more than the most similar one differs by
  int64_t nearest;                 // predictions that are recalled for their states, at most
  int64_t most_seen, all_seen;     // predictions of a token, and of all
  double read;                     // how probable what follows in the prompt was
  int64_t by_confidence, suffix, suffix_min_match, persistence, phrases, most_phrases;
  int64_t width;                                             // of rows, at most
  int64_t token, copied, stand_in;                           // kinds of guesses
  int64_t contextual_2, contextual_3, earlier_2, earlier_3;  // and the first of these
  int64_t steadiest;                                         // index in `steady`
  int64_t steady[16];                                        // by run
  int64_t sources[32];                                       // of kinds
  double trust[kTrusts];                                     // in copies, by the length of a match
  int64_t cell_count, cells[kStations];                      // of claims, by their steps
  double claims_remembered;
};

// How often guesses came true, by kind and claim; as `engine.budget.Calibration`.
class Calibration {
 public:
  // [kinds][cells], Python's, which keeps them.
  Calibration(double* claimed, double* came, const Settings& settings)
      : claimed_(claimed), came_(came), settings_(settings) {}

  double survival(int64_t kind, double claim) const {
    const int64_t at = cell(kind, claim);
    return std::min(claim * (came_[at] / claimed_[at]), 1.0);
  }

  void observe(int64_t kind, double claim, bool chosen) {
    const int64_t at = cell(kind, claim);
    claimed_[at] += claim;
    came_[at] += chosen;
    if (claimed_[at] > settings_.claims_remembered) {
      claimed_[at] /= 2;
      came_[at] /= 2;
    }
  }

 private:
  int64_t cell(int64_t kind, double claim) const {
    return kind * settings_.cell_count + settings_.cells[static_cast<int64_t>(claim * (kStations - 1))];
  }

  double *claimed_, *came_;
  const Settings& settings_;
};

struct Child {
  double survival;
  int64_t token, kind;
  double claim;

  bool operator>(const Child& other) const {
    return std::tie(survival, token, kind, claim) >
           std::tie(other.survival, other.token, other.kind, other.claim);
  }
};

struct Known {
  Kept pair, triple;
  int32_t pair_first = 0, triple_first = 0;  // choices
  int64_t first = 0, second = 0, third = 0;  // kinds
};

// At most 1, to which sums of probabilities may be rounded up; so is what is no number.
inline double claim_of(double stated) { return stated < 1.0 ? stated : 1.0; }

struct Node {
  Key context;
  int64_t match_end, match_length;
  int64_t parent, depth;
  double probability;
  const State* before;  // the state before its token, if that is known
  const State* behind = nullptr;  // the state that the target may be in behind it
  Known known{};
  int64_t children = 0, count = 0;  // the first, best one, and how many
};

struct Tree {  // Python's columns
  int64_t *tokens, *parents, *depths, *sources;
  double* probabilities;
};

class Drafter {
 public:
  Drafter(const Settings& settings, const int64_t* placeholders, int64_t count, const Table& tokens,
          const Table& phrases, double* claimed, double* came)
      : settings_(settings),
        placeholders_(placeholders, placeholders + count),
        memory_(made(tokens, phrases)),
        calibration_(claimed, came, settings_) {}

  Drafter(const Drafter&) = delete;  // its parts refer to each other

  Memory& memory() { return *memory_; }
  Budget& budget() { return budget_; }

  void settle() {
    if (settings_.phrases && settings_.persistence) memory_->absorb();
  }

  void start() {
    settle();
    if (!settings_.persistence) {
      const Table none{};
      chosen_from_ = kNoRow;
      memory_ = made(none, none);
    }
    memory_->begin_request();
  }

  void resume() {
    suffix_ = {};
    memory_->rows.release(std::exchange(chosen_from_, kNoRow));
    context_ = kNoContext;
    last_ = kNoToken;
    length_ = 0;
    nodes_.clear();
    drafted_.clear();
    prompt_contexts_.clear();
    prompt_states_.clear();
    state_known_ = false;
  }

  void read(const int64_t* tokens, int64_t count, bool prompt) {
    for (int64_t i = 0; i < count; ++i) {
      read(tokens[i]);
      if (prompt) prompt_contexts_.push_back(context_);
    }
  }

  void recognise(const State* states, int64_t count) {
    prompt_states_.assign(states, states + count);
    set_state(&states[count - 1]);
    const float chance = static_cast<float>(settings_.read);
    for (int64_t at = 1; at + 1 < static_cast<int64_t>(prompt_contexts_.size()); ++at) {
      const Key token = prompt_contexts_[at] & kOne, follower = prompt_contexts_[at + 1] & kOne;
      if (token == kNoToken || follower == kNoToken) continue;
      const RowId row = memory_->rows.add(&follower, &chance, 1);
      memory_->see(memory_->prompted, token, {states[at - 1], states[at], row});
      memory_->rows.release(row);
    }
  }

  void seed(const int64_t* positions, int64_t count, const int64_t* ids, const float* probs,
            int64_t k) {
    for (int64_t i = 0; i < count; ++i) {
      const Key context = prompt_contexts_[positions[i]];
      const RowId row = memory_->rows.add(ids + i * k, probs + i * k, k);
      store(context, row, know(context));
      const int64_t at = positions[i];
      if (!prompt_states_.empty() && at > 0) {
        see(context, &prompt_states_[at - 1], prompt_states_[at], row);
      }
      memory_->rows.release(row);
    }
  }

  int64_t propose(int64_t most_depth, const Tree& tree) {
    const int64_t deepest = std::min(most_depth, settings_.max_depth);
    budget_.start(length_);
    double floor = settings_.min_probability;
    if (settings_.adaptive) floor = std::max(floor, budget_.floor());
    nodes_.clear();
    drafted_.clear();
    children_.clear();
    put(tree,
        {context_, suffix_.match_end, suffix_.match_length, -1, 0, 1.0,
         state_known_ ? &state_ : nullptr},
        last_, -1, deepest > 0 ? floor : kNothing);
    Candidates heap;
    offer(heap, 0, 0);
    while (!heap.empty() && static_cast<int64_t>(nodes_.size()) <= settings_.nodes) {
      const auto [minus, parent, rank] = heap.top();
      const double probability = -minus;
      if (settings_.adaptive && !budget_.wants(probability)) break;
      const Node above = nodes_[parent];
      const Child child = children_[above.children + rank];
      drafted_.push_back(child);
      heap.pop();
      offer(heap, parent, rank + 1);
      const auto [match_end, match_length] = follow(child.token, above);
      const Node node{followed(above.context, child.token), match_end, match_length, parent,
                      above.depth + 1, probability, above.behind};
      const bool further = node.depth < deepest && probability > 0;
      const double least = further ? floor / probability : kNothing;
      put(tree, node, child.token, source(above.known, child), least);
      offer(heap, static_cast<int64_t>(nodes_.size()) - 1, 0);
    }
    if (settings_.adaptive) nodes_.erase(nodes_.begin() + budget_.size(), nodes_.end());
    return static_cast<int64_t>(nodes_.size());
  }

  // How many accepted drafts the longest key foresaw that knew, from a rejected guess.
  // `states` are of all nodes, or none.
  int64_t learn(const int64_t* path, int64_t length, const int64_t* ids, const float* probs,
                int64_t k, const State* states) {
    const int64_t foreseen = by_guesses(path, length);
    const int64_t count = static_cast<int64_t>(nodes_.size());
    accepted_.assign(count, false);
    for (int64_t i = 0; i < length; ++i) accepted_[path[i]] = true;
    for (int64_t node = 1; node < count; ++node) {
      const Child& child = drafted_[node - 1];
      if (accepted_[nodes_[node].parent]) {
        calibration_.observe(child.kind, child.claim, accepted_[node]);
      }
    }
    rows_.clear();
    for (int64_t node = 0; node < count; ++node) {
      const bool guess = !accepted_[node];
      rows_.push_back(memory_->rows.add(ids + node * k, probs + node * k, k, guess));
    }
    const auto learn_from = [&](int64_t at) {
      const Node& node = nodes_[at];
      store(node.context, rows_[at], node.known);
      if (states == nullptr) return;
      const State* before = at > 0 ? &states[node.parent] : state_known_ ? &state_ : nullptr;
      see(node.context, before, states[at], rows_[at]);
    };
    for (int64_t node = 0; node < count; ++node) {
      if (!accepted_[node]) learn_from(node);
    }
    for (int64_t i = 0; i < length; ++i) learn_from(path[i]);
    set_state(states == nullptr ? nullptr : &states[path[length - 1]]);
    memory_->rows.release(chosen_from_);
    chosen_from_ = rows_[path[length - 1]];
    memory_->rows.hold(chosen_from_);
    for (const RowId row : rows_) memory_->rows.release(row);
    return foreseen;
  }

  void observe_pass(int64_t committed, int64_t foreseen, double seconds) {
    budget_.observe(static_cast<int64_t>(nodes_.size()), committed, seconds, foreseen);
  }

 private:
  std::unique_ptr<Memory> made(const Table& tokens, const Table& phrases) const {
    return std::make_unique<Memory>(settings_.width, tokens, phrases, settings_.most_phrases,
                                    settings_.most_seen, settings_.all_seen);
  }

  static constexpr double kNothing = std::numeric_limits<double>::infinity();

  // Minus the probability of a path, its last node but one, and the rank of the last one there.
  using Candidate = std::tuple<double, int64_t, int64_t>;
  using Candidates = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  bool is_placeholder(int64_t token) const {
    return std::find(placeholders_.begin(), placeholders_.end(), token) != placeholders_.end();
  }

  void read(int64_t token) {
    last_ = token;
    ++length_;
    if (!is_placeholder(token)) {
      context_ = followed(context_, token);
      suffix_.append(static_cast<int32_t>(token));
    } else {
      if (context_ != kNoContext) {
        suffix_.append(-1 - static_cast<int32_t>(suffix_.text.size()));
      }
      context_ = kNoContext;
    }
  }

  void put(const Tree& tree, Node node, int64_t token, int64_t source, double least) {
    const int64_t at = static_cast<int64_t>(nodes_.size());
    tree.tokens[at] = token;
    tree.parents[at] = node.parent;
    tree.depths[at] = node.depth;
    tree.sources[at] = source;
    tree.probabilities[at] = node.probability;
    expand(node, least);
    nodes_.push_back(node);
  }

  void offer(Candidates& heap, int64_t parent, int64_t rank) {
    const Node& node = nodes_[parent];
    if (rank >= node.count) return;
    heap.emplace(-(node.probability * children_[node.children + rank].survival), parent, rank);
  }

  std::pair<int64_t, int64_t> follow(int64_t token, const Node& parent) const {
    const auto& text = suffix_.text;
    const int64_t end = parent.match_end;
    if (parent.match_length && end < static_cast<int64_t>(text.size()) && text[end] == token) {
      return {end + 1, parent.match_length + 1};
    }
    return {-1, 0};
  }

  // The kind of the longest key that knows a context.
  int64_t longest(const Known& known) const {
    const bool three = known.triple.row != kNoRow;
    const Kept& kept = three ? known.triple : known.pair;
    if (kept.row == kNoRow) return known.first;
    const int64_t run = std::min<int64_t>(kept.run, settings_.steadiest);
    return (three ? known.third : known.second) + settings_.steady[run];
  }

  int64_t source(const Known& known, const Child& child) {
    if (child.kind == settings_.copied) return settings_.sources[settings_.copied];
    int64_t kind = known.first;
    if (known.triple.row != kNoRow && memory_->rows.has(known.triple.row, child.token)) {
      kind = known.third;
    } else if (known.pair.row != kNoRow && memory_->rows.has(known.pair.row, child.token)) {
      kind = known.second;
    }
    return settings_.sources[kind];
  }

  Known know(Key context) {
    Known known;
    known.first = settings_.token;
    known.second = settings_.contextual_2;
    known.third = settings_.contextual_3;
    const auto look = [&](Learned& learned, Key key, Key mark, int64_t earlier, int64_t& kind,
                          int32_t& first) {
      const Kept* found = learned.kept.find(key);
      Kept kept = found == nullptr ? Kept{} : *found;
      if (kept.row == kNoRow && settings_.phrases) {
        kept = memory_->phrase(mark | key);
        kind = earlier;
      }
      if (kept.row != kNoRow) first = memory_->rows.ids(kept.row)[0];
      return kept;
    };
    if (settings_.three != 0) {
      known.triple = look(memory_->triples, context, kTriple, settings_.earlier_3, known.third,
                          known.triple_first);
    }
    if (settings_.two != 0) {
      known.pair = look(memory_->pairs, context & kTwo, kPair, settings_.earlier_2, known.second,
                        known.pair_first);
    }
    return known;
  }

  // A node's children that survive with more than `least`, and what its keys hold.
  void expand(Node& node, double least) {
    recall(node);
    const int64_t kind = longest(node.known);
    fuse(least);
    const int64_t first = static_cast<int64_t>(children_.size());
    int64_t copied = -1;
    const auto& text = suffix_.text;
    if (node.match_length >= settings_.suffix_min_match && settings_.suffix &&
        node.match_end < static_cast<int64_t>(text.size())) {
      const int64_t follower = text[node.match_end];
      const double trust = settings_.trust[std::min<int64_t>(node.match_length, kTrusts - 1)];
      const double survival = calibration_.survival(settings_.copied, trust);
      const auto found = stated_of(follower);
      const double stated = found == stated_.end() ? 0.0 : claim_of(found->second);
      if (follower >= 0 && survival > least && survival >= calibration_.survival(kind, stated)) {
        copied = follower;
        children_.push_back({survival, follower, settings_.copied, trust});
      }
    }
    for (const auto& [token, stated] : stated_) {
      if (token == copied) continue;
      const double claim = claim_of(stated);
      const double survival = calibration_.survival(kind, claim);
      if (survival > least && !is_placeholder(token)) {
        children_.push_back({survival, token, kind, claim});
      }
    }
    std::sort(children_.begin() + first, children_.end(), std::greater<>());
    node.children = first;
    node.count = static_cast<int64_t>(children_.size()) - first;
  }

  // What a node's keys hold, and what was predicted in similar states, with what specificity, into
  // `recalled_`; stand-ins into `stated_`.
  void recall(Node& node) {
    recalled_.clear();
    stated_.clear();
    Known& known = node.known = know(node.context);
    weigh(known.triple.row, settings_.three);
    weigh(known.pair.row, settings_.two);
    if (settings_.one != 0) {
      const Recent recent = memory_->recent(node.context & kOne);
      const double share = recent.before == kNoRow ? settings_.one : settings_.one / 2;
      weigh(recent.newest, share);
      weigh(recent.before, share);
    }
    if (node.before != nullptr) recall_similar(node);
    if (settings_.one != 0 && recalled_.empty() && node.context == context_) {
      known.first = settings_.stand_in;
      stand_in();
    }
  }

  // What was predicted behind a node's token, or followed it in the prompt, in states most like the
  // one before it; as `engine.memory.states.StateMemory.similar`.
  void recall_similar(Node& node) {
    similar_.clear();
    int64_t least = std::numeric_limits<int64_t>::max();
    const auto look = [&](const Seen& seen) {
      const int64_t bits = seen.before.bits_from(*node.before);
      if (bits < least) {
        least = bits;
        node.behind = &seen.behind;
      }
      similar_.emplace_back(bits, seen.row);
    };
    memory_->seen.behind(node.context & kOne, look);
    memory_->prompted.behind(node.context & kOne, look);
    const auto far = [&](const auto& each) { return each.first - least >= kNearness; };
    similar_.erase(std::remove_if(similar_.begin(), similar_.end(), far), similar_.end());
    if (static_cast<int64_t>(similar_.size()) > settings_.nearest) {
      const auto nearer = [](const auto& a, const auto& b) { return a.first < b.first; };
      std::stable_sort(similar_.begin(), similar_.end(), nearer);
      similar_.resize(settings_.nearest);
    }
    double total = 0;
    for (const auto& [bits, row] : similar_) total += settings_.nearness[bits - least];
    for (const auto& [bits, row] : similar_) {
      weigh(row, settings_.states * (settings_.nearness[bits - least] / total));
    }
  }

  // One more key that holds a row, or none; where one pass wrote two, they hold it together.
  void weigh(RowId row, double specificity) {
    if (row == kNoRow) return;
    for (auto& [known, weight] : recalled_) {
      if (known == row) {
        weight += specificity;
        return;
      }
    }
    recalled_.emplace_back(row, specificity);
  }

  // As `_stand_in`, into `stated_`, likeliest first.
  void stand_in() {
    if (chosen_from_ == kNoRow) return;
    Rows& rows = memory_->rows;
    for (int64_t i = 0; i < rows.head(chosen_from_).length; ++i) {
      const int64_t rival = rows.ids(chosen_from_)[i];
      if (rival < 0 || rival >= static_cast<int64_t>(kNoToken)) continue;
      const RowId row = memory_->recent(static_cast<Key>(rival)).newest;
      if (row != kNoRow) add(row, rows.probs(chosen_from_)[i], 0);
    }
    double total = 0;
    for (const auto& [token, each] : stated_) total += each;
    if (total == 0) {
      stated_.clear();
      return;
    }
    for (auto& [token, each] : stated_) each /= total;
    const auto likelier = [](const auto& a, const auto& b) { return a.second > b.second; };
    std::stable_sort(stated_.begin(), stated_.end(), likelier);
    if (static_cast<int64_t>(stated_.size()) > settings_.k) stated_.resize(settings_.k);
  }

  // What was recalled, or stands in, as one distribution, in `stated_`.
  void fuse(double least) {
    if (recalled_.empty()) {
      const auto less = [&](const auto& stated) { return stated.second < least; };
      stated_.erase(std::find_if(stated_.begin(), stated_.end(), less), stated_.end());
    } else if (recalled_.size() == 1) {
      add(recalled_[0].first, 1.0, least);
    } else {
      double total = 0;
      for (auto& [row, weight] : recalled_) {
        if (settings_.by_confidence) weight *= memory_->rows.confidence(row) + kLeastConfidence;
        total += weight;
      }
      for (const auto& [row, weight] : recalled_) add(row, weight / total, least);
    }
  }

  std::vector<std::pair<int64_t, double>>::iterator stated_of(int64_t token) {
    const auto same = [&](const auto& stated) { return stated.first == token; };
    return std::find_if(stated_.begin(), stated_.end(), same);
  }

  // A prediction's share to what is stated, as `engine.memory.transitions.added`.
  void add(RowId row, double share, double least) {
    Rows& rows = memory_->rows;
    const int32_t* ids = rows.ids(row);
    const float* probs = rows.probs(row);
    for (int64_t i = 0; i < rows.head(row).length; ++i) {
      const double probability = probs[i];
      if (probability < least) break;
      const auto found = stated_of(ids[i]);
      if (found == stated_.end()) {
        stated_.emplace_back(ids[i], share * probability);
      } else {
        found->second += share * probability;
      }
    }
  }

  int64_t by_guesses(const int64_t* path, int64_t length) {
    int64_t count = 0;
    for (int64_t i = 1; i < length; ++i) {
      const Child& child = drafted_[path[i] - 1];
      if (child.kind == settings_.copied) continue;
      const Node& parent = nodes_[path[i - 1]];
      RowId row = parent.known.triple.row;
      if (row == kNoRow) row = parent.known.pair.row;
      if (row == kNoRow) row = memory_->recent(parent.context & kOne).newest;
      if (row == kNoRow) continue;
      count += memory_->rows.head(row).by_guess && memory_->rows.has(row, child.token);
    }
    return count;
  }

  void set_state(const State* state) {
    state_known_ = state != nullptr;
    if (state_known_) state_ = *state;
  }

  // Keeps a prediction for states like the one before the last token of its context, if that is
  // known.
  void see(Key context, const State* before, const State& behind, RowId row) {
    if (before == nullptr || (context & kOne) == kNoToken) return;
    memory_->see(memory_->seen, context & kOne, {*before, behind, row});
  }

  // Under the keys of its context; `known` is what the longer ones held.
  void store(Key context, RowId row, const Known& known) {
    const Key last = context & kOne;
    if (last == kNoToken) return;
    memory_->store(last, row);
    if ((context >> kTokenBits & kOne) == kNoToken) return;
    memory_->keep(memory_->pairs, context & kTwo, {row, run(row, known.pair, known.pair_first)});
    if (context >> 2 * kTokenBits == kNoToken) return;
    memory_->keep(memory_->triples, context, {row, run(row, known.triple, known.triple_first)});
  }

  uint32_t run(RowId row, const Kept& before, int32_t first) {
    const bool same = before.row != kNoRow && memory_->rows.ids(row)[0] == first;
    return same ? before.run + 1 : 1;
  }

  static constexpr double kLeastConfidence = 1e-3;

  Settings settings_;
  std::vector<int64_t> placeholders_;
  std::unique_ptr<Memory> memory_;
  Calibration calibration_;
  Budget budget_;
  SuffixIndex suffix_;
  RowId chosen_from_ = kNoRow;
  Key context_ = kNoContext;
  int64_t last_ = kNoToken, length_ = 0;
  std::vector<Key> prompt_contexts_;
  std::vector<State> prompt_states_;
  State state_{};  // before the last token
  bool state_known_ = false;
  // Of the present pass:
  std::vector<Node> nodes_;
  std::vector<Child> children_, drafted_;
  std::vector<std::pair<RowId, double>> recalled_;
  std::vector<std::pair<int64_t, RowId>> similar_;  // bits by which states differ
  std::vector<std::pair<int64_t, double>> stated_;  // tokens and probabilities
  std::vector<char> accepted_;
  std::vector<RowId> rows_;
};

}  // namespace
}  // namespace drafting
