// Where a module runs.
#pragma once

#include <optional>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

namespace millpond {

// Opens LibTorch's CUDA library where the machine has a GPU and the library is there. To be called before all else:
// LibTorch asks once a process whether it has CUDA, at the first operator that wants to know, and never again.
void open_cuda();

// The device of a number as in `mpt_load`.
at::Device device_of(int32_t cuda);

// One of `device`'s streams, or the one that a thread is on which was never given any; none for the processor.
std::optional<c10::Stream> stream_of(at::Device device);
std::optional<c10::Stream> default_stream_of(at::Device device);

// Waits until `device` has done what was asked for on this thread's stream: that of its scope, or the default one.
void finish(at::Device device);

// While it lives, the thread's work on `device` goes to the stream `own`, or to one of the thread's.
class StreamScope {
 public:
  StreamScope(at::Device device, const std::optional<c10::Stream> &own);

 private:
  std::optional<c10::StreamGuard> guard_;
};

// `tensor`, which borrows a caller's memory, on `device`.
at::Tensor incoming(const at::Tensor &tensor, at::Device device);

} // namespace millpond
