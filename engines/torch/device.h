// Where a module runs.
#pragma once

#include <optional>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

namespace millpond {

// The device of a number as in `mpt_load`. Opens LibTorch's CUDA library where one is asked for.
at::Device device_of(int32_t cuda);

// While it lives, the thread's work on `device` goes to a stream of its own.
class StreamScope {
 public:
  explicit StreamScope(at::Device device);

 private:
  std::optional<c10::StreamGuard> guard_;
};

// `tensor`, which borrows a caller's memory, on `device`.
at::Tensor incoming(const at::Tensor &tensor, at::Device device);

} // namespace millpond
