//! Loads: bytes that are read, shared chunks, cost of recycled memory, and memory after a failure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{ErrorKind, Result};
use memory::{Chunk, Loaded, ParameterStore, PoolConfig, SHARE_MIN, StoreConfig};
use os::{Rate, thread};

use crate::{MIB, bytes_of, noise, pool, pool_with, scratch, store, weights};

fn load(store: &ParameterStore, (path, chunks): &(impl AsRef<Path>, Vec<Chunk>)) -> Result<Loaded> {
    store.load(path.as_ref(), chunks, &AtomicBool::new(false))
}

fn assert_holds(loaded: &Loaded, pieces: &[Vec<u8>]) {
    assert_eq!(loaded.placed.len(), pieces.len());
    for (index, (placed, piece)) in loaded.placed.iter().zip(pieces).enumerate() {
        assert!(placed.as_slice() == piece, "chunk {index} differs");
        assert_eq!(placed.offset % 4096, 0);
    }
}

/// Sizes around every limit: empty, small, page, share limit, slice, slot.
fn assorted(seed: u64) -> Vec<Vec<u8>> {
    let limit = SHARE_MIN as usize;
    let sizes =
        [0, 1, 4096, 5000, limit - 1, limit, limit + 1, 4 * MIB, 4 * MIB + 1, 0, 9 * MIB - 17, 12];
    sizes.into_iter().enumerate().map(|(index, bytes)| noise(seed + index as u64, bytes)).collect()
}

#[test]
fn every_size_arrives_by_both_ways_of_reading() {
    let dir = scratch();
    let pieces = assorted(1);
    let file = weights(dir.path(), "weights.bin", &pieces);
    for (huge_pages, direct) in [(true, true), (true, false), (false, true), (false, false)] {
        let pool = pool_with(PoolConfig {
            bytes_max: bytes_of(32),
            huge_pages,
            fault_rate: Rate::unlimited(),
        });
        let store =
            ParameterStore::new(pool.clone(), StoreConfig { read_rate: Rate::unlimited(), direct });
        let needed = store.bytes_needed(&file.1);
        let loaded = load(&store, &file).unwrap();
        assert_holds(&loaded, &pieces);
        assert_eq!(pool.stats().used, needed);
        assert_eq!(loaded.report.bytes_read, pieces.iter().map(|piece| piece.len() as u64).sum());
        assert_eq!(loaded.report.direct, direct && store.stats().direct_refusal.is_none());
        drop(loaded);
        assert_eq!(pool.stats().used, 0);
    }
}

#[test]
fn chunks_may_come_in_any_order() {
    let dir = scratch();
    let mut pieces = assorted(2);
    let (path, mut chunks) = weights(dir.path(), "weights.bin", &pieces);
    chunks.reverse();
    pieces.reverse();
    assert_holds(&load(&store(&pool(32)), &(path, chunks)).unwrap(), &pieces);
}

#[test]
fn a_load_into_recycled_slots_causes_few_faults() {
    let dir = scratch();
    let sizes = [30 * MIB, 20 * MIB, 14 * MIB];
    let pages = (sizes.iter().sum::<usize>() / 4096) as u64;
    let version = |seed: u64| {
        let pieces: Vec<_> = (seed..).zip(sizes).map(|(seed, bytes)| noise(seed, bytes)).collect();
        weights(dir.path(), &format!("weights{seed}.bin"), &pieces)
    };
    let (first, second) = (version(10), version(20));
    for huge_pages in [true, false] {
        let pool = pool_with(PoolConfig {
            bytes_max: bytes_of(32),
            huge_pages,
            fault_rate: Rate::unlimited(),
        });
        let store = store(&pool);
        let faults = |file| {
            let before = thread::minor_faults();
            let loaded = load(&store, file).unwrap();
            assert_eq!(loaded.report.bytes_shared, 0);
            thread::minor_faults() - before
        };
        let (fresh, recycled) = (faults(&first), faults(&second));
        assert!(
            huge_pages || fresh >= pages,
            "{fresh} faults do not cover {pages} pages: what is counted?"
        );
        assert!(recycled < pages / 100, "{recycled} faults for {pages} recycled pages");
        assert_eq!(pool.stats().faulted, bytes_of(32));
    }
}

#[test]
fn live_chunks_are_shared_and_not_read() {
    let dir = scratch();
    let pieces: Vec<_> = (30..33).map(|seed| noise(seed, 3 * MIB)).collect();
    let pool = pool(16);
    let store = store(&pool);
    let first = load(&store, &weights(dir.path(), "v1", &pieces)).unwrap();

    let changed = vec![pieces[0].clone(), noise(99, 3 * MIB), pieces[2].clone()];
    let (path, chunks) = weights(dir.path(), "v2", &changed);
    // If the shared chunks were read, they would not match.
    let mut text = std::fs::read(&path).unwrap();
    text[0] ^= 1;
    text[6 * MIB] ^= 1;
    std::fs::write(&path, text).unwrap();
    assert_eq!(store.bytes_needed(&chunks), bytes_of(2));
    let second = load(&store, &(path, chunks)).unwrap();
    assert_holds(&second, &changed);
    assert_eq!(
        (second.report.bytes_read, second.report.bytes_shared),
        (3 * MIB as u64, 6 * MIB as u64)
    );
    assert!(Arc::ptr_eq(&first.placed[2].region, &second.placed[2].region));
    assert_eq!((pool.stats().used, store.stats().regions), (bytes_of(8), 4));

    drop(first);
    assert_holds(&second, &changed);
    assert_eq!((pool.stats().used, store.stats().regions), (bytes_of(6), 3));
    drop(second);
    let again = load(&store, &weights(dir.path(), "v1", &pieces)).unwrap();
    assert_eq!(again.report.bytes_read, 9 * MIB as u64);
}

#[test]
fn twins_within_a_file_are_read_once() {
    let dir = scratch();
    let piece = noise(40, 2 * MIB);
    let pieces = vec![piece.clone(), noise(41, 2 * MIB), piece];
    let loaded = load(&store(&pool(2)), &weights(dir.path(), "weights.bin", &pieces)).unwrap();
    assert_holds(&loaded, &pieces);
    assert_eq!(
        (loaded.report.bytes_read, loaded.report.bytes_shared),
        (4 * MIB as u64, 2 * MIB as u64)
    );
}

#[test]
fn a_changed_byte_is_found_and_all_memory_returned() {
    let dir = scratch();
    let pieces = vec![noise(50, 2 * MIB), noise(51, 100), noise(52, 200), noise(53, 9 * MIB)];
    let (path, chunks) = weights(dir.path(), "weights.bin", &pieces);
    let text = std::fs::read(&path).unwrap();
    let pool = pool(16);
    let store = store(&pool);
    for (index, chunk) in chunks.iter().enumerate() {
        let mut damaged = text.clone();
        damaged[(chunk.offset + chunk.bytes) as usize - 1] ^= 0x10;
        std::fs::write(&path, damaged).unwrap();
        let error = load(&store, &(&path, chunks.clone())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        let wanted = format!("weights.bin: chunk {index} ({} bytes", chunk.bytes);
        assert!(error.message().contains(&wanted), "{error}");
        assert_eq!((pool.stats().used, store.stats().regions), (0, 0));
    }
    std::fs::write(&path, text).unwrap();
    assert_holds(&load(&store, &(path, chunks)).unwrap(), &pieces);
}

#[test]
fn a_truncated_file_is_refused_before_memory_is_taken() {
    let dir = scratch();
    let (path, chunks) =
        weights(dir.path(), "weights.bin", &[noise(60, 2 * MIB), noise(61, 3 * MIB)]);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4 * MIB as u64).unwrap();
    let pool = pool(8);
    let error = load(&store(&pool), &(path, chunks)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains("weights.bin: chunk 1"), "{error}");
    assert_eq!(pool.stats().backed, 0);
}

#[test]
fn a_model_larger_than_the_pool_is_refused() {
    let dir = scratch();
    let pieces = vec![noise(70, 4 * MIB), noise(71, 4 * MIB), noise(72, 4 * MIB)];
    let pool = pool(5);
    let error = load(&store(&pool), &weights(dir.path(), "weights.bin", &pieces)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert_eq!(pool.stats().used, 0);
}

#[test]
fn a_stopped_load_returns_all_memory() {
    let dir = scratch();
    let pieces = vec![noise(80, 32 * MIB), noise(81, 32 * MIB)];
    let file = weights(dir.path(), "weights.bin", &pieces);
    let pool = pool(32);
    pool.prefault(bytes_of(32)).unwrap();
    // Half a second a slice and 8 s in all, so that the stop comes before the end.
    let slow = StoreConfig { read_rate: Rate::per_second(8 << 20), direct: true };
    let stopped = ParameterStore::new(pool.clone(), slow);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| stopped.load(&file.0, &file.1, &stop));
        while pool.stats().used < bytes_of(32) {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(loader.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    });
    assert_eq!((pool.stats().used, pool.stats().backed), (0, bytes_of(32)));
    assert_eq!(stopped.stats().loads, 0);
    assert_holds(&load(&store(&pool), &file).unwrap(), &pieces);
    let set = AtomicBool::new(true);
    assert_eq!(stopped.load(&file.0, &file.1, &set).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn loads_at_the_same_time_do_not_disturb_each_other() {
    let dir = scratch();
    let versions: Vec<_> = (0..3).map(|version| assorted(100 * version)).collect();
    let files: Vec<_> = versions
        .iter()
        .zip(0..)
        .map(|(pieces, n)| weights(dir.path(), &format!("v{n}"), pieces))
        .collect();
    let pool = pool(60);
    let store = store(&pool);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for (file, pieces) in files.iter().zip(&versions) {
                let store = &store;
                scope.spawn(move || assert_holds(&load(store, file).unwrap(), pieces));
            }
        });
    }
    let stats = pool.stats();
    assert_eq!(stats.used, 0);
    assert!(stats.backed <= stats.bytes_max);
}

#[test]
fn a_hash_of_another_length_is_not_shared() {
    let dir = scratch();
    let piece = noise(90, 2 * MIB);
    let store = store(&pool(8));
    let file = weights(dir.path(), "weights.bin", &[piece]);
    let _alive = load(&store, &file).unwrap();
    let mut lying = file.1.clone();
    lying[0].bytes -= 4096;
    let error = load(&store, &(file.0, lying)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
}

#[test]
fn no_chunks_are_a_load_of_nothing() {
    let dir = scratch();
    let pool = pool(1);
    let loaded = load(&store(&pool), &weights(dir.path(), "weights.bin", &[])).unwrap();
    assert!(loaded.placed.is_empty());
    let only_empty = load(&store(&pool), &weights(dir.path(), "weights.bin", &[vec![]])).unwrap();
    assert_eq!(only_empty.placed[0].bytes, 0);
    assert_eq!(pool.stats().backed, 0);
}
