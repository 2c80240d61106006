//! Slots taken, recycled, released, from one thread and many.

use std::sync::atomic::{AtomicBool, Ordering};

use base::ErrorKind;
use memory::{PoolConfig, RegionMut, SLOT_BYTES};
use os::Rate;

use crate::{bytes_of, pool, pool_with};

#[test]
fn start_up_takes_memory_and_loads_recycle_it() {
    let pool = pool(4);
    assert_eq!(pool.stats().backed, 0);
    pool.prefault(bytes_of(3) - 1).unwrap();
    pool.prefault(bytes_of(2)).unwrap();
    assert_eq!((pool.stats().backed, pool.stats().used), (bytes_of(3), 0));
    for _ in 0..10 {
        let mut region = pool.allocate(2 * SLOT_BYTES + 1).unwrap();
        assert_eq!(region.as_mut_slice().len(), region.len());
        region.as_mut_slice().fill(7);
        assert_eq!(pool.stats().used, bytes_of(3));
        let region = region.freeze();
        assert_eq!(region.as_ptr().addr() % SLOT_BYTES, 0);
        assert!(region.as_slice().iter().all(|&byte| byte == 7));
    }
    let stats = pool.stats();
    assert_eq!(
        (stats.backed, stats.used, stats.faulted, stats.released),
        (bytes_of(3), 0, bytes_of(3), 0)
    );
}

#[test]
fn the_budget_holds() {
    let pool = pool(4);
    assert_eq!(pool.prefault(bytes_of(4) + 1).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    let held = pool.allocate(2 * SLOT_BYTES).unwrap();
    let error = pool.allocate(3 * SLOT_BYTES).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(error.message().contains("4.00 MiB of the pool's 8.00 MiB are in use"), "{error}");
    drop(held);
    assert_eq!(pool.allocate(4 * SLOT_BYTES).unwrap().len(), 4 * SLOT_BYTES);
}

#[test]
fn fragments_are_released_for_a_long_run() {
    let pool = pool(8);
    let mut kept: Vec<RegionMut> = (0..8).map(|_| pool.allocate(SLOT_BYTES).unwrap()).collect();
    kept.iter_mut().enumerate().for_each(|(index, region)| region.as_mut_slice().fill(index as u8));
    let mut index = 0;
    kept.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    let mut long = pool.allocate(4 * SLOT_BYTES).unwrap();
    long.as_mut_slice().fill(99);
    let stats = pool.stats();
    assert_eq!((stats.backed, stats.used), (bytes_of(8), bytes_of(8)));
    assert_eq!((stats.faulted, stats.released), (bytes_of(12), bytes_of(4)));
    for (region, value) in kept.iter_mut().zip([1, 3, 5, 7]) {
        assert!(
            region.as_mut_slice().iter().all(|&byte| byte == value),
            "another region's bytes changed"
        );
    }
}

#[test]
fn a_stopped_allocation_returns_all_memory() {
    let rate = Rate::per_second(64 * bytes_of(1));
    let pool =
        pool_with(PoolConfig { bytes_max: bytes_of(1000), huge_pages: true, fault_rate: rate });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.allocate_unless(1000 * SLOT_BYTES, &stop).map(|_| ()));
        while pool.stats().faulted == 0 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    });
    let stats = pool.stats();
    assert_eq!((stats.used, stats.backed), (0, stats.faulted));
    assert!(stats.backed < bytes_of(1000));
}

#[test]
fn nothing_takes_no_slots() {
    let pool = pool(1);
    let empty = pool.allocate(0).unwrap().freeze();
    assert!(empty.as_slice().is_empty());
    assert_eq!(pool.stats().backed, 0);
}

#[test]
fn many_threads_share_a_pool() {
    const THREADS: u8 = 4;
    const ROUNDS: usize = 60;
    // Exactly the maximum that all threads hold together, so that each takes slots that others
    // returned.
    let pool = pool(usize::from(THREADS) * 3);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=THREADS)
            .map(|thread| {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let slots = 1 + (round + usize::from(thread)) % 3;
                        let mut region = pool.allocate(slots * SLOT_BYTES).unwrap();
                        region.as_mut_slice().chunks_mut(4096).for_each(|page| page[0] = thread);
                        std::thread::yield_now();
                        assert!(region.as_mut_slice().chunks(4096).all(|page| page[0] == thread));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            // At least one round, also if the workers end before this thread gets a core.
            loop {
                pool.prefault(pool.stats().bytes_max).unwrap();
                let stats = pool.stats();
                assert!(stats.used <= stats.backed && stats.backed <= stats.bytes_max);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    let stats = pool.stats();
    assert_eq!((stats.used, stats.backed), (0, stats.bytes_max));
    assert_eq!(stats.faulted - stats.released, stats.backed);
}

#[test]
fn small_pages_on_request() {
    let pool = pool_with(PoolConfig {
        bytes_max: bytes_of(2),
        huge_pages: false,
        fault_rate: Rate::unlimited(),
    });
    let before = os::thread::minor_faults();
    pool.prefault(bytes_of(2)).unwrap();
    assert!(os::thread::minor_faults() - before >= bytes_of(2) / 4096);
    assert!(!pool.stats().huge_pages);
    assert_eq!(pool.huge_bytes(), Ok(0));
}

#[test]
fn huge_pages_if_granted() {
    let pool = pool(4);
    pool.prefault(bytes_of(4)).unwrap();
    let stats = pool.stats();
    // The kernel may agree and still have no huge page left: only the direction can be asserted.
    assert!(pool.huge_bytes().unwrap() <= stats.backed);
    assert!(
        stats.huge_pages || (stats.fallback.is_some() && pool.huge_bytes() == Ok(0)),
        "{stats:?}"
    );
}
