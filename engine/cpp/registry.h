// What Python knows by a number; a part of `kernels.cpp`.

#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace {

// For any thread. One that is static is never destroyed: it outlives what runs at exit.
template <typename T>
class Registry {
 public:
  static Registry& it() {
    static auto* all = new Registry();
    return *all;
  }

  void hold(int64_t key, T held) {
    const std::lock_guard guard(lock_);
    held_.insert_or_assign(key, std::move(held));
  }

  void release(int64_t key) {
    const std::lock_guard guard(lock_);
    held_.erase(key);
  }

  T at(int64_t key) {
    const std::lock_guard guard(lock_);
    return held_.at(key);
  }

 private:
  std::mutex lock_;
  std::unordered_map<int64_t, T> held_;
};

}  // namespace
