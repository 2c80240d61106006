// Runs the kernels as plain C++, a fiber for each thread of a block, one block after another.
//
// The order in which fibers run between two barriers is shuffled, so that a result which depends on it does not stay
// hidden; a barrier that not all threads of a block reach, or at different lines, ends the program with a message.
#pragma once

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

// Arguments of the kernels.
static Shape shape;
static const uint4 *codes, *queries;
static const float *scales, *squares, *query_scales;
static const u64 *allowed, *after;
static u64 *lists, *best;
static u32 lists_each;

using Rank = void(
    Shape, const uint4*, const float*, const float*, const uint4*, const float*, const u64*, const u64*, u64*
);
template <Rank* KERNEL> static void ranks() {
    KERNEL(shape, codes, scales, squares, queries, query_scales, allowed, after, lists);
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
