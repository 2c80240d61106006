// Where LibTorch puts what it allocates: while a model loads, in memory of the caller's.
#pragma once

#include <cstddef>

namespace millpond {

// Replaces LibTorch's allocator for the processor by one that knows `PoolScope`. Once a process.
void install_allocator();

// While it lives, what the thread allocates comes from [base, base + bytes), until that is full. Nothing is ever
// given back to it: it is for a model's parameters, which come once and stay.
class PoolScope {
 public:
  PoolScope(void *base, size_t bytes);
  ~PoolScope();
  PoolScope(const PoolScope &) = delete;
  PoolScope &operator=(const PoolScope &) = delete;
  size_t used() const;

 private:
  bool active_;
};

} // namespace millpond
