//! Figures and settings of jemalloc, if it is the process's allocator. Without the feature
//! `jemalloc`, or under another allocator, all functions return `None`.

/// Figures of jemalloc. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JemallocStats {
    /// Memory allocated by the program and not yet freed.
    pub allocated: u64,
    /// Memory in resident pages.
    pub resident: u64,
}

#[cfg(not(feature = "jemalloc"))]
mod imp {
    use super::JemallocStats;

    /// Reads the figures.
    pub fn stats() -> Option<JemallocStats> {
        None
    }

    /// Lets the calling thread allocate from the arena of the background threads.
    pub fn use_background_arena() -> Option<u32> {
        None
    }

    /// Returns the calling thread's cached memory to its arena. True if there is such a cache.
    pub fn empty_thread_cache() -> bool {
        false
    }
}

#[cfg(feature = "jemalloc")]
mod imp {
    use std::sync::OnceLock;

    use tikv_jemalloc_ctl::{epoch, raw, stats as figures, thread};

    use super::JemallocStats;

    /// Reads the figures. Returns `None` if jemalloc is not the process's allocator.
    pub fn stats() -> Option<JemallocStats> {
        if !serves_this_process() {
            return None;
        }
        epoch::advance().ok()?;
        Some(JemallocStats {
            allocated: figures::allocated::read().ok()? as u64,
            resident: figures::resident::read().ok()? as u64,
        })
    }

    /// Lets the calling thread allocate from the one arena of the background threads. A thread of
    /// idle priority may be preempted inside an arena's lock, and must not delay a serving thread
    /// then. Memory kept by a loader must not lie between the allocations of requests. Returns the
    /// arena's number, or `None` if jemalloc is not the process's allocator.
    pub fn use_background_arena() -> Option<u32> {
        static ARENA: OnceLock<Option<u32>> = OnceLock::new();
        if !serves_this_process() {
            return None;
        }
        // SAFETY: "arenas.create" yields a u32, by jemalloc's manual; the name ends with a zero.
        let arena = (*ARENA.get_or_init(|| unsafe { raw::read(b"arenas.create\0") }.ok()))?;
        // SAFETY: "thread.arena" takes a u32, the number of an existing arena; the name ends with a
        // zero.
        unsafe { raw::write(b"thread.arena\0", arena) }.ok()?;
        Some(arena)
    }

    /// Returns the calling thread's cached memory to its arena, after a large piece of work and
    /// before a long wait. A cache shrinks only while its thread allocates. Returns false if
    /// jemalloc is not the process's allocator.
    pub fn empty_thread_cache() -> bool {
        if !serves_this_process() {
            return false;
        }
        // SAFETY: "thread.tcache.enabled" takes a bool, by jemalloc's manual; the name ends with a
        // zero.
        let set =
            |enabled: bool| unsafe { raw::write(b"thread.tcache.enabled\0", enabled) }.is_ok();
        // Switching the cache off empties it.
        set(false) && set(true)
    }

    /// Returns true if allocations of this process reach jemalloc, which may be linked and unused.
    fn serves_this_process() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| {
            let allocated = || Some(thread::allocatedp::read().ok()?.get());
            let before = allocated();
            drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 16)));
            before.is_some() && before != allocated()
        })
    }
}

pub use imp::{empty_thread_cache, stats, use_background_arena};
