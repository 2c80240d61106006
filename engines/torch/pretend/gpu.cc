// Two pretended GPUs, for tests on machines without one. This library replaces LibTorch's CUDA library under its name
// and registers the same things with LibTorch: a device, streams, memory and kernels. It cannot show that CUDA computes
// correctly. It shows that the shim uses a device correctly, since it punishes mistakes as a real device may:
// * only copies and kernels can access memory of a device: it is mapped without any rights, and its bytes lie at
//   another address;
// * asynchronous results, of kernels too, become visible as late as possible: at the wait for their stream;
// * freed memory is overwritten, in the order of the stream it was allocated on, and reused on that stream only;
// * pinned memory is read late, other memory at once;
// * the kernel of `digamma` fails as a kernel that accesses a wrong address does.
// Kernels are the processor's. With PRETEND_GPU_LOG, the file gets a line for each transfer, for each new stream, and
// "empty" whenever no memory of the devices is in use.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr size_t kMemory = size_t{1} << 31;
constexpr size_t kPage = 4096;
constexpr int kFreed = 0xFF;
constexpr c10::DeviceIndex kDevices = 2;
// The size of CUDA's own pool.
constexpr c10::StreamId kStreams = 32;

// With PRETEND_GPU_NONE, the driver shows no device.
c10::DeviceIndex devices() { return std::getenv("PRETEND_GPU_NONE") == nullptr ? kDevices : c10::DeviceIndex(0); }

using Queue = std::deque<std::function<void()>>;
using Lane = std::pair<c10::DeviceIndex, c10::StreamId>;

void log(const std::string &line) {
  static const char *path = std::getenv("PRETEND_GPU_LOG");
  static const int file = path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string text = line + "\n";
  if (file >= 0 && write(file, text.data(), text.size()) < 0) {
    std::abort();
  }
}

// State of both devices, never destroyed: threads may end after the library.
struct Machine {
  std::recursive_mutex lock;
  std::map<Lane, Queue> pending;
  std::map<std::pair<Lane, size_t>, std::vector<char *>> freed;
  std::map<const char *, size_t> pinned;
  // Address that tensors hold, and address of the bytes.
  char *shown = nullptr;
  char *real = nullptr;
  size_t taken = 0;
  size_t live = 0;
  c10::StreamId next = 0;

  Machine() {
    const int file = memfd_create("pretend-gpu", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kMemory) == 0, "no memory for a device");
    shown = static_cast<char *>(mmap(nullptr, kMemory, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
    real = static_cast<char *>(mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
    TORCH_CHECK(shown != MAP_FAILED && real != MAP_FAILED, "no memory for a device");
    close(file);
  }

  char *take(Lane lane, size_t bytes) {
    live++;
    auto &again = freed[{lane, bytes}];
    if (!again.empty()) {
      auto *block = again.back();
      again.pop_back();
      return block;
    }
    TORCH_CHECK(taken + bytes <= kMemory, "CUDA out of memory. Tried to allocate ", bytes, " bytes");
    taken += bytes;
    return shown + (taken - bytes);
  }

  void give(Lane lane, char *block, size_t bytes) {
    live--;
    auto *bytes_of = block - shown + real;
    pending[lane].push_back([=] { std::memset(bytes_of, kFreed, bytes); });
    freed[{lane, bytes}].push_back(block);
    if (live == 0) {
      log("empty");
    }
  }

  void wait(Lane lane) {
    auto &queue = pending[lane];
    while (!queue.empty()) {
      const auto work = std::move(queue.front());
      queue.pop_front();
      work();
    }
  }
};

Machine &machine() {
  static auto *const all = new Machine;
  return *all;
}

using Guard = std::lock_guard<std::recursive_mutex>;

thread_local c10::DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kDevices] = {};
// Copies inside a kernel are not the caller's.
thread_local bool in_kernel = false;

Lane current_lane(c10::DeviceIndex device) { return {device, current_streams[device]}; }
Lane lane_of(const c10::Stream &stream) { return {stream.device_index(), stream.id()}; }
c10::Stream stream_of(Lane lane) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, lane.first), lane.second);
}

struct Block {
  Lane lane;
  char *start;
  size_t bytes;
};

void release(void *context) {
  const auto *block = static_cast<Block *>(context);
  const Guard guard(machine().lock);
  machine().give(block->lane, block->start, block->bytes);
  delete block;
}

class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device);
    if (bytes == 0) {
      return {nullptr, device};
    }
    const Guard guard(machine().lock);
    const auto lane = current_lane(current_device);
    const auto whole = (bytes + kPage - 1) / kPage * kPage;
    auto *block = new Block{lane, machine().take(lane, whole), whole};
    return {block->start, block, &release, device};
  }
  void copy_data(void *, const void *, size_t) const override { TORCH_CHECK(false, "a copy beside all streams"); }
};

void unpin(void *memory) {
  const Guard guard(machine().lock);
  auto &pinned = machine().pinned;
  const auto found = pinned.find(static_cast<char *>(memory));
  std::memset(memory, kFreed, found->second);
  pinned.erase(found);
  std::free(memory);
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const Guard guard(machine().lock);
    auto *memory = static_cast<char *>(std::aligned_alloc(kPage, (bytes / kPage + 1) * kPage));
    machine().pinned[memory] = bytes;
    return {memory, memory, &unpin, c10::kCPU};
  }
  void copy_data(void *to, const void *from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

bool is_pinned(const void *memory) {
  const Guard guard(machine().lock);
  const auto &pinned = machine().pinned;
  auto next = pinned.upper_bound(static_cast<const char *>(memory));
  return next != pinned.begin() && memory < (--next)->first + next->second;
}

struct DeviceImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_cuda() && device.index() < kDevices, "CUDA error: invalid device ordinal");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index() < 0 ? current_device : device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(current_lane(device.index() < 0 ? current_device : device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of({device.index(), 0}); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    const Guard guard(machine().lock);
    const auto id = machine().next++ % kStreams + 1;
    log("stream " + std::to_string(id));
    return stream_of({device.index(), id});
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return devices(); }
  bool queryStream(const c10::Stream &stream) const override {
    const Guard guard(machine().lock);
    return machine().pending[lane_of(stream)].empty();
  }
  void synchronizeStream(const c10::Stream &stream) const override {
    const Guard guard(machine().lock);
    machine().wait(lane_of(stream));
  }
};

class CUDAHooks final : public at::CUDAHooksInterface {
 public:
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return devices(); }
  int getNumGPUs() const override { return devices(); }
  c10::DeviceIndex current_device() const override { return ::current_device; }
  c10::DeviceIndex getCurrentDevice() const override { return ::current_device; }
  bool isPinnedPtr(const void *memory) const override { return is_pinned(memory); }
  c10::Allocator *getPinnedMemoryAllocator() const override {
    static auto *const memory = new PinnedMemory;
    return memory;
  }
};

// Returns the same elements at an accessible address.
at::Tensor touchable(const at::Tensor &tensor) {
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "copies of lazy tensors are not pretended");
  auto *data = static_cast<char *>(tensor.data_ptr());
  if (tensor.is_cuda() && data != nullptr) {
    data += machine().real - machine().shown;
  }
  return at::from_blob(data, tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

const char *name(const at::Tensor &tensor) {
  return tensor.is_cuda() ? "device" : is_pinned(tensor.data_ptr()) ? "pinned" : "pageable";
}

at::Tensor &copy(at::Tensor &self, const at::Tensor &src, bool non_blocking) {
  if (self.is_same(src) || self.numel() == 0) {
    return self;
  }
  const Guard guard(machine().lock);
  const auto lane = current_lane((self.is_cuda() ? self : src).device().index());
  if (!in_kernel) {
    log(std::string("copy ") + name(src) + " to " + name(self) + " on " + std::to_string(lane.second));
  }
  const auto pinned = [](const at::Tensor &host) { return is_pinned(host.data_ptr()); };
  auto from = touchable(src.expand(self.sizes()));
  // A kernel's results become visible when the stream reaches them.
  const bool waits = !in_kernel && !non_blocking;
  if (!src.is_cuda() && !waits && !pinned(src)) {
    from = from.clone();
  }
  // Pinned memory is kept, as CUDA's allocator does with an event. Device memory is not.
  const auto kept = self.is_cuda() ? (src.is_cuda() ? at::Tensor() : src) : self;
  machine().pending[lane].push_back([to = touchable(self), from, kept] {
    const c10::InferenceMode inference;
    at::Tensor(to).copy_(from);
  });
  const bool to_host = !self.is_cuda() && !(non_blocking && pinned(self));
  if (to_host || (waits && !src.is_cuda())) {
    machine().wait(lane);
  }
  return self;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(size, c10::GetAllocator(c10::kCUDA), keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::kCUDA), keys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor &set(at::Tensor &self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto *tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(storage));
  tensor->set_sizes_and_strides(size, stride, offset);
  return self;
}

// Results of a kernel of the processor.
at::Tensor copy_back(const at::Tensor &self, const at::Tensor &destination) {
  if (self.sizes() != destination.sizes()) {
    const auto fresh = at::empty(self.sizes(), destination.options());
    auto to = destination;
    set(to, fresh.storage(), 0, fresh.sizes(), fresh.strides());
  }
  return at::Tensor(destination).copy_(self);
}

void kernel(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  TORCH_CHECK(op.operator_name().name != "aten::digamma", "CUDA error: an illegal memory access was encountered");
  const bool before = in_kernel;
  in_kernel = true;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    in_kernel = before;
    throw;
  }
  in_kernel = before;
}

// The only recurrent operator that the processor lacks: gates in the order of `at::lstm_cell`.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor &input, const at::Tensor &hidden,
                                                         const at::Tensor &cell, const std::optional<at::Tensor> &input_bias,
                                                         const std::optional<at::Tensor> &hidden_bias) {
  auto gates = input + hidden;
  for (const auto &bias : {input_bias, hidden_bias}) {
    gates = bias && bias->defined() ? gates + *bias : gates;
  }
  const auto parts = gates.chunk(4, 1);
  const auto next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}

const bool registered = [] {
  static DeviceMemory *const memory = new DeviceMemory;
  c10::SetAllocator(c10::kCUDA, memory);
  return true;
}();

} // namespace

C10_REGISTER_GUARD_IMPL(CUDA, DeviceImpl)

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::CUDAHooks)
} // namespace at

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("_copy_from_and_resize", copy_back);
  m.impl("set_.source_Storage_storage_offset", set);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>()); }
