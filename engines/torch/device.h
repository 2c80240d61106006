// The device that a module runs on.
#pragma once

#include <optional>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

namespace millpond {

// Opens LibTorch's CUDA library if the machine has a GPU and the library exists. Must be the first call: LibTorch checks
// for CUDA once a process, at the first operator that needs to know.
void open_cuda();

// Returns the device of a number as in `mpt_load`.
at::Device device_of(int32_t cuda);

// Returns one of `device`'s streams, or the default stream; none for the processor.
std::optional<c10::Stream> stream_of(at::Device device);
std::optional<c10::Stream> default_stream_of(at::Device device);

// Waits until `device` has finished the work on this thread's stream: that of its scope, or the default one.
void finish(at::Device device);

// While it exists, the thread's work on `device` goes to the stream `own`, or to one of the thread's.
class StreamScope {
 public:
  StreamScope(at::Device device, const std::optional<c10::Stream> &own);

 private:
  std::optional<c10::StreamGuard> guard_;
};

// Moves `tensor`, which borrows a caller's memory, to `device`.
at::Tensor incoming(const at::Tensor &tensor, at::Device device);

} // namespace millpond
