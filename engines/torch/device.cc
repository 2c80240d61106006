#include "device.h"

#include <dlfcn.h>

#include <unordered_map>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "guard.h"

namespace millpond {

at::Device device_of(int32_t cuda) {
  if (cuda < 0) {
    return at::kCPU;
  }
  const auto name = "cuda:" + std::to_string(cuda);
  // It registers itself; its symbols are for nobody else.
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA) && dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char *why = dlerror();
    throw NoDevice{name + ": LibTorch's CUDA library does not load: " + (why == nullptr ? "" : why)};
  }
  const auto count = c10::impl::hasDeviceGuardImpl(at::kCUDA)
                         ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount()
                         : c10::DeviceIndex(0);
  if (cuda >= count) {
    throw NoDevice{name + ": there are " + std::to_string(count) + " CUDA devices"};
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda));
}

StreamScope::StreamScope(at::Device device) {
  if (device.is_cpu()) {
    return;
  }
  thread_local std::unordered_map<c10::DeviceIndex, c10::Stream> streams;
  auto known = streams.find(device.index());
  if (known == streams.end()) {
    const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    known = streams.emplace(device.index(), stream).first;
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
