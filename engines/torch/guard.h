// No exception leaves the shim: every entry point that calls LibTorch runs its body through `guarded`.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "millpond_torch.h"

#define MPT_EXPORT extern "C" __attribute__((visibility("default")))

namespace millpond {

// The requested device does not exist.
struct NoDevice {
  std::string why;
};

// Stores the message of the current exception for `millpond_torch_message`.
int32_t caught() noexcept;

template <typename Body>
int32_t guarded(Body &&body) noexcept {
  try {
    std::forward<Body>(body)();
    return MPT_OK;
  } catch (...) {
    return caught();
  }
}

} // namespace millpond
