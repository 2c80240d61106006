//! jemalloc's figures, with jemalloc as this binary's allocator (feature `jemalloc`) and without.

use memory::jemalloc;

#[cfg(not(feature = "jemalloc"))]
#[test]
fn another_allocator_has_no_figures() {
    assert_eq!(jemalloc::stats(), None);
    assert_eq!(jemalloc::use_background_arena(), None);
}

#[cfg(feature = "jemalloc")]
#[test]
fn figures_follow_allocations() {
    const BYTES: usize = 256 << 20;
    let before = jemalloc::stats().unwrap();
    let held = std::hint::black_box(vec![1u8; BYTES]);
    let after = jemalloc::stats().unwrap();
    assert!(after.allocated >= before.allocated + BYTES as u64 / 2);
    assert!(after.allocated <= after.active && after.active <= after.resident);
    drop(held);
}

#[cfg(feature = "jemalloc")]
#[test]
fn background_threads_share_an_arena_of_their_own() {
    let arenas: Vec<_> = (0..2)
        .map(|_| {
            let thread = std::thread::spawn(|| {
                let arena = jemalloc::use_background_arena().unwrap();
                let held: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 1000]).collect();
                (arena, held)
            });
            thread.join().unwrap()
        })
        .collect();
    assert_eq!(arenas[0].0, arenas[1].0);
    // Freed on a thread that uses another arena.
    drop(arenas);
}
