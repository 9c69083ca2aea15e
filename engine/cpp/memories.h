// RECAP's memories and repeated suffixes; a part of `kernels.cpp`.
//
// `engine/memory/transitions.py`, `engine/memory/states.py` and `engine/suffix.py` say what is done
// here, and why.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace drafting {
namespace {

// ---- keys --------------------------------------------------------------------------------------

using Key = uint64_t;

constexpr int kTokenBits = 20;
constexpr Key kOne = (Key{1} << kTokenBits) - 1;
constexpr Key kTwo = (Key{1} << 2 * kTokenBits) - 1;
constexpr Key kThree = (Key{1} << 3 * kTokenBits) - 1;
constexpr Key kNoToken = kOne;
constexpr Key kNoContext = kThree;
constexpr Key kPair = Key{1} << 3 * kTokenBits;
constexpr Key kTriple = kPair << 1;

Key followed(Key context, int64_t token) {
  return (context << kTokenBits | static_cast<Key>(token)) & kThree;
}

// What is kept under keys, none of which is all ones.
template <typename Value>
class Map {
 public:
  int64_t size() const { return size_; }

  Value* find(Key key) {
    if (slots_.empty()) return nullptr;
    Slot& slot = slots_[place(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

  // What is kept under a key, or a new value. Good until the next call.
  Value& at(Key key) {
    if (2 * (size_ + 1) > static_cast<int64_t>(slots_.size())) grow();
    Slot& slot = slots_[place(key)];
    if (slot.key != key) {
      slot = {key, {}};
      ++size_;
    }
    return slot.value;
  }

  void erase(Key key) {
    size_t gap = place(key);
    const size_t mask = slots_.size() - 1;
    for (size_t next = (gap + 1) & mask; slots_[next].key != kEmpty; next = (next + 1) & mask) {
      // Whoever was put behind its home for want of room may move up to the gap.
      if (((next - home(slots_[next].key)) & mask) >= ((next - gap) & mask)) {
        slots_[gap] = slots_[next];
        gap = next;
      }
    }
    slots_[gap].key = kEmpty;
    --size_;
  }

  template <typename Visit>
  void each(Visit&& visit) {
    for (Slot& slot : slots_) {
      if (slot.key != kEmpty) visit(slot.key, slot.value);
    }
  }

 private:
  static constexpr Key kEmpty = ~Key{0};
  static constexpr size_t kFirst = 64;

  struct Slot {
    Key key = kEmpty;
    Value value;
  };

  size_t home(Key key) const { return key * 0x9e3779b97f4a7c15u >> shift_; }

  // Where a key is, or would be.
  size_t place(Key key) const {
    size_t at = home(key);
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> before(slots_.empty() ? kFirst : 2 * slots_.size());
    before.swap(slots_);
    shift_ = 64;
    for (size_t size = slots_.size(); size > 1; size /= 2) --shift_;
    for (const Slot& slot : before) {
      if (slot.key != kEmpty) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  int64_t size_ = 0;
  int shift_ = 64;
};

// ---- predictions -------------------------------------------------------------------------------

using RowId = uint32_t;
constexpr RowId kNoRow = ~RowId{0};

// The predictions that some key holds, and those of the pass that is learned from.
class Rows {
 public:
  struct Head {
    double confidence;
    int32_t length;
    uint32_t holders;
    bool by_guess;
  };

  explicit Rows(int64_t width) : width_(width), stride_(sizeof(Head) + width * 8) {}

  int64_t width() const { return width_; }
  Head& head(RowId row) { return *reinterpret_cast<Head*>(at(row)); }
  int32_t* ids(RowId row) { return reinterpret_cast<int32_t*>(at(row) + sizeof(Head)); }
  float* probs(RowId row) { return reinterpret_cast<float*>(ids(row) + width_); }

  // A row that its caller holds.
  template <typename Id>
  RowId add(const Id* ids, const float* probs, int64_t length, bool by_guess = false) {
    if (free_.empty()) {
      blocks_.emplace_back(new char[kBlock * stride_]);
      for (RowId i = kBlock; i-- > 0;) free_.push_back((blocks_.size() - 1) * kBlock + i);
    }
    const RowId row = free_.back();
    free_.pop_back();
    length = std::min(length, width_);
    head(row) = {kUnknown, static_cast<int32_t>(length), 1, by_guess};
    std::copy_n(ids, length, this->ids(row));
    std::copy_n(probs, length, this->probs(row));
    return row;
  }

  void hold(RowId row) {
    if (row != kNoRow) ++head(row).holders;
  }

  void release(RowId row) {
    if (row != kNoRow && --head(row).holders == 0) free_.push_back(row);
  }

  bool has(RowId row, int64_t token) {
    const int32_t* first = ids(row);
    return std::find(first, first + head(row).length, token) != first + head(row).length;
  }

  // Its length; 0 for none.
  int64_t copy(RowId row, int32_t* ids, float* probs) {
    if (row == kNoRow) return 0;
    std::copy_n(this->ids(row), head(row).length, ids);
    std::copy_n(this->probs(row), head(row).length, probs);
    return head(row).length;
  }

  double confidence(RowId row) {
    double& known = head(row).confidence;
    if (known == kUnknown) known = measured(probs(row), head(row).length);
    return known;
  }

 private:
  static constexpr RowId kBlock = 1024;
  static constexpr double kUnknown = -1;

  static double measured(const float* probs, int64_t length) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < length; ++i) {
      const double p = probs[i];
      if (p > 0) {
        total += p;
        sum += p * std::log(p);
      }
    }
    if (total == 0) return 0;
    const double most = std::log(static_cast<double>(std::max<int64_t>(length, 2)));
    return std::min(std::max(1 - (std::log(total) - sum / total) / most, 0.0), 1.0);
  }

  char* at(RowId row) { return blocks_[row / kBlock].get() + row % kBlock * stride_; }

  int64_t width_, stride_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::vector<RowId> free_;
};

struct Kept {
  RowId row = kNoRow;
  uint32_t run = 0;
};

// ---- tables of a file --------------------------------------------------------------------------

// Python's, which keeps them.
struct Table {
  const void* keys;  // int32 of tokens, uint64 of phrases; ascending
  const int32_t* ids;
  const float* probs;
  const uint8_t* runs;  // of phrases
  int64_t count, k;
};

template <typename K>
int64_t found(const Table& table, Key key, int64_t first, int64_t end) {
  const K* keys = static_cast<const K*>(table.keys);
  const K* at = std::lower_bound(keys + first, keys + end, static_cast<K>(key));
  return at != keys + end && *at == static_cast<K>(key) ? at - keys : -1;
}

// Finds phrases by where those with the same first token begin.
class PhraseIndex {
 public:
  explicit PhraseIndex(const Table& table) {
    const Key* keys = static_cast<const Key*>(table.keys);
    for (int64_t i = 0; i < table.count; ++i) {
      std::vector<int64_t>& starts = starts_[keys[i] >= kTriple];
      starts.resize(std::max<size_t>(starts.size(), first_token(keys[i]) + 1), i);
    }
    for (std::vector<int64_t>& starts : starts_) starts.push_back(0);
    const int64_t pairs = std::lower_bound(keys, keys + table.count, kTriple) - keys;
    starts_[0].back() = pairs;
    starts_[1].back() = table.count;
  }

  int64_t find(const Table& table, Key key) const {
    const std::vector<int64_t>& starts = starts_[key >= kTriple];
    const size_t token = first_token(key);
    return token + 1 < starts.size() ? found<Key>(table, key, starts[token], starts[token + 1]) : -1;
  }

 private:
  static size_t first_token(Key key) {
    return (key >= kTriple ? key >> 2 * kTokenBits : key >> kTokenBits) & kOne;
  }

  std::vector<int64_t> starts_[2];  // of pairs, of triples; the last is their end
};

// ---- states of the target ----------------------------------------------------------------------

struct State {
  uint64_t words[4];

  int64_t bits_from(const State& other) const {
    int64_t bits = 0;
    for (int i = 0; i < 4; ++i) bits += __builtin_popcountll(words[i] ^ other.words[i]);
    return bits;
  }
};

struct Seen {
  State before, behind;
  RowId row;
};

// Under each token the newest predictions behind it, as `engine.memory.states.StateMemory`.
class States {
 public:
  int64_t request = 0;  // that is being answered

  explicit States(int64_t most) : most_(most) {}

  // Another request; as `begin` there. Each row that goes is handed over.
  template <typename LetGo>
  void begin(int64_t limit, LetGo&& let_go) {
    ++request;
    if (count_ <= limit) return;
    std::vector<std::pair<int64_t, Key>> order;
    places_.each([&](Key token, int32_t place) {
      order.emplace_back(rings_[place - 1].request, token);
    });
    std::sort(order.begin(), order.end());
    for (const auto& [last, token] : order) {
      if (count_ <= limit - limit / 8) break;
      const int32_t place = *places_.find(token);
      const Ring ring = std::exchange(rings_[place - 1], {});
      for (const Seen& seen : ring.seen) let_go(seen.row);
      count_ -= static_cast<int64_t>(ring.seen.size());
      places_.erase(token);
      free_.push_back(place);
    }
  }

  // Stores one more; gives the row of the one whose place it takes, or none.
  RowId store(Key token, const Seen& seen) {
    int32_t& place = places_.at(token);
    if (place == 0 && !free_.empty()) {
      place = free_.back();
      free_.pop_back();
    } else if (place == 0) {
      rings_.emplace_back();
      place = static_cast<int32_t>(rings_.size());
    }
    Ring& ring = rings_[place - 1];
    ring.request = request;
    if (static_cast<int64_t>(ring.seen.size()) < most_) {
      ring.seen.push_back(seen);
      ++count_;
      return kNoRow;
    }
    const RowId before = std::exchange(ring.seen[ring.oldest], seen).row;
    ring.oldest = (ring.oldest + 1) % ring.seen.size();
    return before;
  }

  // Of one token, the newest first.
  template <typename Visit>
  void behind(Key token, Visit&& visit) {
    const int32_t* place = places_.find(token);
    if (place != nullptr) newest_first(rings_[*place - 1], visit);
  }

  int64_t tokens() const { return places_.size(); }

  // Of each token, when it was stored last, how many there are, and then these, the oldest first.
  template <typename Start, typename Visit>
  void each(Start&& start, Visit&& visit) {
    places_.each([&](Key token, int32_t place) {
      const Ring& ring = rings_[place - 1];
      const size_t count = ring.seen.size();
      start(token, ring.request, static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) visit(ring.seen[(ring.oldest + i) % count]);
    });
  }

 private:
  struct Ring {
    std::vector<Seen> seen;
    size_t oldest = 0;
    int64_t request = 0;  // that stored the newest
  };

  template <typename Visit>
  static void newest_first(const Ring& ring, Visit&& visit) {
    for (size_t i = ring.oldest; i-- > 0;) visit(ring.seen[i]);
    for (size_t i = ring.seen.size(); i-- > ring.oldest;) visit(ring.seen[i]);
  }

  int64_t most_, count_ = 0;
  Map<int32_t> places_;  // in `rings_`, from 1 on
  std::vector<Ring> rings_;
  std::vector<int32_t> free_;
};

// ---- memories ----------------------------------------------------------------------------------

struct Recent {
  RowId newest = kNoRow, before = kNoRow;
  uint32_t written = 0;  // times since the last save
};

struct Phrase {
  Kept kept;
  uint32_t stamp = 0;  // when it was absorbed; 0 if it is saved
  int64_t place = 0;   // among all that were absorbed
};

struct Learned {  // of one request, under keys of one length
  Map<Kept> kept;
  std::vector<Key> order;
};

class Memory {
 public:
  Memory(int64_t width, const Table& tokens, const Table& phrases, int64_t most, int64_t most_seen,
         int64_t all_seen)
      : rows(width),
        seen(most_seen),
        prompted(most_seen),
        token_table_(tokens),
        phrase_table_(phrases),
        index_(phrases),
        most_(most),
        most_seen_(most_seen),
        all_seen_(all_seen) {}

  Rows rows;
  Learned pairs, triples;
  Map<Recent> tokens;
  Map<Phrase> phrases;
  States seen, prompted;
  int64_t absorbed = 0;

  bool in_file(Key token) const { return row_in_file(token) >= 0; }

  Recent recent(Key token) {
    if (const Recent* known = tokens.find(token)) return *known;
    const int64_t row = row_in_file(token);
    if (row < 0) return {};
    return tokens.at(token) = {read(token_table_, row)};
  }

  void store(Key token, RowId row) {
    const Recent known = recent(token);
    rows.hold(row);
    rows.release(known.before);
    tokens.at(token) = {row, known.newest, known.written + 1};
  }

  void see(States& states, Key token, const Seen& seen) {
    rows.hold(seen.row);
    rows.release(states.store(token, seen));
  }

  void keep(Learned& learned, Key key, Kept kept) {
    Kept& place = learned.kept.at(key);
    if (place.row == kNoRow) learned.order.push_back(key);
    rows.hold(kept.row);
    rows.release(place.row);
    place = kept;
  }

  Kept phrase(Key key) {
    if (const Phrase* known = phrases.find(key)) return known->kept;
    if (const Kept* known = unpacked_.find(key)) return *known;
    const int64_t row = index_.find(phrase_table_, key);
    if (row < 0) return {};
    return unpacked_.at(key) = {read(phrase_table_, row), phrase_table_.runs[row]};
  }

  void absorb() {
    ++absorbed;
    for (const auto& [mark, learned] : {std::pair(kPair, &pairs), std::pair(kTriple, &triples)}) {
      for (const Key context : learned->order) {
        const Kept kept = *learned->kept.find(context);
        const Phrase* known = phrases.find(mark | context);
        if (known == nullptr || known->kept.row != kept.row) {
          absorb(mark | context, kept, static_cast<uint32_t>(absorbed));
        }
      }
    }
    for (; phrases.size() > most_; order_.pop_front()) {
      const auto [key, place] = order_.front();
      const Phrase* oldest = phrases.find(key);
      if (oldest != nullptr && oldest->place == place) {
        rows.release(oldest->kept.row);
        phrases.erase(key);
      }
    }
    if (order_.size() > 2 * static_cast<size_t>(phrases.size()) + 1024) {
      std::deque<std::pair<Key, int64_t>> present;
      each_phrase([&](Key key, const Phrase& phrase) { present.emplace_back(key, phrase.place); });
      order_.swap(present);
    }
  }

  // As what was absorbed last.
  void absorb(Key key, Kept kept, uint32_t stamp) {
    Phrase& place = phrases.at(key);
    rows.hold(kept.row);
    rows.release(place.kept.row);
    place = {kept, stamp, ++places_};
    order_.emplace_back(key, places_);
  }

  // Those absorbed longest ago first.
  template <typename Visit>
  void each_phrase(Visit&& visit) {
    for (const auto& [key, place] : order_) {
      Phrase* phrase = phrases.find(key);
      if (phrase != nullptr && phrase->place == place) visit(key, *phrase);
    }
  }

  // Forgets the one before.
  void begin_request() {
    for (Learned* learned : {&pairs, &triples}) {
      learned->kept.each([&](Key, const Kept& kept) { rows.release(kept.row); });
      *learned = {};
    }
    const auto let_go = [&](RowId row) { rows.release(row); };
    prompted.each([](Key, int64_t, int64_t) {}, [&](const Seen& each) { let_go(each.row); });
    prompted = States(most_seen_);
    seen.begin(all_seen_, let_go);
  }

 private:
  int64_t row_in_file(Key token) const {
    return found<int32_t>(token_table_, token, 0, token_table_.count);
  }

  RowId read(const Table& table, int64_t row) {
    return rows.add(table.ids + row * table.k, table.probs + row * table.k, table.k);
  }

  Table token_table_, phrase_table_;
  PhraseIndex index_;
  int64_t most_, most_seen_, all_seen_;
  Map<Kept> unpacked_;
  std::deque<std::pair<Key, int64_t>> order_;
  int64_t places_ = 0;
};

// ---- repeated suffixes -------------------------------------------------------------------------

class SuffixIndex {
 public:
  std::vector<int32_t> text;
  int64_t match_length = 0, match_end = 0;

  void append(int32_t token) {
    text.push_back(token);
    const int32_t added = static_cast<int32_t>(states_.size());
    states_.push_back({{}, 0, states_[last_].length + 1, length()});
    int32_t state = last_;
    for (; state != -1 && target(state, token) < 0; state = states_[state].link) {
      redirect(state, token, added);
    }
    if (state != -1) {
      const int32_t link = linked(state, token);
      states_[added].link = link;
    }
    last_ = added;
    int32_t repeated = states_[added].link;
    match_length = states_[repeated].length;
    match_end = states_[repeated].end;
    for (int step = 0; step < kRecencySteps && repeated > 0; ++step) {
      states_[repeated].end = length();
      repeated = states_[repeated].link;
    }
  }

 private:
  static constexpr int kRecencySteps = 32;

  struct State {
    std::vector<std::pair<int32_t, int32_t>> next;  // states by token
    int32_t link, length, end;
  };

  int32_t length() const { return static_cast<int32_t>(text.size()); }

  auto entry(int32_t state, int32_t token) {
    auto& next = states_[state].next;
    return std::lower_bound(next.begin(), next.end(), std::pair(token, int32_t{-1}));
  }

  int32_t target(int32_t state, int32_t token) {
    const auto at = entry(state, token);
    return at != states_[state].next.end() && at->first == token ? at->second : -1;
  }

  void redirect(int32_t state, int32_t token, int32_t to) {
    const auto at = entry(state, token);
    if (at != states_[state].next.end() && at->first == token) {
      at->second = to;
    } else {
      states_[state].next.insert(at, {token, to});
    }
  }

  int32_t linked(int32_t state, int32_t token) {
    const int32_t found = target(state, token);
    if (states_[found].length == states_[state].length + 1) return found;
    const int32_t clone = static_cast<int32_t>(states_.size());
    State copy = states_[found];
    copy.length = states_[state].length + 1;
    states_.push_back(std::move(copy));
    states_[found].link = clone;
    for (; state != -1 && target(state, token) == found; state = states_[state].link) {
      redirect(state, token, clone);
    }
    return clone;
  }

  std::vector<State> states_{{{}, -1, 0, 0}};
  int32_t last_ = 0;
};

}  // namespace
}  // namespace drafting
