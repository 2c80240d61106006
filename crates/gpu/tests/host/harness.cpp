// Reads cases from standard input, runs the kernels, and writes keys to standard output. The test that built it
// compares.

#include "blocks.h"

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

static void run_case() {
    u32 coding = take<u32>(), group = take<u32>(), groups = take<u32>(), parts = take<u32>();
    u32 with_bitmap = take<u32>(), with_floors = take<u32>();
    shape = take<Shape>();
    auto own_codes = take_all<uint4>();
    auto own_scales = take_all<float>();
    auto own_squares = take_all<float>();
    auto own_queries = take_all<uint4>();
    auto own_query_scales = take_all<float>();
    auto own_allowed = take_all<u64>();
    auto own_after = take_all<u64>();
    codes = own_codes.data;
    scales = own_scales.data;
    squares = own_squares.data;
    queries = own_queries.data;
    query_scales = own_query_scales.data;
    allowed = with_bitmap ? own_allowed.data : nullptr;
    after = with_floors ? own_after.data : nullptr;
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
