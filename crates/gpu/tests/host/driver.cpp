// A pretended driver (libcuda) and run-time compiler (libnvrtc), for tests on machines without a GPU. It cannot show
// that CUDA computes correctly. It shows that the crate uses a device correctly, since it punishes mistakes:
// * a call of a thread without a context fails;
// * addresses of the device are none that the processor can access, and a kernel gets none of the host;
// * copies, kernels and frees take place as late as possible: at a wait for the stream;
// * a copy or a kernel that reaches beyond an allocation ends the process.
// A launch for REFUSED_HITS fails, and the context survives. A launch for LOST_HITS fails when it runs, and all later
// calls fail. PRETEND_GPU_LARGEST is the largest allocation of bytes that succeeds, although more are free.

#include "blocks.h"

#include <cinttypes>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500;
constexpr int ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801;
constexpr u32 REFUSED_HITS = 77, LOST_HITS = 78;
constexpr size_t MEMORY = 64 << 20;
// Beyond all addresses of a process.
constexpr uint64_t SHIFT = 1ull << 62;
void* const CONTEXT = (void*)0x10;

struct Machine {
    std::mutex lock;
    std::deque<std::function<void()>> work;
    std::map<uint64_t, size_t> device, pinned;
    std::set<void*> events;
    size_t used = 0;
    // An error that all later calls return.
    int lost = SUCCESS;
};

// Never destroyed: threads may end after the library.
Machine& machine() {
    static auto* const all = new Machine;
    return *all;
}

using Guard = std::lock_guard<std::mutex>;
thread_local void* current = nullptr;

// Runs a call that needs a context.
template <class Body> int call(Body body) {
    Guard guard(machine().lock);
    if (machine().lost != SUCCESS) return machine().lost;
    return current == CONTEXT ? body() : INVALID_CONTEXT;
}

// Returns the bytes at an address of the device. Ends the process if they are not in one allocation.
char* reach(uint64_t address, size_t bytes) {
    for (auto* all : {&machine().device, &machine().pinned}) {
        auto next = all->upper_bound(address);
        if (next == all->begin()) continue;
        --next;
        if (address + bytes <= next->first + next->second) return (char*)(address - SHIFT);
    }
    fail("an access beyond the memory of the device");
    return nullptr;
}

// A pointer of a kernel: null, or an address in an allocation of at least this many bytes.
template <class T> T* pointer(uint64_t address, size_t count) {
    return address == 0 ? nullptr : (T*)reach(address, count * sizeof(T));
}

struct Kernel {
    const char* name;
    u32 coding, group;
};
const Kernel KERNELS[] = {
    {"rank_bytes_1", 0, 1},   {"rank_bytes_2", 0, 2},   {"rank_bytes_4", 0, 4},
    {"rank_bytes_8", 0, 8},   {"rank_bfloats_1", 1, 1}, {"rank_bfloats_2", 1, 2},
    {"rank_bfloats_4", 1, 4}, {"rank_bfloats_8", 1, 8}, {"merge_lists", 0, 0},
};

void run_blocks(void (*kernel)()) {
    for (u32 y = 0; y < gridDim.y; ++y) {
        for (u32 x = 0; x < gridDim.x; ++x) {
            blockIdx = {x, y, 0};
            run_block(kernel);
        }
    }
}

template <class T> T parameter(void** parameters, int at) {
    T value;
    std::memcpy(&value, parameters[at], sizeof value);
    return value;
}

void rank(const Kernel& kernel, Shape of, const uint64_t (&address)[8], Place grid) {
    if (of.k == LOST_HITS) {
        machine().lost = ILLEGAL_ADDRESS;
        return;
    }
    const size_t width = kernel.coding == 0 ? 1 : 2;
    shape = of;
    gridDim = grid;
    codes = pointer<uint4>(address[0], (size_t)of.rows * of.row_pieces);
    scales = pointer<float>(address[1], of.rows);
    squares = pointer<float>(address[2], of.rows);
    queries = pointer<uint4>(address[3], (size_t)of.queries * of.row_pieces * width);
    query_scales = pointer<float>(address[4], of.queries);
    allowed = pointer<u64>(address[5], (of.rows + 63) / 64);
    after = pointer<u64>(address[6], of.queries);
    lists = pointer<u64>(address[7], (size_t)of.queries * grid.x * of.k);
    run_blocks(kernel_for(kernel.coding, kernel.group));
}

void merge(uint64_t from, u32 parts, u32 k, uint64_t to, Place grid) {
    gridDim = grid;
    shape.k = k;
    lists_each = parts;
    lists = pointer<u64>(from, (size_t)grid.x * parts * k);
    best = pointer<u64>(to, (size_t)grid.x * k);
    run_blocks(merges);
}

size_t largest() {
    const char* text = std::getenv("PRETEND_GPU_LARGEST");
    return text == nullptr ? MEMORY : std::strtoull(text, nullptr, 10);
}

} // namespace

extern "C" {

int cuInit(unsigned) { return SUCCESS; }
int cuDriverGetVersion(int* version) {
    *version = 12080;
    return SUCCESS;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "a pretended failure";
    return SUCCESS;
}
int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    static const std::map<int, int> values = {{16, 4}, {75, 9}, {76, 0}, {115, 1}};
    const auto found = values.find(attribute);
    if (found == values.end()) return INVALID_VALUE;
    *value = found->second;
    return SUCCESS;
}
int cuDeviceGetName(char* name, int bytes, int) {
    std::snprintf(name, (size_t)bytes, "a pretended GPU");
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = CONTEXT;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxGetCurrent(void** context) {
    *context = current;
    return SUCCESS;
}
int cuCtxSetCurrent(void* context) {
    current = context;
    return SUCCESS;
}
int cuDeviceGetDefaultMemPool(void** pool, int) {
    *pool = (void*)0x20;
    return SUCCESS;
}
int cuMemPoolSetAttribute(void*, int, void*) { return SUCCESS; }

int cuModuleLoadData(void** module, const void* image) {
    return call([&] {
        *module = (void*)0x30;
        return std::strcmp((const char*)image, "pretended") == 0 ? SUCCESS : INVALID_VALUE;
    });
}
int cuModuleUnload(void*) {
    return call([] { return SUCCESS; });
}
int cuModuleGetFunction(const void** function, void*, const char* name) {
    return call([&] {
        for (const Kernel& kernel : KERNELS) {
            if (std::strcmp(kernel.name, name) == 0) {
                *function = &kernel;
                return SUCCESS;
            }
        }
        return NOT_FOUND;
    });
}

int cuEventCreate(void** event, unsigned) {
    return call([&] {
        *event = std::malloc(1);
        machine().events.insert(*event);
        return SUCCESS;
    });
}
int cuEventDestroy_v2(void* event) {
    return call([&] {
        if (machine().events.erase(event) == 0) fail("an event that does not exist");
        std::free(event);
        return SUCCESS;
    });
}
int cuEventSynchronize(void*) {
    return call([] { return SUCCESS; });
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    return call([&] {
        *free = MEMORY - machine().used;
        *total = MEMORY;
        return SUCCESS;
    });
}
int cuMemAllocAsync(uint64_t* address, size_t bytes, void*) {
    return call([&] {
        if (bytes == 0) return INVALID_VALUE;
        if (bytes > largest() || bytes > MEMORY - machine().used) return OUT_OF_MEMORY;
        *address = (uint64_t)std::aligned_alloc(256, (bytes + 255) / 256 * 256) + SHIFT;
        std::memset((char*)(*address - SHIFT), 0xff, bytes);
        machine().device[*address] = bytes;
        machine().used += bytes;
        return SUCCESS;
    });
}
int cuMemFreeAsync(uint64_t address, void*) {
    return call([&] {
        machine().work.push_back([=] {
            const auto found = machine().device.find(address);
            if (found == machine().device.end()) fail("memory of the device that does not exist is freed");
            machine().used -= found->second;
            machine().device.erase(found);
            std::free((void*)(address - SHIFT));
        });
        return SUCCESS;
    });
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    return call([&] {
        *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
        machine().pinned[(uint64_t)*memory + SHIFT] = bytes;
        return SUCCESS;
    });
}
int cuMemFreeHost(void* memory) {
    return call([&] {
        if (machine().pinned.erase((uint64_t)memory + SHIFT) == 0) fail("memory that is not pinned is freed");
        std::free(memory);
        return SUCCESS;
    });
}
int cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned) {
    return call([&] {
        *address = (uint64_t)memory + SHIFT;
        return SUCCESS;
    });
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
    return call([&] {
        machine().work.push_back([=] { std::memcpy(reach(to, bytes), from, bytes); });
        return SUCCESS;
    });
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
    return call([&] {
        machine().work.push_back([=] { std::memcpy(to, reach(from, bytes), bytes); });
        return SUCCESS;
    });
}
int cuLaunchKernel(
    const Kernel* kernel, unsigned width, unsigned height, unsigned depth, unsigned threads, unsigned, unsigned,
    unsigned shared, void*, void** parameters, void**
) {
    return call([&] {
        if (threads != THREADS || depth != 1 || shared != 0 || height > 65535) return INVALID_VALUE;
        const Place grid = {width, height, 1};
        if (kernel->group == 0) {
            const auto from = parameter<uint64_t>(parameters, 0), to = parameter<uint64_t>(parameters, 3);
            const auto parts = parameter<u32>(parameters, 1), k = parameter<u32>(parameters, 2);
            machine().work.push_back([=] { merge(from, parts, k, to, grid); });
            return SUCCESS;
        }
        const auto of = parameter<Shape>(parameters, 0);
        if (of.k == REFUSED_HITS) return NOT_SUPPORTED;
        struct {
            uint64_t all[8];
        } address;
        for (int at = 0; at < 8; ++at) address.all[at] = parameter<uint64_t>(parameters, at + 1);
        machine().work.push_back([=] { rank(*kernel, of, address.all, grid); });
        return SUCCESS;
    });
}
int cuStreamSynchronize(void*) {
    return call([] {
        while (!machine().work.empty() && machine().lost == SUCCESS) {
            const auto work = std::move(machine().work.front());
            machine().work.pop_front();
            work();
        }
        return machine().lost;
    });
}

int nvrtcVersion(int* major, int* minor) {
    *major = 12;
    *minor = 8;
    return SUCCESS;
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
    *program = (void*)0x40;
    return SUCCESS;
}
int nvrtcDestroyProgram(void**) { return SUCCESS; }
int nvrtcCompileProgram(void*, int, const char* const*) { return SUCCESS; }
int nvrtcGetProgramLogSize(void*, size_t* bytes) {
    *bytes = 1;
    return SUCCESS;
}
int nvrtcGetProgramLog(void*, char* log) {
    *log = 0;
    return SUCCESS;
}
int nvrtcGetCUBINSize(void*, size_t* bytes) {
    *bytes = sizeof "pretended";
    return SUCCESS;
}
int nvrtcGetCUBIN(void*, char* code) {
    std::memcpy(code, "pretended", sizeof "pretended");
    return SUCCESS;
}

} // extern "C"
