#include "device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <unordered_map>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "guard.h"

namespace {

constexpr const char *kLibrary = "libtorch_cuda.so";

// Returns true if the machine has an NVIDIA GPU, as Linux or the Windows subsystem for Linux shows it.
bool has_gpu() { return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0; }

// The library registers itself. No other code needs its symbols.
bool open_library() {
  return c10::impl::hasDeviceGuardImpl(at::kCUDA) || dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL) != nullptr;
}

} // namespace

namespace millpond {

void open_cuda() {
  if (has_gpu()) {
    // Stored for the error of a later call that requests the device.
    (void)open_library();
  }
}

at::Device device_of(int32_t cuda) {
  if (cuda < 0) {
    return at::kCPU;
  }
  const auto name = "cuda:" + std::to_string(cuda);
  if (!open_library()) {
    const char *why = dlerror();
    throw NoDevice{name + ": LibTorch's CUDA library does not load (`make torch-cuda` installs what it needs): " +
                   (why == nullptr ? "" : why)};
  }
  const auto count = c10::impl::hasDeviceGuardImpl(at::kCUDA)
                         ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount()
                         : c10::DeviceIndex(0);
  if (count == 0) {
    throw NoDevice{name + ": LibTorch finds no CUDA device. CUDA_VISIBLE_DEVICES may hide them, or the driver may be "
                          "too old for LibTorch's CUDA; LibTorch's warning is in the log"};
  }
  if (cuda >= count) {
    throw NoDevice{name + ": there are " + std::to_string(count) + " CUDA devices"};
  }
  if (!at::hasCUDA()) {
    throw NoDevice{name + ": LibTorch found no CUDA when it was first used and does not look again; a restart helps"};
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda));
}

std::optional<c10::Stream> stream_of(at::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

std::optional<c10::Stream> default_stream_of(at::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device);
}

void finish(at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

StreamScope::StreamScope(at::Device device, const std::optional<c10::Stream> &own) {
  if (device.is_cpu()) {
    return;
  }
  if (own) {
    guard_.emplace(*own);
    return;
  }
  thread_local std::unordered_map<c10::DeviceIndex, c10::Stream> streams;
  auto known = streams.find(device.index());
  if (known == streams.end()) {
    known = streams.emplace(device.index(), *stream_of(device)).first;
  }
  guard_.emplace(known->second);
}

at::Tensor incoming(const at::Tensor &tensor, at::Device device) {
  if (device.is_cpu()) {
    return tensor;
  }
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

} // namespace millpond
