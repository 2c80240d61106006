//! Allocator settings for a command that processes recordings and ends.
//!
//! The compiled-in settings (`.cargo/config.toml`) are a server's. They have four arenas a core, so
//! that threads rarely share one, and keep freed pages for seconds, so that no request waits for
//! new ones. This command has few threads that compute much between two allocations. Memory kept by
//! each arena only adds to the peak (ADR 0008).

use std::os::unix::process::CommandExt;
use std::process::Command;

use command_line::environment;

/// Number of threads that share an arena.
const THREADS_AN_ARENA: usize = 8;

/// Settings besides the number of arenas. Freed pages return to the system within 20 ms, and a
/// thread's cache keeps 32 objects of a size. Sizes of which LibTorch has thousands of objects use
/// longer slabs, since each slab costs 128 bytes of metadata.
const SETTINGS: &str = "max_background_threads:1,dirty_decay_ms:20,tcache_nslots_small_max:32,\
                        slab_sizes:1-64:8|128-128:8|512-512:8|6144-6144:12";

/// Restarts this program in the same process with settings for `threads` inference threads, since
/// jemalloc reads its settings before `main`. Does nothing without jemalloc, or if the environment
/// sets `MALLOC_CONF`.
pub(super) fn restart_frugally(threads: Option<usize>) {
    if !cfg!(feature = "jemalloc") || environment::MALLOC_CONF.text().is_some() {
        return;
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let arenas = threads.unwrap_or_else(cores).div_ceil(THREADS_AN_ARENA).max(1);
    let settings = format!("narenas:{arenas},{SETTINGS}");
    let mut arguments = std::env::args_os();
    let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) else { return };
    // `exec` returns only on failure. The process then continues with its current settings.
    let _ = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(environment::MALLOC_CONF.name, settings)
        .exec();
}
