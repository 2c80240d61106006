//! The crate from outside: real memory, real files.
//!
//! Counters are asserted, never times. Where a system refuses huge pages or O_DIRECT the same tests
//! pass on the fallback.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

extern crate millpond_memory as memory;

mod direct_file;
mod pool;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memory::{Chunk, ParameterStore, PoolConfig, SLOT_BYTES, SlotPool, StoreConfig};
use os::Rate;

const MIB: usize = 1 << 20;

/// Returns a pool of `slots` slots without a limit of its rate.
fn pool(slots: usize) -> Arc<SlotPool> {
    pool_with(PoolConfig {
        bytes_max: bytes_of(slots),
        huge_pages: true,
        fault_rate: Rate::unlimited(),
    })
}

fn pool_with(config: PoolConfig) -> Arc<SlotPool> {
    SlotPool::new(config).unwrap()
}

fn store(pool: &Arc<SlotPool>) -> Arc<ParameterStore> {
    ParameterStore::new(pool.clone(), StoreConfig { read_rate: Rate::unlimited(), direct: true })
}

fn bytes_of(slots: usize) -> u64 {
    (slots * SLOT_BYTES) as u64
}

/// Returns a directory on the disk that the build uses. Unlike /tmp it is seldom in memory, so
/// O_DIRECT is tested.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes that differ between seeds and positions.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut data);
    data
}

/// Writes a weights file: each piece at the next multiple of 4096.
fn weights(dir: &Path, name: &str, pieces: &[Vec<u8>]) -> (PathBuf, Vec<Chunk>) {
    let mut file = Vec::new();
    let mut chunks = Vec::new();
    for piece in pieces {
        file.resize(file.len().next_multiple_of(4096), 0);
        chunks.push(Chunk {
            hash: blake3::hash(piece),
            offset: file.len() as u64,
            bytes: piece.len() as u64,
        });
        file.extend_from_slice(piece);
    }
    let path = dir.join(name);
    std::fs::write(&path, file).unwrap();
    (path, chunks)
}
