#include "pool.h"

#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace {

// LibTorch's own alignment, for the widest vector instructions.
constexpr size_t kAlignment = 64;
// Above the priority of LibTorch's own allocators.
constexpr uint8_t kPriority = 0xff;

struct Bump {
  char *base = nullptr;
  size_t bytes = 0;
  size_t used = 0;

  void *take(size_t wanted) {
    const size_t start = (used + kAlignment - 1) / kAlignment * kAlignment;
    if (base == nullptr || start > bytes || wanted > bytes - start) {
      return nullptr;
    }
    used = start + wanted;
    return base + start;
  }
};

thread_local Bump bump;

class Allocator final : public at::Allocator {
 public:
  explicit Allocator(at::Allocator *rest) : rest_(rest) {}

  at::DataPtr allocate(size_t bytes) override {
    if (bytes > 0) {
      if (void *data = bump.take(bytes)) {
        // No context, so nothing is freed: the memory belongs to the owner of the pool.
        return {data, nullptr, &c10::detail::deleteNothing, at::kCPU};
      }
    }
    return rest_->allocate(bytes);
  }

  // True outside a load, the only time at which LibTorch calls this. Its own check (data and context equal) refuses
  // memory of a pool.
  at::DeleterFnPtr raw_deleter() const override { return rest_->raw_deleter(); }

  void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  at::Allocator *rest_;
};

} // namespace

namespace millpond {

void install_allocator() {
  // Never freed: tensors hold the allocator's address.
  c10::SetCPUAllocator(new Allocator(c10::GetCPUAllocator()), kPriority);
}

PoolScope::PoolScope(void *base, size_t bytes) : active_(base != nullptr) {
  if (active_) {
    bump = Bump{static_cast<char *>(base), bytes, 0};
  }
}

PoolScope::~PoolScope() {
  if (active_) {
    bump = Bump{};
  }
}

size_t PoolScope::used() const { return active_ ? bump.used : 0; }

} // namespace millpond
