//! Times of the kernels at each level that this processor can run: `cargo bench -p
//! millpond-kernels`.
//!
//! Sizes are those of search: vectors of 768 dimensions, blocks that fit the second-level cache.

use divan::{Bencher, black_box};
use millpond_kernels::cpu::{self, SimdLevel};
use millpond_kernels::{TopK, bfloat, integer, pq, rabitq};

const LEVELS: [SimdLevel; 3] = [SimdLevel::Scalar, SimdLevel::Avx2, SimdLevel::Avx512];
const DIMS: usize = 768;
const ROWS: usize = 256;
const QUERIES: usize = 8;

fn main() {
    println!("highest level of this processor: {:?}; higher ones run as that", cpu::level());
    divan::main();
}

/// Bytes that look random and are the same in every run (xorshift, Marsaglia 2003).
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

fn codes(count: usize) -> Vec<i8> {
    bytes(count).into_iter().map(|byte| (byte as i8).max(-127)).collect()
}

fn floats(count: usize) -> Vec<f32> {
    bytes(count).into_iter().map(|byte| f32::from(byte) / 256.0 - 0.5).collect()
}

#[divan::bench(args = LEVELS)]
fn integer_dot_block(bencher: Bencher<'_, '_>, level: SimdLevel) {
    cpu::limit(level);
    let queries = codes(QUERIES * DIMS);
    let rows = codes(ROWS * DIMS);
    let mut out = vec![0; QUERIES * ROWS];
    bencher
        .bench_local(|| integer::dot_block(black_box(&queries), black_box(&rows), DIMS, &mut out));
}

#[divan::bench(args = [SimdLevel::Scalar, SimdLevel::Avx2])]
fn bfloat_dot_block(bencher: Bencher<'_, '_>, level: SimdLevel) {
    cpu::limit(level);
    let queries = floats(QUERIES * DIMS);
    let rows: Vec<_> = floats(ROWS * DIMS).into_iter().map(half::bf16::from_f32).collect();
    let mut out = vec![0.0; QUERIES * ROWS];
    bencher
        .bench_local(|| bfloat::dot_block(black_box(&queries), black_box(&rows), DIMS, &mut out));
}

#[divan::bench(args = [SimdLevel::Scalar, SimdLevel::Avx2])]
fn pq_scan(bencher: Bencher<'_, '_>, level: SimdLevel) {
    cpu::limit(level);
    let parts = 96;
    let mut table = pq::CostTable::default();
    table.fill(&floats(DIMS), &floats(DIMS * pq::VALUES), DIMS / parts, -1.0);
    let blocks = 64;
    let codes = bytes(blocks * pq::block_bytes(parts));
    let terms = vec![0.0; blocks * pq::BLOCK];
    let mut top = TopK::new(100);
    bencher.bench_local(|| {
        top.reset(100);
        pq::scan(&table, black_box(&codes), black_box(&terms), 0.0, 0, &mut top, |_| true);
    });
}

#[divan::bench(args = [SimdLevel::Scalar, SimdLevel::Avx2])]
fn rabitq_scan(bencher: Bencher<'_, '_>, level: SimdLevel) {
    cpu::limit(level);
    let mut table = rabitq::SignTable::default();
    table.fill(&floats(DIMS));
    let blocks = 64;
    let block_bytes = rabitq::block_bytes(DIMS);
    let codes = bytes(blocks * block_bytes);
    let factors = [0.5; rabitq::FACTORS];
    let gate = rabitq::BoundGate { offset: 0.0, radius: 1.0, limit: 0.0 };
    let mut bounds = [0.0; rabitq::BLOCK];
    bencher.bench_local(|| {
        let blocks = black_box(&codes).chunks_exact(block_bytes);
        blocks
            .map(|block| rabitq::scan(&table, block, &factors, &gate, &mut bounds).count_ones())
            .sum::<u32>()
    });
}

#[divan::bench(args = LEVELS)]
fn rabitq_nibble_dot(bencher: Bencher<'_, '_>, level: SimdLevel) {
    cpu::limit(level);
    let row_bytes = rabitq::nibble_bytes(DIMS);
    let rows = bytes(ROWS * row_bytes);
    let query = codes(DIMS);
    bencher.bench_local(|| {
        let rows = black_box(&rows).chunks_exact(row_bytes);
        rows.map(|row| rabitq::nibble_dot(row, &query)).fold(0i32, i32::wrapping_add)
    });
}
