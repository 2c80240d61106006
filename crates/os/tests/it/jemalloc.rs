//! jemalloc's figures, with jemalloc as this binary's allocator (feature `jemalloc`) and without.

use os::jemalloc;

#[cfg(not(feature = "jemalloc"))]
#[test]
fn another_allocator_has_no_figures() {
    assert_eq!(jemalloc::stats(), None);
    assert_eq!(jemalloc::use_background_arena(), None);
    assert!(!jemalloc::empty_thread_cache());
}

#[cfg(feature = "jemalloc")]
#[test]
fn figures_follow_allocations() {
    const BYTES: usize = 256 << 20;
    let before = jemalloc::stats().unwrap();
    let held = std::hint::black_box(vec![1u8; BYTES]);
    let after = jemalloc::stats().unwrap();
    assert!(after.allocated >= before.allocated + BYTES as u64 / 2);
    assert!(after.allocated <= after.resident);
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

#[cfg(feature = "jemalloc")]
#[test]
#[expect(unsafe_code, reason = "the one way to read what an arena's caches hold")]
fn a_thread_can_empty_its_cache_and_keeps_its_arena() {
    /// Returns the bytes cached by an arena's threads.
    fn cached(arena: u32) -> usize {
        tikv_jemalloc_ctl::epoch::advance().unwrap();
        let name = format!("stats.arenas.{arena}.tcache_bytes\0");
        // SAFETY: that is a size_t, by jemalloc's manual; the name ends with a zero.
        unsafe { tikv_jemalloc_ctl::raw::read(name.as_bytes()) }.unwrap()
    }
    let thread = std::thread::spawn(|| {
        // SAFETY: it gives a u32, by jemalloc's manual; the name ends with a zero.
        let arena: u32 = unsafe { tikv_jemalloc_ctl::raw::read(b"arenas.create\0") }.unwrap();
        // SAFETY: it takes a u32, the number of an existing arena; the name ends with a zero.
        unsafe { tikv_jemalloc_ctl::raw::write(b"thread.arena\0", arena) }.unwrap();
        drop(std::hint::black_box((0..1000).map(|n| vec![n as u8; 2000]).collect::<Vec<_>>()));
        assert!(cached(arena) > 4000);
        assert!(jemalloc::empty_thread_cache());
        assert!(cached(arena) < 4000, "{}", cached(arena));
        drop(std::hint::black_box((0..1000).map(|n| vec![n as u8; 2000]).collect::<Vec<_>>()));
        assert!(cached(arena) > 4000);
    });
    thread.join().unwrap();
}
