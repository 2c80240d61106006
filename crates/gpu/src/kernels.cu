// Brute force over codes with the best rows kept on the way, so that the matrix of scores never exists.
//
// A block goes through a part of the rows, a tile of THREADS rows at a time, for a group of queries. Codes and queries
// come through shared memory, PIECES pieces of 16 bytes at a time, read into registers while the pieces before are added
// up; a thread adds up one row for all queries of the group. What beats the k-th best so far is appended to the query's list in shared memory; a list that could overflow
// with the next tile is sorted and cut to k, which lowers what has to be beaten. A second kernel merges the sorted
// lists of all parts, best places first, until no list has a better key left.
//
// Costs are 64-bit keys: the bits of the float in an order that integers share, above the row. Keys differ from each
// other, so the result does not depend on who came first: equal costs are in the order of rows.
//
// Arithmetic on costs is written with functions that round each step and are never contracted, so that it gives the
// same bits as the processor does. The file is also compiled as plain C++ by a test, with fibers for threads.

typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of a block, and rows of a tile.
#define THREADS 128
// Pieces of 16 bytes of a row that are in shared memory at a time.
#define PIECES 8
// One more, so that eight neighbouring threads that read 16 bytes each touch all banks once.
#define TILE_STRIDE (PIECES + 1)
// Places of all lists of a block together: 16 KiB of shared memory.
#define PLACES 2048
// No row: beaten by every key.
#define NONE (~0ull)
#define INFINITE __uint_as_float(0x7f800000u)

// What a kernel is given besides its buffers; the same on the host.
struct Shape {
    u32 rows;
    // Pieces of 16 bytes from one row of codes to the next.
    u32 row_pieces;
    u32 queries;
    u32 k;
    u32 tiles_per_part;
    // 1: squared distances; 0: products.
    u32 distances;
};

// Adds the products of four pairs of signed bytes. NVRTC before 12.4 declares `__dp4a` without its code, so that the
// kernels did not link.
#ifdef __CUDACC__
__device__ inline int products_of_four(int left, int right, int sum) {
    int result;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(left), "r"(right), "r"(sum));
    return result;
}
#endif

// The key of a cost, smaller for what is better.
__device__ inline u64 key_of(float cost, u32 row) {
    // Adding zero turns -0 into 0.
    u32 bits = __float_as_uint(__fadd_rn(cost, 0.0f));
    u32 ordered = (bits >> 31) ? ~bits : (bits | 0x80000000u);
    return ((u64)ordered << 32) | row;
}

// Sorts `capacity` keys, a power of two; all threads of the block take part.
__device__ inline void sort(u64* keys, u32 capacity) {
    for (u32 size = 2; size <= capacity; size <<= 1) {
        for (u32 stride = size >> 1; stride > 0; stride >>= 1) {
            for (u32 at = threadIdx.x; at < capacity / 2; at += THREADS) {
                u32 low = 2 * at - (at & (stride - 1));
                u32 high = low + stride;
                u64 first = keys[low], second = keys[high];
                if ((first > second) == ((low & size) == 0)) {
                    keys[low] = second;
                    keys[high] = first;
                }
            }
            __syncthreads();
        }
    }
}

// Sorts a list and keeps its k best; all threads take part, and all appended before the last barrier. The list has room
// for `max(count, k)` rounded up to a power of two. Places up to k that have no key get NONE.
__device__ inline void cut(u64* keys, u32* count, u64* threshold, u32 k) {
    u32 capacity = 2;
    while (capacity < *count || capacity < k) capacity <<= 1;
    for (u32 at = *count + threadIdx.x; at < capacity; at += THREADS) keys[at] = NONE;
    __syncthreads();
    sort(keys, capacity);
    if (threadIdx.x == 0 && *count >= k) {
        *count = k;
        *threshold = keys[k - 1];
    }
    __syncthreads();
}

// Symmetric bytes with a scale for each row and each query.
struct Bytes {
    typedef int Sum;
    // Pieces of a query that belong to one piece of a row.
    static const u32 WIDTH = 1;
    static __device__ inline void add(Sum& sum, uint4 code, const uint4* query) {
        uint4 other = query[0];
        sum = products_of_four((int)code.x, (int)other.x, sum);
        sum = products_of_four((int)code.y, (int)other.y, sum);
        sum = products_of_four((int)code.z, (int)other.z, sum);
        sum = products_of_four((int)code.w, (int)other.w, sum);
    }
    static __device__ inline float product(
        Sum sum, const float* query_scales, const float* scales, u32 query, u32 row
    ) {
        return __fmul_rn(__fmul_rn(__int2float_rn(sum), query_scales[query]), scales[row]);
    }
};

// The upper halves of floats, compared with queries of whole floats.
struct Bfloats {
    typedef float Sum;
    static const u32 WIDTH = 2;
    static __device__ inline void pair(Sum& sum, u32 code, u32 low, u32 high) {
        sum = fmaf(__uint_as_float(code << 16), __uint_as_float(low), sum);
        sum = fmaf(__uint_as_float(code & 0xffff0000u), __uint_as_float(high), sum);
    }
    static __device__ inline void add(Sum& sum, uint4 code, const uint4* query) {
        uint4 first = query[0], second = query[1];
        pair(sum, code.x, first.x, first.y);
        pair(sum, code.y, first.z, first.w);
        pair(sum, code.z, second.x, second.y);
        pair(sum, code.w, second.z, second.w);
    }
    static __device__ inline float product(Sum sum, const float*, const float*, u32, u32) { return sum; }
};

// Pieces of the tile's rows that a thread brings: THREADS threads bring PIECES pieces of THREADS rows.
struct Pieces {
    uint4 own[PIECES];
};

// Reads pieces `start..start + PIECES` of the rows of a tile; what is outside of the rows is zero. All reads are issued
// before the first is waited for.
__device__ inline void read(const Shape& shape, const uint4* codes, u32 first_row, u32 start, Pieces& pieces) {
    u32 piece = threadIdx.x % PIECES;
#pragma unroll
    for (u32 at = 0; at < PIECES; ++at) {
        u32 row = first_row + (threadIdx.x + at * THREADS) / PIECES;
        bool there = row < shape.rows && start + piece < shape.row_pieces;
        uint4 nothing = {0, 0, 0, 0};
        pieces.own[at] = there ? codes[(u64)row * shape.row_pieces + start + piece] : nothing;
    }
}

// Puts the pieces of this thread into the tile.
__device__ inline void put(const Pieces& pieces, uint4* tile) {
    u32 piece = threadIdx.x % PIECES;
#pragma unroll
    for (u32 at = 0; at < PIECES; ++at) {
        tile[(threadIdx.x + at * THREADS) / PIECES * TILE_STRIDE + piece] = pieces.own[at];
    }
}

// Brings pieces `start..start + width` of the group's queries into shared memory.
template <class Coding, int QUERIES>
__device__ inline void fetch(
    const Shape& shape, const uint4* queries, u32 first_query, u32 start, u32 width, uint4* group
) {
    uint4 nothing = {0, 0, 0, 0};
    for (u32 at = threadIdx.x; at < QUERIES * PIECES * Coding::WIDTH; at += THREADS) {
        u32 query = at / (PIECES * Coding::WIDTH), piece = at % (PIECES * Coding::WIDTH);
        if (piece < width * Coding::WIDTH) {
            bool there = first_query + query < shape.queries;
            u64 from = ((u64)(first_query + query) * shape.row_pieces + start) * Coding::WIDTH + piece;
            group[at] = there ? queries[from] : nothing;
        }
    }
}

// Part `blockIdx.x` of the rows for group `blockIdx.y` of the queries; `out` has k keys for each query and part. If
// there is `after`, it has a key for each query, and only larger keys are kept.
template <class Coding, int QUERIES>
__device__ inline void rank(
    Shape shape, const uint4* codes, const float* scales, const float* squares, const uint4* queries,
    const float* query_scales, const u64* allowed, const u64* after, u64* out
) {
    const u32 CAPACITY = PLACES / QUERIES;
    __shared__ uint4 tile[THREADS * TILE_STRIDE];
    __shared__ uint4 group[QUERIES * PIECES * Coding::WIDTH];
    __shared__ u64 keys[PLACES];
    __shared__ u64 thresholds[QUERIES];
    __shared__ u64 floors[QUERIES];
    __shared__ u32 counts[QUERIES];
    u32 first_query = blockIdx.y * QUERIES;
    if (threadIdx.x < QUERIES) {
        counts[threadIdx.x] = 0;
        thresholds[threadIdx.x] = NONE;
        // No key is 0.
        bool there = after && first_query + threadIdx.x < shape.queries;
        floors[threadIdx.x] = there ? after[first_query + threadIdx.x] : 0;
    }
    u32 tiles = (shape.rows + THREADS - 1) / THREADS;
    u32 first_tile = blockIdx.x * shape.tiles_per_part;
    u32 last_tile = min(tiles, first_tile + shape.tiles_per_part);
    Pieces next;
    read(shape, codes, first_tile * THREADS, 0, next);
    for (u32 at = first_tile; at < last_tile; ++at) {
        typename Coding::Sum sums[QUERIES] = {};
        for (u32 start = 0; start < shape.row_pieces; start += PIECES) {
            u32 width = min((u32)PIECES, shape.row_pieces - start);
            // What was there before may still be read.
            __syncthreads();
            put(next, tile);
            fetch<Coding, QUERIES>(shape, queries, first_query, start, width, group);
            __syncthreads();
            // The next pieces are on their way while these are added up.
            bool same_tile = start + PIECES < shape.row_pieces;
            if (same_tile || at + 1 < last_tile) {
                u32 next_tile = same_tile ? at : at + 1;
                read(shape, codes, next_tile * THREADS, same_tile ? start + PIECES : 0, next);
            }
            for (u32 piece = 0; piece < width; ++piece) {
                uint4 code = tile[threadIdx.x * TILE_STRIDE + piece];
#pragma unroll
                for (u32 query = 0; query < QUERIES; ++query) {
                    Coding::add(sums[query], code, &group[(query * PIECES + piece) * Coding::WIDTH]);
                }
            }
        }
        u32 row = at * THREADS + threadIdx.x;
        if (row < shape.rows && (!allowed || (allowed[row / 64] >> (row % 64) & 1))) {
#pragma unroll
            for (u32 query = 0; query < QUERIES; ++query) {
                if (first_query + query >= shape.queries) continue;
                float product = Coding::product(sums[query], query_scales, scales, first_query + query, row);
                float cost = shape.distances ? __fsub_rn(squares[row], __fmul_rn(2.0f, product)) : -product;
                u64 key = key_of(cost, row);
                // Neither infinite values nor NaN get in.
                if (cost < INFINITE && key < thresholds[query] && key > floors[query]) {
                    keys[query * CAPACITY + atomicAdd(&counts[query], 1u)] = key;
                }
            }
        }
        __syncthreads();
        for (u32 query = 0; query < QUERIES; ++query) {
            if (counts[query] > CAPACITY - THREADS) {
                cut(keys + query * CAPACITY, &counts[query], &thresholds[query], shape.k);
            }
        }
    }
    __syncthreads();
    for (u32 query = 0; query < QUERIES && first_query + query < shape.queries; ++query) {
        cut(keys + query * CAPACITY, &counts[query], &thresholds[query], shape.k);
        u64* list = out + ((u64)(first_query + query) * gridDim.x + blockIdx.x) * shape.k;
        for (u32 place = threadIdx.x; place < shape.k; place += THREADS) list[place] = keys[query * CAPACITY + place];
    }
}

// The k best of query `blockIdx.x`: it has `parts` sorted lists of k keys.
//
// Keys are read place by place, the first of every list, then the second, because the first places have the best keys
// and lower what has to be beaten. If no list beats it at one place, none does behind it.
extern "C" __global__ void __launch_bounds__(THREADS) merge_lists(const u64* lists, u32 parts, u32 k, u64* out) {
    __shared__ u64 keys[PLACES];
    __shared__ u64 threshold;
    __shared__ u32 count;
    __shared__ u32 beaten;
    if (threadIdx.x == 0) {
        count = 0;
        threshold = NONE;
    }
    const u64* own = lists + (u64)blockIdx.x * parts * k;
    for (u32 place = 0; place < k; ++place) {
        if (threadIdx.x == 0) beaten = 0;
        __syncthreads();
        for (u32 start = 0; start < parts; start += THREADS) {
            u32 part = start + threadIdx.x;
            u64 key = part < parts ? own[(u64)part * k + place] : NONE;
            if (key < threshold) {
                keys[atomicAdd(&count, 1u)] = key;
                beaten = 1;
            }
            __syncthreads();
            // Everybody has to see the same count before anybody appends again.
            bool full = count > PLACES - THREADS;
            __syncthreads();
            if (full) cut(keys, &count, &threshold, k);
        }
        // Sorting costs more than keys that are appended in vain, unless there are many.
        bool last = !beaten, many = count >= k + k / 4;
        __syncthreads();
        if (last) break;
        if (many) cut(keys, &count, &threshold, k);
    }
    cut(keys, &count, &threshold, k);
    for (u32 place = threadIdx.x; place < k; place += THREADS) out[(u64)blockIdx.x * k + place] = keys[place];
}

#define RANK(name, Coding, QUERIES)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) name(                                                      \
        Shape shape, const uint4* codes, const float* scales, const float* squares, const uint4* queries,            \
        const float* query_scales, const u64* allowed, const u64* after, u64* out                                    \
    ) {                                                                                                              \
        rank<Coding, QUERIES>(shape, codes, scales, squares, queries, query_scales, allowed, after, out);            \
    }

RANK(rank_bytes_8, Bytes, 8)
RANK(rank_bytes_4, Bytes, 4)
RANK(rank_bytes_2, Bytes, 2)
RANK(rank_bytes_1, Bytes, 1)
RANK(rank_bfloats_8, Bfloats, 8)
RANK(rank_bfloats_4, Bfloats, 4)
RANK(rank_bfloats_2, Bfloats, 2)
RANK(rank_bfloats_1, Bfloats, 1)
