// LibTorch's allocator: while a model loads, it allocates from the caller's memory.
#pragma once

#include <cstddef>

namespace millpond {

// Replaces LibTorch's allocator for the processor by one that uses `PoolScope`. Called once a process.
void install_allocator();

// While it exists, the thread allocates from [base, base + bytes) until that is full. Memory is never returned to it: it
// holds a model's parameters, which stay.
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
