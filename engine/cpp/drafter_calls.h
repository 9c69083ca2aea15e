// What Python calls of `drafting.h`, and drafters as bytes; a part of `kernels.cpp`.
//
// Nothing here is called by two threads at once.

#pragma once

#include <c10/macros/Export.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "drafting.h"

namespace drafting {
namespace {

// ---- all that was learned, as bytes ------------------------------------------------------------

class Writer {
 public:
  std::vector<char> bytes;

  template <typename T>
  void put(const T* values, int64_t count = 1) {
    static_assert(std::is_trivially_copyable_v<T>);
    const char* first = reinterpret_cast<const char*>(values);
    bytes.insert(bytes.end(), first, first + count * sizeof(T));
  }

  void put(int64_t number) { put(&number); }
};

class Reader {
 public:
  Reader(const char* bytes, int64_t count) : at_(bytes), left_(count) {}

  template <typename T>
  void get(T* values, int64_t count = 1) {
    if (count < 0 || count > left_ / static_cast<int64_t>(sizeof(T))) {
      throw std::runtime_error("it is cut short");
    }
    std::memcpy(values, at_, count * sizeof(T));
    at_ += count * sizeof(T);
    left_ -= count * sizeof(T);
  }

  int64_t number() {
    int64_t found;
    get(&found);
    return found;
  }

  bool at_end() const { return left_ == 0; }

 private:
  const char* at_;
  int64_t left_;
};

// All that was learned, but what belongs to a pass.
std::vector<char> saved(Drafter& drafter) {
  Memory& memory = drafter.memory();
  Map<int64_t> places;
  std::vector<RowId> rows;
  const auto place = [&](RowId row) -> int64_t {
    if (row == kNoRow) return -1;
    int64_t& at = places.at(row);
    if (at == 0) {
      rows.push_back(row);
      at = static_cast<int64_t>(rows.size());
    }
    return at - 1;
  };
  Writer keys;
  keys.put(memory.absorbed);
  keys.put(memory.tokens.size());
  memory.tokens.each([&](Key key, const Recent& recent) {
    const int64_t row[] = {static_cast<int64_t>(key), place(recent.newest), place(recent.before),
                           recent.written};
    keys.put(row, std::size(row));
  });
  for (Learned* learned : {&memory.pairs, &memory.triples}) {
    keys.put(static_cast<int64_t>(learned->order.size()));
    for (const Key key : learned->order) {
      const Kept kept = *learned->kept.find(key);
      const int64_t row[] = {static_cast<int64_t>(key), place(kept.row), kept.run};
      keys.put(row, std::size(row));
    }
  }
  keys.put(memory.phrases.size());
  memory.each_phrase([&](Key key, const Phrase& phrase) {
    const int64_t row[] = {static_cast<int64_t>(key), place(phrase.kept.row), phrase.kept.run,
                           phrase.stamp};
    keys.put(row, std::size(row));
  });
  for (States* states : {&memory.seen, &memory.prompted}) {
    keys.put(states->request);
    keys.put(states->tokens());
    states->each(
        [&](Key token, int64_t request, int64_t count) {
          const int64_t row[] = {static_cast<int64_t>(token), request, count};
          keys.put(row, std::size(row));
        },
        [&](const Seen& seen) {
          keys.put(&seen.before);
          keys.put(&seen.behind);
          keys.put(place(seen.row));
        });
  }
  Writer all;
  all.put(int64_t{sizeof(Budget)});
  all.put(static_cast<int64_t>(rows.size()));
  for (const RowId row : rows) {
    const Rows::Head& head = memory.rows.head(row);
    all.put(head.length);
    all.put(int64_t{head.by_guess});
    all.put(memory.rows.ids(row), head.length);
    all.put(memory.rows.probs(row), head.length);
  }
  all.put(keys.bytes.data(), static_cast<int64_t>(keys.bytes.size()));
  all.put(&drafter.budget());
  return all.bytes;
}

// Into a drafter that has learned nothing; throws where bytes are not of `saved`.
void restore(Drafter& drafter, Reader reader) {
  if (reader.number() != sizeof(Budget)) throw std::runtime_error("it is of another version");
  Memory& memory = drafter.memory();
  std::vector<RowId> rows;
  const int64_t width = memory.rows.width();
  std::vector<int32_t> ids(width);
  std::vector<float> probs(width);
  for (int64_t left = reader.number(); left > 0; --left) {
    const int64_t length = reader.number(), by_guess = reader.number();
    if (length < 1 || length > width) throw std::runtime_error("a row does not fit");
    reader.get(ids.data(), length);
    reader.get(probs.data(), length);
    rows.push_back(memory.rows.add(ids.data(), probs.data(), length, by_guess != 0));
  }
  const auto row = [&](int64_t place) {
    return place < 0 ? kNoRow : rows.at(static_cast<size_t>(place));
  };
  const auto kept = [&](const int64_t* entry) {
    return Kept{rows.at(static_cast<size_t>(entry[1])), static_cast<uint32_t>(entry[2])};
  };
  memory.absorbed = reader.number();
  for (int64_t left = reader.number(); left > 0; --left) {
    int64_t entry[4];
    reader.get(entry, 4);
    const RowId newest = row(entry[1]), before = row(entry[2]);
    memory.rows.hold(newest);
    memory.rows.hold(before);
    memory.tokens.at(entry[0] & kThree) = {newest, before, static_cast<uint32_t>(entry[3])};
  }
  for (Learned* learned : {&memory.pairs, &memory.triples}) {
    for (int64_t left = reader.number(); left > 0; --left) {
      int64_t entry[3];
      reader.get(entry, 3);
      memory.keep(*learned, entry[0] & kThree, kept(entry));
    }
  }
  for (int64_t left = reader.number(); left > 0; --left) {
    int64_t entry[4];
    reader.get(entry, 4);
    const Key key = entry[0] & (kTriple | kPair | kThree);
    memory.absorb(key, kept(entry), static_cast<uint32_t>(entry[3]));
  }
  for (States* states : {&memory.seen, &memory.prompted}) {
    const int64_t request = reader.number();
    if (request < 0 || request == std::numeric_limits<int64_t>::max()) {
      throw std::runtime_error("it is damaged");
    }
    for (int64_t left = reader.number(); left > 0; --left) {
      const Key token = reader.number() & kThree;
      states->request = reader.number();
      for (int64_t count = reader.number(); count > 0; --count) {
        Seen seen;
        reader.get(&seen.before);
        reader.get(&seen.behind);
        seen.row = rows.at(static_cast<size_t>(reader.number()));
        memory.see(*states, token, seen);
      }
    }
    states->request = request;
  }
  for (const RowId held : rows) memory.rows.release(held);
  Budget budget;
  reader.get(&budget);
  if (!reader.at_end() || !budget.sound()) throw std::runtime_error("it is damaged");
  drafter.budget() = budget;
}

}  // namespace
}  // namespace drafting

using drafting::Drafter;

extern "C" {

C10_EXPORT int64_t recap_settings_size() { return sizeof(drafting::Settings); }

// Arrays of tables and claims are kept by the caller for as long as the drafter.
C10_EXPORT Drafter* recap_drafter(const drafting::Settings* settings, const int64_t* placeholders,
                                  int64_t count, const drafting::Table* tokens,
                                  const drafting::Table* phrases, double* claimed, double* came) {
  return new Drafter(*settings, placeholders, count, *tokens, *phrases, claimed, came);
}

C10_EXPORT void recap_drafter_delete(Drafter* drafter) { delete drafter; }

C10_EXPORT void recap_settle(Drafter* drafter) { drafter->settle(); }

C10_EXPORT void recap_start(Drafter* drafter) { drafter->start(); }

C10_EXPORT void recap_resume(Drafter* drafter) { drafter->resume(); }

C10_EXPORT void recap_read(Drafter* drafter, const int64_t* tokens, int64_t count, bool prompt) {
  drafter->read(tokens, count, prompt);
}

C10_EXPORT void recap_seed(Drafter* drafter, const int64_t* positions, int64_t count,
                           const int64_t* ids, const float* probs, int64_t k) {
  drafter->seed(positions, count, ids, probs, k);
}

// [count][4] words.
C10_EXPORT void recap_recognise(Drafter* drafter, const drafting::State* states, int64_t count) {
  drafter->recognise(states, count);
}

C10_EXPORT int64_t recap_propose(Drafter* drafter, int64_t max_depth, const drafting::Tree* tree) {
  return drafter->propose(max_depth, *tree);
}

C10_EXPORT int64_t recap_learn(Drafter* drafter, const int64_t* path, int64_t length,
                               const int64_t* ids, const float* probs, int64_t k,
                               const drafting::State* states) {
  return drafter->learn(path, length, ids, probs, k, states);
}

C10_EXPORT void recap_observe_pass(Drafter* drafter, int64_t committed, int64_t foreseen,
                                   double seconds) {
  drafter->observe_pass(committed, foreseen, seconds);
}

// Costs that were measured, behind contexts of which lengths; how many. Room is for 64.
C10_EXPORT int64_t recap_costs(Drafter* drafter, int64_t* lengths,
                               drafting::PassCost::Numbers* numbers) {
  drafting::Budget& budget = drafter->budget();
  int64_t count = 0;
  for (int64_t i = 0; i < budget.count; ++i) {
    if (!budget.costs[i].measured) continue;
    lengths[count] = budget.lengths[i];
    numbers[count++] = budget.costs[i].numbers;
  }
  return count;
}

C10_EXPORT void recap_set_costs(Drafter* drafter, int64_t count, const int64_t* lengths,
                                const drafting::PassCost::Numbers* numbers) {
  drafter->budget().restore(count, lengths, numbers);
}

// How many longer keys of this request there are, how many tokens that the file does not have, and
// how many tokens and phrases were written since the last save.
C10_EXPORT void recap_counts(Drafter* drafter, int64_t* counts) {
  drafting::Memory& memory = drafter->memory();
  counts[0] = memory.pairs.kept.size() + memory.triples.kept.size();
  counts[1] = counts[2] = counts[3] = 0;
  memory.tokens.each([&](drafting::Key key, const drafting::Recent& recent) {
    counts[1] += !memory.in_file(key);
    counts[2] += recent.written > 0;
  });
  memory.each_phrase([&](drafting::Key, const drafting::Phrase& phrase) {
    counts[3] += phrase.stamp > 0;
  });
}

// Of each token that was written since the last save its id and how often it was, and the lengths of
// the newest prediction and the one before, [n][4]; these, [n][2][width].
C10_EXPORT void recap_written_tokens(Drafter* drafter, int64_t* facts, int32_t* ids,
                                     float* probs) {
  drafting::Memory& memory = drafter->memory();
  const int64_t width = memory.rows.width();
  memory.tokens.each([&](drafting::Key key, const drafting::Recent& recent) {
    if (recent.written == 0) return;
    *facts++ = static_cast<int64_t>(key);
    *facts++ = recent.written;
    for (const drafting::RowId row : {recent.newest, recent.before}) {
      *facts++ = memory.rows.copy(row, ids, probs);
      ids += width;
      probs += width;
    }
  });
}

// Of each phrase that was written since the last save its key, when, its run and the length of the
// prediction, [n][4]; this, [n][width].
C10_EXPORT void recap_written_phrases(Drafter* drafter, int64_t* facts, int32_t* ids,
                                      float* probs) {
  drafting::Memory& memory = drafter->memory();
  const int64_t width = memory.rows.width();
  memory.each_phrase([&](drafting::Key key, const drafting::Phrase& phrase) {
    if (phrase.stamp == 0) return;
    *facts++ = static_cast<int64_t>(key);
    *facts++ = phrase.stamp;
    *facts++ = phrase.kept.run;
    *facts++ = memory.rows.copy(phrase.kept.row, ids, probs);
    ids += width;
    probs += width;
  });
}

C10_EXPORT void recap_mark_saved(Drafter* drafter) {
  drafting::Memory& memory = drafter->memory();
  memory.tokens.each([](drafting::Key, drafting::Recent& recent) { recent.written = 0; });
  memory.each_phrase([](drafting::Key, drafting::Phrase& phrase) { phrase.stamp = 0; });
}

// How many bytes it takes to write all down; they are written where there is room.
C10_EXPORT int64_t recap_save(Drafter* drafter, char* room) {
  const std::vector<char> bytes = drafting::saved(*drafter);
  if (room != nullptr) std::memcpy(room, bytes.data(), bytes.size());
  return static_cast<int64_t>(bytes.size());
}

// Whether the bytes were such as `recap_save` writes; if not, the drafter is of no use.
C10_EXPORT bool recap_restore(Drafter* drafter, const char* bytes, int64_t count) {
  try {
    drafting::restore(*drafter, drafting::Reader(bytes, count));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // extern "C"
