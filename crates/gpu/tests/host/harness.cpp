// Runs the kernels as plain C++, a fiber for each thread of a block, one block after another.
//
// Reads cases from standard input, writes keys to standard output; the test that built it compares. The order in which
// fibers run between two barriers is shuffled, so that a result which depends on it does not stay hidden; a barrier that
// not all threads of a block reach, or at different lines, ends the program with a message.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#define __syncthreads() barrier(__LINE__)

struct Place {
    unsigned x, y, z;
};
static Place threadIdx, blockIdx, gridDim;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static unsigned min(unsigned left, unsigned right) { return left < right ? left : right; }
static unsigned atomicAdd(unsigned* place, unsigned added) {
    unsigned before = *place;
    *place += added;
    return before;
}
static unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
static float __int2float_rn(int value) { return (float)value; }
// Volatile keeps the compiler from joining two steps into one rounding.
static float __fmul_rn(float left, float right) {
    volatile float product = left * right;
    return product;
}
static float __fadd_rn(float left, float right) {
    volatile float sum = left + right;
    return sum;
}
static float __fsub_rn(float left, float right) {
    volatile float difference = left - right;
    return difference;
}
static int products_of_four(int left, int right, int sum) {
    for (int at = 0; at < 4; ++at) sum += (int8_t)(left >> (8 * at)) * (int8_t)(right >> (8 * at));
    return sum;
}

static void barrier(int line);
static void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

#include "../../src/kernels.cu"

static ucontext_t scheduler, fibers[THREADS];
static std::vector<char> stacks[THREADS];
// The line of the barrier that a fiber waits at; 0: it is done.
static int waits[THREADS];
static unsigned running;
static void (*body)();
static uint64_t seed = 1;

static void barrier(int line) {
    waits[running] = line;
    swapcontext(&fibers[running], &scheduler);
    threadIdx.x = running;
}

static void fiber() {
    body();
    waits[running] = 0;
}

static void run_block(void (*kernel)()) {
    body = kernel;
    unsigned order[THREADS];
    for (unsigned at = 0; at < THREADS; ++at) {
        order[at] = at;
        stacks[at].resize(1 << 16);
        getcontext(&fibers[at]);
        fibers[at].uc_stack.ss_sp = stacks[at].data();
        fibers[at].uc_stack.ss_size = stacks[at].size();
        fibers[at].uc_link = &scheduler;
        makecontext(&fibers[at], fiber, 0);
    }
    for (;;) {
        for (unsigned at = THREADS - 1; at > 0; --at) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            std::swap(order[at], order[(seed >> 33) % (at + 1)]);
        }
        for (unsigned at : order) {
            running = threadIdx.x = at;
            swapcontext(&scheduler, &fibers[at]);
        }
        for (int line : waits) {
            if (line != waits[0]) fail("threads of a block wait at different barriers");
        }
        if (!waits[0]) return;
    }
}

// A buffer that ends the program where something was written behind it.
template <class T> struct Buffer {
    static const size_t GUARD = 64;
    std::unique_ptr<char[]> memory;
    size_t bytes;
    T* data;
    explicit Buffer(size_t count) : memory(new char[count * sizeof(T) + 2 * GUARD + 16]), bytes(count * sizeof(T)) {
        char* start = memory.get() + GUARD;
        start += (16 - (uintptr_t)start % 16) % 16;
        data = (T*)start;
        std::memset(start - GUARD / 2, 0xa5, bytes + GUARD);
    }
    void check() {
        unsigned char* start = (unsigned char*)data;
        for (size_t at = 0; at < GUARD / 2; ++at) {
            if (start[bytes + at] != 0xa5 || *(start - 1 - at) != 0xa5) fail("a kernel wrote outside of a buffer");
        }
    }
};

template <class T> static T take() {
    T value;
    if (std::fread(&value, sizeof value, 1, stdin) != 1) fail("the case ends early");
    return value;
}
template <class T> static Buffer<T> take_all() {
    size_t count = take<uint64_t>();
    Buffer<T> buffer(count);
    if (count && std::fread(buffer.data, sizeof(T), count, stdin) != count) fail("the case ends early");
    return buffer;
}

static Shape shape;
static const uint4 *codes, *queries;
static const float *scales, *squares, *query_scales;
static const u64* allowed;
static u64 *lists, *best;
static u32 lists_each;

template <void (*KERNEL)(Shape, const uint4*, const float*, const float*, const uint4*, const float*, const u64*, u64*)>
static void ranks() {
    KERNEL(shape, codes, scales, squares, queries, query_scales, allowed, lists);
}
static void merges() { merge_lists(lists, lists_each, shape.k, best); }

static void (*kernel_for(u32 coding, u32 group))() {
    switch (coding * 10 + group) {
        case 1: return ranks<rank_bytes_1>;
        case 2: return ranks<rank_bytes_2>;
        case 4: return ranks<rank_bytes_4>;
        case 8: return ranks<rank_bytes_8>;
        case 11: return ranks<rank_bfloats_1>;
        case 12: return ranks<rank_bfloats_2>;
        case 14: return ranks<rank_bfloats_4>;
        case 18: return ranks<rank_bfloats_8>;
    }
    fail("there is no such kernel");
    return nullptr;
}

static void run_case() {
    u32 coding = take<u32>(), group = take<u32>(), groups = take<u32>(), parts = take<u32>();
    u32 with_bitmap = take<u32>();
    shape = take<Shape>();
    auto own_codes = take_all<uint4>();
    auto own_scales = take_all<float>();
    auto own_squares = take_all<float>();
    auto own_queries = take_all<uint4>();
    auto own_query_scales = take_all<float>();
    auto own_allowed = take_all<u64>();
    codes = own_codes.data;
    scales = own_scales.data;
    squares = own_squares.data;
    queries = own_queries.data;
    query_scales = own_query_scales.data;
    allowed = with_bitmap ? own_allowed.data : nullptr;
    Buffer<u64> own_lists((size_t)shape.queries * parts * shape.k), own_best((size_t)shape.queries * shape.k);
    lists = own_lists.data;
    best = own_best.data;
    gridDim = {parts, groups, 1};
    for (u32 y = 0; y < groups; ++y) {
        for (u32 x = 0; x < parts; ++x) {
            blockIdx = {x, y, 0};
            run_block(kernel_for(coding, group));
        }
    }
    lists_each = parts;
    gridDim = {shape.queries, 1, 1};
    for (u32 x = 0; x < shape.queries; ++x) {
        blockIdx = {x, 0, 0};
        run_block(merges);
    }
    own_lists.check();
    own_best.check();
    std::fwrite(best, 8, (size_t)shape.queries * shape.k, stdout);
}

int main() {
    for (u32 cases = take<u32>(); cases > 0; --cases) run_case();
    return 0;
}
